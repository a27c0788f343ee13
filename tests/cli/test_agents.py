"""`rljax list` prints what there is."""

from __future__ import annotations

import pytest

from rljax import cli
from rljax.training import registry


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


def test_agents_are_listed_by_family(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["list", "agents"])
    printed = capsys.readouterr().out.splitlines()
    headings = [line for line in printed if not line.startswith("  ")]
    assert headings == [f"agents, {registry.heading(family)}" for family in registry.families()]
    assert sorted(line.split()[0] for line in printed if line.startswith("  ")) == registry.names()
