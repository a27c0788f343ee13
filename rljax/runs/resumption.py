"""A run goes on: the checks of its folder and checkpoint before that,
and the notes of it in config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljax import trust
from rljax.runs import records
from rljax.system import hardware
from rljax.training.named_code import named_code
from rljax.training.settings import Settings


def require_same_beginning(folder: Path, inherited: Any) -> None:
    """Raise `ValueError` where what learners inherit has changed since the run in `folder`,
    which begins anew.
    """
    if records.read_config(folder).get("inherited") != inherited:
        raise ValueError(
            f"the run in '{folder}' begins anew, and the run of its --from has changed since. "
            "Restore that folder, or start a new run."
        )


def note_resumption(
    folder: Path,
    settings: Settings,
    entry: dict[str, Any],
    conditions: Mapping[str, Any],
    state_bytes: int | None,
) -> list[str]:
    """Record in config.json that the run goes on: the new plan,
    and the `entry` with the step and the command.

    Returns a warning where the conditions differ from those at the run's beginning, and records the
    difference.
    """
    described = records.read_config(folder)
    if state_bytes is not None and not described["then_online"]:
        described["state_bytes"] = state_bytes
    described |= {
        name: getattr(settings, name)
        for name in ("steps", "then_online", "offline_share", "online")
    }
    described["seals"] = trust.seals(named_code(settings))
    different = hardware.differences(described, conditions)
    if different:
        entry = entry | {"different": different}
    described["resumed"] = [*(described.get("resumed") or []), entry]
    records.write_json(folder / "config.json", described)
    if not different:
        return []
    return [
        (
            f"the run began under other conditions ({'; '.join(different)}). Its numbers will "
            "differ from those of a run that stayed as it was; config.json says so."
        )
    ]


def require_structure(folder: Path, saved: Mapping[str, Any], structure: Mapping[str, Any]) -> None:
    """Raise `ValueError` where the `saved` settings of a checkpoint are not those in `structure`.

    Both shape its arrays. A setting that neither the checkpoint nor the run's config.json has is
    newer than the run, and has its default.
    """
    written = records.read_config(folder)["config"]
    for name, value in structure.items():
        is_new = name.startswith("online.") or name.removeprefix("config.") not in written
        if saved.get(name, value if is_new else None) != value:
            raise ValueError(
                f"'{folder / 'config.json'}' says {name} = {value}, the checkpoint was made with "
                f"{saved.get(name)}. Structural settings cannot change in a resumed run: restore "
                "the value, or start a new run."
            )
