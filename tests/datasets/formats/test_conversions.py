"""What is said of a format that is not read converts it."""

from __future__ import annotations

import pickle
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest

from rljax import datasets
from tests.datasets.files import arrays, findings, npz, same


def refused(path: Path) -> str:
    with pytest.raises(ValueError, match=rf"^'{path.name}' ") as error:
        datasets.load(str(path))
    return str(error.value)


def converted(path: Path, monkeypatch: pytest.MonkeyPatch) -> datasets.OfflineDataset:
    monkeypatch.chdir(path.parent)
    code = refused(path).partition("\n")[2]
    exec(textwrap.dedent(code), {})
    return datasets.load("log.npz")


@pytest.mark.parametrize(("name", "between"), [("log.csv", ","), ("log.tsv", "\t")])
def test_a_table_is_told_how_to_become_a_file(
    tmp_path: Path, name: str, between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [[0.5, 1.0, -1.0, 2.0, 0, 0], [1.5, 2.0, 1.0, 3.0, 1, 0], [2.5, 3.0, 0.0, 4.0, 0, 1]]
    lines = [between.join(map(str, row)) for row in rows]
    header = between.join(["x", "y", "u", "reward", "terminal", "timeout"])
    (tmp_path / name).write_text("\n".join([header, *lines, lines[0]]) + "\n")
    dataset = converted(tmp_path / name, monkeypatch)
    np.testing.assert_array_equal(dataset.transitions.observation, [[0.5, 1], [1.5, 2]])
    np.testing.assert_array_equal(dataset.transitions.terminated, [False, True])
    assert dataset.transitions.action.tolist() == [[-1.0], [1.0]]


def test_a_pickle_is_told_how_to_become_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = arrays([7, 5, 3], "tot")
    parts = [{key: x[i:j] for key, x in values.items()} for i, j in ((0, 7), (7, 12), (12, 15))]
    (tmp_path / "log.pkl").write_bytes(pickle.dumps(parts))
    direct = datasets.load(str(npz(tmp_path / "direct.npz", values)))
    same(converted(tmp_path / "log.pkl", monkeypatch), direct)


@pytest.mark.parametrize(
    ("folder", "file", "words"),
    [
        ("robot", "meta/info.json", "is LeRobot's.*pandas.read_parquet"),
        ("episodes", "features.json", "is in RLDS.*builder_from_directory"),
        ("mine-v0", "data/main_data.hdf5", "is a folder of Minari's: name it minari/NAME"),
        ("", "rows.parquet", "is in Parquet.*pandas.read_parquet"),
        ("", "x-train.tfrecord-00000-of-00001", "is in RLDS"),
        ("", "policy.PT", "is a pickle"),
        ("", "rows.npy", "holds one array"),
        ("", "rows.jsonl", "in a format that is not read. Write its arrays with np.savez"),
    ],
)
def test_other_formats_are_named(tmp_path: Path, folder: str, file: str, words: str) -> None:
    path = tmp_path / folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"{}")
    with pytest.raises(ValueError, match=words):
        datasets.load(str(tmp_path / folder if folder else path))


def test_the_manual_writes_a_sound_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "datasets.md").read_text(encoding="utf-8")
    (code,) = (
        block for block in re.findall(r"```python\n(.*?)```", page, re.S) if '"logs.npz",' in block
    )
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    dataset = datasets.load("logs.npz")
    assert dataset.lengths().tolist() == [50, 50, 50, 50]
    assert {*findings(dataset)} <= {"no_terminals", "actions_at_bounds"}
