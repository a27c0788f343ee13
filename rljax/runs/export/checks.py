"""Whether an exported policy acts as `rljax.load`'s does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from gymnasium import spaces as gym

from rljax.agent import MASK
from rljax.envs.host.space_descriptions import is_text
from rljax.runs.export.program import Program
from rljax.runs.export.translation import NamedArray, nested
from rljax.runs.policies.policy import Policies, Policy, call_key

TOLERANCE = 1e-5  # of an action, absolute and as a share of it
OBSERVATIONS = 16  # at once
STEPS = 3  # of policies that remember or observe the time

Run = Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]  # from all inputs to all outputs


class SampledCheck:
    """Sampled observations, and the loaded policy's actions.

    A policy that remembers or observes the time acts several times.
    """

    def __init__(self, policies: Policies, program: Program) -> None:
        self._program = program
        self._actions = [x for x in program.outputs if x.name.startswith("action")]
        names = {value.name for value in program.inputs}
        policy, generator = Policy(policies, program.learner), np.random.default_rng(0)
        self._steps: list[tuple[dict[str, np.ndarray], Any]] = []
        for step in range(STEPS if program.remembers or "step" in names else 1):
            observation, arrays = sampled(program, generator)
            options: dict[str, Any] = {"step": step}
            if "mask" in names:
                arrays["mask"] = options["mask"] = _mask(program, generator).astype(np.int8)
            if "step" in names:
                arrays["step"] = np.full(OBSERVATIONS, step)
            if program.remembers:
                arrays["first"] = np.full(OBSERVATIONS, step == 0)
            expected = policy(observation, **options)
            noise = program.drawn(call_key(step + 1), OBSERVATIONS) if program.noise else ()
            arrays |= {value.name: x for value, x in zip(program.noise, noise, strict=True)}
            self._steps.append((arrays, expected))

    def largest_difference(self, run: Run) -> float:
        """The largest difference of an exported policy's actions from the loaded one's.

        `run` maps inputs by name to outputs, in the program's order. Raises `ValueError` where it
        is beyond `TOLERANCE`, and where shapes or dtypes differ.
        """
        differences, actions = [0.0], self._actions
        memory = {
            value.name: np.zeros((OBSERVATIONS, *value.shape[1:]), value.dtype)
            for value in self._program.inputs
            if value.name.startswith("memory_")
        }
        for arrays, expected in self._steps:
            outputs = list(run(arrays | memory))
            for value, x in zip(actions, outputs, strict=False):
                whole = np.asarray(at(expected, value))
                _require_alike(value, whole, x)
                error = np.abs(x.astype(np.float64) - whole) / np.maximum(1.0, np.abs(whole))
                differences.append(float(error.max(initial=0.0)))
            memory = dict(zip(memory, outputs[len(actions) :], strict=True))
        if not max(differences) <= TOLERANCE:
            raise ValueError(
                f"the exported policy's actions differ from the run's by {max(differences):.2g}, "
                f"more than {TOLERANCE:g}. No file is written."
            )
        return max(differences)


def at(action: Any, value: NamedArray) -> Any:
    """The part of an action, or of an observation, that `value` names."""
    for key in value.path:
        action = action[key]
    return action


def sampled(program: Program, generator: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Observations of the environment's space, and the same by the names of inputs."""
    values = [value for value in program.inputs if value.name.startswith("observation")]
    if program.spaces is None:
        arrays = {value.name: _random(program, value, generator) for value in values}
        if not program.spec.parts:
            return arrays["observation"], arrays
        return {value.path[0]: arrays[value.name] for value in values}, arrays
    space = program.spaces.observation
    space.seed(int(generator.integers(2**31)))
    observation = _stacked(space, [space.sample() for _ in range(OBSERVATIONS)])
    if program.spec.masked and isinstance(observation, dict) and MASK in observation:
        shape = observation[MASK].shape
        allowed = _mask(program, generator).reshape(shape)
        observation[MASK] = allowed.astype(observation[MASK].dtype)
    return observation, {value.name: at(observation, value) for value in values}


def _stacked(space: Any, samples: Sequence[Any]) -> Any:
    if isinstance(space, gym.Dict):
        return {key: _stacked(part, [x[key] for x in samples]) for key, part in space.items()}
    if isinstance(space, gym.Tuple):
        each = enumerate(space.spaces)
        return tuple(_stacked(part, [x[i] for x in samples]) for i, part in each)
    return list(samples) if is_text(space) else np.stack(samples).astype(space.dtype)


def _random(program: Program, value: NamedArray, generator: Any) -> np.ndarray:
    shape = (OBSERVATIONS, *value.shape[1:])
    if value.dtype == "bool":
        return _mask(program, generator)
    if value.dtype == "uint8":
        return generator.integers(0, 256, shape, np.uint8)
    return generator.standard_normal(shape).astype(value.dtype)


def _mask(program: Program, generator: Any) -> np.ndarray:
    """Truth values [N, A] that allow something of each choice."""
    allowed = generator.random((OBSERVATIONS, program.spec.action_size)) < 0.5
    choices = program.spec.choices or (program.spec.action_size,)
    allowed[:, np.cumsum((0, *choices[:-1]))] = True
    return allowed


def _require_alike(value: NamedArray, expected: np.ndarray, x: np.ndarray) -> None:
    if x.shape != expected.shape or x.dtype != expected.dtype:
        raise ValueError(
            f"the exported policy's '{value.name}' is {x.dtype}{list(x.shape)}, the run's "
            f"{expected.dtype}{list(expected.shape)}. No file is written."
        )


def of_python(source: bytes, program: Program) -> Run:
    """The policy of a Python file."""
    file: dict[str, Any] = {}
    exec(compile(source, "policy.py", "exec"), file)
    values = [value for value in program.inputs if value.name.startswith("observation")]
    actions = [value for value in program.outputs if value.name.startswith("action")]

    def run(arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        given = nested({value.path: arrays[value.name] for value in values})
        options: dict[str, Any] = {x: arrays[x] for x in ("mask", "step") if x in arrays}
        if program.remembers:
            memory = [x for name, x in arrays.items() if name.startswith("memory_")]
            options |= {"memory": tuple(memory), "first": arrays["first"]}
        if program.noise:
            options["noise"] = tuple(arrays[value.name] for value in program.noise)
        returned = file["act"](given, **options)
        action, memory = returned if program.remembers else (returned, ())
        return [np.asarray(at(action, value)) for value in actions] + list(memory)

    return run


def of_onnx(model: bytes) -> Run:
    """The policy of an ONNX model, run by onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def run(arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [np.asarray(x) for x in session.run(None, dict(arrays))]

    return run


def of_stablehlo(serialised: bytes, program: Program) -> Run:
    """The policy of a serialised function."""
    exported = jax.export.deserialize(bytearray(serialised))
    dtypes = [x.dtype for x in exported.in_avals]

    def run(arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        given = [
            np.asarray(arrays[value.name], dtype)
            for value, dtype in zip(program.inputs, dtypes, strict=True)
        ]
        outputs = map(np.asarray, exported.call(*given))
        values = program.outputs
        return [x.astype(value.dtype) for x, value in zip(outputs, values, strict=True)]

    return run
