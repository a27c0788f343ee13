"""Evaluation: the policy plays complete episodes without exploration.

Each environment plays one episode, so that short ones are not favoured. How it starts (a seed on
the host, a key inside the program) depends only on the learner's seed, the step and the episode's
number. Policies draw from the start of the learner's first episode.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import agent as contract
from rljax import envs
from rljax.agent import Agent, Array, EnvSpec, Step, acting, choose, first_memory, mask_of
from rljax.distributed import processes
from rljax.distributed.devices import local
from rljax.envs import signals
from rljax.envs.autoreset import AutoReset
from rljax.envs.host.hosted import Hosted
from rljax.learning import agent_state
from rljax.learning.drivers.driver import EVALUATE, environment_keys, environment_seeds, keys_of
from rljax.learning.learner import flat, per_learner
from rljax.learning.programs import Contents, compiled, shared
from rljax.learning.settings import Settings
from rljax.networks import distributions

LIMIT = 10_000  # steps of an evaluated episode, where the environment has no limit
AT_BOUND = 0.99  # numbers of actions, in [-1, 1], count as at a bound from here on


@dataclasses.dataclass(frozen=True)
class Episodes:
    """One episode in each of N environments of P learners."""

    returns: np.ndarray  # [P, N] undiscounted
    lengths: np.ndarray  # [P, N] environment steps
    cut: np.ndarray  # [P, N] bool: it had not ended at the evaluation's limit
    success: np.ndarray | None = None  # [P, N] in {0, 1}, if reported
    # [P, N] sums by name
    signals: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    # [P, N] largest absolute reward of a step
    largest_reward: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))
    # [P, N] sums over steps of `share_at_bounds`; None without numbers in actions
    at_bounds: np.ndarray | None = None

    def of(self, learner: int) -> Episodes:
        """One learner's, [N] each."""
        success = None if self.success is None else self.success[learner]
        sums = {name: values[learner] for name, values in self.signals.items()}
        returns, lengths, cut = (x[learner] for x in (self.returns, self.lengths, self.cut))
        return Episodes(returns, lengths, cut, success, sums)

    def details(self, learner: int) -> dict[str, Any]:
        """One learner's `cut`, `success` and `signals`, if any, ready for JSON."""
        success = None if self.success is None else self.success[learner].tolist()
        entries = {
            "cut": int(self.cut[learner].sum()),
            "success": success,
            "signals": {name: sums[learner].tolist() for name, sums in self.signals.items()},
        }
        return {name: entry for name, entry in entries.items() if entry}

    def extremes(self, learner: int) -> dict[str, float]:
        """One learner's largest absolute reward, and the share of its actions at their bounds."""
        extremes = {"largest_reward": float(self.largest_reward[learner].max())}
        if self.at_bounds is not None:
            steps = max(self.lengths[learner].sum(), 1)
            extremes["at_bounds"] = float(self.at_bounds[learner].sum() / steps)
        return extremes


def share_at_bounds(action: Any, spec: EnvSpec) -> Any:
    """The share [...] of the numbers in actions [..., A] that lie at their bounds."""
    return (abs(action[..., : spec.numbers]) >= AT_BOUND).mean(axis=-1)


def uniform(spec: EnvSpec) -> Callable[[Any, Any, Any], Array]:
    """Uniform actions [P, N, ...] for observations [P, N, O...], keys [P] and a time []."""

    def draw(observation: Any, key: Array, time: Array) -> Array:
        leading = jax.tree.leaves(observation)[0].shape[:1]
        key = jax.random.fold_in(key, time)
        return distributions.uniform(key, spec, leading, mask_of(observation))

    return jax.vmap(draw, in_axes=(0, 0, None))


def uniform_on_host(
    generator: np.random.Generator, spec: EnvSpec, number: int, mask: Any = None
) -> np.ndarray:
    """Uniform actions [N, ...] that `mask` [N, A] allows, without a compiled program."""
    choices = spec.choices or ((spec.action_size,) if spec.discrete else ())
    scores = generator.random((number, sum(choices)))
    scores = scores if mask is None else np.where(mask, scores, -1.0)
    action = [generator.uniform(-1.0, 1.0, (number, spec.numbers))]
    for each in np.split(scores, np.cumsum(choices, dtype=int), axis=1)[:-1]:
        action.append(each.argmax(axis=1, keepdims=True))
    actions = np.concatenate(action, axis=1)
    return actions.reshape(number, *spec.action_shape).astype(spec.action_dtype)


def policy(agent: Agent) -> Callable[[Any, Any, Any, Any, Any, Any], tuple[Array, Any]]:
    """The policy of P learners without exploration.

    It maps (states, observations [P, N, O...], keys [P], time [], config, memories [P, N, ...]) to
    actions [P, N, A] and the next memories, if any.
    """

    def decide(
        state: Any, observation: Array, key: Array, time: Array, config: Any, memory: Any
    ) -> tuple[Array, Any]:
        key = jax.random.fold_in(key, time)
        action, _, memory = agent_state.act(
            agent, state, observation, key, config, explore=False, memory=memory
        )
        return action, memory

    return jax.vmap(decide, in_axes=(0, 0, 0, None, 0, 0))


def sequence_length(agent: Agent, config: Any) -> int | None:
    """The actions of one decision; None where the agent emits no sequences."""
    name = acting(agent, config).sequence
    return None if name is None else getattr(config, name)


def deciding(agent: Agent, config: Any, steps: int | None) -> tuple[Any, Any]:
    """The agent and its Config for a decision in every `steps` steps; None changes nothing.

    Sequences get this length; other agents hold each action.
    """
    name = acting(agent, config).sequence
    if steps is not None and name is not None:
        return agent, dataclasses.replace(config, **{name: steps})
    return (agent if steps in (None, 1) else HeldActions(agent, steps)), config


@dataclasses.dataclass(frozen=True)
class HeldActions:
    """An agent that decides once in every `steps` steps.

    Source: Patel and Siegelmann, arXiv:2410.08979.
    """

    agent: Agent
    steps: int

    def remember(self, spec: EnvSpec, config: Any) -> Any:
        """The agent's memory, the repeated action, and for how many steps it has lasted."""
        return {
            "agent": first_memory(self.agent, spec, config),
            "action": jnp.zeros(spec.action_shape, spec.action_dtype),
            "lasted": jnp.zeros((), jnp.int32),
        }

    def use_base(self, state: Any, base: Any, config: Any) -> Any:
        """The agent's."""
        return self.agent.use_base(state, base, config)  # pyright: ignore[reportAttributeAccessIssue]

    def base_acts(self, config: Any) -> bool:
        """The agent's."""
        return hasattr(self.agent, "base_acts") and self.agent.base_acts(config)  # pyright: ignore[reportAttributeAccessIssue]

    def act(
        self, state: Any, observation: Any, key: Array, config: Any, explore: bool, memory: Any
    ) -> Any:
        """The repeated action, or a new one after `steps` steps."""
        action, _, after = contract.act(
            self.agent, state, observation, key, config, explore, memory["agent"]
        )
        ends = memory["lasted"] % self.steps == 0
        decided = {"agent": after, "action": action, "lasted": jnp.zeros_like(memory["lasted"])}
        memory = choose(ends, decided, memory)
        return memory["action"], {}, memory | {"lasted": memory["lasted"] + 1}


@dataclasses.dataclass(frozen=True)
class PolicyProgram:
    """The compiled policy of an agent, which its evaluators share."""

    agent: Contents

    @compiled()
    def act(self, *arguments: Any) -> tuple[Array, Any]:
        """See `policy`."""
        return policy(self.agent.module)(*arguments)


class HostedEvaluator:
    """Plays N episodes of each of P learners in environments on the host."""

    def __init__(self, agent: Agent, environments: Hosted, num_learners: int) -> None:
        """`environments` holds P x N environments, in the learners' order."""
        self.hosted, self.num_learners, self.spec = environments, num_learners, environments.spec
        self.hosted.tolerant = num_learners > 1
        self.policy = PolicyProgram(Contents(agent))

    def starts(self, seeds: Sequence[int], episodes: int, *path: int) -> list[int]:
        """Seeds of `episodes` episodes for each learner's seed, [P x N]."""
        each = (environment_seeds(x, EVALUATE, *path, number=episodes) for x in seeds)
        return list(itertools.chain.from_iterable(each))

    def __call__(self, state: Any, starts: Any, config: Any, random: bool = False) -> Episodes:
        """See `CompiledEvaluator`; the first process alone plays."""
        whole = local(state)
        return processes.on_first(lambda: self._episodes(whole, starts, config, random))

    def _episodes(self, state: Any, seeds: Sequence[int], config: Any, random: bool) -> Episodes:
        number = self.hosted.num_envs
        rows = (self.num_learners, number // self.num_learners)
        keys = keys_of(seeds[:: rows[1]])
        decide = shared(self.policy, (state, config)).act
        generators = [np.random.default_rng(seed) for seed in seeds[:: rows[1]]]
        module = self.policy.agent.module
        memory = first_memory(module, self.spec, config, *rows, base=state.base)
        observation = self.hosted.reset(seeds)
        done = np.zeros(number, np.bool_)
        returns, lengths = np.zeros(number), np.zeros(number, np.int64)
        success = np.full(number, np.nan)
        sums = {name: np.zeros(number) for name in signals.names(self.spec.signals)}
        largest, at_bounds = np.zeros(number), np.zeros(number)
        for time in range(self.spec.max_episode_steps or LIMIT):
            if done.all():
                break
            observations, now = per_learner(observation, rows), np.int32(time)
            if random:
                actions = self._uniform(generators, observations)
            else:
                action, memory = decide(state, observations, keys, now, config, memory)
                actions = flat(np.asarray(action))
            step = self.hosted.step(actions)
            largest = np.maximum(largest, np.where(done, 0.0, np.abs(step.reward)))
            if self.spec.numbers:
                at_bounds += np.where(done, 0.0, share_at_bounds(actions, self.spec))
            ended = (step.terminated | step.truncated) & ~done
            returns[~done], lengths[~done] = step.episode_return[~done], step.episode_length[~done]
            success[ended] = self.hosted.success[ended]
            for name, total in signals.numbers(step.episode_signals, leading=1).items():
                sums[name][~done] = total[~done]
            done |= ended
            observation = step.observation
        known = None if np.isnan(success).any() else success
        shares = at_bounds if self.spec.numbers else None
        columns = (returns, lengths, ~done, known, sums, largest, shares)
        return Episodes(*jax.tree.map(lambda x: x.reshape(rows), columns))

    def _uniform(self, generators: Sequence[np.random.Generator], observations: Any) -> np.ndarray:
        """Actions [P x N, ...] for observations [P, N, O...] by one generator for each learner."""
        masks = mask_of(observations)
        number = self.hosted.num_envs // self.num_learners
        return np.concatenate(
            [
                uniform_on_host(x, self.spec, number, None if masks is None else masks[learner])
                for learner, x in enumerate(generators)
            ]
        )

    def close(self) -> None:
        """Close the simulators."""
        self.hosted.close()


@dataclasses.dataclass(frozen=True)
class EpisodeProgram:
    """A program that plays episodes, shared by evaluators of an agent and environment."""

    agent: Contents
    environment: AutoReset
    num_learners: int

    @compiled()
    def episodes(
        self, state: Any, keys: Array, policy_keys: Array, config: Any, random: Array
    ) -> tuple[Any, ...]:
        """The fields of `Episodes`, [P x N] each.

        `keys` [P x N] are of the environments, `policy_keys` [P] of the learners' policies. Where
        `random` [] is True, actions are uniform: environments take long to compile a second time.
        """
        number = keys.shape[0]
        rows = (self.num_learners, number // self.num_learners)
        spec = self.environment.spec
        decide, draw = policy(self.agent.module), uniform(spec)
        key_reset, key_step = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)

        def body(carry: Any) -> Any:
            time, observation, environment, done, results, memory = carry
            observations = per_learner(observation, rows)
            action, memory = jax.lax.cond(
                random,
                lambda memory: (draw(observations, policy_keys, time), memory),
                lambda memory: decide(state, observations, policy_keys, time, config, memory),
                memory,
            )
            actions = flat(action)
            steps = jax.vmap(jax.random.fold_in, in_axes=(0, None))(key_step, time)
            step, environment = self.environment.step(steps, environment, actions)
            ended = (step.terminated | step.truncated) & ~done
            sums = signals.numbers(step.episode_signals, leading=1)
            *_, largest, at_bounds = results
            largest = jnp.maximum(largest, jnp.abs(step.reward))
            if at_bounds is not None:
                at_bounds += share_at_bounds(actions, spec)
            of_episode = (step.episode_return, step.episode_length, step.success, sums)
            latest = (*of_episode, largest, at_bounds)
            results = jax.tree.map(lambda x, new: jnp.where(done, x, new), results, latest)
            return time + 1, step.observation, environment, done | ended, results, memory

        observation, environment = self.environment.reset(key_reset)
        zeros = jnp.zeros(number)
        reports = jax.eval_shape(self._first_step, key_step, environment).success is not None
        sums = dict.fromkeys(signals.names(spec.signals), zeros)
        success, at_bounds = zeros if reports else None, zeros if spec.numbers else None
        results = (zeros, jnp.zeros(number, jnp.int32), success, sums, zeros, at_bounds)
        memory = first_memory(self.agent.module, spec, config, *rows, base=state.base)
        done, limit = jnp.zeros(number, jnp.bool_), spec.max_episode_steps or LIMIT
        *_, done, results, _ = jax.lax.while_loop(
            lambda carry: ~carry[3].all() & (carry[0] < limit),
            body,
            (jnp.zeros((), jnp.int32), observation, environment, done, results, memory),
        )
        returns, lengths, *others = results
        return returns, lengths, ~done, *others

    def _first_step(self, keys: Array, environment: Any) -> Step:
        spec = self.environment.spec
        action = jnp.zeros((keys.shape[0], *spec.action_shape), spec.action_dtype)
        return self.environment.step(keys, environment, action)[0]


class CompiledEvaluator:
    """Plays N episodes of each of P learners inside one program."""

    def __init__(self, agent: Agent, environment: AutoReset, num_learners: int) -> None:
        self.num_learners, self.spec = num_learners, environment.spec
        self.program = EpisodeProgram(Contents(agent), environment, num_learners)

    def starts(self, seeds: Sequence[int], episodes: int, *path: int) -> Array:
        """Keys of `episodes` episodes for each learner's seed, [P x N]."""
        parts = (np.uint32(part % 2**32) for part in path)
        return environment_keys(keys_of(seeds), EVALUATE, *parts, number=episodes)

    def __call__(self, state: Any, starts: Any, config: Any, random: bool = False) -> Episodes:
        """Play one episode from each of `starts` [P x N]; with `random`, by uniform actions."""
        policy_keys = starts.reshape(self.num_learners, -1)[:, 0]
        play = shared(self.program, (state, config)).episodes
        played = play(state, starts, policy_keys, config, np.bool_(random))
        columns = jax.device_get(local(played))
        return Episodes(*jax.tree.map(lambda x: x.reshape(self.num_learners, -1), columns))

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
    """An evaluator that plays `episodes` episodes of each learner in the environment `name`.

    `inside` is that environment, if already made inside the program. `limit` may hold
    "max_episode_steps" for the host's.
    """
    if envs.is_compiled(name):
        return CompiledEvaluator(agent, envs.make(name) if inside is None else inside, num_learners)
    hosted = envs.make_hosted(envs.evaluated(name), num_learners * episodes, **limit)
    return HostedEvaluator(agent, hosted, num_learners)


def evaluate(
    evaluator: Any, state: Any, settings: Settings, step: int, config: Any, random: bool = False
) -> Episodes:
    """Play `eval_episodes` episodes with each learner, seeded by its seed and the step; with
    `random`, by uniform actions.
    """
    starts = evaluator.starts(settings.seeds, settings.eval_episodes, step)
    return evaluator(state, starts, config, random)
