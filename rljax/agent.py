"""The contract between agents, environments and the code that trains them.

An agent's pure functions never step an environment, sample a batch, log or jit.

Axes: `P` population (seeds x hyperparameters), `E` environments of one learner, `T` time, `B`
batch, `C` critics, `O...` one observation, `A` action dimensions.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.requirements import (
    check_types,
    require_above,
    require_acting,
    require_at_least,
    require_base,
    require_continuous,
    require_discrete,
    require_fit,
    require_one_action,
    require_one_width,
    require_order,
    require_range,
    require_subset,
    require_unmixed,
    require_vectors,
    require_widths,
)
from rljax.spec import MASK, EnvSpec, Part, difference, mask_of, shown

Array = jax.Array
Number = Array | float  # a setting, traced or not
Metrics = dict[str, Any]  # values are scalars [] or `Weighted`
Loss = tuple[Array, Metrics]  # a scalar [] to be minimised
T = TypeVar("T")

# In the `extras` of stored transitions: the memory before the action; what a base that remembers
# does there and in the next state, see `base_acts`.
MEMORY = "memory"
BASE_ACTION, NEXT_BASE_ACTION = "base_action", "next_base_action"


class Transition(struct.PyTreeNode):
    """One step of experience. All fields have the same leading axes.

    `next_observation` is the true successor, also at resets. Bootstrapping stops at `terminated`,
    never at `truncated`.
    """

    observation: Any  # [..., O...] as in the spec: one array, or a dictionary of arrays
    action: Array  # [..., A] float32 in [-1, 1], or [...] int32
    reward: Array  # [...] float32
    terminated: Array  # [...] bool: the environment's own end
    truncated: Array  # [...] bool: a time limit or another end from outside
    next_observation: Any  # [..., O...]
    # of `act`, and signals that the agent declares
    extras: Mapping[str, Array] = struct.field(default_factory=dict)


class Step(struct.PyTreeNode):
    """The result of one action in an environment that resets itself.

    The next action depends on `observation`: a new episode's first, or else `next_observation`. The
    `episode_*` are running totals, the episode's own where `terminated | truncated`.
    """

    observation: Any  # [..., O...]
    next_observation: Any  # [..., O...] true successor
    reward: Array  # [...]
    terminated: Array  # [...] bool
    truncated: Array  # [...] bool
    episode_return: Array  # [...] float32, undiscounted
    episode_length: Array  # [...] int32, environment steps
    # [...] bool: the task is done, where the environment says so
    success: Array | None = None
    # [..., K...] float32, as in the spec
    signals: Mapping[str, Array] = struct.field(default_factory=dict)
    # [..., K...] float32: their sums over the episode
    episode_signals: Mapping[str, Array] = struct.field(default_factory=dict)


@dataclass_transform(frozen_default=True)
def config(cls: type[T]) -> type[T]:
    """Turn a class into an agent's `Config`: a frozen dataclass that is also a pytree.

    Fields annotated `float` or `float | None` are leaves: traced, so that new values recompile
    nothing, and stackable along P.
    """
    frozen: Any = dataclasses.dataclass(frozen=True)(cls)
    traced = float_fields(frozen)
    static = [field.name for field in dataclasses.fields(frozen) if field.name not in traced]
    return jax.tree_util.register_dataclass(frozen, data_fields=list(traced), meta_fields=static)


def float_fields(cls: Any) -> tuple[str, ...]:
    """Names of a Config's traced fields, in their order."""
    hints, fields = typing.get_type_hints(cls), dataclasses.fields(cls)
    return tuple(
        x.name for x in fields if float in (hints[x.name], *typing.get_args(hints[x.name]))
    )


class Agent(Protocol):
    """A module (or any object) with these attributes. Nothing outside it reads a field of its
    `Config`.

    Optional functions:

    - `remember(spec, config) -> memory`: one environment's memory where an episode begins, a tree
      of arrays, or None. It depends on no float of `config`. `act` then takes the memory [...,
      M...] as its last argument and returns `(action, extras, memory)`. Memory of exploring actions
      alone is a `networks.noise.Lasting`, and `act` also works without it.
    - `perceive(state, observation, first, config) -> State` sees every observation [E, O...] once,
      before acting on it; `first` [E] marks those that begin an episode.
    - `review(state, outcome, time, config) -> State` sees the `Step` [E, ...] of each time at which
      an episode of training ends, without observations and before the next action. `time` []
      counts the steps of each environment so far, and is never batched.
    - `prepare(state, data, config) -> State` sees the whole data set [N, ...] before the first
      update.
    - `value(state, observation, action, config) -> Array`: the critics' value [...] of actions
      [..., A].
    - `decode(state, observation, noise, config) -> Array`: the actions [..., A] that a generative
      policy makes of standard normal noise [..., A], the same at each call.
    - `use_base(state, base, config) -> State` puts another run's `Base` beside the State before
      the agent acts or learns, and takes it away again where it is None.
    - `check_base(base, config)` raises `ValueError` for what cannot be its base, which is None
      without `--base`; without this part, a base acts on single observations.
    - `base_acts(config) -> bool`: whether a base that remembers acts at each step before the agent,
      with a memory of its own. Stored transitions then have `extras["base_action"]`, and
      `extras["next_base_action"]` for the next observation, [..., A].
    - `acting(config) -> Acting`: what `rljax eval RUN --config.X VALUE` may change.
    - `schedule(config, steps) -> Config` turns shares of the run into steps. `steps` is the run's
      length: environment steps of each learner, or updates from a data set.
    - A Config's `in_run(updates) -> Config` sees the number of updates of the run.
    """

    Config: Callable[..., Any]  # every hyperparameter, documented per field; made by `config`

    def experience(self, config: Any) -> Any:
        """Declare what the agent learns from: `Replay`, `Rollout`, `Stream` or `Dataset` of
        `rljax.buffers`.

        The declaration may hold and depend on floats of `config`, numbers here or arrays [P] of all
        learners' values.
        """
        ...

    def check(self, spec: EnvSpec, config: Any) -> None:
        """Raise `ValueError` before anything compiles for what cannot work."""

    def init(self, key: Array, spec: EnvSpec, config: Any) -> Any:
        """A fresh State: trained networks, targets, and what else updates change."""

    def act(
        self, state: Any, observation: Array, key: Array, config: Any, explore: bool
    ) -> tuple[Array, dict]:
        """`action` and `extras` for observations [..., O...].

        Without `explore` most agents return the mean or mode; generative ones draw.
        """
        ...

    def update(
        self, state: Any, batch: Transition, key: Array, step: Array, config: Any
    ) -> tuple[Any, Metrics]:
        """The State after one update, built as before, and scalar metrics.

        `step` counts updates and is unbatched.
        """
        ...


PARTS = ("Config", "experience", "check", "init", "act", "update")  # required of every agent

# Settings that mean the same in every agent that has them, so that others may read them: gamma of
# the critics; r -> reward_scale r + reward_shift; rewards divided by the std of returns; rewards in
# [-1, 1]; the largest sum of costs of an episode; the actions of one decision.
COMMON = (
    "discount",
    "reward_scale",
    "reward_shift",
    "normalise_rewards",
    "clip_rewards",
    "cost_limit",
    "chunk_length",
)


def check(agent: Any, spec: EnvSpec, config: Any) -> None:
    """Raise `ValueError` for settings out of range, and those that the agent refuses."""
    check_types(config)
    agent.check(spec, config)


def same_fields(config: Any, names: Iterable[str]) -> dict[str, Any]:
    """Those fields `names` that a Config has, with their values."""
    return {name: getattr(config, name) for name in names if hasattr(config, name)}


class Memories(struct.PyTreeNode):
    """The memory of an agent whose base acts before it."""

    agent: Any  # [..., M...], or None
    base: Any  # [..., M...]


def base_acts(agent: Any, base: Base | None, config: Any) -> bool:
    """Whether this base acts at each step before the agent, with a memory of its own."""
    if base is None or not base.remembers:
        return False
    return hasattr(agent, "base_acts") and agent.base_acts(config)


def first_memory(
    agent: Any, spec: EnvSpec, config: Any, *leading: int, base: Base | None = None
) -> Any:
    """Memories where episodes begin, with these leading axes; None where nothing is remembered."""
    memory = agent.remember(spec, config) if hasattr(agent, "remember") else None
    if base_acts(agent, base, config):
        memory = Memories(memory, base.first_memory())  # pyright: ignore[reportOptionalMemberAccess]
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (*leading, *jnp.shape(x))), memory)


def act(
    agent: Any,
    state: Any,
    observation: Any,
    key: Array,
    config: Any,
    explore: bool,
    memory: Any = None,
) -> tuple[Array, dict, Any]:
    """The `act` of any agent: `action`, `extras` and the next memory or None."""
    if hasattr(agent, "remember"):
        return agent.act(state, observation, key, config, explore, memory)
    return *agent.act(state, observation, key, config, explore), None


def act_beside(
    agent: Any,
    state: Any,
    base: Base | None,
    observation: tuple[Any, Any],
    key: Array,
    config: Any,
    explore: bool,
    memory: Any = None,
    own_act: Callable[..., tuple[Array, dict, Any]] = act,
) -> tuple[Array, dict, Any]:
    """The `own_act` of an agent beside its base, if any, which acts first where it remembers.

    `observation` is a pair: the environment's, and as the agent sees it.
    """
    seen, others = observation[1], (config, explore)
    if base is None:
        return own_act(agent, state, seen, key, *others, memory)
    if not base_acts(agent, base, config):
        return own_act(agent, agent.use_base(state, base, config), seen, key, *others, memory)
    key_own, key_base = jax.random.split(key)
    base_action, after = base.play(observation[0], key_base, memory.base)
    state = agent.use_base(state, base.replace(action=base_action), config)
    action, extras, own = own_act(agent, state, seen, key_own, *others, memory.agent)
    return action, {**extras, BASE_ACTION: base_action}, Memories(own, after)


def next_base_action(base: Base, observation: Any, key: Array, memory: Memories) -> Array:
    """What a base that acts before its agent does next: at the next step's observations, with its
    `key` and the `memory` before it, as `act_beside` has it.
    """
    _, key_base = jax.random.split(key)
    return base.play(observation, key_base, memory.base)[0]


def choose(first: Array, fresh: Any, memory: Any) -> Any:
    """Trees of arrays [..., M...]: `fresh` where `first` [...] is True, else `memory`."""

    def select(new: Array, old: Array) -> Array:
        return jnp.where(jnp.reshape(first, first.shape + (1,) * (new.ndim - first.ndim)), new, old)

    return jax.tree.map(select, fresh, memory)


@dataclasses.dataclass(frozen=True)
class Acting:
    """Fields of a `Config` that an evaluation may change, such as thinking steps, but no array's
    shape.
    """

    settings: tuple[str, ...] = ()
    # how many actions follow one decision, in agents that emit sequences
    sequence: str | None = None
    returns: tuple[str, ...] = ()  # those of `settings` for which a score may stand, "90%"

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, the length of sequences last."""
        return self.settings if self.sequence is None else (*self.settings, self.sequence)


def acting(agent: Any, config: Any) -> Acting:
    """The settings that an evaluation may change, by the agent or a base class of its Config."""
    if hasattr(agent, "acting"):
        return agent.acting(config)
    return getattr(type(config), "acting", Acting())


def unseen(config: Any) -> tuple[str, ...]:
    """The parts of observations that the policy does not look at, by a base class of its Config."""
    return getattr(config, "unseen", ())


class Base(struct.PyTreeNode):
    """Another run's policy for an agent with `use_base`: frozen, and not saved with the State.

    Of a policy on the host, `agent` has `act` alone, and `state` is the hash of its file.
    """

    state: Any  # of one learner
    config: Any  # floats as arrays []
    agent: Any = struct.field(pytree_node=False)  # its module
    spec: EnvSpec = struct.field(pytree_node=False)  # of its training
    inputs: Any = struct.field(pytree_node=False)  # one of `rljax.networks.inputs`
    statistics: Any  # of its observations
    base: Any = None  # the Base beside which it learnt itself, if any
    remembers: bool = struct.field(pytree_node=False, default=False)  # it acts by more than now
    action: Any = None  # [..., A]: what it does now, where it has acted before the agent

    def act(self, observation: Array, key: Array, explore: bool = False) -> Array:
        """Actions [..., A] for the environment's observations [..., O...]."""
        if self.action is not None:
            return self.action
        return self.play(observation, key, None, explore)[0]

    def play(
        self, observation: Array, key: Array, memory: Any, explore: bool = False
    ) -> tuple[Array, Any]:
        """Actions [..., A], and the next memory, for observations [..., O...] and its memory."""
        observed = (observation, self.inputs(self.statistics, observation))
        own = (self.agent, self.state, self.base, observed, key, self.config, explore, memory)
        action, _, memory = act_beside(*own)
        return action, memory

    def first_memory(self) -> Any:
        """Its memory of one environment where an episode begins."""
        return first_memory(self.agent, self.spec, self.config, base=self.base)

    def decode(self, observation: Array, noise: Array) -> Array:
        """The actions [..., A] that a generative policy makes of its noise [..., A]."""
        state = self.state
        if self.base is not None:
            state = self.agent.use_base(state, self.base, self.config)
        observation = self.inputs(self.statistics, observation)
        return self.agent.decode(state, observation, noise, self.config)


def require_decoder(name: str, base: Base | None, chunk_length: int = 1) -> None:
    """Raise `ValueError` without a base that makes chunks of this length of noise."""
    if base is None:
        raise ValueError(
            f"agent '{name}' decodes by another run's flow: give --base RUN, of qc or another "
            "agent with `decode`."
        )
    if not hasattr(base.agent, "decode"):
        raise ValueError(
            f"the policy of --base makes no actions of noise, which agent '{name}' needs: name a "
            "run of qc or another agent with `decode`."
        )
    length = same_fields(base.config, COMMON).get("chunk_length", 1)
    if length != chunk_length:
        raise ValueError(
            f"the policy of --base makes chunks of {length}: give --config.chunk-length {length}."
        )


class Weighted(struct.PyTreeNode):
    """A metric that only some updates have; others have weight 0 in its mean."""

    value: Array  # []
    weight: Array  # [] 0 or 1


def every(
    period: int,
    step: Array,
    change: Callable[[Any], tuple[Any, Metrics]],
    state: Any,
    first: int = 0,
) -> tuple[Any, Metrics]:
    """Apply `change` on every `period`-th update after the `first` ones; else leave the state as it
    is.

    `step` [] counts the updates before this one. It is never batched: only one branch runs under
    `vmap`.
    """
    if period == 1 and not first:
        return change(state)
    change = jax.jit(change, inline=True)  # `eval_shape` and `cond` trace it only once
    names = jax.eval_shape(change, state)[1]

    def active(state: Any) -> tuple[Any, Metrics]:
        state, metrics = change(state)
        return state, {name: Weighted(metrics[name], jnp.ones(())) for name in names}

    def idle(state: Any) -> tuple[Any, Metrics]:
        return state, {name: Weighted(jnp.zeros(()), jnp.zeros(())) for name in names}

    is_due = step % period == period - 1
    if first:
        is_due &= step >= first
    return jax.lax.cond(is_due, active, idle, state)


def in_steps(config: T, steps: float, *names: str) -> T:
    """The Config with settings `names` in steps: values up to 1 are shares of the run's `steps`.

    A setting is a number, one per learner, or None, which stays None.
    """

    def converted(setting: Any) -> Any:
        if setting is None:
            return None
        values = np.asarray(setting, np.float64)
        values = np.where(values <= 1.0, values * steps, values)
        return tuple(values.tolist()) if values.ndim else values.tolist()

    settings: Any = config
    changes = {name: converted(getattr(config, name)) for name in names}
    return dataclasses.replace(settings, **changes)
