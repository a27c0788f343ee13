"""Trained policies as functions of an environment's own observations, in NumPy."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from rljax import envs
from rljax.agent import MASK, EnvSpec, choose, first_memory, unseen
from rljax.buffers import Experience
from rljax.envs.timed import share_of_time
from rljax.learning import agent_state, configuration
from rljax.learning.settings import Settings
from rljax.networks.noise import Lasting
from rljax.runs.policies import host_policies

if TYPE_CHECKING:
    from rljax.envs.host.spaces import Spaces


@dataclasses.dataclass(frozen=True)
class Policies:
    """The policies of all learners of a run."""

    settings: Settings
    spec: EnvSpec
    module: Any  # the agent
    config: Any  # stacked, floats [P]
    state: Any  # the agent's State, [P, ...]
    step: int  # the checkpoint's step
    reference: Sequence[float] | None  # the returns with scores 0 and 100
    described_spaces: Mapping[str, Any] | None = None  # of the environment, as config.json has them

    def one(self, learner: int) -> Policies:
        """The policy of one learner alone, P = 1."""
        state, config = jax.tree.map(lambda x: x[learner : learner + 1], (self.state, self.config))
        settings = dataclasses.replace(self.settings, seeds=self.settings.seeds[learner:][:1])
        return dataclasses.replace(self, settings=settings, state=state, config=config)

    @functools.cached_property
    def spaces(self) -> Spaces | None:
        """The environment's own spaces; None inside the program, where agents see the same."""
        from rljax.envs.host.spaces import Spaces

        if self.described_spaces is None:
            return None
        return Spaces.read(self.described_spaces, self.settings.env)

    @functools.cached_property
    def observes_time(self) -> bool:
        """Whether observations end with the time."""
        name = envs.observed(self.settings.env, self.experience.observes)
        return name != "none" and envs.with_time(name) == name

    @functools.cached_property
    def experience(self) -> Experience:
        """The agent's declaration."""
        return self.module.experience(self.config)

    def first_memory(self, *leading: int) -> Any:
        """Memories where episodes begin; see `rljax.agent.first_memory`."""
        named = (self.module, self.spec, self.config)
        return first_memory(*named, *leading, base=self.state.base)

    @functools.cached_property
    def remembers(self) -> bool:
        """Whether actions depend on earlier observations."""
        return not isinstance(self.first_memory(), Lasting | None)

    @functools.cached_property
    def explores_in_time(self) -> bool:
        """Whether exploring actions, and they alone, depend on earlier ones."""
        return isinstance(self.first_memory(), Lasting)


class Policy:
    """The policy of one learner, see `rljax.load`: `env.step(policy(observation))`."""

    def __init__(self, policies: Policies, learner: int) -> None:
        """Raises `ValueError` if the run has no such learner."""
        require_learner(policies.settings, learner)
        self.spec = policies.spec
        self._policies, self.learner = policies, learner
        state, self._config = jax.tree.map(lambda x: x[learner], (policies.state, policies.config))
        # A list is faster to hand over than a State, at each call.
        self._learnt, structure = jax.tree.flatten((state, self._config))
        module = policies.module

        def decide(
            learnt: list[Any], observation: Any, call: Any, explore: bool, memory: Any
        ) -> Any:
            state, config = structure.unflatten(learnt)
            action, _, memory = agent_state.act(
                module, state, observation, call_key(call), config, explore, memory
            )
            return action, memory

        self._act = jax.jit(decide, static_argnames="explore")
        self._calls, self._memory = 0, None
        self._fresh: dict[tuple[int, ...], Any] = {}  # memories by their leading axes

    def __call__(
        self,
        observation: Any,
        explore: bool = False,
        *,
        normalised: bool = False,
        step: Any = None,
        mask: Any = None,
    ) -> Any:
        """Actions for one observation of the environment, or for N with a leading axis.

        Observations are those of `reset` and `step`, actions of the action space, or in [-1, 1]
        with `rljax.envs.make`.

        With `normalised`, both may be as `rljax.envs.make_hosted` has them. Where `info` says which
        actions are allowed, give `mask=info["action_mask"]`.

        Policies that observe the time, or that remember, need `step`, the steps since the reset of
        each observation. Noise lasts for several steps with `explore` and `step` only.

        Raises `ValueError` for other observations, and for a `step` that does not fit the call
        before.
        """
        inputs = self._inputs(observation, normalised, step, mask)
        self._calls += 1
        lasting = explore and step is not None and self._policies.explores_in_time
        memory = self._recalled(inputs, step) if self._policies.remembers or lasting else None
        with host_policies.plain_failures():
            action, self._memory = self._act(
                self._learnt, inputs, np.uint32(self._calls), explore, memory
            )
            action = np.asarray(action)
        if not normalised and self._policies.spaces is not None:
            action = self._policies.spaces.act(action)
        # A number for one choice.
        return action[()] if self.spec.discrete and not self.spec.choices else action

    @property
    def policies(self) -> Policies:
        """This policy alone, for evaluations."""
        return self._policies.one(self.learner)

    def _recalled(self, inputs: Any, step: Any) -> Any:
        """The memories before these observations, at `step` of their episodes."""
        one = jax.tree.leaves(self.spec.observation)[0]
        shape = np.shape(jax.tree.leaves(inputs)[0])
        leading = shape[: len(shape) - len(one.shape)]
        if step is None:
            raise ValueError(
                "this policy remembers the episode. Give the steps since the reset: "
                "policy(observation, step=0), then step=1, and so on."
            )
        if leading not in self._fresh:
            self._fresh[leading] = self._policies.first_memory(*leading)
        fresh = self._fresh[leading]
        first: Any = np.broadcast_to(np.asarray(step) == 0, leading)
        if first.all():
            return fresh
        if self._memory is None or jax.tree.map(np.shape, self._memory) != jax.tree.map(
            np.shape, fresh
        ):
            raise ValueError(
                f"this policy remembers the episode, and step is {step}: the call before must have "
                "shown the step before, of as many environments. Begin an episode with step=0."
            )
        return choose(first, fresh, self._memory) if first.any() else self._memory

    def _inputs(self, observation: Any, normalised: bool, step: Any, mask: Any) -> Any:
        """The observations, of either form, as the agent sees them."""
        if normalised:
            inputs = self._unchanged(observation)
            return self._translated(observation, step, mask) if inputs is None else inputs
        try:
            return self._translated(observation, step, mask)
        except ValueError:
            inputs = self._unchanged(observation)
            if inputs is None:
                raise
            return inputs

    def _unchanged(self, observation: Any) -> Any:
        """Observations [O...] or [N, O...] as the agent sees them, if they are."""
        shape = self.spec.observation_shape
        if self.spec.parts:
            return whole_parts(self.spec, unseen(self._config), observation)
        if isinstance(observation, (dict, tuple)):
            return None
        try:
            array = np.asarray(observation, self.spec.observation_dtype)
        except (TypeError, ValueError):
            return None
        leading = leading_axes(array.shape, shape)
        return array if leading is not None and len(leading) <= 1 else None

    def _translated(self, observation: Any, step: Any, mask: Any) -> Any:
        from rljax.envs.host.spaces import CORRECT

        spaces, shape = self._policies.spaces, self.spec.observation_shape
        if spaces is None:
            raise ValueError(
                f"observation has shape {np.shape(observation)}, the policy needs {shape} or "
                f"[N, *{shape}]."
            )
        leading = spaces.leading(observation)
        if spaces.masked and mask is None:
            raise ValueError(
                "this policy needs to know which actions are allowed: policy(observation, "
                "mask=info['action_mask']), with the info that reset or step returned with "
                "the observation."
            )
        try:
            inputs = spaces.observe(observation, leading, mask)
            if self.spec.masked:
                spaces.actions.mask(inputs[MASK], leading)
        except ValueError as error:
            problem = str(error).replace(f" {CORRECT}", "")
            raise ValueError(
                f"the policy was given {problem} It needs what '{spaces.name}' returns: "
                f"{spaces.observation}, or several with a leading axis."
            ) from None
        if not self._policies.observes_time:
            return inputs
        if step is None:
            raise ValueError(
                "this policy also observes the time of the episode. Give the steps since the "
                "reset: policy(observation, step=0), then step=1, and so on."
            )
        time = np.broadcast_to(share_of_time(np.asarray(step, np.float32), self.spec), leading)
        return np.concatenate([inputs, time[..., None].astype(np.float32)], axis=-1)


def call_key(number: Any) -> jax.Array:
    """The random key of a policy's call, counted from 1."""
    return jax.random.key(number)


def require_learner(settings: Settings, learner: int) -> None:
    """Raise `ValueError` where a run has no such learner."""
    number, learner = len(settings.seeds), configuration.integer(learner, "learner")
    if not 0 <= learner < number:
        raise ValueError(f"no learner {learner}: the run has {number}, 0 to {number - 1}.")


def leading_axes(shape: tuple[int, ...], single: tuple[int, ...]) -> tuple[int, ...] | None:
    """The axes before those of a `single` observation; None where `shape` does not end in them."""
    number = len(shape) - len(single)
    return shape[:number] if number >= 0 and shape[number:] == single else None


def whole_parts(
    spec: EnvSpec, optional: Collection[str], observation: Any
) -> dict[str, np.ndarray] | None:
    """The parts [O...] or [N, O...] of a dictionary, of the spec's types, with zeros for `optional`
    ones that are missing; None where it is not such a dictionary.
    """
    names = {part.name for part in spec.parts}
    if not isinstance(observation, dict) or not names - set(optional) <= set(observation) <= names:
        return None
    shown = [part for part in spec.parts if part.name in observation]
    arrays = {part.name: np.asarray(observation[part.name]) for part in shown}
    axes = {leading_axes(arrays[part.name].shape, part.shape) for part in shown}
    if len(axes) != 1:
        return None
    (leading,) = axes
    if leading is None or len(leading) > 1:
        return None
    missing = [part for part in spec.parts if part.name not in arrays]
    arrays |= {part.name: np.zeros((*leading, *part.shape)) for part in missing}
    return {part.name: arrays[part.name].astype(part.dtype) for part in spec.parts}
