"""Signals in any kind of environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rljax import envs
from rljax.agent import EnvSpec, Part
from rljax.envs import signals
from rljax.envs.autoreset import AutoReset
from rljax.envs.environment import EnvironmentFailed
from rljax.envs.host.hosted import Hosted
from rljax.envs.host.robots import velocity
from rljax.envs.host.serial import Serial
from rljax.trust import TrustedState

DECLARED = (Part("cost", ()), Part("objectives", (2,)))


class Costly:
    """Step t of 3 costs t, and its objectives are t and -t."""

    params = None

    def __init__(self, given: tuple[Part, ...] = DECLARED, info: Any = None) -> None:
        self.spec, self.info = EnvSpec("costly", (1,), 1, signals=given), info

    def reset(self, key: Any, params: Any) -> Any:
        return jnp.zeros(1), jnp.zeros(())

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        time = state + 1
        info = (
            {"cost": time, "objectives": jnp.stack([time, -time]), "other": 7}
            if self.info is None
            else self.info
        )
        return time[None], time, action[0], time >= 3, jnp.zeros((), bool), info


def rolled(environment: Any, steps: int, number: int = 2) -> list[Any]:
    wrapped, found = AutoReset(environment), []
    keys = jax.vmap(jax.random.key)(jnp.arange(number, dtype=jnp.uint32))
    _, state = wrapped.reset(keys)
    for _ in range(steps):
        step, state = jax.jit(wrapped.step)(keys, state, jnp.zeros((number, 1)))
        found.append(step)
    return found


def assert_sums(steps: list[Any]) -> None:
    """The signals of two environments in five steps, and their sums."""
    for i in range(2):
        of = lambda read, i=i: [read(step)[i].tolist() for step in steps]  # noqa: E731
        assert of(lambda step: step.signals["cost"]) == [1, 2, 3, 1, 2]
        assert of(lambda step: step.episode_signals["cost"]) == [1, 3, 6, 1, 3]
        sums = of(lambda step: step.episode_signals["objectives"])
        assert sums == [[x, -x] for x in (1, 3, 6, 1, 3)]
    for values in (steps[0].signals, steps[0].episode_signals):
        assert {x.dtype for x in values.values()} == {np.dtype(np.float32)}


def test_sums_run_within_an_episode_and_begin_anew() -> None:
    assert_sums(rolled(Costly(), 5))


def test_without_signals_the_state_has_no_sums() -> None:
    environment = AutoReset(Costly(()))
    _, state = environment.reset(jax.vmap(jax.random.key)(jnp.arange(2, dtype=jnp.uint32)))
    assert state.episode_signals == {}
    step = rolled(Costly(()), 1)[0]
    assert (step.signals, step.episode_signals) == ({}, {})


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (
            {"cost": jnp.ones(())},
            r"'costly' declares the signal 'objectives' of shape \(2,\), and its info has none",
        ),
        ({"cost": jnp.ones(3)}, r"'cost' of shape \(\), and its info has one of shape \(3,\)"),
    ],
)
def test_an_info_without_the_signal_is_refused(info: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rolled(Costly(info=info), 1)


@pytest.mark.parametrize("name", ["return", "time", "a/b", ""])
def test_names_that_mean_something_else_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="Choose another name"):
        AutoReset(Costly((Part(name, ()),)))
    with pytest.raises(ValueError, match="Choose another name"):
        signals.declared([name], "Mine-v0")


def test_declarations() -> None:
    assert signals.declared({"objectives": (2,), "cost": ()}, "Mine-v0") == DECLARED
    assert signals.names(DECLARED) == ["cost", "objectives/0", "objectives/1"]
    with pytest.raises(
        ValueError, match=r"metadata\['signals'\] of 'Mine-v0' is 3, it must be a list of names"
    ):
        signals.declared(3, "Mine-v0")
    with pytest.raises(ValueError, match="order them by name"):
        signals.check(DECLARED[::-1], "Mine-v0")
    with pytest.raises(ValueError, match="int32, signals are float32"):
        signals.check((Part("cost", (), "int32"),), "Mine-v0")
    with pytest.raises(
        ValueError, match="agent 'a' learns from the signal 'cost', and 'Hopper-v5' gives none"
    ):
        signals.require(("cost",), (), "a", "Hopper-v5")
    spec = EnvSpec("x", (1,), 1, signals=DECLARED)
    listed = {"name": "x", "observation_shape": [1], "action_size": 1}
    parts = [{"name": p.name, "shape": list(p.shape), "dtype": p.dtype} for p in DECLARED]
    assert EnvSpec.read({**listed, "signals": parts}) == spec
    assert EnvSpec.read(listed).signals == ()


def test_columns_hold_signals_of_any_shape() -> None:
    given = {"cost": np.arange(3.0), "objectives": np.arange(6.0).reshape(3, 2)}
    back = signals.unpacked(jnp.stack(signals.packed(given), axis=1), DECLARED)
    assert back.keys() == given.keys()
    for name, value in given.items():
        np.testing.assert_array_equal(back[name], value)


class Paying(gymnasium.Env):
    """The same on the host; the observation tells the step."""

    metadata = {"render_modes": [], "signals": {"cost": (), "objectives": (2,)}}  # noqa: RUF012

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-10, 10, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.spoil = {}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {"cost": 100.0}

    def step(self, action: Any) -> Any:
        self.time += 1
        info = {
            "cost": float(self.time),
            "objectives": np.array([self.time, -self.time]),
        } | self.spoil
        info = {name: value for name, value in info.items() if value is not None}
        return np.full(1, self.time, np.float32), 1.0, self.time == 3, False, info


def hosted(kind: str) -> Hosted:
    modes = {"same step": AutoresetMode.SAME_STEP, "next step": AutoresetMode.NEXT_STEP}
    if kind == "serial":
        return Hosted(Serial([Paying(), Paying()], "Paying"), "Paying")
    return Hosted(SyncVectorEnv([Paying] * 2, autoreset_mode=modes[kind]), "Paying")


@pytest.mark.parametrize("kind", ["serial", "same step", "next step"])
def test_vector_environments_give_the_same_signals(kind: str) -> None:
    environment = hosted(kind)
    assert environment.spec.signals == DECLARED
    environment.reset([0, 1])
    assert_sums([environment.step(np.zeros((2, 1), np.float32)) for _ in range(5)])
    environment.close()


def test_a_saved_state_holds_the_sums() -> None:
    environment, other = hosted("serial"), hosted("serial")
    action = np.zeros((2, 1), np.float32)
    environment.reset([0, 1])
    environment.step(action)
    environment.step(action)
    other.restore(TrustedState(environment.save([1, 0]) or b""))
    np.testing.assert_array_equal(other.step(action).episode_signals["cost"], [6, 6])


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (
            {"cost": None},
            EnvironmentFailed,
            "environment 1 of 'Paying' returned an info without the signal 'cost'. The info of "
            "every step must have it",
        ),
        (
            {"cost": "much"},
            EnvironmentFailed,
            "1 of 'Paying' returned the signal 'cost' = 'much', it must be one real number",
        ),
        (
            {"objectives": [1.0]},
            EnvironmentFailed,
            r"the signal 'objectives' = \[1.0\], it must be numbers of shape \(2,\)",
        ),
        ({"cost": np.nan}, FloatingPointError, "the signal 'cost' nan, it must be finite"),
    ],
)
def test_a_wrong_signal_is_one_error(spoil: Any, error: Any, message: str) -> None:
    environment = hosted("serial")
    environment.reset([0, 1])
    environment.vector_env.envs[1].spoil = spoil
    with pytest.raises(error, match=message):
        environment.step(np.zeros((2, 1), np.float32))


@pytest.mark.parametrize("robot", velocity.LIMITS)
def test_robots_pay_for_speed(robot: str) -> None:
    environment = envs.make_hosted(f"velocity/{robot}-v5", 1)
    plain = gymnasium.make(f"{robot}-v5")
    assert environment.spec.signals == (Part("cost", ()),)
    assert environment.spec.max_episode_steps == plain.spec.max_episode_steps == 1000
    environment.reset([4])
    plain.reset(seed=4)
    (wrapped,) = environment.vector_env.envs
    assert wrapped.get_wrapper_attr("limit") == velocity.LIMITS[robot]
    generator, costs = np.random.default_rng(0), []
    for time in range(40):
        if time == 20:
            wrapped.set_wrapper_attr("limit", 0.2)
        action = generator.uniform(-1, 1, (1, environment.spec.action_size)).astype(np.float32)
        step = environment.step(action)
        _, reward, ended, _, info = plain.step(environment.spaces.act(action)[0])
        speed = info["x_velocity"]
        speed = np.hypot(speed, info["y_velocity"]) if robot in ("Ant", "Humanoid") else speed
        costs.append(float(speed > wrapped.get_wrapper_attr("limit")))
        results = (step.signals["cost"], step.reward, step.terminated)
        assert [x.item() for x in results] == [costs[-1], np.float32(reward), ended]
        if ended:
            plain.reset()
    assert any(costs[20:])


@pytest.mark.slow
def test_processes_give_the_same_signals() -> None:
    both = [
        envs.make_hosted(name, 2) for name in ("velocity/Swimmer-v5", "async/velocity/Swimmer-v5")
    ]
    actions = np.random.default_rng(1).uniform(-1, 1, (30, 2, 2)).astype(np.float32)
    costs = []
    for environment in both:
        environment.reset([1, 2])
        costs.append(
            np.stack([environment.step(action).episode_signals["cost"] for action in actions])
        )
        environment.close()
    assert costs[0].any()
    np.testing.assert_array_equal(*costs)


PLAYED = [
    ("signals-x_velocity,reward_ctrl/HalfCheetah-v5", ("reward_ctrl", "x_velocity")),
    ("signals-discount/gymnax/CartPole-v1", ("discount",)),
    ("timed/signals-discount/without-1,3/gymnax/CartPole-v1", ("discount",)),
    pytest.param("signals-reward_dist/brax/reacher", ("reward_dist",), marks=pytest.mark.learn),
    pytest.param(
        "signals-reward.small_velocity,reward.upright/playground/CartpoleBalance",
        ("reward.small_velocity", "reward.upright"),
        marks=pytest.mark.learn,
    ),
]


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(("name", "expected"), PLAYED)
def test_numbers_of_any_adapter_become_signals(name: str, expected: tuple[str, ...]) -> None:
    for package, adapter in {"brax": "/brax/", "mujoco_playground": "/playground/"}.items():
        if adapter in name:
            pytest.importorskip(package)
    if not envs.is_compiled(name):
        hosted = envs.make_hosted(name, 2)
        assert tuple(part.name for part in hosted.spec.signals) == expected
        hosted.reset([0, 1])
        given = [hosted.step(np.full((2, 6), 0.5, np.float32)) for _ in range(3)]
        plain = gymnasium.make("HalfCheetah-v5")
        plain.reset(seed=1)
        info = [plain.step(np.full(6, 0.5, np.float32))[4] for _ in range(3)]
        hosted.close()
        for part in expected:
            np.testing.assert_allclose(
                [step.signals[part][1] for step in given], [x[part] for x in info], rtol=1e-6
            )
            np.testing.assert_allclose(
                given[-1].episode_signals[part][1], sum(x[part] for x in info), rtol=1e-6
            )
        return
    made = envs.make(name)
    assert tuple(part.name for part in made.spec.signals) == expected
    keys = jax.vmap(jax.random.key)(jnp.arange(2, dtype=jnp.uint32))
    action = jnp.zeros((2, *made.spec.action_shape), made.spec.action_dtype)

    @jax.jit
    def rollout() -> Any:
        state = made.reset(keys)[1]
        steps = []
        for _ in range(2):
            step, state = made.step(keys, state, action)
            steps.append(step)
        return steps

    steps = rollout()
    for part in expected:
        values = np.array([step.signals[part] for step in steps])
        np.testing.assert_allclose(steps[1].episode_signals[part], values.sum(axis=0), rtol=1e-6)
        assert np.isfinite(values).all()
        assert (values != 0).all()
    if "brax" in name:
        np.testing.assert_allclose(steps[0].signals["reward_dist"], steps[0].reward, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "signals-speed/HalfCheetah-v5",
            r"'HalfCheetah-v5' is to give the signal 'speed', and the info .* x_velocity",
        ),
        (
            "signals-cost/gymnax/CartPole-v1",
            r"'gymnax/CartPole-v1' is to give the signal 'cost', .* has discount",
        ),
        (
            "signals-discount,first/gymnax/CartPole-v1",
            r"'first', and the info of its first step has discount\. Every",
        ),
    ],
)
def test_numbers_that_an_environment_does_not_give_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        envs.make(name) if envs.is_compiled(name) else envs.make_hosted(name, 1)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("my:Env-v0", r"--env signals-cost/my:Env-v0\. .* metadata = {'signals': \['cost'\]}"),
        ("timed/signals-a/without-1/./a.py:A", "--env timed/signals-a,cost/without-1/./a.py:A"),
    ],
)
def test_an_agent_that_lacks_a_signal_says_how_to_name_it(name: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy):
        signals.require(("cost",), (), "ppo_lagrangian", name)
    with pytest.raises(ValueError, match="Columns of data sets are called signals/cost"):
        signals.require(("cost",), (), "ppo_lagrangian", "file.npz", data=True)


def test_a_full_stop_stands_for_a_slash() -> None:
    info = {"reward/upright": np.float32(2.0), "text": "no number", "pair": np.zeros(2)}
    assert signals.from_info(("reward.upright", "pair"), info, (), "x") == (
        Part("pair", (2,)),
        Part("reward.upright", ()),
    )
    assert signals.renamed(("reward.upright",), info)["reward.upright"] == 2.0


def test_names_and_values_of_signals_are_no_text() -> None:
    with pytest.raises(ValueError, match="is 'cost', it must be a list of names"):
        signals.declared("cost", "Odd")
    with pytest.raises(EnvironmentFailed, match="'cost' = '1', it must be one real number"):
        signals.of_step({"cost": "1"}, Part("cost", ()), "environment 0")
