"""Commands about agents: rljax list | new."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Annotated

import tyro

from rljax.cli import options as shared
from rljax.cli import parsing

WIDTH = 96  # of lines with many names


@dataclasses.dataclass
class List:
    """List agents, environments and presets."""

    # agents, environments or presets; default: the first two
    what: tyro.conf.Positional[str | None] = None


@dataclasses.dataclass
class New:
    """Copy an agent to a file of your own, with presets to fill in; in agents/ also with a test and
    a page.
    """

    file: shared.NewFile  # file to write: ./mine.py, or agents/foo.py in a checkout
    source: Annotated[str, tyro.conf.arg(name="from")] = "sac"  # agent to start from


def list_names(arguments: list[str]) -> None:
    """rljax list"""
    options = parsing.parse(List, arguments, "list")
    from rljax import envs
    from rljax.learning import registry

    if options.what not in (None, "agents", "environments", "presets"):
        raise ValueError(
            f"nothing called '{options.what}' to list: agents, environments or presets."
        )
    if options.what in (None, "agents"):
        for family, names in registry.families().items():
            print(f"agents, {registry.heading(family)}")
            print("\n".join(f"  {name:<15} {registry.summary(name)}" for name in names))
    if options.what in (None, "environments"):
        for family, names in envs.names().items():
            print(f"environments: {family}")
            for line in textwrap.wrap("  ".join(names), WIDTH, break_on_hyphens=False):
                print(f"  {line}")
    if options.what is None:
        print("presets, the settings per environment: rljax list presets")
    if options.what == "presets":
        for name in registry.names():
            for variant in (None, *registry.variants(name)):
                print(f"presets: {name}" + ("" if variant is None else f" --preset {variant}"))
                for pattern, values in registry.presets(name, variant).items():
                    changes = ", ".join(
                        f"{key}={value}" for key, value in values.items() if key != "source"
                    )
                    print(f"  {pattern:<28} {changes or 'the defaults'}  ({values['source']})")


def new(arguments: list[str]) -> None:
    """rljax new"""
    options = parsing.parse(New, arguments, "new")
    from rljax.cli import scaffold

    if options.file.suffix != ".py":
        raise ValueError(
            f"'{options.file}' must end in .py: rljax new {options.file.with_suffix('.py')}"
        )
    file, *others = scaffold.write(options.source, options.file)
    print(f"{file}: {options.source}, yours to change")
    for path in others:
        print(path)
    print(f"Train it: {scaffold.command(file)}")
