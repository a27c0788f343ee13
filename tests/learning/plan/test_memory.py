"""The memory of a run."""

from __future__ import annotations

import re
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest

from rljax import buffers
from rljax.agent import EnvSpec
from rljax.envs.autoreset import AutoReset
from rljax.learning.drivers.compiled import CompiledDriver
from rljax.learning.learner import Learner
from rljax.learning.plan import memory, refusals
from rljax.learning.settings import Settings
from rljax.system import hardware
from tests.helpers.counting import Counter, Fake, settings

GB = 10**9


def test_a_run_that_does_not_fit_gets_a_table() -> None:
    parts, remedies = {"agents": GB, "replay": 3 * GB}, {"agents": "Fewer.", "replay": "Smaller."}
    memory.require_room(parts, 4 * GB, "cpu", remedies)
    memory.require_room(parts, None, "cpu", remedies)
    expected = (
        r"^the run needs 4\.0 GB on cpu, 2\.0 GB are there\. Smaller\.\n"
        r"  replay +3\.0 GB\n  agents +1\.0 GB$"
    )
    with pytest.raises(ValueError, match=expected):
        memory.require_room(parts, 2 * GB, "cpu", remedies)


@pytest.mark.parametrize(
    ("changes", "num_envs", "on_host", "message"),
    [
        ({}, 8, True, None),
        (
            {"eval_episodes": 10**9},
            1,
            True,
            r"Lower --eval-episodes or --seeds\.\n  1 x 1,000,000,000 environments of e",
        ),
        ({"eval_episodes": 10**9}, 1, False, r"Lower --eval-episodes or --seeds"),
        (
            {"seeds": tuple(range(1000))},
            10**6,
            True,
            r"Lower --config\.num-envs or --seeds\.\n  1,000 x 1,000,000 env",
        ),
        ({"env": "none", "eval_episodes": 10**9}, 1, True, None),
    ],
)
def test_environments_are_counted_before_they_are_made(
    changes: dict[str, Any],
    num_envs: int,
    on_host: bool,
    message: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "available_memory", lambda: 8 * GB)
    asked = Settings(**({"agent": "sac", "env": "Some", "eval_episodes": 1} | changes))
    experience = buffers.Replay(replay_size=num_envs, batch_size=1, num_envs=num_envs)
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        memory.require_environments(asked, experience, on_host)


def test_memory_is_that_of_the_shapes() -> None:
    """Nothing of such a size is allocated."""
    config = settings(1000, num_envs=10**6, replay_size=10**9, batch_size=10**8, num_updates=2)
    environment = AutoReset(Counter())
    learner = Learner(Fake(), environment.spec, 1000)
    driver = CompiledDriver(learner, environment, config)
    template = driver.template(range(1000))
    sizes_of = memory.memory(template, learner, driver.hyper, None)
    row = 4 * (2 + 2 + 1 + 1 + 1) + 2  # two observations, action, reward, `acted`; two flags
    assert sizes_of["replay"] == 1000 * 10**9 * row + 8
    assert sizes_of["batches of an iteration"] == pytest.approx(1000 * 2 * 10**8 * row)
    assert sizes_of["agents"] == hardware.nbytes(template["agent"])
    assert sizes_of["copies of the agents"] == 2 * sizes_of["agents"]
    assert sizes_of["environments"] > 1000 * 10**6 * 4 * 2


class Wide(Fake):
    def update(self, state: Any, batch: Any, key: Any, step: Any, config: Any) -> Any:
        new, metrics = super().update(state, batch, key, step, config)
        return new, metrics | {"wide": (batch.observation @ jnp.ones((2, 10**9))).mean()}


def test_layers_of_an_update_are_counted() -> None:
    learner, config = Learner(Wide(), EnvSpec("Some", (2,), 1), 3), settings(3, num_updates=2)
    driver = CompiledDriver(learner, AutoReset(Counter()), config)
    found = memory.memory(driver.template(range(3)), learner, driver.hyper, None)
    assert found["layers of an update"] == 3 * 4 * 10**9 * 4


REPLAY = buffers.Replay(replay_size=1000, batch_size=32, warmup_steps=100)


@pytest.mark.parametrize(
    ("experience", "steps", "iteration", "on_host", "message"),
    [
        (REPLAY, 100, 1, False, None),
        (
            REPLAY,
            99,
            1,
            False,
            (
                r"first update comes after 100 environment steps .* there are 99\. "
                r".*config\.warmup-steps\.$"
            ),
        ),
        (REPLAY, 100, 1, True, r"first update comes after 101 environment steps"),
        (REPLAY, 101, 1, True, None),
        (
            buffers.Replay(replay_size=64, batch_size=32),
            31,
            1,
            False,
            r"or lower --config\.batch-size\.$",
        ),
        (buffers.Rollout(num_envs=2, num_steps=8), 16, 16, False, None),
        (
            buffers.Rollout(num_envs=2, num_steps=8),
            16,
            16,
            True,
            r"after 32 .*lower --config\.num-envs or --config\.num-s",
        ),
        (buffers.Stream(), 1, 1, True, None),
        (buffers.Dataset(batch_size=32), 1, 1, True, None),
    ],
)
def test_a_run_without_an_update_is_announced(
    experience: Any, steps: int, iteration: int, on_host: bool, message: str | None
) -> None:
    warning = experience.idle(steps, iteration, on_host, "--steps")
    assert (warning is None) == (message is None)
    assert re.search(message or "", warning or "")


def test_a_run_without_an_update_is_refused_unless_it_is_meant() -> None:
    spec = EnvSpec("Some", (2,), 1, max_episode_steps=200)
    hyper = SimpleNamespace(experience=REPLAY)
    stages = [SimpleNamespace(driver=SimpleNamespace(hyper=hyper), iteration=1, end=99)]
    meant = Settings("sac", "Some", 99, without_updates=True)
    (warning,) = refusals.warnings(stages, meant, spec, None, False)
    with pytest.raises(ValueError, match=r"there are 99.*--without-updates` trains all the same"):
        list(refusals.warnings(stages, Settings("sac", "Some", 99), spec, None, False))
    stages[0].end = 100
    assert not list(refusals.warnings(stages, Settings("sac", "Some"), spec, None, False))
    assert warning.startswith("nothing will be learnt")


def test_numbers_that_hardly_mean_what_they_say_are_announced() -> None:
    spec = EnvSpec("Some", (2,), 1, max_episode_steps=200)
    asked = Settings("sac", "Some", eval_every=10, eval_episodes=100_000, seeds=(0,))
    long = buffers.Replay(
        replay_size=1000, batch_size=32, draw=buffers.NStep(steps=300, discount=jnp.float32(0.9))
    )
    found = list(refusals.oddities(asked, [long], spec, 20, True))
    starts = [
        "--config.batch-size 32 is more than the data set's 20 rows",
        "--config.n-step 300 is more than the 200 steps of the longest episode",
        "each evaluation plays 100,000 episodes with each learner, which are up to "
        "20,000,000 steps, after 10",
        "100,001 environments are created on the host",
    ]
    for text, start in zip(found, starts, strict=True):
        assert text.startswith(start)
    assert not list(refusals.oddities(Settings("sac", "Some"), [REPLAY], spec, None, True))
