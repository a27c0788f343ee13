"""The summary of a dataset and its figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rljax import datasets
from tests.datasets.files import arrays, load, shared


def test_description_is_json_and_right(tmp_path: Path) -> None:
    dataset = load(tmp_path, arrays([4, 6, 3], "ton"))
    described = json.loads(json.dumps(datasets.describe(dataset)))
    expected = {"transitions": 13, "episodes": 2, "bytes": 13 * (3 * 8 + 8 + 4 + 2)}
    expected |= {"terminated": 1, "truncated": 2}
    expected |= {"length": {"mean": 5, "std": 1, "min": 4, "median": 5, "max": 6}}
    assert described.items() >= expected.items()
    assert described["return"]["mean"] == pytest.approx(dataset.returns().mean())
    assert "score" not in described
    assert described["provenance"]["files"][0]["file"] == "a.npz"


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_picture(tmp_path: Path, suffix: str) -> None:
    dataset = load(tmp_path, arrays([4, 6, 3], "tot"))
    path = datasets.draw(dataset, tmp_path / "below" / f"a{suffix}")
    assert path.stat().st_size > 1000
    if suffix == ".svg":
        text = path.read_text()
        for words in (
            "Return of an episode",
            "Length of an episode",
            "a.npz: 13 transitions, 3 complete episodes",
        ):
            assert words in text
        assert text == datasets.draw(dataset, tmp_path / "again.svg").read_text(), (
            "the same data, the same file"
        )


def test_picture_with_scores(tmp_path: Path) -> None:
    source = shared("offline", "neorl2_RocketRecovery-high-20000-val.npz")
    (tmp_path / "RocketRecovery-val.npz").write_bytes(source.read_bytes())
    dataset = datasets.load("neorl2/RocketRecovery-val", tmp_path, download=False)
    assert "Normalised score" in datasets.draw(dataset, tmp_path / "a.svg").read_text()
    assert datasets.describe(dataset)["score"]["max"] < 130


def test_picture_of_one_episode_and_of_none(tmp_path: Path) -> None:
    one, none = (load(tmp_path, arrays([4], end)) for end in "tn")
    datasets.draw(one, tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"has no complete episode: there is nothing to draw"):
        datasets.draw(none, tmp_path / "b.png")
    with pytest.raises(ValueError, match=r"its suffix must be one of .png, .svg, .pdf"):
        datasets.draw(one, tmp_path / "a.jpg")
