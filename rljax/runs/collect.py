"""Data sets from our own runs: transitions of a trained policy, or the replay that was stored during training.

`record` follows D4RL's recipe (Fu et al., arXiv:2004.07219, section 5) with these sources:

    random         source "random" of any run in the environment
    medium         source "exploring" of a run that was stopped about a third of the way to an expert's return
    medium-replay  source "replay" of that run
    expert         source "exploring" of a run that was trained to the end
    medium-expert  `datasets.join` of medium and expert, with equal numbers of transitions

Source "replay" works for any run that has a replay. The other sources play the environment, which must be on the host.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from rljax import datasets, envs
from rljax.agent import EnvSpec, Transition, shown
from rljax.runs import checkpoints, console, policy
from rljax.runs.run import Run, read_config
from rljax.training.drivers.driver import TRAIN, environment_seeds
from rljax.training.plan import observed

Source = Literal["policy", "exploring", "random", "replay"]
SOURCES = ("policy", "exploring", "random", "replay")


def record(
    out: str | Path,
    *,
    steps: int = 1_000_000,
    source: Source = "policy",
    learner: int = 0,
    best: bool = False,
    num_envs: int = 10,
    seed: int = 0,
    name: str = "recorded",
    trust: bool = False,
) -> datasets.Dataset:
    """A data set called `name` with `steps` transitions from the run in `out`, or fewer where a replay holds fewer.

    `source` is one of:

    - "policy": the policy plays without exploration.
    - "exploring": the policy plays with the exploration of training.
    - "random": uniform actions.
    - "replay": the learner's replay in the last checkpoint, from the oldest row on.

    The first three play `num_envs` environments side by side. The data set holds the episodes of one environment after
    those of another. The last episode of each environment is cut off. Reference returns for scores come from D4RL's
    task of the same name, where there is one.

    Raises `ValueError` for a run that does not fit, for an unknown source, and for environments inside the program,
    which cannot be played. Code that the run names is run if this user began it, or with `trust`.
    """
    if source not in SOURCES:
        raise ValueError(f"--from is '{source}', it must be one of {', '.join(SOURCES)}.")
    if steps < 1 or num_envs < 1:
        raise ValueError(f"--steps is {steps} and --envs {num_envs}, both must be at least 1.")
    described = read_config(Path(out))
    if described["env"] == "none":
        raise ValueError("the run learnt from data alone, without an environment that could be recorded.")
    if source != "replay" and envs.is_compiled(described["env"]):
        raise ValueError(
            f"the run's environment is '{described['env']}', inside the program, and only those on the host are "
            "played. Record what the learner stored while it was trained: --from replay"
        )
    if source == "replay":
        transitions, bounds, step = _stored(Path(out), learner, steps, trust)
    else:
        env = described["env"]
        transitions, bounds, step = _played(out, env, source, learner, best, steps, num_envs, seed, trust)
    provenance = {
        "reader": "record",
        "source": source,
        "agent": described["agent"],
        "environment": described["env"],
        "training_step": step,
        "training_seed": described["seeds"][learner],
        "config": described["config"],
        "seed": seed,
        "versions": described["versions"],
        "max_episode_steps": described["spec"]["max_episode_steps"],
    }
    if described["spec"]["discrete"]:
        provenance["num_actions"] = described["spec"]["action_size"]
    reference = datasets.reference(envs.task(described["env"]))
    return datasets.Dataset(name, transitions, described["env"], reference, bounds, provenance)


def _played(
    out: str | Path,
    env: str,
    source: str,
    learner: int,
    best: bool,
    steps: int,
    num_envs: int,
    seed: int,
    trust: bool,
) -> tuple[Transition, Any, int]:
    policies = policy.load_all(out, best=best, trust=trust, parts=("agent", "env"))
    act, generator = policy.Policy(policies, learner), np.random.default_rng(seed)
    seen = observed(env, policies.experience)
    hosted = envs.make_hosted(envs.evaluated(seen), num_envs)
    if not hosted.spec.is_vector or hosted.spec.choices:
        raise ValueError(
            f"'{env}' shows {shown(hosted.spec)} and takes actions of shape {hosted.spec.action_shape}: data sets hold "
            "vectors and one action a row. Record in another environment."
        )
    size = hosted.spec.observation_shape[0]  # the data hold neither the time nor the goal
    if seen != env:
        size = size // 2 if seen == envs.with_goals(env) else size - 1
    observation = hosted.reset(environment_seeds(seed, TRAIN, number=num_envs))
    rows = []
    for _ in range(-(-steps // num_envs)):
        if source == "random" and hosted.spec.discrete:
            action = generator.integers(hosted.spec.action_size, size=num_envs, dtype=np.int32)
        elif source == "random":
            action = generator.uniform(-1, 1, (num_envs, *hosted.spec.action_shape)).astype(np.float32)
        else:
            action = act(observation, explore=source == "exploring", normalised=True)
        step: Any = hosted.step(action)
        fields = (observation[:, :size], action, step.reward, step.terminated, step.truncated)
        fields += (step.next_observation[:, :size],)
        rows.append(fields)
        observation = step.observation
    bounds = hosted.action_bounds
    policy.close(hosted)
    columns: Any = [np.stack(column) for column in zip(*rows, strict=True)]
    return _in_turn(Transition(*columns), steps), bounds, policies.step


def _stored(out: Path, learner: int, steps: int, trust: bool) -> tuple[Transition, Any, int]:
    run = Run.open(out, console.View(), trust=trust)
    try:
        training, kind = run.training, run.experiment.experience.kind
        if kind != "replay":
            raise ValueError(f"'{out}' has no replay: its agent learns from a {kind}.")
        policy.require_learner(training.settings, learner)
        path = checkpoints.newest(out / "checkpoints")
        notes = run.notes_of(path)
        template = training.driver.template(training.settings.seeds)["training"]
        stored = checkpoints.restore(path, "training", template)
        hosted = getattr(training.driver, "hosted", None)
    finally:
        run.close()
    learners, num_envs = stored[0] if isinstance(stored, tuple) else stored.learners, run.experiment.experience.num_envs
    ring = learners.storage.of_learner(learner)
    size = int(ring.drawable)
    order = ((int(ring.position) - size + np.arange(size)) % ring.capacity).reshape(-1, num_envs)
    order = order[: -(-steps // num_envs)]
    transitions = jax.tree.map(np.asarray, ring.transitions(order).replace(extras={}))
    bounds = _unit_bounds(training.spec) if hosted is None else hosted.action_bounds
    return _in_turn(transitions, steps), bounds, notes["step"]


def _in_turn(transitions: Transition, steps: int) -> Transition:
    """Order transitions [T, E, ...] by environment, so that the rows of an episode follow one another.

    The result has `steps` rows. The last row of each environment is marked as the end of an episode. The last
    environments have fewer rows where `steps` is not T x E.
    """
    length, number = transitions.reward.shape
    flat = jax.tree.map(lambda x: np.concatenate(np.swapaxes(x, 0, 1))[:steps], transitions)
    return datasets.cut(flat, np.minimum(np.arange(1, number + 1) * length, len(flat.reward)) - 1)


def _unit_bounds(spec: EnvSpec) -> Any:
    """The bounds (low, high) of actions inside the program, which are not rescaled; None for discrete actions."""
    if spec.discrete:
        return None
    high = np.ones(spec.action_size, np.float32)
    return -high, high
