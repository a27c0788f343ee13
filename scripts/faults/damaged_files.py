"""Damage data sets and folders of runs in random ways, read them by rljax's commands,
and see that no damage is read as other numbers without a word.

  python scripts/faults/damaged_files.py --number 300 --seed 0

A case is a copy of a sound data set or run with one fault: flipped bits and bytes, a file that ends
too soon, is empty, missing or of another kind, arrays with other names, shapes, types, lengths or
values, entries of JSON that are missing or of another type. The commands that a user would try read
it, in this process. A case is

- refused, with one message or with findings of `rljax data check`;
- the same: everything that was read equals what is read without the damage, bit for bit;
- warned of: numbers differ, and the command says what is wrong with the file;
- undetectable: what is there may be another sound file. Bits of HDF5, which has no checksums, were
  flipped, an array is missing that a data set may lack, or actions have one more dimension;
- failed: a traceback, over a minute of a processor, no message, two, or one that does not name the
  file, a refusal that changes files, or other numbers without a word.

The results are counts by kind of damage, in `--output`. Each failure is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import rljax
from rljax import datasets
from rljax.cli.main import main as command_line
from rljax.runs.checkpoints import CheckpointError
from scripts.faults import random_commands, shared
from tests.datasets.files import arrays, hdf5, npz
from tests.helpers import small_runs

CODES = (0, 1, 2)  # `rljax data check` ends with 1 for data with errors, as does a run that fails
SMALL = "--config.hidden 8 --config.batch-size 8 --log-every 50 --eval-every 100 --eval-episodes 1"
MAKE = (
    f"train td3 --env Pendulum-v1 --steps 200 --out run {SMALL} --checkpoint-every 100 "
    "--config.warmup-steps 20 --config.replay-size 200 --quiet"
)
CHECK = "data check {}"
CLONE = f"train bc --data {{}} --env none --steps 20 --out cloned {SMALL} --quiet"
USE = (
    "eval run --episodes 1",
    "plot run --output curve.png",
    "report run --output report.html",
    "resume run --steps 300 --quiet",
)
RECORDS = ("config.json", "summary.json", "metrics.jsonl", "evaluations.jsonl")
OUTCOMES = ("refused", "the same", "warned of", "undetectable", "failed")
OTHER_KINDS: dict[str, bytes] = {
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(100),
    "text": b"observations,actions\n0.1,0.2\n",
    "JSON": b'{"observations": [[1, 2, 3]]}',
    "a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00]\x94(K\x01K\x02e.",
    "an empty archive": b"PK\x05\x06" + bytes(18),
    "the head of HDF5": b"\x89HDF\r\n\x1a\n",
}
# Messages of Python and NumPy, which say nothing to a user.
PYTHONS = (
    r"NoneType|object (is not|has no)|unhashable|unsupported operand|indices must|"
    r"not subscriptable|could not convert|not supported between|could not broadcast|not iterable|"
    r"positional argument|unexpected keyword|out of bounds|KeyError|IndexError|AttributeError"
)
JSON_VALUES: tuple[Any, ...] = (None, "x", [], {}, [1], {"a": 1}, True, -1, 0, 1e300, 10**30, 0.5)
Fault = Callable[[np.random.Generator, Path], str]  # damages a file, and says how


class Verdict(NamedTuple):
    """How a case ended."""

    outcome: str
    damage: str
    command: str = ""
    wrong: str = ""
    said: str = ""


class Result(NamedTuple):
    """What a command printed and what it made or read: equal results are the same numbers."""

    said: str
    numbers: Any


# Damage to any file


def flipped(rng: np.random.Generator, path: Path) -> str:
    """A bit, or up to eight bytes, at a random place; one time in two near the ends."""
    content = bytearray(path.read_bytes())
    if not content:
        return "nothing to flip"
    size = len(content)
    ends = np.r_[: min(128, size), max(0, size - 400) : size]
    at = int(rng.choice(ends)) if rng.random() < 0.5 else int(rng.integers(size))
    if rng.random() < 0.5:
        bit = int(rng.integers(8))
        content[at] ^= 1 << bit
        path.write_bytes(content)
        return f"bit {bit} of byte {at:,} of {size:,}"
    number = int(rng.integers(1, 9))
    content[at : at + number] = rng.bytes(min(number, size - at))
    path.write_bytes(content)
    return f"{number} bytes from {at:,} of {size:,}"


def cut(rng: np.random.Generator, path: Path) -> str:
    """The file ends too soon."""
    size = path.stat().st_size
    end = int(rng.choice([0, 1, size // 2, max(size - 1, 0), int(rng.integers(size + 1))]))
    os.truncate(path, min(end, size))
    return f"cut to {end:,} of {size:,} bytes"


def longer(rng: np.random.Generator, path: Path) -> str:
    """Bytes behind the end."""
    extra = rng.bytes(int(rng.integers(1, 100)))
    with path.open("ab") as file:
        file.write(extra)
    return f"{len(extra)} bytes behind the end"


def other_kind(rng: np.random.Generator, path: Path) -> str:
    """Another kind of file under the name."""
    name = str(rng.choice(list(OTHER_KINDS)))
    path.write_bytes(OTHER_KINDS[name])
    return name


def missing(_: np.random.Generator, path: Path) -> str:
    """The file is gone."""
    path.unlink()
    return "missing"


def a_folder(_: np.random.Generator, path: Path) -> str:
    """A folder in the file's place."""
    path.unlink()
    path.mkdir()
    return "a folder"


# Damage to arrays of a data set


def misspelt(rng: np.random.Generator, values: dict[str, Any]) -> str:
    """An array under a name that is one letter, or a word, from its own."""
    name = str(rng.choice(list(values)))
    at = int(rng.integers(len(name)))
    letter = chr(int(rng.integers(ord("a"), ord("z") + 1)))
    new = rng.choice([
        name[:at] + letter + name[at + 1 :], name[:at] + name[at + 1 :],
        name[: at + 1] + name[at:], name.upper(), f"old_{name}", "values",
    ])  # fmt: skip
    values[str(new)] = values.pop(name)
    return f"'{name}' is called '{new}'"


def lacking(rng: np.random.Generator, values: dict[str, Any]) -> str:
    """An array that is not there."""
    name = str(rng.choice(list(values)))
    del values[name]
    return f"no '{name}'"


def of_other_length(rng: np.random.Generator, values: dict[str, Any]) -> str:
    """An array with fewer or more rows than the others."""
    name, by = str(rng.choice(list(values))), int(rng.choice([-1, 1, -30, 60]))
    rows = np.arange(len(values[name]) + by) % len(values[name])
    values[name] = values[name][rows]
    return f"'{name}' has {by:+} rows"


def of_other_shape(rng: np.random.Generator, values: dict[str, Any]) -> str:
    """An array with other axes."""
    name = str(rng.choice(list(values)))
    shapes: dict[str, Callable[[Any], Any]] = {
        "one number": lambda x: x.ravel()[0],
        "no rows": lambda x: x[:0],
        "flat": lambda x: np.concatenate([x.ravel(), x.ravel()]),
        "transposed": lambda x: x.reshape(len(x), -1).T,
        "one more axis": lambda x: x.reshape(1, *x.shape),
        "no columns": lambda x: x.reshape(len(x), -1)[:, :0],
        "one more column": lambda x: np.c_[x.reshape(len(x), -1), x.reshape(len(x), -1)[:, 0]],
    }
    kind = str(rng.choice(list(shapes)))
    values[name] = shapes[kind](values[name])
    return f"'{name}': {kind}"


def of_other_type(rng: np.random.Generator, values: dict[str, Any]) -> str:
    """An array of another type: the same numbers, or what is no number."""
    name = str(rng.choice(list(values)))
    types = ["float64", ">f8", "S8", "complex64", "datetime64[s]", "V4", "object", "fortran"]
    kind, array = str(rng.choice(types)), np.asarray(values[name])
    if kind == "fortran":
        values[name] = np.asfortranarray(array)
    elif kind == "V4":
        values[name] = np.zeros(array.shape, "V4")
    else:
        values[name] = array.astype(kind)
    return f"'{name}' of type {kind}"


def not_finite(rng: np.random.Generator, values: dict[str, Any]) -> str:
    """A value that is not finite, or out of every range."""
    name = str(rng.choice(list(values)))
    value = float(rng.choice([np.nan, np.inf, -np.inf, 1e38, -1e38]))
    array = np.array(values[name], np.float32)
    array.ravel()[int(rng.integers(array.size))] = value
    values[name] = array
    return f"'{name}' with {value:g}"


def unpickled(rng: np.random.Generator, values: dict[str, Any]) -> str:
    """An array of Python objects beside the others."""
    values["notes"] = np.array([{"a": 1}, None], object)
    return "an array of objects"


ARRAY_FAULTS = (
    misspelt,
    lacking,
    of_other_length,
    of_other_shape,
    of_other_type,
    not_finite,
    unpickled,
)
FILE_FAULTS: tuple[Fault, ...] = (flipped, flipped, flipped, cut, longer, other_kind, a_folder)
RUN_FAULTS: tuple[Fault, ...] = (flipped, flipped, cut, longer, other_kind, missing, a_folder)


def rewritten(rng: np.random.Generator, path: Path, fault: Callable[..., str]) -> str:
    """A data set's file, written with one array changed."""
    values = sound_arrays()
    damage = fault(rng, values)
    path.unlink()
    if path.suffix == ".npz":
        np.savez(path, **values)
        return damage
    # HDF5 has no objects and no dates.
    hdf5(path, {key: _text(x) if x.dtype.kind in "OM" else x for key, x in values.items()})
    return damage


def _text(array: np.ndarray) -> np.ndarray:
    return np.array([str(x) for x in array.ravel()], "S")


# Damage to JSON


def other_entry(rng: np.random.Generator, path: Path) -> str:
    """An entry of a JSON file, at any depth, that is missing or has another value."""
    lines = path.suffix == ".jsonl"
    texts = path.read_text().splitlines() if lines else [path.read_text()]
    at = int(rng.integers(len(texts)))
    document = json.loads(texts[at])
    places = list(_places(document))
    place, key = places[int(rng.integers(len(places)))]
    value = JSON_VALUES[int(rng.integers(len(JSON_VALUES)))]
    if rng.random() < 0.3:
        damage = f"no {key!r}"
        del place[key]
    else:
        damage = f"{key!r}: {str(place[key])[:40]} is {value!r}"
        place[key] = value
    texts[at] = json.dumps(document)
    path.write_text("\n".join(texts) + "\n" * lines)
    return damage


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Each entry of a document, as its container and its key."""
    keys = document if isinstance(document, dict) else range(len(document))
    for key in keys:
        yield document, key
        if isinstance(document[key], dict | list):
            yield from _places(document[key])


# Cases


def sound_arrays() -> dict[str, Any]:
    """What the sound data sets hold: Pendulum's shapes, in D4RL's layout."""
    return arrays([30, 20, 30, 40], "tooo", size=3, actions=1)


def prepare(folder: Path) -> None:
    """The sound files: data sets in two formats, and a run with two checkpoints."""
    folder.mkdir()
    npz(folder / "data.npz", sound_arrays())
    hdf5(folder / "data.hdf5", sound_arrays())
    quiet = io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stderr(quiet),
        contextlib.redirect_stdout(quiet),
    ):
        command_line(MAKE.split())


def damage(rng: np.random.Generator, folder: Path) -> tuple[str, Path, str]:
    """Damage one of the sound files in `folder`: the kind of file, its path, and what was done."""
    kind = str(rng.choice(["npz", "HDF5", "records", "checkpoint"], p=[0.3, 0.2, 0.25, 0.25]))
    if kind in ("npz", "HDF5"):
        path = folder / f"data.{kind.lower()}"
        if rng.random() < 0.5:
            fault = ARRAY_FAULTS[int(rng.integers(len(ARRAY_FAULTS)))]
            return f"{kind}: arrays", path, rewritten(rng, path, fault)
        fault = FILE_FAULTS[int(rng.integers(len(FILE_FAULTS)))]
        return f"{kind}: file", path, fault(rng, path)
    if kind == "records":
        path = folder / "run" / str(rng.choice(RECORDS))
        faults = (*RUN_FAULTS, *[other_entry] * 6)
    else:
        newest = max((folder / "run" / "checkpoints").iterdir())
        files = sorted(each for each in newest.rglob("*") if each.is_file())
        notes = [each for each in files if each.suffix == ".json" and each.parent == newest]
        path = notes[int(rng.integers(len(notes)))]
        if rng.random() < 0.6:
            path = files[int(rng.integers(len(files)))]
        faults = (*RUN_FAULTS, *[other_entry] * (4 if path.suffix == ".json" else 0))
    said = faults[int(rng.integers(len(faults)))](rng, path)
    return f"run: {kind}", path, said


def commands(kind: str, path: Path) -> tuple[str, ...]:
    """What a user would do with the file."""
    if kind.startswith("run"):
        return ("load", *USE)
    return tuple(command.format(path.name) for command in (CHECK, CLONE))


def attempt(command: str, folder: Path) -> tuple[random_commands.Outcome, Any]:
    """Run a command in `folder`, and what it made or read if it went well."""
    if command == "load":
        return _loaded(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # not only once in this process
        outcome = random_commands.attempt(command.split(), folder, codes=CODES)
    if outcome.kind != "accepted":
        return outcome, None
    name = command.split()[0]
    if name == "eval":
        return outcome, re.findall(r"-?\d[\d,]*\.\d+", outcome.said)
    if name == "plot":
        return outcome, (folder / "curve.png").read_bytes()
    if name == "report":
        lines = (folder / "report" / "tables.md").read_text().splitlines()
        return outcome, [line for line in lines if line.startswith("|")]
    if name in ("resume", "train"):
        out = folder / ("run" if name == "resume" else "cloned")
        made = {place: x.tobytes() for place, x in small_runs.arrays(out).items()}
        return outcome, (made, small_runs.lines(out))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = datasets.load(str(folder / command.split()[-1]))
    rows = [np.asarray(x) for x in jax.tree.leaves(dataset.transitions)]
    return outcome, [(x.dtype, x.shape, x.tobytes()) for x in rows]


def _loaded(folder: Path) -> tuple[random_commands.Outcome, Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            policy = rljax.load(folder / "run")
            action = policy(np.array([1.0, 0.0, 0.5], np.float32))
        except (ValueError, TypeError, OSError, CheckpointError) as error:
            return random_commands.Outcome("refused", said=f"error: {error}"), None
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
            return random_commands.Outcome("failed", wrong), None
    said = "\n".join(f"warning: {each.message}" for each in caught)
    return random_commands.Outcome("accepted", said=said), np.asarray(action).tobytes()


def judge(kind: str, path: Path, damage: str, folder: Path, sound: dict[str, Any]) -> Verdict:
    """Run the commands on the damaged file: how the worst of them ended."""
    worst = Verdict("the same", damage)
    for command in commands(kind, path):
        outcome, numbers = attempt(command, folder)
        here = Verdict("the same", damage, command, outcome.wrong, outcome.said)
        if outcome.kind == "failed":
            return here._replace(outcome="failed")
        if outcome.kind == "refused":
            here = here._replace(outcome="refused", wrong=unclear(outcome.said, path))
            if here.wrong:
                return here._replace(outcome="failed")
        elif numbers != sound[command].numbers:
            if words(outcome.said) - words(sound[command].said):
                here = here._replace(outcome="warned of")
            elif undetectable(path, damage):
                here = here._replace(outcome="undetectable")
            else:
                return here._replace(outcome="failed", wrong="other numbers without a word")
        if _RANK[here.outcome] > _RANK[worst.outcome]:
            worst = here
    return worst


def unclear(said: str, path: Path) -> str:
    """Why a refusal does not tell a user what is wrong with which file; "" where it does."""
    if words := re.search(PYTHONS, said):
        return f"a message of Python: {words[0]}"
    name = "run" if "run" in path.parts else path.name
    return "" if name in said else f"the message does not name {name}"


_RANK = {name: i for i, name in enumerate(("the same", "refused", "warned of", "undetectable"))}


def words(said: str) -> set[str]:
    """The lines that say that something is wrong."""
    return {
        line
        for line in said.splitlines()
        if re.search(r"warning|error|not read", line, re.IGNORECASE)
    }


def undetectable(path: Path, damage: str) -> bool:
    """Whether the damaged file may be a sound other one: HDF5 has no checksums, a data set may lack
    arrays, and nothing in it says how many dimensions an action has.
    """
    if path.suffix == ".hdf5" and re.match(r"bit \d|\d bytes from", damage):
        return True
    other = damage.startswith("no '") or damage == "'actions': one more column"
    return path.suffix in (".hdf5", ".npz") and other


def undamaged(harmless: Path, around: Path) -> dict[str, Result]:
    """What every command prints and makes without damage."""
    results = {}
    paths = [("npz", Path("data.npz")), ("HDF5", Path("data.hdf5")), ("run", Path("run"))]
    for kind, path in paths:
        shared.renew(harmless, around)
        for command in commands(kind, path):
            outcome, numbers = attempt(command, around / "here")
            if outcome.kind != "accepted":
                raise SystemExit(f"{command}, without damage: {outcome}")
            results[command] = Result(outcome.said, numbers)
    return results


def main() -> None:
    """Make the sound files, damage copies of them, and write what was counted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--number", type=int, default=300, help="cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--show", action="store_true", help="what every case prints")
    parser.add_argument(
        "--output", type=Path, default=Path("results/checks/faults/damaged_files.json")
    )
    options = parser.parse_args()
    counts: dict[str, Counter[str]] = {}
    with shared.places() as (harmless, around):
        prepare(harmless)
        sound = undamaged(harmless, around)
        for i in range(options.first, options.first + options.number):
            shared.renew(harmless, around)
            rng = np.random.default_rng((options.seed, i))
            kind, path, done = damage(rng, around / "here")
            verdict = judge(kind, path, done, around / "here", sound)
            counts.setdefault(kind, Counter()).update(["cases", verdict.outcome])
            if verdict.outcome in ("failed", "undetectable") or options.show:
                where = path.relative_to(around / "here")
                print(f"case {i}, {where}: {verdict.damage}: {verdict.outcome}", flush=True)
                print(f"  rljax {verdict.command}: {verdict.wrong}")
                print(*("  | " + line for line in verdict.said[-600:].splitlines()), sep="\n")
            if i % 50 == 49:
                jax.clear_caches()
                total = sum(counts.values(), Counter())
                print(f"{total['cases']} of {options.number}: {total['failed']} failed", flush=True)
    shared.finish(
        options.output,
        dict(sorted(counts.items())),
        ("cases", *OUTCOMES),
        seed=options.seed,
        first=options.first,
    )


if __name__ == "__main__":
    main()
