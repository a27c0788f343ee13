"""Run random command lines of rljax, valid, nearly valid and absurd,
and see that each ends as a user may expect.

  python scripts/faults/random_commands.py --number 1000 --seed 0

A command line is a subcommand with random agents, options and settings: values of the right kind,
words one letter off, absurd numbers, options twice, without a value or from another command, and
strange paths. It runs in this process, in a folder of its own that holds a run, a data set and an
agent's file, with a home that has signed nothing.

Nothing is trained, played, recorded or downloaded. Where that would begin, a function of `WORK`
ends the command in its place: in `Training.start`, after every check of a training, when the run's
folder is there. A command that comes so far counts as accepted, as one that ends with exit code 0.
A command fails if

- it ends by anything else than exit code 0 or 2, or takes over a minute of a processor;
- it prints a traceback, or is refused without a message, or with two;
- it is refused, and a file in the folder is new, gone or changed.

The results are counts by subcommand, in `--output`. Each failure is printed with its command.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import re
import shlex
import signal
import traceback
import types
import typing
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn
from unittest import mock

import jax
import numpy as np
import tyro

from rljax.cli import agents, analysis, data, environments, policies, recording, training
from rljax.cli.main import main as command_line
from rljax.learning import registry
from scripts.faults import shared
from tests.datasets.files import npz
from tests.datasets.formats import test_formats as data_files

MOST_SECONDS = 60  # of a processor
MOST_WAITING = 600  # seconds of the clock: other programs may keep the processors busy
REFUSED = 2  # the exit code of a user's mistake
TINY = (
    "train stream_ac --env Pendulum-v1 --steps 100 --out run --config.hidden 8 8 "
    "--eval-episodes 1 --eval-every 100 --log-every 50 --quiet"
)
# Where the work of a command begins, after its checks.
WORK = (
    "rljax.learning.loop.Training.start",
    "rljax.distributed.ray_cluster.RayCluster.run",
    "rljax.learning.evaluation.CompiledEvaluator.starts",
    "rljax.learning.evaluation.HostedEvaluator.starts",
    "rljax.runs.policies.videos.environment_seeds",
    "rljax.runs.interface.environment_check._play",
    "rljax.runs.policies.collect.roll_out",
    "rljax.runs.policies.collect.demonstrated",
    "rljax.datasets.recording.scripted_experts._collect",
    "rljax.datasets.tools.regression.fit",
    "rljax.datasets.publishers.download._receive",
)
COMMANDS: dict[str, Any] = {
    "train": training.Train,
    "sweep": training.Sweep,
    "resume": training.Resume,
    "extract": training.Extract,
    "eval": policies.Evaluate,
    "play": policies.PlayOptions,
    "export": policies.ExportOptions,
    "pack": policies.PackOptions,
    "plot": analysis.Plot,
    "report": analysis.ReportOptions,
    "diagnose": analysis.Diagnose,
    "select": analysis.Select,
    "watch": analysis.Watch,
    "list": agents.List,
    "new": agents.New,
    "env check": environments.EnvCheck,
    "data list": data.Names,
    "data info": data.Info,
    "data check": data.Check,
    "data convert": data.Convert,
    "data join": data.Join,
    "data corrupt": data.Corrupt,
    "data correct": data.Correct,
    "data record": recording.Record,
}
# Each has an agent's settings, and far more options than the others.
WEIGHTS = {"train": 12, "sweep": 4, "resume": 2, "eval": 2}

ENVIRONMENTS = ("Pendulum-v1", "CartPole-v1", "rljax/Pendulum", "gymnax/CartPole-v1", "none")
DATA = (
    "whole.npz",
    "whole.npz",
    "whole.npz",
    "whole.npz",
    "d4rl/hopper-medium-v2",
    "minari/mujoco/hopper/expert-v0",
)
FOLDERS = ("run", "run", "run", "run/", "./run", ".", "missing", "whole.npz", "/dev/null")
OUTPUTS = (
    "new",
    "new",
    "new",
    "a/new folder",
    "new.npz",
    "new.hdf5",
    "new.png",
    "new.html",
    "new.mp4",
    "new.py",
)
OUTPUTS += ("run", "whole.npz", "a\nb", "-", "minari/new-v0", "/dev/null/new", 300 * "x", "../new")
SETTINGS = ("config.actor-lr=1e-4", "config.discount=0.9,0.99", "config.hidden=8,16", "steps=3")
VALUES: dict[str, Sequence[str]] = {
    "env": ENVIRONMENTS,
    "eval_env": ENVIRONMENTS,
    "data": DATA,
    "validation": DATA,
    "target": DATA,
    "run": FOLDERS,
    "runs": FOLDERS,
    "paths": FOLDERS,
    "base": FOLDERS,
    "from_run": FOLDERS,
    "attacker": FOLDERS,
    "out": OUTPUTS,
    "output": OUTPUTS,
    "file": ("mine.py", "new.py", "agents/new.py", "new", "1.py", "new.PY", "in.py"),
    "preset": ("rainbow", "drqv2", "redq", "default"),
    "what": ("agents", "presets", "observation", "action", "reward", "dynamics"),
    "how": ("random", "adversarial"),
    "family": ("d4rl", "minari", "ogbench", "neorl2"),
    "grid": SETTINGS,
    "online": SETTINGS,
    "from_parts": ("actor", "critic"),
    "offline_share": ("0.5", "pooled", "0.9:0.1:100", "1:0:0"),
    "limits": ("cost=25", "cost", "cost=-1"),
    "signal": ("cost", "return"),
    "action_bounds": ("-2", "2", "0,-3", "1,5"),
    "coordinator": ("localhost:1234", "auto"),
    "ray": ("auto", "localhost:6379"),
    "storage": ("sqlite:///trials.db", "nothing://"),
    "acting": ("policy", "exploring", "random", "replay"),
    "space": ("whole.npz", "missing.toml"),
    "wrap": ("mine.py:Config", "missing.py:Scale", "mine.py"),
    "chart_names": ("rljax", "cleanrl"),
    "mlflow": ("experiment",),
    "trackio": ("project",),
    "stop_at_return": ("-100", "0"),
}
ABSURD = ("", " ", "-", "--", "-0", "-1", "0", "nan", "inf", "-inf", "1e308", "1e-320", "1e5000")
ABSURD += ("9223372036854775808", "1_000", "0x10", "1e3.5", "true", "None", "None,1", "[1, 2]", "{")
ABSURD += ("é", "a b", "a\nb", "\t", "../..", "%s", "{0}", "\x1b[31m", "'", '"', "$HOME", "~", "٣")
RIGHT = {
    int: ("0", "1", "2", "3", "10", "100", "1e3"),
    float: ("0", "0.1", "0.5", "0.99", "1", "2"),
}


class Begun(BaseException):
    """The work of a command would begin."""


class TooLong(BaseException):
    """A command took too long."""


class Outcome(NamedTuple):
    """How a command ended."""

    kind: Literal["accepted", "refused", "failed"]
    wrong: str = ""  # why it failed
    said: str = ""


def command(rng: np.random.Generator) -> tuple[str, list[str]]:
    """A subcommand and its arguments."""
    weights = np.array([WEIGHTS.get(name, 1) for name in COMMANDS], float)
    name = str(rng.choice(list(COMMANDS), p=weights / weights.sum()))
    oddity = float(rng.choice([0.0, 0.0, 0.1, 0.5]))  # share of odd values
    fields, kinds = _fields(COMMANDS[name])
    positional = {each for each, kind in kinds.items() if _is_positional(kind)}
    words, agent = name.split(), str(rng.choice(registry.names()))
    for each in (field for field in fields if field in positional):
        if each == "agent":
            words.append(_odd(rng, agent) if rng.random() < oddity / 3 else agent)
        elif each == "source" and name == "data record":
            sources = ("run", "run", "rljax/CombinationLock-10", "ogbench/cube-single-play-v0")
            words.append(str(rng.choice(sources)))
        elif rng.random() < 0.95:
            words += _values(rng, each, kinds[each], oddity)
    if name in ("train", "sweep"):
        words += ["--out", _value(rng, "out", str, oddity / 3), *_task(rng, oddity / 3)]
    options = [field for field in fields if field not in positional]
    if name == "data corrupt":
        words += ["--what", _value(rng, "what", str, oddity)]
    if name == "extract":
        words += ["--learners", _value(rng, "learners", int, oddity)]
    for each in rng.permutation(options)[: rng.integers(min(5, len(options) + 1))]:
        values = _values(rng, each, kinds[each], oddity, fields[each].default)
        words += _option(rng, _flag(fields[each]), values, oddity)
    if "agent" in positional or name == "eval":
        words += _settings(rng, agent, oddity)
    if rng.random() < oddity / 5:
        words.insert(int(rng.integers(len(words) + 1)), str(rng.choice(ABSURD)))
    return name, words


def _fields(options: Any) -> tuple[dict[str, dataclasses.Field[Any]], dict[str, Any]]:
    kinds = typing.get_type_hints(options, include_extras=True)
    return {field.name: field for field in dataclasses.fields(options)}, kinds


def _is_positional(kind: Any) -> bool:
    return typing.get_args(tyro.conf.Positional[int])[1] in getattr(kind, "__metadata__", ())


def _flag(field: dataclasses.Field[Any]) -> str:
    names = {"from_run": "from", "acting": "from", "source": "from"}
    return "--" + names.get(field.name, field.name).replace("_", "-")


def _task(rng: np.random.Generator, oddity: float) -> list[str]:
    """An environment, data, or both."""
    words = []
    from_data = rng.random() < 0.5
    if from_data:
        words += ["--data", _value(rng, "data", str, oddity)]
    if not from_data or rng.random() < 0.2:
        words += ["--env", _value(rng, "env", str, oddity)]
    elif rng.random() < 0.9:
        words += ["--env", "none"]
    return words


def _settings(rng: np.random.Generator, agent: str, oddity: float) -> list[str]:
    """Settings of the agent, and seldom of another."""
    name = str(rng.choice(registry.names())) if rng.random() < oddity / 5 else agent
    fields, kinds = _fields(registry.load_agent(name).Config)
    words = []
    for each in rng.permutation(list(fields))[: rng.integers(4)]:
        values = _values(rng, each, kinds[each], oddity, fields[each].default)
        words += _option(rng, f"--config.{each.replace('_', '-')}", values, oddity)
    return words


def _option(rng: np.random.Generator, flag: str, values: list[str], oddity: float) -> list[str]:
    """An option as a user may write it."""
    if rng.random() < oddity / 5:
        flag = _odd(rng, flag)
    if values and rng.random() < oddity / 10:
        values = values[1:]
    if values and rng.random() < 0.2:
        flag, *values = f"{flag}={values[0]}", *values[1:]
    words = [flag, *values]
    return words * 2 if rng.random() < oddity / 10 else words


def _values(
    rng: np.random.Generator, name: str, kind: Any, oddity: float, default: Any = None
) -> list[str]:
    """The words of an option's value, by its type."""
    kind = _bare(kind)
    if kind is bool:
        return [str(rng.choice(ABSURD))] if rng.random() < oddity / 5 else []
    if typing.get_origin(kind) is tuple:
        parts = typing.get_args(kind)
        many = int(rng.integers(4)) if parts[-1] is Ellipsis else len(parts)
        return [_value(rng, name, parts[0], oddity) for _ in range(many)]
    if isinstance(default, str | int | float) and rng.random() < (1 - oddity) / 2:
        doubled = not isinstance(default, str) and rng.random() < 0.2
        return [str(default * 2 if doubled else default)]
    return [_value(rng, name, kind, oddity)]


def _bare(kind: Any) -> Any:
    """A type without annotations, and one of a union's types."""
    while True:
        if hasattr(kind, "__metadata__"):
            kind = kind.__origin__
        elif typing.get_origin(kind) in (typing.Union, types.UnionType):
            kind = next(part for part in typing.get_args(kind) if part is not type(None))
        else:
            return kind


def _value(rng: np.random.Generator, name: str, kind: Any, oddity: float) -> str:
    """One word: right for the type, one letter off, or absurd."""
    kind = _bare(kind)
    right = VALUES.get(name) or RIGHT.get(kind, ("Pendulum-v1", "cost", "1"))
    if typing.get_origin(kind) is Literal:
        right = [str(choice) for choice in typing.get_args(kind)]
    word = str(rng.choice(list(right)))
    if rng.random() >= oddity:
        return word
    return _odd(rng, word) if rng.random() < 0.3 else str(rng.choice(ABSURD))


def _odd(rng: np.random.Generator, word: str) -> str:
    """A word without one of its letters, or with one twice, or in capitals."""
    at = int(rng.integers(max(len(word), 1)))
    return str(rng.choice([word[:at] + word[at + 1 :], word[: at + 1] + word[at:], word.upper()]))


def prepare(folder: Path) -> None:
    """The files that commands find: a run with a checkpoint, a data set, an agent's file."""
    folder.mkdir()
    npz(folder / "whole.npz", data_files.WHOLE)
    for words in (TINY, "new mine.py --from td3"):
        with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
            command_line(words.split())


@contextlib.contextmanager
def without_work() -> Iterator[None]:
    """No command trains, plays, records, downloads or ends this process."""

    def begin(*_: Any, **__: Any) -> NoReturn:
        raise Begun

    def execute(run: Any) -> NoReturn:
        run.close()
        raise Begun

    def leave(code: int, **_: Any) -> NoReturn:
        raise SystemExit(code)

    with contextlib.ExitStack() as stack:
        for name in WORK:
            stack.enter_context(mock.patch(name, begin))
        stack.enter_context(mock.patch("rljax.runs.active.ActiveRun.execute", execute))
        # In a thread of its own. The command goes on as the only process.
        stack.enter_context(mock.patch("jax.distributed.initialize"))
        stack.enter_context(mock.patch("rljax.distributed.processes.abort", leave))
        yield


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Sizes and times of all that lies in a folder."""
    facts = {path: path.lstat() for path in folder.rglob("*")}
    return {
        str(path.relative_to(folder)): (0, 0) if path.is_dir() else (fact.st_size, fact.st_mtime_ns)
        for path, fact in facts.items()
    }


def attempt(words: Sequence[str], folder: Path, codes: Sequence[int] = (0, REFUSED)) -> Outcome:
    """Run a command in a folder. It may end with one of the exit `codes`."""
    output, before, wrong = io.StringIO(), files(folder.parent), ""
    code: Any = 0

    def stop(*_: Any) -> NoReturn:
        raise TooLong

    handlers = {number: signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    signal.alarm(MOST_WAITING)
    try:
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
        ):
            command_line(list(words))
    except Begun:
        pass
    except SystemExit as end:
        code = end.code or 0
    except TooLong:
        wrong = f"over {MOST_SECONDS} s"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        wrong = f"{type(error).__name__} in {Path(place.filename).name}, {place.lineno}: {error}"
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    said = output.getvalue()
    if not wrong:
        wrong = _problem(code, codes, said, before, folder.parent)
    return Outcome("failed" if wrong else "refused" if code else "accepted", wrong, said)


def _problem(
    code: Any, codes: Sequence[int], said: str, before: dict[str, Any], folder: Path
) -> str:
    if "Traceback" in said:
        return "a traceback"
    if code not in codes:
        return f"exit code {code}"
    if code != REFUSED:
        return "" if said.strip() or code == 0 else "0 messages"
    messages = len(re.findall(r"^error: |For full helptext", said, re.MULTILINE))  # ours or tyro's
    if messages != 1:
        return f"{messages} messages"
    after = files(folder)
    left = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return f"changed {', '.join(left[:5])}" if left else ""


def main() -> None:
    """Run the commands, print those that fail, and write what was counted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--number", type=int, default=1000, help="commands")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--output", type=Path, default=Path("results/checks/faults/random_commands.json")
    )
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    counts: dict[str, Counter[str]] = {name: Counter() for name in COMMANDS}
    with shared.places() as (harmless, around):
        prepare(harmless)
        shared.renew(harmless, around)
        with without_work():
            for i in range(options.number):
                name, words = command(rng)
                outcome = attempt(words, around / "here")
                if outcome.kind != "refused":
                    shared.renew(harmless, around)
                counts[name].update(["commands", outcome.kind])
                if outcome.wrong:
                    print(f"rljax {shlex.join(words)}\n  {outcome.wrong}", flush=True)
                    print(*("  | " + line for line in outcome.said[-400:].splitlines()), sep="\n")
                if i % 100 == 99:
                    jax.clear_caches()
                    total = sum(counts.values(), Counter())
                    print(f"{i + 1} of {options.number}: {total['failed']} failed", flush=True)
    counts = {name: count for name, count in counts.items() if count}
    columns = ("commands", "accepted", "refused", "failed")
    shared.finish(options.output, counts, columns, seed=options.seed)


if __name__ == "__main__":
    main()
