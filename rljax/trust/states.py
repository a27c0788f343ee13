"""Saved states of environments: plain ones run no code, and pickles any."""

from __future__ import annotations

PLAIN = b"rljax: plain state of simulators 1\n"  # the first bytes of a plain state
PICKLED = (
    "'{env}' has attributes that can only be saved as a pickle, which can run code when it is "
    "loaded. You can resume this run as always; others, and you on another machine, need --trust."
)


class TrustedState(bytes):
    """A state that this user saved, or trusts now: it may be a pickle."""


def is_pickle(state: bytes) -> bool:
    """Whether restoring this state can run code from it."""
    return not state.startswith(PLAIN)


def require_no_pickle(state: bytes, name: str) -> None:
    """Raise `ValueError` if the state of `name` is a pickle, and no `TrustedState`."""
    if is_pickle(state) and not isinstance(state, TrustedState):
        raise ValueError(
            f"the state of '{name}' is a pickle, which can run any code, and is not trusted."
        )
