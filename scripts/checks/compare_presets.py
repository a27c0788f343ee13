"""Compare our presets with the authors' files of settings, per data set or task.

  # AUTHORS is a folder with a checkout of each repository: AUTHORS/CORL, AUTHORS/fql, ...
  python scripts/checks/compare_presets.py --checkouts AUTHORS
  python scripts/checks/compare_presets.py --checkouts AUTHORS --agents iql cql --write

Their files are read as text, and nothing of theirs runs. Ours are the defaults of an agent with the
presets that a run takes for the task. What differs on purpose is listed in authors/ with
words that the preset, the agent's page or its file must hold. The exit code is 1 where another
setting differs, or where a checkout lacks a file. `--write` writes results/checks/presets, where
entries that were not compared again stay.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rljax.learning import configuration, registry
from rljax.runs import experiments
from scripts.checks.authors import (
    acme,
    actor_critics,
    constrained,
    data,
    discrete,
    generative,
    goals,
    hybrid,
    off_policy,
    online,
    simba,
    streams,
)
from scripts.checks.authors.readers import squeezed
from scripts.checks.authors.shared import DoesNotApply, Logarithm, Settings, Source
from scripts.results.shared import RESULTS

ROOT = Path(__file__).parents[2]
PARTS = (
    data,
    generative,
    goals,
    hybrid,
    online,
    off_policy,
    simba,
    acme,
    actor_critics,
    discrete,
    constrained,
    streams,
)
SOURCES = tuple(source for part in PARTS for source in part.SOURCES)
ABSENT = "no such setting"
NEUTRAL = ("none", None, False)  # values of theirs that need no setting
FROM_DATA = ("d4rl/", "ogbench/", "neorl2/", "minari/")


class Difference(NamedTuple):
    """A setting of a task that is not the authors'."""

    task: str
    field: str
    ours: Any
    theirs: Any
    reason: str | None  # None: no reason is given


class Comparison(NamedTuple):
    """The settings of a repository's tasks beside ours."""

    source: Source
    commit: str
    tasks: int
    compared: int
    differences: list[Difference]
    unread: list[str]  # names of their settings that no rule reads

    @property
    def unexplained(self) -> list[Difference]:
        """Differences without a reason."""
        return [difference for difference in self.differences if difference.reason is None]


def compare(source: Source, checkout: Path) -> Comparison:
    """Read the files of a checkout and compare every setting that both sides have.

    Raises `ValueError` where a file is not as the table says, `OSError` where it is missing.
    """
    module = registry.load_agent(source.agent)
    text = words(source.agent)
    differences: list[Difference] = []
    compared = 0
    fields, used, names = set(source.fields), set[str](), set[str]()
    tasks = source.tasks(checkout)
    for task, values in tasks.items():
        theirs = Settings(values)
        ours = resolved(source, module, task)
        for field, rule in source.fields.items():
            try:
                value = _their_value(theirs, rule)
            except KeyError:
                continue
            except DoesNotApply:
                fields.discard(field)
                continue
            compared += 1
            fields.discard(field)
            if not same(ours.get(field, ABSENT), value):
                reason = _reason(source, field, task, text)
                mine = _shown(ours.get(field, ABSENT))
                differences.append(Difference(task, field, mine, _shown(value), reason))
        used |= theirs.used
        names |= set(values)
    if fields:
        raise ValueError(f"no task of theirs sets what {', '.join(sorted(fields))} is read from.")
    unread = sorted(map(str, names - used))
    return Comparison(source, commit(checkout), len(tasks), compared, differences, unread)


def resolved(source: Source, module: Any, task: str) -> dict[str, Any]:
    """Our settings for a task, as a run takes them; critics without widths have the actor's."""
    places = (None, task) if task.startswith(FROM_DATA) else (task, None)
    config = experiments.preset(source.agent, module, *places, source.variant)
    values = configuration.as_json(config)
    if "critic_hidden" in values and values["critic_hidden"] is None:
        values["critic_hidden"] = values["hidden"]
    return values


def words(agent: str) -> str:
    """All texts that may say why a setting differs: the presets, the page, the file of an agent."""
    files = [ROOT / "docs" / "agents" / f"{agent}.md", ROOT / "agents" / f"{agent}.py"]
    files += sorted((ROOT / "agents" / "presets").glob(f"{agent}.*toml"))
    lines = "\n".join(path.read_text() for path in files).splitlines()
    return squeezed(" ".join(line.lstrip("# ") for line in lines))


def same(ours: Any, theirs: Any) -> bool:
    """Whether two values are equal, numbers up to rounding in text."""
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if ours == ABSENT:
        return theirs in NEUTRAL
    if isinstance(ours, bool) or isinstance(theirs, bool) or None in (ours, theirs):
        return ours is theirs
    if isinstance(ours, int | float) and isinstance(theirs, int | float):
        digits = 0.05 if isinstance(theirs, Logarithm) else 0.0
        return math.isclose(ours, theirs, rel_tol=1e-6, abs_tol=digits)
    return ours == theirs


def commit(checkout: Path) -> str:
    """The commit of a checkout; "unknown" where git does not say."""
    command = ["git", "-C", str(checkout), "log", "-1", "--format=%h"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def _their_value(theirs: Settings, rule: Any) -> Any:
    if isinstance(rule, tuple):
        rule = next((name for name in rule if name in theirs), rule[0])
    return theirs[rule] if isinstance(rule, str) else rule(theirs)


def _shown(value: Any) -> Any:
    """A value as a page shows it: lists for tuples, few digits of a computed one."""
    if isinstance(value, Logarithm):
        return round(float(value), 4)
    return list(value) if isinstance(value, tuple) else value


def _reason(source: Source, field: str, task: str, text: str) -> str | None:
    """The first reason for this difference whose words stand in the agent's texts."""
    for intended in source.intended:
        if intended.covers(field, task) and squeezed(intended.reason) in text:
            return intended.reason
    return None


def groups(differences: Iterable[Difference]) -> list[tuple[Difference, list[str]]]:
    """Equal differences once, with their tasks."""
    tasks: dict[str, tuple[Difference, list[str]]] = {}
    for each in differences:
        key = repr(each._replace(task=""))
        tasks.setdefault(key, (each, []))[1].append(each.task)
    return list(tasks.values())


def printed(comparison: Comparison) -> str:
    """A comparison for the terminal."""
    source = comparison.source
    different, reasons = len(comparison.unexplained), len(comparison.differences)
    lines = [
        f"{source.label}, {source.repository} {comparison.commit}, {source.files}: "
        f"{comparison.tasks} tasks, {comparison.compared} settings, "
        f"{comparison.compared - reasons} equal, {reasons - different} different on purpose, "
        f"{different} different"
    ]
    for each, tasks in groups(comparison.differences):
        where = tasks[0] if len(tasks) == 1 else f"{tasks[0]} and {len(tasks) - 1} more"
        why = "" if each.reason is None else f" ({each.reason})"
        mark = "!" if each.reason is None else " "
        lines.append(f" {mark} {where}: {each.field} {each.ours}, theirs {each.theirs}{why}")
    return "\n".join(lines)


def page(entries: Sequence[Mapping[str, Any]], failures: Sequence[str]) -> str:
    """The page of all comparisons, as `described`, and of what could not be compared."""
    rows, total = [], collections.Counter[str]()
    for entry in entries:
        differences = [(len(each["tasks"]), each["reason"]) for each in entry["different"]]
        purpose = sum(number for number, reason in differences if reason is not None)
        open_ones = sum(number for number, reason in differences if reason is None)
        numbers = {
            "tasks": entry["tasks"],
            "settings": entry["settings"],
            "equal": entry["settings"] - purpose - open_ones,
            "on purpose": purpose,
            "different": open_ones,
        }
        total.update(numbers)
        name = f"{entry['repository']} {entry['commit']}, {entry['files']}"
        cells = [entry["presets"], name, *(f"{number:,}" for number in numbers.values())]
        rows.append(f"| {' | '.join(cells)} |")
    sums = " | ".join(f"{number:,}" for number in total.values())
    sections = [_section("On purpose", entries, True), _section("Open", entries, False)]
    if failures:
        sections += ["## Not compared\n", *(f"- {failure}" for failure in failures), ""]
    return "\n".join([HEAD, *rows, f"| all | | {sums} |", "", *sections])


HEAD = """\
# Presets beside their authors' files

Settings of our presets beside those in the files of the repositories that they name, per data set
or task. [scripts/checks/compare_presets.py](../../../scripts/checks/compare_presets.py) reads their
files as text (YAML, defaults of arguments, configurations, commands in scripts and pages) and
resolves ours as a run does. It writes this page:

```sh
python scripts/checks/compare_presets.py --checkouts AUTHORS --write
```

A setting counts where both sides have it. What their files leave to the defaults of another library
is not compared, and neither is what their code does without a setting, but for the rules that
[scripts/checks/authors](../../../scripts/checks/authors) quote. Sections that
name a paper's table, logs of NeoRL-2 or code of others (Tianshou) are not here. All differences are
in [presets.json](presets.json), with the settings of theirs that have no counterpart.

| presets | their files | tasks | settings | equal | different on purpose | different |
|---|---|---|---|---|---|---|"""


def _section(title: str, entries: Sequence[Mapping[str, Any]], explained: bool) -> str:
    """Differences with or without a reason."""
    rows = []
    for entry in entries:
        for each in entry["different"]:
            tasks, reason = each["tasks"], each["reason"]
            if (reason is not None) is not explained:
                continue
            where = tasks[0] if len(tasks) == 1 else f"{tasks[0]}, {len(tasks) - 1} more"
            cells = [entry["presets"], where, each["field"], each["ours"], each["theirs"]]
            cells += [reason] if explained else []
            rows.append("| " + " | ".join(map(_cell, cells)) + " |")
    if not rows:
        return f"## {title}\n\nNone.\n"
    names = ["presets", "task", "setting", "ours", "theirs"]
    names += ["why, in the preset or the page"] if explained else []
    head = f"| {' | '.join(names)} |\n|{'---|' * len(names)}"
    return "\n".join([f"## {title}\n", head, *rows, ""])


def _cell(value: Any) -> str:
    """A value in a table, without the links that an agent's page has."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", str(value).replace("|", "/"))


def described(comparison: Comparison) -> dict[str, Any]:
    """A comparison, ready for JSON."""
    source = comparison.source
    return {
        "presets": source.label,
        "repository": source.repository,
        "commit": comparison.commit,
        "files": source.files,
        "tasks": comparison.tasks,
        "settings": comparison.compared,
        "different": [
            {"tasks": tasks, **{k: v for k, v in each._asdict().items() if k != "task"}}
            for each, tasks in groups(comparison.differences)
        ],
        "without counterpart": comparison.unread,
    }


def write(
    folder: Path, comparisons: Sequence[Comparison], failures: Mapping[tuple[str, ...], str]
) -> None:
    """Write the page and the JSON; entries that were not compared again stay.

    `failures` are messages by the label, the repository and the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "presets.json"
    old = json.loads(file.read_text()) if file.exists() else []
    entries = {_place(entry): entry for entry in [*old, *map(described, comparisons)]}
    rows = sorted(entries.values(), key=lambda entry: entry["presets"])
    missing = [message for place, message in failures.items() if place not in entries]
    (folder / "README.md").write_text(page(rows, missing))
    file.write_text(json.dumps(rows, indent=1) + "\n")


def _place(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return entry["presets"], entry["repository"], entry["files"]


def main() -> None:
    """Compare the presets of the agents on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    labels = sorted({source.agent for source in SOURCES})
    parser.add_argument("--checkouts", type=Path, required=True, help="folder of all repositories")
    parser.add_argument("--agents", nargs="+", choices=labels, default=labels, metavar="AGENT")
    parser.add_argument("--write", action="store_true", help="write results/checks/presets")
    parser.add_argument("--output", type=Path, default=RESULTS / "checks" / "presets")
    options = parser.parse_args()
    comparisons, failures = [], {}
    for source in SOURCES:
        if source.agent not in options.agents:
            continue
        checkout = options.checkouts / source.repository
        try:
            if not checkout.is_dir():
                raise ValueError("no checkout of it")
            comparison = compare(source, checkout)
        except (ValueError, TypeError, LookupError, OSError) as error:
            place = (source.label, source.repository, source.files)
            failures[place] = f"{', '.join(place)}: {error}"
            print(failures[place])
            continue
        print(printed(comparison), flush=True)
        comparisons.append(comparison)
    if options.write:
        write(options.output, comparisons, failures)
    sys.exit(1 if failures or any(each.unexplained for each in comparisons) else 0)


if __name__ == "__main__":
    main()
