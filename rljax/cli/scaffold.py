"""The files that `rljax new` writes: an agent and its presets. In a checkout also its search space, test and page."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from rljax.training import registry

CHECKOUT = registry.AGENTS.resolve().parent

PAGE = """\
# {title}

[agents/{name}.py](../../agents/{name}.py): {summary}

**When to use it**: to be written.
**When not**: to be written.

## Command

```sh
{command}
```

Settings per environment, each with its source: [agents/presets/{name}.toml](../../agents/presets/{name}.toml).
`rljax train {name} --help` explains every setting.

## Equations

```
{equations}
```

| equation | function |
|---|---|
{losses}

## Implementation details

To be written: the points in which implementations of this algorithm differ, and what this one does.

## Departures from the paper

To be written.

## Config

<!-- config -->
<!-- /config -->

## Metrics

Each metric is a mean over the updates since the last line.

| metric | meaning | when to worry |
|---|---|---|
{metrics}

## Results

To be written: a command, and the row in results/ that it makes.

## Tests that guard it

- [tests/agents/test_{name}.py](../../tests/agents/test_{name}.py): losses and a whole update against float64 NumPy.

## References

To be written.
"""


def write(source: str, file: Path) -> list[Path]:
    """Copy the agent `source` to `file`, with all of its presets, and in a checkout with all other files of an agent.

    Outside the checkout's `agents/` the presets are written beside the file. For a file in the checkout's `agents/` the
    presets and the search space go to the folders there, the test to tests/agents/ and the page to docs/agents/. The
    new name replaces the name of `source` in all of them. Returns the written files, the agent first.

    Raises `ValueError` for an unknown agent or a file name that is not a module name, and `FileExistsError` where one
    of the files exists.
    """
    if not file.stem.isidentifier() or file.suffix != ".py":
        raise ValueError(
            f"'{file}' must be the name of a Python module, such as {_identifier(file.stem)}.py: rljax new "
            f"{file.with_name(_identifier(file.stem) + '.py')} --from {source}"
        )
    name = file.stem
    text = _renamed(registry.source(source), source, name)
    inside = file.resolve().parent == registry.AGENTS.resolve() and (CHECKOUT / "tests" / "agents").is_dir()
    contents = {file: text if inside else text.replace(f"rljax train {name} ", f"rljax train ./{name}.py ")}
    for ending in (".toml", *(f".{variant}.toml" for variant in registry.variants(source))):
        presets = registry.PRESETS / f"{source}{ending}"
        beside = registry.PRESETS / f"{name}{ending}" if inside else file.with_suffix(ending)
        contents[beside] = _renamed(presets.read_text(), source, name) if presets.exists() else ""
    if inside:
        space = registry.AGENTS / "spaces" / f"{source}.toml"
        test = CHECKOUT / "tests" / "agents" / f"test_{source}.py"
        contents[registry.AGENTS / "spaces" / f"{name}.toml"] = _renamed(space.read_text(), source, name)
        contents[CHECKOUT / "tests" / "agents" / f"test_{name}.py"] = _renamed(test.read_text(), source, name)
        contents[CHECKOUT / "docs" / "agents" / f"{name}.md"] = page(text, name)
    for path in contents:
        if path.exists():
            raise FileExistsError(f"'{path}' exists. Choose another name.")
    for path, content in contents.items():
        path.write_text(content)
    return list(contents)


def command(file: Path) -> str:
    """The first `rljax train` command in the docstring of an agent's file."""
    found = re.search(r"^  (rljax train .+)$", file.read_text(), re.MULTILINE)
    assert found is not None, "every agent's docstring has one"
    return found[1]


def page(source: str, name: str) -> str:
    """A page for an agent, filled in from its source as far as possible. "To be written" marks the rest.

    `python scripts/results/agent_pages.py` fills in its table of hyperparameters.
    """
    tree = ast.parse(source)
    first, *paragraphs = (ast.get_docstring(tree) or "").split("\n\n")
    equations = next((part for part in paragraphs if re.search(r"^  \S.* = ", part, re.MULTILINE)), first)
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    losses = [function for function in functions if function.endswith(("_loss", "_gain"))]
    metrics = sorted(set(re.findall(r'"([a-z_]+/[a-z_]+)": ', source)))
    train = re.search(r"^  (rljax train .+)$", source, re.MULTILINE)
    return PAGE.format(
        title=first.partition(":")[0],
        name=name,
        summary=first.partition(": ")[2],
        command="" if train is None else train[1],
        equations=equations,
        losses="\n".join(f"| to be written | [`{loss}`](../../agents/{name}.py) |" for loss in losses),
        metrics="\n".join(f"| `{metric}` | to be written | to be written |" for metric in metrics),
    )


def _renamed(text: str, old: str, new: str) -> str:
    """Rename the agent `old` to `new` in a text: its name in lower case, and its title before a colon."""
    text = re.sub(rf"(?<![\w-]){re.escape(old)}(?![\w-])", new, text)
    text = re.sub(r'\A"""[^:\n]+(:| against)', rf'"""{new}\1', text)
    return re.sub(r"^(from [\w.]+ import )(\w+(?:, \w+)+)$", _in_order, text, flags=re.MULTILINE)


def _in_order(line: re.Match[str]) -> str:
    """An import of several names, sorted as linters expect it."""
    return line[1] + ", ".join(sorted(line[2].split(", "), key=lambda name: (name[0].islower(), name)))


def _identifier(stem: str) -> str:
    return re.sub(r"\W", "_", stem) or "mine"
