"""Spaces as agents see them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from rljax.agent import EnvSpec, Part, difference
from rljax.envs.host.spaces import Spaces, described_data

ACTION = spaces.Box(-1, 1, (2,), np.float32)
VECTOR = spaces.Box(-1, 1, (3,), np.float32)
NESTED = spaces.Dict(
    {
        "z": spaces.Box(-2, 2, (2, 2), np.float64),
        "discrete": spaces.Discrete(3, start=1),
        "both": spaces.Tuple(
            [spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3]), spaces.Box(0, 1, (), np.float32)]
        ),
    }
)
OBSERVATIONS = [
    VECTOR,
    spaces.Box(-1, 1, (), np.float32),
    spaces.Box(0, 255, (5,), np.uint8),
    spaces.Box(-9, 9, (2, 1), np.int64),
    spaces.Box(0, 1, (4,), np.bool_),
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.MultiBinary(3),
    spaces.Tuple([spaces.Discrete(2), VECTOR]),
    NESTED,
]


def made(observation: Any = VECTOR, action: Any = ACTION) -> Spaces:
    return Spaces(observation, action, "Odd-v0")


@pytest.mark.parametrize("space", OBSERVATIONS, ids=str)
def test_observations_are_flattened_as_gymnasium_does(space: spaces.Space) -> None:
    space.seed(0)
    ours, rows = made(space), [space.sample() for _ in range(6)]
    expected = np.stack([spaces.flatten(space, row) for row in rows]).astype(np.float32)
    assert ours.observation_shape == expected.shape[1:]
    batch = concatenate(space, rows, create_empty_array(space, len(rows)))
    assert (ours.leading(batch), ours.leading(rows[0])) == ((6,), ())
    np.testing.assert_array_equal(ours.observe(batch, (6,)), expected)
    np.testing.assert_array_equal(ours.observe(rows[0], ()), expected[0])
    assert ours.observe(batch, (6,)).dtype == np.float32


@pytest.mark.parametrize(
    "space", [*OBSERVATIONS, spaces.Box(-np.inf, np.array([1, np.inf]), (2,), np.float64)], ids=str
)
def test_spaces_are_kept_as_json(space: spaces.Space) -> None:
    action = spaces.Box(np.array([-3, 0.1], np.float32), np.array([1, 2], np.float32))
    read = Spaces.read(
        json.loads(json.dumps(made(space, action).described(), allow_nan=False)), "Odd-v0"
    )
    assert read.observation == space
    assert read.action == action
    assert Spaces.read(
        made(VECTOR, spaces.Discrete(3, start=-1)).described(), ""
    ).action == spaces.Discrete(3, start=-1)


@pytest.mark.parametrize(
    ("shape", "dtype", "seen", "note"),
    [
        ((3, 84, 60), np.uint8, (84, 60, 3), "channels first"),
        ((4, 10, 10), np.uint8, (10, 10, 4), "channels first"),
        ((3, 84, 84), np.float32, (84, 84, 3), "channels first"),
        ((84, 84, 4), np.uint8, (84, 84, 4), None),
        ((8, 6, 3), np.uint8, (8, 6, 3), None),
        ((8, 8, 8), np.uint8, (8, 8, 8), "do not show where the channels are"),
        ((6, 10, 10), np.uint8, (6, 10, 10), "read as height 6, width 10, 10 channels"),
        ((2, 5, 5), np.float32, (50,), "flattened to 50 numbers"),
    ],
)
def test_pictures_have_their_channels_last(
    shape: Any, dtype: Any, seen: Any, note: str | None
) -> None:
    space = spaces.Box(0, 255, shape, dtype)
    ours = made(space)
    assert ours.observation_shape == seen
    assert ours.observation_dtype == (
        "uint8" if dtype == np.uint8 and len(seen) == 3 else "float32"
    )
    assert (ours.note is None) if note is None else (note in str(ours.note))
    picture = space.sample()
    expected = np.moveaxis(picture, 0, -1) if note == "channels first" else picture.reshape(seen)
    np.testing.assert_array_equal(ours.observe(picture, ()), expected.astype(np.float32))
    np.testing.assert_array_equal(ours.observe(picture[None], (1,))[0], expected.astype(np.float32))


@pytest.mark.parametrize(
    ("space", "given", "own"),
    [
        (
            spaces.Box(np.array([-3, 0.5], np.float32), np.array([1, 2], np.float32)),
            [-1.0, 1.0],
            [-3.0, 2.0],
        ),
        (
            spaces.Box(np.array([1, -1], np.float32), np.array([1, 1], np.float32)),
            [-1.0, 0.5],
            [1.0, 0.5],
        ),
        (spaces.Box(-2, 0, (2, 1), np.float64), [0.0, 5.0], [[-1.0], [0.0]]),
        (spaces.Box(-2, 1, (), np.float32), [1.0], 1.0),
        (spaces.Discrete(3, start=-1), 0, -1),
    ],
)
def test_actions_are_the_environments_own(space: spaces.Space, given: Any, own: Any) -> None:
    given = np.asarray(given, np.int32 if isinstance(space, spaces.Discrete) else np.float32)
    single, several = made(VECTOR, space).act(given), made(VECTOR, space).act(np.stack([given] * 4))
    np.testing.assert_array_equal(single, own)
    np.testing.assert_array_equal(several, np.stack([np.asarray(own)] * 4))
    assert space.contains(np.asarray(single))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(np.array([-3, 0.5], np.float32), np.array([1, 2], np.float32)),
        spaces.Box(-2, 0, (2, 1), np.float64),
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([2, 3], start=[0, 5]),
        spaces.MultiBinary(4),
    ],
)
def test_the_environments_actions_are_read_as_agents_have_them(space: spaces.Space) -> None:
    actions = made(VECTOR, space).actions
    own = np.stack([space.sample() for _ in range(50)])
    read = actions.read(own.tolist(), 50)
    assert read.dtype == (np.int32 if actions.discrete else np.float32)
    np.testing.assert_allclose(actions.act(read), own, rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match=r"^an array .* for 49 observations, it must return \[49"):
        actions.read(own, 49)
    with pytest.raises(ValueError, match=r"^no array, it must return an array of numbers \[1"):
        actions.read([[own[0].tolist()], []], 1)


def test_actions_beyond_their_bounds_are_read_as_those() -> None:
    low, high = np.array([1, -1], np.float32), np.array([1, 3], np.float32)
    read = made(VECTOR, spaces.Box(low, high)).actions.read([[7.0, 9.0], [1.0, -2.0]], 2)
    np.testing.assert_array_equal(read, [[1.0, 1.0], [0.0, -1.0]])


@pytest.mark.parametrize(
    ("observation", "action", "error", "message"),
    [
        (
            spaces.Box(-1, 1, (0,)),
            ACTION,
            ValueError,
            "'Odd-v0' observes Box.* holds no number: agents need at least one",
        ),
        (
            spaces.Dict(a=spaces.Dict()),
            ACTION,
            ValueError,
            "'Odd-v0' observes Dict.* holds no number",
        ),
        (
            spaces.Discrete(10**6),
            ACTION,
            TypeError,
            "'Odd-v0' observes Discrete.* more than 100,000",
        ),
        (
            spaces.Box(0, 255, (4, 16, 16, 3), np.uint8),
            ACTION,
            TypeError,
            r"'Odd-v0' observes Box.*: pictures in \(4, 16, 16, 3\).* side by side in their chann",
        ),
        (spaces.Sequence(VECTOR), ACTION, TypeError, "observes Seq.* a vector of fixed size"),
        (VECTOR, spaces.Box(-1, 1, (0,)), ValueError, "'Odd-v0' acts in Box.* nothing to choose"),
        (
            VECTOR,
            spaces.Discrete(1),
            ValueError,
            r"'Odd-v0' acts in Discrete\(1\): there is nothing to choose",
        ),
        (
            VECTOR,
            spaces.Box(-3e38, 3e38, (2,)),
            ValueError,
            "'Odd-v0' acts within .*agents need finite bounds.*RescaleAction",
        ),
        (VECTOR, spaces.Text(3), TypeError, "'Odd-v0' acts in Text"),
        (VECTOR, spaces.Box(0, 3, (2,), np.int32), TypeError, "'Odd-v0' acts in Box.*int32"),
        (VECTOR, spaces.Dict(a=ACTION, b=spaces.Text(2)), TypeError, "'Odd-v0' acts in Dict"),
        (VECTOR, spaces.MultiDiscrete([1, 1]), ValueError, "nothing to choose"),
        (
            VECTOR,
            spaces.MultiDiscrete([60_000, 60_000]),
            TypeError,
            "120,000 choices: agents take up to 100,000",
        ),
    ],
)
def test_what_is_refused(observation: Any, action: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        made(observation, action)


@pytest.mark.parametrize(("low", "high"), [(np.nan, 1.0), (2.0, 1.0)])
def test_bounds_that_were_spoilt(low: float, high: float) -> None:
    action = spaces.Box(-1, 1, (2,), np.float32)
    action.low[1], action.high[1] = low, high
    with pytest.raises(ValueError, match=r"'Odd-v0' acts within \[.*\] in dimension 1"):
        made(VECTOR, action)


@pytest.mark.parametrize(
    ("space", "given", "message"),
    [
        (
            VECTOR,
            np.zeros(4),
            r"an observation of shape \(4,\), its observation_space promises \(3,\)",
        ),
        (VECTOR, None, "no real numbers .None."),
        (VECTOR, np.zeros(3, complex), "no real numbers .dtype complex128."),
        (VECTOR, [[1.0], [1.0, 2.0], [3.0]], "no real numbers"),
        (
            spaces.Box(0, 255, (2,), np.uint8),
            np.array([0.5, 1.0]),
            "the value 0.5 of dtype float64, .* promises Box",
        ),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([300, 1]), "the value 300 of dtype int64"),
        (
            spaces.Discrete(3, start=1),
            0,
            r"the choice 0, its observation_space promises Discrete\(3, start=1\)",
        ),
        (
            NESTED,
            {"z": np.zeros((2, 2))},
            r"with the keys \['z'\], its observation_space promises Dict",
        ),
        (NESTED, np.zeros(4), "with a ndarray, its observation_space promises Dict"),
        (spaces.Tuple([VECTOR]), (np.zeros(3), 1), "with 2 parts"),
        (spaces.Dict(a=VECTOR), {"a": np.zeros(2)}, r"observation\['a'\] of shape \(2,\)"),
    ],
)
def test_observations_that_do_not_belong_to_their_space(
    space: Any, given: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        made(space).observe(given, ())


def test_whole_numbers_may_have_another_dtype() -> None:
    np.testing.assert_array_equal(
        made(spaces.Box(0, 255, (2,), np.uint8)).observe(np.array([7.0, 1.0]), ()), [7, 1]
    )


def test_an_empty_part_adds_nothing() -> None:
    ours = made(spaces.Dict(a=VECTOR, nothing=spaces.Dict(), none=spaces.Tuple([])))
    assert ours.observation_shape == (3,)
    given = {"a": np.ones((4, 3)), "nothing": {}, "none": ()}
    assert ours.leading(given) == (4,)
    np.testing.assert_array_equal(ours.observe(given, (4,)), np.ones((4, 3)))


PICTURE = spaces.Box(0, 255, (4, 20, 20), np.uint8)
BITS = spaces.MultiBinary(3)


def test_dictionaries_with_pictures_stay_dictionaries() -> None:
    space = spaces.Dict(
        eye=PICTURE,
        inner=spaces.Dict(depth=spaces.Box(0, 1, (20, 30, 1))),
        joints=VECTOR,
        goal=spaces.Discrete(4),
    )
    ours = made(space)
    assert {part.name: (part.shape, part.dtype) for part in ours.parts} == {
        "eye": ((20, 20, 4), "uint8"),
        "inner/depth": ((20, 30, 1), "float32"),
        "vector": ((7,), "float32"),
    }
    given = space.sample()
    seen = ours.observe(given, ())
    np.testing.assert_array_equal(seen["eye"], np.moveaxis(given["eye"], 0, -1))
    np.testing.assert_array_equal(seen["inner/depth"], given["inner"]["depth"])
    np.testing.assert_array_equal(
        seen["vector"], np.concatenate([given["joints"], np.eye(4)[given["goal"]]])
    )
    assert {name: x.dtype for name, x in seen.items()} == {
        part.name: np.dtype(part.dtype) for part in ours.parts
    }
    again = Spaces.read(json.loads(json.dumps(ours.described())), "Odd-v0")
    assert again.parts == ours.parts
    with pytest.raises(ValueError, match="promises 'eye'"):
        ours.observe({"joints": given["joints"]}, ())


def test_masks_are_parts_of_the_observation() -> None:
    inside = made(spaces.Dict(action_mask=BITS, seen=VECTOR), spaces.Discrete(3))
    assert [(part.name, part.shape, part.dtype) for part in inside.parts] == [
        ("action_mask", (3,), "bool"),
        ("vector", (3,), "float32"),
    ]
    mask = np.array([1, 0, 1], np.int8)
    seen = inside.observe({"action_mask": mask, "seen": np.ones(3, np.float32)}, ())
    np.testing.assert_array_equal(seen["action_mask"], [True, False, True])
    of_info = Spaces(VECTOR, spaces.Discrete(3), "Odd-v0", masked=True)
    assert [part.name for part in of_info.parts] == ["action_mask", "observation"]
    np.testing.assert_array_equal(
        of_info.observe(np.ones(3, np.float32), (), mask)["action_mask"], mask == 1
    )
    with pytest.raises(ValueError, match=r"of shape .* truth value for each of the 3 actions"):
        of_info.observe(np.ones(3, np.float32), (), mask[:2])
    with pytest.raises(ValueError, match="allows nothing: it must allow an action"):
        of_info.observe(np.ones(3, np.float32), (), np.zeros(3))


def test_text_is_left_out() -> None:
    ours = made(spaces.Dict(a=VECTOR, b=spaces.Text(5)))
    assert ours.observation_shape == (3,)
    np.testing.assert_array_equal(ours.observe({"a": np.ones(3, np.float32), "b": "go"}, ()), 1)
    assert "['b']" in str(made(spaces.Dict(a=VECTOR, b=spaces.Text(5), c=PICTURE)).note)


@pytest.mark.parametrize(
    ("space", "choices"),
    [
        (spaces.MultiDiscrete([2, 3], start=[1, -1]), (2, 3)),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), (2, 3, 4, 5)),
        (spaces.MultiBinary(3), (2, 2, 2)),
        (spaces.Tuple([spaces.Discrete(3, start=5), spaces.MultiBinary(2)]), (3, 2, 2)),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple([spaces.Discrete(3)])), (2, 3)),
    ],
)
def test_several_discrete_actions(space: spaces.Space, choices: tuple[int, ...]) -> None:
    ours = made(VECTOR, space)
    assert (ours.discrete, ours.choices, ours.action_size) == (True, choices, sum(choices))
    generator = np.random.default_rng(0)
    for _ in range(20):
        assert space.contains(ours.act(generator.integers(0, choices).astype(np.int32)))
    spec = ours.spec()
    assert (spec.action_shape, spec.action_dtype) == ((len(choices),), np.int32)


def test_tuples_of_boxes_are_one_vector() -> None:
    space = spaces.Tuple([spaces.Box(0, 2, (2,)), spaces.Dict(a=spaces.Box(-4, 0, ()))])
    ours = made(VECTOR, space)
    assert (ours.discrete, ours.action_size) == (False, 3)
    np.testing.assert_array_equal(ours.bounds, [[0, 0, -4], [2, 2, 0]])
    own = ours.act(np.array([-1.0, 1.0, 0.0], np.float32))
    np.testing.assert_array_equal(own[0], [0, 2])
    np.testing.assert_array_equal(own[1]["a"], -2)
    assert space.contains(own)


def test_numbers_come_before_choices_and_go_to_their_places() -> None:
    inner = spaces.Dict(a=spaces.Box(-4, 0, (2, 1)), b=spaces.MultiBinary(2))
    space = spaces.Tuple([spaces.Discrete(3, start=5), spaces.Box(0, 2, (1,)), inner])
    ours = made(VECTOR, space)
    spec = ours.spec()
    assert (ours.discrete, ours.action_size, ours.choices, ours.bounds) == (
        False,
        3 + 3 + 4,
        (3, 2, 2),
        None,
    )
    assert (spec.numbers, spec.action_shape, spec.action_dtype) == (3, (6,), np.float32)
    own = ours.act(np.array([-1.0, 1.0, 0.5, 2, 0, 1], np.float32))
    assert own[0] == 7
    np.testing.assert_array_equal(own[1], [0])
    np.testing.assert_array_equal(own[2]["a"], [[0], [-1]])
    np.testing.assert_array_equal(own[2]["b"], [0, 1])
    assert space.contains(own)
    several = ours.act(np.zeros((2, 6), np.float32))
    np.testing.assert_array_equal(several[0], [5, 5])
    assert several[2]["a"].shape == (2, 2, 1)


@pytest.mark.parametrize(
    ("observed", "known"),
    [
        ({"observation_shape": (3,)}, True),
        ({"observation_shape": (20, 20, 3), "observation_dtype": "uint8"}, True),
        (
            {
                "observation_shape": (),
                "parts": (Part("camera", (20, 20, 3), "uint8"), Part("vector", (4,))),
            },
            True,
        ),
        ({"observation_shape": (), "parts": (Part("goal", (2,)), Part("state", (4,)))}, False),
    ],
)
def test_a_data_set_without_an_environment_is_described(
    observed: dict[str, Any], known: bool
) -> None:
    spec = EnvSpec("made", action_size=2, **observed)
    found = described_data(spec, (np.array([-2.0, 0.0]), np.array([2.0, 1.0])))
    assert (found is not None) == known
    if found is not None:
        again = Spaces.read(found, "made")
        assert difference(again.spec(), spec) is None
        np.testing.assert_allclose(again.act(np.array([1.0, 0.0], np.float32)), [2.0, 0.5])


@pytest.mark.parametrize(
    "part",
    [BITS, spaces.Tuple([BITS]), spaces.MultiDiscrete([2] * 4), PICTURE],
    ids=["three bits", "tuple", "choices", "picture"],
)
def test_a_part_with_the_name_of_a_mask_is_one_or_refused(part: spaces.Space) -> None:
    space = spaces.Dict(action_mask=part, seen=VECTOR)
    with pytest.raises(ValueError, match=r"\['action_mask'\].*: this is the name of a mask"):
        Spaces(space, spaces.Discrete(4), "Odd-v0")


def test_a_note_names_parts_that_may_be_masks() -> None:
    space = spaces.Dict(a=spaces.Dict(legal_moves=spaces.MultiBinary(4)), seen=VECTOR)
    note = Spaces(space, spaces.Discrete(4), "Odd-v0").note
    assert "['a']['legal_moves'] is not read as a mask" in str(note)
    assert "not read" not in str(Spaces(space, spaces.Discrete(3), "Odd-v0").note)


@pytest.mark.parametrize("mask", [[0, -np.inf, 0], [0.0, np.nan, 1], [0, 1, 2]])
def test_masks_hold_truth_values(mask: Any) -> None:
    masked = Spaces(VECTOR, spaces.Discrete(3), "Odd-v0", masked=True)
    with pytest.raises(ValueError, match=r"with the value .*: it must be 1 where an action is"):
        masked.observe(np.ones(3, np.float32), (), np.array(mask))
