"""NumPy archives and HDF5 files by path: our own layout, and other names for the same arrays.

Our layout, in .npz as in .hdf5, is D4RL's: `observations` [N, O], `actions` [N, A] within the
environment's bounds, `rewards` [N], `terminals` [N], `timeouts` [N] (every other end of a
trajectory), `next_observations` [N, O], and a JSON text of environment, references, bounds and
provenance, under `metadata` (.npz) or `metadata/rljax` (.hdf5). Signals are `signals/NAME` [N,
K...]; a cost may also be `costs` or `cost`. Several discrete actions are [N, K] integers, with
`choices` in the metadata.

Other files may use the names in `ALIASES`; the first that is there counts. docs/datasets.md says
how their marks of ends are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljax.datasets import dataset as base
from rljax.datasets.dataset import OfflineDataset
from rljax.datasets.formats import (
    assembly,
    is_hdf5,
    observation_arrays,
    opened,
    other_layouts,
    schema,
    text,
    unread,
)
from rljax.datasets.formats.assembly import Rows
from rljax.datasets.formats.fingerprints import fingerprint
from rljax.trust import RefusedFileError

ALIASES = {
    "observation": ("observations", "observation", "obs"),
    "action": ("actions", "action", "act"),
    "reward": ("rewards", "reward", "rew"),
    "next_observation": ("next_observations", "next_observation", "next_obs", "obs_next"),
    "terminated": ("terminals", "terminal", "terminations", "terminated"),
    "done": ("done", "dones"),
    "truncated": ("timeouts", "timeout", "truncations", "truncated", "timelimit_truncated"),
}
# Ends of both kinds; the first of `episode_starts` and the sum of `episode_lengths` are no news.
ENDS = ("dones_float", "episode_terminals", "episode_starts", "episode_lengths")
MASKS = "masks"  # 0 at the environment's own end, else 1
FORMAT = "rljax dataset 1"  # for vectors, and for one action in each row
FORMAT_OF_ALL = "rljax dataset 2"  # for all other spaces
SUFFIXES = (".npz", ".hdf5", ".h5")
# Entries of the provenance that stay true of a copy.
LASTING = (
    "max_episode_steps",
    "recorded_max_episode_steps",
    "num_actions",
    "algorithm",
    "corruptions",
    "both_ends",
    "choices",
    "stack",
)


def read(
    path: Path, name: str | None = None, *, action_bounds: Any = None, clip_actions: bool = False
) -> OfflineDataset:
    """The dataset in `path`, with the arguments and errors of `rljax.datasets.load`.

    Without stored successors, a trajectory's last row is dropped unless it is terminal.
    """
    path = Path(path)
    with opened(path) as file:
        metadata = _metadata(path.name, file)
        of_all = metadata.get("format") == FORMAT_OF_ALL
        rows, notes = (
            (_rows_of_all(path.name, file, metadata), []) if of_all else _rows(path.name, file)
        )
        rows.signals = schema.signals(file, path.name)
        others = unread.unread(path.name, file, [*ALIASES.values(), *((key,) for key in ENDS)])
    rows.check_lengths()
    complete = metadata.get("complete", bool(rows.terminated[-1] or rows.truncated[-1]))
    rows = selected(rows)
    if not isinstance(complete, bool):
        right = "true or false: whether the last episode has its end"
        raise schema.wrong(path.name, "complete", complete, right)
    provenance: dict[str, Any] = {
        key: metadata[key] for key in LASTING if metadata.get(key) is not None
    } | {
        "reader": "archive",
        "files": [fingerprint(path)],
        "notes": notes,
        "unread": others,
        "origin": metadata.get("provenance"),
        "versions": base.versions("h5py") if is_hdf5(path) else base.versions(),
    }
    return assembly.assemble(
        name or str(path),
        rows,
        env=metadata.get("env"),
        reference=metadata.get("reference"),
        bounds=metadata.get("action_bounds") if action_bounds is None else action_bounds,
        clip_actions=clip_actions,
        unbounded="action" in _corrupted(metadata),
        complete=complete,
        provenance=provenance,
    )


def description(path: Path) -> dict[str, Any]:
    """The metadata of a file in our layout, with `name` and `env`; {} for other files."""
    with opened(path) as file:
        metadata = _metadata(path.name, file)
    schema.facts(path.name, metadata.get("env"), metadata.get("reference"), metadata, None)
    return metadata


def unbounded_dimensions(path: Path) -> int | None:
    """The dimensions of actions in a file that does not say their bounds; else None."""
    if path.suffix.lower() not in SUFFIXES:
        return None
    with opened(path) as file:
        key = _first(file, (*ALIASES["action"], "acts"))
        metadata = _metadata(path.name, file)
        says = any(metadata.get(entry) is not None for entry in ("action_bounds", "choices"))
        if key is None or says:
            return None
        action = schema.actions(file[key], path.name, key)
    return action.shape[1] if action.ndim == 2 else None


def _first(file: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    return next((key for key in keys if key in file), None)


def _rows(name: str, file: Mapping[str, Any]) -> tuple[Rows, list[str]]:
    rows = other_layouts.read(name, file)
    if rows is not None:
        return rows
    notes: list[str] = []
    keys = {field: key for field, names in ALIASES.items() if (key := _first(file, names))}
    for field in ("observation", "action", "reward"):
        if field not in keys:
            hint = (
                " OGBench's files hold none: load them by name, such as "
                "'ogbench/cube-single-play-singletask-v0'."
            )
            ogbench = field == "reward" and "qpos" in file
            raise _missing(name, file, ALIASES[field], hint * ogbench)
    types: dict[str, str] = {}

    def read_array(field: str) -> tuple[Any, str, str]:
        array = schema.numbers(file[keys[field]], name, keys[field])
        types[keys[field]] = array.dtype.name
        return array, name, keys[field]

    reward = schema.column(*read_array("reward"), np.float32)
    terminated, truncated = _ends(name, file, keys, len(reward), notes)
    rows = Rows(
        name,
        keys,
        schema.observed(*read_array("observation")),
        schema.actions(*read_array("action")),
        reward,
        terminated,
        truncated,
        schema.observed(*read_array("next_observation")) if "next_observation" in keys else None,
        types=types,
    )
    return rows, notes


def _rows_of_all(name: str, file: Mapping[str, Any], metadata: Mapping[str, Any]) -> Rows:
    for key in ("actions", "rewards", "terminals", "timeouts"):
        if key not in file:
            raise _missing(name, file, (key,))
    reward = schema.column(file["rewards"], name, "rewards", np.float32)
    if not len(reward):
        raise ValueError(f"'{name}' is empty: 'rewards' has no rows. Record or download it again.")
    schema.facts(name, None, None, {"stack": metadata.get("stack")}, None)
    stack = metadata.get("stack") or 1
    observation, following = observation_arrays.read(
        name, file, metadata.get("observation"), len(reward), stack
    )
    read_actions = schema.actions if metadata.get("choices") is None else schema.several_actions
    return Rows(
        name,
        {field: ALIASES[field][0] for field in base.FIELDS},
        observation,
        read_actions(file["actions"], name, "actions"),
        reward,
        schema.marks(file["terminals"], name, "terminals"),
        schema.marks(file["timeouts"], name, "timeouts"),
        following,
        types={"actions": file["actions"].dtype.name, "rewards": file["rewards"].dtype.name},
    )


def of_arrays(
    name: str,
    columns: Mapping[str, Any],
    signals: Mapping[str, Any],
    env: str | None = None,
    action_bounds: Any = None,
) -> OfflineDataset:
    """The dataset of arrays in memory by `FIELDS` of a transition, in recorded order.

    Observations may be dictionaries. Without `next_observation`, a trajectory's last row is dropped
    unless it is terminal. Raises the errors of `read`; messages call the arrays `name`.
    """

    def observed(field: str) -> Any:
        value = columns.get(field)
        if isinstance(value, Mapping):
            return {part: schema.observed(x, name, f"{field}/{part}") for part, x in value.items()}
        return None if value is None else schema.observed(np.asarray(value), name, field)

    action = np.asarray(columns["action"])
    several = action.ndim == 2 and action.dtype.kind in "iu"
    reward = schema.column(np.asarray(columns["reward"]), name, "reward", np.float32)

    def marks(field: str) -> np.ndarray:
        value = columns.get(field)
        if value is None:
            return np.zeros(len(reward), np.bool_)
        return schema.marks(np.asarray(value), name, field)

    rows = Rows(
        name,
        {field: field for field in base.FIELDS},
        observed("observation"),
        (schema.several_actions if several else schema.actions)(action, name, "action"),
        reward,
        marks("terminated"),
        marks("truncated"),
        next_observation=observed("next_observation"),
        signals={signal: np.asarray(x, np.float32) for signal, x in signals.items()},
    )
    rows.check_lengths()
    complete = bool(rows.terminated[-1] or rows.truncated[-1])
    provenance = {"reader": "arrays", "files": [], "notes": [], "versions": base.versions()}
    return assembly.assemble(
        name,
        selected(rows),
        env=env,
        reference=None,
        bounds=action_bounds,
        complete=complete,
        provenance=provenance,
    )


def _ends(
    name: str, file: Mapping[str, Any], keys: dict[str, str], total: int, notes: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """[M] bool twice: terminal rows, and other ends. Completes `keys` and `notes`."""

    def marks(key: str) -> np.ndarray:
        values = schema.marks(file[key], name, key)
        schema.require_length(name, key, len(values), keys["reward"], total)
        return values

    none = np.zeros(total, np.bool_)
    timeouts = marks(keys["truncated"]) if "truncated" in keys else none
    end_keys = [key for key in ENDS if key in file]
    ends = none.copy()
    for key in end_keys:
        if key == "episode_lengths":
            lengths = schema.lengths(file[key], name, key, total)
            ends[np.cumsum(lengths) - 1] = True
        else:
            values = marks(key)
            starts = key == "episode_starts"
            ends |= np.append(values[1:], none[:1] | True) if starts else values
    if MASKS in file:
        for field in ("terminated", "done"):
            ends |= marks(keys[field]) if field in keys else none
        terminated, keys["terminated"] = ~marks(MASKS), MASKS
    elif "terminated" in keys:
        terminated = marks(keys["terminated"])
        ends |= marks(keys["done"]) if "done" in keys else none
    elif "done" in keys:
        terminated, keys["terminated"] = marks(keys["done"]) & ~timeouts, keys["done"]
        if "truncated" not in keys:
            notes.append(
                f"'{keys['done']}' is read as the environment's own end: time limits were "
                "not recorded"
            )
    elif end_keys:
        terminated, keys["terminated"] = none, end_keys[0]
        notes.append("why episodes ended was not recorded: all ends count as truncated")
    else:
        hint = " Without them no episode has an end, and every value is bootstrapped for ever."
        raise _missing(name, file, (*ALIASES["terminated"], *ALIASES["done"]), hint)
    keys.setdefault("truncated", end_keys[0] if end_keys else keys["terminated"])
    return terminated, timeouts | (ends & ~terminated)


def selected(rows: Rows) -> Rows:
    """The rows whose successors are known, with these."""
    keep = np.ones(len(rows.reward), np.bool_)
    if rows.next_observation is None:
        keep = ~np.append(rows.truncated[:-1], True) | rows.terminated
        rows.dropped[assembly.WITHOUT_SUCCESSOR] = int((~keep).sum())
    return assembly.successors(rows, keep)


def _missing(
    name: str, file: Mapping[str, Any], keys: tuple[str, ...], hint: str = ""
) -> ValueError:
    for key in keys:
        parts = [other.removeprefix(f"{key}/") for other in file if other.startswith(f"{key}/")]
        if parts:
            return schema.is_group(name, key, parts)
    others = ", ".join(repr(key) for key in keys[1:])
    return ValueError(
        f"'{name}' has no '{keys[0]}' (nor {others}); it has: {text.listed(file)}.{hint}"
    )


def _metadata(name: str, file: Any) -> dict[str, Any]:
    key = _first(file, ("metadata/rljax", "metadata"))
    written = None if key is None else file.text(key)
    if written is None:
        return {}
    try:
        metadata = text.parse_json(written, name)
    except RefusedFileError:
        raise
    except ValueError as error:
        if FORMAT.rstrip("0123456789") not in written:
            return {}
        raise RefusedFileError(
            f"'{name}': its '{key}' is not JSON: {text.shortened(str(error))}. Write or download "
            "the file again."
        ) from error
    kind = str(metadata.get("format")) if isinstance(metadata, dict) else ""
    if not kind.startswith("rljax dataset"):
        return {}
    if kind not in (FORMAT, FORMAT_OF_ALL):
        raise ValueError(
            f"'{name}' is a '{text.shortened(kind)}', this rljax reads up to '{FORMAT_OF_ALL}'. "
            "Install a newer rljax."
        )
    return metadata


def _corrupted(metadata: Mapping[str, Any]) -> set[Any]:
    notes = metadata.get("corruptions")
    notes = notes if isinstance(notes, list) else []
    return {str(note.get("what")) for note in notes if isinstance(note, dict)}
