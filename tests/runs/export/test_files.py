"""Files of `rljax.export`, where JAX is not installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import rljax
from rljax.runs.export import checks

PAGE = Path(__file__).parents[3] / "docs" / "export.md"
# An import of these fails, as where they are not installed.
WITHOUT = "import sys\nfor name in {names!r}:\n    sys.modules[name] = None\n"
ONNX = """
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession("policy.onnx")
(action,) = session.run(["action"], {"observation": np.ones((2, 3), np.float32)})
print(action.tolist())
"""


def printed(program: str, folder: Path) -> str:
    """What a program prints, without rljax and JAX."""
    text = WITHOUT.format(names=["jax", "jaxlib", "flax", "rljax"]) + program
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_pages_program_needs_neither_jax_nor_rljax(folder: Path) -> None:
    written = rljax.export(folder, "numpy", learner=1)
    assert written.path == folder / "policy.py"
    assert written.largest_difference <= checks.TOLERANCE
    (program,) = re.findall(r"runs it with one -->\n```python\n(.*?)```", PAGE.read_text(), re.S)
    total = float(printed(program, folder).removeprefix("return "))
    policy = rljax.load(folder, learner=1)
    shown = program.replace("import policy  # policy.py, beside this file\n", "")
    names = {"policy": type("Loaded", (), {"act": policy})}
    exec(shown.replace("print(", "result = ("), names)
    assert total == pytest.approx(names["total"], abs=0.1)


def test_onnx_runs_without_jax(folder: Path) -> None:
    rljax.export(folder, "onnx", best=True)
    policy = rljax.load(folder, best=True)
    actions = json.loads(printed(ONNX, folder))
    np.testing.assert_allclose(actions, policy(np.ones((2, 3), np.float32)), atol=1e-5)


def test_stablehlo_has_a_description_beside_it(folder: Path, tmp_path: Path) -> None:
    path = rljax.export(folder, "stablehlo", output=tmp_path / "new" / "p.stablehlo").path
    described = json.loads(path.with_suffix(".json").read_text())
    assert described["inputs"] == [{"name": "observation", "shape": ["N", 3], "dtype": "float32"}]
    exported = jax.export.deserialize(bytearray(path.read_bytes()))
    observation = np.ones((5, 3), np.float32)
    (action,) = exported.call(observation)
    np.testing.assert_allclose(action, rljax.load(folder)(observation), atol=1e-5)


def test_nothing_is_left_of_a_file_that_differs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "TOLERANCE", -1.0)
    for to, name in {"numpy": "policy.py", "stablehlo": "policy.stablehlo"}.items():
        with pytest.raises(ValueError, match="No file is written"):
            rljax.export(folder, to, output=tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="--to is 'torch', it must be one of numpy, onnx"):
        rljax.export(folder, "torch")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"another format: it must end in \.onnx"):
        rljax.export(folder, "onnx", output="policy.py")
    with pytest.raises(ValueError, match="no learner 2: the run has 2, 0 to 1"):
        rljax.export(folder, "numpy", learner=2)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ValueError, match=r"onnxruntime\): pip install 'rljax-suite\[export\]'"):
        rljax.export(folder, "onnx")
