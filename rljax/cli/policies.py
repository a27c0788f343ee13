"""Commands that use the policy of a run: rljax eval | play | export | pack."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from rljax.cli import options as shared
from rljax.cli import parsing


@dataclasses.dataclass
class Evaluate(shared.Trust, shared.Best):
    """Play complete episodes with the policy of a run, without exploration, and print their
    returns.

    --config.X VALUE ... changes a setting that the agent declares for evaluations, such as the
    thinking steps of --config.compute. Several values are one evaluation each.
    """

    run: shared.Folder  # folder of the run
    episodes: int = 10  # complete episodes of each learner
    env: str | None = None  # another environment of the same shapes; default: the run's
    seed: int = 0  # seed of the episodes
    # steps from one decision to the next, one evaluation each; default: as in training
    hold: tuple[int, ...] = ()


@dataclasses.dataclass
class PlayOptions(shared.Trust, shared.LearnerOptions):
    """Write a video of the policy, without exploration (MP4), and Brax's HTML view for brax/."""

    run: shared.Folder  # folder of the run
    seed: int = 0  # seed of the episode
    max_steps: int = 1_000  # steps of an episode at most
    episodes: int = 1  # one after another, each from its first to its last state
    output: Annotated[Path | None, shared.OUTPUT] = None  # file to write; default DIR/play.mp4
    terminal: bool = False  # print the episode as text instead: environments on grids
    window: bool = False  # show it in a window instead: Gymnasium's environments, with a display


@dataclasses.dataclass
class ExportOptions(shared.Trust, shared.LearnerOptions):
    """Write the policy of a run for where JAX is not installed, and check the file with sampled
    observations.

    numpy is one Python file that needs NumPy alone. onnx needs the extra `export`. stablehlo is
    for jax.export.deserialize.
    """

    run: shared.Folder  # folder of the run
    to: Literal["numpy", "onnx", "stablehlo"]  # format of the file
    # file to write; default DIR/policy.py, DIR/policy.onnx or DIR/policy.stablehlo
    output: Annotated[Path | None, shared.OUTPUT] = None


@dataclasses.dataclass
class PackOptions(shared.Trust):
    """Write the policies of all learners into one file, with settings, results, a card and the
    run's film, for rljax.load.
    """

    run: shared.Folder  # folder of the run
    output: Annotated[Path | None, shared.OUTPUT] = None  # file to write; default DIR/policy.zip


def evaluate_run(arguments: list[str]) -> None:
    """rljax eval"""
    arguments, texts = parsing.split_config(arguments)
    options = parsing.parse(Evaluate, arguments, "eval")
    from rljax.runs.policies import evaluate, loading
    from rljax.trust import show

    names = ("episodes", "env", "best", "seed")
    same: dict[str, Any] = {name: getattr(options, name) for name in names}
    folder = options.folder(options.run)
    changes = loading.read_changes(folder, texts) if texts else {}
    for values in itertools.product(*changes.values()):
        config, results = dict(zip(changes, values, strict=True)), []
        for hold in options.hold or (None,):
            results.append(evaluate.evaluate_run(folder, **same, config=config, hold=hold))
            show(evaluate.table(results[-1]))
        if len({result["hold"] for result in results}) > 1:
            show(evaluate.line_over_holds(results))


def play(arguments: list[str]) -> None:
    """rljax play"""
    options = parsing.parse(PlayOptions, arguments, "play")
    from rljax.runs.policies import videos

    names = ("learner", "best", "seed", "max_steps", "episodes")
    episode: dict[str, Any] = {name: getattr(options, name) for name in names}
    folder = options.folder(options.run)
    if options.terminal and options.window:
        raise ValueError("--terminal and --window are two ways to show an episode: give one.")
    if options.window:
        lines = videos.window(folder, **episode)
    elif options.terminal:
        lines = videos.tell(folder, **episode, colours=sys.stdout.isatty())
    else:
        lines = videos.play(folder, **episode, output=options.output)
    for line in lines:
        print(line, flush=True)


def export(arguments: list[str]) -> None:
    """rljax export"""
    options = parsing.parse(ExportOptions, arguments, "export")
    from rljax.runs.export import checks, exporting

    path, difference = exporting.export(
        options.folder(options.run),
        options.to,
        learner=options.learner,
        best=options.best,
        output=options.output,
    )
    print(
        f"{path}: acts as the run's policy, to {difference:.1g} in {checks.OBSERVATIONS} sampled "
        f"observations (limit {checks.TOLERANCE:g})"
    )


def pack(arguments: list[str]) -> None:
    """rljax pack"""
    options = parsing.parse(PackOptions, arguments, "pack")
    from rljax.runs.export import packing

    print(packing.pack(options.folder(options.run), output=options.output))
