"""Films of Brax's environments; those of Gymnasium's are tested with the command that makes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rljax import film

# A process of its own: MuJoCo reads how to draw as it is imported.
PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from rljax.envs import drawing
drawing.choose_renderer()
from rljax import envs, film
environment = envs.make("brax/inverted_pendulum")
film.brax(environment, lambda observation: np.zeros(1, np.float32), 0, 3, Path(sys.argv[1]))
"""


def test_brax_is_filmed_without_a_display(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "play.mp4")], capture_output=True, text=True, check=False
    )
    assert "brax" in (tmp_path / "play.html").read_text()
    if "could not be rendered" in done.stderr:
        pytest.skip("no library to draw with, such as libegl1")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "play.mp4").stat().st_size > 1_000


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"it must end in \.mp4 or \.gif"):
        film.write([np.zeros((8, 8, 3), np.uint8)], tmp_path / "play.avi", 30.0)
