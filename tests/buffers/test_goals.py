"""Goals drawn from data that hold none."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from rljax import buffers, datasets, envs
from rljax.agent import Transition
from rljax.agents import gcbc, gciql, hiql, iql
from rljax.buffers import windows
from rljax.learning import configuration, plan
from rljax.learning.settings import Settings
from rljax.runs import records, run
from rljax.runs.policies import collect, evaluate, loading
from tests.environments import goal_field
from tests.helpers import small_runs
from tests.runs import parts

LENGTHS = (1, 7, 40, 2, 130)  # of trajectories
DISCOUNT = 0.9
ENV = "tests.environments.goal_field:Field-v0"
ALWAYS: Any = {"value_goal_current": 0.0, "value_goal_future": 1.0}  # later ones


def data(lengths: tuple[int, ...] = LENGTHS) -> Transition:
    """States that say their row; every other trajectory ends by itself."""
    ends = np.cumsum(lengths) - 1
    number = ends[-1] + 1
    row, last = np.arange(number, dtype=np.float32), np.isin(np.arange(number), ends)
    own = last & (np.repeat(np.arange(len(lengths)), lengths) % 2 == 1)
    columns: Any = (np.stack([row, -row], axis=1), row[:, None], 7.0 + row, own, last & ~own)
    successor: Any = np.stack([row + 0.5, -row], axis=1)
    return Transition(*columns, successor)


def settings(**changes: Any) -> Any:
    known = {
        "value_goal_current": (0.2, 0.1),
        "value_goal_future": (0.5, 0.7),
        "discount": (DISCOUNT, 0.5),
    }
    config = gciql.Config(batch_size=500, num_updates=40)
    return configuration.stack(dataclasses.replace(config, **(known | changes)), 2)


def drawn(config: Any, seed: int = 0, lengths: tuple[int, ...] = LENGTHS) -> tuple[Any, Any]:
    """Two learners' batches, and the rows [P, U x B] of states, of values' and of actors' goals."""
    declared = gciql.experience(config)
    prepared = jax.tree.map(jax.numpy.asarray, declared.prepare(data(lengths)))
    sample = jax.jit(lambda declared, data, keys: declared.sample(None, data, keys))
    batch = jax.tree.map(
        np.asarray, sample(declared, prepared, jax.random.split(jax.random.key(seed)))
    )
    columns = (
        batch.observation[..., 0],
        batch.observation[..., 2],
        batch.extras["actor_observation"][..., 2],
    )
    return batch, [column.reshape(2, -1).astype(int) for column in columns]


def last_rows(lengths: tuple[int, ...] = LENGTHS) -> np.ndarray:
    return np.repeat(np.cumsum(lengths) - 1, lengths)


def agree(counts: np.ndarray, expected: np.ndarray) -> None:
    """Counts are draws with these expectations: chi square has mean k and variance 2 k."""
    known = expected > 5
    freedom = known.sum() - 1
    chi_square = (np.square(counts - expected)[known] / expected[known]).sum()
    assert abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom) + 1


def test_a_trajectory_ends_in_one_row_for_all_of_its_rows() -> None:
    np.testing.assert_array_equal(windows.with_last_rows(data()).extras[windows.LAST], last_rows())
    whole = data()
    cut = jax.tree.map(lambda x: x[:-30], whole)  # the end of the file ends the last one
    np.testing.assert_array_equal(
        windows.with_last_rows(cut).extras[windows.LAST], last_rows((1, 7, 40, 2, 100))
    )
    assert not cut.truncated[-1], "what was given stays as it was"


def test_transitions_are_whole_and_relabelled() -> None:
    batch, (row, value, actor) = drawn(settings())
    assert batch.observation.shape == (2, 40, 500, 4)
    flat = jax.tree.map(lambda x: x.reshape(2, -1, *x.shape[3:]), batch)
    given = data()
    for learner in range(2):
        here, goal, own = row[learner], value[learner], actor[learner]
        before, after = given.observation[here], given.next_observation[here]
        for found, expected in (
            (flat.action, given.action[here]),
            (flat.truncated, given.truncated[here]),
            (flat.observation, np.hstack([before, given.observation[goal]])),
            (flat.next_observation, np.hstack([after, given.observation[goal]])),
            (flat.extras["actor_observation"], np.hstack([before, given.observation[own]])),
            (flat.reward, np.where(here == goal, 0.0, -1.0)),
            (flat.terminated, here == goal),
        ):
            np.testing.assert_array_equal(found[learner], expected)
    assert (batch.reward.dtype, batch.terminated.dtype) == (np.float32, np.bool_)
    assert list(batch.extras) == ["actor_observation"]


def test_every_row_is_drawn_equally_often() -> None:
    _, (row, _, _) = drawn(settings())
    number = sum(LENGTHS)
    for learner in range(2):
        agree(np.bincount(row[learner], minlength=number), np.full(number, row.shape[1] / number))


def test_kinds_of_goals_have_their_shares() -> None:
    lengths = (1_000,) * 10
    _, (row, value, actor) = drawn(settings(), lengths=lengths)
    last = last_rows(lengths)
    for learner, (current, future) in enumerate([(0.2, 0.5), (0.1, 0.7)]):
        here, goal = row[learner], value[learner]
        inside = (goal > here) & (goal <= last[here])
        most = 4 * np.sqrt(0.25 / len(here)) + 2e-3
        # Of goals from anywhere 1 in 10,000 is the state itself, 1 in 20 lies later on.
        assert abs((goal == here).mean() - current) < most
        assert abs(inside.mean() - future - 0.05 * (1.0 - current - future)) < most
        assert (actor[learner] > here)[here < last[here]].all(), "always later, but in the last row"


def test_goals_from_the_future_are_in_the_same_trajectory() -> None:
    _, (row, value, actor) = drawn(settings(**ALWAYS))
    last = last_rows()
    for goal in (value, actor):
        assert (goal <= last[row]).all()
        assert (goal > row)[row < last[row]].all(), "the state itself is none"
        np.testing.assert_array_equal(goal[row == last[row]], row[row == last[row]])


@pytest.mark.slow
@pytest.mark.parametrize("times", ["geometric", "even"])
def test_how_much_later_goals_are(times: str) -> None:
    config, lengths, last = settings(**ALWAYS, value_goal_times=times), (12,) * 3, 11
    rows = np.concatenate([drawn(config, seed, lengths)[1] for seed in range(3)], axis=-1)
    for learner, discount in enumerate([DISCOUNT, 0.5]):
        here, goal = rows[0, learner] % 12, rows[1, learner] % 12
        for start in (0, 6, 9):
            waited = goal[here == start] - start
            chances = (1.0 - discount) * discount ** np.arange(last - start)  # of 1, 2, ... steps
            chances[-1] = discount ** (last - start - 1)  # all that lies behind the end
            if times == "even":
                chances = np.full(last - start, 1.0 / (last - start))
            agree(np.bincount(waited, minlength=last - start + 1)[1:], len(waited) * chances)


def test_goals_from_anywhere_are_any_row() -> None:
    _, (row, value, _) = drawn(settings(value_goal_current=0.0, value_goal_future=0.0))
    number = sum(LENGTHS)
    for learner in range(2):
        agree(
            np.bincount(value[learner], minlength=number), np.full(number, value.shape[1] / number)
        )
        assert abs((value[learner] == row[learner]).mean() - 1 / number) < 5e-3


def subgoals(steps: int, option_steps: int) -> tuple[Any, Any]:
    """A learner's batch [U x B, ...], and rows of states, goals and states ahead by their names."""
    shares: Any = {"value_goal_current": 0.3, "value_goal_future": 0.4, "actor_goal_future": 0.5}
    config = hiql.Config(batch_size=500, num_updates=4, discount=DISCOUNT, **shares)
    config = dataclasses.replace(config, subgoal_steps=steps, option_steps=option_steps)
    declared = hiql.experience(configuration.stack(config, 1))
    prepared = jax.tree.map(jax.numpy.asarray, declared.prepare(data()))
    keys = jax.random.split(jax.random.key(1), 1)
    batch = jax.tree.map(np.asarray, declared.sample(None, prepared, keys))
    batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), batch)
    pairs = {name: x for name, x in batch.extras.items() if name.endswith("observation")}
    for pair in pairs.values():
        np.testing.assert_array_equal(pair[:, 1], -np.floor(pair[:, 0]))
    rows = {name.removesuffix("_observation"): x[:, 2].astype(int) for name, x in pairs.items()}
    rows["row"] = batch.observation[:, 0].astype(int)
    return batch, rows


def test_subgoals_are_some_steps_ahead_and_not_beyond_the_goal() -> None:
    """As in the authors' HGCDataset."""
    batch, rows = subgoals(5, 1)
    row, goal, last = rows["row"], rows["actor"], last_rows()[rows["row"]]
    np.testing.assert_array_equal(rows["subgoal"], np.minimum(row + 5, last))
    ahead = np.minimum(row + 5, goal)
    anywhere = rows["target"] == np.minimum(row + 5, last)
    assert (anywhere | (rows["target"] == ahead)).all()
    later = (goal >= row) & (goal < row + 5) & (goal <= last)
    assert (rows["target"][later] == goal[later]).mean() > 0.5, "a goal on the way is the target"
    assert anywhere[(goal < row) | (goal > last)].all(), "a goal elsewhere is none"
    assert not any(name.startswith("option") for name in batch.extras)


def test_options_end_after_some_steps_or_in_their_goals() -> None:
    batch, rows = subgoals(5, 3)
    row, goal, last = rows["row"], rows["option"], last_rows()[rows["row"]]
    end = batch.extras["option_next_observation"][:, 0].astype(int)
    np.testing.assert_array_equal(batch.extras["option_next_observation"][:, 2], goal)
    assert (end <= np.minimum(row + 3, last)).all()
    early = end < np.minimum(row + 3, last)
    np.testing.assert_array_equal(end[early], goal[early])
    reached = end == goal
    np.testing.assert_array_equal(batch.extras["option_terminated"], reached)
    np.testing.assert_array_equal(batch.extras["option_reward"], reached - 1.0)
    # Ends of options themselves, and later states that are at most as far.
    assert 0.3 < reached.mean() < 0.7
    later = (goal > row + 3) & (goal <= last)
    np.testing.assert_array_equal(end[later], row[later] + 3)
    options = buffers.options(batch)
    np.testing.assert_array_equal(options.observation, batch.extras["option_observation"])
    np.testing.assert_array_equal(options.terminated, reached)


def test_without_shares_of_their_own_values_have_the_actors_goals() -> None:
    declared = gcbc.experience(gcbc.Config(batch_size=50))
    declared = jax.tree.map(lambda x: jax.numpy.asarray(x)[None], declared)
    prepared = jax.tree.map(jax.numpy.asarray, declared.prepare(data()))
    batch = declared.sample(None, prepared, jax.random.split(jax.random.key(0), 1))
    np.testing.assert_array_equal(batch.observation, batch.extras["actor_observation"])
    assert (batch.observation[..., 2] > batch.observation[..., 0]).any()


@pytest.mark.parametrize("discount", [0.0, 1.0])
def test_a_discount_at_its_end_is_no_accident(discount: float) -> None:
    _, (row, value, _) = drawn(settings(**ALWAYS, discount=discount))
    expected = last_rows()[row] if discount else np.minimum(row + 1, last_rows()[row])
    assert (value == expected).mean() > 0.999


@pytest.mark.parametrize("agent", [gciql, hiql], ids=["goals", "options"])
def test_rows_are_the_same_wherever_the_data_lie(agent: Any) -> None:
    config = settings() if agent is gciql else configuration.stack(hiql.Config(option_steps=3), 2)
    declared, prepared = agent.experience(config), windows.with_last_rows(data())
    keys = jax.random.split(jax.random.key(3))
    draws = jax.jit(lambda keys, declared: declared.draw.random(keys, sum(LENGTHS), declared))(
        keys, declared
    )
    host = declared.draw.take(prepared, jax.tree.map(np.asarray, draws))
    device = jax.jit(declared.draw.take)(jax.tree.map(jax.numpy.asarray, prepared), draws)
    assert isinstance(host.observation, np.ndarray)
    for one, other in zip(jax.tree.leaves(host), jax.tree.leaves(device), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


def test_who_conditions_on_goals() -> None:
    with_goals, without = gciql.experience(gciql.Config()), iql.experience(iql.Config())
    assert (with_goals.observes, without.observes) == (("goals",), ())
    assert envs.observed(ENV, with_goals.observes) == f"goals/{ENV}"
    assert envs.observed("none", with_goals.observes) == "none"
    assert envs.observed(ENV, without.observes) == ENV


# Environments with goals.


def test_tasks_are_dealt_round_and_round() -> None:
    hosted = envs.make_hosted(f"goals/{ENV}", 7)
    assert hosted.spec.observation_shape == (4,)
    assert (hosted.spec.max_episode_steps, hosted.num_tasks) == (40, 5)
    first = hosted.reset(range(7))
    np.testing.assert_allclose(first[:, 2:], goal_field.PLACES[[0, 1, 2, 3, 4, 0, 1]], rtol=1e-6)
    assert np.abs(first[:, :2]).max() <= 0.3
    np.testing.assert_array_equal(hosted.reset(range(7)), first)
    toward: Any = first[:, 2:] - first[:, :2]
    for _ in range(10):
        step: Any = hosted.step(np.sign(toward) * np.minimum(np.abs(toward) / goal_field.STEP, 1.0))
        toward = step.observation[:, 2:] - step.observation[:, :2]
        if step.terminated.any():
            ended = np.flatnonzero(step.terminated)
            np.testing.assert_allclose(
                step.next_observation[ended, 2:], goal_field.PLACES[ended % 5], rtol=1e-6
            )
            np.testing.assert_allclose(
                step.observation[ended, 2:], goal_field.PLACES[(ended + 1) % 5], rtol=1e-6
            )
            break
    else:
        pytest.fail("no episode ended")
    hosted.close()


@pytest.mark.parametrize("name", ["Pendulum-v1", "rljax/Pendulum"])
def test_environments_without_goals_are_refused(name: str, walks: str) -> None:
    with pytest.raises(ValueError, match=rf"'{name}' has no tasks with goals"):
        run.train("gciql", name, 100, data=walks)


# Runs.

SMALL: Any = {"hidden": (16, 16), "batch_size": 32}
EVERY: Any = small_runs.EVERY | {"eval_episodes": 5}


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(goal_field.walks(tmp_path_factory.mktemp("data") / "walks.npz", number=20))


def train(
    steps: int,
    out: Path,
    data: str,
    config: dict[str, Any] | None = None,
    agent: str = "gciql",
    **settings: Any,
) -> Path:
    settings = EVERY | {"env": ENV} | settings  # a file's word does not import the module
    return run.train(
        agent, steps=steps, data=data, config=SMALL | (config or {}), out=out, **settings
    )


@pytest.mark.learn
def test_a_run_is_judged_on_all_tasks_and_resumed_exactly(tmp_path: Path, walks: str) -> None:
    thinking: Any = {"torso": "iru", "compute": 2, "hidden": (16,)}
    whole, _ = parts.resumed(partial(train, data=walks, config=thinking), 100, 200, tmp_path)
    described = records.read_config(whole)
    assert (described["env"], described["spec"]["observation_shape"]) == (ENV, [4])
    line = records.read(whole, "evaluations")[-1]
    assert len(line["success"]) == 5
    assert line["success"] == line["returns"]
    assert loading.load(whole)(np.zeros(4)).shape == (2,)
    (line,) = evaluate.evaluate_run(whole, episodes=5, config={"compute": 4})["episodes"]
    assert len(line["success"]) == 5
    played = collect.record(whole, steps=50, num_envs=5)
    assert (played.observation_size, played.env) == (2, ENV)


@pytest.mark.learn
@pytest.mark.parametrize("agent", ["gciql", "hiql"])
def test_what_is_learnt_does_not_depend_on_where_the_data_lie(
    agent: str, tmp_path: Path, walks: str
) -> None:
    changes = {"normalise_observations": True, "num_updates": 2}
    changes |= {"option_steps": 3} if agent == "hiql" else {}
    options: Any = {"env": "none", "agent": agent}
    there = train(100, tmp_path / "there", walks, changes, data_on_host=True, **options)
    here = train(100, tmp_path / "here", walks, changes, **options)
    kept = small_runs.arrays(there)
    for name, array in small_runs.arrays(here).items():
        np.testing.assert_allclose(kept[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
    mean = kept["['agent']['statistics']['mean']"][0]
    np.testing.assert_allclose(
        mean, np.tile(datasets.load(walks).transitions.observation.mean(axis=0), 2), rtol=1e-4
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"then_online": 100, "offline_share": "pooled"},
            "--offline-share pooled draws all rows alike, and this agent draws rows with goals",
        ),
        ({"weights": "top"}, r"'gciql' draws rows in its own way, and --weights top is for agents"),
        (
            {"eval_episodes": 12},
            rf"--eval-episodes is 12, and '{ENV}' has 5 tasks .* such as 15",
        ),
        (
            {"data": None, "env": ENV},
            r"'gciql' learns from data: rljax train gciql --data",
        ),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_written(
    tmp_path: Path, walks: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run.train(
            "gciql", steps=100, out=tmp_path / "run", **({"data": walks, "env": ENV} | settings)
        )
    assert not (tmp_path / "run").exists()


def test_data_of_one_task_are_refused(walks: str) -> None:
    dataset = datasets.load(walks)
    dataset.provenance.update(task=2, id="cube-single-play-v0")
    experiment = plan.Experiment(
        Settings("gciql", "none", data=walks), gciql, gciql.Config(), dataset
    )
    with pytest.raises(
        ValueError, match=r"all goals. Use: rljax train gciql --data ogbench/cube-single-play-v0"
    ):
        plan.plan(experiment)


@pytest.mark.slow
def test_agents_without_goals_learn_from_the_same_file(tmp_path: Path, walks: str) -> None:
    out = run.train("bc", ENV, steps=100, data=walks, config=SMALL, out=tmp_path / "run", **EVERY)
    assert records.read_config(out)["spec"]["observation_shape"] == [2]


@pytest.mark.learn
@pytest.mark.parametrize("torso", ["mlp", "iru"])
def test_learns_to_go_where_it_is_sent(torso: str, tmp_path: Path) -> None:
    """From walks that go nowhere, whose imitation does not arrive."""
    walks = str(goal_field.walks(tmp_path / "walks.npz"))
    size: Any = (
        {"hidden": (128, 128)}
        if torso == "mlp"
        else {"hidden": (64,), "compute": 3, "torso": "iru"}
    )
    rates = {f"{name}_lr": 1e-3 for name in ("actor", "critic", "value")}
    config = (
        {"batch_size": 256, "discount": 0.95, "imitation_weight": 0.03, "actor_goal_future": 0.5}
        | rates
        | size
    )
    every = {"eval_every": 1_000, "eval_episodes": 50}
    out = run.train("gciql", ENV, 3_000, data=walks, config=config, out=tmp_path / "run", **every)
    assert records.read_summary(out)["best"]["mean"] >= 0.95


@pytest.mark.learn
@pytest.mark.parametrize(
    ("agent", "changes"),
    [
        ("gcivl", {"actor_lr": 1e-3, "value_lr": 1e-3}),
        ("hiql", {"learning_rate": 1e-3, "subgoal_steps": 3}),
        ("hiql", {"learning_rate": 1e-3, "subgoal_steps": 3, "option_steps": 2}),
    ],
    ids=["gcivl", "hiql", "options"],
)
def test_values_of_states_lead_where_it_is_sent(
    agent: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """With subgoals and without, in a third of the updates of the test before."""
    walks = str(goal_field.walks(tmp_path / "walks.npz"))
    size: Any = {"hidden": (128, 128), "batch_size": 256, "discount": 0.95}
    config = size | {"actor_goal_future": 0.5} | changes
    every: Any = {"eval_every": 1_000, "eval_episodes": 50}
    out = run.train(agent, ENV, 1_000, data=walks, config=config, out=tmp_path / "run", **every)
    assert records.read_summary(out)["best"]["mean"] >= 0.95
