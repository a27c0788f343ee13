"""A fixture for Gymnasium's environments."""

from collections.abc import Iterator

import gymnasium
import pytest

from tests.envs.host.walk import Walk


@pytest.fixture
def walk_is_registered() -> Iterator[None]:
    """Restores Gymnasium's registry after the test."""
    before = dict(gymnasium.registry)
    register = gymnasium.register
    register("Walk-v0", Walk, max_episode_steps=12)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)
