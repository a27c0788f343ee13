"""Packed runs."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rljax
from rljax.runs import records
from rljax.runs.export import packing, packs
from rljax.runs.policies import evaluate

OBSERVATION = np.linspace(-1, 1, 3, dtype=np.float32)


@pytest.fixture(scope="module")
def packed(folder: Path) -> Path:
    (folder / "play.mp4").write_bytes(b"a film")
    return packing.pack(folder)


def changed(packed: Path, target: Path, **members: bytes | None) -> Path:
    """A copy with other members."""
    with zipfile.ZipFile(packed) as before, zipfile.ZipFile(target, "w") as after:
        for name in before.namelist():
            content = members.get(name, before.read(name))
            if content is not None:
                after.writestr(name, content)
    return target


def test_policies_are_those_of_the_folder(folder: Path, packed: Path, tmp_path: Path) -> None:
    moved = shutil.copy(packed, tmp_path / "elsewhere.zip")
    for learner in (0, 1):
        for best in (False, True):
            policies = [rljax.load(x, learner=learner, best=best) for x in (folder, moved)]
            one, other = (policy(OBSERVATION) for policy in policies)
            np.testing.assert_array_equal(one, other)
    written = rljax.export(moved, "numpy", learner=1, best=True)
    assert written.path == tmp_path / "policy.py"
    one, other = (evaluate.table(evaluate.evaluate_run(x, episodes=1)) for x in (folder, moved))
    assert one == other


def test_the_file_has_results_a_card_and_the_film(folder: Path, packed: Path) -> None:
    with zipfile.ZipFile(packed) as archive:
        card, film = archive.read("card.md").decode(), archive.read("play.mp4")
        assert archive.read("summary.json") == (folder / "summary.json").read_bytes()
    assert film == b"a film"
    last = records.read(folder, "evaluations")[-1]
    shown = f"| 1 | 1 | {np.mean(last['returns']):,.1f} ± {np.std(last['returns']):,.1f} (step 100)"
    assert "# sac in Pendulum-v1" in card
    assert shown in card


def test_numpy_reads_the_arrays(packed: Path) -> None:
    with np.load(packed, allow_pickle=False) as arrays:
        kernel = arrays["agent/state/actor/parameters/params/hidden_0/kernel"]
    assert kernel.shape == (2, 3, 16)


def pickled() -> bytes:
    import io

    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.array([{}], object), allow_pickle=True)
    return stream.getvalue()


def test_hostile_and_damaged_files_are_refused(packed: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(packed) as archive:
        described = json.loads(archive.read("config.json"))
    kernel = "agent/state/actor/parameters/params/hidden_0/kernel.npy"
    (tmp_path / "mine.py").write_text("raise SystemExit('code ran')")
    code = json.dumps(described | {"agent": str(tmp_path / "mine.py")}).encode()
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "code": ({"config.json": code}, "names code as its agent"),
        "pickle": ({kernel: pickled()}, "holds Python objects"),
        "missing": ({kernel: None}, "has no array"),
        "shape": ({kernel: (b"\x93NUMPY" + b"\0" * 100)}, "is not a whole .npz archive"),
        "format": ({"policy.json": b'{"format": 2, "step": 1}'}, "says format 2"),
        "notes": ({"policy.json": b"[1]"}, "is not a JSON object"),
        "config": ({"config.json": b"{}"}, "says no format"),
    }
    for name, (members, message) in cases.items():
        file = changed(packed, tmp_path / f"{name}.zip", **members)
        with pytest.raises(ValueError, match=message):
            rljax.load(file)
    (tmp_path / "text.zip").write_text("no zip")
    with pytest.raises(ValueError, match="is not a whole file of `rljax pack`"):
        rljax.load(tmp_path / "text.zip")


def test_arrays_of_other_shapes_are_refused(packed: Path) -> None:
    kernel = np.zeros((2, 3, 8), np.float32)
    template: Any = kernel
    for name in reversed(("state", "actor", "parameters", "params", "hidden_0", "kernel")):
        template = {name: template}
    with pytest.raises(ValueError, match=r"float32\[2, 3, 16\] as .* needs float32\[2, 3, 8\]"):
        packs.restore(packed, "agent", template)


def test_other_names_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"not the name of a pack: it must end in \.zip"):
        packing.pack(folder, output=tmp_path / "run.tar")


def test_a_pack_is_no_run(packed: Path) -> None:
    with pytest.raises(ValueError, match="is not a run: it has no config"):
        packing.pack(packed)
    with pytest.raises(ValueError, match="is not a run: it has no config"):
        rljax.resume(packed)
