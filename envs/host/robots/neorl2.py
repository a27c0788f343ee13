"""NeoRL-2's SafetyHalfCheetah: `rljax.envs.host.robots.neorl2:SafetyHalfCheetah-v0`.

HalfCheetah-v5 that also observes its position. Importing this module registers it. Run folders and
data sets store its id: the module must keep its name.

Source: Gao et al., NeoRL-2, arXiv:2503.19267; polixir/NeoRL2 at b50d91d, envs/safetyhalfcheetah.py
and its reward.
"""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.envs.registration import WrapperSpec

LIMIT = 3.2096  # m/s
PENALTY = -100.0


class SpeedLimit(gymnasium.Wrapper):
    """The reward is `PENALTY` where the step's mean velocity along x exceeds `LIMIT`."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Apply one action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if info["x_velocity"] > LIMIT:
            reward = PENALTY
        return observation, reward, terminated, truncated, info


gymnasium.register(
    "SafetyHalfCheetah-v0",
    entry_point="gymnasium.envs.mujoco.half_cheetah_v5:HalfCheetahEnv",
    max_episode_steps=1000,
    additional_wrappers=(WrapperSpec("SpeedLimit", f"{__name__}:SpeedLimit", {}),),
    kwargs={"exclude_current_positions_from_observation": False},
)
