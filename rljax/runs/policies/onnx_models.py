"""Policies in files of ONNX, such as those of `rljax export`, run by onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rljax.agent import EnvSpec
from rljax.system.packages import install_command

DTYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}
ACTIONS = ("action", "actions")  # names of outputs


def function(content: bytes, spec: EnvSpec, flag: str) -> Callable[[Any], np.ndarray]:
    """The model as a function from observations [N, O...] to actions.

    `flag` begins messages. Raises `ValueError` for a file that is no model, inputs and outputs that
    do not fit the spec, and without onnxruntime.
    """
    session = _session(content, flag)
    inputs = _inputs(session.get_inputs(), spec, flag)
    names = [value.name for value in session.get_outputs()]
    output = [name for name in names if name in ACTIONS] or names
    if len(output) != 1:
        raise ValueError(
            f"{flag} has the outputs {', '.join(names)}: name the one with actions '{ACTIONS[0]}'."
        )

    def act(observation: Any) -> np.ndarray:
        parts = observation if isinstance(observation, dict) else {"": observation}
        arrays = {
            value.name: parts[part].astype(DTYPES[value.type]) for part, value in inputs.items()
        }
        return session.run(output, arrays)[0]

    return act


def _session(content: bytes, flag: str) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ValueError(
            f"{flag} needs a package that is not installed ({error.name}): "
            f"{install_command('export')}"
        ) from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1  # policies are small, and JAX has the cores
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ValueError(f"{flag} is not a model that onnxruntime reads: {error}") from None


def _inputs(values: Sequence[Any], spec: EnvSpec, flag: str) -> Mapping[str, Any]:
    """The inputs by the part of the observation, "" for one that is no dictionary.

    Raises `ValueError` where they are others than the spec's.
    """
    parts = {part.name: (part.shape, part.dtype) for part in spec.parts}
    if not parts:
        parts = {"": (spec.observation_shape, spec.observation_dtype)}
    of_part: dict[str, Any] = {"": values[0]} if values else {}
    if spec.parts:
        of_part = {value.name.removeprefix("observation/"): value for value in values}
    if set(of_part) != set(parts) or len(of_part) != len(values):
        here = ", ".join(f"'{value.name}'" for value in values)
        there = ", ".join(f"'observation/{name}'" for name in parts) if spec.parts else "one array"
        raise ValueError(
            f"{flag} asks for {here}, and a base is given the observation alone, which is {there}: "
            "a policy that draws, remembers, or asks for masks or the time cannot be one."
        )
    for part, value in of_part.items():
        shape = list(parts[part][0])
        if list(value.shape[1:]) != shape:
            raise ValueError(
                f"{flag} takes {list(value.shape)} as '{value.name}', and '{spec.name}' shows "
                f"{shape}: name a policy for observations of this shape."
            )
        if isinstance(value.shape[0], int):
            raise ValueError(
                f"{flag} takes {value.shape[0]} observations at once: export it for any number, "
                "with a first axis that is dynamic."
            )
        if value.type not in DTYPES:
            raise ValueError(f"{flag} takes a {value.type} as '{value.name}', not an array.")
    return of_part
