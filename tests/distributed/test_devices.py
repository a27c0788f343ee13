"""Learners on 8 virtual devices or a CPU's cores."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from rljax.distributed.devices import Spread
from rljax.runs import records
from tests.cli import commands
from tests.distributed.test_processes import assert_close
from tests.helpers import small_runs

TWO = {"JAX_NUM_CPU_DEVICES": "2"}
EIGHT = {"JAX_NUM_CPU_DEVICES": "8"}
TWO_BY_XLA = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
CASES = [
    pytest.param("sac", "rljax/Pendulum", 8, 8, id="compiled"),
    pytest.param("ppo", "rljax/Pendulum", 4, 8, id="learners-and-environments"),
    pytest.param("td3", "Pendulum-v1", 4, 4, id="hosted"),
    pytest.param("stream_ac", "rljax/Pendulum", 8, 8, id="stream"),
]


def on_eight(*arguments: object) -> str:
    done = small_runs.command(*arguments, **EIGHT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def devices_used(out: Path) -> int:
    return records.read_summary(out)["devices_used"]


def printed(program: str, *arguments: object, env: Mapping[str, str]) -> str:
    words = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.learn
@pytest.mark.parametrize(("agent", "env", "seeds", "used"), CASES)
def test_eight_devices_give_the_curves_of_one(
    agent: str, env: str, seeds: int, used: int, tmp_path: Path
) -> None:
    words = commands.train(agent, env, "--steps", 200, "--seeds", seeds)
    on_eight(*words, "--out", tmp_path / "eight")
    one = small_runs.train(agent, env, 200, tmp_path / "one", seeds=seeds)
    assert devices_used(tmp_path / "eight") == used
    assert devices_used(one) == 1
    assert_close(one, tmp_path / "eight")


@pytest.mark.learn
def test_every_array_is_on_its_learners_device_and_nothing_recompiles() -> None:
    program = """
        import jax
        from jax.sharding import PartitionSpec as S
        from rljax.runs import experiments
        from rljax.learning.loop import Training
        from tests.helpers import small_runs

        compiled = []

        def note(event, seconds, **_):
            if event.startswith("/jax/core/compile/backend"):
                compiled.append(event)

        jax.monitoring.register_event_duration_secs_listener(note)
        own = {"seeds": 4, "config": small_runs.ON_POLICY, **small_runs.EVERY}
        experiment = experiments.prepare("ppo", "rljax/Pendulum", 400, **own)
        driver = Training(experiment).driver
        driver.start(experiment.settings.seeds)
        driver.advance(1)
        driver.report()
        driver.advance(1)
        driver.report()
        before = len(compiled)
        for _ in range(3):
            driver.advance(2)
            driver.report()
        assert len(compiled) == before, compiled[before:]
        carry = driver.carry
        specs = {
            "agent": carry.learners.agent,
            "storage": carry.learners.storage.data.reward,
            "environment": carry.environment,
            "observation": carry.observation,
        }
        for name, tree in specs.items():
            leaves = [leaf for leaf in jax.tree.leaves(tree) if leaf.ndim]
            print(name, sorted({str(leaf.sharding.spec) for leaf in leaves}))
    """
    found = dict(
        line.split(" ", 1) for line in printed(program, env=os.environ | EIGHT).splitlines()
    )
    assert found["agent"] == "[\"P('learners',)\"]"
    assert found["storage"] == "[\"P('learners', None, 'environments')\"]"
    assert found["environment"] == "[\"P(('learners', 'environments'),)\"]"
    assert found["observation"] == "[\"P('learners', 'environments')\"]"


def test_one_device_needs_no_placement() -> None:
    spread = Spread(4, 8, split=True)
    assert (spread.mesh, spread.num_devices) == (None, 1)
    tree = {"x": np.zeros(3)}
    assert spread.learners(tree) is tree


FOUR_CORES = """
    import os, sys

    os.sched_getaffinity = lambda _: range(4)
    os.cpu_count = lambda: 4
    from rljax import cli

    cli.main(sys.argv[1:])
"""


def on_four_cores(*arguments: object, **environment: str) -> None:
    """A command on a machine with 4 cores, where the user has not set the number of devices."""
    # Another test that trained a stream has set NPROC.
    settings = ("JAX_NUM_CPU_DEVICES", "NPROC", "XLA_FLAGS")
    cleaned = {name: value for name, value in os.environ.items() if name not in settings}
    printed(FOUR_CORES, *arguments, env=cleaned | environment)


@pytest.mark.learn
def test_learners_run_and_resume_on_the_cores_of_a_cpu(tmp_path: Path) -> None:
    words = commands.train(
        "dqn", "rljax/Finite-discrete", "--seeds", 8, "--config.epsilon-steps", 200
    )
    on_four_cores(*words, "--steps", "300", "--out", tmp_path / "whole")
    on_four_cores(*words, "--steps", "200", "--out", tmp_path / "half")
    on_four_cores("resume", tmp_path / "half", "--steps", "300", "--quiet")
    small_runs.assert_same(tmp_path / "whole", tmp_path / "half")
    assert devices_used(tmp_path / "whole") == devices_used(tmp_path / "half") == 4


@pytest.mark.learn
@pytest.mark.parametrize(
    ("agent", "env", "seeds", "environment", "expected"),
    [
        pytest.param("sac", "rljax/Pendulum", 6, {}, 3, id="as-many-as-divide-the-learners"),
        pytest.param("ppo", "rljax/Pendulum", 2, {}, 2, id="environments-stay"),
        pytest.param("sac", "rljax/Pendulum", 4, TWO, 2, id="as-the-user-said"),
        pytest.param("sac", "rljax/Pendulum", 4, TWO_BY_XLA, 2, id="as-xla-was-told"),
        pytest.param("sac", "rljax/Pendulum", 4, {"NPROC": "2"}, 2, id="as-xla-has-threads"),
        pytest.param("stream_ac", "rljax/Pendulum", 4, {}, 1, id="streams"),
        pytest.param("td3", "Pendulum-v1", 4, {}, 1, id="hosted"),
    ],
)
def test_number_of_cores_in_use(
    agent: str, env: str, seeds: int, environment: dict[str, str], expected: int, tmp_path: Path
) -> None:
    words = commands.train(agent, env, "--steps", 100, "--seeds", seeds, "--out", tmp_path / "run")
    on_four_cores(*words, **environment)
    assert devices_used(tmp_path / "run") == expected


@pytest.mark.learn
def test_launches_of_a_grid_use_all_cores(tmp_path: Path) -> None:
    more = ("--steps", 100, "--seeds", 4, "--out", tmp_path / "grid")
    words = commands.train("td3", "rljax/Pendulum", *more, but="hidden")
    on_four_cores(*words, "--grid", "config.hidden=8,16")
    assert [devices_used(tmp_path / f"grid/launch-00{i}") for i in (0, 1)] == [4, 4]


@pytest.mark.slow
def test_devices_of_a_cpu_share_the_memory_of_whole_arrays() -> None:
    program = """
        import numpy as np
        from rljax.distributed.devices import Spread

        arrays = {"x": np.ones((1001, 7), np.float32)[1:], "done": np.zeros(1000, bool)}
        placed = Spread(8).everywhere(arrays)
        for name, array in placed.items():
            parts = [shard.data for shard in array.addressable_shards]
            buffers = {part.unsafe_buffer_pointer() for part in parts}
            print(len(parts), len(buffers), (parts[7] == arrays[name]).all())
    """
    assert printed(program, env=os.environ | EIGHT).split() == ["8", "1", "True"] * 2
