"""Our own files of any spaces, changed by a stranger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax import datasets
from tests.datasets.files import load, npz, without
from tests.runs.policies.test_collect_spaces import recorded

pytestmark = pytest.mark.filterwarnings("ignore:.*observes a Dict")


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The arrays of a file with pictures, vectors and several actions."""
    path = datasets.write(
        recorded("dictionary", "several"), tmp_path_factory.mktemp("files") / "a.npz"
    )
    with np.load(path) as file:
        return {key: file[key] for key in file.files}


def described(contents: dict[str, Any], **changes: Any) -> dict[str, Any]:
    metadata = json.loads(str(contents["metadata"])) | changes
    return contents | {"metadata": np.array(json.dumps(metadata))}


def test_the_layout(contents: dict[str, Any]) -> None:
    assert sorted(contents) == [
        *("actions", "frames/camera%2Fleft/observations", "frames/camera%2Fleft/pictures"),
        *(
            "frames/camera%2Fleft/successors",
            "metadata",
            "next_observations/vector",
            "observations/vector",
        ),
        *("rewards", "terminals", "timeouts"),
    ]
    metadata = json.loads(str(contents["metadata"]))
    assert (metadata["format"], metadata["choices"]) == ("rljax dataset 2", [3, 2])
    assert metadata["observation"][0] == {
        "name": "camera/left",
        "shape": [20, 20, 3],
        "dtype": "uint8",
        "once": True,
    }


PART = {"name": "vector", "shape": [3], "dtype": "float32", "once": False}
WRONG: list[tuple[Any, str]] = [
    (None, "'observation' is None, it must be a list"),
    ([], "must be a list of the arrays"),
    ([7], "'observation' is 7, it must be one entry"),
    ([PART | {"name": None}, PART], "must be one entry of a list"),
    ([PART, PART], "without a name that occurs twice"),
    ([PART | {"shape": [3, -1]}], "must be one entry"),
    ([PART | {"shape": [10**12]}], "must be one entry"),
    (
        [PART | {"shape": [4]}],
        r"'observations/vector' is float32\[90, 3\], its metadata promise float32 of 90x4",
    ),
    ([PART | {"dtype": "O"}], "must be one entry"),
    ([PART | {"dtype": "uint8"}], "its metadata promise uint8 of 90x3"),
    ([PART | {"once": True}], "must be one entry"),
    ([PART | {"name": "../../a"}], r"has no 'observations/%2E%2E%2F%2E%2E%2Fa'"),
    ([PART | {"name": "x" * 300}], "must be one entry"),
]


@pytest.mark.parametrize(("observation", "message"), WRONG)
def test_wrong_descriptions_are_refused(
    contents: dict[str, Any], tmp_path: Path, observation: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load(tmp_path, described(contents, observation=observation))


def changed(contents: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """With another number at the first place of an array."""
    array = np.array(contents[key])
    array.flat[0] = value
    return contents | {key: array}


INDEX = "frames/camera%2Fleft/successors"
DAMAGE: list[tuple[Any, str]] = [
    (lambda x: changed(x, INDEX, -1), r"successors' are from .*, rows of the \d+ pictures that"),
    (lambda x: changed(x, INDEX, 10**6), r"from .*, rows of the \d+ pictures that the file holds"),
    (
        lambda x: changed(x, "observations/vector", np.nan),
        r"'observations\['vector'\]' is nan in row 0, dimension 0",
    ),
    (
        lambda x: changed(x, "actions", 9),
        r"'choices' is \[3, 2\], it must be more than all of 'actions'.* 0 to 9 at 0",
    ),
    (
        lambda x: without(x, "frames/camera%2Fleft/pictures"),
        "has no 'frames/camera%2Fleft/pictures'; it has: ",
    ),
    (lambda x: described(x, stack=2), "'stack' is 2, it must be a divisor of the 3 channels"),
    (lambda x: described(x, stack=-1), "'stack' is -1, it must be the number of frames"),
    (lambda x: described(x, choices=[3]), r"'choices' is \[3\], it must be 2 whole numbers"),
    (
        lambda x: described(x, choices=[99_999, 2]),
        r"'choices' is \[99999, 2\], it must be numbers with a sum of at most 100,000",
    ),
    (lambda x: x | {"terminals": np.full(90, 7)}, "'terminals' is 7 in row 0|'timeouts'"),
]


@pytest.mark.parametrize("suffix", [".npz", ".hdf5"])
def test_wrong_numbers_are_refused(contents: dict[str, Any], tmp_path: Path, suffix: str) -> None:
    def read(values: dict[str, Any]) -> Any:
        if suffix != ".npz":
            metadata = str(values["metadata"])
            values = without(values, "metadata") | {"metadata/rljax": metadata}
        return load(tmp_path, values, f"a{suffix}")

    assert read(contents).num == 90
    for damage, message in DAMAGE:
        with pytest.raises(ValueError, match=message):
            read(damage(contents))


def test_pictures_of_others_are_read(tmp_path: Path) -> None:
    generator, ends = np.random.default_rng(0), np.arange(12) % 6 == 5
    pictures = generator.integers(0, 256, (12, 3, 20, 24), np.uint8)  # channels first
    values = {"obs": pictures, "act": np.arange(12) % 3, "rew": np.zeros(12), "terminals": ends}
    dataset = load(tmp_path, values)
    last = np.moveaxis(pictures, 1, -1)
    assert dataset.spec.observation_shape == (20, 24, 3)
    np.testing.assert_array_equal(np.asarray(dataset.transitions.observation), last)
    np.testing.assert_array_equal(np.asarray(dataset.transitions.next_observation)[:5], last[1:6])
    again = datasets.load(str(datasets.write(dataset, tmp_path / "b.hdf5")))
    np.testing.assert_array_equal(np.asarray(again.transitions.observation), last)
    flat = npz(tmp_path / "c.npz", values | {"obs": pictures[:, 0]})
    with pytest.raises(ValueError, match=r"'obs' holds images \(20, 24\) of uint8"):
        datasets.load(str(flat))
