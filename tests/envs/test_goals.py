"""Goals of environments on the host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from rljax import buffers, envs
from rljax.agents import sac
from rljax.envs.environment import EnvironmentFailed
from rljax.envs.goals import FetchReward, VectorGoals, goals_of, has_goals
from rljax.learning.plan import Experiment, plan
from rljax.learning.settings import Settings
from rljax.runs import records, run
from rljax.trust import TrustedState


def box(size: int) -> spaces.Box:
    return spaces.Box(-10.0, 10.0, (size,), np.float64)


class Reach(gymnasium.Env):
    """Move a point to a goal, without a known reward."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            observation=box(3), achieved_goal=box(2), desired_goal=box(2)
        )
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.library = np

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.point, self.goal = np.zeros(2), self.np_random.uniform(-1, 1, 2)
        return self.seen(), {}

    def step(self, action):
        self.point = self.point + 0.1 * action
        return self.seen(), self.compute_reward(self.point, self.goal, {}), False, False, {}

    def seen(self):
        rest = np.append(self.point, 7.0)
        return {
            "observation": rest,
            "achieved_goal": self.point.copy(),
            "desired_goal": self.goal.copy(),
        }

    def compute_reward(self, achieved, goal, info):
        return -np.abs(achieved - goal).sum(axis=-1)


class Known(Reach):
    """With its reward in JAX."""

    def goal_reward(self, achieved, goal):
        return -jnp.abs(achieved - goal).sum(axis=-1)


class Turned(Known):
    """With the parts of its observations in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(
            desired_goal=box(2), observation=box(3), achieved_goal=box(2)
        )


class OneByOne(Reach):
    """With a reward for one goal at a time."""

    def compute_reward(self, achieved, goal, info):
        assert achieved.shape == (2,)
        return -float(np.abs(achieved - goal).sum())


class Without(Reach):
    """With a reward that nobody can ask for."""

    compute_reward = None  # pyright: ignore[reportAssignmentType]

    def step(self, action):
        return self.seen(), 0.0, False, False, {}


class ByInfo(Reach):
    """With a reward that needs more than the goals."""

    def compute_reward(self, achieved, goal, info):
        return -float(np.abs(achieved - goal).sum() > info["radius"])

    def step(self, action):
        return self.seen(), 0.0, False, False, {}


class InNumPy(Reach):
    """With a reward that JAX cannot trace."""

    def goal_reward(self, achieved, goal):
        return np.asarray(achieved - goal).sum(axis=-1)


class ForAll(Reach):
    """With one reward for all goals."""

    def goal_reward(self, achieved, goal):
        return -jnp.abs(achieved - goal).sum()


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Those of a package stay registered: it is imported once."""
    register = gymnasium.register
    made = {
        f"{made_by.__name__}-v0": made_by
        for made_by in (Reach, Known, Turned, OneByOne, Without, ByInfo, InNumPy, ForAll)
    }
    for name, made_by in made.items():
        register(name, made_by, max_episode_steps=20)
    yield
    for name in made:
        del gymnasium.registry[name]


def planned(name: str, **changes: Any) -> Any:
    small = {"hindsight": 0.5, "hidden": (8,), "replay_size": 100, "batch_size": 8}
    settings = dict(agent="sac", env=name, steps=100, eval_episodes=1)
    config = sac.Config(**(small | changes))
    made = plan(Experiment(Settings(**settings), sac, config, None))
    return made.stages[0].driver.hyper.experience.draw


def fetch(name: str) -> Any:
    """Skips the test where the package is missing or does not know this MuJoCo."""
    pytest.importorskip("gymnasium_robotics", reason="pip install 'rljax-suite[robotics]'")
    try:
        return envs.make_hosted(f"gymnasium_robotics:{name}", 2)
    except EnvironmentFailed as error:
        pytest.skip(f"gymnasium_robotics does not work with this version of MuJoCo: {error}")


@pytest.mark.filterwarnings("ignore:.*observes a Dict")
@pytest.mark.parametrize("name", ["Known-v0", "Turned-v0"])
def test_goals_are_found_read_and_replaced(name: str) -> None:
    hosted = envs.make_hosted(name, 3)
    goals = goals_of(hosted)
    assert isinstance(goals, VectorGoals)
    hosted.reset([1, 2, 3])
    step = hosted.step(np.full((3, 2), 0.5, np.float32))
    observation = step.next_observation
    assert observation.shape == (3, 7)
    achieved, desired = goals.achieved(observation), goals.desired(observation)
    np.testing.assert_allclose(achieved, np.full((3, 2), 0.05), rtol=1e-6)
    np.testing.assert_allclose(goals.goal_reward(achieved, desired), step.reward, rtol=1e-5)
    new = np.array([[1.0, 2.0]] * 3, np.float32)
    changed = goals.relabelled(observation, new)
    expected = np.array(observation)
    expected[:, goals.desired_at : goals.desired_at + 2] = new
    np.testing.assert_array_equal(changed, expected)
    np.testing.assert_array_equal(goals.desired(changed), new)
    np.testing.assert_array_equal(goals.achieved(changed), achieved)
    hosted.close()


class Camera(Reach):
    """What is observed beside the goals is a picture and a nested dictionary."""

    def __init__(self) -> None:
        super().__init__()
        picture, task = spaces.Box(0, 255, (16, 16, 3), np.uint8), spaces.Dict(number=box(1))
        parts = {"camera": picture, "a_task": task, "achieved_goal": box(2), "desired_goal": box(2)}
        self.observation_space = spaces.Dict(parts)

    def seen(self):
        goals, level = super().seen(), int(np.clip(100 + 100 * self.point[0], 0, 255))
        del goals["observation"]
        camera = np.full((16, 16, 3), level, np.uint8)
        return {"camera": camera, "a_task": {"number": np.array([5.0])}, **goals}


class Visual(Reach):
    """Its goals are pictures, whose channels come first."""

    def __init__(self) -> None:
        super().__init__()
        picture = spaces.Box(0, 255, (3, 16, 16), np.uint8)
        parts = {"achieved_goal": picture, "desired_goal": picture, "observation": box(2)}
        self.observation_space = spaces.Dict(parts)

    def seen(self):
        return {
            "achieved_goal": drawn(self.point),
            "desired_goal": drawn(self.goal),
            "observation": self.point.copy(),
        }

    def step(self, action):
        self.point = self.point + 0.1 * action
        pictures = drawn(self.point), drawn(self.goal)
        return self.seen(), float(self.compute_reward(*pictures, {})), False, False, {}

    def compute_reward(self, achieved, goal, info):
        assert achieved.dtype == np.uint8
        red, other = (x[..., 0, :, :].astype(float).mean(axis=(-1, -2)) for x in (achieved, goal))
        return -np.abs(red - other)


def drawn(point: np.ndarray) -> np.ndarray:
    """A picture whose red channel is the first number of a point."""
    picture = np.zeros((3, 16, 16), np.uint8)
    picture[0] = int(np.clip(100 + 100 * point[0], 0, 255))
    return picture


@pytest.mark.filterwarnings("ignore:.*observes a Dict")
def test_goals_beside_pictures_and_dictionaries_are_replaced() -> None:
    gymnasium.register("Camera-v0", Camera, max_episode_steps=8)
    hosted = envs.make_hosted("Camera-v0", 3)
    goals: Any = goals_of(hosted)
    assert (goals.part, goals.size) == ("vector", 2)
    hosted.reset([1, 2, 3])
    step = hosted.step(np.full((3, 2), 0.5, np.float32))
    seen = step.next_observation
    achieved, desired = goals.achieved(seen), goals.desired(seen)
    np.testing.assert_allclose(achieved, np.full((3, 2), 0.05), rtol=1e-6)
    np.testing.assert_allclose(goals.goal_reward(achieved, desired), step.reward, rtol=1e-5)
    changed = goals.relabelled(seen, achieved + 1.0)
    np.testing.assert_allclose(goals.desired(changed), achieved + 1.0)
    np.testing.assert_array_equal(changed["camera"], seen["camera"])
    assert (np.asarray(changed["vector"] == seen["vector"]).sum(axis=-1) == 3).all()


@pytest.mark.filterwarnings("ignore:.*observes a Dict")
def test_goals_that_are_pictures_are_replaced() -> None:
    gymnasium.register("Visual-v0", Visual, max_episode_steps=8)
    hosted = envs.make_hosted("Visual-v0", 3)
    goals: Any = goals_of(hosted)
    hosted.reset([1, 2, 3])
    step = hosted.step(np.full((3, 2), 0.5, np.float32))
    seen = step.next_observation
    assert goals.achieved(seen).shape == (3, 16, 16, 3)
    reward = goals.goal_reward(goals.achieved(seen), goals.desired(seen))
    np.testing.assert_allclose(reward, step.reward, rtol=1e-5)
    changed = goals.relabelled(seen, goals.achieved(seen))
    np.testing.assert_array_equal(goals.desired(changed), goals.achieved(seen))
    reward = jax.jit(goals.goal_reward)(goals.achieved(changed), goals.desired(changed))
    np.testing.assert_array_equal(reward, np.zeros(3))


@pytest.mark.learn
@pytest.mark.filterwarnings("ignore:.*observes a Dict")
@pytest.mark.parametrize("kind", [Camera, Visual])
def test_sac_learns_from_replaced_goals_of_pictures(kind: Any, tmp_path: Path) -> None:
    name = f"{kind.__name__}-v1"
    gymnasium.register(name, kind, max_episode_steps=8)
    small: dict[str, Any] = {"hidden": (8,), "num_envs": 2, "batch_size": 16, "replay_size": 200}
    small |= {"warmup_steps": 32, "hindsight": 0.8}
    out = tmp_path / "run"
    run.train("sac", name, 80, out=out, eval_episodes=1, config=small)
    assert np.isfinite(records.read(out, "metrics")[-1]["critic/loss"]).all()


@pytest.mark.filterwarnings("ignore:.*observes a Dict")
def test_environments_that_hold_a_module_are_saved() -> None:
    first, second = envs.make_hosted("Reach-v0", 2), envs.make_hosted("Reach-v0", 2)
    first.reset([1, 2])
    first.step(np.ones((2, 2), np.float32))
    saved = first.save()
    assert saved is not None, first.save_failure
    second.restore(TrustedState(saved))
    actions = np.full((2, 2), -0.5, np.float32)
    np.testing.assert_array_equal(first.step(actions).observation, second.step(actions).observation)


def test_goal_environments_are_recognised_by_their_space() -> None:
    goals = {"achieved_goal": box(2), "desired_goal": box(2), "observation": box(3)}
    picture = spaces.Box(0, 255, (8, 8, 3), np.uint8)
    assert has_goals(spaces.Dict(goals))
    pictures = {"achieved_goal": picture, "desired_goal": picture}
    for changes in ({"more": box(1)}, {"observation": picture}, pictures):
        assert has_goals(spaces.Dict(goals | changes))
    for changes in ({"desired_goal": box(3)}, {"desired_goal": picture}):
        assert not has_goals(spaces.Dict(goals | changes))
    del goals["achieved_goal"]
    assert not has_goals(spaces.Dict(goals))
    assert not has_goals(box(7))


@pytest.mark.filterwarnings("ignore:.*observes a Dict")
def test_sac_draws_with_the_goals_of_the_environment() -> None:
    draw = planned("Known-v0")
    assert isinstance(draw, buffers.Hindsight)
    assert isinstance(draw.environment, VectorGoals)
    assert isinstance(planned("Reach-v0", hindsight=0.0), buffers.Uniform)


@pytest.mark.learn
@pytest.mark.filterwarnings("ignore:.*observes a Dict")
def test_goals_alone_teach_to_reach_them(tmp_path: Path) -> None:
    """By contrast, without rewards: these are -16 in an episode of the first policy."""
    small: dict[str, Any] = {"hidden": (32,), "critic_hidden": (32,), "latent_size": 16}
    small |= {"num_envs": 4, "batch_size": 64, "actor_lr": 1e-3, "critic_lr": 1e-3}
    small |= {"warmup_steps": 500, "replay_size": 4_000}
    out = tmp_path / "run"
    run.train("crl_online", "Turned-v0", 4_000, out=out, eval_episodes=20, config=small)
    assert records.read_summary(out)["final"]["mean"] > -8.0


@pytest.mark.filterwarnings("ignore:.*observes a Dict")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "Without-v0",
            (
                r"reward of 'Without-v0' is not known for other goals\. Give its class a "
                r"method compute_reward"
            ),
        ),
        ("ByInfo-v0", r"compute_reward of 'ByInfo-v0' raised KeyError: 'radius', for goals"),
        (
            "InNumPy-v0",
            r"goal_reward of 'InNumPy-v0' cannot be traced by JAX \(TracerArrayConversionError\)",
        ),
        ("ForAll-v0", r"goal_reward of 'ForAll-v0' returns \(\) for goals \(2, 2\)"),
        ("Pendulum-v1", "the observations of 'Pendulum-v1' hold none"),
        ("stacked-3/Reach-v0", r"a wrapper of '.*Reach-v0' has changed goals \[2\] to \[6\]"),
    ],
)
def test_other_environments_are_refused(name: str, message: str) -> None:
    with pytest.raises(
        ValueError,
        match=rf"^--config\.hindsight replaces goals, and (the )?{message}.*hindsight 0\.$",
    ):
        planned(name)


@pytest.mark.filterwarnings("ignore:.*observes a Dict")
@pytest.mark.parametrize(("name", "one_by_one"), [("Reach-v0", False), ("OneByOne-v0", True)])
def test_a_reward_in_numpy_is_called_from_the_program(name: str, one_by_one: bool) -> None:
    goals: Any = goals_of(envs.make_hosted(name, 1))
    assert goals.reward.one_by_one == one_by_one
    draw = np.random.default_rng(0)
    achieved, goal = draw.normal(size=(2, 3, 5, 2)).astype(np.float32)
    reward = jax.jit(jax.vmap(goals.goal_reward))(achieved, goal)
    np.testing.assert_allclose(reward, -np.abs(achieved - goal).sum(axis=-1), rtol=1e-6)


def test_equal_rewards_share_a_program() -> None:
    one, same, other = (VectorGoals(3, 0, 3, FetchReward(0.05, x)) for x in (True, True, False))
    assert (one, hash(one)) == (same, hash(same))
    assert one != other


@pytest.mark.filterwarnings("ignore:.*observes a Dict")
@pytest.mark.parametrize(
    "name", ["FetchReach-v4", "FetchReachDense-v4", "FetchPush-v4", "FetchPushDense-v4"]
)
def test_rewards_of_fetch_are_those_of_the_environment(name: str) -> None:
    hosted = fetch(name)
    goals = goals_of(hosted)
    assert isinstance(goals, VectorGoals)
    random = np.random.default_rng(0)
    achieved = random.uniform(-1, 1, (1000, 3))
    goal = achieved + random.normal(size=(1000, 3)) * 0.03  # about half of them are reached
    environment = hosted.vector_env.unwrapped
    own = environment.envs[0].unwrapped.compute_reward(achieved, goal, {})
    if "Dense" not in name:
        assert 100 < (own == 0).sum() < 900
    found = goals.goal_reward(jnp.asarray(achieved, jnp.float32), jnp.asarray(goal, jnp.float32))
    clear = np.abs(np.linalg.norm(achieved - goal, axis=1) - 0.05) > 1e-6
    np.testing.assert_allclose(np.asarray(found)[clear], own[clear], atol=1e-6)
    hosted.reset([0, 1])
    for _ in range(5):
        step = hosted.step(np.ones((2, 4), np.float32))
        own_goals = (goals.achieved(step.next_observation), goals.desired(step.next_observation))
        np.testing.assert_allclose(
            goals.goal_reward(*map(jnp.asarray, own_goals)), step.reward, atol=1e-6
        )
    hosted.close()
