"""`rljax.check_env` and `rljax env check`: what a user's environment does wrong, before a training.

One environment plays random actions. What it breaks of Gymnasium's interface is an error; the rest
are findings, with the evidence and what to do.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from rljax import envs
from rljax.agent import EnvSpec, Step, mask_of
from rljax.envs.host.hosted import Hosted
from rljax.learning import evaluation
from rljax.learning.drivers.driver import keys_of
from rljax.runs import arguments

STEPS = 2_000  # of random actions
SLOW = 5e-4  # seconds a step from which processes pay for certain
LARGE = 100.0  # numbers in observations that networks cannot use as they are
WIDE = 1e3  # of rewards that critics cannot use as they are


class EnvFinding(NamedTuple):
    """Something that looks wrong."""

    severity: str  # "error": training fails or learns something else; or "warning"
    what: str
    remedy: str


@dataclasses.dataclass(frozen=True)
class EnvReport:
    """What was seen of an environment, and what looks wrong."""

    name: str
    facts: dict[str, Any]
    findings: list[EnvFinding]

    @property
    def fine(self) -> bool:
        """Whether nothing looks wrong."""
        return not self.findings

    def __str__(self) -> str:
        lines = [self.name, *(f"  {name}: {value}" for name, value in self.facts.items())]
        for finding in self.findings:
            lines += [f"{finding.severity}: {finding.what}", f"  {finding.remedy}"]
        return "\n".join([*lines, "Nothing looks wrong."] if self.fine else lines)


@dataclasses.dataclass
class _Played:
    """A number of steps of one environment with random actions."""

    observations: list[np.ndarray]  # flattened, one per step
    rewards: np.ndarray
    lengths: list[int]  # of complete episodes
    terminated: list[bool]  # for each of them
    returns: list[float]
    masks: np.ndarray | None  # [S, A]
    seconds: float  # of a step, the median


def check_env(env: Any, steps: int = STEPS, seed: int = 0) -> EnvReport:
    """Play `steps` random actions in an environment, and say what it does wrong.

    `env` is a name, a class, an instance or a function that makes one. Looks at spaces and dtypes,
    numbers that are not finite, whether equal seeds give equal episodes, episodes' ends and time
    limits, masks, scales of observations and rewards, whether its state can be saved, and speed.

    Raises `ValueError` (`EnvironmentFailed`) where it breaks the interface: with that no agent can
    be trained.
    """
    name = str(arguments.environment_name(env))
    if steps < 1:
        raise ValueError(f"steps is {steps}, it must be at least 1.")
    inside = envs.is_compiled(name)
    spec, first, saved = (_inside if inside else _on_host)(name, steps, seed)
    _, second, _ = (_inside if inside else _on_host)(name, steps, seed)
    findings = [*_repeats(first, second), *_ends(spec, first, steps), *_scales(first)]
    findings += [*_masks(first), *_speed(first, inside), *saved]
    return EnvReport(name, _facts(spec, first, inside), findings)


def _facts(spec: EnvSpec, played: _Played, inside: bool) -> dict[str, Any]:
    parts = ", ".join(f"{x.name} {list(x.shape)} {x.dtype}" for x in spec.parts)
    vector = f"{list(spec.observation_shape)} {spec.observation_dtype}"
    if spec.choices:
        actions = f"{list(spec.choices)} choices"
    else:
        actions = f"{spec.action_size} {'choices' if spec.discrete else 'numbers'}"
    facts: dict[str, Any] = {
        "runs": "inside the program" if inside else "on the host",
        "observations": parts or vector,
        "actions": actions + (", masked" if spec.masked else ""),
        "signals": ", ".join(x.name for x in spec.signals) or "none",
        "time limit": spec.max_episode_steps or "none",
        "steps a second": f"{1 / played.seconds:,.0f}",
    }
    if played.returns:
        mean, least, most = (f(played.returns) for f in (np.mean, min, max))
        facts["episodes"] = f"{len(played.lengths)}, of {np.mean(played.lengths):,.1f} steps"
        facts["return of random actions"] = f"{mean:,.4g} ({least:,.4g} to {most:,.4g})"
    return facts


def _repeats(first: _Played, second: _Played) -> Iterator[EnvFinding]:
    pairs = zip(first.observations, second.observations, strict=True)
    step = next((i for i, (x, y) in enumerate(pairs) if not np.array_equal(x, y)), None)
    if step is None and not np.array_equal(first.rewards, second.rewards):
        step = int(np.flatnonzero(first.rewards != second.rewards)[0]) + 1
    if step is not None:
        yield EnvFinding(
            "warning",
            f"the same seed and actions give other numbers from step {step:,} on.",
            "Draw all random numbers from self.np_random, and set the whole state in reset.",
        )


def _ends(spec: EnvSpec, played: _Played, steps: int) -> Iterator[EnvFinding]:
    limit = spec.max_episode_steps
    if not played.lengths:
        if limit is None:
            yield EnvFinding(
                "warning",
                f"no episode has ended in {steps:,} steps, and there is no time limit.",
                "Give it one: max_episode_steps where it is registered, or in its class.",
            )
        return
    same = len(set(played.lengths)) == 1 and len(played.lengths) > 2
    if same and all(played.terminated):
        yield EnvFinding(
            "warning",
            f"all {len(played.lengths)} episodes were terminated after {played.lengths[0]:,} "
            "steps: that looks like a time limit.",
            "Return it as truncated, or leave it to max_episode_steps: agents take a terminated "
            "state for one without a future.",
        )
    if max(played.lengths) == 1:
        yield EnvFinding(
            "warning",
            "all episodes have one step.",
            "Where that is meant, it is a bandit. Else see when terminated is true.",
        )


def _scales(played: _Played) -> Iterator[EnvFinding]:
    seen = np.array(played.observations, np.float64)
    size = np.abs(seen).max(axis=0)
    large = np.flatnonzero(size > LARGE)
    if len(large) and not (size <= 255).all():
        yield EnvFinding(
            "warning",
            f"{len(large)} of {len(size)} numbers of observations are as large as "
            f"{size.max():,.4g}.",
            "Scale them to about 1, or normalise: --config.normalise-observations, where the "
            "agent has it.",
        )
    still = np.flatnonzero(seen.std(axis=0) == 0)
    if len(still) and len(still) == len(size):
        yield EnvFinding("error", "the observations never change.", "See what step returns.")
    scale = np.abs(played.rewards).max()
    if scale > WIDE:
        yield EnvFinding(
            "warning",
            f"rewards are as large as {scale:,.4g}.",
            "Scale them to about 1, in the environment or by the agent's reward settings.",
        )
    if len(played.rewards) > 10 and played.rewards.std() == 0 and scale == 0:
        yield EnvFinding(
            "warning",
            f"all {len(played.rewards):,} rewards of random actions are 0.",
            "Agents have nothing to learn from until a reward is met: begin nearer to it, give "
            "data, or a reward on the way.",
        )


def _masks(played: _Played) -> Iterator[EnvFinding]:
    if played.masks is not None and played.masks.all():
        yield EnvFinding(
            "warning",
            f"the mask allowed all actions in all {len(played.masks):,} states.",
            "See whether it is set: True means allowed.",
        )


def _speed(played: _Played, inside: bool) -> Iterator[EnvFinding]:
    each = played.seconds
    if each > SLOW and not inside:
        yield EnvFinding(
            "warning",
            f"a step takes {each * 1e3:,.2g} ms, which the training waits for.",
            "Name it async/NAME, to step several in processes: --config.num-envs.",
        )


def _on_host(name: str, steps: int, seed: int) -> tuple[EnvSpec, _Played, list[EnvFinding]]:
    hosted = envs.make_hosted(envs.evaluated(name), 1)
    observation = hosted.reset([seed])
    played = _play(observation, hosted.spec, seed, hosted.step, steps)
    saved = [*_saving(hosted)]
    hosted.close()
    return hosted.spec, played, saved


def _inside(name: str, steps: int, seed: int) -> tuple[EnvSpec, _Played, list[EnvFinding]]:
    environment, generator = envs.make(name), np.random.default_rng(seed)
    reset, advance = jax.jit(environment.reset), jax.jit(environment.step)
    observation, state = reset(keys_of([seed]))

    def step(action: np.ndarray) -> Step:
        nonlocal state
        made, state = advance(keys_of([int(generator.integers(2**31))]), state, action)
        return jax.device_get(made)

    return environment.spec, _play(observation, environment.spec, seed, step, steps), []


def _play(
    observation: Any,
    spec: EnvSpec,
    seed: int,
    step: Callable[[np.ndarray], Step],
    steps: int,
) -> _Played:
    observations, rewards, masks = [_flat(observation)], [], []
    lengths, terminated, returns = [], [], []
    seconds, generator = [], np.random.default_rng(seed)
    for _ in range(steps):
        mask = mask_of(observation)
        masks += [] if mask is None else [np.asarray(mask)[0]]
        action = evaluation.uniform_on_host(generator, spec, 1, mask)
        began = time.perf_counter()
        made = step(action)
        seconds.append(time.perf_counter() - began)
        observation = made.observation
        observations.append(_flat(made.next_observation))
        rewards.append(float(made.reward[0]))
        if made.terminated[0] or made.truncated[0]:
            lengths.append(int(made.episode_length[0]))
            returns.append(float(made.episode_return[0]))
            terminated.append(bool(made.terminated[0]))
    seen, each = np.array(masks) if masks else None, float(np.median(seconds))
    return _Played(observations, np.array(rewards), lengths, terminated, returns, seen, each)


def _saving(hosted: Hosted) -> Iterator[EnvFinding]:
    if hosted.save() is None:
        yield EnvFinding(
            "warning",
            f"its state cannot be saved ({hosted.save_failure}).",
            "A resumed run begins its episodes anew, and so differs from one without a stop. Keep "
            "what cannot be pickled out of its attributes, or make it anew in reset.",
        )


def _flat(observation: Any) -> np.ndarray:
    leaves = [np.asarray(leaf)[0].ravel() for leaf in jax.tree.leaves(observation)]
    return np.concatenate(leaves).astype(np.float64)
