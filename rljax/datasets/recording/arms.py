"""Scripted experts of OGBench's arm: cube, scene and puzzle.

    trajectory  1000 transitions from a random scene, in which random tasks follow each other
    play        key frames at random times, with noise of 0.1, smoothed over half a step
    noisy       a closed loop whose actions have Gaussian noise of [1, 1, 1, 3, 10] x, with x
                uniform in [0, 0.1] per trajectory. The share `RANDOM` of actions is uniform.
    stacking    a share of cube tasks, uniform in `STACKING` per trajectory, stacks cubes
    scene       trajectories in which the cube leaves the camera's view are recorded again

Source: Park et al., arXiv:2410.20092; seohongpark/ogbench, data_gen_scripts/generate_manipspace.py
and commands.sh.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from rljax.datasets.publishers import ogbench
from rljax.datasets.recording.experts import Expert, RecordingTask, Row

# All others have 1000.
EPISODES = {"cube-triple": 3000, "cube-quadruple": 5000, "puzzle-4x5": 3000, "puzzle-4x6": 5000}
# The oracles of each family.
PARTS = {"cube": ("cube",), "scene": ("cube", "button", "drawer", "window"), "puzzle": ("button",)}
STACKING = {
    "cube-single": (0.0, 0.0),
    "cube-double": (0.0, 0.25),
    "cube-triple": (0.05, 0.35),
    "cube-quadruple": (0.1, 0.5),
    "cube-octuple": (0.0, 0.35),
}
NOISE, SPREAD = 0.1, np.array([1.0, 1.0, 1.0, 3.0, 10.0])
RANDOM = {"cube": 0.1, "scene": 0.1, "puzzle": 0.2}  # share of random actions in noisy data


class Arm(Expert):
    """OGBench's oracles move a robot's arm."""

    def __init__(self, task: RecordingTask) -> None:
        """Raises `ImportError` if the package is missing."""
        super().__init__(task)
        importlib.import_module("ogbench")  # registers the environments
        import gymnasium

        self.environment: Any = gymnasium.make(
            f"{'visual-' if task.visual else ''}{task.environment}-v0",
            terminate_at_goal=False,
            mode="data_collection",
            max_episode_steps=task.length + 1,
            disable_env_checker=True,
        )
        self.oracles = {part: self._oracle(part) for part in PARTS[task.family]}

    @staticmethod
    def published(environment: str, kind: str) -> tuple[int, int]:
        del kind
        return 1000, EPISODES.get(environment, 1000)

    def rows(self, generator: np.random.Generator, seed: int) -> list[Row]:
        rows = self._once(generator, seed)
        while self.task.family == "scene" and _out_of_view(np.stack([x["qpos"] for x in rows])):
            rows = self._once(generator)
        return rows

    def _once(self, generator: np.random.Generator, seed: int | None = None) -> list[Row]:
        noisy = self.task.kind == "noisy"
        stacking = generator.uniform(*STACKING.get(self.task.environment, (0.5, 0.5)))
        noise = generator.uniform(0, NOISE) * SPREAD
        observation, info = self.environment.reset(seed=seed)
        oracle = self.oracles[info["privileged/target_task"]]
        oracle.reset(observation, info)
        rows = []
        ended = False
        while not ended:
            if noisy and generator.random() < RANDOM[self.task.family]:
                action = generator.uniform(-1, 1, 5)
            else:
                action = np.asarray(oracle.select_action(observation, info))
                if noisy:
                    action = action + noise * generator.normal(size=5)
            action = np.clip(action, -1, 1).astype(np.float32)
            successor, _, terminated, truncated, info = self.environment.step(action)
            ended = bool(terminated or truncated)
            if oracle.done:
                # The oracle acts next on the step's `info`, which still names the finished task.
                new_target = self.environment.unwrapped.set_new_target(p_stack=stacking)
                oracle = self.oracles[new_target[1]["privileged/target_task"]]
                oracle.reset(*new_target)
            row = {"observations": observation, "actions": action, "terminals": ended}
            for key in ("qpos", "qvel", "button_states"):
                if f"prev_{key}" in info:
                    row[key] = info[f"prev_{key}"]
            rows.append(row)
            observation = successor
        return rows

    def _oracle(self, part: str) -> Any:
        form, options = "plan", {"noise": NOISE, "noise_smoothing": 0.5}
        if self.task.kind == "noisy":
            form, options = "markov", {"min_norm": 0.4}
        if self.task.family == "puzzle":
            options["gripper_always_closed"] = True
        if (form, self.task.family, part) == ("markov", "scene", "cube"):
            options["max_step"] = 100
        module = importlib.import_module(f"ogbench.manipspace.oracles.{form}.{part}_{form}")
        oracle = getattr(module, f"{part.title()}{form.title()}Oracle")
        return oracle(env=self.environment, **options)


def _out_of_view(qpos: np.ndarray) -> bool:
    """Whether the cube was ever outside the picture, and not in the drawer; `qpos` is [M, ...]."""
    _, side, height = qpos[:, ogbench.CUBES : ogbench.CUBES + 3].T
    drawer = (height >= 0.06) & (height <= 0.08)
    return bool(((side >= 0.29) | ((side <= -0.3) & ~drawer)).any())
