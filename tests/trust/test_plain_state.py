"""Plain data keep types, sharing and cycles."""

from __future__ import annotations

import collections
from typing import Any

import gymnasium
import numpy as np
import pytest

from rljax.trust import plain_state


class Unknown: ...


def test_plain_data_keep_types_sharing_and_cycles() -> None:
    shared = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    value: dict[Any, Any] = {
        "numbers": (1, -0.0, float("inf"), 2**200, True, None, "text", b"bytes"),
        "arrays": [
            shared,
            shared,
            np.float32(0.1),
            np.zeros((0, 3), np.int8),
            np.array(3),
            np.dtype("<f4"),
        ],
        ("key", 1): {frozenset({1}), "set"},
        "deque": collections.deque([1, 2], 3),
        "generators": [np.random.default_rng(3), np.random.Generator(np.random.MT19937(4))],
        "space": gymnasium.spaces.Dict(
            {"a": gymnasium.spaces.Box(-1, 1, (2,)), "b": gymnasium.spaces.Discrete(3)}
        ),
    }
    value["generators"][0].bit_generator.seed_seq.spawn(2)
    value["generators"][0].random(3)
    value["itself"] = value
    encoder = plain_state.StateEncoder({}, {}, lambda value: False)
    copy = plain_state.load(plain_state.dump({"value": value}, encoder), 1 << 20, {}, {})("value")
    assert copy["itself"] is copy
    assert copy["arrays"][0] is copy["arrays"][1]
    assert copy["arrays"][0].flags.f_contiguous
    assert copy["arrays"][0].flags.writeable
    assert str(copy["numbers"]) == str(value["numbers"])
    for one, other in zip(copy["arrays"], value["arrays"], strict=True):
        assert type(one) is type(other)
        np.testing.assert_array_equal(one, other)
    for key in (("key", 1), "deque", "space"):
        assert copy[key] == value[key]
    assert copy["deque"].maxlen == 3
    for one, other in zip(copy["generators"], value["generators"], strict=True):
        assert one.random() == other.random()
        assert one.spawn(1)[0].random() == other.spawn(1)[0].random()


@pytest.mark.parametrize(
    "value", [Unknown(), print, collections.Counter(), [object()], np.array([object()])]
)
def test_other_objects_are_not_plain_data(value: Any) -> None:
    with pytest.raises(plain_state.NotPlainError):
        plain_state.StateEncoder({}, {}, lambda value: False).encode(value)
