"""What may change between two parts of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rljax.runs import records, resumption


def test_a_checkpoint_of_an_older_version_lacks_newer_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have their defaults, unless config.json says otherwise since."""
    written: Any = {"config": {"hidden": [8]}}
    monkeypatch.setattr(records, "read_config", lambda folder: written)
    config = {"hidden": [8], "atoms": 51}
    saved, wanted = (
        {"config.hidden": [8], "seeds": [0]},
        {f"config.{name}": x for name, x in config.items()},
    )
    resumption.require_structure(tmp_path, saved, wanted | {"seeds": [0], "online.hidden": [4]})
    with pytest.raises(
        ValueError, match=r"says config\.hidden = \[9\], the checkpoint was made with \[8\]\. Struc"
    ):
        resumption.require_structure(tmp_path, saved, wanted | {"config.hidden": [9]})
    written["config"] = config
    with pytest.raises(
        ValueError, match=r"says config\.atoms = 51, the checkpoint was made with None\. Structural"
    ):
        resumption.require_structure(tmp_path, saved, wanted)
