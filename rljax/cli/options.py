"""Options that several commands share.

The fields of dataclasses are options, and a field's comment is what --help prints. --help shows the
fields of the last base class first. It parses this file for each class: code is elsewhere.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from rljax.learning.settings import Settings

# A command understands both names of its output. tyro's help shows the alias first.
OUT = tyro.conf.arg(name="output", aliases=("--out",))
OUTPUT = tyro.conf.arg(name="out", aliases=("--output",))

Agent = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="AGENT")]
Folder = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
Folders = Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="DIR...")]
NewFile = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]


@dataclasses.dataclass
class TaskOptions:
    """An agent, and the environment or data set that it learns from."""

    agent: Agent  # name (see rljax list) or path of your own agent file
    # environment, such as Hopper-v5, brax/ant, rljax/Pendulum; default: the data set's
    env: str | None = None
    # FILE:CLASS of a wrapper of Gymnasium around it; repeated, the first is innermost
    wrap: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    frame_stack: int = 1  # newest observations that the agent sees at once
    # environment steps of each learner, such as 3e5; from a data set alone, updates
    steps: int = Settings.steps
    # data set to learn from: d4rl/hopper-medium-v2 (see rljax data list), or a file
    data: str | None = Settings.data
    # a variant of the agent, such as rainbow of dqn (see rljax list presets)
    preset: str | None = Settings.preset


@dataclasses.dataclass(kw_only=True)
class RecordingOptions:
    """The folder of a run, and the steps between its records."""

    out: Annotated[Path | None, OUT] = None  # folder to write; default runs/AGENT/ENV/TIME
    log_every: int = Settings.log_every  # steps between lines of metrics
    eval_every: int = Settings.eval_every  # steps between evaluations
    # environment that evaluations play in; default: that of the training
    eval_env: str | None = Settings.eval_env
    eval_episodes: int = Settings.eval_episodes  # complete episodes per evaluation and learner
    # steps between checkpoints; default: every 10 minutes
    checkpoint_every: int | None = Settings.checkpoint_every


@dataclasses.dataclass(kw_only=True)
class Trust:
    """Trust in the folder of another user."""

    # run the folder's code and load its pickles, although another user's command made it
    trust: bool = False

    def folder(self, path: str | Path) -> Any:
        """The folder that a command opens, with the user's word on it."""
        from rljax.trust import Folder

        return Folder(Path(path), self.trust)


@dataclasses.dataclass(kw_only=True)
class Quiet:
    """The output in the terminal."""

    quiet: bool = False  # no live progress


@dataclasses.dataclass(kw_only=True)
class ClusterOptions:
    """The Ray cluster for the launches of a grid or a sweep."""

    ray: str | None = None  # Ray cluster for the launches of a grid or a sweep: auto, or HOST:PORT
    ray_cpus: int = 1  # processors of each launch there

    def workers(self) -> Any:
        """The Ray cluster that the options name, if any."""
        from rljax.distributed import ray_cluster

        return None if self.ray is None else ray_cluster.RayCluster(self.ray, self.ray_cpus)


@dataclasses.dataclass(kw_only=True)
class Launches(ClusterOptions):
    """The launches of a grid or a sweep."""

    # learners in one launch, at most; default: as many as memory holds
    learners_per_launch: int | None = None


@dataclasses.dataclass(kw_only=True)
class Hosts:
    """Several processes that train one run."""

    # for several hosts: HOST:PORT of process 0, or auto on a cluster that JAX knows
    coordinator: str | None = None
    # processes of the run, usually one on each host; start all with the same command
    num_processes: int | None = None
    process_id: int | None = None  # number of this process, from 0
    join_timeout: int = 300  # seconds to wait for the other processes

    def join(self) -> None:
        """Join the processes that the options name, if any."""
        if self.coordinator is None:
            if self.num_processes is not None or self.process_id is not None:
                raise ValueError("--num-processes and --process-id need --coordinator HOST:PORT.")
            return
        from rljax.distributed import processes

        processes.join(self.coordinator, self.num_processes, self.process_id, self.join_timeout)


@dataclasses.dataclass(kw_only=True)
class Best:
    """The choice between the last and the best policy."""

    best: bool = False  # the policy of each learner's best evaluation, not the last one


@dataclasses.dataclass(kw_only=True)
class LearnerOptions(Best):
    """The choice of one policy of a run."""

    learner: int = 0  # which learner of the run
