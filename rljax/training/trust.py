"""Which code and which pickles of a run's folder may be run: only what this user named or made, or trusts now.

A run's config.json may name code: an agent's file, an environment's file, or a module that registers environments.
Whoever begins a run names that code, and `seals` signs the names with a key that only this user has. Where a folder
names code without a valid seal, somebody else may have written it, and `require` refuses it unless the user says
otherwise (`--trust`, or `trust=True`). States of environments that are pickles are sealed likewise.

The key lies in ~/.rljax/key. It is made when it is first needed, and only this user can read it.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rljax import envs
from rljax.datasets.formats import environment_arguments
from rljax.envs.host import saved_simulators
from rljax.system.files import safe
from rljax.training import registry

PICKLED = (
    "'{env}' has attributes that can only be saved as a pickle, which can run code when it is loaded. You can resume "
    "this run as always; others, and you on another machine, need --trust."
)
BYTES = 32  # of the key
PARTS = ("agent", "env", "eval_env")  # the settings of a run that can name code


def code(settings: Mapping[str, Any], part: str) -> str | None:
    """The code that a run's setting `part` names: the absolute path of a file, or "module NAME". None if it is none.

    An argument of an environment counts as code if it may be the path of a file: see
    `rljax.datasets.formats.environment_arguments`.
    """
    name = settings.get(part)
    if not isinstance(name, str):
        return None
    source = registry.file_of(name) if part == "agent" else envs.code_of(name)
    argument = environment_arguments.outside(name) if part != "agent" else None
    if source is not None:
        source = os.path.abspath(source) if source.endswith(".py") else f"module {source}"
    return ", ".join(filter(None, (source, argument))) or None


def seals(settings: Mapping[str, Any]) -> dict[str, str]:
    """The seals of all code that a run's settings name, by the name of the setting. They vouch that the user named it.

    Empty where no code is named, and where no key can be made.
    """
    named = {part: code(settings, part) for part in PARTS}
    signatures = {part: seal(part, name.encode()) for part, name in named.items() if name is not None}
    return {part: signature for part, signature in signatures.items() if signature is not None}


def require(settings: Mapping[str, Any], sealed: Any, where: Path, trusted: bool, parts: Sequence[str] = PARTS) -> None:
    """Raise `ValueError` if `parts` of the settings in the file `where` name code that this user has not named.

    `sealed` are the seals in that file. With `trusted`, the user vouches for the code.
    """
    for part in () if trusted else parts:
        name = code(settings, part)
        signature = sealed.get(part) if isinstance(sealed, Mapping) else None
        if name is not None and not is_sealed(part, name.encode(), signature):
            raise ValueError(
                f"'{where}' names code as its {part}, {name!r}, and no command of yours on this machine did. It could "
                "do everything that you can. Look at it first; if you trust it, add --trust (in Python: trust=True)."
            )


def require_named(env: str | None, where: str) -> None:
    """Raise `ValueError` if the environment that the data called `where` name would run code. The user must name it."""
    name = None if env is None else code({"env": env}, "env")
    if name is not None:
        raise ValueError(
            f"the file of '{where}' names the environment {env!r}. Making it uses {name!r}, which could do everything "
            f"that you can. Look at it first; if you trust it, name it yourself: --env {env!r}. Without evaluations: "
            "--env none"
        )


def environments(checkpoint: Path, notes: Mapping[str, Any], trusted: bool) -> bytes | None:
    """The state of the environments in a checkpoint with these notes; None where it has none.

    Raises `ValueError` for a pickle, unless this user made it or trusts it now.
    """
    if notes["environments"] != "saved":
        return None
    state = safe(checkpoint / "environments").read_bytes()
    if trusted or is_sealed("environments", state, notes.get("seal")):
        return saved_simulators.Trusted(state)
    if is_pickle(state):
        raise ValueError(
            f"'{checkpoint / 'environments'}' is a pickle, and no command of yours on this machine made it. Loading it "
            "could do everything that you can. If you trust whoever made it, add --trust (in Python: trust=True)."
        )
    return state


def is_pickle(state: bytes) -> bool:
    """Whether the state of environments is a pickle."""
    return not saved_simulators.is_plain(state)


def seal(kind: str, content: bytes) -> str | None:
    """A signature that only this user can make; None where no key can be made."""
    key = _key()
    return None if key is None else hmac.new(key, kind.encode() + b"\0" + content, "sha256").hexdigest()


def is_sealed(kind: str, content: bytes, signature: Any) -> bool:
    """Whether `signature` is the one that `seal` made for this user."""
    right = seal(kind, content) if isinstance(signature, str) else None
    return right is not None and hmac.compare_digest(right.encode(), signature.encode("utf-8", "replace"))


def _key() -> bytes | None:
    return _key_in(Path.home() / ".rljax" / "key")


@functools.cache
def _key_in(path: Path) -> bytes | None:
    with contextlib.suppress(OSError):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".key.{os.getpid()}.{secrets.token_hex(4)}")
            try:
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with open(descriptor, "wb") as file:
                    file.write(secrets.token_bytes(BYTES))
                with contextlib.suppress(FileExistsError):  # another process was first: its key counts
                    os.link(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
        key = path.read_bytes()
        return key if len(key) == BYTES else None
    return None
