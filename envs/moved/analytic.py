"""The former name of `rljax.envs.tasks.analytic`, which users' files may import."""

from rljax.envs.tasks.analytic import *  # noqa: F403
