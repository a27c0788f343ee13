"""Another run's policy as an input of an agent."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rljax
from rljax import cli
from rljax.learning import population, registry
from rljax.runs import extract, records, run
from rljax.runs.export import packing
from rljax.runs.policies import evaluate, loading
from tests.cli import commands
from tests.distributed.test_devices import devices_used, on_four_cores
from tests.helpers import small_runs
from tests.runs import parts

SIZE = 0.1  # of the correction to the base's actions
OBSERVATIONS = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)

CHANGES = {
    "from rljax.agent import Array, EnvSpec": "from rljax.agent import Array, Base, EnvSpec",
    "    target_critic: networks.Network\n\n": (
        "    target_critic: networks.Network\n"
        "    base: Base | None = None  # the policy that this one corrects\n\n"
    ),
    "def act(": (
        "def use_base(state: State, base: Base, config: Config) -> State:\n"
        '    """Keep the policy that is corrected."""\n'
        "    return state.replace(base=base)\n\n\n"
        "def act("
    ),
    "    action = policy(state.actor, observation)\n    if not explore": (
        f"    correction = {SIZE} * policy(state.actor, observation)\n"
        "    action = jnp.clip(state.base.act(observation, key) + correction, -1.0, 1.0)\n"
        "    if not explore"
    ),
}


def agent_file(folder: Path) -> str:
    """TD3 that learns a small correction to its base's actions, in a file."""
    text = registry.source("td3")
    for before, after in CHANGES.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    (folder / "correction.py").write_text(text)
    return str(folder / "correction.py")


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> str:
    return agent_file(tmp_path_factory.mktemp("agent"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of TD3, with networks of other sizes than the runs that use it."""
    out = tmp_path_factory.mktemp("base") / "run"
    return small_runs.train("td3", "rljax/Pendulum", 100, out, {"hidden": (8,)})


def train(agent: str, base: Path, steps: int, out: Path, **settings: Any) -> Path:
    return small_runs.train(agent, "rljax/Pendulum", steps, out, base=str(base), **settings)


@pytest.mark.learn
def test_learns_and_leaves_the_base_as_it_was(agent: str, base: Path, tmp_path: Path) -> None:
    out = train(agent, base, 200, tmp_path / "run", seeds=2)
    assert not [place for place in small_runs.arrays(out) if "base" in place]
    described = records.read_config(out)
    assert described["base"] == str(base)
    assert described["base_digests"] == population.digests_of_base(loading.base(base)) * 2
    before = rljax.load(base)(OBSERVATIONS)
    corrections = [rljax.load(out, learner=p)(OBSERVATIONS) - before for p in range(2)]
    for correction in corrections:
        assert 0 < np.abs(correction).max() <= SIZE + 1e-6
    assert not np.array_equal(*corrections)
    whole = small_runs.arrays(out)
    actor = [place for place in whole if place.startswith("['agent']['state']['actor']")]
    trained_on = run.resume(shutil.copytree(out, tmp_path / "longer"), 300)
    assert any(
        not np.array_equal(whole[place], small_runs.arrays(trained_on)[place]) for place in actor
    )


@pytest.mark.learn
@pytest.mark.parametrize("env", ["rljax/Pendulum", "Pendulum-v1"])
def test_stopped_and_resumed_equals_uninterrupted(
    agent: str, base: Path, env: str, tmp_path: Path
) -> None:
    train = partial(small_runs.train, agent, env, base=str(base), seeds=2)
    parts.resumed(train, 200, 300, tmp_path)


@pytest.mark.learn
def test_evaluations_and_policies_need_nothing_more(agent: str, base: Path, tmp_path: Path) -> None:
    out = train(agent, base, 100, tmp_path / "run")
    one, two = evaluate.evaluate_run(out, episodes=2), evaluate.evaluate_run(out, episodes=2)
    assert one["episodes"] == two["episodes"]
    own, of_base = (3 + 1) * 16 + (16 + 1) * 16 + (16 + 1), (3 + 1) * 8 + (8 + 1)
    assert one["parameters"] == own + of_base
    table = evaluate.table(evaluate.evaluate_run(out, episodes=1, best=True))
    assert "learner 0 (seed 0, of step 100)" in table
    assert rljax.load(out, best=True)(OBSERVATIONS).shape == (20, 1)


@pytest.mark.learn
def test_a_base_may_have_a_base(agent: str, base: Path, tmp_path: Path) -> None:
    first = train(agent, base, 100, tmp_path / "first")
    second = train(agent, first, 100, tmp_path / "second")
    corrections = rljax.load(second)(OBSERVATIONS) - rljax.load(first)(OBSERVATIONS)
    assert 0 < np.abs(corrections).max() <= SIZE + 1e-6


@pytest.mark.learn
def test_the_command_line_takes_a_base(agent: str, base: Path, tmp_path: Path, capsys: Any) -> None:
    more = ("--steps", 100, "--base", base, "--out", tmp_path / "run")
    cli.main(commands.train(agent, "rljax/Pendulum", *more))
    assert capsys.readouterr().out.strip() == str(tmp_path / "run")
    small_runs.assert_same(train(agent, base, 100, tmp_path / "same"), tmp_path / "run")


@pytest.mark.learn
def test_learners_with_a_base_have_a_cpus_cores_for_themselves(
    agent: str, base: Path, tmp_path: Path
) -> None:
    words = commands.train(agent, "rljax/Pendulum", "--base", base, "--steps", 100, "--seeds", 4)
    on_four_cores(*words, "--out", tmp_path / "run")
    on_four_cores("resume", tmp_path / "run", "--steps", "200", "--quiet")
    assert devices_used(tmp_path / "run") == 4


@pytest.mark.learn
def test_a_base_that_is_gone_or_has_changed_is_not_resumed(
    agent: str, base: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copytree(base, tmp_path / "base"))
    out = train(agent, own, 100, tmp_path / "run")
    before = rljax.load(out)(OBSERVATIONS)
    own.rename(tmp_path / "elsewhere")
    with pytest.raises(
        ValueError, match=r"--base .*base cannot be read: .* is not a run.* is gone, restore it\.$"
    ):
        run.resume(out, 200)
    shutil.copytree(tmp_path / "elsewhere", own)
    shutil.rmtree(own / "checkpoints")
    with pytest.raises(
        ValueError, match=r"--base .*base cannot be read: no usable checkpoint.* restore it\.$"
    ):
        run.resume(out, 200)
    shutil.rmtree(own)
    shutil.copytree(tmp_path / "elsewhere", own)
    run.resume(own, 200)
    message = (
        r"the policy in '.*base' is not the one that this run began with.* Restore that folder"
    )
    with pytest.raises(ValueError, match=message):
        run.resume(out, 200)
    with pytest.raises(ValueError, match=message):
        rljax.load(out)
    assert records.read_summary(out)["steps"] == 100
    shutil.rmtree(own)
    shutil.copytree(tmp_path / "elsewhere", own)
    np.testing.assert_array_equal(rljax.load(out)(OBSERVATIONS), before)
    run.resume(out, 200)
    small_runs.assert_same(train(agent, own, 200, tmp_path / "whole"), out)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs in environments of other shapes."""
    folder = tmp_path_factory.mktemp("others")
    changes = {"warmup_steps": 4, "batch_size": 4}
    small_runs.train("td3", "rljax/Constant", 8, folder / "observations", changes)
    small_runs.train("dqn", "rljax/Constant-discrete", 8, folder / "actions", changes)
    return folder


@pytest.mark.learn
def test_what_cannot_be_a_base_is_said_before_anything_is_written(
    agent: str, base: Path, others: Path, tmp_path: Path
) -> None:
    cases = [
        ("td3", "Pendulum", base, r"^agent 'td3' takes no other run's policy: leave out --base\.$"),
        (
            "td3",
            "Pendulum",
            tmp_path / "nowhere",
            r"^agent 'td3' takes no other run's policy: leave out --base\.$",
        ),
        (
            agent,
            "Pendulum",
            tmp_path / "nowhere",
            (
                r"^--base .*nowhere cannot be read: '.*nowhere' is not a run: .* Name the folder "
                r"of a run that has a check"
            ),
        ),
        (
            agent,
            "Pendulum",
            others / "observations",
            (
                r"^the policy of --base .*observations was trained with observation_shape = \(1,\) "
                r"on 'rljax/Constant', 'rljax/Pendulum' has \(3,\)\. Name a run in an environment "
                r"of the same shapes\.$"
            ),
        ),
        (
            agent,
            "Constant",
            others / "actions",
            (
                r"^the policy of --base .*actions was trained with action_size = 5 on "
                r"'rljax/Constant-discrete', 'rljax/Constant' has 1\. Name a run in an environment "
                r"of the same shapes\.$"
            ),
        ),
    ]
    for name, env, folder, message in cases:
        with pytest.raises(ValueError, match=message):
            small_runs.train(name, f"rljax/{env}", 100, tmp_path / "run", base=str(folder))
        assert not (tmp_path / "run").exists()


@pytest.mark.learn
def test_each_learner_may_have_its_own_base(agent: str, tmp_path: Path) -> None:
    two = small_runs.train(
        "td3", "rljax/Pendulum", 100, tmp_path / "two", {"hidden": (8,)}, seeds=2
    )
    out = train(agent, two, 100, tmp_path / "run", seeds=2)
    before = [rljax.load(two, learner=p)(OBSERVATIONS) for p in range(2)]
    for learner in range(2):
        correction = rljax.load(out, learner=learner)(OBSERVATIONS) - before[learner]
        assert 0 < np.abs(correction).max() <= SIZE + 1e-6
    second = extract.extract(out, [1], tmp_path / "second")
    actions = rljax.load(second)(OBSERVATIONS)
    np.testing.assert_array_equal(actions, rljax.load(out, learner=1)(OBSERVATIONS))
    run.resume(second, 200)
    alone = train(agent, two, 100, tmp_path / "alone")  # with the first of the two
    assert np.abs(rljax.load(alone)(OBSERVATIONS) - before[0]).max() <= SIZE + 1e-6
    with pytest.raises(ValueError, match=r"two has 2 learners: give --seeds 2, or name a run of"):
        train(agent, two, 100, tmp_path / "three", seeds=3)


@pytest.mark.learn
def test_a_packed_policy_is_a_base(agent: str, base: Path, tmp_path: Path) -> None:
    file = packing.pack(base, output=tmp_path / "base.zip")
    out = train(agent, file, 100, tmp_path / "run")
    small_runs.assert_same(train(agent, base, 100, tmp_path / "same"), out)
