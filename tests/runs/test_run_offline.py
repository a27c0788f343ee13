"""Runs from a data set."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from rljax import cli, datasets
from rljax.agent import Transition
from rljax.agents import fql, iql
from rljax.cli import scaffold
from rljax.learning import registry
from rljax.runs import experiments, records, run
from rljax.runs.policies import evaluate, loading
from tests.cli import commands
from tests.helpers import small_runs
from tests.runs import parts

SMALL: Any = {"hidden": (16, 16), "batch_size": 32}
ONLINE: Any = {"replay_size": 300, "warmup_steps": 0}


def written(
    path: Path, rows: int = 400, observations: int = 3, reference: tuple[float, float] | None = None
) -> Path:
    """A file of data with Pendulum's shapes."""
    generator = np.random.default_rng(0)
    observation = generator.normal(size=(rows + 1, observations)).astype(np.float32)
    ends = np.arange(rows) % 50 == 49
    fields: Any = (
        observation[:-1],
        generator.uniform(-1, 1, size=(rows, 1)).astype(np.float32),
        generator.normal(size=rows).astype(np.float32),
        np.zeros(rows, np.bool_),
        ends,
        observation[1:],
    )
    bounds = (np.full(1, -2, np.float32), np.full(1, 2, np.float32))
    made = datasets.OfflineDataset(
        "test", Transition(*fields), "Pendulum-v1", reference, bounds, {}
    )
    return datasets.write(made, path)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(
        written(tmp_path_factory.mktemp("data") / "pendulum.npz", reference=(-1500.0, -150.0))
    )


def train(
    agent: str,
    steps: int,
    out: Path,
    data: str,
    config: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    settings = {"data": data, "config": SMALL | (config or {})} | small_runs.EVERY | settings
    return run.train(agent, steps=steps, out=out, **settings)


trained = small_runs.once(train)


@pytest.mark.slow
def test_a_data_set_is_enough(tmp_path: Path, data: str) -> None:
    out = train("td3_bc", 200, tmp_path / "run", data, seeds=2)
    described = records.read_config(out)
    assert described["env"] == "Pendulum-v1"
    assert described["dataset"]["transitions"] == 400
    assert described["dataset"]["files"][0]["sha256"]
    lines = records.read(out, "metrics")
    assert [line["step"] for line in lines] == [50, 100, 150, 200]
    assert lines[-1]["update"] == 200
    evaluations = records.read(out, "evaluations")
    learners = [(line["step"], line["learner"]) for line in evaluations]
    assert learners == [(100, 0), (100, 1), (200, 0), (200, 1)]
    played = evaluate.evaluate_run(out, episodes=2)
    for line in evaluations + played["episodes"]:
        expected = 100 * (np.array(line["returns"]) + 1500) / 1350
        np.testing.assert_allclose(line["scores"], expected, rtol=1e-6)
    summary = records.read_summary(out)
    assert summary["data"] == data
    assert summary["final"]["score"] == pytest.approx(
        np.mean([line["scores"] for line in evaluations[2:]])
    )
    assert summary["best"]["mean"] >= summary["final"]["mean"]
    assert list(summary["expected_best"]["score"]) == ["1", "2"]
    assert summary["last_three"] == {
        "return": pytest.approx(np.mean([line["returns"] for line in evaluations])),
        "score": pytest.approx(np.mean([line["scores"] for line in evaluations])),
    }
    assert summary["expected_best"]["score"]["1"] == pytest.approx(
        np.mean([line["scores"] for line in evaluations])
    )
    assert loading.load(out)(np.zeros(3)).shape == (1,)
    assert evaluate.table(played).count(", score ") == 3, "of each learner and of all"
    assert "score" not in evaluate.table(evaluate.evaluate_run(out, episodes=1, env="Pendulum-v1"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="one update"),
        pytest.param({"num_updates": 5}, id="five of a gather", marks=pytest.mark.learn),
    ],
)
def test_stopped_and_resumed_equals_uninterrupted(
    tmp_path: Path, data: str, changes: dict[str, Any]
) -> None:
    td3_bc = partial(train, "td3_bc", data=data, config=changes, seeds=2)
    parts.resumed(td3_bc, 100, 200, tmp_path)


def online(data: str, **settings: Any) -> Callable[[int, Path], Path]:
    """100 updates from data, and then online."""
    return lambda steps, out: train(
        "td3_bc", 100, out, data, ONLINE, then_online=steps - 100, **settings
    )


@pytest.mark.learn
def test_on_into_an_environment_and_resumed_there(tmp_path: Path, data: str) -> None:
    whole, _ = parts.resumed(online(data), 200, 300, tmp_path)
    lines = records.read(whole, "metrics")
    assert [line["step"] for line in lines] == list(range(50, 301, 50))
    assert lines[-1]["update"] == 299, "one a step, from the second step in the environment on"
    assert lines[1]["episode/return"] == [None], "no episode while learning from data"


@pytest.mark.slow
def test_a_stop_between_the_stages_changes_nothing(tmp_path: Path, data: str) -> None:
    whole = trained("td3_bc", 100, tmp_path / "whole", data, ONLINE, then_online=100)
    half = trained("td3_bc", 100, tmp_path / "half", data, ONLINE, then_online=100)
    *_, newest = sorted((half / "checkpoints").iterdir())
    shutil.rmtree(newest)
    run.resume(half)
    small_runs.assert_same(whole, half)


@pytest.mark.parametrize("share", [{}, {"offline_share": "pooled"}], ids=["half", "pooled"])
@pytest.mark.learn
def test_a_finished_run_goes_on_into_an_environment(
    tmp_path: Path, data: str, share: dict[str, Any]
) -> None:
    whole = trained("td3_bc", 100, tmp_path / "whole", data, ONLINE, then_online=100, **share)
    half = trained("td3_bc", 100, tmp_path / "half", data, ONLINE)
    run.resume(half, then_online=100, **share)
    small_runs.assert_same(whole, half)
    described = [records.read_config(folder) for folder in (whole, half)]
    for name in ("steps", "then_online", "offline_share", "online", "state_bytes"):
        assert described[1][name] == described[0][name]
    assert records.read_summary(half)["steps"] == 200
    with pytest.raises(
        ValueError, match=r"goes on online already. For another number of steps in all: --steps"
    ):
        run.resume(half, then_online=200)


@pytest.mark.learn
def test_a_presets_changes_online_come_with_the_first_or_a_later_command(
    tmp_path: Path, data: str
) -> None:
    own = tmp_path / "mine.py"
    scaffold.write("td3_bc", own)
    own.with_suffix(".toml").write_text(
        '["Pendulum-v1"]\nonline = { value_weight = 1.0, batch_size = 16 }\n'
    )
    whole = train(str(own), 100, tmp_path / "whole", data, ONLINE, then_online=100)
    half = train(str(own), 100, tmp_path / "half", data, ONLINE)
    run.resume(half, then_online=100)
    small_runs.assert_same(whole, half)
    for folder in (whole, half):
        described = records.read_config(folder)
        assert described["online"] == {"value_weight": 1.0, "batch_size": 16}
        assert described["config"] | {"value_weight": 2.5, "batch_size": 32} == described["config"]


ONLINE_WORDS = ["--online", "config.value-weight=0.5", "--online", "config.batch-size=1.6e1"]


def online_words(data: str, out: Path, then_online: int, *words: str) -> list[str]:
    flags = small_runs.flags("td3_bc", "warmup_steps")
    online = ["--then-online", str(then_online)] if then_online else []
    return [
        "train",
        "td3_bc",
        "--data",
        data,
        "--steps",
        "100",
        "--out",
        str(out),
        *online,
        *flags,
        "--quiet",
        *words,
    ]


@pytest.mark.learn
def test_settings_that_change_online_are_kept_and_resumed(tmp_path: Path, data: str) -> None:
    cli.main(online_words(data, tmp_path / "whole", 200, *ONLINE_WORDS))
    cli.main(online_words(data, tmp_path / "half", 100, *ONLINE_WORDS))
    described = records.read_config(tmp_path / "half")
    assert described["online"] == {"value_weight": 0.5, "batch_size": 16}
    assert described["config"] | {"value_weight": 2.5, "batch_size": 32} == described["config"]
    run.resume(tmp_path / "half", 300)
    small_runs.assert_same(tmp_path / "whole", tmp_path / "half")
    plain = train("td3_bc", 100, tmp_path / "plain", data, {"replay_size": 300}, then_online=200)
    ours, theirs = (records.read(out, "metrics") for out in (tmp_path / "whole", plain))
    same = [a["critic/loss"] == b["critic/loss"] for a, b in zip(ours, theirs, strict=True)]
    assert same == [True, True, False, False, False, False], "nothing changes before"


@pytest.mark.parametrize(
    ("change", "then_online", "message"),
    [
        (
            "config.value-weight=0.5",
            0,
            r"--online changes hyperparameters for the steps of --then-online N: give both\.",
        ),
        (
            "config.value-wieght=1",
            100,
            r"--online config\.value-wieght: no setting 'value_wieght'\. Near",
        ),
        (
            "value-weight=1",
            100,
            r"--online value-weight=1: write a setting and its value, such as",
        ),
        (
            "config.value-weight",
            100,
            r"--online config\.value-weight: write a setting and its value",
        ),
        (
            "config.discount=1.5",
            100,
            r"--config\.discount is 1\.5, it must be finite and in \[0",
        ),
    ],
)
def test_changes_online_that_cannot_be_are_refused_at_once(
    tmp_path: Path, data: str, change: str, then_online: int, message: str, capsys: Any
) -> None:
    words = online_words(data, tmp_path / "run", then_online, "--online", change)
    assert re.search(message, commands.refused(words, capsys))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_what_cannot_go_on_online_says_why_and_stays_as_it_is(tmp_path: Path, data: str) -> None:
    out = trained("td3_bc", 100, tmp_path / "run", data, env="none")
    before = (out / "config.json").read_text()
    for given in ({"then_online": 0}, {"offline_share": 0.5}, {"then_online": 100, "steps": 200}):
        with pytest.raises(ValueError, match=r"give --then-online N of at least 1"):
            run.resume(out, **given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"--env none is for learning from data alone"):
        run.resume(out, then_online=100)
    with pytest.raises(
        ValueError, match=r"--offline-share is half, it must lie in \[0, 1\), be 'pooled', or"
    ):
        run.resume(out, then_online=100, offline_share="half")
    assert (out / "config.json").read_text() == before


@pytest.mark.learn
@pytest.mark.parametrize("env", ["Pendulum-v1", "rljax/Pendulum"])
def test_replay_agents_learn_from_both(tmp_path: Path, data: str, env: str) -> None:
    config = {**ONLINE, "warmup_steps": 20}
    sac = partial(train, "sac", data=data, config=config, env=env, offline_share=0.25)
    whole, _ = parts.resumed(sac, 100, 200, tmp_path)
    updates = records.read(whole, "metrics")[-1]["update"]
    assert updates == {"Pendulum-v1": 180, "rljax/Pendulum": 181}[env]


@pytest.mark.slow
def test_without_an_environment_nothing_is_evaluated(tmp_path: Path, data: str) -> None:
    out = trained("td3_bc", 100, tmp_path / "run", data, env="none")
    assert records.read(out, "evaluations") == []
    assert records.read_summary(out)["final"] is None
    with pytest.raises(
        ValueError, match=r"has no environment to play in. Name one that fits: --env"
    ):
        evaluate.evaluate_run(out)
    (played,) = evaluate.evaluate_run(out, env="Pendulum-v1", episodes=2)["episodes"]
    assert len(played["returns"]) == 2
    assert loading.load(out)(np.zeros(3)).shape == (1,)


@pytest.mark.parametrize(
    ("agent", "settings", "message"),
    [
        (
            "td3_bc",
            {"data": None, "env": "Pendulum-v1"},
            r"'td3_bc' learns from data: rljax train td3_bc --data d4rl/",
        ),
        ("td3_bc", {"data": None}, r"no environment: rljax train td3_bc --env"),
        ("ppo", {}, r"'ppo' learns from what its own policy has just done, and cannot use --data"),
        (
            "td3_bc",
            {"env": "Hopper-v5"},
            r"has observation_shape = \(3,\), environment 'Hopper-v5' has \(11,\)",
        ),
        (
            "sac",
            {"then_online": 100},
            r"--then-online continues an agent that learns from data alone",
        ),
        ("sac", {"env": "none"}, r"--env none is for learning from data alone"),
        (
            "iql",
            {"then_online": 100, "config": {"decay_steps": 199}},
            (
                r"learning rate of 'iql' falls to 0 at update 199, before the end "
                r".*--config.decay-steps"
            ),
        ),
        ("td3_bc", {"then_online": -1}, r"--then-online is -1"),
        ("td3_bc", {"data": "d4rl/hoper-medium-v2"}, r"Nearest.*hopper-medium-v2"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_written(
    tmp_path: Path, data: str, agent: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run.train(agent, steps=100, out=tmp_path / "run", **({"data": data} | settings))
    assert not (tmp_path / "run").exists()


@pytest.mark.learn
def test_episodes_are_as_long_as_those_of_the_data(tmp_path: Path) -> None:
    made = datasets.load(str(written(tmp_path / "first.npz")))
    limited = dataclasses.replace(made, provenance=made.provenance | {"max_episode_steps": 30})
    data = str(datasets.write(limited, tmp_path / "limited.npz"))
    out = train("td3_bc", 100, tmp_path / "run", data, ONLINE, then_online=100)
    assert all(
        length == 30 for line in records.read(out, "evaluations") for length in line["lengths"]
    )
    ended = [line["episode/length"][0] for line in records.read(out, "metrics")[2:]]
    assert ended == [30.0, 30.0]
    again = evaluate.evaluate_run(out, episodes=2)["episodes"]
    assert [line["lengths"] for line in again] == [[30, 30]]
    other = train("td3_bc", 100, tmp_path / "other", data, env="async/Pendulum-v1")
    assert records.read(other, "evaluations")[0]["lengths"] == [200, 200], (
        "one that was asked for is as it is"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "config", "share"),
    [("td3_bc", {}, 0.5), ("fql", {"chunk_length": 3, "flow_steps": 2}, "pooled")],
)
def test_new_rewards_are_sparse_as_those_of_the_data(
    agent: str, config: dict[str, Any], share: Any, tmp_path: Path
) -> None:
    """Without a future a target is a reward: -1 in all rows, as Pendulum's are below 0."""
    made = datasets.load(str(written(tmp_path / "first.npz")))
    rewards = np.asarray(made.transitions.reward)
    low = made.transitions.replace(reward=-1.5 - np.abs(rewards))
    data = str(datasets.write(dataclasses.replace(made, transitions=low), tmp_path / "low.npz"))
    config = ONLINE | config | {"reward_transform": "sparse", "discount": 0.0}
    out = train(agent, 100, tmp_path / "run", data, config, then_online=100, offline_share=share)
    targets = [line["critic/target"][0] for line in records.read(out, "metrics")]
    assert targets == [-1.0] * 4


@pytest.mark.slow
def test_a_data_set_that_has_changed_is_not_resumed(tmp_path: Path) -> None:
    path = written(tmp_path / "data.npz")
    out = train("td3_bc", 100, tmp_path / "run", str(path))
    written(path, rows=300)
    with pytest.raises(
        ValueError, match=r"is not what the run in .* began with: its files have changed"
    ):
        run.resume(out, 200)


@pytest.mark.slow
def test_a_run_goes_on_where_other_versions_read_its_data_set(tmp_path: Path) -> None:
    out = train("td3_bc", 100, tmp_path / "run", str(written(tmp_path / "data.npz")))
    described = records.read_config(out)
    described["dataset"]["versions"]["numpy"] = "1.0"
    (out / "config.json").write_text(json.dumps(described))
    run.resume(out, 200)
    assert records.read_summary(out)["steps"] == 200


def assert_same_on_the_host(train: Callable[..., Path], folder: Path) -> None:
    here = small_runs.arrays(train(100, folder / "here"))
    there = small_runs.arrays(train(100, folder / "there", data_on_host=True))
    for name, array in here.items():
        np.testing.assert_allclose(there[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.learn
def test_too_large_for_the_device(
    tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Small:
        device_kind = "a small device"

        @staticmethod
        def memory_stats() -> dict[str, int]:
            return {"bytes_limit": 1_000}

    with monkeypatch.context() as patch:
        patch.setattr(jax, "local_devices", lambda *_: [Small])
        message = r"needs 0.0 GB on a small device.*data set takes.*--data-on-host"
        with pytest.raises(ValueError, match=message):
            train("bc", 100, tmp_path / "run", data, {"hidden": (2,), "batch_size": 1})
    assert_same_on_the_host(partial(train, "td3_bc", data=data), tmp_path)


@pytest.mark.slow
def test_actions_read_in_other_bounds_are_pointed_out(
    tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    train("bc", 50, tmp_path / "right", data)
    assert "warning" not in capsys.readouterr().err
    dataset = datasets.load(data)
    bounds = (np.full(1, -1, np.float32), np.full(1, 1, np.float32))
    other = datasets.write(
        dataclasses.replace(dataset, action_bounds=bounds), tmp_path / "other.npz"
    )
    train("bc", 50, tmp_path / "other", str(other))
    assert (
        "were read as lying in [-1, 1], those of the environment lie in [-2, 2]"
        in capsys.readouterr().err
    )


def test_presets_may_name_data_sets(tmp_path: Path, data: str) -> None:
    for env, name, transform in (
        (None, "d4rl/antmaze-large-play-v2", "minus_one"),
        ("Hopper-v5", "d4rl/hopper-medium-v2", "return_range"),
    ):
        assert registry.preset("iql", iql, env, name).reward_transform == transform
    maze = experiments.preset("iql", iql, None, "minari/D4RL/antmaze/umaze-v1")
    other = experiments.preset("iql", iql, None, "minari/mujoco/hopper/expert-v0")
    assert other.reward_transform == "none", "not D4RL's"
    settings = (maze.reward_transform, maze.expectile, maze.inverse_temperature)
    assert settings == ("minus_one", 0.9, 10.0)
    assert registry.preset("iql", iql, None, data) == iql.Config()


def test_what_is_learnt_does_not_depend_on_how_it_is_evaluated(tmp_path: Path) -> None:
    made = dataclasses.replace(datasets.load(str(written(tmp_path / "own.npz"))), env="Hopper-v5")
    own = str(datasets.write(made, tmp_path / "hopper.npz"))
    assert experiments.preset("iql", iql, None, own).reward_transform == "return_range"
    assert experiments.preset("iql", iql, "none", own) == experiments.preset("iql", iql, None, own)
    assert experiments.preset("iql", iql, "Pendulum-v1", own) == iql.Config(), (
        "another one was asked for"
    )
    by_path = str(tmp_path / "pen-human-v1.hdf5")
    expected = registry.preset("fql", fql, None, "d4rl/pen-human-v1")
    assert experiments.preset("fql", fql, "none", by_path) == expected != fql.Config()


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("minari/D4RL/antmaze/umaze-v1", "d4rl/antmaze-umaze-v2"),
        ("minari/D4RL/antmaze/large-diverse-v1", "d4rl/antmaze-large-diverse-v2"),
        ("minari/D4RL/pen/human-v2", "d4rl/pen-human-v1"),
        ("minari/D4RL/door/cloned-v2", "d4rl/door-cloned-v1"),
        ("minari/D4RL/hammer/expert-v2", "d4rl/hammer-expert-v1"),
        ("minari/D4RL/relocate/human-v2", "d4rl/relocate-human-v1"),
        ("minari/D4RL/kitchen/partial-v2", "d4rl/kitchen-partial-v0"),
        ("minari/D4RL/pointmaze/umaze-v2", "d4rl/maze2d-umaze-v1"),
    ],
)
def test_one_preset_for_one_data_set_under_all_of_its_names(name: str, other: str) -> None:
    found = False
    for agent in registry.names():
        module = registry.load_agent(agent)
        preset = experiments.preset(agent, module, None, name)
        assert preset == experiments.preset(agent, module, None, other), agent
        assert experiments.preset_online(agent, None, name) == experiments.preset_online(
            agent, None, other
        ), agent
        found |= preset != module.Config()
    assert found


def test_data_whose_environment_cannot_be_made_say_why(data: str) -> None:
    reason = (
        "its environment 'Evil-v0' (evil:Env) is not registered. Name it yourself: "
        "--env MODULE:NAME."
    )
    dataset = datasets.load(data)
    dataset = dataclasses.replace(
        dataset, env=None, provenance=dataset.provenance | {"no_environment": reason}
    )
    with pytest.raises(
        ValueError,
        match=r"names no environment to evaluate in: its environment 'Evil-v0' .* --env none",
    ):
        experiments._environment("iql", None, dataset)
    assert experiments._environment("iql", "Pendulum-v1", dataset) == "Pendulum-v1"


def test_the_environment_that_data_name_has_its_presets(data: str) -> None:
    assert datasets.environment(data) == "Pendulum-v1"
    assert datasets.environment("d4rl/hopper-medium-v2") == "Hopper-v5"
    assert datasets.environment("d4rl/antmaze-large-play-v2") is None
    assert datasets.environment("d4rl/nothing") is None
    assert datasets.environment("./absent.npz") is None


@pytest.mark.learn
def test_command_line(tmp_path: Path, data: str) -> None:
    words = online_words(data, tmp_path / "run", 0)
    words.remove("--quiet")
    done = small_runs.command(*words)
    assert done.returncode == 0, done.stderr
    assert "evaluation return" in done.stderr


# Weighted rows.


@pytest.mark.learn
def test_weights_are_kept_in_the_folder_and_resumed(tmp_path: Path, data: str) -> None:
    settings: Any = {"seeds": 2, "weights": "return", "weights_alpha": 0.2}
    whole, half = parts.resumed(partial(train, "td3_bc", data=data, **settings), 100, 200, tmp_path)
    described = records.read_config(whole)
    assert (described["weights"], described["weights_alpha"]) == ("return", 0.2)
    probability = datasets.row_weights(datasets.load(data), "return", 0.2)
    assert records.read_summary(whole)["weights"] == {
        "name": "return",
        "alpha": 0.2,
        "rows": 400,
        "effective_rows": pytest.approx(1 / np.square(probability).sum()),
        "trajectories": 8,
        "effective_trajectories": pytest.approx(1 / np.square(50 * probability[::50]).sum()),
    }
    plain = trained("td3_bc", 100, tmp_path / "plain", data, seeds=2)
    assert records.read_summary(plain)["weights"] is None
    other = small_runs.arrays(plain)
    assert any((array != other[name]).any() for name, array in small_runs.arrays(half).items())


@pytest.mark.learn
def test_weighted_data_beside_new_experience(tmp_path: Path, data: str) -> None:
    settings: Any = {"weights": "top", "weights_share": 0.3}
    parts.resumed(online(data, **settings), 200, 300, tmp_path)
    settings |= {"env": "Pendulum-v1", "offline_share": "pooled"}
    config = {**ONLINE, "warmup_steps": 20}
    out = train("sac", 100, tmp_path / "sac", data, config, **settings)
    assert records.read_summary(out)["weights"]["trajectories"] == 8


@pytest.mark.learn
def test_weighted_data_on_the_host(tmp_path: Path, data: str) -> None:
    assert_same_on_the_host(partial(train, "td3_bc", data=data, weights="advantage"), tmp_path)
