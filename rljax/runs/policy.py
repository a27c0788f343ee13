"""The trained policies of a run: act on NumPy observations, play episodes, film them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rljax import datasets, envs
from rljax.agent import Base, EnvSpec
from rljax.buffers import Experience
from rljax.envs.host import rendering
from rljax.runs import checkpoints, records, statistics, videos
from rljax.runs.records import read_config
from rljax.training import action_cost, configuration, evaluation, registry, schedules
from rljax.training.drivers.driver import EVALUATE, environment_seeds
from rljax.training.plan import observed
from rljax.training.settings import Settings, settings_of

THINKING = "compute"  # the setting for the number of thinking steps, in torsos that think in steps


@dataclasses.dataclass(frozen=True)
class Policies:
    """The policies of all learners of a run."""

    settings: Settings
    spec: EnvSpec
    module: Any  # the agent
    config: Any  # stacked, floats [P]
    state: Any  # the agent's State, [P, ...]
    step: int  # the checkpoint's step
    reference: Sequence[float] | None  # the returns with scores 0 and 100; None where the run's data have none

    @property
    def experience(self) -> Experience:
        """The agent's declaration of what it learns from."""
        return self.module.experience(self.config)


class Policy:
    """The policy of one learner."""

    def __init__(self, policies: Policies, learner: int) -> None:
        """Raises `ValueError` if the run has no such learner."""
        require_learner(policies.settings, learner)
        self.spec = policies.spec
        self._state, self._config = jax.tree.map(lambda x: x[learner], (policies.state, policies.config))
        module = policies.module

        def act(state: Any, observation: Any, key: Any, config: Any, explore: bool) -> Any:
            return module.act(state, observation, key, config, explore)[0]

        self._act = jax.jit(act, static_argnames="explore")
        self._calls = 0

    def __call__(self, observation: np.ndarray, explore: bool = False) -> np.ndarray:
        """Actions for one observation [O...] or several [N, O...], in [-1, 1] (integers where actions are discrete).

        Environments of `rljax.envs` rescale actions to their bounds; for others use `unnormalise`. Raises `ValueError`
        for an observation of another shape.
        """
        observation = np.asarray(observation, np.float32)
        shape = self.spec.observation_shape
        if observation.shape[-len(shape) :] != shape or observation.ndim > len(shape) + 1:
            raise ValueError(f"observation has shape {observation.shape}, the policy needs {shape} or [N, *{shape}].")
        self._calls += 1
        key = jax.random.key(self._calls)
        return np.asarray(self._act(self._state, observation, key, self._config, explore))


def require_learner(settings: Settings, learner: int) -> None:
    """Raise `ValueError` if a run with these settings has no such learner."""
    number = len(settings.seeds)
    if not 0 <= learner < number:
        raise ValueError(f"no learner {learner}: the run has {number}, 0 to {number - 1}.")


def unnormalise(action: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Rescale actions from [-1, 1] to the bounds [low, high] of a Gymnasium Box."""
    return low + (np.clip(action, -1.0, 1.0) + 1.0) * 0.5 * (high - low)


def load_all(out: str | Path, *, best: bool = False, compute: int | None = None) -> Policies:
    """The policies of all learners of the run in `out`: the last ones, or with `best` those of their best evaluations.

    `compute` is the number of thinking steps; None is the number in training. Raises `ValueError` where `out` is not a
    run, and where `compute` is given but the policies do not think in steps. Raises `CheckpointError` where there is no
    usable checkpoint.
    """
    folder = Path(out)
    described = read_config(folder)
    settings = settings_of(described)
    module = registry.load_agent(settings.agent)
    config = configuration.replace(module.Config(), described["config"], f"'{folder / 'config.json'}'")
    tuples: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in described["spec"].items()
    }
    spec = EnvSpec(**tuples)
    if compute is not None:
        if THINKING not in configuration.as_json(config):
            raise ValueError(f"agent '{settings.agent}' does not think in steps: it has no --compute to choose.")
        config = configuration.replace(config, {THINKING: compute}, "--compute")
        module.check(spec, config)
    path = checkpoints.newest(folder / "checkpoints")
    values = json.loads((path / "run.json").read_text()).get("values") or {}
    config = schedules.in_steps(module, dataclasses.replace(config, **values), settings)
    stacked = configuration.stack(config, len(settings.seeds))
    keys = jax.vmap(jax.random.key)(np.asarray(settings.seeds, np.uint32))
    used = None if settings.base is None else base(settings.base)

    def init(key: Any, config: Any) -> Any:
        state = module.init(key, spec, config)
        return state if used is None else module.use_base(state, used, config)

    template = jax.eval_shape(jax.vmap(init), keys, stacked)
    state = checkpoints.restore(path, "best" if best else "agent", template)
    return Policies(settings, spec, module, stacked, state, int(path.name), described.get("reference"))


def base(out: str | Path) -> Base:
    """The policy of the first learner of the run in `out`, as another agent's input.

    Raises `ValueError` where `out` is not a run, or has no usable checkpoint.
    """
    try:
        policies = load_all(out)
    except (ValueError, checkpoints.CheckpointError) as error:
        raise ValueError(
            f"--base {out} cannot be read: {error} Name the folder of a run that has a checkpoint. A run reads its "
            "base whenever it goes on: where that folder is gone, restore it."
        ) from error
    state, config = jax.tree.map(lambda x: x[0], (policies.state, policies.config))
    return Base(state, config, policies.module, policies.spec)


def load(out: str | Path, *, learner: int = 0, best: bool = False) -> Policy:
    """The policy of one learner of the run in `out`; see `load_all`."""
    return Policy(load_all(out, best=best), learner)


def evaluate_run(
    out: str | Path,
    *,
    episodes: int = 10,
    env: str | None = None,
    best: bool = False,
    seed: int = 0,
    compute: int | None = None,
) -> dict[str, Any]:
    """Play `episodes` complete episodes with each learner; return their records and summary, and the cost of an action.

    The result has normalised scores where the run learnt from data with reference returns and plays in its own
    environment. Raises `ValueError` where the environment does not fit the policy, and all errors of `load_all`.
    """
    if episodes < 1:
        raise ValueError(f"--episodes is {episodes}, it must be at least 1.")
    policies = load_all(out, best=best, compute=compute)
    name, number = env or policies.settings.env, len(policies.settings.seeds)
    seen = observed(name, policies.experience)
    if name == "none":
        raise ValueError(f"the run in '{out}' has no environment to play in. Name one that fits: --env NAME")
    if envs.is_compiled(name):
        environment = envs.make(seen)
        evaluator: Any = evaluation.CompiledEvaluator(policies.module, environment, number)
        spec = environment.spec
    else:
        hosted = envs.make_hosted(envs.evaluated(seen), number * episodes)
        evaluator, spec = evaluation.HostedEvaluator(policies.module, hosted, number), hosted.spec
    _require_fit(policies.spec, spec)
    seeds = [s for _ in range(number) for s in environment_seeds(seed, EVALUATE, number=episodes)]
    played = evaluator(policies.state, seeds, policies.config)
    evaluator.close()
    scores = None if env else datasets.score(played.returns, policies.reference)
    records = [
        {
            "step": policies.step,
            "learner": i,
            "seed": policies.settings.seeds[i],
            "returns": played.returns[i].tolist(),
            "lengths": played.lengths[i].tolist(),
            **({} if played.success is None else {"success": played.success[i].tolist()}),
            **({} if scores is None else {"scores": scores[i].tolist()}),
        }
        for i in range(number)
    ]
    return {
        "environment": name,
        "steps": _steps_of_best(Path(out), policies.step) if best else None,
        "compute": configuration.as_json(policies.config).get(THINKING),
        **action_cost.of_action(policies.module, policies.state, policies.spec, policies.config),
        "episodes": records,
        "summary": statistics.summarise(records)["final"],
    }


def _steps_of_best(folder: Path, until: int) -> list[int]:
    """The steps [P] of the learners' best evaluations in a run, up to step `until`."""
    evaluations = [line for line in records.read(folder, "evaluations") if line["step"] <= until]
    best = statistics.summarise(evaluations)["best"]
    return [] if best is None else [learner["step"] for learner in best["learners"]]


def table(result: dict[str, Any]) -> str:
    """An evaluation as text: one line per learner, and one line for all learners."""
    kind = "checkpoint of step" if result["steps"] is None else "best policies until step"
    lines = [f"{result['environment']}, {kind} {result['summary']['step']:,}"]
    thinking = f"{result['compute']} thinking steps, " if (result["compute"] or 1) > 1 else ""
    operations = "" if result["flops_per_action"] is None else f", {result['flops_per_action']:,} FLOPs an action"
    lines.append(f"  {thinking}{result['parameters']:,} parameters{operations}")
    for entry in result["episodes"]:
        returns, lengths = np.array(entry["returns"]), np.array(entry["lengths"])
        step = f", of step {result['steps'][entry['learner']]:,}" if result["steps"] else ""
        lines.append(
            f"  learner {entry['learner']} (seed {entry['seed']}{step}): "
            f"return {returns.mean():,.1f} +- {returns.std():,.1f} over {len(returns)} episodes, "
            f"length {lengths.mean():,.0f}"
            + (f", success {np.mean(entry['success']):.1%}" if "success" in entry else "")
            + (f", score {np.mean(entry['scores']):.1f}" if "scores" in entry else "")
        )
    summary = result["summary"]
    if summary["interval"] is not None:
        low, high = summary["interval"]
        lines.append(
            f"  all learners: mean {summary['mean']:,.1f}, IQM {summary['iqm']:,.1f} [{low:,.1f}, {high:,.1f}]"
            + ("" if summary["success"] is None else f", success {summary['success']:.1%}")
            + ("" if summary["score"] is None else f", score {summary['score']:.1f}")
        )
    return "\n".join(lines)


def play(
    out: str | Path,
    *,
    learner: int = 0,
    best: bool = False,
    seed: int = 0,
    max_steps: int = 1_000,
    output: Path | None = None,
) -> Sequence[Path]:
    """Film one episode: an MP4 file, and for brax/ environments also Brax's HTML view. Returns the written files.

    Raises `ValueError` for an environment that cannot be rendered.
    """
    rendering.choose_renderer()
    name, seen, policy, start = _player(out, learner, best, seed)
    output = output or Path(out) / "play.mp4"
    if envs.is_compiled(name):
        filmed = videos.brax if name.startswith("brax/") else videos.drawn
        return filmed(envs.make(seen), policy, start, max_steps, output)
    hosted = envs.make_hosted(envs.evaluated(seen), 1, render_mode="rgb_array")
    frames = []
    observation = hosted.reset([start])
    for _ in range(max_steps):
        frames.append(hosted.render())
        step: Any = hosted.step(policy(observation))
        if step.terminated[0] or step.truncated[0]:
            break
        observation = step.observation
    hosted.close()
    return [videos.write(frames, output, hosted.frames_per_second)]


def tell(
    out: str | Path,
    *,
    learner: int = 0,
    best: bool = False,
    seed: int = 0,
    max_steps: int = 1_000,
    colours: bool = False,
) -> Iterator[str]:
    """One episode as text, state by state, for environments on grids and for your own environments with a `text`.

    Raises `ValueError` for all other environments.
    """
    name, seen, policy, start = _player(out, learner, best, seed)
    if not envs.is_compiled(name):
        raise ValueError(f"'{name}' cannot be shown as text. As a video: rljax play {out}")
    return videos.told(envs.make(seen), policy, start, max_steps, colours)


def _player(out: str | Path, learner: int, best: bool, seed: int) -> tuple[str, str, Policy, int]:
    """The run's environment, the environment as its agent observes it, a learner's policy, and the episode's seed."""
    policies = load_all(out, best=best)
    policy = Policy(policies, learner)
    name = policies.settings.env
    if name == "none":
        raise ValueError(f"the run in '{out}' has no environment to play in.")
    (start,) = environment_seeds(seed, EVALUATE, number=1)
    return name, observed(name, policies.experience), policy, start


def _require_fit(trained: EnvSpec, given: EnvSpec) -> None:
    for name in ("observation_shape", "action_size", "discrete"):
        if getattr(trained, name) != getattr(given, name):
            raise ValueError(
                f"the policy was trained with {name} = {getattr(trained, name)} on '{trained.name}', "
                f"'{given.name}' has {getattr(given, name)}. Evaluate on an environment of the same shapes."
            )
