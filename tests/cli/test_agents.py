"""`rljax list` prints what there is."""

from __future__ import annotations

import pytest

from rljax import cli


@pytest.mark.slow
def test_list_names_agents_environments_and_presets(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["list"])
    printed = capsys.readouterr().out
    for expected in (
        "  sac ",
        "  td3 ",
        "  Hopper-v5\n",
        "  rljax/Pendulum\n",
        "  brax/ant\n",
        "presets: sac",
        "(RL Zoo",
    ):
        assert expected in printed
