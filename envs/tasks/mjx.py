"""Gymnasium's MuJoCo tasks, version 5, on MJX: `rljax/HalfCheetah`, `rljax/Hopper` and
`rljax/Walker2d`; docs/environments.md has the differences.

`rljax/velocity/HalfCheetah` and so on have the limits of `rljax.envs.host.robots.velocity`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, EnvSpec, Part
from rljax.envs.environment import StepResult, foreign, silent_mujoco

INFINITE = float("inf")
ANY = (-INFINITE, INFINITE)
LIMITED = "rljax/velocity/"  # prefix of tasks with a limit on their velocity


class RobotTask(NamedTuple):
    """The settings in which the tasks differ."""

    file: str  # in gymnasium/envs/mujoco/assets
    frame_skip: int  # steps of the simulator per action
    control_cost: float  # the weight of the sum of squared actions
    healthy_reward: float  # for each step that does not end the episode
    healthy_height: tuple[float, float]  # m, of the torso
    healthy_angle: tuple[float, float]  # in rad, of the torso
    healthy_state: float  # the bound of all other positions and velocities
    max_speed: float  # observed velocities are clipped to this
    noise: float  # the scale of the noise on first states
    normal: bool  # whether the noise on first velocities is normal, else uniform


TASKS = {
    "HalfCheetah": RobotTask(
        "half_cheetah.xml", 5, 0.1, 0.0, ANY, ANY, INFINITE, INFINITE, 0.1, True
    ),
    "Hopper": RobotTask(
        "hopper.xml", 4, 1e-3, 1.0, (0.7, INFINITE), (-0.2, 0.2), 100.0, 10.0, 5e-3, False
    ),
    "Walker2d": RobotTask(
        "walker2d_v5.xml", 4, 1e-3, 1.0, (0.8, 2.0), (-1.0, 1.0), INFINITE, 10.0, 5e-3, False
    ),
}


class MJXState(struct.PyTreeNode):
    """The state of the simulator between steps."""

    qpos: Array  # [Q]; the first, along the track, is 0: float32 is coarse far from 0
    qvel: Array  # [V]
    warmstart: Array  # [V], accelerations with which the contact solver begins


class MJX:
    """The task called `name`. With a limit it has the signal "cost": 1 in a step that is faster,
    else 0.
    """

    params = None
    limit: float | None = None  # in m/s

    def __init__(self, name: str) -> None:
        if name.startswith(LIMITED):
            velocity = importlib.import_module("rljax.envs.host.robots.velocity")
            self.limit = velocity.LIMITS[name.removeprefix(LIMITED)]
        mujoco: Any = importlib.import_module("mujoco")
        self.mjx: Any = importlib.import_module("mujoco.mjx")
        self.task = TASKS[name.rpartition("/")[2]]
        gymnasium: Any = importlib.import_module("gymnasium")
        assets = Path(gymnasium.__file__).parent / "envs/mujoco/assets"
        with silent_mujoco(), foreign(name):
            self.mujoco = mujoco.MjModel.from_xml_path(str(assets / self.task.file))
            self.model = self.mjx.put_model(self.mujoco)
        size = self.mujoco.nq - 1 + self.mujoco.nv
        signals = () if self.limit is None else (Part("cost", ()),)
        self.spec = EnvSpec(name, (size,), self.mujoco.nu, max_episode_steps=1000, signals=signals)
        self.dt = self.mujoco.opt.timestep * self.task.frame_skip

    def reset(self, key: Array, params: Any = None) -> tuple[Array, MJXState]:
        """Begin an episode near the model's initial state."""
        key_qpos, key_qvel = jax.random.split(key)
        scale, shape = self.task.noise, (self.mujoco.nv,)
        noise = jax.random.uniform(key_qpos, (self.mujoco.nq,), minval=-scale, maxval=scale)
        qpos = jnp.asarray(self.mujoco.qpos0) + noise
        if self.task.normal:
            qvel = scale * jax.random.normal(key_qvel, shape)
        else:
            qvel = jax.random.uniform(key_qvel, shape, minval=-scale, maxval=scale)
        state = MJXState(qpos.at[0].set(0.0), qvel, jnp.zeros_like(qvel))
        return self._observation(qpos, qvel), state

    def step(self, key: Array, state: MJXState, action: Array, params: Any = None) -> StepResult:
        """Apply one action."""
        with foreign(self.spec.name):
            data = self.mjx.make_data(self.model).replace(
                qpos=state.qpos, qvel=state.qvel, qacc_warmstart=state.warmstart, ctrl=action
            )
            data = jax.lax.fori_loop(
                0, self.task.frame_skip, lambda _, data: self.mjx.step(self.model, data), data
            )
        speed = data.qpos[0] / self.dt
        healthy = self._healthy(data.qpos, data.qvel)
        cost = self.task.control_cost * jnp.square(action).sum()
        reward = speed + self.task.healthy_reward * healthy - cost
        state = MJXState(data.qpos.at[0].set(0.0), data.qvel, data.qacc_warmstart)
        observation, never = self._observation(data.qpos, data.qvel), jnp.zeros((), jnp.bool_)
        info = {"x_velocity": speed}
        if self.limit is not None:
            info["cost"] = (speed > self.limit).astype(jnp.float32)
        return observation, state, reward, ~healthy, never, info

    def _observation(self, qpos: Array, qvel: Array) -> Array:
        limit = self.task.max_speed
        return jnp.concatenate([qpos[1:], jnp.clip(qvel, -limit, limit)])

    def _healthy(self, qpos: Array, qvel: Array) -> Array:
        (low, high), (left, right) = self.task.healthy_height, self.task.healthy_angle
        upright = (low < qpos[1]) & (qpos[1] < high) & (left < qpos[2]) & (qpos[2] < right)
        others = jnp.concatenate([qpos[2:], qvel])
        return upright & (jnp.abs(others) < self.task.healthy_state).all()


ENVIRONMENTS = {f"{prefix}{task}": MJX for prefix in ("rljax/", LIMITED) for task in TASKS}
