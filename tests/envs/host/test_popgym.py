"""POPGym through Gymnasium: tasks that need a memory."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from rljax import envs

pytest.importorskip("popgym")


def test_steps_are_those_of_the_package() -> None:
    name = "popgym-RepeatPreviousEasy-v0"
    with pytest.warns(UserWarning, match="observes a Discrete: it is flattened to 4 numbers"):
        environments = envs.make_hosted(f"popgym:{name}", 2)
    own = gymnasium.make(name)
    assert (environments.spec.observation_shape, environments.spec.action_size) == ((4,), 4)
    seen, (expected, _) = environments.reset([3, 4]), own.reset(seed=3)
    for action in (0, 1, 2, 3, 0, 1):
        np.testing.assert_array_equal(seen[0], np.eye(4)[expected])
        step = environments.step(np.full(2, action, np.int32))
        expected, reward, *_ = own.step(action)
        np.testing.assert_allclose(step.reward[0], reward, rtol=1e-6)
        seen = step.observation
    environments.close()


@pytest.mark.filterwarnings("ignore:.* it is flattened")
def test_all_of_its_tasks_can_be_made() -> None:
    names = [name for name in gymnasium.registry if name.startswith("popgym-")]
    assert len(names) > 40
    for name in names:
        environments = envs.make_hosted(f"popgym:{name}", 1)
        environments.reset([0])
        environments.close()
