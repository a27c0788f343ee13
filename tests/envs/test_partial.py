"""Hidden parts of observations, and gymnax's arguments."""

from __future__ import annotations

import re
import warnings

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.envs import partial

pytest.importorskip("gymnax")
CHAIN = 'gymnax/MemoryChain-bsuite?{"memory_length": 3}'


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("prefix", "name", "seen"),
    [
        ("without-velocities/", "rljax/Pendulum", [0, 1]),
        ("without-velocities/", "gymnax/CartPole-v1", [0, 2]),
        ("without-0,2-3/", "gymnax/CartPole-v1", [1]),
    ],
)
def test_a_part_is_hidden_inside_the_program(prefix: str, name: str, seen: list[int]) -> None:
    whole, part = envs.make(name), envs.make(prefix + name)
    assert part.spec.name == prefix + name
    assert part.spec.observation_shape == (len(seen),)
    keys = jax.random.split(jax.random.key(0), 2)
    (full, state), (cut, cut_state) = whole.reset(keys), part.reset(keys)
    np.testing.assert_array_equal(cut, np.asarray(full)[:, seen])
    action = jnp.zeros((2, *whole.spec.action_shape), whole.spec.action_dtype)
    one, other = whole.step(keys, state, action)[0], part.step(keys, cut_state, action)[0]
    np.testing.assert_array_equal(other.next_observation, np.asarray(one.next_observation)[:, seen])
    np.testing.assert_array_equal(other.reward, one.reward)


def test_a_part_is_hidden_on_the_host() -> None:
    whole, part = (
        envs.make_hosted(name, 2) for name in ("Hopper-v5", "without-velocities/Hopper-v5")
    )
    full, cut = whole.reset([1, 2]), part.reset([1, 2])
    assert part.spec.observation_shape == (5,)
    np.testing.assert_array_equal(cut, full[:, :5])
    action = np.full((2, 3), 0.5, np.float32)
    np.testing.assert_array_equal(
        part.step(action).next_observation, np.asarray(whole.step(action).next_observation)[:, :5]
    )
    saved = part.save()
    after = part.step(action).observation
    part.restore(saved)
    np.testing.assert_array_equal(part.step(action).observation, after)
    whole.close()
    part.close()


VELOCITIES = ("qvel", "cvel", "ten_velocity")  # parts of Gymnasium's observations


@pytest.mark.parametrize(
    "task", ["Ant", "Humanoid", "Hopper", "Walker2d", "HalfCheetah", "Swimmer", "InvertedPendulum"]
)
def test_exactly_the_velocities_are_hidden(task: str) -> None:
    """Gymnasium itself says what its observations consist of."""
    environment = gymnasium.make(f"{task}-v5")
    structure = environment.unwrapped.observation_structure
    parts = [
        name for name, size in structure.items() if name != "skipped_qpos" for _ in range(size)
    ]
    shown = [i for i, name in enumerate(parts) if name not in VELOCITIES]
    size = environment.observation_space.shape[0]
    assert len(parts) == size
    name = f"{task}-v5"
    np.testing.assert_array_equal(partial.visible("without-velocities/", name, size), shown)
    environment.close()


def test_a_humanoid_of_version_4_hides_the_velocities_of_joints_and_bodies() -> None:
    pytest.importorskip("mujoco")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        environment = gymnasium.make("Humanoid-v4")
    environment.reset(seed=0)
    observation = environment.step(environment.action_space.sample())[0]
    hidden = np.ones(len(observation), bool)
    hidden[partial.visible("without-velocities/", "Humanoid-v4", len(observation))] = False
    data = environment.unwrapped.data
    expected = np.concatenate([data.qvel, data.cvel.ravel()])
    np.testing.assert_array_equal(observation[hidden], expected)
    environment.close()


def test_a_double_pendulum_shows_the_forces_of_its_constraints() -> None:
    environment = gymnasium.make("InvertedDoublePendulum-v5")
    environment.reset(seed=0)
    observation = environment.step(environment.action_space.sample())[0]
    shown = partial.visible("without-velocities/", "InvertedDoublePendulum-v5", len(observation))
    data = environment.unwrapped.data
    angles = [np.sin(data.qpos[1:]), np.cos(data.qpos[1:])]
    expected = np.concatenate([data.qpos[:1], *angles, data.qfrc_constraint[:1]])
    np.testing.assert_array_equal(observation[shown], expected)
    environment.close()


def test_other_layouts_of_a_known_task_are_refused() -> None:
    with pytest.raises(ValueError, match="it is not known which numbers of 'Hopper-v5'"):
        partial.visible("without-velocities/", "Hopper-v5", 12)


@pytest.mark.slow
def test_gymnax_takes_arguments() -> None:
    environment = envs.make(CHAIN)
    keys = jax.random.split(jax.random.key(0), 1)
    _, state = environment.reset(keys)
    lengths = []
    for _ in range(4):
        step, state = environment.step(keys, state, jnp.zeros(1, jnp.int32))
        lengths.append(bool(step.terminated[0]))
    assert lengths == [False, False, False, True], "the question comes after three steps"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "without-velocities/rljax/Follow",
            "it is not known which numbers of 'rljax/Follow' are velocities",
        ),
        (
            "without-4/gymnax/CartPole-v1",
            "hides the numbers 4: an observation has the numbers 0 to 3",
        ),
        ("without-0-3/gymnax/CartPole-v1", "one of them must remain"),
        ("without-0/rljax/BoxPick-3x3", None),
        ("without-velocities/FrozenLake-v1", "parts can be hidden in vectors only"),
        (
            'gymnax/MemoryChain-bsuite?{"length": 3}',
            "has no number 'length' to set to 3. It has: max_steps_in_episode, mem",
        ),
        ("gymnax/MemoryChain-bsuite?{3}", "must be one JSON object"),
    ],
)
def test_parts_and_arguments_that_do_not_fit(name: str, message: str | None) -> None:
    make = envs.make if envs.is_compiled(name) else lambda name: envs.make_hosted(name, 1)
    if message is None:
        assert (
            make(name).spec.observation_shape[0]
            == envs.make(name.partition("/")[2]).spec.observation_shape[0] - 1
        )
        return
    with pytest.raises(ValueError, match=re.escape(message)):
        make(name)
