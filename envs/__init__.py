"""Where experience comes from: environments inside the program, and environments on the host.

A name says which: `brax/...`, `gymnax/...` and `rljax/...` are inside the program, everything else is Gymnasium's.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rljax.envs.autoreset import AutoReset
    from rljax.envs.gymnasium import Hosted

_ADAPTERS = {"rljax": "analytic", "brax": "brax", "gymnax": "gymnax"}  # prefix -> module of this package


def is_compiled(name: str) -> bool:
    """Whether the environment called `name` runs inside the program."""
    return name.partition("/")[0] in _ADAPTERS and "/" in name


def make(name: str) -> AutoReset:
    """The environment inside the program called `name`, such as "brax/ant", resetting itself.

    Raises `ValueError` where there is none, where its package is absent and where its spaces are not supported.
    """
    from rljax.envs.autoreset import AutoReset

    if not is_compiled(name):
        raise ValueError(f"'{name}' is not inside the program: such names begin with {_prefixes()}. Use make_hosted.")
    return AutoReset(_adapter(name.partition("/")[0]).make(name))


def make_hosted(name: str, num_envs: int, **options: Any) -> Hosted:
    """`num_envs` environments on the host called `name`, such as "Hopper-v5" or "module:Name-v0".

    `options` go to `rljax.envs.gymnasium.make_hosted`, which says what it raises.
    """
    if is_compiled(name):
        raise ValueError(
            f"'{name}' is inside the program: Gymnasium's names do not begin with {_prefixes()}. Use make."
        )
    return _adapter("gymnasium").make_hosted(name, num_envs, **options)


def names() -> dict[str, list[str]]:
    """All environments by family; a family whose package is absent is empty, and its title says what to install."""
    from rljax.envs.environment import MissingPackageError

    families: dict[str, list[str]] = {"Gymnasium": _adapter("gymnasium").hosted_names()}
    for prefix in _ADAPTERS:
        try:
            families[prefix] = _adapter(prefix).names()
        except MissingPackageError as error:
            families[f"{prefix} (not installed: {error.command})"] = []
    return families


def _adapter(family: str) -> Any:
    return importlib.import_module(f"rljax.envs.{_ADAPTERS.get(family, family)}")


def _prefixes() -> str:
    return ", ".join(f"'{prefix}/'" for prefix in _ADAPTERS)
