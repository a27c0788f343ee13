"""The contract between agents, environments and the code that trains them.

An agent is a module of pure functions over pytrees. It never steps an environment, never samples a batch, never logs
and never jits. The rest of the suite relies only on the names below.

Axes, everywhere: `P` population (seeds x hyperparameters), `E` environments of one learner, `T` time,
`B` batch, `C` critics, `O...` one observation, `A` action dimensions.
"""

from __future__ import annotations

import dataclasses
import hashlib
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Protocol, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.requirements import (
    check_types,
    require_above,
    require_at_least,
    require_below,
    require_order,
    require_range,
    require_subset,
    require_widths,
)

Array = jax.Array
Metrics = dict[str, Any]  # values are scalars [] or `Weighted`
Loss = tuple[Array, Metrics]  # a scalar [] to be minimised
T = TypeVar("T")

# Transforms of a data set's rewards before any agent sees them. `rljax.datasets.tools.preprocess`
# defines them and names their sources.
RewardTransform = Literal[
    "none",
    "return_range",
    "minus_one",
    "times_10_minus_5",
    "times_4_minus_2",
    "times_100",
    "standardise",
    "times_10_plus_5",
    "minus_four",
]


MASK = "action_mask"  # the part of an observation that says which actions are allowed: bool [A], True where allowed
MEMORY = "memory"  # in the `extras` of stored transitions: the memory before the action


@dataclasses.dataclass(frozen=True)
class Part:
    """One named array of an observation that is a dictionary."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"  # "uint8" for pictures of bytes, "bool" for a mask


@dataclasses.dataclass(frozen=True)
class EnvSpec:
    """Everything that an agent may know about an environment. It is static: it never holds arrays.

    An observation is one array, or a dictionary of arrays: its `parts`. Pictures are [H, W, K], their channels last.
    Actions are normalised: each dimension of a continuous action lies in [-1, 1], and the environment's adapter
    rescales it to the environment's own bounds. Discrete actions count from 0. An action of both holds first its
    numbers and then its choices, as whole numbers of float32; then `discrete` is False, and there are `choices`.
    """

    name: str  # as given on the command line, e.g. "Hopper-v5" or "brax/ant"
    observation_shape: tuple[int, ...]  # of one observation; () where it is a dictionary
    action_size: int  # dimensions of a continuous action and the number of discrete ones: the sum of `choices`
    discrete: bool = False  # True: actions are int32
    max_episode_steps: int | None = None  # the time limit in environment steps; None where there is no limit
    observation_dtype: str = "float32"  # "uint8" for pictures of bytes
    parts: tuple[Part, ...] = ()  # the arrays of an observation that is a dictionary, ordered by name
    choices: tuple[int, ...] = ()  # of an action of several discrete ones: how many choices each has; () for one action
    signals: tuple[Part, ...] = ()  # what it gives beside the reward, such as a cost: float32, ordered by name
    stack: int = 1  # frames in a picture: equal shares of its channels, the newest last; an episode repeats its first

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> EnvSpec:
        """The specification that JSON holds, of this version or of another one."""
        known = [field.name for field in dataclasses.fields(cls) if field.name in described]
        values: dict[str, Any] = {name: described[name] for name in known}
        for name in ("parts", "signals"):
            values[name] = tuple(Part(x["name"], tuple(x["shape"]), x["dtype"]) for x in values.get(name, ()))
        tuples: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in values.items()}
        return cls(**tuples)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one action: `()` for one discrete action, `(len(choices),)` for several, `(A,)` when continuous."""
        return () if self.discrete and not self.choices else (self.numbers + len(self.choices),)

    @property
    def numbers(self) -> int:
        """Dimensions of the continuous part of an action."""
        return 0 if self.discrete else self.action_size - sum(self.choices)

    @property
    def action_dtype(self) -> Any:
        """int32 when discrete, float32 when continuous."""
        return jnp.int32 if self.discrete else jnp.float32

    @property
    def observation(self) -> Any:
        """One observation as a tree of `jax.ShapeDtypeStruct`: one array [O...], or a dictionary of arrays."""
        if not self.parts:
            return jax.ShapeDtypeStruct(self.observation_shape, self.observation_dtype)
        return {part.name: jax.ShapeDtypeStruct(part.shape, part.dtype) for part in self.parts}

    @property
    def masked(self) -> bool:
        """Whether observations say which actions are allowed, in the part `MASK`."""
        return any(part.name == MASK for part in self.parts)

    @property
    def is_vector(self) -> bool:
        """Whether an observation is one vector of float32."""
        return len(self.observation_shape) == 1 and self.observation_dtype == "float32" and not self.parts

    def example(self, *leading: int) -> Any:
        """Observations of zeros with these leading axes."""
        return jax.tree.map(lambda x: jnp.zeros((*leading, *x.shape), x.dtype), self.observation)

    def shaped(self, *leading: int) -> Any:
        """The shapes and dtypes of observations with these leading axes."""
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((*leading, *x.shape), x.dtype), self.observation)

    def leading(self, observation: Any) -> tuple[int, ...]:
        """The leading axes of observations [..., O...]."""
        several, single = jax.tree.leaves(observation)[0], jax.tree.leaves(self.observation)[0]
        return several.shape[: several.ndim - len(single.shape)]

    def cast(self, observation: Any) -> Any:
        """Observations as arrays of the promised dtypes."""
        return jax.tree.map(lambda x, promised: jnp.asarray(x, promised.dtype), observation, self.observation)


SPACES = ("observation_shape", "observation_dtype", "parts", "action_size", "discrete", "choices")  # fields of a spec


def difference(one: EnvSpec, other: EnvSpec) -> str | None:
    """The first field of the spaces in which two environments differ; None where their spaces are the same."""
    return next((name for name in SPACES if getattr(one, name) != getattr(other, name)), None)


def mask_of(observation: Any) -> Array | None:
    """The mask of allowed actions [..., A] that observations hold; None where they hold none."""
    return observation.get(MASK) if isinstance(observation, dict) else None


class Transition(struct.PyTreeNode):
    """One step of experience. Every field has the same leading axes.

    `next_observation` is the true successor, also where the environment reset itself. Bootstrapping stops
    at `terminated` and never at `truncated`.
    """

    observation: Any  # [..., O...] in the dtypes of the spec: one array, or a dictionary of arrays
    action: Array  # [..., A] float32 in [-1, 1], or [...] int32
    reward: Array  # [...] float32
    terminated: Array  # [...] bool: the environment's own end
    truncated: Array  # [...] bool: a time limit or another end from outside
    next_observation: Any  # [..., O...]
    extras: Mapping[str, Array] = struct.field(default_factory=dict)  # of `act`, and signals that the agent asks for


class Step(struct.PyTreeNode):
    """The result of one action in an environment that resets itself.

    The next action depends on `observation`. It is the first observation of a new episode where one has begun, and
    `next_observation` otherwise. `episode_return`, `episode_length` and `episode_signals` hold the finished episode's
    totals where `terminated | truncated`, and the running totals elsewhere.
    """

    observation: Any  # [..., O...]
    next_observation: Any  # [..., O...] true successor
    reward: Array  # [...]
    terminated: Array  # [...] bool
    truncated: Array  # [...] bool
    episode_return: Array  # [...] float32, undiscounted
    episode_length: Array  # [...] int32, environment steps
    success: Array | None = None  # [...] bool: the task is done; environments inside the program may report it
    signals: Mapping[str, Array] = struct.field(default_factory=dict)  # [..., K...] float32: those of the spec
    episode_signals: Mapping[str, Array] = struct.field(default_factory=dict)  # [..., K...] their sums


@dataclass_transform(frozen_default=True)
def config(cls: type[T]) -> type[T]:
    """Turn a class into an agent's `Config`: a frozen dataclass that is also a pytree.

    Fields annotated `float` (or `float | None`) are leaves. They are traced, so that a new value never recompiles the
    program, and they can be stacked along the population axis. Every other field is static: it shapes the program.
    """
    frozen: Any = dataclasses.dataclass(frozen=True)(cls)
    traced = float_fields(frozen)
    static = [field.name for field in dataclasses.fields(frozen) if field.name not in traced]
    return jax.tree_util.register_dataclass(frozen, data_fields=list(traced), meta_fields=static)


def float_fields(cls: Any) -> tuple[str, ...]:
    """Names of a Config's traced fields, in the order of their definition."""
    hints, fields = typing.get_type_hints(cls), dataclasses.fields(cls)
    return tuple(x.name for x in fields if float in (hints[x.name], *typing.get_args(hints[x.name])))


class Agent(Protocol):
    """An agent: a module (or any object) with these attributes. Nothing outside an agent reads a field of its `Config`.

    Six more functions are optional. The presence of such a function declares that the agent can use it.

    - `remember(spec, config) -> memory` is for agents that remember earlier observations: the memory with which an
      episode begins, a tree of arrays of one environment, or None where these settings remember nothing. It depends on
      no float of `config`. `act` then takes the memory as its last argument, [..., M...] for observations [..., O...],
      and returns `(action, extras, memory)`. Whoever acts keeps the memory, one per environment. A memory that only
      exploring actions depend on is a `networks.noise.Lasting`; `act` then also works without it.
    - `perceive(state, observation, first, config) -> State` sees every observation [E, O...] once, before acting
      on it. `first` [E] marks those that begin an episode. Normalising observations needs no such function: a
      declaration with `normalise_observations=True` is enough.
    - `prepare(state, data, config) -> State` sees the whole data set [N, ...] once, before the first update on it.
    - `value(state, observation, action, config) -> Array` is the critics' value [...] of actions [..., A]. Runs from a
      data set report its mean over terminal rows. Adversarial corruptions of data sets minimise this value.
    - `use_base(state, base, config) -> State` takes another run's policy, a `Base`: `rljax train ... --base RUN`.
    - `schedule(config, steps) -> Config` turns settings that are shares of the run into numbers of steps. `steps` is
      the run's length: environment steps of each learner, or updates where the agent learns from a data set. Learning
      and acting use the Config that it returns.
    """

    Config: Callable[..., Any]  # every hyperparameter, documented per field; made by `config`

    def experience(self, config: Any) -> Any:
        """Declare what the agent learns from: `Replay`, `Rollout`, `Stream` or `Dataset` of `rljax.buffers`.

        Here the floats of `config` are not tracers, but numbers or arrays [P] of all learners' values. The declaration
        may hold them and may depend on them.
        """
        ...

    def check(self, spec: EnvSpec, config: Any) -> None:
        """Raise `ValueError` for settings and environments that cannot work, before anything compiles."""

    def init(self, key: Array, spec: EnvSpec, config: Any) -> Any:
        """Return a fresh State: parameters, targets, optimiser states, input statistics."""

    def act(self, state: Any, observation: Array, key: Array, config: Any, explore: bool) -> tuple[Array, dict]:
        """Return `action` and `extras` for observations [..., O...].

        Evaluation uses the actions without `explore`. Most agents then return the policy's mean or mode and ignore the
        key; generative agents return a random draw.
        """
        ...

    def update(self, state: Any, batch: Transition, key: Array, step: Array, config: Any) -> tuple[Any, Metrics]:
        """Return the State after one update and scalar metrics. `step` counts updates and is unbatched."""
        ...


PARTS = ("Config", "experience", "check", "init", "act", "update")  # required of every agent


def check(agent: Any, spec: EnvSpec, config: Any) -> None:
    """Raise `ValueError` for settings outside the ranges of their types, and for all that the agent refuses."""
    check_types(config)
    agent.check(spec, config)


def same_fields(config: Any, names: Iterable[str]) -> dict[str, Any]:
    """The values of a Config's fields by name: of those `names` that it has."""
    return {name: getattr(config, name) for name in names if hasattr(config, name)}


def first_memory(agent: Any, spec: EnvSpec, config: Any, *leading: int) -> Any:
    """Memories with which episodes begin, with these leading axes; None where the agent remembers nothing."""
    memory = agent.remember(spec, config) if hasattr(agent, "remember") else None
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (*leading, *jnp.shape(x))), memory)


def act(
    agent: Any, state: Any, observation: Any, key: Array, config: Any, explore: bool, memory: Any = None
) -> tuple[Array, dict, Any]:
    """The `act` of any agent: `action`, `extras`, and the next memory, None where the agent remembers nothing."""
    if hasattr(agent, "remember"):
        return agent.act(state, observation, key, config, explore, memory)
    return *agent.act(state, observation, key, config, explore), None


def choose(first: Array, fresh: Any, memory: Any) -> Any:
    """Memories, or other trees of arrays [..., M...]: those of `fresh` where `first` [...] is True."""

    def chosen(one: Array, other: Array) -> Array:
        return jnp.where(jnp.reshape(first, first.shape + (1,) * (one.ndim - first.ndim)), one, other)

    return jax.tree.map(chosen, fresh, memory)


class Base(struct.PyTreeNode):
    """Another run's policy, as an input of an agent that has `use_base`.

    It is a pytree, so that a State may hold it. Its `state` is frozen unless the agent's own optimiser changes it.
    """

    state: Any  # the other agent's State, of one learner
    config: Any  # the other agent's Config, floats as arrays []
    agent: Any = struct.field(pytree_node=False)  # the other agent's module
    spec: EnvSpec = struct.field(pytree_node=False)  # of the environment in which the policy was trained
    inputs: Any = struct.field(pytree_node=False)  # one of `rljax.networks.inputs`: it normalises observations
    statistics: Any  # of the other agent's observations

    def act(self, observation: Array, key: Array, explore: bool = False) -> Array:
        """Actions [..., A] for observations [..., O...] as the environment shows them."""
        seen_by_agent = self.inputs(self.statistics, observation)
        return act(self.agent, self.state, seen_by_agent, key, self.config, explore)[0]

    def digest(self) -> str:
        """A hash of all numbers of the policy."""
        return digest((self.state, self.statistics, self.config))


def digest(tree: Any) -> str:
    """A hash of all numbers of a tree of arrays."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        found.update(np.asarray(jax.random.key_data(leaf) if is_key else leaf).tobytes())
    return found.hexdigest()


class Weighted(struct.PyTreeNode):
    """A metric that only some updates have. `weight` is 0 on the other updates, and the mean is weighted."""

    value: Array  # []
    weight: Array  # [] 0 or 1


def every(period: int, step: Array, change: Callable[[Any], tuple[Any, Metrics]], state: Any) -> tuple[Any, Metrics]:
    """Apply `change` on every `period`-th update, and leave the state as it is on the others.

    `step` [] counts the updates before this one. It is never batched, so that under `vmap` only one branch runs.
    """
    if period == 1:
        return change(state)
    change = jax.jit(change, inline=True)  # `eval_shape` and `cond` then trace it only once
    names = jax.eval_shape(change, state)[1]

    def active(state: Any) -> tuple[Any, Metrics]:
        state, metrics = change(state)
        return state, {name: Weighted(metrics[name], jnp.ones(())) for name in names}

    def idle(state: Any) -> tuple[Any, Metrics]:
        return state, {name: Weighted(jnp.zeros(()), jnp.zeros(())) for name in names}

    return jax.lax.cond(step % period == period - 1, active, idle, state)


def in_steps(setting: Any, steps: float) -> Any:
    """A setting in steps: a value up to 1 is a share of the run's `steps`, and a larger one is a number of steps.

    `setting` is a number, one value per learner, or None, which stays None.
    """
    if setting is None:
        return None
    values = np.asarray(setting, np.float64)
    found = np.where(values <= 1.0, values * steps, values)
    return found.tolist() if found.ndim == 0 else tuple(found.tolist())


def require_vectors(name: str, spec: EnvSpec) -> None:
    """Raise `ValueError` unless observations are vectors, and all actions are allowed at all times."""
    if not spec.is_vector:
        raise ValueError(
            f"agent '{name}' observes vectors, '{spec.name}' shows {shown(spec)}. "
            "Choose an agent for any observation, such as ppo, or dqn for discrete actions; bc or iql from data."
        )


def shown(spec: EnvSpec) -> str:
    """What an environment shows, in words."""
    if spec.parts:
        return f"a dictionary of {', '.join(f'{part.name} {part.dtype}{list(part.shape)}' for part in spec.parts)}"
    kind = "pictures" if len(spec.observation_shape) == 3 else "arrays"
    return f"{kind} of shape {spec.observation_shape} and dtype {spec.observation_dtype}"


def require_fit(spec: EnvSpec, convolutions: tuple[tuple[int, int, int], ...]) -> None:
    """Raise `ValueError` unless observations are large enough pictures [H, W, K], or vectors without convolutions."""
    observation_shape = spec.observation_shape
    if spec.parts:
        raise ValueError(
            f"'{spec.name}' shows {shown(spec)}, this agent takes one vector or picture. Choose an agent for any "
            "observation, such as ppo, or dqn for discrete actions."
        )
    if not convolutions and len(observation_shape) != 1:
        raise ValueError(
            f"observations have shape {observation_shape}: give convolutions, as (channels, width, stride), for "
            "example --config.convolutions 16 3 1"
        )
    if not convolutions:
        return
    if len(observation_shape) != 3:
        raise ValueError(f"observations have shape {observation_shape}, --config.convolutions are for pictures.")
    size = min(observation_shape[:2])
    for channels, width, stride in convolutions:
        if min(channels, width, stride) < 1 or size < width:
            raise ValueError(f"--config.convolutions {channels} {width} {stride} do not fit a picture {size} wide.")
        size = (size - width) // stride + 1


def require_continuous(name: str, spec: EnvSpec, other: str | None = None) -> None:
    """Raise `ValueError` unless actions are continuous; `other` names an agent for discrete actions, if it is near."""
    if spec.discrete or spec.choices:
        others = "dqn, sac_discrete or ppo in an environment, bc, iql or cql_discrete from data"
        other = "ppo" if spec.numbers else other
        raise ValueError(
            f"agent '{name}' acts in a continuous space, '{spec.name}' has {spec.action_size - spec.numbers} discrete "
            f"actions. For those there is {other or others}. Or choose an environment, or data, whose actions are "
            "continuous (a Box), such as Pendulum-v1."
        )


def require_discrete(name: str, spec: EnvSpec, other: str) -> None:
    """Raise `ValueError` unless an action is one discrete action; `other` names an agent for continuous actions."""
    require_one_action(name, spec)
    if not spec.discrete:
        raise ValueError(
            f"agent '{name}' chooses among discrete actions, those of '{spec.name}' are continuous. Use: "
            f"rljax train {other} --env {spec.name}, or choose an environment such as CartPole-v1."
        )


def require_one_action(name: str, spec: EnvSpec) -> None:
    """Raise `ValueError` where an action is several discrete ones, or has such a part."""
    if spec.choices:
        raise ValueError(
            f"agent '{name}' takes one discrete action at a time, '{spec.name}' takes {len(spec.choices)}, with "
            f"{' x '.join(map(str, spec.choices))} choices. Use: rljax train ppo --env {spec.name}, or bc or iql from "
            "data."
        )


def require_unmixed(name: str, spec: EnvSpec) -> None:
    """Raise `ValueError` where an action has both numbers and choices."""
    if spec.numbers and spec.choices:
        raise ValueError(
            f"agent '{name}' takes numbers or choices, an action of '{spec.name}' has {spec.numbers} and "
            f"{len(spec.choices)}. Use: rljax train ppo --env {spec.name}"
        )
