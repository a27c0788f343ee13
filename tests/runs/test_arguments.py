"""Arguments of Python's callers become an experiment, or one clear message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax import envs
from rljax.runs import arguments, experiments, records, run
from rljax.runs.policies import evaluate, loading


def test_numbers_of_numpy_are_those_of_python(tmp_path: Path) -> None:
    given = {
        "seeds": np.arange(2),
        "log_every": np.int32(50),
        "eval_every": np.array(100),
        "keep_checkpoints": 2.0,
        "offline_share": np.float64(0.5),
        "tensorboard": np.bool_(False),
        "config": {
            "hidden": np.array([16, 16]),
            "batch_size": np.int64(32),
            "actor_lr": np.array([1e-3, 1e-4]),
        },
    }
    made = experiments.prepare("td3", "rljax/Pendulum", np.int64(100), **given)
    assert (made.settings.steps, made.settings.seeds, made.settings.eval_every) == (
        100,
        (0, 1),
        100,
    )
    assert (made.config.hidden, made.config.batch_size, made.config.actor_lr) == (
        (16, 16),
        32,
        (1e-3, 1e-4),
    )
    records.write_json(tmp_path / "config.json", experiments.described(made))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"agent": 3}, "agent is 3, it must be text or a path"),
    ({"steps": "100"}, "steps is '100', it must be int: a whole number"),
    ({"seeds": "12"}, "seeds is '12', it must be int: a whole number"),
    ({"seeds": [0, 0.5]}, "a seed is 0.5, it must be int: a whole number"),
    ({"data": 3}, "data is 3, it must be text or a path"),
    (
        {"config": "fast"},
        "config is 'fast', it must be a mapping of changes, or a Config of agent 'td3'",
    ),
    ({"log_every": None}, "log_every is None, it must be int: a whole number"),
    ({"tensorboard": 1}, "tensorboard is 1, it must be True or False"),
    ({"wandb": 1}, "wandb is 1, it must be text or None"),
    ({"online": 1}, "online is 1, it must be a mapping or None"),
    ({"eval_evry": 1}, "there is no argument 'eval_evry'. Nearest: 'eval_every'"),
    ({"total_timesteps": 9}, "no argument 'total_timesteps'. Here it is --steps, in Python steps="),
    ({"learning_rate": 1e-3}, "The agent's own settings go into config={...}."),
    ({"env": 3}, "env is 3, it must be the name of an environment"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[str(change) for change, _ in WRONG])
def test_arguments_of_other_types_are_one_message(change: dict[str, Any], message: str) -> None:
    arguments = {"agent": "td3", "env": "rljax/Pendulum", "steps": 100} | change
    with pytest.raises(TypeError) as raised:
        experiments.prepare(**arguments)
    assert message in str(raised.value)


@pytest.mark.parametrize("out", [None, 3, b"run", "a\0b"])
def test_a_folder_of_another_type_is_one_message(out: Any) -> None:
    for function in (run.resume, loading.load, evaluate.evaluate_run):
        with pytest.raises(TypeError, match=r"the folder of a run is .*, it must be text"):
            function(out)


# Environments


def test_an_environment_or_a_function_that_makes_one_stands_for_its_name() -> None:
    import gymnasium

    made = gymnasium.make("Pendulum-v1")
    for env in (
        "Pendulum-v1",
        made,
        lambda: gymnasium.make("Pendulum-v1"),
        gymnasium.spec("Pendulum-v1"),
    ):
        assert experiments.prepare("td3", env, 100).settings.env == "Pendulum-v1"
    made.close()


def test_names_of_other_libraries_are_understood() -> None:
    made = experiments.prepare("ppo", "rljax/Pendulum", 4_096, config={"gamma": 0.9})
    assert made.config.discount == 0.9


def test_environments_without_a_name_have_one_in_this_process() -> None:
    import gymnasium
    from gymnasium.envs.classic_control import PendulumEnv

    def small() -> gymnasium.Env:
        return gymnasium.wrappers.TimeLimit(PendulumEnv(), 10)

    others = {
        'Pendulum-v1?{"g": 1.0}': (gymnasium.make("Pendulum-v1", g=1.0), 200),
        "python/PendulumEnv": (gymnasium.make("Pendulum-v1", max_episode_steps=10), 10),
        "python/PendulumEnv-2": (
            gymnasium.wrappers.FlattenObservation(gymnasium.make("Pendulum-v1")),
            200,
        ),
        "python/PendulumEnv-3": (PendulumEnv(), None),
        "python/PendulumEnv-4": (PendulumEnv, None),
        "python/small": (small, 10),
    }
    for name, (env, limit) in others.items():
        assert arguments.environment_name(env) == name
        assert arguments.environment_name(env) == name
        hosted = envs.make_hosted(name, 2)
        assert hosted.spec.max_episode_steps == limit
        assert hosted.spec.observation_shape == (3,)
        hosted.close()


@pytest.mark.parametrize(
    ("env", "message"),
    [(lambda: None, "which makes None"), (lambda x: x, "does not make an"), (3, "it must be the")],
)
def test_what_is_no_environment_is_refused(env: Any, message: str) -> None:
    with pytest.raises(TypeError, match=rf"^env is .*{message}"):
        experiments.prepare("td3", env, 100)


def test_an_environment_of_another_process_is_asked_for() -> None:
    with pytest.raises(ValueError, match=r"'python/Gone' was made in Python.*env=\.\.\."):
        experiments.prepare("td3", "python/Gone", 100)
