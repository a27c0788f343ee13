"""Its dynamics are the pendulum's, and its pictures show the angles."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.envs.tasks import analytic
from rljax.envs.tasks.pendulum_pictures import PIXELS, REACH, PendulumPictures, picture

KEY = jax.random.key(0)


@pytest.mark.slow
@pytest.mark.parametrize("angle", [0.0, 0.8, -1.5, 2.5, 3.1])
def test_the_rod_points_along_its_angle(angle: float) -> None:
    seen = np.asarray(picture(jnp.float32(angle)), np.float64) / 255
    centres = (np.arange(PIXELS) + 0.5) * 2 * REACH / PIXELS - REACH
    middle = (
        np.array([(seen.sum(axis=0) * centres).sum(), -(seen.sum(axis=1) * centres).sum()])
        / seen.sum()
    )
    np.testing.assert_allclose(middle, [0.5 * np.sin(angle), 0.5 * np.cos(angle)], atol=0.02)
    assert 6 < seen.sum() < 25, "a thin rod"


def test_it_is_the_pendulum_with_its_last_three_pictures() -> None:
    task, known = PendulumPictures(), analytic.Pendulum("rljax/Pendulum")
    (seen, state), (_, other) = task.reset(KEY, None), known.reset(KEY, None)
    first = picture(other.angle)
    np.testing.assert_array_equal(seen, np.stack([first] * 3, axis=-1))
    pictures = [first] * 3
    step, step_known = jax.jit(task.step), jax.jit(known.step)
    for action in np.linspace(-1, 1, 5).astype(np.float32):
        seen, state, reward, *_ = step(KEY, state, action[None], None)
        _, other, expected, *_ = step_known(KEY, other, action[None], None)
        pictures.append(picture(other.angle))
        assert float(reward) == float(expected)
        np.testing.assert_array_equal(seen, np.stack(pictures[-3:], axis=-1))
    assert np.unique(seen).size > 5
    film = PendulumPictures().render(state)
    assert (film.shape, film.dtype) == ((240, 240, 3), np.uint8)
    np.testing.assert_array_equal(film[::15, ::15, 0], pictures[-1])
