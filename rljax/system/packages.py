"""rljax as an installed package.

The name `rljax` on the package index belongs to another project, so that the distribution has a
name of its own. What is imported, and the command, are called `rljax`.
"""

from __future__ import annotations

DISTRIBUTION = "rljax-suite"


def install_command(*extras: str) -> str:
    """The command that installs rljax with extras: pip install 'NAME[sweep]'."""
    return f"pip install '{DISTRIBUTION}[{','.join(extras)}]'"
