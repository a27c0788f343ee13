"""What agents know of an environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

PICTURES = (
    "Pictures have three axes: height, width, channels. Put stacked ones side by side in their "
    "channels: np.concatenate(frames, axis=-1); and give a grey one a channel: frame[..., None]."
)
MASK = "action_mask"  # the part of an observation, bool [A], that is True for allowed actions


@dataclasses.dataclass(frozen=True)
class Part:
    """One named array of an observation that is a dictionary."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"  # "uint8" for pictures of bytes, "bool" for a mask


@dataclasses.dataclass(frozen=True)
class EnvSpec:
    """What an agent may know about an environment, without arrays.

    An observation is one array, or a dictionary of arrays: its `parts`. Pictures are [H, W, K],
    channels last. Continuous actions lie in [-1, 1]; the environment's adapter rescales them.
    Discrete actions count from 0. An action of both holds its numbers and then its choices, as
    whole numbers of float32; `discrete` is then False, and there are `choices`.
    """

    name: str  # such as "brax/ant"
    observation_shape: tuple[int, ...]  # of one observation; () where it is a dictionary
    action_size: int  # dimensions of continuous actions plus all choices of discrete ones
    discrete: bool = False  # True: actions are int32
    max_episode_steps: int | None = None  # the time limit in environment steps; None: no limit
    observation_dtype: str = "float32"  # "uint8" for pictures of bytes
    parts: tuple[Part, ...] = ()  # of an observation that is a dictionary, ordered by name
    # how many choices each of several discrete actions has; () for one action
    choices: tuple[int, ...] = ()
    # what comes beside the reward, such as a cost: float32, ordered by name
    signals: tuple[Part, ...] = ()
    # frames in a picture, equal shares of its channels, the newest last; at first all are the same
    stack: int = 1

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> EnvSpec:
        """The specification in JSON, of any version."""
        values: dict[str, Any] = {
            name: tuple(x) if isinstance(x, list) else x
            for name, x in described.items()
            if name in cls.__dataclass_fields__
        }
        for name in ("parts", "signals"):
            values[name] = tuple(
                Part(x["name"], tuple(x["shape"]), x["dtype"]) for x in values.get(name, ())
            )
        return cls(**values)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """`()` for one discrete action, `(len(choices),)` for several, `(A,)` when continuous."""
        return () if self.discrete and not self.choices else (self.numbers + len(self.choices),)

    @property
    def numbers(self) -> int:
        """Dimensions of an action's continuous part."""
        return 0 if self.discrete else self.action_size - sum(self.choices)

    @property
    def action_dtype(self) -> Any:
        """int32 when discrete, float32 when continuous."""
        return jnp.int32 if self.discrete else jnp.float32

    @property
    def observation(self) -> Any:
        """One observation as `jax.ShapeDtypeStruct`: an array [O...], or a dictionary of arrays."""
        if not self.parts:
            return jax.ShapeDtypeStruct(self.observation_shape, self.observation_dtype)
        return {part.name: jax.ShapeDtypeStruct(part.shape, part.dtype) for part in self.parts}

    @property
    def masked(self) -> bool:
        """Whether observations have a part `MASK`."""
        return any(part.name == MASK for part in self.parts)

    @property
    def is_vector(self) -> bool:
        """Whether an observation is one vector of float32."""
        return (
            len(self.observation_shape) == 1
            and self.observation_dtype == "float32"
            and not self.parts
        )

    def example(self, *leading: int) -> Any:
        """Observations of zeros with these leading axes."""
        return jax.tree.map(lambda x: jnp.zeros((*leading, *x.shape), x.dtype), self.observation)

    def shaped(self, *leading: int) -> Any:
        """`example` as shapes and dtypes alone."""
        return jax.eval_shape(lambda: self.example(*leading))

    def leading(self, observation: Any) -> tuple[int, ...]:
        """The leading axes of observations [..., O...]."""
        several, single = jax.tree.leaves(observation)[0], jax.tree.leaves(self.observation)[0]
        return several.shape[: several.ndim - len(single.shape)]

    def cast(self, observation: Any) -> Any:
        """Observations as arrays of the spec's dtypes."""
        return jax.tree.map(
            lambda x, promised: jnp.asarray(x, promised.dtype), observation, self.observation
        )


SPACES = ("observation_shape", "observation_dtype", "parts", "action_size", "discrete", "choices")


def difference(one: EnvSpec, other: EnvSpec) -> str | None:
    """The first field in which the spaces of two environments differ, or None."""
    return next((name for name in SPACES if getattr(one, name) != getattr(other, name)), None)


def mask_of(observation: Any) -> jax.Array | None:
    """The mask [..., A] in observations, or None."""
    return observation.get(MASK) if isinstance(observation, dict) else None


def shown(spec: EnvSpec) -> str:
    """Observations in words, for messages."""
    if spec.parts:
        parts = [f"{part.name} {part.dtype}{list(part.shape)}" for part in spec.parts]
        return f"a dictionary of {', '.join(parts)}"
    kind = "pictures" if len(spec.observation_shape) == 3 else "arrays"
    return f"{kind} of shape {spec.observation_shape} and dtype {spec.observation_dtype}"
