"""The trained policies of a run: act on NumPy observations, play episodes, film them."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from rljax import datasets, envs
from rljax.agent import Base, EnvSpec, act, choose, difference, first_memory
from rljax.buffers import Experience
from rljax.envs.environment import EnvironmentFailed
from rljax.envs.timed import share_of_time
from rljax.networks.noise import Lasting
from rljax.runs import checkpoints, records, statistics
from rljax.runs.records import read_config
from rljax.training import action_cost, configuration, evaluation, registry, schedules
from rljax.training import trust as trusting
from rljax.training.drivers.driver import EVALUATE, environment_seeds
from rljax.training.settings import Settings, settings_of
from rljax.training.trust import PARTS

if TYPE_CHECKING:
    from rljax.envs.host.spaces import Spaces

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
    described_spaces: Mapping[str, Any] | None = None  # of the environment, as config.json has them

    @functools.cached_property
    def spaces(self) -> Spaces | None:
        """The environment's own spaces. None inside the program, where observations and actions are as agents see them.

        Runs from before spaces were stored make the environment. Raises `ValueError` where that is not possible.
        """
        from rljax.envs.host.spaces import Spaces

        name = self.settings.env
        if self.described_spaces is not None:
            return Spaces.read(self.described_spaces, name)
        if name == "none" or envs.is_compiled(name):
            return None
        seen = envs.observed(name, self.experience.observes)
        try:
            hosted = envs.make_hosted(envs.evaluated(seen), 1)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"the run does not hold the spaces of '{name}', because an older version wrote it, and the environment "
                f"cannot be made to ask for them: {error} To do without: policy(observation, normalised=True)"
            ) from error
        hosted.close()
        return hosted.spaces

    @property
    def observes_time(self) -> bool:
        """Whether the agent sees the time after the environment's own observation."""
        seen = envs.observed(self.settings.env, self.experience.observes)
        return seen != "none" and envs.with_time(seen) == seen

    @property
    def experience(self) -> Experience:
        """The agent's declaration of what it learns from."""
        return self.module.experience(self.config)

    @property
    def remembers(self) -> bool:
        """Whether actions depend on earlier observations of an episode."""
        return not isinstance(first_memory(self.module, self.spec, self.config), Lasting | None)

    @property
    def explores_in_time(self) -> bool:
        """Whether exploring actions, and they alone, depend on what was explored before in an episode."""
        return isinstance(first_memory(self.module, self.spec, self.config), Lasting)


class Policy:
    """The policy of one learner.

    policy = rljax.load(out)
    observation, _ = env.reset()
    observation, reward, terminated, truncated, info = env.step(policy(observation))
    """

    def __init__(self, policies: Policies, learner: int) -> None:
        """Raises `ValueError` if the run has no such learner."""
        require_learner(policies.settings, learner)
        self.spec = policies.spec
        self._policies = policies
        self._state, self._config = jax.tree.map(lambda x: x[learner], (policies.state, policies.config))
        module = policies.module

        def choose(state: Any, observation: Any, key: Any, config: Any, explore: bool, memory: Any) -> Any:
            action, _, memory = act(module, state, observation, key, config, explore, memory)
            return action, memory

        self._act = jax.jit(choose, static_argnames="explore")
        self._calls, self._memory = 0, None

    def __call__(
        self, observation: Any, explore: bool = False, *, normalised: bool = False, step: Any = None, mask: Any = None
    ) -> Any:
        """Actions for one observation of the environment, or for N of them, in the environment's own terms.

        `observation` is what the environment's `reset` and `step` return: an array, a dictionary, a tuple, a number.
        Several observations have a leading axis in each array. The actions have the bounds, the shape and the dtype
        of the environment's action space, and discrete actions begin at its `start`: `env.step(policy(observation))`
        works. Environments inside the program, such as brax/ant, are rljax's own adapters (`rljax.envs.make`), whose
        actions lie in [-1, 1].

        With `normalised`, observations may be as agents see them, float32 [O...] or [N, O...], and actions are in
        [-1, 1], or count from 0: what `rljax.envs.make_hosted` takes. Where the environment's `info` says which actions
        are allowed, give `mask=info["action_mask"]`.

        Policies that observe the time, or that remember, need `step`, the number of steps since the reset, for each
        observation. What is remembered is what the calls since step 0 have shown, for each of N environments. Noise
        that lasts for several steps does so where `step` is given with `explore`; else each call draws its own.

        Raises `ValueError` for other observations, and for a `step` that does not fit the call before.
        """
        seen = self._seen(observation, normalised, step, mask)
        self._calls += 1
        key = jax.random.key(self._calls)
        lasting = explore and step is not None and self._policies.explores_in_time
        memory = self._recalled(seen, step) if self._policies.remembers or lasting else None
        action, self._memory = self._act(self._state, seen, key, self._config, explore, memory)
        action = np.asarray(action)
        if not normalised and self._policies.spaces is not None:
            action = self._policies.spaces.act(action)
        return action[()] if self.spec.discrete and not self.spec.choices else action  # a number for one choice

    def _recalled(self, seen: Any, step: Any) -> Any:
        """The memories before these observations, of which `step` says how many steps their episodes have lasted."""
        one = jax.tree.leaves(self.spec.observation)[0]
        found = np.shape(jax.tree.leaves(seen)[0])
        leading = found[: len(found) - len(one.shape)]
        fresh = first_memory(self._policies.module, self.spec, self._config, *leading)
        if step is None:
            raise ValueError(
                "this policy remembers the episode. Say how many steps have passed since the reset: "
                "policy(observation, step=0), then step=1, and so on."
            )
        first: Any = np.broadcast_to(np.asarray(step) == 0, leading)
        if first.all():
            return fresh
        if self._memory is None or jax.tree.map(np.shape, self._memory) != jax.tree.map(np.shape, fresh):
            raise ValueError(
                f"this policy remembers the episode, and step is {step}: the call before must have shown the step "
                "before, of as many environments. Begin an episode with step=0."
            )
        return choose(first, fresh, self._memory)

    def _seen(self, observation: Any, normalised: bool, step: Any, mask: Any) -> Any:
        """The observations as the agent sees them. Both forms are accepted; `normalised` says which is tried first."""
        if normalised:
            found = self._as_seen(observation)
            return self._translated(observation, step, mask) if found is None else found
        try:
            return self._translated(observation, step, mask)
        except ValueError:
            found = self._as_seen(observation)
            if found is None:
                raise
            return found

    def _as_seen(self, observation: Any) -> Any:
        """Observations [O...] or [N, O...] that are already as the agent sees them; None for others."""
        if self.spec.parts:
            fits = isinstance(observation, dict) and set(observation) == {part.name for part in self.spec.parts}
            found = {part.name: np.asarray(observation[part.name]) for part in self.spec.parts} if fits else {}
            leading = {found[part.name].shape[: -len(part.shape)] for part in self.spec.parts if fits}
            fits = fits and all(found[part.name].shape[-len(part.shape) :] == part.shape for part in self.spec.parts)
            fits = fits and len(leading) == 1 and len(next(iter(leading))) <= 1
            return {part.name: found[part.name].astype(part.dtype) for part in self.spec.parts} if fits else None
        shape = self.spec.observation_shape
        if isinstance(observation, (dict, tuple)):
            return None
        try:
            found = np.asarray(observation, self.spec.observation_dtype)
        except (TypeError, ValueError):
            return None
        return found if found.shape[-len(shape) :] == shape and found.ndim <= len(shape) + 1 else None

    def _translated(self, observation: Any, step: Any, mask: Any) -> Any:
        """The environment's own observations as the agent sees them."""
        from rljax.envs.host.spaces import CORRECT

        spaces, shape = self._policies.spaces, self.spec.observation_shape
        if spaces is None:
            raise ValueError(
                f"observation has shape {np.shape(observation)}, the policy needs {shape} or [N, *{shape}]."
            )
        leading = spaces.leading(observation)
        if spaces.masked and mask is None:
            raise ValueError(
                "this policy needs to know which actions are allowed: policy(observation, mask=info['action_mask']), "
                "with the info that reset or step returned with the observation."
            )
        try:
            seen = spaces.observe(observation, leading, mask)
        except ValueError as error:
            given = str(error).replace(f" {CORRECT}", "")
            raise ValueError(
                f"the policy was given {given} It needs what '{spaces.name}' returns: {spaces.observation}, or "
                "several with a leading axis."
            ) from None
        if not self._policies.observes_time:
            return seen
        if step is None:
            raise ValueError(
                "this policy also observes the time of the episode. Say how many steps have passed since the reset: "
                "policy(observation, step=0), then step=1, and so on."
            )
        time = np.broadcast_to(share_of_time(np.asarray(step, np.float32), self.spec), leading)
        return np.concatenate([seen, time[..., None].astype(np.float32)], axis=-1)


def require_learner(settings: Settings, learner: int) -> None:
    """Raise `ValueError` if a run with these settings has no such learner."""
    number, learner = len(settings.seeds), configuration.integer(learner, "learner")
    if not 0 <= learner < number:
        raise ValueError(f"no learner {learner}: the run has {number}, 0 to {number - 1}.")


def unnormalise(action: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Rescale actions from [-1, 1] to the bounds [low, high] of a Gymnasium Box."""
    return low + (np.clip(action, -1.0, 1.0) + 1.0) * 0.5 * (high - low)


def load_all(
    out: str | Path,
    *,
    best: bool = False,
    compute: int | None = None,
    trust: bool = False,
    parts: Sequence[str] = ("agent",),
) -> Policies:
    """The policies of all learners of the run in `out`: the last ones, or with `best` those of their best evaluations.

    `compute` is the number of thinking steps; None is the number in training. `parts` are the settings of the run that
    may name code, of `rljax.training.trust.PARTS` those that the caller uses. Raises `ValueError` where `out` is not a
    run, where it names code that another user's command named (unless `trust`), and where `compute` is given but the
    policies do not think in steps. Raises `CheckpointError` where there is no usable checkpoint.
    """
    folder = Path(configuration.text("the folder of a run", out))
    described = read_config(folder)
    settings = settings_of(described)
    trusting.require(described, described.get("seals"), folder / "config.json", trust, parts)
    module = registry.load_agent(settings.agent)
    config = configuration.replace(module.Config(), described["config"], f"'{folder / 'config.json'}'")
    spec = EnvSpec.read(described["spec"])
    if compute is not None:
        compute = configuration.integer(compute, "compute")
        if THINKING not in configuration.as_json(config):
            raise ValueError(f"agent '{settings.agent}' does not think in steps: it has no --compute to choose.")
        config = configuration.replace(config, {THINKING: compute}, "--compute")
        module.check(spec, config)
    path = checkpoints.newest(folder / "checkpoints")
    values = checkpoints.notes(path).get("values") or {}
    config = schedules.in_steps(module, dataclasses.replace(config, **values), settings)
    stacked = configuration.stack(config, len(settings.seeds))
    keys = jax.vmap(jax.random.key)(np.asarray(settings.seeds, np.uint32))
    used = None if settings.base is None else base(settings.base, trust=trust)

    def init(key: Any, config: Any) -> Any:
        state = module.init(key, spec, config)
        return state if used is None else module.use_base(state, used, config)

    template = jax.eval_shape(jax.vmap(init), keys, stacked)
    state = checkpoints.restore(path, "best" if best else "agent", template)
    others = (int(path.name), described.get("reference"), described.get("spaces"))
    return Policies(settings, spec, module, stacked, state, *others)


def base(out: str | Path, *, trust: bool = False) -> Base:
    """The policy of the first learner of the run in `out`, as another agent's input. `trust` is that of `load_all`.

    Raises `ValueError` where `out` is not a run, or has no usable checkpoint.
    """
    try:
        policies = load_all(out, trust=trust)
    except (ValueError, checkpoints.CheckpointError) as error:
        raise ValueError(
            f"--base {out} cannot be read: {error} Name the folder of a run that has a checkpoint. A run reads its "
            "base whenever it goes on: where that folder is gone, restore it."
        ) from error
    state, config = jax.tree.map(lambda x: x[0], (policies.state, policies.config))
    if policies.remembers:
        raise ValueError(f"--base {out} is a policy that remembers, and a base acts on single observations.")
    return Base(state, config, policies.module, policies.spec)


def load(out: str | Path, *, learner: int = 0, best: bool = False, trust: bool = False) -> Policy:
    """The policy of one learner of the run in `out`: a function of observations, see `Policy`. Errors: `load_all`."""
    return Policy(load_all(out, best=best, trust=trust), learner)


def evaluate_run(
    out: str | Path,
    *,
    episodes: int = 10,
    env: str | None = None,
    best: bool = False,
    seed: int = 0,
    compute: int | None = None,
    hold: int | None = None,
    trust: bool = False,
) -> dict[str, Any]:
    """Play `episodes` complete episodes with each learner; return their records and summary, and the cost of an action.

    The policy decides in every `hold` steps, and sees nothing in between: it plays so many actions of a sequence if it
    emits sequences, and holds one action if not. None is as in training.
    The result has normalised scores where the run learnt from data with reference returns and plays in its own
    environment. Raises `ValueError` where the environment does not fit the policy, and all errors of `load_all`.
    """
    episodes, seed = configuration.integer(episodes, "episodes"), configuration.integer(seed, "seed", 2**63)
    if env is not None:
        env = configuration.text("env", env)
    hold = None if hold is None else configuration.integer(hold, "hold")
    for flag, number in {"--episodes": episodes, "--hold": 1 if hold is None else hold}.items():
        if number < 1:
            raise ValueError(f"{flag} is {number}, it must be at least 1.")
    parts = PARTS if env is None else ("agent",)
    policies = load_all(out, best=best, compute=compute, trust=trust, parts=parts)
    agent, config = evaluation.deciding(policies.module, policies.config, hold)
    emitted = evaluation.sequence_length(config)
    name, number = env or policies.settings.evaluated_in, len(policies.settings.seeds)
    seen = envs.observed(name, policies.experience.observes)
    if name == "none":
        raise ValueError(f"the run in '{out}' has no environment to play in. Name one that fits: --env NAME")
    limit = policies.spec.max_episode_steps if policies.settings.data and name == policies.settings.env else None
    limits = {} if limit is None else {"max_episode_steps": limit}  # of the data's environment, as in training
    evaluator = evaluation.make(agent, seen, number, episodes, limits)
    _require_fit(policies.spec, evaluator.spec)
    seeds = [s for _ in range(number) for s in environment_seeds(seed, EVALUATE, number=episodes)]
    played = evaluator(policies.state, seeds, config)
    close(evaluator)
    scores = None if env else datasets.score(played.returns, policies.reference)
    records = [
        {
            "step": policies.step,
            "learner": i,
            "seed": policies.settings.seeds[i],
            "returns": played.returns[i].tolist(),
            "lengths": played.lengths[i].tolist(),
            **played.details(i),
            **({} if scores is None else {"scores": scores[i].tolist()}),
        }
        for i in range(number)
    ]
    return {
        "environment": name,
        "steps": _steps_of_best(Path(out), policies.step) if best else None,
        "compute": configuration.as_json(policies.config).get(THINKING),
        "hold": hold or emitted or 1,
        "emits": emitted is not None,
        **action_cost.of_action(policies.module, policies.state, policies.spec, policies.config),
        "episodes": records,
        "summary": statistics.summarise(records)["final"],
    }


def close(environments: Any) -> None:
    """Close environments (or an evaluator) whose results are there: what they raise is a warning."""
    try:
        environments.close()
    except EnvironmentFailed as error:
        warnings.warn(f"{error} The result is not affected.\n{error.trace}", stacklevel=2)


def averaged(results: Sequence[Mapping[str, Any]]) -> str:
    """A line about evaluations that decided in every so many steps: the mean return over these lengths."""
    ordered = sorted(results, key=lambda result: result["hold"])
    holds = [result["hold"] for result in ordered]
    means = [[float(np.mean(entry["returns"])) for entry in result["episodes"]] for result in ordered]
    each = [evaluation.averaged(returns, holds) for returns in zip(*means, strict=True)]
    spread = f" +- {np.std(each):,.1f} over {len(each)} learners" if len(each) > 1 else ""
    return f"frequency-averaged return over holds of {min(holds)} to {max(holds)} steps: {np.mean(each):,.1f}{spread}"


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
    kept = "a decision in every {} steps, " if result["emits"] else "each action held for {} steps, "
    held = kept.format(result["hold"]) if result["hold"] > 1 else ""
    lines.append(f"  {held}{thinking}{result['parameters']:,} parameters{operations}")
    for entry in result["episodes"]:
        returns, lengths = np.array(entry["returns"]), np.array(entry["lengths"])
        step = f", of step {result['steps'][entry['learner']]:,}" if result["steps"] else ""
        lines.append(
            f"  learner {entry['learner']} (seed {entry['seed']}{step}): "
            f"return {returns.mean():,.1f} +- {returns.std():,.1f} over {len(returns)} episodes, "
            f"length {lengths.mean():,.0f}"
            + (f", {entry['cut']} of them cut before their end" if "cut" in entry else "")
            + (f", success {np.mean(entry['success']):.1%}" if "success" in entry else "")
            + (f", score {np.mean(entry['scores']):.1f}" if "scores" in entry else "")
            + "".join(f", {name} {np.mean(sums):,.1f}" for name, sums in entry.get("signals", {}).items())
        )
    summary = result["summary"]
    if summary["interval"] is not None:
        low, high = summary["interval"]
        lines.append(
            f"  all learners: mean {summary['mean']:,.1f}, IQM {summary['iqm']:,.1f} [{low:,.1f}, {high:,.1f}]"
            + ("" if summary["success"] is None else f", success {summary['success']:.1%}")
            + ("" if summary["score"] is None else f", score {summary['score']:.1f}")
            + "".join(f", {name} {statistics.shown(mean)}" for name, mean in summary.get("signals", {}).items())
        )
    return "\n".join(lines)


def _require_fit(trained: EnvSpec, given: EnvSpec) -> None:
    name = difference(trained, given)
    if name is not None:
        raise ValueError(
            f"the policy was trained with {name} = {getattr(trained, name)} on '{trained.name}', "
            f"'{given.name}' has {getattr(given, name)}. Evaluate on an environment of the same shapes."
        )
