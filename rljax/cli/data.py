"""Commands for data sets: rljax data list | info | check | convert | join | corrupt | correct |
record.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from rljax.cli import options as shared
from rljax.cli import parsing, recording
from rljax.trust import printable, show

USAGE = """\
usage: rljax data COMMAND ...

  list [FAMILY]        known data sets: d4rl, minari, ogbench, neorl2
  info DATA            sizes, returns, lengths and scores, and a picture of them
  check DATA           find its faults and their effect on learning; exit code 1 for errors
  convert DATA FILE    write it as .npz, as .hdf5 in D4RL's layout, or as a Minari data set
  join FILE DATA...    write several one after the other, as D4RL's medium-expert sets are
  corrupt DATA FILE    write it with part of its rows corrupted, by RIQL's protocol
  correct SOURCE TARGET FILE   write data of other dynamics with the actions and rewards of the
                       target's, by STC
  record RUN FILE      act with a run's policies, or take its replay, and write the
                       transitions as a data set
  record NAME FILE     write scripted episodes of a task that has some: rljax/CombinationLock-10,
                       rljax/PointMaze
  record NAME [FILE]   make OGBench's data of cube, scene, puzzle or point mazes, with its
                       experts: ogbench/cube-single-play-v0, ogbench/pointmaze-large-stitch-v0

DATA is a name such as d4rl/hopper-medium-v2, or a .hdf5, .h5 or .npz file. Files are looked for,
and downloaded to, $RLJAX_DATA or ~/.rljax/data. FILE must be new: no file is overwritten.
"""

Data = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATA")]


@dataclasses.dataclass
class Names:
    """Known data sets by family."""

    family: tyro.conf.Positional[str | None] = None  # d4rl, minari, ogbench or neorl2; default: all


@dataclasses.dataclass(kw_only=True)
class Input:
    """A data set, and how its actions are read."""

    data: Data  # name or file
    clip_actions: bool = False  # clip actions beyond their bounds, else refused
    # low and high in a file that does not say: -2 2, or one number per dimension: 0,-3 1,5;
    # default: -1 1
    action_bounds: tuple[str, str] | None = None


@dataclasses.dataclass
class Info(Input):
    """Show sizes, returns, lengths and scores of a data set, and a picture of them."""

    # picture: .png, .svg or .pdf; default: NAME.png in the current folder
    output: Annotated[Path | None, shared.OUTPUT] = None


@dataclasses.dataclass
class Check(Input):
    """Find the faults of a data set, their effect on learning, and remedies."""


@dataclasses.dataclass
class Convert(Input):
    """Write a data set in another form."""

    # file.npz, file.hdf5 (D4RL's layout), or minari/NAME-v0
    output: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE")]
    # environment of the data, with the bounds or number of its actions; default: DATA's own
    env: str | None = None
    # keep this fraction of the trajectories, the best by return: 0.1 is that of 10% BC
    top: float = 1.0
    discount: float = 1.0  # discount of the returns that rank the trajectories


@dataclasses.dataclass
class Join:
    """Write several data sets one after the other."""

    output: shared.NewFile  # file.npz or file.hdf5
    # names or files
    data: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="DATA...")]
    # write the number of each row's data set as the signal "part", which ReCOIL needs
    mark_parts: bool = False


@dataclasses.dataclass
class Corrupt(shared.Trust, Input):
    """Write a data set with part of its rows corrupted, by RIQL's protocol."""

    output: shared.NewFile  # file.npz or file.hdf5
    what: tuple[str, ...]  # observation, action, reward or dynamics, or several of them
    how: str = "random"  # random or adversarial
    rate: float = 0.3  # share of the rows
    scale: float = 1.0  # size of the noise or the attack, in standard deviations
    seed: int = 0  # seed of the choice of rows and of the noise
    # for adversarial: folder of a run with critics, such as EDAC's on the same data
    attacker: Path | None = None
    learner: int = 0  # which learner of the attacker's run


@dataclasses.dataclass
class Correct:
    """Write data of other dynamics with the actions and rewards that the target's would have, by
    STC.
    """

    # name or file of the other dynamics
    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SOURCE")]
    # name or file of the target
    target: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TARGET")]
    output: shared.NewFile  # file.npz or file.hdf5
    hidden: tuple[int, ...] = (256, 256)  # widths of the models' layers
    updates: int = 10_000  # of each of the three models
    # largest change of a reward, in standard deviations of the target's rewards
    reward_limit: float = 1.0
    seed: int = 0  # seed of the models


def main(arguments: list[str]) -> None:
    """Run one of the commands. Raises `ValueError` for a user's mistake."""
    commands = {"list": _list, "info": _info, "check": _check, "convert": _convert, "join": _join}
    commands |= {"corrupt": _corrupt, "correct": _correct, "record": recording.main}
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return
    if arguments[0] not in commands:
        raise ValueError(f"no command 'data {arguments[0]}'. All of them: {', '.join(commands)}.")
    commands[arguments[0]](arguments[1:])


def _load(options: Input) -> Any:
    from rljax import datasets

    bounds = None if options.action_bounds is None else tuple(map(_bound, options.action_bounds))
    return datasets.load(options.data, clip_actions=options.clip_actions, action_bounds=bounds)


def _bound(words: str) -> list[float] | float:
    """A bound of all dimensions, or with commas one per dimension."""
    try:
        numbers = [float(word) for word in words.split(",")]
    except ValueError:
        raise ValueError(
            "--action-bounds takes two: low and high, each a number, or one number per dimension "
            f"with commas between them, such as 0,-3 1,5. This is neither: '{words}'"
        ) from None
    return numbers if len(numbers) > 1 else numbers[0]


def _parse_with_bounds(options: Any, arguments: list[str], command: str) -> Any:
    """The options of a command. A list such as -1,-2 is no option."""
    spaced = [re.sub(r"^(?=-[0-9.][0-9.,eE+-]*$)", " ", word) for word in arguments]
    return parsing.parse(options, spaced, command)


def _list(arguments: list[str]) -> None:
    family = parsing.parse(Names, arguments, "data list").family
    from rljax import datasets

    known = datasets.names()
    if family is not None and family not in known:
        raise ValueError(f"no family '{family}' of data sets. All of them: {', '.join(known)}.")
    for name in known if family is None else [family]:
        print(f"data sets: {name}", *known[name], sep="\n  ")


def _info(arguments: list[str]) -> None:
    options = _parse_with_bounds(Info, arguments, "data info")
    from rljax import datasets
    from rljax.datasets.formats.text import listed

    dataset = _load(options)
    described = datasets.describe(dataset)
    megabytes = f"{described['bytes'] / 1e6:,.0f} MB"
    show(f"{described['name']}: {described['transitions']:,} transitions, {megabytes}")
    kind = "choices" if described["discrete"] else "action dimensions"
    actions = f"{described['action_size']} {kind}"
    if described["choices"]:
        actions = f"actions of {' x '.join(map(str, described['choices']))} choices"
    observation = f"{described['observation_size']} observation dimensions"
    if not dataset.spec.is_vector:
        observation = printable(described["observation"])
    show(f"  {observation}, {actions}")
    show(f"  environment: {printable(described['env'] or 'none known')}")
    show(f"  {described['terminated']:,} terminal rows, {described['truncated']:,} truncated ones")
    provenance = dataset.provenance
    for reason, count in provenance.get("dropped", {}).items():
        if count:
            show(f"  dropped rows: {count:,}, {reason}")
    if provenance.get("unread"):
        show(f"  not read: {listed(provenance['unread'])}")
    show(f"  complete episodes: {described['episodes']:,}")
    names = ("return", "length", "score", "reward")
    summaries = {name: described[name] for name in names if name in described}
    for name, sums in described.get("signals", {}).items():
        summaries[f"{printable(name)} per episode"] = sums
    for name, summary in summaries.items():
        show(f"  {name}: {', '.join(f'{key} {value:,.2f}' for key, value in summary.items())}")
    if described["episodes"]:
        print(datasets.draw(dataset, options.output or Path(f"{datasets.short(options.data)}.png")))


def _check(arguments: list[str]) -> None:
    options = _parse_with_bounds(Check, arguments, "data check")
    from rljax import datasets

    findings = datasets.check(_load(options))
    for finding in findings:
        show(finding)
    errors = sum(finding.severity == "error" for finding in findings)
    show(f"{options.data}: {errors} errors, {len(findings) - errors} warnings")
    if errors:
        raise SystemExit(1)


def _convert(arguments: list[str]) -> None:
    options = _parse_with_bounds(Convert, arguments, "data convert")
    into_minari = options.output.startswith("minari/")
    if not into_minari:
        parsing.require_new(Path(options.output))
    from rljax import datasets

    dataset = _load(options) if options.env is None else _of_environment(options)
    if options.top != 1.0:
        dataset = datasets.top_fraction(dataset, options.top, options.discount)
    if into_minari:
        name = options.output.removeprefix("minari/")
        print(datasets.write_minari(dataset, name, env=options.env))
    else:
        print(datasets.write(dataset, Path(options.output)))


def _of_environment(options: Convert) -> Any:
    from rljax import datasets
    from rljax.datasets.formats import dataset_files

    name = options.env or ""
    spec, bounds = _actions_of(name)
    path = Path(options.data)
    if bounds is not None and options.action_bounds is None and path.is_file():
        low, high = (",".join(f"{x:.9g}" for x in bound) for bound in bounds)
        if dataset_files.unbounded_dimensions(path) == len(bounds[0]):
            options = dataclasses.replace(options, action_bounds=(low, high))
            _warn(f"actions are read as lying in the bounds of {name}: {low} to {high}")
    dataset = dataclasses.replace(_load(options), env=name)
    if spec is None or not spec.discrete:
        return dataset
    datasets.require_integers(dataset, name, spec.action_size)
    if not dataset.discrete:
        return dataset
    known: dict[str, Any] = {"num_actions": max(dataset.action_size, spec.action_size)}
    if dataset.choices:
        known = {"choices": list(spec.choices or dataset.choices)}
    return dataclasses.replace(dataset, provenance=dataset.provenance | known)


def _warn(text: str) -> None:
    print(text, file=sys.stderr)


def _actions_of(name: str) -> tuple[Any, Any]:
    """The environment's `EnvSpec` and bounds; None, with a warning, if it cannot be made."""
    from rljax import envs

    try:
        if envs.is_compiled(name):
            return envs.make(name).spec, None
        hosted = envs.make_hosted(name, 1)
    except (ValueError, TypeError) as error:
        _warn(f"warning: '{name}' cannot be made here, so its actions are not known: {error}")
        return None, None
    hosted.close()
    return hosted.spec, hosted.action_bounds


def _join(arguments: list[str]) -> None:
    options = parsing.parse(Join, arguments, "data join")
    from rljax import datasets

    if not options.data:
        raise ValueError("nothing to join: rljax data join FILE DATA DATA ...")
    parsing.require_new(options.output)
    parts = [datasets.load(name) for name in options.data]
    joined = datasets.join(parts, str(options.output), options.mark_parts)
    print(f"{datasets.write(joined, options.output)}: {joined.num:,} transitions")


def _corrupt(arguments: list[str]) -> None:
    options = _parse_with_bounds(Corrupt, arguments, "data corrupt")
    parsing.require_new(options.output)
    from rljax import datasets
    from rljax.datasets.tools import corruption
    from rljax.runs.policies.attackers import load_attacker

    attacker = None
    if options.attacker is not None:
        attacker = load_attacker(options.folder(options.attacker), options.learner)
    names = ("what", "how", "rate", "scale", "seed")
    settings: dict[str, Any] = {name: getattr(options, name) for name in names}
    corrupted = corruption.corrupt(_load(options), **settings, attacker=attacker)
    print(datasets.write(corrupted, options.output))


def _correct(arguments: list[str]) -> None:
    options = parsing.parse(Correct, arguments, "data correct")
    parsing.require_new(options.output)
    if options.updates < 1 or min(options.hidden, default=1) < 1:
        raise ValueError(
            f"--updates is {options.updates} and --hidden {options.hidden}, all must be at least 1."
        )
    from rljax import datasets
    from rljax.datasets.tools import dynamics_correction, regression

    made = dynamics_correction.correct(
        datasets.load(options.source),
        datasets.load(options.target),
        str(options.output),
        regression.RegressionSettings(hidden=options.hidden, updates=options.updates),
        options.reward_limit,
        options.seed,
    )
    note = made.provenance["correction"]
    errors = ", ".join(f"{name} {error:.2f}" for name, error in note["errors"].items())
    print(
        f"{datasets.write(made, options.output)}: {note['corrected']:.0%} of {made.num:,} "
        "transitions corrected"
    )
    print(f"errors of the models on held-out rows, in standard deviations: {errors}")
