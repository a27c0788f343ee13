"""A learner is an agent with its storage and sampler; a `Learner` carries P of them through the same steps.

Every array of a state has the leading axis P, except the counters: all learners step and update together, and a
branch on an unbatched counter stays a branch. Everything here is pure; the drivers compile it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Agent, Array, EnvSpec, Step, Transition, Weighted
from rljax.buffers import samplers
from rljax.buffers.storage import STORAGES, Fixed, Mixed, Storage

TRANSITION = "stream/transition"  # metric of a stream: 1 for a transition that is finite


class Tally(struct.PyTreeNode):
    """Metrics summed since the last report.

    Each metric has arrays of its own: stacked into one, XLA:CPU makes one serial loop of their reductions.
    """

    total: dict[str, Array]  # [P] sums of the metric
    weight: dict[str, Array]  # [P] number of values summed
    first_bad: dict[str, Array]  # [P] int32: the first update with a value that is not finite, -1 for none


class LearnerState(struct.PyTreeNode):
    """Everything that P learners have learnt and gathered. Keys are never advanced: counters are folded in."""

    agent: Any  # the agent's State, [P, ...]
    storage: Storage
    tally: Tally
    key_act: Array  # [P]
    key_update: Array  # [P]
    steps: Array  # [] int32: steps of each environment so far
    updates: Array  # [] int32: updates of each learner so far


@dataclasses.dataclass(frozen=True)
class Learner:
    """P learners of one agent. Every `config` is stacked: its floats are [P], the rest is shared."""

    agent: Agent
    spec: EnvSpec
    num_learners: int  # P
    num_envs: int  # E, of each learner
    sampler: Callable[..., Transition] | None = None  # None: the storage's own, of `samplers.DEFAULTS`
    storage: str | None = None  # of `storage.STORAGES`; None: the one that the agent names
    timed: bool = False  # store in `extras["time"]` which step of its episode a transition is, from 1 on

    @property
    def kind(self) -> str:
        """Which storage the learners have."""
        return self.storage or self.agent.storage

    @property
    def streams(self) -> bool:
        """Whether each transition is learnt from at once: `follow` instead of `observe` and `update`."""
        return self.kind == "stream"

    def init(self, keys: Array, config: Any, data: Transition | None = None) -> LearnerState:
        """Fresh learners from one key each, [P]. `data` [N, ...] is the data set, where there is one."""
        key_agent, key_act, key_update = jnp.moveaxis(jax.vmap(lambda key: jax.random.split(key, 3))(keys), 1, 0)
        init = self.over_learners(lambda key, config: self.agent.init(key, self.spec, config))
        agent_state = init(key_agent, config)
        example = self._example(agent_state, key_act, config)
        stored = STORAGES[self.kind].create(example, config)
        zero = jnp.zeros((), jnp.int32)
        batches = example
        if not self.streams:
            batches = jax.eval_shape(lambda *of: self._sample(of[0], of[1], of[2], config), stored, data, key_update)
        batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((x.shape[0], *x.shape[2:]), x.dtype), batches)
        metrics = jax.eval_shape(self._update_agents, agent_state, batch, key_update, zero, config)[1]
        if self.streams:
            metrics[TRANSITION] = zero
        return LearnerState(
            agent=agent_state,
            storage=stored,
            tally=empty_tally(tuple(metrics), self.num_learners),
            key_act=key_act,
            key_update=key_update,
            steps=zero,
            updates=zero,
        )

    def perceives(self, config: Any) -> bool:
        """Whether observations change the agents' states: not if the agent's `perceive` hands them back untouched."""
        perceive = getattr(self.agent, "perceive", None)
        if perceive is None:
            return False
        untouched = True

        def compare(key: Array, observation: Array, first: Array, config: Any) -> None:
            nonlocal untouched
            before = self.agent.init(key, self.spec, config)
            after = perceive(before, observation, first, config)
            leaves = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
            untouched = all(old is new for old, new in leaves)

        observation = jax.ShapeDtypeStruct((self.num_envs, *self.spec.observation_shape), jnp.float32)
        first = jax.ShapeDtypeStruct((self.num_envs,), jnp.bool_)
        one = jax.eval_shape(lambda: jax.tree.map(lambda x: x[0], config))
        jax.eval_shape(compare, jax.eval_shape(lambda: jax.random.key(0)), observation, first, one)
        return not untouched

    def perceive(self, state: LearnerState, observation: Array, first: Array, config: Any) -> LearnerState:
        """Let the agents count observations [P, E, ...]; `first` [P, E] marks the first ones of episodes.

        Only for agents that perceive, once for every observation and before acting on it.
        """
        if self.streams:  # what came after something that is not finite teaches nothing, the next episode neither
            first = first & (state.tally.first_bad[TRANSITION] < 0)[:, None]
        perceive = self.over_learners(self.agent.perceive)  # type: ignore[attr-defined]
        return state.replace(agent=perceive(state.agent, observation, first, config))

    def prepare(self, state: LearnerState, data: Transition, config: Any) -> LearnerState:
        """Show agents that prepare themselves by it the whole data set [N, ...], before the first update."""
        prepare = getattr(self.agent, "prepare", None)
        if prepare is None:
            return state
        return state.replace(agent=self.over_learners(prepare, (0, None, 0))(state.agent, data, config))

    def act(self, state: LearnerState, observation: Array, config: Any) -> tuple[Array, dict[str, Array]]:
        """Exploring actions [P, E, ...] for observations [P, E, ...], uniform ones during the warm-up."""
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(state.key_act, state.steps)

        def explore() -> tuple[Array, dict[str, Array]]:
            return self._explore(state.agent, observation, keys, config)

        def warm_up() -> tuple[Array, dict[str, Array]]:
            extras = jax.eval_shape(explore)[1]
            shape = (self.num_envs, *self.spec.action_shape)
            if self.spec.discrete:
                action = jax.vmap(lambda key: jax.random.randint(key, shape, 0, self.spec.action_size))(keys)
            else:
                action = jax.vmap(lambda key: jax.random.uniform(key, shape, minval=-1.0, maxval=1.0))(keys)
            return action, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), extras)

        warmup = STORAGES[self.kind].warmup_steps(config)
        return jax.lax.cond(state.steps * self.num_envs < warmup, warm_up, explore) if warmup else explore()

    def observe(
        self, state: LearnerState, observation: Array, action: Array, extras: dict[str, Array], step: Step
    ) -> LearnerState:
        """Store what `action` led to, and count the step; all leaves are [P, E, ...]."""
        return state.replace(
            storage=self.store(state.storage, observation, action, extras, step), steps=state.steps + 1
        )

    def store(
        self, storage: Storage, observation: Array, action: Array, extras: dict[str, Array], step: Step
    ) -> Storage:
        """Add transitions to a storage; all leaves are [P, E, ...]."""
        assert storage is not None, "nothing is added to a data set"
        if self.timed:
            extras = extras | {"time": step.episode_length}
        return storage.add(_transition(observation, action, extras, step))

    def follow(
        self,
        state: LearnerState,
        observation: Array,
        action: Array,
        extras: dict[str, Array],
        step: Step,
        config: Any,
        intact: Array | bool = True,
    ) -> LearnerState:
        """Learn from what `action` led to, at once, and count the step; all leaves are [P, 1, ...].

        What is not finite teaches nothing: from the first such observation or reward on, the metric `TRANSITION`
        reports it. Where that is so of all learners they stay as they are, and unless `intact` []; one of several is
        spoiled by it.
        """
        transition = _transition(observation, action, extras, step)
        inputs = (transition.observation, transition.next_observation, transition.reward)
        finite = jnp.stack([jnp.isfinite(x).reshape(self.num_learners, -1).all(axis=1) for x in inputs]).all(axis=0)
        intact = intact & (finite & (state.tally.first_bad[TRANSITION] < 0)).any()
        learnt = jax.lax.cond(intact, lambda state: self.learn(state, transition, config), lambda state: state, state)
        tally = add_to_tally(learnt.tally, {TRANSITION: jnp.where(finite, 1.0, jnp.nan)}, state.updates)
        return learnt.replace(tally=tally, steps=state.steps + 1)

    def ready(self, steps: Any, config: Any) -> Any:
        """Whether updates may begin after `steps` steps of each environment; never batched."""
        return STORAGES[self.kind].ready(steps * self.num_envs, config)

    def update(self, state: LearnerState, config: Any, data: Transition | None = None) -> LearnerState:
        """One iteration's U updates, each on a batch of its own; all batches are drawn in one gather.

        `data` [N, ...] is the data set, where there is one: all learners share it.
        """
        learnt = self.learn(state.replace(storage=None), self.draw(state, config, data), config)
        return learnt.replace(storage=state.storage)

    def draw(self, state: LearnerState, config: Any, data: Transition | None = None) -> Transition:
        """The batches of one iteration, [P, U, B, ...], in one gather."""
        return self._sample(state.storage, data, self.batch_keys(state.key_update, state.updates), config)

    def batch_keys(self, key_update: Array, updates: Any) -> Array:
        """The keys [P] that the batches of the iteration after `updates` updates are drawn with."""
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(key_update, updates)
        return jax.vmap(lambda key: jax.random.split(key)[0])(keys)

    def learn(self, state: LearnerState, batches: Transition, config: Any) -> LearnerState:
        """One update on each of the batches [P, U, B, ...]; the storage is not needed."""
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(state.key_update, state.updates)
        number = batches.reward.shape[1]
        key_noise = jax.vmap(lambda key: jax.random.split(jax.random.split(key)[1], number))(keys)

        def one(state: LearnerState, inputs: tuple[Transition, Array]) -> tuple[LearnerState, None]:
            agent_state, metrics = self._update_agents(state.agent, *inputs, state.updates, config)
            tally = add_to_tally(state.tally, metrics, state.updates)
            return state.replace(agent=agent_state, tally=tally, updates=state.updates + 1), None

        inputs = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (batches, key_noise))
        if number == 1:
            return one(state, jax.tree.map(lambda x: x[0], inputs))[0]
        return jax.lax.scan(one, state, inputs)[0]

    def over_learners(self, function: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
        """`vmap` over P; a single learner is squeezed instead, which spares its products the batch axis."""
        if self.num_learners > 1:
            return jax.vmap(function, in_axes=in_axes)

        def single(*arguments: Any) -> Any:
            axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(arguments)
            squeezed = [
                argument if axis is None else jax.tree.map(lambda x: x[0], argument)
                for argument, axis in zip(arguments, axes, strict=True)
            ]
            return jax.tree.map(lambda x: x[None], function(*squeezed))

        return single

    def _sample(self, storage: Storage, data: Transition | None, keys: Array, config: Any) -> Transition:
        source: Any = storage
        if data is not None:
            source = Fixed(data) if storage is None else Mixed(storage, Fixed(data))  # type: ignore[arg-type]
        return (self.sampler or samplers.DEFAULTS[self.kind])(source, keys, config)

    # Compiled within others, and for these traced but once: tracing takes longer than most else at a run's start.

    @functools.cached_property
    def _explore(self) -> Callable[..., Any]:
        return jax.jit(self.over_learners(lambda *arguments: self.agent.act(*arguments, explore=True)), inline=True)

    @functools.cached_property
    def _update_agents(self) -> Callable[..., Any]:
        return jax.jit(self.over_learners(self.agent.update, (0, 0, 0, None, 0)), inline=True)

    def _example(self, agent_state: Any, keys: Array, config: Any) -> Transition:
        def shaped(shape: tuple[int, ...], dtype: Any) -> Any:
            return jax.ShapeDtypeStruct((self.num_learners, self.num_envs, *shape), dtype)

        observation = shaped(self.spec.observation_shape, jnp.float32)
        action, extras = jax.eval_shape(self._explore, agent_state, observation, keys, config)
        if self.timed:
            extras = extras | {"time": shaped((), jnp.int32)}
        return Transition(
            observation=observation,
            action=action,
            reward=shaped((), jnp.float32),
            terminated=shaped((), jnp.bool_),
            truncated=shaped((), jnp.bool_),
            next_observation=observation,
            extras=extras,
        )


def _transition(observation: Array, action: Array, extras: dict[str, Array], step: Step) -> Transition:
    return Transition(
        observation=observation,
        action=action,
        reward=step.reward,
        terminated=step.terminated,
        truncated=step.truncated,
        next_observation=step.next_observation,
        extras=extras,
    )


def empty_tally(names: tuple[str, ...], num_learners: int) -> Tally:
    """A tally of nothing yet."""
    zeros = {name: jnp.zeros(num_learners) for name in names}
    none = {name: jnp.full(num_learners, -1, jnp.int32) for name in names}
    return Tally(total=zeros, weight=jax.tree.map(jnp.copy, zeros), first_bad=none)


def add_to_tally(tally: Tally, metrics: dict[str, Any], update: Array) -> Tally:
    """Count the metrics [P] of one update; `update` [] is its number."""
    total, weight, first_bad = dict(tally.total), dict(tally.weight), dict(tally.first_bad)
    for name, metric in metrics.items():
        value, counts = (metric.value, metric.weight) if isinstance(metric, Weighted) else (metric, 1.0)
        total[name] = tally.total[name] + value
        weight[name] = tally.weight[name] + counts
        bad = (tally.first_bad[name] < 0) & ~jnp.isfinite(value)
        first_bad[name] = jnp.where(bad, update, tally.first_bad[name])
    return Tally(total, weight, first_bad)
