"""The former name of `rljax.envs.tasks.box_pick`, which users' files may import."""

from rljax.envs.tasks.box_pick import *  # noqa: F403
