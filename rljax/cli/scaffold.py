"""The files that `rljax new` writes: a copy of an agent and its presets; in a checkout also its
search space, test and page.

Presets are not copied: their sources would be wrong under another name.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from rljax.learning import registry

CHECKOUT = registry.AGENTS.resolve().parent

PRESETS = """\
# Settings of {name} per environment or data set, over the defaults of its file. Each section names
# its source, for example the paper's table. Those of the agent that it was copied from: {presets}
#
#   ["Hopper-v5"]
#   source = "[1], table 2"
#   actor_lr = 1e-4
"""

SPACE = """\
# What `rljax sweep {name}` searches: a few settings with their ranges, which hold the defaults,
# and the source.
#
#   source = "own choice, around the default"
#   actor_lr = {{ low = 1e-5, high = 1e-2, log = true }}
#   hidden = {{ choices = ["64x64", "256x256"] }}
"""

TEST = '''\
"""{title} against float64 NumPy written from the paper."""

from __future__ import annotations

{imports}

{example}


@pytest.mark.skip(reason="to be written")
def test_updates_equal_the_papers() -> None:
    """Each loss and a whole update against float64 NumPy, written from the paper.

    An example is tests/agents/test_{source}.py.
    """
    raise NotImplementedError
'''
# What the tests of all agents read in an agent's own test.
READ_BY_OTHERS = ("example", "PROBE", "POLICY_IS_A_DRAW", "NORMALISES_ITSELF", "AVERAGES")

PAGE = """\
# {title}

[agents/{name}.py](../../agents/{name}.py): {summary}

**When to use it**: to be written.
**When not**: to be written.

## Command

```sh
{command}
```

Settings per environment, each with its source:
[agents/presets/{name}.toml](../../agents/presets/{name}.toml).
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

- [tests/agents/test_{name}.py](../../tests/agents/test_{name}.py): what the contract's tests run
  on.

## References

{references}
"""


def write(source: str, file: Path) -> list[Path]:
    """Copy the agent `source` to `file`, with its other files. Returns all of them, the agent
    first.

    Outside the checkout's `agents/` only presets are written, beside the file.

    Raises `ValueError` for an unknown agent or a file name that is not a module name, and
    `FileExistsError` where one of the files exists.
    """
    if not file.stem.isidentifier() or file.suffix != ".py":
        raise ValueError(
            f"'{file}' must be the name of a Python module, such as {_identifier(file.stem)}.py: "
            f"rljax new {file.with_name(_identifier(file.stem) + '.py')} --from {source}"
        )
    name = file.stem
    text = _renamed(registry.source(source), source, name)
    tests = CHECKOUT / "tests" / "agents"
    inside = file.resolve().parent == registry.AGENTS.resolve() and tests.is_dir()
    presets = PRESETS.format(name=name, presets=f"agents/presets/{source}.toml")
    if inside:
        test = (tests / f"test_{source}.py").read_text()
        contents = {
            file: text,
            registry.PRESETS / f"{name}.toml": presets,
            registry.AGENTS / "spaces" / f"{name}.toml": SPACE.format(name=name),
            tests / f"test_{name}.py": small_test(test, source, name),
            CHECKOUT / "docs" / "agents" / f"{name}.md": page(text, name),
        }
    else:
        own_command = text.replace(f"rljax train {name} ", f"rljax train ./{name}.py ")
        contents = {file: own_command, file.with_suffix(".toml"): presets}
    for path in contents:
        if path.exists():
            raise FileExistsError(f"'{path}' exists. Choose another name.")
    for path, content in contents.items():
        path.write_text(content)
    return list(contents)


def small_test(text: str, source: str, name: str) -> str:
    """A test for a copy of the agent `source`: what others read of its `text`, and one to be
    written.
    """
    tree = ast.parse(text)
    defined = {target: node for node in tree.body for target in _defines(node)}
    needed: set[str] = set()
    waiting = [part for part in READ_BY_OTHERS if part in defined]
    while waiting:
        part = waiting.pop()
        if part in defined and part not in needed:
            needed.add(part)
            waiting += _uses(defined[part])
    nodes = [node for node in tree.body if needed & set(_defines(node))]
    lines = text.splitlines()
    example = ""
    for node in nodes:
        is_short = isinstance(node, ast.Assign | ast.AnnAssign)
        part = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        example += part + "\n" if is_short else f"\n\n{part}\n\n\n"
    example = example.strip().replace("\n\n\n\n\n", "\n\n\n")
    imports = _imports(tree, {"pytest"}.union(*map(_uses, nodes)))
    written = TEST.format(title=name, imports=imports, example=example, source=source)
    test = "tests/agents/test_{}.py".format
    return _renamed(written, source, name).replace(test(name), test(source))


def _uses(node: ast.AST) -> list[str]:
    return [x.id for x in ast.walk(node) if isinstance(x, ast.Name)]


def _defines(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [name for target in node.targets for name in _uses(target)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def _imports(tree: ast.Module, used: set[str]) -> str:
    """The imports of a module that bind one of the names `used`, in their blocks."""
    blocks: list[list[str]] = []
    last = 0
    for node in tree.body:
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        if not is_import or getattr(node, "module", None) == "__future__":
            continue
        names = [x for x in node.names if (x.asname or x.name.partition(".")[0]) in used]
        if node.lineno > last + 1 or not blocks:
            blocks.append([])
        last = node.end_lineno or node.lineno
        if names:
            node.names = names
            blocks[-1].append(ast.unparse(node))
    return "\n\n".join("\n".join(block) for block in blocks if block)


def command(file: Path) -> str:
    """The first `rljax train` command in an agent's docstring, with its path from here."""
    match = re.search(r"^  (rljax train .+)$", file.read_text(), re.MULTILINE)
    assert match is not None, "every agent's docstring has one"
    nested = file.parent != Path() and not file.is_absolute()
    return match[1].replace(f"./{file.name}", str(file)) if nested else match[1]


def page(source: str, name: str) -> str:
    """A page for an agent, filled in from its source as far as possible.

    scripts/results/agent_pages.py fills in its table of hyperparameters.
    """
    tree = ast.parse(source)
    first, *paragraphs = (ast.get_docstring(tree) or "").split("\n\n")
    with_equations = (x for x in paragraphs if re.search(r"^  \S.* = ", x, re.MULTILINE))
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    losses = [function for function in functions if function.endswith(("_loss", "_gain"))]
    metrics = sorted(set(re.findall(r'"([a-z_]+/[a-z_]+)": ', source)))
    train = re.search(r"^  (rljax train .+)$", source, re.MULTILINE)
    references = re.findall(r"^(\[\d+\] .+)$", ast.get_docstring(tree) or "", re.MULTILINE)
    return PAGE.format(
        title=first.partition(":")[0].partition(" [")[0],
        name=name,
        summary=first.partition(": ")[2],
        command="" if train is None else train[1],
        equations=next(with_equations, first),
        losses="\n".join(f"| to be written | [`{x}`](../../agents/{name}.py) |" for x in losses),
        metrics="\n".join(f"| `{metric}` | to be written | to be written |" for metric in metrics),
        references="\n".join(f"- {x}" for x in references) or "To be written.",
    )


def _renamed(text: str, old: str, new: str) -> str:
    """Rename the agent `old` to `new` where an agent's file or its test names itself.

    Sources, such as "Brax's sac", stay.
    """
    text = re.sub(rf"(['\"]){re.escape(old)}\1", rf"\g<1>{new}\g<1>", text)
    text = re.sub(
        rf"(rljax train |rljax\.agents import (?:\w+, )*){re.escape(old)}\b", rf"\g<1>{new}", text
    )
    text = re.sub(rf"(?<![\w./'\"-]){re.escape(old)}(?=\.\w)", new, text)  # the module: sac.Config
    text = re.sub(r'\A"""[^:\n\[]+?( \[[\w-]+\]:|:| against)', rf'"""{new}\1', text)
    return re.sub(r"^(from [\w.]+ import )(\w+(?:, \w+)+)$", _in_order, text, flags=re.MULTILINE)


def _in_order(line: re.Match[str]) -> str:
    names = sorted(line[2].split(", "), key=lambda name: (name[0].islower(), name))
    return line[1] + ", ".join(names)


def _identifier(stem: str) -> str:
    return re.sub(r"\W", "_", stem) or "mine"
