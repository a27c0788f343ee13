"""The command line: rljax train | sweep | resume | extract | eval | play | plot | report | watch | data | list | new.

Nothing heavy is imported before a command has been chosen and its arguments understood.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

USAGE = """\
usage: rljax COMMAND ...

Deep reinforcement learning in JAX: one readable file per algorithm, everything around it compiled and shared.

training
  train AGENT --env ENV    train an agent, one learner per seed:  rljax train sac --env Hopper-v5 --steps 300000
  train AGENT --data DATA  the same from a data set:  rljax train iql --data d4rl/hopper-medium-v2 --seeds 4
  sweep AGENT --env ENV    search its settings, and test what is found on other seeds
  resume DIR               continue a run exactly where its last checkpoint stands
  extract DIR              make learners of a run a run of their own
looking
  eval DIR                 play complete episodes with the policy of a run
  play DIR                 write a video of the policy (and Brax's HTML view), or show it in the terminal
  plot DIR...              draw learning curves with intervals
  report DIR...            compare all runs in and below folders on one page:  rljax report runs/
  watch DIR...             follow running runs in the terminal
  list                     agents, environments and presets
data
  data COMMAND             list, info, check, convert and record data sets
changing
  new FILE --from AGENT    copy an agent to a file of your own, to change and train:  rljax train ./mine.py ...

`rljax COMMAND --help` explains a command; `rljax train AGENT --help` explains each hyperparameter of an agent.
"""

EXIT_USER, EXIT_RUN = 2, 1
# A start is imports and tracing, whose objects stay: looking through them for garbage would take a fifth of it.
COLLECT_AFTER = (100_000, 20, 100)


@dataclasses.dataclass
class Train:
    """Train an agent. Steps are environment steps of each learner; from a data set alone, updates of each."""

    agent: tyro.conf.Positional[str]  # name (see rljax list) or path of your own agent file
    env: str | None = None  # environment, such as Hopper-v5, brax/ant, rljax/Pendulum; default: the data set's
    steps: int = 1_000_000  # environment steps of each learner; from a data set alone, updates
    data: str | None = None  # data set to learn from: d4rl/hopper-medium-v2 (see rljax data list), or a file
    then_online: int = 0  # environment steps of each learner after the updates from the data set
    offline_share: float | Literal["pooled"] = 0.5  # of each batch, from the data set; pooled: uniformly of old and new
    data_on_host: bool = False  # keep a data set that the device cannot hold in the host's memory: slower
    seed: int = 0  # S, of the first learner
    seeds: int = 1  # number of learners, with seeds S, S + 1, ..., as one program
    grid: tyro.conf.UseAppendAction[tuple[str, ...]] = ()  # train all values of a setting: config.actor-lr=1e-4,3e-4
    learners_per_launch: int | None = None  # of a grid, at most; default: what memory holds
    dry_run: bool = False  # show which programs a grid would be, and do nothing
    ray: str | None = None  # Ray cluster for a grid's launches: auto, or HOST:PORT
    ray_cpus: int = 1  # processors of each launch there
    out: Path | None = None  # folder of the run; default runs/AGENT/ENV/TIME
    log_every: int = 1_000  # steps between lines of metrics
    eval_every: int = 10_000  # steps between evaluations
    eval_episodes: int = 10  # complete episodes per evaluation and learner
    checkpoint_every: int = 50_000  # steps between checkpoints
    keep_checkpoints: int = 2  # newest checkpoints kept
    tensorboard: bool = False  # write TensorBoard events too
    wandb: str | None = None  # Weights & Biases project to log to (WANDB_MODE=offline keeps it local)
    quiet: bool = False  # no live progress
    coordinator: str | None = None  # of several hosts: HOST:PORT of process 0, or auto on a cluster that JAX recognises
    num_processes: int | None = None  # of the run, usually one on each host; all are started with the same command
    process_id: int | None = None  # of this process, from 0
    join_timeout: int = 300  # seconds to wait for the other processes


@dataclasses.dataclass
class Sweep:
    """Search an agent's settings on tuning seeds, and train what is found anew on test seeds."""

    agent: tyro.conf.Positional[str]  # name (see rljax list) or path of your own agent file
    env: str | None = None  # environment, such as Hopper-v5, brax/ant, rljax/Pendulum; default: the data set's
    steps: int = 1_000_000  # of each learner of a whole trial, and of the test
    data: str | None = None  # data set to learn from: d4rl/hopper-medium-v2 (see rljax data list), or a file
    method: Literal["random", "tpe", "hyperband", "pbt"] = "tpe"  # how trials are chosen
    trials: int = 64  # settings tried
    population: int = 16  # trials asked together, or learners of pbt; of hyperband its brackets say it
    tuning_seeds: tuple[int, ...] = (0, 1, 2)  # each trial is trained with every one of them
    test_seeds: tuple[int, ...] = tuple(range(100, 110))  # only what is found is trained with them
    space: Path | None = None  # TOML file of what may be tried; default: the agent's own
    every: int | None = None  # steps between pbt's changes of settings; default: a twentieth of all
    eta: int = 3  # hyperband keeps one trial of so many, and trains it so many times as long
    min_steps: int | None = None  # of hyperband's shortest trials; default: a 27th of all
    search_seed: int = 0  # of the search itself
    storage: str | None = None  # Optuna's, by URL; default: an SQLite file in the folder
    study: str = "sweep"  # its name there
    learners_per_launch: int | None = None  # at most; default: what memory holds
    ray: str | None = None  # Ray cluster for the launches: auto, or HOST:PORT
    ray_cpus: int = 1  # processors of each launch there
    out: Path | None = None  # folder of the sweep; default runs/AGENT/ENV/TIME
    log_every: int = 1_000  # steps between lines of metrics
    eval_every: int = 10_000  # steps between evaluations
    eval_episodes: int = 10  # complete episodes per evaluation and learner
    checkpoint_every: int = 50_000  # steps between checkpoints
    quiet: bool = False  # no live progress


@dataclasses.dataclass
class Resume:
    """Continue a run exactly where its last checkpoint stands."""

    run: tyro.conf.Positional[Path]  # folder of the run, the grid or the sweep
    steps: int | None = None  # new total of environment steps; default: as first planned
    then_online: int | None = None  # let a run from a data set go on in its environment, for so many steps
    offline_share: float | Literal["pooled"] | None = None  # of each batch then, from the data set; default 0.5
    ray: str | None = None  # Ray cluster for the launches of a grid or a sweep
    ray_cpus: int = 1  # processors of each launch there
    quiet: bool = False  # no live progress
    coordinator: str | None = None  # of several hosts: HOST:PORT of process 0, or auto on a cluster that JAX recognises
    num_processes: int | None = None  # of the run, usually one on each host; all are started with the same command
    process_id: int | None = None  # of this process, from 0
    join_timeout: int = 300  # seconds to wait for the other processes


@dataclasses.dataclass
class Extract:
    """Make some learners of a run a run of their own, which goes on exactly where they stand."""

    run: tyro.conf.Positional[Path]  # folder of the run
    learners: tuple[int, ...]  # which of them, from 0
    out: Path | None = None  # folder to write; default: the run's name and the learners' numbers


@dataclasses.dataclass
class Evaluate:
    """Play complete episodes with the policy of a run, without exploration, and print their returns."""

    run: tyro.conf.Positional[Path]  # folder of the run
    episodes: int = 10  # complete episodes of each learner
    env: str | None = None  # another environment of the same shapes; default: the run's
    best: bool = False  # the policy of each learner's best evaluation, not the last one
    seed: int = 0  # seed of the episodes
    compute: tuple[int, ...] = ()  # thinking steps of an action, one evaluation each; default: as in training


@dataclasses.dataclass
class Play:
    """Write a video of the policy, without exploration (MP4), and Brax's HTML view for brax/ environments."""

    run: tyro.conf.Positional[Path]  # folder of the run
    learner: int = 0  # which learner of the population
    best: bool = False  # the policy of the learner's best evaluation, not the last one
    seed: int = 0  # seed of the episode
    max_steps: int = 1_000  # steps at most
    output: Path | None = None  # file to write; default DIR/play.mp4
    terminal: bool = False  # print the episode as text instead: environments on grids


@dataclasses.dataclass
class Plot:
    """Draw the evaluation curves of runs: learners with the same agent, settings and task are one curve."""

    runs: tyro.conf.Positional[tuple[Path, ...]]  # folders of runs
    output: Path | None = None  # .png or .svg; default FIRST/curve.png


@dataclasses.dataclass
class Report:
    """Compare runs on one page, with figures and tables beside it: every number with its interval over learners."""

    paths: tyro.conf.Positional[tuple[Path, ...]]  # folders of runs, or folders with runs at any depth
    output: Path = Path("report.html")  # the page; figures and tables.md go to the folder report/ beside it
    at: int | None = None  # compare at this step; default: at the end of the runs' budget, which must be the same


@dataclasses.dataclass
class Watch:
    """Follow runs in the terminal: how far they are, how fast, and what the latest evaluation says."""

    paths: tyro.conf.Positional[tuple[Path, ...]]  # folders of runs, or folders with runs at any depth
    once: bool = False  # print once and leave; so it is anyway where the output is no terminal
    every: float = 2.0  # seconds between looks


@dataclasses.dataclass
class List:
    """Agents, environments and presets."""

    what: tyro.conf.Positional[str | None] = None  # agents, environments or presets; default: all


@dataclasses.dataclass
class New:
    """Copy an agent to a file of your own, with its settings per environment beside it."""

    file: tyro.conf.Positional[Path]  # file to write
    source: Annotated[str, tyro.conf.arg(name="from")] = "sac"  # agent to start from


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with 2 for what a user can mend, 1 for a run that failed."""
    gc.set_threshold(*COLLECT_AFTER)
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    commands: dict[str, Callable[[list[str]], None]] = {
        "train": _train,
        "sweep": _sweep,
        "resume": _resume,
        "extract": _extract,
        "eval": _eval,
        "play": _play,
        "plot": _plot,
        "report": _report,
        "watch": _watch,
        "data": _data,
        "list": _list,
        "new": _new,
    }
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return
    if arguments[0] == "--version":
        from rljax import __version__

        print(f"rljax {__version__}")
        return
    if arguments[0] not in commands:
        import difflib

        near = difflib.get_close_matches(arguments[0], commands, n=1)
        _fail(f"no command '{arguments[0]}'. {f'Nearest: {near[0]!r}. ' if near else ''}All of them: rljax --help")
    try:
        _guarded(commands[arguments[0]], arguments[1:])
    except SystemExit as end:
        if isinstance(end.code, int) and end.code and _value_of(arguments, "--coordinator") is not None:
            from rljax.distributed import processes

            processes.leave(end.code, last=_value_of(arguments, "--process-id") in ("0", None))
        raise


def train_file(path: str) -> None:
    """What an agent file does when it is run as a program: `python agents/sac.py --env ...`."""
    main(["train", path, *sys.argv[1:]])


def _guarded(command: Callable[[list[str]], None], arguments: list[str]) -> None:
    """Errors that a user can mend are one message and exit code 2; a run that failed, 1."""
    try:
        command(arguments)
    except (ValueError, TypeError, FileExistsError) as error:
        if os.environ.get("RLJAX_TRACEBACK"):
            raise
        _fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        _fail("stopped at once; what the last checkpoint holds is safe.", 130)
    except Exception as error:
        from rljax.distributed import processes
        from rljax.runs import checkpoints, run

        known = (run.RunError, processes.HostError, checkpoints.CheckpointError, FloatingPointError, OSError)
        if not isinstance(error, known) or os.environ.get("RLJAX_TRACEBACK"):
            raise
        _fail(str(error), EXIT_RUN)


def _fail(message: str, code: int = EXIT_USER) -> None:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(code)


def _parse(options: Any, arguments: list[str], command: str) -> Any:
    return tyro.cli(options, args=arguments, prog=f"rljax {command}", config=(tyro.conf.FlagCreatePairsOff,))


def _with_agent(options: Any, arguments: list[str], command: str) -> tuple[Any, Any]:
    """The options of a command that begins with an agent, and the agent's Config."""
    names = [argument for argument in arguments if not argument.startswith("-")]
    if not names or arguments[0] != names[0]:
        _parse(options, arguments, command)  # --help, or tyro's complaint
        raise ValueError(f"the agent comes first: rljax {command} sac --env Hopper-v5")
    from rljax.training import registry

    agent = registry.load_agent(arguments[0])
    environment, data = _value_of(arguments, "--env"), _value_of(arguments, "--data")
    if data is None:
        config = registry.preset(arguments[0], agent, environment)
    else:
        from rljax.runs import experiments

        config = experiments.preset(arguments[0], agent, environment, data)

    both = dataclasses.make_dataclass(
        f"{options.__name__}Agent",
        [
            ("options", Annotated[options, tyro.conf.arg(name="")]),
            ("config", agent.Config, dataclasses.field(default=config)),
        ],
    )
    both.__doc__ = (agent.__doc__ or "").split("\n\n")[0]
    parsed = _parse(both, [_known_here(argument, config) for argument in arguments], command)
    return parsed.options, parsed.config


def _known_here(argument: str, config: Any) -> str:
    """A flag such as --config.tau under the name that its setting has here."""
    from rljax.training.configuration import setting

    flag, equals, value = argument.partition("=")
    name = flag.removeprefix("--config.").replace("-", "_")
    known = setting(config, name) if flag.startswith("--config.") else name
    return argument if known == name else f"--config.{known.replace('_', '-')}{equals}{value}"


def _flagged(arguments: list[str], config: Any) -> set[str]:
    """The agent's settings that flags of the arguments set."""
    flags = [_known_here(argument, config).partition("=")[0] for argument in arguments]
    names = {flag.removeprefix("--config.").replace("-", "_") for flag in flags if flag.startswith("--config.")}
    return names | {name.removeprefix("no_") for name in names}


def _settings(options: Any) -> dict[str, Any]:
    """Those of the options that are fields of a run's `Settings`, but for its seeds."""
    from rljax.training.settings import Settings

    names = {field.name for field in dataclasses.fields(Settings)} - {"seeds"}
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(options) if field.name in names}


def _train(arguments: list[str]) -> None:
    options, config = _with_agent(Train, arguments, "train")
    if options.seeds < 1:
        raise ValueError(f"--seeds is {options.seeds}, it must be at least 1.")
    what = {
        **_settings(options),
        "seeds": range(options.seed, options.seed + options.seeds),
        "config": config,
    }
    how = {"out": options.out, "quiet": options.quiet, "command": shlex.join(["rljax", "train", *arguments])}
    if options.grid and options.coordinator is not None:
        raise ValueError("--coordinator joins hosts for one run; a grid's launches go to many machines with --ray.")
    _join(options)
    from rljax.runs import run

    if not options.grid:
        if options.dry_run or options.learners_per_launch is not None or options.ray is not None:
            raise ValueError(
                "--dry-run, --learners-per-launch and --ray are for a grid: --grid config.actor-lr=1e-4,3e-4"
            )
        _print_once(run.train(**what, **how))
        return
    from rljax.tuning import grids

    axes = grids.parse(options.grid, config)
    for name in sorted(_flagged(arguments, config).intersection(axes)):
        flag = f"config.{name.replace('_', '-')}"
        raise ValueError(f"--{flag} and --grid {flag} both set {name}: leave out the flag, or list its value.")
    points = grids.points(axes)
    from rljax.runs import experiments

    experiment = experiments.prepare(**what)
    if options.dry_run:
        print(grids.plan(experiment, points, options.learners_per_launch))
    else:
        print(grids.train(experiment, points, most=options.learners_per_launch, workers=_workers(options), **how))


def _sweep(arguments: list[str]) -> None:
    options, config = _with_agent(Sweep, arguments, "sweep")
    from rljax.runs import experiments
    from rljax.tuning import search_spaces, sweeps

    protocol = {field.name: getattr(options, field.name) for field in dataclasses.fields(search_spaces.Protocol)}
    experiment = experiments.prepare(**_settings(options), seeds=options.tuning_seeds, config=config)
    print(
        sweeps.begin(
            experiment,
            search_spaces.Protocol(**protocol),
            search_spaces.space(options.agent, config, options.space),
            out=options.out,
            quiet=options.quiet,
            command=shlex.join(["rljax", "sweep", *arguments]),
            workers=_workers(options),
            most=options.learners_per_launch,
        )
    )


def _workers(options: Any) -> Any:
    """The cluster that the options name, if any."""
    from rljax.distributed import ray_cluster

    return None if options.ray is None else ray_cluster.Cluster(options.ray, options.ray_cpus)


def _join(options: Any) -> None:
    """Become one of the processes that the options name, if any."""
    if options.coordinator is None:
        if options.num_processes is not None or options.process_id is not None:
            raise ValueError("--num-processes and --process-id need --coordinator HOST:PORT.")
        return
    from rljax.distributed import processes

    processes.join(options.coordinator, options.num_processes, options.process_id, options.join_timeout)


def _print_once(text: Any) -> None:
    """Print in the first of several processes alone."""
    from rljax.distributed import processes

    if processes.is_first():
        print(text)


def _value_of(arguments: list[str], flag: str) -> str | None:
    """The value of a flag, before tyro has seen the arguments."""
    for i, argument in enumerate(arguments):
        if argument == flag and i + 1 < len(arguments):
            return arguments[i + 1]
        if argument.startswith(flag + "="):
            return argument.split("=", 1)[1]
    return None


def _resume(arguments: list[str]) -> None:
    options = _parse(Resume, arguments, "resume")
    from rljax.runs import run
    from rljax.tuning import grids, sweeps

    many = grids if grids.is_grid(options.run) else sweeps if sweeps.is_sweep(options.run) else None
    online = {"then_online": options.then_online, "offline_share": options.offline_share}
    if many is not None and any(value is not None for value in online.values()):
        raise ValueError(f"--then-online is for one run, '{options.run}' holds many: resume one of those in it.")
    if many is not None and options.coordinator is not None:
        raise ValueError(f"--coordinator joins hosts for one run, '{options.run}' holds many: --ray spreads them.")
    if many is not None:
        print(many.resume(options.run, options.steps, quiet=options.quiet, workers=_workers(options)))
    elif options.ray is not None:
        raise ValueError(f"--ray is for a grid or a sweep, '{options.run}' is a run.")
    else:
        _join(options)
        how = {**online, "quiet": options.quiet, "command": shlex.join(["rljax", "resume", *arguments])}
        _print_once(run.resume(options.run, options.steps, **how))


def _extract(arguments: list[str]) -> None:
    options = _parse(Extract, arguments, "extract")
    from rljax.runs import extract

    print(extract.extract(options.run, options.learners, options.out))


def _eval(arguments: list[str]) -> None:
    options = _parse(Evaluate, arguments, "eval")
    from rljax.runs import policy

    same: dict[str, Any] = {name: getattr(options, name) for name in ("episodes", "env", "best", "seed")}
    for compute in options.compute or (None,):
        print(policy.table(policy.evaluate_run(options.run, **same, compute=compute)))


def _play(arguments: list[str]) -> None:
    options = _parse(Play, arguments, "play")
    from rljax.runs import policy

    episode: dict[str, Any] = {name: getattr(options, name) for name in ("learner", "best", "seed", "max_steps")}
    if options.terminal:
        shown = policy.tell(options.run, **episode, colours=sys.stdout.isatty())
    else:
        shown = policy.play(options.run, **episode, output=options.output)
    for part in shown:
        print(part)


def _plot(arguments: list[str]) -> None:
    options = _parse(Plot, arguments, "plot")
    from rljax.analysis import learning_curves

    print(learning_curves.plot(options.runs, options.output))


def _report(arguments: list[str]) -> None:
    options = _parse(Report, arguments, "report")
    from rljax.analysis import report

    print(report.write(options.paths, options.output, options.at))


def _watch(arguments: list[str]) -> None:
    options = _parse(Watch, arguments, "watch")
    from rljax.analysis import watch

    watch.follow(options.paths, once=options.once, every=options.every)


def _data(arguments: list[str]) -> None:
    from rljax.cli import data

    data.main(arguments)


def _list(arguments: list[str]) -> None:
    options = _parse(List, arguments, "list")
    from rljax import envs
    from rljax.training import registry

    if options.what not in (None, "agents", "environments", "presets"):
        raise ValueError(f"nothing called '{options.what}' to list: agents, environments or presets.")
    if options.what in (None, "agents"):
        print("agents")
        for name in registry.names():
            print(f"  {name:<12} {registry.summary(name)}")
    if options.what in (None, "environments"):
        for family, names in envs.names().items():
            print(f"environments: {family}")
            print("\n".join(f"  {name}" for name in names))
    if options.what in (None, "presets"):
        for name in registry.names():
            print(f"presets: {name}")
            for pattern, values in registry.presets(name).items():
                changes = ", ".join(f"{key}={value}" for key, value in values.items() if key != "source")
                print(f"  {pattern:<28} {changes or 'the defaults'}  ({values['source']})")


def _new(arguments: list[str]) -> None:
    options = _parse(New, arguments, "new")
    from rljax.training import registry

    if options.file.suffix != ".py":
        raise ValueError(f"'{options.file}' must end in .py: rljax new {options.file.with_suffix('.py')}")
    file, *presets = registry.copy(options.source, options.file)
    print(f"{file}: {options.source}, yours to change")
    for path in presets:
        print(f"{path}: its settings per environment and data set")
    print(f"Train it: rljax train {_path(file)} --env Hopper-v5")


def _path(file: Path) -> str:
    return str(file) if file.parent != Path() else f"./{file}"
