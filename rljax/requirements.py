"""Checks of settings and environments, for agents.

Each raises `ValueError` where its first line is not true, for any learner. `check_types` checks
ranges of types, such as `Share`.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Annotated, Any

import numpy as np

from rljax.spec import EnvSpec, shown

_OTHERS = "Choose another agent (rljax list agents)."


@dataclasses.dataclass(frozen=True)
class Between:
    """Finite numbers in a closed range; None is no limit."""

    low: float | None = None
    high: float | None = None

    def require(self, config: Any, name: str) -> None:
        """Raise `ValueError` for other values of the field `name`."""
        require_range(config, **{name: (self.low, self.high)})


@dataclasses.dataclass(frozen=True)
class Above:
    """Finite numbers above a limit."""

    limit: float

    def require(self, config: Any, name: str) -> None:
        """See `Between`."""
        require_above(config, **{name: self.limit})


@dataclasses.dataclass(frozen=True)
class Below:
    """Numbers below a limit, also in float32."""

    limit: float

    def require(self, config: Any, name: str) -> None:
        """See `Between`."""
        for value in np.ravel(getattr(config, name)):
            if not _single(value) < self.limit:
                raise ValueError(f"{_flag(name)} is {value:.9g}, it must be below {self.limit}.")


@dataclasses.dataclass(frozen=True)
class AtLeast:
    """Whole numbers from a limit on."""

    limit: int

    def require(self, config: Any, name: str) -> None:
        """See `Between`."""
        require_at_least(config, **{name: self.limit})


@dataclasses.dataclass(frozen=True)
class EachAtLeast:
    """Lists of whole numbers from a limit on."""

    limit: int

    def require(self, config: Any, name: str) -> None:
        """See `Between`."""
        values = getattr(config, name)
        if min(values, default=self.limit) < self.limit:
            raise ValueError(f"{_flag(name)} is {values}: each must be at least {self.limit}.")


@dataclasses.dataclass(frozen=True)
class LayerWidths:
    """Widths of layers, each at least 1."""

    def require(self, config: Any, name: str) -> None:
        """See `Between`."""
        require_widths(config, name)


Real = Annotated[float, Between()]  # any finite number
NonNegative = Annotated[float, Between(0, None)]
Share = Annotated[float, Between(0, 1)]
Decay = Annotated[float, Between(0, None), Below(1)]  # what is left of a mean, or of a reward
Backtrack = Annotated[float, Above(0), Below(1)]  # of a line search
DropoutRate = Annotated[float, Between(0, 0.99)]
Positive = Annotated[float, Above(0)]
LogStd = Annotated[float, Between(-30, 30)]  # of a policy
Count = Annotated[int, AtLeast(1)]
Whole = Annotated[int, AtLeast(0)]
Counts = Annotated[tuple[int, ...], EachAtLeast(1)]
Widths = Annotated[tuple[int, ...], LayerWidths()]


def check_types(config: Any) -> None:
    """Each field lies in the range of its type, or is None."""
    for name, requirements in _requirements(type(config)).items():
        if getattr(config, name) is not None:
            for requirement in requirements:
                requirement.require(config, name)


@functools.cache
def _requirements(cls: type) -> dict[str, list[Any]]:
    kinds = (Between, Above, Below, AtLeast, EachAtLeast, LayerWidths)
    hints = typing.get_type_hints(cls, include_extras=True)
    requirements = {}
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        parts = typing.get_args(hint) if is_union else (hint,)
        stated = [x for part in parts for x in getattr(part, "__metadata__", ())]
        requirements[field.name] = [x for x in stated if isinstance(x, kinds)]
    return requirements


def require_range(config: Any, **ranges: tuple[float | None, float | None]) -> None:
    """The named fields are finite and lie in their closed ranges; None is no limit."""
    for name, (low, high) in ranges.items():
        for value in np.ravel(getattr(config, name)):
            outside = (low is not None and value < low) or (high is not None and value > high)
            if outside or not np.isfinite(_single(value)):
                limits = f" and at least {low}" * (low is not None)
                limits = limits if high is None else f" and in [{low}, {high}]"
                raise ValueError(f"{_flag(name)} is {value:g}, it must be finite{limits}.")


def require_above(config: Any, **limits: float) -> None:
    """The named fields are finite and above their limits, or None."""
    for name, limit in limits.items():
        for value in np.ravel(getattr(config, name)):
            if value is not None and not limit < _single(value) < np.inf:
                raise ValueError(
                    f"{_flag(name)} is {value:g}, it must be finite and above {limit}."
                )


def require_order(config: Any, low: str, high: str) -> None:
    """The field `low` is not above the field `high`; None is no limit."""
    lower, upper = getattr(config, low), getattr(config, high)
    if lower is not None and upper is not None and np.any(np.asarray(lower) > np.asarray(upper)):
        raise ValueError(f"{_flag(low)} is {lower}, it must not be above {_flag(high)} {upper}.")


def require_at_least(config: Any, **limits: int) -> None:
    """The named integer fields are at least their limits."""
    for name, limit in limits.items():
        value = getattr(config, name)
        if value < limit:
            raise ValueError(f"{_flag(name)} is {value}, it must be at least {limit}.")


def require_subset(min_critics: int | None, num_critics: int) -> None:
    """`min_critics` is None or a number of the `num_critics` critics."""
    if min_critics is not None and not 1 <= min_critics <= num_critics:
        raise ValueError(
            f"--config.min-critics is {min_critics}, it must lie between 1 and "
            f"--config.num-critics {num_critics}, or be None for all of them."
        )


def require_widths(config: Any, *names: str) -> None:
    """Each layer of the named fields has at least 1 unit."""
    for name in names:
        widths = getattr(config, name)
        if min(widths, default=1) < 1:
            raise ValueError(f"{_flag(name)} is {widths}: each layer has at least 1 unit.")


def require_one_width(config: Any, *names: str) -> None:
    """The named fields have one width for all residual blocks, of which there is one at least."""
    for name in names:
        widths = getattr(config, name)
        if len(set(widths)) != 1:
            raise ValueError(
                f"{_flag(name)} is {widths}: give one number for each residual block, all equal."
            )


def require_vectors(name: str, spec: EnvSpec) -> None:
    """Observations are vectors, and all actions are allowed at all times."""
    if not spec.is_vector:
        raise ValueError(
            f"agent '{name}' observes vectors, '{spec.name}' shows {shown(spec)}. {_OTHERS}"
        )


def require_fit(spec: EnvSpec, convolutions: tuple[tuple[int, int, int], ...]) -> None:
    """Observations are large enough pictures [H, W, K], or vectors without convolutions."""
    shape = spec.observation_shape
    if spec.parts:
        raise ValueError(
            f"'{spec.name}' shows {shown(spec)}, this agent takes one vector or picture. {_OTHERS}"
        )
    if not convolutions:
        if len(shape) == 1:
            return
        raise ValueError(
            f"observations have shape {shape}: give convolutions, as (channels, width, stride), "
            "for example --config.convolutions 16 3 1"
        )
    if len(shape) != 3:
        raise ValueError(
            f"observations have shape {shape}, --config.convolutions are for pictures."
        )
    size = min(shape[:2])
    for channels, width, stride in convolutions:
        if min(channels, width, stride) < 1 or size < width:
            flag = f"--config.convolutions {channels} {width} {stride}"
            raise ValueError(f"{flag} do not fit a picture {size} wide.")
        size = (size - width) // stride + 1


def require_continuous(name: str, spec: EnvSpec, other: str | None = None) -> None:
    """Actions are continuous; `other` names a similar agent for discrete ones."""
    if spec.discrete or spec.choices:
        agents = f"Use agent {other}." if other and not spec.numbers else _OTHERS
        raise ValueError(
            f"agent '{name}' acts in a continuous space, '{spec.name}' has "
            f"{spec.action_size - spec.numbers} discrete actions. {agents} Or choose an "
            "environment, or data, whose actions are continuous (a Box), such as Pendulum-v1."
        )


def require_discrete(name: str, spec: EnvSpec, other: str) -> None:
    """An action is one discrete action; `other` names an agent for continuous ones."""
    require_one_action(name, spec)
    if not spec.discrete:
        raise ValueError(
            f"agent '{name}' chooses among discrete actions, those of '{spec.name}' are "
            f"continuous. Use: rljax train {other} --env {spec.name}, or choose an environment "
            "such as CartPole-v1."
        )


def require_one_action(name: str, spec: EnvSpec) -> None:
    """No action is, or contains, several discrete ones."""
    if spec.choices:
        raise ValueError(
            f"agent '{name}' takes one discrete action at a time, '{spec.name}' takes "
            f"{len(spec.choices)}, with {' x '.join(map(str, spec.choices))} choices. {_OTHERS}"
        )


def require_unmixed(name: str, spec: EnvSpec) -> None:
    """No action has both numbers and choices."""
    if spec.numbers and spec.choices:
        raise ValueError(
            f"agent '{name}' takes numbers or choices, an action of '{spec.name}' "
            f"has {spec.numbers} and {len(spec.choices)}. {_OTHERS}"
        )


def require_base(name: str, base: Any) -> None:
    """There is a base."""
    if base is None:
        raise ValueError(
            f"agent '{name}' begins with another run's policy: give --base RUN, or a policy as "
            "--base FILE.py:FUNCTION or --base FILE.onnx."
        )


def require_acting(name: str, base: Any) -> None:
    """There is a base, and it acts on single observations."""
    require_base(name, base)
    if base.remembers:
        raise ValueError(
            f"the policy of --base remembers, and agent '{name}' needs one that acts on single "
            "observations."
        )


def _single(value: float) -> np.float32:
    with np.errstate(over="ignore", under="ignore"):
        return np.float32(value)


def _flag(name: str) -> str:
    return f"--config.{name.replace('_', '-')}"
