"""Learners: agents with their buffers.

A state's arrays have the leading axis P, except counters: a branch on an unbatched counter stays
one under `vmap`. All functions are pure.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import (
    MEMORY,
    NEXT_BASE_ACTION,
    Agent,
    Array,
    Base,
    EnvSpec,
    Step,
    Transition,
    base_acts,
    choose,
    first_memory,
    mask_of,
    next_base_action,
)
from rljax.buffers import Experience
from rljax.buffers.prioritised import Pending
from rljax.buffers.stream import TRANSITION
from rljax.learning import agent_state, returns
from rljax.learning.agent_state import AgentState
from rljax.learning.programs import Contents
from rljax.learning.tally import Tally, add_to_tally, counted, empty_tally, environment_steps
from rljax.networks import distributions
from rljax.networks.inputs import Raw


def per_learner(rows: Any, size: tuple[int, int]) -> Any:
    """Arrays [P x E, ...] of all environments as [P, E, ...]; `size` is (P, E)."""
    return jax.tree.map(lambda x: x.reshape(*size, *x.shape[1:]), rows)


def flat(rows: Any) -> Any:
    """An array [P, E, ...] as [P x E, ...]."""
    return rows.reshape(-1, *rows.shape[2:])


class Hyperparameters(struct.PyTreeNode):
    """A Config of P learners and its declared experience, with floats [P]."""

    config: Any
    experience: Experience
    inputs: Raw = struct.field(pytree_node=False)  # of observations
    base: Base | None = None  # other runs' policies [P]


class LearnerState(struct.PyTreeNode):
    """What P learners have learnt and collected. Counters are folded into the fixed keys."""

    agent: AgentState  # [P, ...]
    storage: Any  # the experience's buffer, if any
    tally: Tally
    key_act: Array  # [P]
    key_update: Array  # [P]
    steps: Array  # [] int32: steps of each environment so far; see `counted`
    updates: Array  # [] int32: updates of each learner so far; see `counted`
    pending: Pending | None = None  # priorities that the next step writes


@dataclasses.dataclass(frozen=True, eq=False)
class Learner:
    """P learners of one agent. Equal ones share programs."""

    agent: Agent
    spec: EnvSpec
    num_learners: int  # P
    declare: Callable[[Any], Experience] | None = None  # None: the agent's `experience`
    base: Base | None = None  # other runs' policies [P], for agents with `use_base`

    def __post_init__(self) -> None:
        # Programs get the base with the hyperparameters.
        identity = (Contents(self.agent), self.spec, self.num_learners, self.declare)
        object.__setattr__(self, "_identity", identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Learner) and self._identity == other._identity  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(self._identity)  # type: ignore[attr-defined]

    def hyperparameters(self, config: Any) -> Hyperparameters:
        """A stacked Config, whose floats are arrays [P], with the experience declared for it.

        Learners share single numbers of the declaration.
        """
        by_agent = self.agent.experience(config)
        declared = by_agent if self.declare is None else self.declare(config)
        each = jax.tree.map(
            lambda x: x if jnp.ndim(x) else jnp.full(self.num_learners, x, jnp.float32), declared
        )
        return Hyperparameters(config, each, by_agent.inputs, self.base)

    def init(
        self, keys: Array, hyper: Hyperparameters, data: Transition | None = None
    ) -> LearnerState:
        """Fresh learners from one key each, [P], and the data set [N, ...], if any.

        Raises `ValueError` where the agent breaks its contract: see `returns`.
        """
        config, experience = hyper.config, hyper.experience
        key_agent, key_act, key_update = jnp.moveaxis(
            jax.vmap(lambda key: jax.random.split(key, 3))(keys), 1, 0
        )

        def create(key: Array, config: Any) -> AgentState:
            return agent_state.create(self.agent, key, self.spec, config, hyper.inputs)

        fresh_agent = self.over_learners(create)(key_agent, config)
        step = self._example_step(experience)
        example = self._example(fresh_agent, step, key_act, hyper)
        stored = experience.create(example, self.spec.stack, data)
        zero = jnp.zeros((), jnp.int32)
        batches = experience.batches(stored, data, key_update, example)
        batch = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((x.shape[0], *x.shape[2:]), x.dtype), batches
        )
        updated, metrics = jax.eval_shape(
            self._update_agents, fresh_agent, batch, key_update, zero, config, hyper.base
        )
        returns.require_state(self.agent, fresh_agent.state, updated.state)
        if self.reviews:
            happened = (without_observations(step), zero)
            each = self._reviewing(agent_state.reviewed)
            reviewed = jax.eval_shape(each, fresh_agent, *happened, config, hyper.base)
            returns.require_state(self.agent, fresh_agent.state, reviewed.state, "review")
        rows = batches.extras.get("row")
        returns.require_metrics(
            self.agent, metrics, self.num_learners, None if rows is None else rows.shape[2]
        )
        if (metrics.pop("priorities", None) is None) != (rows is None):
            raise ValueError(
                "an agent's `update` returns metrics['priorities'] exactly where its experience "
                "draws with `Prioritised`: let it use `rljax.buffers.priorities`."
            )
        metrics |= dict.fromkeys(experience.metrics, zero)
        return LearnerState(
            agent=fresh_agent,
            storage=stored,
            tally=empty_tally(tuple(metrics), self.num_learners),
            key_act=key_act,
            key_update=key_update,
            steps=zero,
            updates=zero,
            pending=None if rows is None else Pending.none(rows),
        )

    def perceives(self, state: LearnerState) -> bool:
        """Whether `perceive` changes anything."""
        return agent_state.perceives(self.agent, state.agent.inputs)

    def perceive(
        self, state: LearnerState, observation: Any, first: Array, hyper: Hyperparameters
    ) -> LearnerState:
        """Count each observation [P, E, ...] once before an action; `first` [P, E] marks beginnings
        of episodes.
        """
        if TRANSITION in state.tally.first_bad:
            # After a value that is not finite no episode begins: learning has ended.
            first = first & (state.tally.first_bad[TRANSITION] < 0)[:, None]
        perceive = self.over_learners(agent_state.beside_base(self.agent, agent_state.perceive))
        learnt = perceive(state.agent, observation, first, hyper.config, hyper.base)
        return state.replace(agent=learnt)

    @property
    def reviews(self) -> bool:
        """Whether `review` changes anything."""
        return agent_state.reviews(self.agent)

    def review(
        self, state: LearnerState, step: Step, time: Array, hyper: Hyperparameters
    ) -> LearnerState:
        """Show agents a step [P, E, ...] in which an episode ended; others change nothing.

        `time` [] counts the steps of each environment, with this one.
        """
        outcome = without_observations(step)

        def review(agent: AgentState) -> AgentState:
            each = self._reviewing(agent_state.review)
            return each(agent, outcome, time, hyper.config, hyper.base)

        ended = (step.terminated | step.truncated).any()
        learnt = jax.lax.cond(ended, review, lambda agent: agent, state.agent)
        return state.replace(agent=learnt)

    def prepare(
        self, state: LearnerState, data: Transition, hyper: Hyperparameters
    ) -> LearnerState:
        """Show the agents the whole data set [N, ...], before the first update."""
        prepare = self.over_learners(
            agent_state.beside_base(self.agent, agent_state.prepare), (0, None, 0, 0)
        )
        return state.replace(agent=prepare(state.agent, data, hyper.config, hyper.base))

    def remembers(self, hyper: Hyperparameters) -> bool:
        """Whether these agents, or bases that act before them, remember earlier observations."""
        return jax.eval_shape(lambda: self._first_memory(hyper)) is not None

    def _first_memory(self, hyper: Hyperparameters, *leading: int) -> Any:
        return first_memory(self.agent, self.spec, hyper.config, *leading, base=hyper.base)

    def recall(self, extras: Any, first: Any, hyper: Hyperparameters) -> Any:
        """The memories [P, E, ...] to act with; None where the agent remembers nothing.

        `extras` are the last action's, None before the first. `first` [P, E] marks environments
        that begin an episode.
        """
        fresh = self._first_memory(hyper, *first.shape)
        if fresh is None or extras is None:
            return fresh
        return choose(first, fresh, extras[MEMORY]["after"])

    def act(
        self, state: LearnerState, observation: Any, hyper: Hyperparameters, memory: Any = None
    ) -> tuple[Array, dict[str, Any]]:
        """Exploring actions [P, E, ...] for observations; uniform ones in the warm-up."""
        config, experience = hyper.config, hyper.experience
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(state.key_act, state.steps)
        agent = state.agent.replace(base=hyper.base)

        def explore() -> tuple[Array, dict[str, Any]]:
            action, extras, after = self._explore(agent, observation, keys, config, memory)
            return action, _with_memory(extras, memory, after)

        def warm_up() -> tuple[Array, dict[str, Any]]:
            if memory is None:
                extras = jax.tree.map(
                    lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(explore)[1]
                )
            else:
                extras = explore()[1]
            leading = (experience.num_envs,)

            def uniform(key: Array, mask: Any) -> Array:
                return distributions.uniform(key, spec=self.spec, leading=leading, mask=mask)

            return jax.vmap(uniform)(keys, mask_of(observation)), extras

        if not experience.random_steps:
            return explore()
        steps = environment_steps(state.steps, experience.num_envs)
        return jax.lax.cond(steps < experience.random_steps, warm_up, explore)

    def with_next(
        self, extras: Any, next_observation: Any, key_act: Array, steps: Any, hyper: Hyperparameters
    ) -> Any:
        """The `extras` of an action after `steps` [] steps, with the base's next action, if any."""
        if not base_acts(self.agent, hyper.base, hyper.config):
            return extras
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(key_act, counted(steps))
        after = (hyper.base, next_observation, keys, extras[MEMORY]["after"])
        return {**extras, NEXT_BASE_ACTION: self.over_learners(next_base_action)(*after)}

    def observe(
        self, state: LearnerState, transition: Transition, experience: Experience
    ) -> LearnerState:
        """Store a transition [P, E, ...], and count the step."""
        storage, pending = experience.store(state.storage, state.pending, transition)
        state = state.replace(storage=storage, steps=counted(state.steps))
        return state if pending is None else state.replace(pending=pending)

    def learn_from_step(
        self,
        state: LearnerState,
        transition: Transition,
        hyper: Hyperparameters,
        intact: Array | bool = True,
    ) -> LearnerState:
        """Learn at once from a transition [P, 1, ...], and count the step.

        The metric `TRANSITION` reports the first observation or reward that is not finite, which
        spoils its learner. Where `intact` [] is False, or all have met one, learners stay
        unchanged.
        """
        inputs = jax.tree.leaves(
            (transition.observation, transition.next_observation, transition.reward)
        )
        floats = [x for x in inputs if jnp.issubdtype(x.dtype, jnp.inexact)]
        finite = jnp.stack(
            [jnp.isfinite(x).reshape(self.num_learners, -1).all(axis=1) for x in floats]
        ).all(axis=0)
        intact = intact & (finite & (state.tally.first_bad[TRANSITION] < 0)).any()
        learnt = jax.lax.cond(
            intact,
            lambda state: self.learn(state, transition, hyper),
            lambda state: state,
            state,
        )
        tally = add_to_tally(
            learnt.tally, {TRANSITION: jnp.where(finite, 1.0, jnp.nan)}, state.updates
        )
        return learnt.replace(tally=tally, steps=counted(state.steps))

    def ready(self, steps: Any, experience: Experience) -> Any:
        """Whether updates may begin after each environment's `steps` steps; never batched."""
        return experience.ready(environment_steps(steps, experience.num_envs))

    def update(
        self, state: LearnerState, hyper: Hyperparameters, data: Transition | None = None
    ) -> LearnerState:
        """Do the U updates of one iteration; one gather draws their batches.

        Learners share the data set `data` [N, ...], if any.
        """
        keys = self.batch_keys(state.key_update, state.updates)
        batches = hyper.experience.sample(state.storage, data, keys)
        learnt = self.learn(state.replace(storage=None), batches, hyper)
        return learnt.replace(storage=state.storage)

    def batch_keys(self, key_update: Array, updates: Any) -> Array:
        """The keys [P] of the batches of the iteration after `updates` updates."""
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(key_update, updates)
        return jax.vmap(lambda key: jax.random.split(key)[0])(keys)

    def learn(
        self, state: LearnerState, batches: Transition, hyper: Hyperparameters
    ) -> LearnerState:
        """Do one update on each of the batches [P, U, B, ...]."""
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(state.key_update, state.updates)
        number = batches.reward.shape[1]
        key_noise = jax.vmap(lambda key: jax.random.split(jax.random.split(key)[1], number))(keys)

        def one(
            state: LearnerState, inputs: tuple[Transition, Array]
        ) -> tuple[LearnerState, Array | None]:
            updated, metrics = self._update_agents(
                state.agent, *inputs, state.updates, hyper.config, hyper.base
            )
            priorities = metrics.pop("priorities", None)
            tally = add_to_tally(state.tally, metrics, state.updates)
            return state.replace(
                agent=updated, tally=tally, updates=counted(state.updates)
            ), priorities

        inputs = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (batches, key_noise))
        if number == 1:
            state, priorities = one(state, jax.tree.map(lambda x: x[0], inputs))
            priorities = jax.tree.map(lambda x: x[None], priorities)
        else:
            state, priorities = jax.lax.scan(one, state, inputs)
        if priorities is None:
            return state
        pending = Pending(
            row=batches.extras["row"],
            priority=jnp.moveaxis(priorities, 0, 1),
            fresh=jnp.ones((), jnp.bool_),
            updates=state.updates,
        )
        return state.replace(pending=pending)

    def over_learners(self, function: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
        """`vmap` over P. One learner's axis is squeezed: products have no batch axis."""
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

    def _reviewing(self, review: Callable[..., Any]) -> Callable[..., Any]:
        return self.over_learners(agent_state.beside_base(self.agent, review), (0, 0, None, 0, 0))

    # With a `jit` of their own JAX traces these two only once, which takes long.

    @functools.cached_property
    def _explore(self) -> Callable[..., Any]:
        def explore(state: Any, observation: Any, key: Array, config: Any, memory: Any) -> Any:
            return agent_state.act(self.agent, state, observation, key, config, True, memory)

        return jax.jit(self.over_learners(explore), inline=True)

    @functools.cached_property
    def _update_agents(self) -> Callable[..., Any]:
        update = agent_state.beside_base(self.agent, agent_state.update)
        return jax.jit(self.over_learners(update, (0, 0, 0, None, 0, 0)), inline=True)

    def _example_step(self, experience: Experience) -> Step:
        """The shapes of a step, [P, E, ...]."""
        rows = (self.num_learners, experience.num_envs)

        def shaped(shape: tuple[int, ...], dtype: Any) -> Any:
            return jax.ShapeDtypeStruct((*rows, *shape), dtype)

        observation = self.spec.shaped(*rows)
        parts = {part.name: shaped(part.shape, jnp.float32) for part in self.spec.signals}
        return Step(
            observation=observation,
            next_observation=observation,
            reward=shaped((), jnp.float32),
            terminated=shaped((), jnp.bool_),
            truncated=shaped((), jnp.bool_),
            episode_return=shaped((), jnp.float32),
            episode_length=shaped((), jnp.int32),
            signals=parts,
            episode_signals=parts,
        )

    def _example(
        self, fresh_agent: Any, step: Step, keys: Array, hyper: Hyperparameters
    ) -> Transition:
        """The shapes of what is stored at each step, [P, E, ...]."""
        rows = (self.num_learners, hyper.experience.num_envs)
        observation = step.observation
        memory = jax.eval_shape(lambda: self._first_memory(hyper, *rows))
        agent = fresh_agent.replace(base=hyper.base)
        action, extras, after = jax.eval_shape(
            self._explore, agent, observation, keys, hyper.config, memory
        )
        returns.require_action(self.agent, self.spec, action, extras, rows)
        returns.require_memory(self.agent, memory, after)
        extras = _with_memory(extras, memory, memory)
        zero = jnp.zeros((), jnp.int32)
        extras = jax.eval_shape(self.with_next, extras, observation, keys, zero, hyper)
        return jax.eval_shape(hyper.experience.transition, observation, action, extras, step)


def without_observations(step: Step) -> Step:
    """A step as agents with `review` see it."""
    return step.replace(observation=None, next_observation=None)


def _with_memory(extras: dict[str, Any], memory: Any, after: Any) -> dict[str, Any]:
    return extras if memory is None else extras | {MEMORY: {"before": memory, "after": after}}


def before(extras: Any) -> Any:
    """The memory before the action of these extras, if any."""
    return extras[MEMORY]["before"] if MEMORY in extras else None
