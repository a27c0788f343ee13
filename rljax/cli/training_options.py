"""Options of the commands that train. See `rljax.cli.options` for how help reads this file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro

from rljax.cli import options as shared
from rljax.learning.settings import Settings


@dataclasses.dataclass(kw_only=True)
class Learners:
    """The learners of a training, and their use of a data set."""

    seed: int = 0  # seed S of the first learner
    seeds: int = 1  # number of learners, with seeds S, S + 1, ..., as one program
    # train all values of a setting: config.actor-lr=1e-4,3e-4
    grid: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    dry_run: bool = False  # show the programs of a grid, and do nothing
    # environment steps of each learner after the updates from the data set
    then_online: int = Settings.then_online
    # share of each batch from the data set; pooled: uniform over it and new experience; A:B:N: from
    # A to B over N new transitions
    offline_share: float | str = 0.5
    # draw rows of better trajectories more often: by return, by its advantage over a fit on first
    # observations, or only from the top share
    weights: Literal["uniform", "return", "advantage", "top"] = "uniform"
    # temperature of return and advantage; lower is greedier
    weights_alpha: float = Settings.weights_alpha
    weights_share: float = Settings.weights_share  # share of the trajectories that top keeps
    # a setting that changes when the run goes on online: config.actor-lr=1e-4; one for each
    online: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    # policy that is an input of the agent: the folder of a run, FILE.py:FUNCTION, or FILE.onnx
    base: str | None = Settings.base
    # folder of a run: learners begin with the parameters that both have, and act in the warm-up
    from_run: Annotated[str | None, tyro.conf.arg(name="from")] = None
    # what they take from it: actor, or actor_critic.actor=actor.mean; default: all that both have
    from_parts: tuple[str, ...] = ()
    # train although the run ends before its first update, as for data of uniform actions
    without_updates: bool = Settings.without_updates
    # keep a data set too large for the device in the host's memory: slower
    data_on_host: bool = Settings.data_on_host


@dataclasses.dataclass
class Train(
    shared.Trust,
    shared.Hosts,
    shared.Launches,
    shared.Quiet,
    shared.RecordingOptions,
    Learners,
    shared.TaskOptions,
):
    """Train an agent.

    Steps are environment steps of each learner; from a data set alone, its updates.
    """

    keep_checkpoints: int = Settings.keep_checkpoints  # newest checkpoints kept
    tensorboard: bool = Settings.tensorboard  # write TensorBoard events too
    # Weights & Biases: PROJECT or ENTITY/PROJECT (WANDB_MODE=offline: on this machine)
    wandb: str | None = Settings.wandb
    wandb_group: str | None = Settings.wandb_group
    wandb_name: str | None = Settings.wandb_name
    wandb_tags: tuple[str, ...] = ()
    mlflow: str | None = Settings.mlflow  # MLflow experiment, where MLFLOW_TRACKING_URI says
    trackio: str | None = Settings.trackio  # Trackio project
    # cleanrl: its charts, and in Weights & Biases a run for each learner, for the Open RL Benchmark
    chart_names: Literal["rljax", "cleanrl"] = "rljax"
    # end the run once an evaluation's mean return, over all learners, is so high
    stop_at_return: float | None = None
    # film the first learner every so many steps, after an evaluation: films/ in the run's folder
    film_every: int | None = None


@dataclasses.dataclass(kw_only=True)
class Search:
    """The search of a sweep: `rljax.tuning.search_spaces.Protocol`, and the space."""

    method: Literal["random", "tpe", "hyperband", "pbt"] = "tpe"  # how trials are chosen
    trials: int = 64  # settings tried
    # trials chosen together, or learners of pbt; hyperband sets its own number
    population: int = 16
    tuning_seeds: tuple[int, ...] = (0, 1, 2)  # each trial is trained with all of them
    # train only the resulting settings with them
    test_seeds: tuple[int, ...] = tuple(range(100, 110))
    space: Path | None = None  # TOML file of the settings to search; default: the agent's own
    every: int | None = None  # steps between pbt's changes of settings; default: a twentieth of all
    eta: int = 3  # hyperband keeps one trial in ETA, and trains it ETA times as long
    min_steps: int | None = None  # of hyperband's shortest trials; default: a 27th of all
    search_seed: int = 0  # seed of the search itself
    storage: str | None = None  # URL of Optuna's storage; default: an SQLite file in the folder
    study: str = "sweep"  # name of the study in that storage
    # on signals per episode: cost=25; trials beyond one rank below all others
    limits: tuple[str, ...] = ()


@dataclasses.dataclass
class Sweep(shared.Launches, shared.Quiet, shared.RecordingOptions, Search, shared.TaskOptions):
    """Search an agent's settings on tuning seeds, and train the best ones anew on test seeds."""

    steps: int = Settings.steps  # steps of each learner in a whole trial, and in the test


@dataclasses.dataclass
class Resume(shared.Trust, shared.Hosts, shared.ClusterOptions, shared.Quiet):
    """Continue a run exactly from its last checkpoint."""

    run: shared.Folder  # folder of the run, the grid or the sweep
    steps: int | None = None  # new total of environment steps; default: as first planned
    # let a run from a data set go on in its environment for so many steps
    then_online: int | None = None
    # share of each batch from the data set then; default 0.5
    offline_share: float | str | None = None
    # continue although files of records have changed since the last checkpoint
    accept_changed_records: bool = False


@dataclasses.dataclass
class Extract(shared.Trust):
    """Copy some learners of a run into a new run, which continues exactly from their state."""

    run: shared.Folder  # folder of the run
    learners: tuple[int, ...]  # numbers of the learners, from 0
    # folder to write; default: the run's name and the learners' numbers
    out: Annotated[Path | None, shared.OUT] = None
