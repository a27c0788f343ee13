"""The former name of `rljax.envs.tasks.lights_out`, which users' files may import."""

from rljax.envs.tasks.lights_out import *  # noqa: F403
