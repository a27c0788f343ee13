"""Data sets of our own: what a trained policy does, or what was stored while it was trained.

D4RL's recipe (Fu et al., arXiv:2004.07219, section 5) with these sources of `record`, on Gymnasium's environments:

    random         source "random" of any run in the environment
    medium         source "exploring" of a run that was stopped about a third of the way to an expert's return
    medium-replay  source "replay" of that run
    expert         source "exploring" of a run that was trained to the end
    medium-expert  `datasets.join` of medium and expert, as many transitions of each
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from rljax import checkpoint, datasets, envs, policy, progress
from rljax import config as configuration
from rljax.agent import Transition
from rljax.drivers.common import TRAIN, environment_seeds
from rljax.run import Run, read_config

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
) -> datasets.Dataset:
    """A data set called `name` of at most `steps` transitions from the run in `out`.

    `source` is "policy" (without exploration), "exploring" (as it acted while it was trained), "random" (uniform
    actions) or "replay": what the learner had stored when the last checkpoint was made, from the oldest row on. The
    others play `num_envs` environments side by side, whose episodes follow one another; each environment's last one is
    cut. References of scores are those of D4RL's task of the same name, where it has one.

    Raises `ValueError` for a run that does not fit, an unknown source, and environments inside the program.
    """
    if source not in SOURCES:
        raise ValueError(f"--from is '{source}', it must be one of {', '.join(SOURCES)}.")
    if steps < 1 or num_envs < 1:
        raise ValueError(f"--steps is {steps} and --envs {num_envs}, both must be at least 1.")
    described = read_config(Path(out))
    if envs.is_compiled(described["env"]) or described["env"] == "none":
        raise ValueError(f"the run's environment is '{described['env']}': only environments on the host are recorded.")
    if source == "replay":
        transitions, bounds, step = _stored(Path(out), learner, steps)
    else:
        transitions, bounds, step = _played(out, described["env"], source, learner, best, steps, num_envs, seed)
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
    reference = datasets.reference(envs.task(described["env"]))
    return datasets.Dataset(name, transitions, described["env"], reference, bounds, provenance)


def _played(
    out: str | Path, env: str, source: str, learner: int, best: bool, steps: int, num_envs: int, seed: int
) -> tuple[Transition, Any, int]:
    policies = policy.load_all(out, best=best)
    act, generator = policy.Policy(policies, learner), np.random.default_rng(seed)
    seen = configuration.environment(env, policies.config)
    hosted = envs.make_hosted(envs.evaluated(seen), num_envs)
    size = hosted.spec.observation_shape[0]  # the time and the goal are no part of the data
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
            action = act(observation, explore=source == "exploring")
        step: Any = hosted.step(action)
        fields = (observation[:, :size], action, step.reward, step.terminated, step.truncated)
        fields += (step.next_observation[:, :size],)
        rows.append(fields)
        observation = step.observation
    bounds = hosted.action_bounds
    hosted.close()
    # Environment by environment, so that the rows of an episode follow one another.
    columns: Any = [np.concatenate(np.swapaxes(np.stack(column), 0, 1)) for column in zip(*rows, strict=True)]
    cuts = np.arange(1, num_envs + 1) * len(rows) - 1
    return datasets.cut(Transition(*columns), cuts), bounds, policies.step


def _stored(out: Path, learner: int, steps: int) -> tuple[Transition, Any, int]:
    run = Run.open(out, progress.View())
    try:
        if run.module.storage != "replay":
            raise ValueError(f"'{out}' has no replay: its agent's storage is '{run.module.storage}'.")
        policy.require_learner(run.settings, learner)
        path = checkpoint.newest(out / "checkpoints")
        notes = run.at(path)
        template = run.driver.template(run.settings.seeds)["training"]
        training = checkpoint.restore(path, "training", template)
        bounds = run.driver.hosted.action_bounds  # type: ignore[attr-defined]
    finally:
        run.close()
    replay = training[0].storage
    size, position, each = int(replay.size), int(replay.position), run.config.num_envs
    start = position if size == replay.capacity else 0
    order = (start + np.arange(size)) % replay.capacity
    order = order[: min(size, steps) // each * each].reshape(-1, each).T  # environment by environment
    transitions = jax.tree.map(lambda x: np.asarray(x[learner])[order.ravel()], replay.data.replace(extras={}))
    return datasets.cut(transitions, np.arange(1, each + 1) * order.shape[1] - 1), bounds, notes["step"]
