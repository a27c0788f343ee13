"""Write all tables of the pages in results/ from the files beside them;
nothing is trained or measured.

  python scripts/results/pages.py

online.py, offline.py and terminal_values.py beside this file make the tables of their own pages.
Most studies write theirs beside their scores. The rest is made here: speed, sweeps, sizes of
rewards, frequencies of decisions, faults on purpose, updates beside other people's, the ways from
data into an environment, and revisions that were not committed.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from scripts.results import offline as offline_runs
from scripts.results import online as online_runs
from scripts.results import terminal_values
from scripts.results.shared import RESULTS, over_seeds, show, table
from scripts.studies.offline import offline_to_online

# Measure, our key and the peer's in `medians`, and the ratio aimed at: at least, or at most where
# below 1.
Rows = tuple[tuple[str, str, str, float | None], ...]

ONLINE: Rows = (
    ("SAC, HalfCheetah-v5, beside sbx-rl", "sac ours steps/s", "sac sbx-rl steps/s", 1.4),
    ("TD3, HalfCheetah-v5, beside sbx-rl", "td3 ours steps/s", "td3 sbx-rl steps/s", 1.3),
    ("PPO, HalfCheetah-v5, beside sbx-rl", "ppo ours steps/s", "ppo sbx-rl steps/s", 1.4),
    (
        "PPO, ours with EnvPool, beside sbx-rl",
        "ppo ours, EnvPool steps/s",
        "ppo sbx-rl steps/s",
        2.0,
    ),
    (
        "PPO, gymnax/Pendulum inside the program, beside rejax",
        "ppo Pendulum ours steps/s",
        "ppo Pendulum rejax steps/s",
        1.2,
    ),
    (
        "DSAC-T's updates, beside our SAC's of equal size",
        "dsact bound steps/s",
        "sac of DSAC-T's size, bound steps/s",
        0.8,
    ),
    (
        "SAC, 4 seeds in one program, beside one",
        "sac 4 learners total steps/s",
        "sac ours steps/s",
        1.0,
    ),
)
DQN: Rows = (
    (
        "DQN, CartPole-v1 on the host, steps/s, beside sbx-rl",
        "dqn ours steps/s",
        "dqn sbx-rl steps/s",
        None,
    ),
)
ATARI: Rows = tuple(
    (
        f"DQN, Breakout, ours on {engine}, beside sbx-rl on ALE",
        f"ours, {engine} steps/s",
        "sbx, ALE steps/s",
        1.5,
    )
    for engine in ("EnvPool", "ALE")
)
PQN: Rows = tuple(
    (f"PQN, {game}, beside purejaxql", f"{game} ours steps/s", f"{game} purejaxql steps/s", 1.2)
    for game in ("Breakout-MinAtar", "SpaceInvaders-MinAtar")
)
JAX_CORL: Rows = tuple(
    (name, f"{agent} ours updates/s", f"{agent} JAX-CORL updates/s", 1.2)
    for name, agent in (("TD3+BC", "td3_bc"), ("IQL", "iql"))
)
OFF_POLICY: Rows = tuple(
    (name, f"{agent} ours steps/s", f"{agent} sbx-rl steps/s", 1.3)
    for name, agent in (
        ("TQC, critics of 2x256", "tqc"),
        ("DroQ, 20 updates a step", "droq"),
    )
)
CROSSQ: Rows = (("CrossQ, critics of 2x1024", "crossq ours steps/s", "crossq sbx-rl steps/s", 1.3),)
PRODUCTS = {
    "xqc": "XQC",
    "bro": "BRO",
    "simbav2": "SimbaV2",
    "crossq": "CrossQ, critics of 2x2048",
    "flashsac": "FlashSAC",
    "reppo": "REPPO, a rollout of 2,048 steps",
}
HEADS = {
    "sac": "the mean, squared error",
    "sac-two_hot": "the mean, two-hot",
    "sac-hl_gauss": "the mean, HL-Gauss",
    "sac-c51": "C51",
    "sac-quantile": "quantiles",
}
AUTHORS = {"xqc": "XQC", "bro": "BRO", "simbav2": "SimbaV2"}
# Measure, and its name and unit in the file.
ACCELERATOR = (
    ("PQN's steps, gymnax/Breakout-MinAtar", "pqn gymnax/Breakout-MinAtar", "steps_per_second"),
    ("SAC's steps, brax/hopper", "sac brax/hopper", "steps_per_second"),
    ("IQL's updates, data of HalfCheetah's sizes", "iql updates", "updates_per_second"),
)
MEMORY: Rows = tuple(
    (
        f"{name}, beside sbx-rl",
        f"{name.lower()} ours peak MB",
        f"{name.lower()} sbx-rl peak MB",
        None,
    )
    for name in ("SAC", "TD3", "PPO")
)
STREAMS: Rows = (
    (
        "stream AC, HalfCheetah-v5, 2x128, beside the authors' code (PyTorch)",
        "stream AC HalfCheetah ours steps/s",
        "stream AC HalfCheetah authors steps/s",
        5.0,
    ),
    (
        "stream AC, 5 streams in one program, beside one",
        "stream AC HalfCheetah ours, 5 streams steps/s",
        "stream AC HalfCheetah ours steps/s",
        None,
    ),
    (
        "stream Q, gymnax/CartPole, 2x32, beside the same agent in a Python loop",
        "stream Q CartPole ours steps/s",
        "stream Q CartPole, Python loop steps/s",
        20.0,
    ),
    (
        "stream Q, 16 streams in one program, beside one",
        "stream Q CartPole ours, 16 streams steps/s",
        "stream Q CartPole ours steps/s",
        4.0,
    ),
    (
        "stream Q, atari/Breakout, beside the authors' agent without a game",
        "stream Q Breakout ours steps/s",
        "stream Q Breakout authors, no game steps/s",
        None,
    ),
    (
        "stream AC, rljax/Pendulum, 2x128, 16 streams, beside one",
        "stream AC Pendulum ours, 16 streams steps/s",
        "stream AC Pendulum ours steps/s",
        None,
    ),
)
OFFLINE: Rows = tuple(
    (name, f"{agent} ours updates/s", f"{agent} CORL updates/s", aim)
    for name, agent, aim in (
        ("BC", "bc", None),
        ("TD3+BC", "td3_bc", 1.4),
        ("IQL", "iql", 1.4),
        ("CQL", "cql", 1.5),
    )
)
GENERATIVE: Rows = (
    ("Diffusion-QL", "dql ours updates/s", "dql authors' updates/s", 1.5),
    (
        "Diffusion-QL, max-Q backup",
        "dql max-Q ours updates/s",
        "dql max-Q authors' updates/s",
        None,
    ),
    ("Diffusion-QL, one step (EDP)", "dql one-step ours updates/s", "", None),
    ("OFQL", "ofql ours updates/s", "", None),
    ("FQL", "fql ours updates/s", "fql authors' updates/s", 1.2),
)
ACTING = (
    ("Diffusion-QL, T = 5, 50 candidates", "dql 5 steps"),
    ("Diffusion-QL, T = 10, 50 candidates", "dql 10 steps"),
    ("Diffusion-QL, T = 20, 50 candidates", "dql 20 steps"),
    ("Diffusion-QL, T = 50, 50 candidates", "dql 50 steps"),
    ("Diffusion-QL, T = 5, 1 candidate", "dql 5 steps, 1 candidate"),
    ("OFQL, 50 candidates", "ofql"),
    ("OFQL, 1 candidate", "ofql, 1 candidate"),
    ("FQL, 4 x 512", "fql"),
    ("FQL, 3 x 256", "fql 256"),
)
SWEEPS = (
    (
        "16 learners on gymnax/Pendulum-v1, beside 16 runs that share compiled programs",
        "populations",
        "16 PPO learners, one program, seconds",
        "16 PPO runs, compiled once, seconds",
        3.0,
    ),
    (
        "the same, each run compiled anew",
        "populations",
        "16 PPO learners, one program, seconds",
        "16 PPO runs, each compiled, seconds",
        None,
    ),
    (
        "64 settings on gymnax/CartPole-v1, tested on 10 seeds, beside a process for each",
        "populations",
        "sweep of 64 in populations of 16, with its test, seconds",
        "64 trials, a process each, seconds",
        None,
    ),
    (
        "the same sweep beside RL Zoo 2.9.2, trials one by one",
        "sweep",
        "sweep of 64 in populations of 16, with its test, seconds",
        "RL Zoo, 64 trials one by one, seconds",
        None,
    ),
    (
        "the same sweep beside RL Zoo 2.9.2, two trials at once with a thread each",
        "sweep",
        "sweep of 64 in populations of 16, with its test, seconds",
        "RL Zoo, 64 trials, two at once, seconds",
        None,
    ),
)
CORES = (
    ("16 of PPO, gymnax/Pendulum-v1", "ppo, 16 learners"),
    ("8 of DQN, gymnax/CartPole-v1", "dqn, 8 learners"),
    ("4 of SAC, rljax/Pendulum", "sac, 4 learners"),
    ("4 of BC, data of 17 and 6 dimensions", "bc, 4 learners"),
    ("4 of IQL, the same", "iql, 4 learners"),
    ("4 of CQL, the same", "cql, 4 learners"),
)
AGENTS = {
    "td3_bc": "TD3+BC",
    "iql": "IQL",
    "bc": "BC",
    "rebrac": "ReBRAC",
    "edac": "EDAC",
    "cql": "CQL",
}
AGENTS |= {"calql": "Cal-QL", "riql": "RIQL", "fql": "FQL", "dql": "Diffusion-QL"}
UNCOMMITTED = re.compile(r'"([0-9a-f]{8})[0-9a-f]*-dirty"')  # a `git_revision`
COMPUTE = ("LightsOut-3x3", "LightsOut-4x4", "cube-single")
GRIDS = {
    "LightsOut-5x5": (2048, "5M"),
    "LightsOut-5x5-dense": (2048, ""),
    "LightsOut-10x10-test": (2048, ""),
}
GRIDS |= {"BoxPick-6x6": (1024, "1M"), "BoxPick-6x6-quarter": (1024, "")}


def benchmark(name: str) -> dict[str, Any]:
    """A file of measurements."""
    return json.loads((RESULTS / "speed" / "measurements" / f"{name}.json").read_text())


def number(value: float) -> str:
    """Three digits or more, none of them behind the point from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def ratio(value: float, aim: float | None) -> str:
    """A ratio, and whether it is below its aim."""
    return f"{value:.2f}" + (": **short**" if aim is not None and value < aim else "")


def goal(aim: float | None) -> str:
    """The aim, where there is one."""
    return "" if aim is None else f"{aim:g}"


def ratio_rows(name: str, rows: Rows, shown: Callable[[float], str] = number) -> list[list[str]]:
    """Rows of ours, the peer's and their ratio; what was not measured is left out."""
    medians = benchmark(name)["medians"]
    cells_of_rows = []
    for label, ours, peer, aim in rows:
        if ours in medians:
            cells = [shown(medians[ours])]
            cells += (
                [shown(medians[peer]), ratio(medians[ours] / medians[peer], aim)]
                if peer in medians
                else ["", ""]
            )
            cells_of_rows.append([label, *cells, goal(aim)])
    return cells_of_rows


def online(name: str) -> list[str]:
    """Steps per second, memory and start of one machine."""
    file = benchmark(name)
    medians, ratios = file["medians"], file["ratios"]
    lines = [
        *table(["steps/s", "ours", "peer", "ratio", "aim, at least"], ratio_rows(name, ONLINE)),
        "",
    ]
    header = ["peak resident memory, MB", "ours", "peer", "ratio", "aim"]
    lines += [*table(header, ratio_rows(name, MEMORY, lambda value: f"{value:,.0f}")), ""]
    agents = ("sac", "td3")
    shares = [
        medians.get(f"{agent} share of the bound", ratios.get(f"{agent} ours / bound"))
        for agent in agents
    ]
    share = " and ".join(f"{x:.0%}" for x in shares)
    start, cached = medians["first update, cold, s"], medians["first update, cached, s"]
    rows = [
        ["SAC and TD3, share of the bound (the update alone in a loop)", share, "85%"],
        [
            "start to first update, cold and with the compile cache, s",
            f"{start:.1f} and {cached:.1f}",
            "10 and 5",
        ],
        ["`rljax --help`, s", f"{medians['rljax --help, s']:.2f}", "0.7"],
    ]
    return lines + table(["", "ours", "aim"], rows)


def dqn() -> list[str]:
    """DQN's speed and memory."""
    medians = benchmark("dqn")["medians"]
    rows = [row[:4] for row in ratio_rows("dqn", DQN)]
    memory = [medians[f"dqn {whose} peak MB"] for whose in ("ours", "sbx-rl")]
    rows.append(
        [
            "the same, peak resident memory, MB",
            *(f"{x:,.0f}" for x in memory),
            f"{memory[0] / memory[1]:.2f}",
        ]
    )
    return table(["", "ours", "peer", "ratio"], rows)


def atari() -> list[str]:
    """DQN's speed on an Atari game."""
    return table(["steps/s", "ours", "peer", "ratio", "aim, at least"], ratio_rows("atari", ATARI))


def pqn() -> list[str]:
    """PQN's speed."""
    return table(["steps/s", "ours", "peer", "ratio", "aim, at least"], ratio_rows("pqn", PQN))


def streams() -> list[str]:
    """Stream agents, and the bytes that one holds."""
    medians = benchmark("streaming")["medians"]
    names = ("stream AC HalfCheetah", "stream Q CartPole", "stream Q Breakout")
    sizes = [[name, f"{medians[f'{name} ours bytes']:,.0f}"] for name in names]
    lines = table(
        ["steps/s", "ours", "peer", "ratio", "aim, at least"], ratio_rows("streaming", STREAMS)
    )
    return [*lines, "", *table(["state of one stream", "bytes"], sizes)]


def offline() -> list[str]:
    """Updates per second beside CORL's."""
    ratios, medians = (benchmark("offline")[name] for name in ("ratios", "medians"))
    agents = ("bc", "td3_bc", "iql", "cql")
    rows = ratio_rows("offline", OFFLINE)
    rows = [
        [*row, f"{ratios[f'{agent} ours / bound']:.0%}"]
        for row, agent in zip(rows, agents, strict=True)
    ]
    lines = table(
        ["updates/s", "ours", "CORL", "ratio", "aim, at least", "share of the bound (aim 95%)"],
        rows,
    )
    more = [
        [
            "IQL, 4 learners in one program, updates/s in all",
            number(medians["iql 4 learners total updates/s"]),
            "",
        ],
        ["the same, of one learner's", f"{ratios['iql 4 learners / 1']:.2f}", ""],
        [
            "a million transitions from gzipped HDF5 to the device, s",
            f"{medians['reading, s']:.1f}",
            "10",
        ],
        ["peak memory of that, over the data's size", f"{ratios['reading, peak / data']:.1f}", "3"],
    ]
    return [*lines, "", *table(["", "ours", "aim, at most"], more)]


def jax_corl() -> list[str]:
    """Updates per second beside JAX-CORL's."""
    return table(
        ["updates/s", "ours", "JAX-CORL", "ratio", "aim, at least"],
        ratio_rows("jax_corl", JAX_CORL),
    )


def generative() -> list[str]:
    """Updates per second beside the authors' code, and the time of an action."""
    file = benchmark("generative")
    medians, ratios = file["medians"], file["ratios"]
    rows = ratio_rows("generative", GENERATIVE)
    for row, (_, ours, _, _) in zip(rows, GENERATIVE, strict=True):
        agent = ours.removesuffix(" ours updates/s")
        half = medians.get(f"{agent} bfloat16 updates/s")
        row += [f"{ratios[f'{agent} ours / bound']:.0%}", number(half) if half else ""]
        row += [f"{medians[f'{agent} compiling, s']:.1f}"]
    header = [
        "updates/s",
        "ours",
        "authors'",
        "ratio",
        "aim, at least",
        "share of the bound",
        "ours in bfloat16",
    ]
    lines = [*table([*header, "compiling, cold, s"], rows), ""]
    rows = [
        [
            label,
            f"{medians[f'acting, {key}, ms']:.2f}",
            f"{1000 / medians[f'acting, {key}, ms']:,.0f}",
        ]
        for label, key in ACTING
    ]
    return lines + table(["one action, there and back", "ms", "decisions/s"], rows)


def off_policy() -> list[str]:
    """Steps per second of recent off-policy agents beside sbx-rl."""
    header = ["steps/s", "ours", "sbx-rl", "ratio", "aim, at least"]
    rows = ratio_rows("online-off-policy", OFF_POLICY) + ratio_rows("online-crossq", CROSSQ)
    return table(header, rows)


def authors() -> list[str]:
    """Seconds of one update beside the authors' code, and the arithmetic in ours."""
    rows = []
    for key, name in AUTHORS.items():
        file = benchmark(f"update-{key}")
        seconds = file["seconds of an update"]
        row = [f"{seconds[side]:.3f}" for side in ("ours", "theirs")]
        row += [ratio(file["ratio"], 1.2), f"{file['GFLOP of an update']:.1f}"]
        row += [f"{file[f'GFLOP/s of {what}']:.0f}" for what in ("an update", "a product")]
        rows.append([name, *row])
    header = ["one update, s", "ours", "authors'", "ratio (aim 1.2)", "GFLOP"]
    return table([*header, "GFLOP/s, ours", "GFLOP/s, one product"], rows)


def products() -> list[str]:
    """The share of products in an update's time, and how fast they are."""
    rows = []
    for agent, file in benchmark("products")["agents"].items():
        share = f"{100 * file['share_in_products']:.0f} %"
        rates = [f"{x:.0f}" for x in product_rates(file)]
        rows.append([PRODUCTS[agent], f"{file['seconds']:.3f}", share, *rates])
    header = ["one update", "s", "of it products", "GFLOP/s in them", "GFLOP/s, one product alone"]
    return table(header, rows)


OF_PRODUCTS = ("of an update products", "their rate, of one product's")


def with_products(*names: str) -> list[str]:
    """Updates of groups of agents beside their authors', and what part of them are products; of an
    agent in several groups the last measurement counts.
    """
    rows = {}
    for name in names:
        ratios, figures = benchmark(name)["ratios"], benchmark(f"products-{name}")["agents"]
        for agent, of_agent in figures.items():
            ours, theirs = (f"{agent} {side} updates/s" for side in ("ours", "authors'"))
            ((*row, _),) = ratio_rows(name, ((agent.upper(), ours, theirs, 1.2),))
            bound = ratios[f"{agent} ours / bound"]
            rows[agent] = [*row, f"{bound:.0%}", *of_products(of_agent)]
    header = ["updates/s", "ours", "authors'", "ratio (aim 1.2)", "share of the bound"]
    return table([*header, *OF_PRODUCTS], list(rows.values()))


def updates_alone() -> list[str]:
    """Seconds of one update of generative policies beside the authors' code, on the same batch."""
    qc, products = benchmark("update-qc"), benchmark("products-alone")["agents"]
    measured = (  # with the aim, and the name in products
        ("QC, 32 candidates, 4 x 512", qc["QC, 4 x 512"], 1.2, "qc"),
        ("QC, 32 candidates, 3 x 256", qc["QC, 3 x 256"], 1.2, None),
        ("QC-FQL, 4 x 512", qc["QC-FQL, 4 x 512"], 1.2, "qc-fql"),
        ("QC-FQL, 3 x 256", qc["QC-FQL, 3 x 256"], 1.2, None),
        ("IDQL, three blocks of 256", benchmark("update-idql"), 1.2, None),
        ("ReinFlow, 3 x 512", benchmark("update-reinflow"), 1.5, "reinflow"),
        ("DPPO, with the rollout, 3 x 512", benchmark("update-dppo"), 1.5, "dppo"),
    )
    rows = []
    for label, file, aim, name in measured:
        seconds = file["seconds of an update"]
        row = [label, *(f"{seconds[x]:.3f}" for x in ("ours", "theirs")), f"{aim}"]
        parts = of_products(products[name]) if name else ["", ""]
        rows.append([*row, ratio(file["ratio"], aim), *parts])
    return table(["one update, s", "ours", "authors'", "aim", "ratio", *OF_PRODUCTS], rows)


def of_products(figures: Mapping[str, float]) -> list[str]:
    """The share of products in an update, and of one product's rate."""
    inside, alone = product_rates(figures)
    return [f"{figures['share_in_products']:.0%}", f"{inside / alone:.0%}"]


def product_rates(figures: Mapping[str, float]) -> list[float]:
    """GFLOP a second in an update's products, and in one product alone."""
    return [figures[f"gflop_per_second_{part}"] for part in ("in_products", "of_one_product")]


def actions() -> list[str]:
    """The time of an action: the loaded policy, exported ones, and Stable-Baselines3's."""
    medians = benchmark("exported")["medians"]
    names = ("rljax.load", "policy.py", "policy.onnx", "predict")
    rows = [
        [width, *(number(medians[f"{width} {name}, us"]) for name in names)]
        for width in ("2x64", "2x256")
    ]
    header = ["microseconds", "`rljax.load`", "NumPy file", "ONNX", "SB3's `predict`"]
    return table(header, rows)


def torsos() -> list[str]:
    """The time of an update for each number of thinking steps."""
    file = benchmark("torsos")
    steps = (1, 2, 3, 5, 8, 12, 16)
    milliseconds = [f"{file['medians'][f'milliseconds, iru-{t}']:.1f}" for t in steps]
    shares = [f"{file['ratios'][f'iru-{t} of the MLP']:.2f}" for t in steps]
    mlp = f"{file['medians']['milliseconds, mlp']:.1f}"
    rows = [["milliseconds", *milliseconds, mlp], ["of the MLP's", *shares, ""]]
    return table(["T", *map(str, steps), "MLP"], rows)


def grids() -> list[str]:
    """Steps per second of our own environments."""
    medians = benchmark("grids")["medians"]
    rows = [
        [name, f"{count:,}", f"{medians[f'rljax/{name} steps/s'] / 1e6:.1f}M", aim]
        for name, (count, aim) in GRIDS.items()
    ]
    return table(["environment", "side by side", "steps/s", "aim"], rows)


def sweeps() -> list[str]:
    """Whole commands, one program beside many."""
    rows = []
    for label, name, ours, theirs, aim in SWEEPS:
        medians = benchmark(name)["medians"]
        cells = [
            f"{medians[ours]:.1f}",
            f"{medians[theirs]:.1f}",
            ratio(medians[theirs] / medians[ours], aim),
        ]
        rows.append([label, *cells, goal(aim)])
    return table(["seconds", "one program", "one by one", "ratio", "aim, at least"], rows)


def accelerator() -> list[str]:
    """One learner and ten in one program on an accelerator;
    then with XLA's loops as graphs of the device.
    """
    plain, graphs = benchmark("accelerator"), benchmark("accelerator-graphs")
    rows = []
    for label, name, unit in ACCELERATOR:
        one, ten = (plain[f"{name} x {learners}"][unit] for learners in (1, 10))
        as_graphs = [graphs.get(f"{name} x {learners}") for learners in (1, 10)]
        shown = ["-" if figures is None else number(figures[unit]) for figures in as_graphs]
        rows.append([label, number(one), number(ten), f"{ten / one:.1f}", *shown])
    header = ["a second, all learners together", "1 learner", "10 learners", "ratio"]
    return table([*header, "1, loops as graphs", "10, loops as graphs"], rows)


def overhead() -> list[str]:
    """One learner beside a loop by hand."""
    file = benchmark("overhead")
    ours, hand = (file["samples"][f"PPO, one learner, {name}"] for name in ("steps/s", "by_hand"))
    each = [x / y for x, y in zip(ours, hand, strict=True)]
    medians = [
        f"{file['medians'][f'PPO, one learner, {name}']:,.0f}" for name in ("steps/s", "by_hand")
    ]
    cells = [*medians, f"{np.median(each):.3f} ({min(each):.3f} to {max(each):.3f})", "0.97"]
    return table(
        ["steps/s", "ours", "loop by hand", "ratio, of each process", "aim"],
        [["one learner of PPO", *cells]],
    )


def cores() -> list[str]:
    """Learners with cores of their own, beside such that share one device."""
    file = benchmark("cores")
    rows = []
    for label, key in CORES:
        sharing, apart = (file["medians"][f"{key}, {how}, steps/s"] for how in ("sharing", "cores"))
        rows.append([label, number(sharing), number(apart), f"{apart / sharing:.2f}"])
    return table(["learners", "sharing, steps/s", "cores of their own, steps/s", "ratio"], rows)


def rewards(folder: str, names: Mapping[str, str]) -> list[str]:
    """Returns by the factor on rewards, over seeds; of one seed it is the seed's."""
    scores = json.loads(
        (RESULTS / "studies" / "reward_scales" / folder / "scores.json").read_text()
    )["scores"]
    rows = []
    for factor in scores["sac"]:
        cells = [f"{float(factor):g}"]
        for agent in names:
            seeds = scores[agent][factor]["seeds"]
            cells.append(over_seeds(seeds) if len(set(seeds)) > 1 else f"{seeds[0]:,.0f}")
        rows.append(cells)
    return table(["factor", *names.values()], rows)


def frequencies(task: str) -> list[str]:
    """Returns by the steps between two decisions, and frequency-averaged scores, over seeds."""
    agents = json.loads(
        (RESULTS / "studies" / "decision_frequencies" / f"{task}.json").read_text()
    )["agents"]
    names = {"sac": "SAC", "td3": "TD3", "ppo": "PPO", "sequence_rl": "Sequence RL, J ="}
    names["sac_held"] = "SAC, trained with frame skip"
    rows = []
    for key, entry in agents.items():
        agent, _, length = key.partition(" ")
        means = [f"{np.mean(seeds):,.0f}" for seeds in entry["returns"].values()]
        scores = over_seeds(entry["scores"], 3)
        rows.append([f"{names[agent]} {length}".strip(), f"{entry['steps']:,}", *means, scores])
    lengths = next(iter(agents.values()))["returns"]
    return table(["a decision in every", "steps", *lengths, "score"], rows)


def campaign(name: str) -> list[str]:
    """Counts of a campaign by kind of case, and their sums."""
    kinds = json.loads((RESULTS / "checks" / "faults" / f"{name}.json").read_text())["kinds"]
    columns = list(next(iter(kinds.values())))
    rows = [[kind, *(str(counts[column]) for column in columns)] for kind, counts in kinds.items()]
    sums = [str(sum(counts[column] for counts in kinds.values())) for column in columns]
    return table(["kind", *columns], [*rows, ["together", *sums]])


def updates() -> list[str]:
    """How far our updates are from other people's, from the same parameters on the same batches."""
    rows = []
    file = json.loads((RESULTS / "checks" / "references" / "updates.json").read_text())
    for name, comparison in file["agents"].items():
        off = [
            max(loss[span] for loss in comparison["losses"].values())
            for span in ("first 10", "all")
        ]
        cells = [
            f"{comparison['updates']}",
            *(f"{x:.0e}" for x in off),
            f"{comparison['parameters']:.2%}",
        ]
        rows.append([AGENTS[name], *cells])
    header = [
        "agent",
        "updates",
        "losses, first 10 updates",
        "losses, all updates",
        "parameters at the end",
    ]
    return table(header, rows)


def early() -> list[str]:
    """BC after 750 updates, ours and CORL's, on seeds that the other table does not have."""
    file = json.loads((RESULTS / "checks" / "references" / "bc_early.json").read_text())
    header = ["code", "seeds", "mean return", "episodes below 1,000", "learners with such episodes"]
    rows = []
    for name, side in {"ours": "ours", "CORL": "theirs"}.items():
        returns, low = file["returns"][side], file["below_1000"][side]
        mean = f"{np.mean(returns):,.0f} +- {np.std(returns, ddof=1):,.0f}"
        rows.append([name, f"{len(returns)}", mean, f"{sum(low)} of {len(low) * file['episodes']}"])
        rows[-1].append(f"{sum(x > 0 for x in low)}")
    value, least, most = file["difference"]
    return [
        *table(header, rows),
        "",
        f"The difference is {value:+,.0f} [{least:,.0f}, {most:,.0f}].",
    ]


def ways(name: str) -> list[str]:
    """The ways from a data set into its environment, from their curves."""
    file = RESULTS / "studies" / "offline_to_online" / f"{name}.json"
    return offline_to_online.table(json.loads(file.read_text())).rstrip("\n").split("\n")


def revisions() -> list[str]:
    """The files whose numbers are of a working tree with changes that no revision holds."""
    files: dict[tuple[str, str], list[str]] = {}
    for path in sorted(RESULTS.rglob("*.json")):
        for revision in sorted(set(UNCOMMITTED.findall(path.read_text()))):
            folder = str(path.parent.relative_to(RESULTS))
            files.setdefault((folder, revision), []).append(path.stem)
    rows = [[folder, ", ".join(names), revision] for (folder, revision), names in files.items()]
    return table(["folder", "files", "changed since"], rows)


def study(path: str) -> list[str]:
    """What a study wrote beside its scores, without its heading."""
    lines = (RESULTS / f"{path}.md").read_text().rstrip("\n").split("\n")
    return lines[2:] if lines[0].startswith("#") else lines


def tables() -> dict[tuple[str, str], str]:
    """All tables in Markdown, by page and name."""
    names = {"sac": "SAC", "dsact": "DSAC-T"}
    made = {
        ("speed", "amd"): online("online-amd"),
        ("speed", "intel"): online("online-intel"),
        ("speed", "dqn"): dqn(),
        ("speed", "atari"): atari(),
        ("speed", "pqn"): pqn(),
        ("speed", "streams"): streams(),
        ("speed", "offline"): offline(),
        ("speed", "jax_corl"): jax_corl(),
        ("speed", "generative"): generative(),
        ("speed", "off_policy"): off_policy(),
        ("speed", "authors"): authors(),
        ("speed", "products"): products(),
        ("speed", "goals"): with_products("goals", "goals-qrl"),
        ("speed", "chunks"): with_products("chunks"),
        ("speed", "updates_alone"): updates_alone(),
        ("speed", "actions"): actions(),
        ("speed", "torsos"): torsos(),
        ("speed", "grids"): grids(),
        ("speed", "accelerator"): accelerator(),
        ("speed/sweeps", "sweeps"): sweeps(),
        ("speed/sweeps", "overhead"): overhead(),
        ("speed/sweeps", "cores"): cores(),
        ("studies/reward_scales", "pendulum"): rewards(
            "pendulum", names | {"dsac-v1": "first DSAC"}
        ),
        ("studies/reward_scales", "inverted_pendulum"): rewards(
            "inverted_pendulum",
            {
                "sac": "SAC, its own networks",
                "sac-deep": "SAC, DSAC-T's networks",
                "dsact": "DSAC-T",
            },
        ),
        ("studies/reward_scales", "inverted_double_pendulum"): rewards(
            "inverted_double_pendulum", names
        ),
        **{
            ("studies/decision_frequencies", task): frequencies(task)
            for task in ("pendulum", "inverted_pendulum")
        },
        ("studies/reward_scales", "heads"): rewards("heads", HEADS),
        **{
            ("studies/off_policy", task): study(f"studies/off_policy/{task}")
            for task in ("double_pendulum", "hopper")
        },
        ("studies/corruptions", "halfcheetah"): study("studies/corruptions/halfcheetah"),
        ("studies/weights", "halfcheetah"): study("studies/weights/halfcheetah"),
        ("studies/offline_to_online", "halfcheetah"): ways("halfcheetah"),
        ("studies/offline_to_online", "small"): ways("halfcheetah-small"),
        ("studies/offline_to_online", "presets"): ways("halfcheetah-presets"),
        ("studies/combination_lock", "locks"): study("studies/combination_lock/locks"),
        ("studies/combination_lock", "locks_10"): study("studies/combination_lock/locks_10"),
        ("studies/combination_lock", "locks_after"): study("studies/combination_lock/locks_after"),
        ("studies/goal_depth", "goal_depth"): study("studies/goal_depth/goal_depth"),
        ("studies/goals", "mazes"): study("studies/goals/mazes"),
        ("studies/chunks", "chunks"): study("studies/chunks/chunks"),
        ("studies/cloned_flow", "halfcheetah"): study("studies/cloned_flow/halfcheetah"),
        ("studies/surrogates", "surrogates"): study("studies/surrogates/surrogates"),
        ("studies/surrogates", "short"): study("studies/surrogates/short"),
        **{
            ("studies/simulators", pair): study(f"studies/simulators/{pair}")
            for pair in ("reppo", "reppo_brax", "fasttd3")
        },
        ("studies/stitching", "maze"): study("studies/stitching/maze"),
        ("studies/in_context", "bandits"): study("studies/in_context/bandits"),
        ("studies/in_context", "dark_room"): study("studies/in_context/dark_room"),
        ("studies/in_context", "forms"): study("studies/in_context/forms"),
        ("studies/defaults", "reach"): study("studies/defaults/reach"),
        ("studies/memory", "chain"): study("studies/memory/chain"),
        ("studies/memory", "hidden"): study("studies/memory/hidden_velocities"),
        ("studies/constraints", "limits"): study("studies/constraints/limits"),
        ("checks/faults", "kills"): campaign("kills"),
        ("checks/faults", "damaged_files"): campaign("damaged_files"),
        ("checks/faults", "hostile_files"): campaign("hostile_files"),
        ("checks/faults", "hostile_environments"): campaign("hostile_environments"),
        ("checks/faults", "random_commands"): campaign("random_commands"),
        ("checks/references", "returns"): study("checks/references/table"),
        ("checks/references", "hopper"): study("checks/references/hopper/table"),
        ("revisions", "revisions"): revisions(),
        ("checks/references", "updates"): updates(),
        ("checks/references", "early"): early(),
        **{("studies/compute", name): study(f"studies/compute/{name}") for name in COMPUTE},
    }
    written = {key: "\n".join(lines) for key, lines in made.items()}
    return (
        online_runs.tables(online_runs.collected_runs())
        | offline_runs.tables()
        | terminal_values.tables()
        | written
    )


def main() -> None:
    """Write all tables."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    for (page, name), lines in tables().items():
        show(page, name, lines)


if __name__ == "__main__":
    main()
