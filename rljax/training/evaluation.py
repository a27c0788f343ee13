"""Evaluation: the policy plays complete episodes without exploration.

Each environment plays exactly one episode, so that short episodes are not favoured. The seed of an episode depends only
on the learner's seed, the step and the episode's number. Evaluation therefore never disturbs training, and a resumed
run repeats it exactly. Some policies draw random actions even without exploration. Their random numbers come from the
seed of the learner's first episode, and depend on nothing else.

An episode that goes on at the environment's time limit, or after `LIMIT` steps where there is none, is cut there. Its
return is that of a part of an episode: `Episodes.cut` marks it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import agent as contract
from rljax import envs
from rljax.agent import Agent, Array, EnvSpec, Step, choose, first_memory
from rljax.distributed import processes
from rljax.distributed.devices import local
from rljax.envs import signals
from rljax.envs.autoreset import AutoReset
from rljax.envs.host.hosted import Hosted
from rljax.training import agent_state
from rljax.training.drivers.driver import EVALUATE, environment_seeds
from rljax.training.learner import per_learner
from rljax.training.programs import Contents, compiled, shared
from rljax.training.settings import Settings

SEQUENCE = "sequence_length"  # the setting of agents that emit sequences: actions from one decision to the next
LIMIT = 10_000  # time limit of an evaluated episode, in environment steps, where the environment has no limit


@dataclasses.dataclass(frozen=True)
class Episodes:
    """One episode in each of N environments of P learners."""

    returns: np.ndarray  # [P, N] undiscounted
    lengths: np.ndarray  # [P, N] environment steps
    cut: np.ndarray  # [P, N] bool: the episode had not ended at the limit of the evaluation
    success: np.ndarray | None = None  # [P, N] in {0, 1}; None where the environment does not report it
    signals: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)  # [P, N] sums of each, by name

    def details(self, learner: int) -> dict[str, Any]:
        """What there is to record of one learner's episodes beside returns and lengths, ready for JSON."""
        found: dict[str, Any] = {}
        if self.cut[learner].any():
            found["cut"] = int(self.cut[learner].sum())
        if self.success is not None:
            found["success"] = self.success[learner].tolist()
        if self.signals:
            found["signals"] = {name: sums[learner].tolist() for name, sums in self.signals.items()}
        return found


def policy(agent: Agent) -> Callable[[Any, Any, Any, Any, Any, Any], tuple[Array, Any]]:
    """The policy of P learners.

    It maps (states, observations [P, N, O...], keys [P], time [], config, memories [P, N, ...]) to actions [P, N, A]
    and the next memories, which are None where the agent remembers nothing.
    """

    def decide(state: Any, observation: Array, key: Array, time: Array, config: Any, memory: Any) -> tuple[Array, Any]:
        key = jax.random.fold_in(key, time)
        action, _, memory = agent_state.act(agent, state, observation, key, config, explore=False, memory=memory)
        return action, memory

    return jax.vmap(decide, in_axes=(0, 0, 0, None, 0, 0))


def sequence_length(config: Any) -> int | None:
    """Actions that an agent plays from one decision to the next; None where it emits no sequences."""
    return getattr(config, SEQUENCE, None)


def deciding(agent: Agent, config: Any, steps: int | None) -> tuple[Any, Any]:
    """The agent and its Config, such that it decides in every `steps` steps; None is as in training.

    An agent that emits sequences plays so many actions of one. Any other holds its action.
    """
    if steps is not None and sequence_length(config) is not None:
        return agent, dataclasses.replace(config, **{SEQUENCE: steps})
    return (agent if steps in (None, 1) else Held(agent, steps)), config


@dataclasses.dataclass(frozen=True)
class Held:
    """An agent whose actions are held: it chooses one in every `steps` steps, and sees nothing in between.

    Patel and Siegelmann, Overcoming Slow Decision Frequencies in Continuous Control, arXiv:2410.08979, judge agents so.
    """

    agent: Agent
    steps: int

    def remember(self, spec: EnvSpec, config: Any) -> Any:
        """What the agent remembers, the action that is held, and how many steps it has lasted."""
        action = jnp.zeros(spec.action_shape, spec.action_dtype)
        return {"agent": first_memory(self.agent, spec, config), "action": action, "lasted": jnp.zeros((), jnp.int32)}

    def act(self, state: Any, observation: Any, key: Array, config: Any, explore: bool, memory: Any) -> Any:
        """The action that is held, or a new one."""
        action, _, after = contract.act(self.agent, state, observation, key, config, explore, memory["agent"])
        ends = memory["lasted"] % self.steps == 0
        chosen = {"agent": after, "action": action, "lasted": jnp.zeros_like(memory["lasted"])}
        memory = choose(ends, chosen, memory)
        return memory["action"], {}, memory | {"lasted": memory["lasted"] + 1}


def averaged(returns: Sequence[float], holds: Sequence[int]) -> float:
    """The mean return over lengths of holding: the area under returns, by trapezoids, over the range of lengths.

    `returns` belong to `holds` in ascending order. Divided by the largest return that is known in the environment, this
    is the frequency-averaged score of arXiv:2410.08979.
    """
    lengths = np.asarray(holds, np.float64)
    if len(lengths) == 1:
        return float(returns[0])
    widths, heights = np.diff(lengths), np.asarray(returns, np.float64)
    return float((widths * (heights[:-1] + heights[1:]) / 2.0).sum() / widths.sum())


def _keys(seeds: Any, num_learners: int) -> Array:
    """One key per learner [P], made from the seed of its first episode; `seeds` are [P x N]."""
    return jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32).reshape(num_learners, -1)[:, 0])


@dataclasses.dataclass(frozen=True)
class Policies:
    """The compiled policy of an agent. Evaluators of the same agent share its programs."""

    agent: Contents

    @compiled()
    def act(self, *arguments: Any) -> tuple[Array, Any]:
        """See `policy`."""
        return policy(self.agent.module)(*arguments)


class HostedEvaluator:
    """Plays N episodes of each of P learners in P x N environments on the host."""

    def __init__(self, agent: Agent, environments: Hosted, num_learners: int) -> None:
        """`environments` holds P x N environments, in the order of the learners."""
        self.hosted, self.num_learners, self.spec = environments, num_learners, environments.spec
        self.hosted.tolerant = num_learners > 1
        self.policies = Policies(Contents(agent))

    def __call__(self, state: Any, seeds: Sequence[int], config: Any) -> Episodes:
        """Play one episode in each environment, started from `seeds` [P x N]. Only the first process plays."""
        whole = local(state)
        return processes.on_first(lambda: self._episodes(whole, seeds, config))

    def _episodes(self, state: Any, seeds: Sequence[int], config: Any) -> Episodes:
        rows = (self.num_learners, self.hosted.num_envs // self.num_learners)
        keys = _keys(seeds, self.num_learners)
        decide = shared(self.policies, (state, config)).act
        memory = first_memory(self.policies.agent.module, self.hosted.spec, config, *rows)
        observation = self.hosted.reset(seeds)
        done = np.zeros(self.hosted.num_envs, np.bool_)
        returns, lengths = np.zeros(self.hosted.num_envs), np.zeros(self.hosted.num_envs, np.int64)
        success = np.full(self.hosted.num_envs, np.nan)
        sums = {name: np.zeros(self.hosted.num_envs) for name in signals.names(self.hosted.spec.signals)}
        for time in range(self.hosted.spec.max_episode_steps or LIMIT):
            if done.all():
                break
            given = per_learner(observation, rows)
            action, memory = decide(state, given, keys, np.int32(time), config, memory)
            action = np.asarray(action)
            step = self.hosted.step(action.reshape(-1, *action.shape[2:]))
            ended = (step.terminated | step.truncated) & ~done
            returns[~done], lengths[~done] = step.episode_return[~done], step.episode_length[~done]
            success[ended] = self.hosted.success[ended]
            for name, total in signals.numbers(step.episode_signals, leading=1).items():
                sums[name][~done] = total[~done]
            done |= ended
            observation = step.observation
        known = not np.isnan(success).any()
        columns = (returns.reshape(rows), lengths.reshape(rows), ~done.reshape(rows))
        per_signal = {name: total.reshape(rows) for name, total in sums.items()}
        return Episodes(*columns, success.reshape(rows) if known else None, per_signal)

    def close(self) -> None:
        """Close the simulators."""
        self.hosted.close()


@dataclasses.dataclass(frozen=True)
class Play:
    """A program that plays episodes. Evaluators of the same agent in the same environment share it."""

    agent: Contents
    environment: AutoReset
    num_learners: int

    @compiled()
    def episodes(self, state: Any, keys: Array, drawn: Array, config: Any) -> tuple[Any, ...]:
        """The returns, lengths and cuts of episodes, whether they succeeded, and sums of signals, [P x N].

        Success is None where it is not reported.
        """
        number = keys.shape[0]
        rows = (self.num_learners, number // self.num_learners)
        decide = policy(self.agent.module)
        key_reset, key_step = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)

        def body(carry: Any) -> Any:
            time, observation, environment, done, returns, lengths, success, sums, memory = carry
            given = per_learner(observation, rows)
            action, memory = decide(state, given, drawn, time, config, memory)
            steps = jax.vmap(jax.random.fold_in, in_axes=(0, None))(key_step, time)
            step, environment = self.environment.step(steps, environment, action.reshape(number, *action.shape[2:]))
            ended = (step.terminated | step.truncated) & ~done
            returns = jnp.where(done, returns, step.episode_return)
            lengths = jnp.where(done, lengths, step.episode_length)
            if step.success is not None:
                success = jnp.where(done, success, step.success)
            latest = signals.numbers(step.episode_signals, leading=1)
            sums = {name: jnp.where(done, total, latest[name]) for name, total in sums.items()}
            return time + 1, step.observation, environment, done | ended, returns, lengths, success, sums, memory

        observation, environment = self.environment.reset(key_reset)
        zero = jnp.zeros((), jnp.int32)
        carry = (zero, observation, environment, jnp.zeros(number, jnp.bool_))
        reports = jax.eval_shape(self._first_step, key_step, environment).success is not None
        carry += (jnp.zeros(number), jnp.zeros(number, jnp.int32), jnp.zeros(number) if reports else None)
        carry += ({name: jnp.zeros(number) for name in signals.names(self.environment.spec.signals)},)
        carry += (first_memory(self.agent.module, self.environment.spec, config, *rows),)
        limit = self.environment.spec.max_episode_steps or LIMIT
        carry = jax.lax.while_loop(lambda carry: ~carry[3].all() & (carry[0] < limit), body, carry)
        return carry[4], carry[5], ~carry[3], carry[6], carry[7]

    def _first_step(self, keys: Array, environment: Any) -> Step:
        spec = self.environment.spec
        action = jnp.zeros((keys.shape[0], *spec.action_shape), spec.action_dtype)
        return self.environment.step(keys, environment, action)[0]


class CompiledEvaluator:
    """Plays N episodes of each of P learners inside one program."""

    def __init__(self, agent: Agent, environment: AutoReset, num_learners: int) -> None:
        self.num_learners, self.spec = num_learners, environment.spec
        self.play = Play(Contents(agent), environment, num_learners)

    def __call__(self, state: Any, seeds: Sequence[int], config: Any) -> Episodes:
        """Play one episode in each environment, started from `seeds` [P x N]."""
        keys = jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32))
        drawn = _keys(seeds, self.num_learners)
        play = shared(self.play, (state, config)).episodes
        played = jax.device_get(local(play(state, keys, drawn, config)))
        return Episodes(*jax.tree.map(lambda x: x.reshape(self.num_learners, -1), played))

    def close(self) -> None:
        """Do nothing: there are no simulators to close."""


def make(
    agent: Agent,
    name: str,
    num_learners: int,
    episodes: int,
    limit: Mapping[str, int],
    inside: AutoReset | None = None,
) -> HostedEvaluator | CompiledEvaluator:
    """What plays `episodes` episodes of each learner in the environment `name`, which `inside` is where it is given.

    `limit` may hold "max_episode_steps", for an environment on the host.
    """
    if envs.is_compiled(name):
        return CompiledEvaluator(agent, envs.make(name) if inside is None else inside, num_learners)
    return HostedEvaluator(
        agent, envs.make_hosted(envs.evaluated(name), num_learners * episodes, **limit), num_learners
    )


def evaluate(evaluator: Any, state: Any, settings: Settings, step: int, config: Any) -> Episodes:
    """Play `eval_episodes` episodes with each learner, on seeds that depend on its seed and the step."""
    number = settings.eval_episodes
    seeds = [s for seed in settings.seeds for s in environment_seeds(seed, EVALUATE, step, number=number)]
    return evaluator(state, seeds, config)
