"""Runs, policies, data sets and environments as objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import rljax
from rljax import envs
from rljax.envs.environment import EnvironmentFailed
from rljax.runs import arguments, records, run
from rljax.runs.interface.environment_check import EnvReport, check_env
from tests.helpers import small_runs


class Room(gymnasium.Env):
    """Right goes to the goal in five steps; `fault` is one of what users get wrong."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    max_episode_steps: Any = 20

    def __init__(self, fault: str = "") -> None:
        self.fault, self.place = fault, 0
        if fault == "pickle":
            self.connection = (x for x in ())

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.time = 0, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        self.place = max(0, self.place + (1 if action == 1 else -1))
        reaches = self.place == 5
        if self.fault == "limit":
            reaches = self.time == 7
        reward = {"rewards": 1e5, "sparse": 0.0}.get(self.fault, 1.0) * self.place
        return self._seen(), reward, reaches and self.fault != "endless", False, {}

    def _seen(self) -> np.ndarray:
        draw = np.random.default_rng() if self.fault == "seed" else self.np_random
        scale = 1e4 if self.fault == "scale" else 1.0
        return np.array([scale * self.place, draw.uniform()], np.float32)


class Endless(Room):
    max_episode_steps = None


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (lambda: Room("seed"), "the same seed and actions give other numbers from step 0"),
        (lambda: Room("limit"), "all 42 episodes were terminated after 7 steps: that looks like"),
        (lambda: Endless("endless"), "no episode has ended in 300 steps, and there is no time"),
        (lambda: Room("scale"), "1 of 2 numbers of observations are as large as 5e+04"),
        (lambda: Room("rewards"), "rewards are as large as 5e+05"),
        (lambda: Room("sparse"), "all 300 rewards of random actions are 0"),
        (lambda: Room("pickle"), "its state cannot be saved"),
    ],
)
def test_each_fault_of_an_environment_is_named_alone(env: Any, message: str) -> None:
    (finding,) = check_env(env, steps=300).findings
    assert message.replace("5e+04", "") in finding.what


@pytest.mark.parametrize("env", [Room, "CartPole-v1"])
def test_a_sound_environment_has_no_findings(env: Any) -> None:
    report: EnvReport = rljax.check_env(env, steps=300)
    assert report.fine, str(report)
    assert "Nothing looks wrong." in str(report)
    assert report.facts["actions"] == "2 choices"


def test_what_breaks_the_interface_is_an_error() -> None:
    class Wrong(Room):
        def step(self, action: Any) -> Any:
            return self._seen(), "much", False, False, {}

    with pytest.raises(EnvironmentFailed, match="reward"):
        check_env(Wrong, steps=5)


# Runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "room"
    config = small_runs.ON_POLICY
    return run.train("ppo", Room, 100, config=config, seeds=2, out=out, **small_runs.EVERY)


def test_a_run_as_an_object(folder: Path) -> None:
    made = rljax.Run(folder)
    assert (made.complete, made.step, made.seeds) == (True, 100, (0, 1))
    assert made.config["num_envs"] == 2
    metrics, evaluations = made.metrics(), made.evaluations()
    assert metrics["step"].tolist() == [50, 100]
    assert metrics["episode/return"].shape == metrics["actor/loss"].shape == (2, 2)
    assert np.isnan(metrics["actor/loss"][0]).all()
    assert evaluations["returns"].shape == (1, 2, 2)
    frame = made.frame()
    assert list(frame["seed"]) == [0, 1]
    assert frame["returns"].tolist() == evaluations["returns"].mean(axis=-1)[0].tolist()
    assert len(made.frame("metrics")) == 4
    with pytest.raises(ValueError, match="a run has 'evaluations' and 'metrics'"):
        made.frame("losses")


def test_policies_play_anywhere(folder: Path) -> None:
    made = rljax.Run(folder)
    both = made.evaluate(episodes=3)
    assert both.returns.shape == (2, 3)
    for learner in (0, 1):
        alone = rljax.evaluate(made.policy(learner), Room, 3)
        assert alone.returns.tolist() == both.returns[learner].tolist()
    right = rljax.evaluate(lambda observation: 1, Room(), 2)
    assert right.returns.tolist() == [15, 15]
    assert right.lengths.tolist() == [5, 5]
    with pytest.raises(ValueError, match="episodes is 0"):
        rljax.evaluate(lambda observation: 1, Room, 0)


def test_an_environment_inside_the_program_is_one_of_gymnasium() -> None:
    env = rljax.make_env("rljax/Pendulum")
    observation, _ = env.reset(seed=3)
    assert env.observation_space.contains(observation)
    total, ends = 0.0, False
    while not ends:
        observation, reward, terminated, truncated, _ = env.step(np.zeros(1, np.float32))
        total, ends = total + reward, terminated or truncated
    again = rljax.evaluate(lambda _: np.zeros(1, np.float32), "rljax/Pendulum", 1)
    assert again.lengths.tolist() == [200]
    assert total < 0


def test_a_run_goes_on_from_its_object(folder: Path, tmp_path: Path) -> None:
    import shutil

    made = rljax.Run(shutil.copytree(folder, tmp_path / "copy"))
    assert made.resume(150, env=Room).step == 150
    with pytest.raises(ValueError, match=r"learns in 'python/Room', env is 'CartPole-v1'"):
        made.resume(200, env="CartPole-v1")


def test_a_vector_environment_trains_and_its_single_ones_evaluate(tmp_path: Path) -> None:
    vector = gymnasium.vector.SyncVectorEnv([Room] * 2)
    small = small_runs.EVERY | {"config": small_runs.ON_POLICY}
    out = run.train("ppo", vector, 100, out=tmp_path / "run", **small)
    described = records.read_config(out)
    names = (described["env"], described["eval_env"])
    assert names == ("python/SyncVectorEnv", "python/SyncVectorEnv-one")
    assert vector.reset()[0].shape == (2, 2), "it is not closed"
    with pytest.raises(ValueError, match=r"has 2 environments, and 2 x 2 are needed.*num-envs"):
        run.train("ppo", vector, 100, seeds=2, out=tmp_path / "two", **small)


@pytest.mark.parametrize("env", [Room, lambda: Room(), Room()])
def test_the_time_limit_of_a_class_holds_however_it_is_given(env: Any) -> None:
    hosted = envs.make_hosted(str(arguments.environment_name(env)), 1)
    assert hosted.spec.max_episode_steps == 20


def test_a_vector_environment_that_gymnasium_made_is_stepped_as_it_is() -> None:
    vector = gymnasium.make_vec("CartPole-v1", num_envs=2)
    name = arguments.environment_name(vector)
    assert str(name).startswith("python/")
    assert arguments.evaluation_environment(name) == "CartPole-v1"
    vector.close()


# Wrappers


def test_wrappers_by_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import gymnasium\n"
        "class Ten(gymnasium.RewardWrapper):\n"
        "    def reward(self, reward):\n"
        "        return 10 * float(reward)\n"
        "class Less(Ten):\n"
        "    def reward(self, reward):\n"
        "        return float(reward) - 1\n"
        "number = 3\n"
    )
    name = envs.with_wrappers("CartPole-v1", [f"{file}:Ten", f"{file}:Less"])
    assert rljax.make_env(name).unwrapped.spec is not None
    played = rljax.evaluate(lambda _: 0, name, 1)
    assert played.returns[0] == 9 * played.lengths[0]
    assert envs.codes_of(name) == [str(file), str(file)]
    for prefix in ("async/", "timed/", "timed/async/"):
        wrapped = f"{prefix}wrap(a.py:A)/b.py:B"
        assert envs.codes_of(wrapped) == ["a.py", "b.py"], wrapped
    assert envs.task(envs.with_wrappers("async/Hopper-v5", ["mine.py:Ten"])) == "Hopper-v5"
    assert not envs.is_compiled(name)
    with pytest.raises(ValueError, match=r"number is no class that derives from gymnasium\.W"):
        rljax.make_env(envs.with_wrappers("CartPole-v1", [f"{file}:number"]))
    with pytest.raises(ValueError, match="'rljax/Pendulum' takes no wrappers"):
        envs.make(envs.with_wrappers("rljax/Pendulum", [f"{file}:Ten"]))


# Data sets


def test_a_data_set_from_arrays(tmp_path: Path) -> None:
    rows = np.arange(12)
    arrays: dict[str, Any] = {
        "observations": {
            "place": rows[:, None].astype(float),
            "lamp": np.zeros((12, 8, 8, 3), "u1"),
        },
        "actions": np.linspace(0, 10, 12)[:, None],
        "rewards": rows,
        "terminals": rows == 5,
        "timeouts": rows == 11,
    }
    options: Any = {"action_bounds": (0, 10), "signals": {"cost": rows % 2}, "env": "Pendulum-v1"}
    data = rljax.Dataset.from_arrays(tmp_path / "mine.npz", **arrays, **options)
    assert len(data) == 11, "the successor of the last row is not known"
    assert data.transitions.action.min() == -1.0
    assert data.transitions.extras["cost"].tolist()[:3] == [0, 1, 0]
    assert data.returns.tolist() == [15, 6 + 7 + 8 + 9 + 10]
    assert len(data[:6]) == len(data.episodes(0)) == 6
    assert data.episodes(1).returns.tolist() == [40]
    assert [finding.severity for finding in data.check()].count("error") == 0
    assert rljax.Dataset(tmp_path / "mine.npz").returns.tolist() == data.returns.tolist()
    again = data.episodes([0]).write(tmp_path / "less.hdf5")
    assert rljax.Dataset.read(tmp_path / "less.hdf5").returns.tolist() == again.returns.tolist()
    with pytest.raises(ValueError, match=r"mine\.npz' exists"):
        rljax.Dataset.from_arrays(tmp_path / "mine.npz", **arrays, **options)
    with pytest.raises(ValueError, match=r"'rewards?'|reward"):
        rljax.Dataset.from_arrays(tmp_path / "b.npz", **arrays | {"rewards": rows[:5]})
    assert not (tmp_path / "b.npz").exists()


def test_a_data_set_is_learnt_from_by_its_file(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    data = rljax.Dataset.from_arrays(
        tmp_path / "mine.npz",
        draw.normal(size=(60, 3)),
        draw.uniform(-1, 1, (60, 1)),
        draw.normal(size=60),
        np.arange(60) % 20 == 19,
    )
    small = {"hidden": (8,), "batch_size": 8}
    out = run.train("bc", "none", 20, data=data, config=small, out=tmp_path / "run")
    assert records.read_config(out)["data"] == str(tmp_path / "mine.npz")
    with pytest.raises(ValueError, match=r"no file holds this one: data=dataset\.write"):
        run.train("bc", "none", 20, data=data[:20], config=small, out=tmp_path / "less")
