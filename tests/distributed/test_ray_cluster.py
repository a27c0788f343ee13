"""Launches on a Ray cluster."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from rljax.distributed.ray_cluster import RayCluster
from rljax.runs import experiments, failures
from rljax.tuning import grids
from tests.helpers import small_runs

pytest.importorskip("ray")
SIZES = {"launch-000": 16, "launch-001": 32}
STEPS = 6_000
EVERY: Any = {
    "log_every": 100,
    "eval_every": 3_000,
    "eval_episodes": 1,
    "checkpoint_every": 500,
}

# Ray forks its local nodes, which must happen before JAX starts threads.
PROGRAM = """
import sys, threading, time
from pathlib import Path

from ray.cluster_utils import Cluster

if __name__ == "__main__":
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    first, _ = nodes.add_node(num_cpus=1), nodes.add_node(num_cpus=1)
    nodes.wait_for_nodes()

    from rljax import cli
    from rljax.runs import checkpoints

    folder, words = Path(sys.argv[1]), sys.argv[2:]
    words += ["--out", str(folder), "--ray", nodes.address]
    training = threading.Thread(target=cli.main, args=(words,))
    training.start()
    places = [folder / name / "checkpoints" for name in ("launch-000", "launch-001")]
    while not all(checkpoints.steps(place) for place in places):
        assert training.is_alive()
        time.sleep(0.02)
    print(max(checkpoints.steps(place)[-1] for place in places))
    nodes.remove_node(first, allow_graceful=False)
    training.join()
    nodes.shutdown()
"""


@pytest.mark.learn
def test_a_launch_on_a_lost_machine_continues_elsewhere_from_its_checkpoint(tmp_path: Path) -> None:
    words = ["train", "td3", "--env", "rljax/Pendulum", "--steps", str(STEPS), "--quiet"]
    words += small_runs.flags("td3", but="batch_size")
    words += [f"--{name.replace('_', '-')}={value}" for name, value in EVERY.items()]
    words += ["--grid", f"config.batch-size={','.join(map(str, SIZES.values()))}"]
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, str(file), str(tmp_path / "grid"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) < STEPS
    for launch, size in SIZES.items():
        alone = small_runs.train(
            "td3", "rljax/Pendulum", STEPS, tmp_path / launch, {"batch_size": size}, **EVERY
        )
        small_runs.assert_same(alone, tmp_path / "grid" / launch)


def planned(folder: Path) -> Path:
    experiment = experiments.prepare(
        "td3", "rljax/Pendulum", 200, config=small_runs.SMALL, **small_runs.EVERY
    )
    grids.write(
        grids.plan(experiment, [{"batch_size": size} for size in SIZES.values()]), folder, "a test"
    )
    return folder


@pytest.mark.learn
@pytest.mark.parametrize("address", ["127.0.0.1:1", "auto", "somewhere"])
def test_an_unreachable_cluster_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=rf"^the cluster at '{address}' cannot be reached \(.*\)\. Is it running, and",
    ):
        grids.execute(planned(tmp_path / "grid"), workers=RayCluster(address))


def test_a_machine_that_cannot_see_the_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        failures.RunError,
        match=r"there is no grid in '.*' on '.*': the machines of a cluster must share",
    ):
        grids.launch(tmp_path, "launch-000")
