"""Draw the decision picture of docs/which_algorithm.md.

  python scripts/site/decision.py            write docs/images/which_algorithm.svg

Every agent is in the tree once; a test checks it, and that the picture is up to date.
"""

from __future__ import annotations

import argparse
from html import escape
from pathlib import Path

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "which_algorithm.svg"
# Where experience comes from: the first line that fits, and the agents to try, the first one first.
TREE = {
    "an environment": [
        ("a cost has a limit, steps are cheap", ["ppo_lagrangian", "cpo"]),
        ("a cost has a limit, steps are dear", ["sac_lagrangian"]),
        ("no memory for a replay: continuous actions", ["stream_ac"]),
        ("no memory for a replay: discrete actions", ["stream_q", "stream_sarsa"]),
        ("only the values of states are wanted", ["stream_td"]),
        ("the policy decides every few steps only", ["sequence_rl"]),
        ("what matters was seen some steps ago", ["ppo", "r2d2"]),
        ("goals, reached rarely, replaced in hindsight", ["sac", "dqn"]),
        ("goals, no rewards, continuous actions", ["crl_online"]),
        ("steps are cheap, one discrete action", ["ppo", "pqn"]),
        (
            "hundreds of environments, continuous actions, a GPU",
            ["ppo", "reppo", "fasttd3", "fastsac"],
        ),
        ("steps are cheap, or several kinds of action", ["ppo"]),
        (
            "the dearest steps, continuous actions, a GPU",
            ["xqc", "flashsac", "simbav2", "crossq", "bro"],
        ),
        ("steps are dear, episodes begin alike", ["td7"]),
        ("steps are dear, continuous actions", ["sac", "td3", "dsact", "tqc", "mpo", "decqn"]),
        ("steps are dear, discrete actions", ["dqn", "sac_discrete"]),
    ],
    "a data set": [
        ("to judge a policy, not to make one", ["fqe"]),
        ("goals instead of one task", ["gciql", "hiql", "crl", "qrl", "gcivl", "gcbc"]),
        ("one good policy made the data", ["bc"]),
        ("returns say which data is good", ["dt", "rvs"]),
        ("many tasks, and a new one to be learnt by acting in it", ["dpt"]),
        ("a few demonstrations, no rewards", ["bc", "recoil"]),
        ("parts of the data are wrong", ["riql"]),
        ("discrete actions", ["iql", "cql_discrete"]),
        (
            "several ways are good, as in play data",
            ["fql", "qam", "qsm", "qc", "expo", "dsrl", "ifql", "idql", "ofql", "dql"],
        ),
        ("good parts of bad episodes must be joined", ["iql", "rebrac", "cql", "fdvl"]),
        ("continuous actions, dense rewards", ["td3_bc", "iql", "rebrac", "edac"]),
    ],
    "a data set, and an environment": [
        ("data first, then the environment", ["calql", "iql", "awac", "famo2o", "ro2o"]),
        ("a policy that must stay as it is, and the environment", ["resfit", "dsrl", "dsrl_sac"]),
        ("a clone that may learn on, cheap steps", ["reinflow", "dppo"]),
        ("both from the first step", ["sac", "td3", "moorl"]),
        ("both, on-policy: rewards that are never met", ["hnpg"]),
        ("few real data, and a simulator that is off", ["h2o"]),
    ],
}
ROW, TOP = 30, 64
COLUMNS = (16, 236, 596)  # where the three columns begin
WIDTHS = (180, 330, 240)
COLOURS = ("#0b6aa8", "#8a4b08", "#4c6b1f")


def agents() -> list[str]:
    """The agents of the tree; some stand in several lines."""
    return [name for lines in TREE.values() for _, names in lines for name in names]


def svg() -> str:
    """The picture as SVG."""
    height = TOP + ROW * sum(map(len, TREE.values())) + 20 * len(TREE)
    width = COLUMNS[2] + WIDTHS[2] + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="14">',
        "<title>Which algorithm?</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    heads = ("You learn from", "the first line that fits", "agents to try, in this order")
    parts += [text(x, 36, head, "#555555") for x, head in zip(COLUMNS, heads, strict=True)]
    y = TOP
    for colour, (source, lines) in zip(COLOURS, TREE.items(), strict=True):
        middle = y + ROW * len(lines) / 2
        for i, (condition, names) in enumerate(lines):
            centre = y + ROW * (i + 0.5)
            parts += [
                line(COLUMNS[0] + WIDTHS[0], middle, COLUMNS[1], centre, colour),
                line(COLUMNS[1] + WIDTHS[1], centre, COLUMNS[2], centre, colour),
                box(COLUMNS[1], centre, WIDTHS[1], colour, filled=False),
                text(COLUMNS[1] + 10, centre + 5, condition, "#111111"),
                text(COLUMNS[2] + 8, centre + 5, ", ".join(names), colour, bold=True),
            ]
        parts += [box(COLUMNS[0], middle, WIDTHS[0], colour, filled=True)]
        parts += source_text(source, middle)
        y += ROW * len(lines) + 20
    return "\n".join([*parts, "</svg>", ""])


def source_text(source: str, middle: float) -> list[str]:
    """The words in a box of the first column, on one line or two."""
    first, comma, second = source.partition(", ")
    if not comma:
        return [text(COLUMNS[0] + 12, middle + 5, source, "#ffffff", bold=True)]
    return [
        text(COLUMNS[0] + 12, middle - 2, first + ",", "#ffffff", bold=True),
        text(COLUMNS[0] + 12, middle + 15, second, "#ffffff", bold=True),
    ]


def text(x: float, y: float, words: str, colour: str, *, bold: bool = False) -> str:
    """Words that begin at a point."""
    weight = ' font-weight="bold"' * bold
    return f'<text x="{x}" y="{y:g}" fill="{colour}"{weight}>{escape(words)}</text>'


def box(x: float, middle: float, width: float, colour: str, *, filled: bool) -> str:
    """A box around a middle height: of a source, or of a line."""
    half = 22 if filled else 12
    return (
        f'<rect x="{x}" y="{middle - half:g}" width="{width}" height="{2 * half}" rx="6" '
        f'fill="{colour if filled else "#ffffff"}" stroke="{colour}"/>'
    )


def line(x: float, y: float, to_x: float, to_y: float, colour: str) -> str:
    """A curve from one box to the next."""
    bend = (x + to_x) / 2
    path = f"M{x:g} {y:g} C{bend:g} {y:g} {bend:g} {to_y:g} {to_x:g} {to_y:g}"
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-opacity="0.6"/>'


def main() -> None:
    """Write the picture."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    PICTURE.write_text(svg())


if __name__ == "__main__":
    main()
