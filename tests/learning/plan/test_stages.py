"""The plan of a training."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np
import pytest

from rljax import buffers, datasets
from rljax.agent import EnvSpec, Transition
from rljax.agents import dqn, fql, iql, ppo, sac, stream_q
from rljax.learning import configuration
from rljax.learning.drivers.compiled import CompiledDriver
from rljax.learning.drivers.offline import OfflineDriver
from rljax.learning.plan import Experiment, plan
from rljax.learning.plan.refusals import require_fit
from rljax.learning.settings import Settings
from tests.helpers.counting import assert_equal, one, recorded
from tests.helpers.replay_buffers import sample

SMALL: Any = {"hidden": (8,), "batch_size": 32, "replay_size": 300}


def planned(
    module: Any, env: str, steps: int, config: dict[str, Any], dataset: Any = None, **settings: Any
) -> Any:
    name = module.__name__.rpartition(".")[2]
    asked = Settings(name, env, steps, data=None if dataset is None else "recorded.npz", **settings)
    config = configuration.replace(module.Config(), SMALL | config, "test")
    return plan(Experiment(asked, module, config, dataset))


# Settings that change online.


def from_data(
    seeds: tuple[int, ...] = (0,), config: dict[str, Any] | None = None, **settings: Any
) -> Any:
    config = {"decay_steps": None} | (config or {})
    return planned(
        iql, "rljax/Pendulum", 4, config, recorded(), then_online=6, seeds=seeds, **settings
    )


def test_settings_change_when_a_run_goes_on_online() -> None:
    online = {"actor_lr": 1e-4, "batch_size": 16, "num_updates": 2, "num_envs": 3}
    made = from_data(online=online)
    offline, after = made.stages
    assert (type(offline.driver), type(after.driver)) == (OfflineDriver, CompiledDriver)
    assert after.config == dataclasses.replace(offline.config, **online)
    for stage, rate in ((offline, 3e-4), (after, 1e-4)):
        np.testing.assert_allclose(stage.driver.hyper.config.actor_lr, [rate], rtol=1e-6)
    before, declared = offline.driver.hyper.experience, after.driver.hyper.experience
    assert (before.kind, before.batch_size, before.num_updates) == ("dataset", 32, 1)
    assert (declared.kind, declared.batch_size) == ("mixed", 16)
    assert (declared.num_updates, declared.num_envs) == (2, 3)
    assert (offline.iteration, after.iteration) == (1, 3)
    assert (offline.end, after.end, made.multiple) == (6, 12, 3)


def test_without_changes_both_stages_have_the_same_settings() -> None:
    offline, after = from_data().stages
    assert offline.config == after.config
    assert (offline.end, after.end) == (4, 10)


def test_values_of_each_learner_change_online_too() -> None:
    offline, after = from_data(
        (0, 1), {"critic_lr": [1e-3, 2e-3]}, online={"actor_lr": [1e-4, 2e-4]}
    ).stages
    np.testing.assert_allclose(offline.driver.hyper.config.actor_lr, [3e-4, 3e-4], rtol=1e-6)
    np.testing.assert_allclose(after.driver.hyper.config.actor_lr, [1e-4, 2e-4], rtol=1e-6)
    np.testing.assert_allclose(after.driver.hyper.config.critic_lr, [1e-3, 2e-3], rtol=1e-6)


@pytest.mark.parametrize(
    ("online", "error", "message"),
    [
        ({"actor_rl": 1.0}, ValueError, r"^--online: no setting 'actor_rl'\. Nearest: 'actor_lr'"),
        (
            {"actor_lr": "fast"},
            TypeError,
            r"^--online: 'actor_lr' is 'fast', it must be a number\.$",
        ),
        ({"num_steps": 0}, ValueError, r"^--config\.num-steps is 0, it must be at least 1\.$"),
        (
            {"batch_size": 400},
            ValueError,
            r"^--config\.batch-size is 400, more than --config\.replay-size 300",
        ),
    ],
)
def test_wrong_changes_are_refused(
    online: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        from_data(online=online)


def test_a_learning_rate_that_has_fallen_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"^the actor's learning rate of 'iql' falls to 0 at update 5, before the end",
    ):
        from_data(config={"decay_steps": 5})
    with pytest.raises(ValueError, match=r"falls to 0 at update 5"):
        from_data((0, 1), {"decay_steps": [1e6, 5.0]})
    from_data(config={"decay_steps": 10})


# Settings that follow the run's length.

FOLLOWING: dict[Any, tuple[str, dict[str, Any]]] = {
    ppo: (
        "decay_steps",
        {
            "actor_hidden": (8,),
            "critic_hidden": (8,),
            "num_envs": 2,
            "num_steps": 5,
            "batch_size": 5,
        },
    ),
    dqn: ("epsilon_steps", {"hidden": (8,), "batch_size": 8, "replay_size": 100}),
    stream_q: ("epsilon_steps", {"hidden": (8,)}),
}


def following(module: Any, value: Any, steps: int, **settings: Any) -> Any:
    name, changes = FOLLOWING[module]
    asked = Settings(module.__name__.rpartition(".")[2], "gymnax/CartPole-v1", steps, **settings)
    config = configuration.replace(module.Config(), changes | {name: value}, "test")
    return plan(Experiment(asked, module, config, None))


@pytest.mark.slow
@pytest.mark.parametrize("module", FOLLOWING, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_share_follows_the_length_of_the_run(module: Any) -> None:
    name = FOLLOWING[module][0]
    for value, steps, expected in (
        (0.5, 1_000, 500.0),
        (0.5, 4_000, 2_000.0),
        (1.0, 3_000, 3_000.0),
        (700.0, 1_000, 700),
    ):
        made = following(module, value, steps)
        assert getattr(made.stages[0].driver.hyper.config, name) == expected
        assert getattr(made.stages[0].config, name) == value
    each = following(module, (0.5, 700.0), 1_000, seeds=(0, 1)).stages[0].driver.hyper.config
    np.testing.assert_array_equal(getattr(each, name), [500, 700])


def test_a_share_counts_the_updates_online_too() -> None:
    made = from_data(config={"decay_steps": 1.0}, online={"num_updates": 2})
    assert [float(stage.driver.hyper.config.decay_steps[0]) for stage in made.stages] == [16, 16]
    assert made.warnings == ()


def test_a_rate_of_0_before_the_end_is_said() -> None:
    (said,) = following(ppo, 400.0, 1_000).warnings
    assert said.startswith(
        "the learning rate of 'ppo' falls to 0 at step 400, and the run has 1,000 steps"
    )
    for value in (1.0, 990.0, 5_000.0, None):
        assert following(ppo, value, 1_000).warnings == ()


# A data set beside new experience.


@pytest.mark.parametrize(
    ("share", "expected"), [(0.25, 0.25), ("pooled", "pooled"), ("0.5:0:2e2", (0.5, 0.0, 200))]
)
def test_new_experience_is_mixed_with_a_data_set(share: Any, expected: Any) -> None:
    (stage,) = planned(sac, "rljax/Pendulum", 100, {}, recorded(), offline_share=share).stages
    declared = stage.driver.hyper.experience
    names = ("replay_size", "batch_size", "warmup_steps")
    sizes = {name: getattr(stage.config, name) for name in names}
    assert declared == buffers.Mixed(**sizes, offline_share=expected)
    assert stage.driver.data is not None


# Goals in hindsight, and floats of learners in their draws.

BOX: Any = {
    "num_envs": 4,
    "num_steps": 50,
    "replay_size": 1_000,
    "batch_size": 64,
    "warmup_steps": 10**6,
}


def test_hindsight_is_told_the_environment() -> None:
    made = planned(dqn, "rljax/BoxPick-2x4", 100, BOX | {"hindsight": 0.5})
    driver = made.stages[0].driver
    draw = driver.hyper.experience.draw
    assert isinstance(draw, buffers.Hindsight)
    assert draw.environment is driver.loop.simulators.environment.environment
    assert dqn.experience(made.stages[0].config).draw.environment is None
    driver.reconfigure(
        configuration.stack(dataclasses.replace(made.stages[0].config, hindsight=0.25), 1)
    )
    assert driver.hyper.experience.draw.environment is draw.environment
    np.testing.assert_array_equal(driver.hyper.experience.draw.share, [0.25])


def with_hindsight(then_online: int, **changes: Any) -> Any:
    data = recorded()
    shown = np.zeros((len(data.transitions.reward), 6), np.float32)  # as in the maze
    rows = data.transitions.replace(
        observation=shown, next_observation=shown, action=shown[:, :2], extras={}
    )
    data = dataclasses.replace(data, transitions=rows, env="rljax/GoalMaze")
    config = {"decay_steps": None, "hindsight": 0.5} | changes
    return planned(iql, "rljax/GoalMaze", 4, config, data, then_online=then_online)


def test_hindsight_of_an_agent_of_data_begins_in_the_environment() -> None:
    offline, online = with_hindsight(6).stages
    assert offline.driver.hyper.experience.kind == "dataset"
    declared = online.driver.hyper.experience
    draw, environment = declared.draw, online.driver.loop.simulators.environment.environment
    assert (declared.kind, type(draw)) == ("mixed", buffers.Hindsight)
    assert draw.environment is environment
    np.testing.assert_array_equal(draw.share, [0.5])


def test_hindsight_of_data_alone_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--config\.hindsight changes new experience.*then-onl"):
        with_hindsight(0)


def test_goals_of_chunks_cannot_be_replaced() -> None:
    with pytest.raises(ValueError, match=r"chunk-length sums rewards of chunks that --config\.hin"):
        fql.experience(fql.Config(chunk_length=3, hindsight=0.5))


@pytest.mark.parametrize("env", ["CartPole-v1", "rljax/LightsOut-3x3"])
def test_hindsight_is_refused_where_observations_hold_no_goals(env: str) -> None:
    with pytest.raises(
        ValueError,
        match=rf"^--config\.hindsight replaces goals, and the observations of '{env}' hold",
    ):
        planned(dqn, env, 100, {"hindsight": 0.5})


@pytest.mark.learn
@pytest.mark.parametrize("kind", [{"n_step": 3}, {"hindsight": 1.0}])
def test_learners_with_other_discounts_draw_as_each_alone(kind: dict[str, Any]) -> None:
    def driven(seeds: tuple[int, ...], discount: Any) -> Any:
        config = BOX | kind | {"discount": discount}
        driver = planned(dqn, "rljax/BoxPick-2x4", 300, config, seeds=seeds).stages[0].driver
        driver.start(seeds)
        driver.advance(6)  # 300 steps: round the ring
        return driver

    def batches(driver: Any) -> Any:
        learners, experience = driver.learners, driver.hyper.experience
        keys = driver.learner.batch_keys(learners.key_update, learners.updates)
        return sample(experience, learners.storage, None, keys)

    together = batches(driven((3, 5), [0.3, 0.95]))
    for learner, (seed, discount) in enumerate([(3, 0.3), (5, 0.95)]):
        alone = driven((seed,), discount)
        drawn = batches(alone)
        assert_equal(one(together, learner), one(drawn, 0), rtol=1e-6)
        alone.reconfigure(dataclasses.replace(alone.hyper.config, discount=jax.numpy.full(1, 0.6)))
        same = jax.tree.map(np.array_equal, drawn, batches(alone))
        assert not all(jax.tree.leaves(same)), "the discount counts"


@pytest.mark.parametrize(
    ("actions", "known", "number", "message"),
    [
        ([0, 0], None, 3, None),
        ([0, 2], None, 3, None),
        ([0, 3], None, 3, "has action_size = 4, environment 'CartPole' has 3"),
        ([0, 0], 2, 3, "has action_size = 2, environment 'CartPole' has 3"),
        (
            [[0.0], [1.0]],
            None,
            3,
            "are whole numbers, stored as real ones, and 'CartPole' has 3 discrete actions",
        ),
        ([[0.5], [1.0]], None, 3, "has discrete = False, environment 'CartPole' has True"),
    ],
)
def test_the_environment_says_how_many_actions_there_are(
    actions: Any, known: Any, number: int, message: Any
) -> None:
    column: Any = np.zeros(2, np.float32)
    action: Any = np.array(actions)
    transitions = Transition(column[:, None], action, column, column, column, column[:, None])
    data = datasets.OfflineDataset("a.npz", transitions, None, None, None, {"num_actions": known})
    spec = EnvSpec("CartPole", (1,), number, True)
    refusal = pytest.raises(ValueError, match=message) if message else nullcontext()
    with refusal:
        require_fit(data, spec, buffers.Dataset(batch_size=1))
