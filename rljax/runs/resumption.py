"""The checks before a run goes on, and their notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rljax import trust
from rljax.envs import objects
from rljax.learning.loop import Training, checkpoint_state
from rljax.learning.named_code import named_code
from rljax.learning.settings import Settings
from rljax.runs import checkpoints, records
from rljax.runs.json_files import dumps
from rljax.system import hardware


def require_same_beginning(folder: Path, inherited: Any) -> None:
    """Raise `ValueError` where a new beginning would inherit other policies."""
    if records.read_config(folder).get("inherited") != inherited:
        raise ValueError(
            f"the run in '{folder}' begins anew, and the run of its --from has changed since. "
            "Restore that folder, or start a new run."
        )


def note_resumption(
    folder: Path, training: Training, entry: dict[str, Any], conditions: Mapping[str, Any]
) -> list[str]:
    """Record the new plan and the `entry` in config.json.

    Conditions that have changed are recorded, and returned as a warning.
    """
    described, settings = records.read_config(folder), training.settings
    if settings.then_online and not described["then_online"]:
        described["state_bytes"] = training.needed_bytes
    described |= {
        name: getattr(settings, name)
        for name in ("steps", "then_online", "offline_share", "online")
    }
    described["seals"] = trust.seals(named_code(settings, described["config"]))
    different = hardware.differences(described, conditions)
    if different:
        entry = entry | {"different": different}
    described["resumed"] = [*(described.get("resumed") or []), entry]
    records.write_json(folder / "config.json", described)
    warning = (
        f"the run began under other conditions ({'; '.join(different)}). Its numbers will "
        "differ from those of an unchanged run; config.json says so."
    )
    return [warning] if different else []


def require_structure(folder: Path, saved: Mapping[str, Any], structure: Mapping[str, Any]) -> None:
    """Raise `ValueError` where a checkpoint's `saved` settings are not those in `structure`."""
    written = records.read_config(folder)["config"]
    for name, value in structure.items():
        # A setting that is newer than the run has its default.
        is_new = name.startswith("online.") or name.removeprefix("config.") not in written
        if saved.get(name, value if is_new else None) == value:
            continue
        if name in ("observation_shape", "action_size"):
            raise ValueError(
                f"the environment has {name} = {value}, and the run in '{folder}' began with "
                f"{saved.get(name)}: go on in the one that it began with."
            )
        raise ValueError(
            f"'{folder / 'config.json'}' says {name} = {value}, the checkpoint was made with "
            f"{saved.get(name)}. Structural settings cannot change in a resumed run: restore the "
            "value, or start a new run."
        )


def require_protocol(folder: Path, saved: Mapping[str, Any], protocol: Mapping[str, Any]) -> None:
    """Raise `ValueError` where settings are not those `saved` with a checkpoint."""
    for name, value in protocol.items():
        if name in saved and dumps(saved[name]) != dumps(value):
            raise ValueError(
                f"'{folder / 'config.json'}' says {name} = {value}, the checkpoint was made with "
                f"{saved[name]}. A run goes on with the settings that it began with: restore the "
                "value, or start a new run."
            )


def notes_of(training: Training, path: Path) -> dict[str, Any]:
    """The notes of checkpoint `path`, whose stage `training` enters.

    Raises `CheckpointError` for notes of another training.
    """
    notes = checkpoints.notes(path)
    try:
        checkpoint_state.enter_stage(training, notes)
        _ = notes["step"] + notes["wall_seconds"] + notes["updates"]
        _ = notes["environments"], notes["structure"].items(), notes["records"].items()
        _ = [entry["learner"] for entry in notes["diverged"]]
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise checkpoints.CheckpointError(
            f"'{path / checkpoints.NOTES}' does not hold the notes of a checkpoint: "
            f"{type(error).__name__} {error}."
        ) from error
    return notes


def continued(training: Training, folder: Path, path: Path, steps: int | None) -> dict[str, Any]:
    """The notes of checkpoint `path`, from which the run goes on, to `steps` if given.

    Raises `ValueError` where it cannot, or is complete.
    """
    notes = notes_of(training, path)
    if steps is not None:
        training.extend(steps)
    if notes["step"] >= training.total and records.is_summarised(folder, training.total):
        raise ValueError(
            f"'{folder}' is complete at {notes['step']} steps. To go on: "
            f"rljax resume {folder} --steps {2 * notes['step']}"
        )
    if steps is not None and notes["step"] > training.total:
        raise ValueError(
            f"'{folder}' has made {notes['step']} steps: give --steps more than {steps}."
        )
    require_structure(folder, notes["structure"], checkpoint_state.structure(training))
    require_protocol(folder, notes.get("protocol", {}), checkpoint_state.protocol(training))
    return notes


def call(
    folder: Path,
    settings: Settings,
    in_python: bool,
    parts: Mapping[str, Sequence[Mapping[str, Any]]],
) -> str:
    """What the user types to go on: a command, or a call `in_python` and where the run has what
    only Python knows, its environment or some of its `parts` by name.
    """
    needed = ["env=..."] if objects.is_object(settings.env or "") else []
    for name, entries in parts.items():
        if any(entry["settings"] is None for entry in entries):
            needed.append(f"{name}=[...]")
    if in_python or needed:
        return f"rljax.resume({', '.join([repr(str(folder)), *needed])})"
    return f"rljax resume {folder}"
