"""Which code and pickles of a folder may run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljax.trust.files import safe
from rljax.trust.keys import STATE, is_sealed
from rljax.trust.states import TrustedState, is_pickle

HOW = "add --trust (in Python: trust=True, or trust.Folder(path, trusted=True) as the folder)"


@dataclasses.dataclass(frozen=True)
class Folder:
    """The folder of a run, a grid or a sweep, with the user's word on it.

    Code that its files name and pickles run only under this user's seal, or where the folder is
    `trusted`.
    """

    path: Path
    trusted: bool = False

    def other(self, path: str | Path) -> Folder:
        """Another folder with the same trust."""
        return Folder(Path(path), self.trusted)

    def require_code(self, file: str, code: Mapping[str, str], seals: Any) -> None:
        """Raise `ValueError` for code that this user has not named.

        `code` is what the settings in `file` name, by setting. `seals` are those there, of any
        type.
        """
        if self.trusted:
            return
        for part, name in code.items():
            signature = seals.get(part) if isinstance(seals, Mapping) else None
            if not is_sealed(part, name.encode(), signature):
                raise ValueError(
                    f"'{self.path / file}' names code as its {part}, {name!r}, and no command of "
                    "yours on this machine did. It could do everything that you can. Look at it "
                    f"first; if you trust it, {HOW}."
                )

    def read_state(self, file: Path, seal: Any) -> bytes:
        """The state of environments in `file`; `seal` is the one beside it.

        Raises `ValueError` for a pickle that is no `TrustedState`, and `RefusedFileError`.
        """
        state = safe(file).read_bytes()
        if self.trusted or is_sealed(STATE, state, seal):
            return TrustedState(state)
        if is_pickle(state):
            raise ValueError(
                f"'{file}' is a pickle, and no command of yours on this machine made it. Loading "
                f"it could do everything that you can. If you trust whoever made it, {HOW}."
            )
        return state


def require_no_code(env: str, code: Mapping[str, str], where: str) -> None:
    """Raise `ValueError` if making `env`, which the data called `where` chose, runs `code`."""
    for name in code.values():
        raise ValueError(
            f"the file of '{where}' names the environment {env!r}. Making it uses {name!r}, which "
            "could do everything that you can. Look at it first; if you trust it, name it "
            f"yourself: --env {env!r}. Without evaluations: --env none"
        )
