"""Which agent takes which observations and actions: writes the table of docs/spaces.md.

python scripts/results/spaces.py
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from rljax import buffers
from rljax.agent import MASK, EnvSpec, Part
from rljax.learning import registry

PAGE = Path(__file__).parents[2] / "docs" / "spaces.md"
BEGIN, END = "<!-- table: scripts/results/spaces.py -->\n", "<!-- end of table -->\n"

PICTURE = Part("image", (84, 84, 3), "uint8")
OBSERVATIONS: dict[str, dict[str, Any]] = {
    "vectors": {"observation_shape": (6,)},
    "pictures": {"observation_shape": (84, 84, 4), "observation_dtype": "uint8"},
    "dictionaries": {"observation_shape": (), "parts": (PICTURE, Part("vector", (6,)))},
}
ACTIONS: dict[str, dict[str, Any]] = {
    "continuous": {"action_size": 2},
    "one discrete": {"action_size": 3, "discrete": True},
    "several discrete": {"action_size": 5, "discrete": True, "choices": (3, 2)},
    "masked": {"action_size": 3, "discrete": True},
    "numbers and choices": {"action_size": 4, "choices": (2,)},
}


def spec(observation: str, action: str) -> EnvSpec:
    """An environment with such observations and actions."""
    made = EnvSpec(
        "Example-v0", **OBSERVATIONS[observation], **ACTIONS[action], max_episode_steps=100
    )
    if action != "masked":
        return made
    parts = made.parts or (Part("observation", made.observation_shape, made.observation_dtype),)
    parts = tuple(sorted((*parts, Part(MASK, (3,), "bool")), key=lambda part: part.name))
    return dataclasses.replace(made, observation_shape=(), observation_dtype="float32", parts=parts)


def refusal(agent: str, observation: str, action: str) -> str | None:
    """The error with which an agent with its defaults refuses an environment;
    None where it takes it.
    """
    module: Any = registry.load_agent(agent)
    try:
        module.check(spec(observation, action), module.Config())
    except ValueError as error:
        return str(error)
    return None


def cell(agent: str, observation: str | None, action: str | None) -> str:
    """What the table says of one kind of observation with any action,
    or of one kind of action with any observation.
    """
    pairs = (
        [(observation, other) for other in ACTIONS]
        if observation
        else [(other, action) for other in OBSERVATIONS]
    )
    refusals = [refusal(agent, str(one), str(two)) for one, two in pairs]
    if None in refusals:
        return "yes"
    return (
        "with convolutions"
        if any("--config.convolutions" in str(error) for error in refusals)
        else ""
    )


def source(agent: str) -> str:
    """Whether an agent learns from a data set: from it alone, or from it beside new experience."""
    module: Any = registry.load_agent(agent)
    experience = module.experience(module.Config())
    updates, _ = experience.stages(1, 0)
    if updates:
        return "alone"
    try:
        experience.require_data(buffers.Supply(agent, data="data"))
        experience.mixed(lambda replay: buffers.Mixed.of(replay, 0.5))
    except ValueError:
        return ""
    return "beside new experience"


def table() -> str:
    """The table, in Markdown."""
    names = registry.names()
    heads = ["agent", *OBSERVATIONS, *ACTIONS, "from data"]
    rows = [heads, ["---"] * len(heads)]
    for name in names:
        observations = [cell(name, observation, None) for observation in OBSERVATIONS]
        done = [cell(name, None, action) for action in ACTIONS]
        rows.append([f"[{name}](agents/{name}.md)", *observations, *done, source(name)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    """Write the table into the page."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
