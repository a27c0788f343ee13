"""Seals: signatures that only this user can make, on this machine.

They sign names of code and states of environments. The key ~/.rljax/key is made when first needed;
where this fails, there are no seals.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BYTES = 32  # of the key
STATE = "environments"  # the kind of a state's seal


def seals(code: Mapping[str, str]) -> dict[str, str]:
    """The seals of a run's code, that of `rljax.learning.named_code`, by the setting."""
    signatures = {part: seal(part, name.encode()) for part, name in code.items()}
    return {part: signature for part, signature in signatures.items() if signature is not None}


def state_seal(state: bytes | None) -> str | None:
    """The seal of a state of environments, if there is one."""
    return None if state is None else seal(STATE, state)


def seal(kind: str, content: bytes) -> str | None:
    """A signature that only this user can make."""
    key = _key_in(Path.home() / ".rljax" / "key")
    if key is None:
        return None
    return hmac.new(key, kind.encode() + b"\0" + content, "sha256").hexdigest()


def is_sealed(kind: str, content: bytes, signature: Any) -> bool:
    """Whether `signature` is the one that `seal` made for this user."""
    right = seal(kind, content) if isinstance(signature, str) else None
    if right is None:
        return False
    return hmac.compare_digest(right.encode(), signature.encode("utf-8", "replace"))


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
                with contextlib.suppress(FileExistsError):  # another process was first
                    os.link(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
        key = path.read_bytes()
        return key if len(key) == BYTES else None
    return None
