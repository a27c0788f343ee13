"""Policies on the host as bases: functions of NumPy in a user's file, and ONNX models.

They see observations as agents do before normalising, and return the environment's own actions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from rljax.agent import Array, Base, EnvSpec
from rljax.distributed import processes
from rljax.learning import population
from rljax.learning.drivers.callbacks import purely_called
from rljax.networks.inputs import Raw
from rljax.runs.policies import onnx_models
from rljax.system import user_files

if TYPE_CHECKING:
    from rljax.envs.host.actions import Actions

EXAMPLES = 2  # observations with which a policy is tried before anything compiles
FROM_JAX = (jax.errors.JaxRuntimeError, ValueError)  # by how a program was called
NOT_FINITE = "actions must be finite."
ADVICE = "What a base on the host is given, and returns: docs/runs.md"


class PolicyFailed(ValueError):
    """A policy on the host raised an error, or returned what is no action."""


@dataclasses.dataclass(frozen=True)
class HostPolicy:
    """A policy on the host, in place of an agent in a `Base`. Equal ones share programs."""

    name: str  # as in --base
    digest: str  # of its file
    spec: EnvSpec
    space: str  # the environment's actions, in JSON
    actions: Actions = dataclasses.field(compare=False)
    function: Callable[[Any], Any] = dataclasses.field(compare=False)
    lock: Any = dataclasses.field(compare=False, default_factory=threading.Lock)

    def act(
        self, state: Any, observation: Any, key: Array, config: Any, explore: bool
    ) -> tuple[Array, dict[str, Any]]:
        """Actions for observations [..., O...]; the other arguments change nothing."""
        shape = (*self.spec.leading(observation), *self.spec.action_shape)
        result = jax.ShapeDtypeStruct(shape, self.spec.action_dtype)
        leaves = jax.tree.leaves(jax.lax.stop_gradient(observation))
        return purely_called(self.on_host, result)(*leaves), {}

    def on_host(self, *leaves: np.ndarray) -> np.ndarray:
        """Agents' actions [..., A] for the arrays [..., O...] of observations.

        The policy does not see observations that are not finite. Raises `PolicyFailed`.
        """
        shapes, structure = jax.tree.flatten(self.spec.observation)
        leading = leaves[0].shape[: leaves[0].ndim - len(shapes[0].shape)]
        # Copies: the arrays may be the program's own memory.
        rows = [np.array(x).reshape(-1, *y.shape) for x, y in zip(leaves, shapes, strict=True)]
        number, spoilt = len(rows[0]), _spoilt(rows)
        for array in rows if spoilt.any() else ():
            array[spoilt] = 0
        try:
            with self.lock:  # a program on several devices of a CPU calls from several threads
                returned = self.function(structure.unflatten(rows))
        except (Exception, SystemExit) as error:
            why = user_files.cause(error, _path_of(self.name))
            raise PolicyFailed(f"--base {self.name} failed: {_one_line(why)}") from error
        try:
            action = self.actions.read(returned, number)
        except ValueError as error:
            raise PolicyFailed(f"--base {self.name} returned {_one_line(str(error))}") from None
        if not self.spec.discrete:
            action[spoilt] = np.nan  # which ends that learner, not the others
        return action.reshape(*leading, *self.spec.action_shape)


def is_on_host(name: str) -> bool:
    """Whether the name of a base is FILE:FUNCTION or a model's, not that of a run."""
    return user_files.file_of_function(name) is not None or name.endswith((".onnx", ".py"))


def base(
    name: str,
    number: int,
    digests: Sequence[str] | None,
    spec: EnvSpec,
    spaces: Mapping[str, Any] | None,
) -> Base:
    """The policy `name` for `number` learners, in an environment with this spec and these spaces of
    config.json.

    With `digests`, the file must be the one that has them. Raises `ValueError` where it has
    changed, and for a file without a policy for these spaces.
    """
    path = _path_of(name)
    if not path.is_file():
        raise ValueError(
            f"--base {name}: there is no file '{path}'. A run reads its base whenever it goes on "
            "or acts: where that file is gone, restore it."
        )
    if processes.is_distributed():
        raise ValueError(
            f"--base {name} acts on the host, which several processes cannot share: train on one "
            "machine, or name a run."
        )
    sha256 = hashlib.sha256(content := path.read_bytes())
    state = np.tile(np.frombuffer(sha256.digest(), np.uint8), (number, 1))
    if digests is not None and set(digests) != {population.digest(state[:1])}:
        raise ValueError(
            f"the policy in '{path}' is not the one that this run began with: the file has "
            "changed. Restore it, or start a new run."
        )
    space, actions = _actions(spec, spaces, name)
    if path.suffix == ".onnx":
        function = onnx_models.function(content, spec, f"--base {name}")
    else:
        function = _function(path, name)
    policy = HostPolicy(name, sha256.hexdigest(), spec, space, actions, function)
    _try(policy)
    return Base(state=state, config=None, agent=policy, spec=spec, inputs=Raw(), statistics=None)


def host_policy(base: Base | None) -> HostPolicy | None:
    """The policy on the host by which a base acts, if any; that of its own base too."""
    if base is None or isinstance(base.agent, HostPolicy):
        return None if base is None else base.agent
    return host_policy(base.base)


def failure_in(error: BaseException) -> str | None:
    """What was wrong with a policy on the host that a program called, by JAX's error; else None."""
    if not isinstance(error, FROM_JAX):
        return None
    _, is_there, text = str(error).rpartition(f"{PolicyFailed.__name__}: ")
    return text.partition("\n")[0] if is_there else None


@contextlib.contextmanager
def plain_failures() -> Iterator[None]:
    """Raise `PolicyFailed` in place of JAX's error of a program that called a policy."""
    try:
        yield
    except FROM_JAX as error:
        if (text := failure_in(error)) is None:
            raise
        raise PolicyFailed(text) from None


def _path_of(name: str) -> Path:
    return Path(user_files.file_of_function(name) or name)


def _function(path: Path, name: str) -> Callable[[Any], Any]:
    """The function of a user's file. Raises `ValueError` without one."""
    if user_files.file_of_function(name) is None:
        raise ValueError(f"--base {name} is a file: name its function, as in {path}:policy")
    try:
        module = user_files.imported(path)
    except (Exception, SystemExit) as error:
        why = user_files.cause(error, path)
        raise ValueError(f"--base {name}: '{path}' cannot be imported: {why}") from error
    attribute = name.rpartition(":")[2]
    function = getattr(module, attribute, None)
    if not callable(function) or isinstance(function, type):
        raise ValueError(f"--base {name}: '{path}' has no function '{attribute}'. {ADVICE}")
    return function


def _actions(spec: EnvSpec, spaces: Mapping[str, Any] | None, name: str) -> tuple[str, Actions]:
    """The environment's action space in JSON, and its translation; inside the program it is the
    agents' own.
    """
    from gymnasium import spaces as gym

    from rljax.envs.host.actions import Actions
    from rljax.envs.host.space_descriptions import described, read

    if spaces is not None:
        space: gym.Space = read(spaces["action"])
    elif not spec.discrete:
        space = gym.Box(-1.0, 1.0, spec.action_shape, np.float32)
    elif spec.choices:
        space = gym.MultiDiscrete(list(spec.choices))
    else:
        space = gym.Discrete(spec.action_size)
    if (spec.choices and not spec.discrete) or isinstance(space, gym.Dict | gym.Tuple):
        raise ValueError(
            f"--base {name}: '{spec.name}' acts in {space}, and a base on the host returns one "
            "array: name a run."
        )
    return json.dumps(described(space)), Actions(space, spec.name)


def _try(policy: HostPolicy) -> None:
    """Raise `ValueError` where a policy fails, or returns another shape, for observations of zeros.

    Values need not be finite: zeros may be far from any observation.
    """
    zeros = [
        (np.ones if x.dtype == np.bool_ else np.zeros)((EXAMPLES, *x.shape), x.dtype)
        for x in jax.tree.leaves(policy.spec.observation)
    ]
    try:
        policy.on_host(*zeros)
    except PolicyFailed as error:
        if not str(error).endswith(NOT_FINITE):
            raise ValueError(f"{error} {ADVICE}") from error.__cause__


def _spoilt(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Which of N observations are not finite, [N] bool."""
    finite = [np.isfinite(x).reshape(len(x), -1).all(axis=1) for x in rows]
    return ~np.logical_and.reduce(finite)


def _one_line(text: str) -> str:
    return " ".join(text.split())
