"""Modules that have moved can be imported under their former names."""

import importlib

import pytest


@pytest.mark.parametrize(
    ("module", "name"), [("analytic", "Pendulum"), ("box_pick", "BoxPick"), ("lights_out", "LightsOut")]
)
def test_the_former_name_gives_the_same_class(module, name):
    former = importlib.import_module(f"rljax.envs.{module}")
    current = importlib.import_module(f"rljax.envs.tasks.{module}")
    assert getattr(former, name) is getattr(current, name)
