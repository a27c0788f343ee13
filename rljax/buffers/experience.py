"""Declarations: what an agent learns from, as its `experience(config)` returns it.

A declaration is a pytree like a `Config`: its floats are leaves, one value per learner, and
everything else shapes the program.

Axes: `P` learners, `E` environments of each, `U` updates of an iteration, `B` rows of a batch, `N`
rows of a data set.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import (
    MEMORY,
    Array,
    EnvSpec,
    Step,
    Transition,
    float_fields,
    same_fields,
    shown,
)
from rljax.buffers.rows import RingRows, TerminalRows, rows_of, terminal_rows
from rljax.buffers.windows import windowed, with_last_rows, with_last_steps
from rljax.networks.inputs import Raw, Running
from rljax.system.hardware import nbytes

T = TypeVar("T")
D = TypeVar("D", bound="Experience")

# Defined in `rljax.datasets.tools.preprocess`.
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
    "sparse",
]

Parallelism = Literal["threads", "one thread", "cores"]
Observed = tuple[Literal["goals", "time", "last_step"], ...]

LARGEST = 2**30  # of sizes: sums and products of two of them stay within int32


@dataclass_transform(frozen_default=True, kw_only_default=True)
def declaration(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass, and a pytree of its floats and declarations."""
    frozen: Any = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    names = [field.name for field in dataclasses.fields(frozen)]
    traced = (*float_fields(frozen), "draw", "columns", "online", "rewards")
    children = [name for name in names if name in traced]
    static = [name for name in names if name not in children]
    return jax.tree_util.register_dataclass(frozen, data_fields=children, meta_fields=static)


class Column:
    """An additional array in the `extras` of a batch, from the rows around each row."""

    def check(self) -> None:
        """Raise `ValueError` for settings that can never work."""

    def of_data(self, data: Transition) -> dict[str, np.ndarray]:
        """The column [N, ...] of a data set in NumPy, by its name in `extras`."""
        raise NotImplementedError

    def of_replay(self, data: Transition, at: RingRows) -> dict[str, Array]:
        """The column [..., ...] of the rows `at` [...] of one learner's replay, by name."""
        raise NotImplementedError


class Supply(NamedTuple):
    """What a run offers its agent to learn from; what has no comment is of `Settings`."""

    agent: str
    env: str = ""  # "none" for a data set without an environment
    data: str | None = None
    all_tasks: str | None = None  # the whole data set, where this one is cut for one task
    then_online: int = 0
    eval_env: str | None = None
    weights: str = "uniform"
    data_on_host: bool = False
    offline_share: Any = 0.5


@declaration
class Experience:
    """The common part of all declarations.

    Code elsewhere never asks for the kind.
    """

    num_envs: int = 1  # environments of each learner
    num_steps: int = 1  # steps of each environment in one iteration
    num_updates: int = 1  # updates in one iteration, each on its own batch
    normalise_observations: bool = False  # see `inputs`
    clip_rewards: bool = False  # store rewards clipped to [-1, 1]
    remembers: bool = False  # batches have `extras["memory"]`, for agents with `remember`
    signals: tuple[str, ...] = ()  # of the environment, such as a cost, in a batch's `extras`
    time_feature: bool = False  # observations end with the passed share of the time limit
    last_step: bool = False  # observations end with the last action and reward
    columns: tuple[Column, ...] = ()  # in the `extras` of a batch
    chunk_length: int = 1  # steps of a row of a batch, see `rljax.buffers.windows.chunks`

    kind: ClassVar[str]  # its name in run folders: "replay", "rollout", "stream" or "dataset"
    metrics: ClassVar[tuple[str, ...]] = ()  # those that the learner adds to the agent's
    # of a data set's rewards, and of new rewards that are mixed with them, before any update
    reward_transform: ClassVar[RewardTransform] = "none"
    # how the agent learns in an environment after a data set; None where it cannot
    online: ClassVar[Any] = None
    # steps of the run after which the learning rate is 0; None where it stays above 0
    learns_until: ClassVar[Any] = None

    @classmethod
    def of(cls: type[D], config: Any, **others: Any) -> D:
        """The declaration with the Config's values of fields of the same names, and `others`."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**same_fields(config, names) | others)

    @property
    def inputs(self) -> Raw:
        """How observations are normalised: by running statistics, where they are."""
        return Running() if self.normalise_observations else Raw()

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of one learner in one iteration."""
        return self.num_steps * self.num_envs

    @property
    def random_steps(self) -> int:
        """Environment steps of each learner with uniform actions, at first."""
        return 0

    @property
    def steps_before_updates(self) -> int:
        """Environment steps of each learner before the first update."""
        return 0

    def updates(self, steps: float) -> float:
        """Updates of each learner in a run of `steps`: environment steps, or updates from data."""
        learning = max(steps - self.steps_before_updates, 0.0)
        return learning / self.steps_per_iteration * self.num_updates

    @property
    def labels(self) -> tuple[str, ...]:
        """Columns of a data set, without signals, that the draw needs."""
        return ()

    # Numbers that can never work

    def check(self) -> None:
        """Raise `ValueError` for numbers that can never work."""
        self.check_numbers()
        if self.steps_per_iteration > LARGEST:
            raise ValueError(
                f"--config.num-envs {self.num_envs:,} x --config.num-steps {self.num_steps:,} are "
                f"{self.steps_per_iteration:,} steps of an iteration, there must be at "
                f"most {LARGEST:,}."
            )
        for column in self.columns:
            column.check()
        draw = getattr(self, "draw", None)
        asked = [*(type(column).__name__ for column in self.columns), *self.signals]
        asked += ["chunks"] if self.chunk_length > 1 else []
        if asked and draw is not None and not draw.has_columns:
            names = ", ".join(asked)
            raise ValueError(
                f"{type(draw).__name__} draws rows without columns, and the agent asks for "
                f"{names}. Let its `experience` ask for the one or the other."
            )

    def check_numbers(self) -> None:
        """Raise `ValueError` for numbers that are too small or too large."""
        sizes = ("num_envs", "num_steps", "num_updates", "batch_size", "replay_size")
        for name, limit in {**dict.fromkeys(sizes, 1), "warmup_steps": 0}.items():
            value, flag = getattr(self, name, limit), f"--config.{name.replace('_', '-')}"
            if value < limit:
                raise ValueError(f"{flag} is {value}, it must be at least {limit}.")
            if value > LARGEST:
                raise ValueError(f"{flag} is {value:,}, it must be at most {LARGEST:,}.")

    # Sources that it cannot use

    def require_data(self, supply: Supply) -> None:
        """Raise `ValueError` where a data set is missing or unusable."""
        if supply.data is not None:
            raise ValueError(
                f"agent '{supply.agent}' learns from what its own policy has just done, and cannot "
                "use --data. Agents that can learn from a replay or a data set: rljax list agents"
            )

    def require_supply(self, supply: Supply) -> None:
        """Raise `ValueError` for unfit settings of a run."""
        if supply.data_on_host:
            raise ValueError(ON_HOST)
        if supply.then_online:
            raise ValueError(
                f"--then-online continues an agent that learns from data alone, '{supply.agent}' "
                "is online already."
            )
        if supply.env == "none":
            raise ValueError(WITHOUT_ENVIRONMENT)

    def require_mixing(self, supply: Supply) -> None:
        """Raise `ValueError` for a data set's share without mixing."""
        if supply.data is None:
            raise ValueError(
                f"--offline-share {supply.offline_share} is of batches from a data set and new "
                "experience, which are mixed with --data DATA."
            )

    def require_replay(self, out: Any) -> None:
        """Raise `ValueError` where the run in `out` stores no replay."""
        raise ValueError(f"'{out}' has no replay: its agent learns from a {self.kind}.")

    # What a run needs for it

    @property
    def observes(self) -> Observed:
        """What observations show behind the environment's own."""
        if self.last_step:
            return ("last_step",)
        return ("time",) if self.time_feature else ()

    def observed_spec(self, spec: EnvSpec, name: str) -> EnvSpec:
        """The spaces `spec` of the data set `name`, as the agent observes them."""
        if not self.last_step:
            return spec
        if not spec.is_vector:
            raise ValueError(
                f"'{name}' shows {shown(spec)}, and the last action and reward are shown beside "
                "vectors alone: choose another agent."
            )
        size = spec.observation_shape[0] + spec.action_size + 1
        return dataclasses.replace(spec, observation_shape=(size,))

    def stages(self, steps: int, then_online: int) -> tuple[int, int]:
        """Each learner's updates from data alone, and environment steps after them."""
        return 0, steps

    def in_environment(self) -> Experience:
        """The declaration for learning in an environment."""
        return self

    def with_policy(self) -> Experience:
        """The declaration where a learner's first policy acts in the warm-up."""
        return self

    def weighted(self) -> Experience:
        """The declaration for a data set whose rows have weights."""
        return self

    def mixed(self, mix: Callable[[Any], Experience]) -> Experience:
        """The declaration for new experience beside a data set."""
        return self

    def with_goals(self, goals: Any, env: str) -> Experience:
        """The declaration whose draw replaces goals by `goals` of `env`; see `Hindsight`."""
        return self

    def parallelism(self, num_learners: int, in_program: bool) -> Parallelism:
        """What a CPU does in parallel: products, or learners on cores."""
        return "cores" if num_learners > 1 and in_program else "threads"

    def spread(self, make: Callable[..., T], num_learners: int) -> T:
        """The placement on devices, made by `rljax.distributed.devices.Spread`."""
        return make(num_learners, self.num_envs)

    def placed(self, storage: Any, spread: Any) -> Any:
        """The buffer with each array on the devices that work on it."""
        return spread.learners(storage)

    def host_driver(self, within: T, beside: T, one_cpu: bool) -> T:
        """The driver for environments on the host: `within` a compiled loop, or `beside` calls."""
        return within if one_cpu else beside

    def row_bytes(self, data: Transition) -> int:
        """Bytes of a drawn row of a data set [N, ...]. Pictures that are stored once are drawn as
        often as rows show them.
        """
        row = jnp.zeros((), jnp.int32)
        return nbytes(jax.eval_shape(lambda data: rows_of(data, row), data))

    def batch_bytes(self, storage: Any, data: Any, num_learners: int) -> int:
        """The bytes of an iteration's batches, from arrays or their shapes."""
        return 0

    def idle(self, steps: int, iteration: int, on_host: bool, flag: str) -> str | None:
        """A warning where `steps` environment steps of each learner hold no update, else None.

        An `iteration` is so many steps, set by `flag`. On the host, updates come an iteration
        later.
        """
        needed = (-(-self.steps_before_updates // iteration) + on_host) * iteration
        if steps >= needed:
            return None
        return (
            f"nothing will be learnt: the first update comes after {needed:,} environment steps of "
            f"each learner, and there are {steps:,}. Give more with {flag}, or "
            f"lower {self._flags_of_first_update()}."
        )

    def _flags_of_first_update(self) -> str:
        return "--config.num-envs or --config.num-steps"

    def oddities(self, rows: int | None, longest: int | None) -> Iterator[str]:
        """Warnings about unusual numbers, for a data set of `rows` and episodes of up to `longest`
        steps.
        """
        return iter(())

    # Data

    @property
    def summed_steps(self) -> int:
        """Most steps whose rewards a row of a batch has; 0 for rows that are transitions."""
        return 0

    def prepare(self, data: Transition, num_actions: int | None = None) -> Transition:
        """A data set [N, ...] in NumPy with the agent's columns; `num_actions` is the number of
        discrete actions.
        """
        extras = dict(data.extras)
        for column in self.columns:
            extras |= column.of_data(data)
        data = data.replace(extras=extras)
        data = with_last_steps(data, num_actions) if self.last_step else data
        if self.chunk_length > 1:
            return windowed(data, self.chunk_length)
        return with_last_rows(data) if self.summed_steps else data

    def terminal_rows(self, data: Transition, most: int) -> TerminalRows | None:
        """At most `most` terminal rows of a data set [N, ...], evenly spread; None without any."""
        if self.chunk_length > 1:  # values are those of chunks
            return None
        return terminal_rows(data, np.flatnonzero(data.terminated), most)

    # Storing and drawing

    def create(self, example: Transition, stack: int = 1, data: Transition | None = None) -> Any:
        """An empty buffer for transitions like `example` [P, E, ...] with `stack` frames, beside
        the data set `data` [N, ...], if any.
        """
        return None

    def transition(
        self, observation: Any, action: Array, extras: dict[str, Any], step: Step
    ) -> Transition:
        """The transition [P, E, ...] that `action` caused, as it is stored, with the action's
        `extras` and, where batches hold memories, the memory before it.
        """
        stored = {name: x for name, x in extras.items() if name != MEMORY}
        if self.remembers and MEMORY in extras:
            stored[MEMORY] = extras[MEMORY]["before"]
        return Transition(
            observation=observation,
            action=action,
            reward=jnp.clip(step.reward, -1.0, 1.0) if self.clip_rewards else step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            next_observation=step.next_observation,
            extras=stored | {name: step.signals[name] for name in self.signals},
        )

    def store(self, storage: Any, pending: Any, transitions: Transition) -> tuple[Any, Any]:
        """The buffer with transitions [P, E, ...] and what was `pending`, and what still is."""
        return storage.add(transitions), pending

    def ready(self, steps: Any) -> Any:
        """Whether updates may begin after each learner's `steps` steps, never batched."""
        needed = self.steps_before_updates
        return steps >= needed if needed else True

    def sample(self, buffer: Any, data: Transition | None, keys: Array) -> Transition:
        """The batches of one iteration, [P, U, B, ...], from a buffer, a data set [N, ...] or both,
        in one gather; `keys` are [P].
        """
        raise NotImplementedError

    def batches(self, storage: Any, data: Any, keys: Array, example: Transition) -> Transition:
        """The shapes of an iteration's batches, for stored steps like `example` [P, E, ...]."""
        return jax.eval_shape(lambda *parts: parts[0].sample(*parts[1:]), self, storage, data, keys)

    def iterate(self, loop: Any, *arguments: Any) -> Any:
        """One iteration of a loop over environment steps."""
        return loop.learn_from_batches(*arguments)


ON_HOST = "--data-on-host is for learning from a data set alone: beside new experience it must fit."
WITHOUT_ENVIRONMENT = "--env none is for learning from data alone; here an environment is needed."
