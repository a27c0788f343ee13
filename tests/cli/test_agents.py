"""`rljax list` prints what there is."""

from __future__ import annotations

import pytest

from rljax import cli
from rljax.learning import registry


@pytest.mark.slow
def test_list_names_agents_environments_and_presets(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["list"])
    printed = capsys.readouterr().out
    assert {"sac", "td3", "Hopper-v5", "rljax/Pendulum", "brax/ant"} <= {*printed.split()}
    assert "rljax/Constant" not in printed
    assert len(printed.splitlines()) < 120
    cli.main(["list", "presets"])
    presets = capsys.readouterr().out
    assert "presets: sac" in presets
    assert "(RL Zoo" in presets


def test_agents_are_listed_by_family(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["list", "agents"])
    printed = capsys.readouterr().out.splitlines()
    headings = [line for line in printed if not line.startswith("  ")]
    assert headings == [f"agents, {registry.heading(family)}" for family in registry.families()]
    assert sorted(line.split()[0] for line in printed if line.startswith("  ")) == registry.names()
