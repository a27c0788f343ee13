"""OGBench's datasets, without a task or with one.

A file holds `observations` [M, O], `actions` [M, A], `terminals` [M] and perhaps the simulator's
`qpos` [M, ...] and `button_states` [M, buttons]. Terminals mark a trajectory's last observation,
which is dropped; the row before becomes `truncated`.

Without a task all rewards are 0, and no row is terminal. Those of a task depend on the state in
which the action is taken (since ogbench 1.2.0):

    mazes, soccer        r = 1[position within the goal's tolerance] - 1
    cubes, scene, puzzle r = (parts in place) - (parts); a cube, a drawer and a window are in place
                         within 4 cm
    terminated           all parts are in place

Goals, tolerances and rules are those of ogbench 1.2.2, relabel_utils.py.

Source: Park et al., OGBench, arXiv:2410.20092; seohongpark/ogbench.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from rljax.datasets import dataset as base
from rljax.datasets.dataset import OfflineDataset
from rljax.datasets.formats import assembly, opened, schema, text
from rljax.datasets.formats.assembly import Rows
from rljax.datasets.formats.fingerprints import fingerprint
from rljax.datasets.publishers import download as files

URL = "https://rail.eecs.berkeley.edu/datasets/ogbench"
CUBES = 14  # index in qpos of the first cube's position, after the arm's joints
CUBE = 7  # numbers of a cube in qpos: position and quaternion
BALL = 15  # index in qpos of the ball, after the ant
NEAR = 0.04  # metres from a goal
# Of Transition's fields.
KEYS = ("observations", "actions", "rewards", "terminals", "terminals", "observations")

# Kinds of data.
KINDS = {
    "antmaze": ("navigate", "stitch", "explore"),
    **dict.fromkeys(("pointmaze", "humanoidmaze", "antsoccer"), ("navigate", "stitch")),
    **dict.fromkeys(("cube", "scene", "puzzle"), ("play", "noisy")),
}
UNSEEN = ("pointmaze", "antsoccer", "cube-octuple")  # environments without pictures


@functools.cache
def tasks() -> dict[str, Any]:
    """Of each environment: `default` task (from 1), time limit `steps`, `tolerance`, and `tasks`,
    which are goals.
    """
    return json.loads(
        resources.files(__package__ or "").joinpath("ogbench.json").read_text(encoding="utf-8")
    )


@dataclasses.dataclass(frozen=True)
class Name:
    """The parts of an id such as "cube-single-play-singletask-task2-v0-val"."""

    environment: str  # "cube-single"
    kind: str  # "play"
    task: int | None  # 1 to 5; 0: the default one; None: without a task
    split: str  # "train" or "val"
    visual: bool = False

    @property
    def family(self) -> str:
        """The first word of the environment's name."""
        return self.environment.partition("-")[0]

    @property
    def shown(self) -> str:
        """The environment's name: "visual-cube-single" where it shows pictures."""
        return f"visual-{self.environment}" if self.visual else self.environment

    @property
    def file(self) -> str:
        """The name of the file of all tasks."""
        return f"{self.shown}-{self.kind}-v0{'-val' if self.split == 'val' else ''}.npz"

    @property
    def env(self) -> str:
        """The environment that scores policies, with goals for data without a task."""
        task = "" if self.task is None else "-singletask"
        return f"ogbench:{self.shown}{task}{f'-task{self.task}' if self.task else ''}-v0"

    @property
    def number(self) -> int | None:
        """The task's number."""
        return tasks()[self.environment]["default"] if self.task == 0 else self.task


def names() -> list[str]:
    """All ids, without those of validation files ("-val")."""
    sets = [
        f"ogbench/{form}{environment}-{kind}"
        for form in ("", "visual-")
        for environment in tasks()
        for kind in KINDS[environment.partition("-")[0]]
        if (environment, kind) != ("antmaze-giant", "explore")
        and not (form and environment.startswith(UNSEEN))
    ]
    return [
        f"{name}{task}-v0"
        for name in sets
        for task in ("", "-singletask", *(f"-singletask-task{number}" for number in range(1, 6)))
    ]


def load(name: str, *, clip_actions: bool = False, **search: Any) -> OfflineDataset:
    """The dataset called `name`."""
    parts = parse(name)
    library, url = Path.home() / ".ogbench" / "data", f"{URL}/{parts.file}"
    path = files.find("ogbench", parts.file, others=[library], url=url, **search)
    return read(path, name, parts, clip_actions=clip_actions)


def environment(name: str) -> str | None:
    """The environment of the dataset called `name`; None for unknown names."""
    try:
        return parse(name).env
    except ValueError:
        return None


def parse(name: str) -> Name:
    """The parts of an id. Raises `ValueError` for an unknown one."""
    rest = name.removeprefix("ogbench/")
    if rest.startswith("powderworld-"):
        raise ValueError(
            f"'{name}' is of Powderworld, which is not read here. All of OGBench: rljax data "
            "list ogbench"
        )
    match = re.fullmatch(r"(visual-)?(.+?)-(\w+?)(-singletask(?:-task([1-5]))?)?-v0(-val)?", rest)
    if match is None or f"ogbench/{match[1] or ''}{match[2]}-{match[3]}-v0" not in names():
        raise base.unknown(name.removesuffix("-val"), "OGBench", names())
    task = None if match[4] is None else int(match[5] or 0)
    most = len(tasks()[match[2]]["tasks"])
    if task is not None and task > most:
        raise ValueError(f"'{match[2]}' of OGBench has tasks 1 to {most}, not {task}.")
    return Name(match[2], match[3], task, "val" if match[6] else "train", match[1] is not None)


def read(path: Path, name: str, parts: Name, *, clip_actions: bool = False) -> OfflineDataset:
    """The dataset in the .npz file `path`, relabelled if `parts` names a task.

    Raises `ValueError` as `rljax.datasets.load`.
    """
    path = Path(path)
    relabels = parts.task is not None
    with opened(path) as file:
        needed = ["observations", "actions", "terminals", *(_needed(parts) if relabels else ())]
        for key in needed:
            if key not in file:
                raise ValueError(
                    f"'{path.name}' has no '{key}'; it has: {text.listed(file)}. '{name}' needs "
                    f"{', '.join(needed)}. Download the file again, or record it with the "
                    "simulator's state."
                )
        ends = schema.marks(file["terminals"], path.name, "terminals")
        rewards, terminated = np.zeros(len(ends), np.float32), np.zeros(len(ends), np.bool_)
        if relabels:
            rewards, terminated = _relabelled(parts, file, path.name)
        read_observations = schema.observed if parts.visual else schema.vectors
        rows = Rows(
            path.name,
            dict(zip(base.FIELDS, KEYS, strict=True)),
            read_observations(file["observations"], path.name, "observations"),
            schema.actions(file["actions"], path.name, "actions"),
            rewards,
            terminated,
            ends,
        )
    rows.check_lengths()
    recorded = files.known(path).get("recorded")
    keep = ~np.append(ends[:-1], True)  # no transition, marked or not
    rows.dropped["last observation of a trajectory"] = int((~keep).sum())
    rows.truncated = np.zeros_like(ends)
    return assembly.assemble(
        name,
        assembly.successors(rows, keep, leak=True),
        env=parts.env,
        reference=None,
        clip_actions=clip_actions,
        complete=bool(ends[-1]),
        provenance={
            "reader": "ogbench",
            "files": [fingerprint(path)],
            "url": None if recorded else files.source(path) or f"{URL}/{parts.file}",
            "recorded": recorded,
            "id": f"{parts.shown}-{parts.kind}-v0",
            "task": parts.number,
            "split": parts.split,
            "rules": [
                "the last row of a trajectory is dropped; the next row's observation is the "
                "successor",
                f"rewards: of task {parts.number}, at s"
                if relabels
                else "rewards: 0, the file has none",
            ],
            "rows_in_file": len(ends),
            "max_episode_steps": tasks()[parts.environment]["steps"],
            "versions": base.versions(),
        },
    )


def relabel(parts: Name, file: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Rewards [M] float32 and whether the goal is reached [M] bool, for the task of `parts`."""
    environment = tasks()[parts.environment]
    assert parts.number is not None
    goal = environment["tasks"][parts.number - 1]
    if "position" in goal:
        start = BALL if parts.environment.startswith("antsoccer") else 0
        position = file["qpos"][:, start : start + 2]
        distance = np.linalg.norm(position - np.array(goal["position"]), axis=-1)
        placed = (distance <= environment["tolerance"])[:, None]
    else:
        placed = np.concatenate([*_placed(goal, file)], axis=1)
    count = placed.sum(axis=1)
    return (count - placed.shape[1]).astype(np.float32), count == placed.shape[1]


def _relabelled(parts: Name, file: Mapping[str, Any], name: str) -> tuple[np.ndarray, np.ndarray]:
    states = {key: schema.stored(schema.numbers(file[key], name, key)) for key in _needed(parts)}
    try:
        return relabel(parts, states)
    except (IndexError, ValueError) as error:
        shapes = ", ".join(f"'{key}' {list(state.shape)}" for key, state in states.items())
        raise ValueError(
            f"'{name}': the simulator's states ({shapes}) are not those of '{parts.environment}'. "
            "Download it again."
        ) from error


def _placed(goal: Mapping[str, Any], file: Mapping[str, Any]) -> Any:
    """Whether each part is in place: one array [M, parts] per kind of part."""
    cubes, buttons = np.array(goal.get("cubes", ())), np.array(goal.get("buttons", ()))
    if len(cubes):
        columns = CUBES + CUBE * np.arange(len(cubes))[:, None] + np.arange(3)
        yield np.linalg.norm(cubes - file["qpos"][:, columns], axis=-1) <= NEAR
    if len(buttons):
        yield file["button_states"] == buttons
    if "drawer" in goal:
        drawer = CUBES + CUBE * len(cubes) + len(buttons)
        yield np.abs(file["qpos"][:, [drawer]] - goal["drawer"]) <= NEAR
        yield np.abs(file["qpos"][:, [drawer + 1]] - goal["window"]) <= NEAR


def _needed(parts: Name) -> tuple[str, ...]:
    goal = tasks()[parts.environment]["tasks"][0]
    qpos = ("qpos",) if "position" in goal or "cubes" in goal else ()
    return qpos + (("button_states",) if "buttons" in goal else ())
