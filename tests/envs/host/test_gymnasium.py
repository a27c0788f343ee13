"""Gymnasium's environments by name: unknown names, names of modules, and missing packages."""

import importlib
import sys
import types
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rljax.envs.host import gymnasium as adapter
from rljax.envs.host.gymnasium import make_hosted
from tests.envs.host.walk import Walk

mujoco: Any = importlib.import_module("mujoco")
register: Any = gymnasium.register
pytestmark = pytest.mark.usefixtures("walk_is_registered")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "Hoper-v5",
            (
                r"no environment 'Hoper-v5' in Gymnasium. Nearest: 'Hopper-v5', "
                r"'Hopper-v4'.* rljax list"
            ),
        ),
        (
            "Note-v0",
            r"Where your own code registers it, name its module \(my_module:Note-v0\)",
        ),
        ("Hopper-v77", "no environment 'Hopper-v77' in Gymnasium. Nearest: 'Hopper-v"),
        ("", "no environment '' in Gymnasium. All of them"),
        ("math:Wlk-v0", "no environment 'Wlk-v0' in Gymnasium with 'math'. Nearest: 'Walk-v0'"),
        (
            "no_such_module:Walk-v0",
            r"'no_such_module:Walk-v0': the module .* cannot be imported.*PYTHONPATH=",
        ),
        (
            "Hopper-v3",
            "'Hopper-v3' (cannot be imported. The|needs a package that is not installed.) ",
        ),
    ],
)
def test_unknown_names(name, message):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with pytest.raises(ValueError, match=message):
            make_hosted(name, 1)


def test_names_of_modules(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_walks", types.ModuleType("my_walks"))
    hosted = make_hosted("my_walks:Walk-v0", 2)
    assert hosted.spec.name == "my_walks:Walk-v0"
    assert hosted.reset([0, 1]).shape == (2, 2)


def test_vector_environments_alone(monkeypatch):
    def made(num_envs, steps=9):
        one = lambda: gymnasium.wrappers.TimeLimit(Walk(), steps)  # noqa: E731
        return SyncVectorEnv([one] * num_envs, autoreset_mode=AutoresetMode.DISABLED)

    spec = gymnasium.envs.registration.EnvSpec("Flock-v0", vector_entry_point=made)
    monkeypatch.setitem(gymnasium.registry, "Flock-v0", spec)
    hosted = make_hosted('Flock-v0?{"steps": 2}', 3)
    hosted.reset([0, 1, 2])
    hosted.step(np.zeros((3, 2), np.float32))
    assert hosted.step(np.zeros((3, 2), np.float32)).truncated.all()
    with pytest.raises(ValueError, match="a vector environment alone: remove 'async/'"):
        make_hosted("async/Flock-v0", 1)


def test_hosted_names():
    names = adapter.hosted_names()
    assert {"Hopper-v5", "Pendulum-v1", "Walk-v0"} <= set(names)
    assert not {"Hopper-v3", "GymV21Environment-v0"} & set(names)  # they only raise
    assert names == sorted(names)
    register("MyHopper", "gymnasium.envs.mujoco.hopper_v5:HopperEnv")
    assert "MyHopper" in adapter.hosted_names()


def test_models_are_made_in_silence(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    make_hosted("HalfCheetah-v5", 2)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")
    assert mujoco.get_mju_user_warning() is None


@pytest.mark.parametrize("number", [0, -2])
def test_too_few(number):
    with pytest.raises(
        ValueError, match=f"num_envs is {number}, 'Walk-v0' needs at least 1 environment"
    ):
        make_hosted("Walk-v0", number)


def test_missing_packages(monkeypatch):
    def needy(**kwargs):
        raise gymnasium.error.DependencyNotInstalled(
            'Box2D is not installed, run `pip install "gymnasium[box2d]"`'
        )

    def broken(**kwargs):
        raise gymnasium.error.Error("out of order")

    register("Needy-v0", needy)
    register("Broken-v0", broken)
    with pytest.raises(
        ValueError, match=r"'Needy-v0' needs a package that is not installed. Box2D .*\[box2d\]"
    ):
        make_hosted("Needy-v0", 1)
    with pytest.raises(ValueError, match=r"'Broken-v0' cannot be made. out of order"):
        make_hosted("Broken-v0", 1)
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(
        ValueError, match="'ALE/Pong-v5' needs a package that is not installed: pip install ale-py"
    ):
        make_hosted("ALE/Pong-v5", 1)


def test_arguments_in_the_name_reach_the_environment():
    hosted = make_hosted(
        'Hopper-v5?{"reset_noise_scale": 0.0, "max_episode_steps": 7}', 2, max_episode_steps=9
    )
    assert hosted.spec.max_episode_steps == 7, "the name comes first"
    assert hosted.spec.name == 'Hopper-v5?{"reset_noise_scale": 0.0, "max_episode_steps": 7}'
    first = hosted.reset([0, 1])
    assert (first[0] == first[1]).all(), "without noise"
    assert hosted.vector_env.envs[0].unwrapped._reset_noise_scale == 0.0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Hopper-v5?", r"the arguments after the question mark must be one JSON object"),
        ("Hopper-v5?reset_noise_scale=0", r"must be one JSON object .* for example 'Hopper-v5"),
        ("Hopper-v5?[1]", r"must be one JSON object"),
        ('Hopper-v5?{"render_mode": "human"}', r"without 'render_mode'"),
        (
            'Hopper-v5?{"noise": 0.1}',
            r"'Hopper-v5' cannot be made with the arguments \{\"noise\": 0.1\}: TypeError: ",
        ),
        (
            'gymnasium_robotics:No-v0?{"a": 1}',
            r"pip install gymnasium-robotics|no environment 'No-v0'",
        ),
    ],
)
def test_wrong_arguments(name, message):
    with pytest.raises(ValueError, match=message):
        make_hosted(name, 1)
