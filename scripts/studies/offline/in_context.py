"""Agents that learn in context, in tasks that they have not seen: regret on bandits of 5 arms, and
returns in dark rooms.

  bandits    cumulative regret over the pulls of a lifetime, beside Thompson sampling, UCB and the
             arm with the largest mean so far, with the settings of DPT's authors, on the same arms
  dark_room  returns of the episodes of a lifetime, for goals that no training has had, beside the
             largest ones
  forms      the same returns of other forms of DPT: algorithm distillation (AD), which imitates
             learners, AD with LHF's weights of their histories, and DPT with T2MIR's experts

All data sets are recorded first. DPT's published size is 100,000 lifetimes, with contexts of 500
transitions on bandits, and some 300,000 updates. In a smaller room a context says more of the goal:

  python scripts/studies/offline/in_context.py --room rljax/DarkRoom-5x5-50 --context 50

AD's contexts must show several episodes: --room rljax/DarkRoom-5x5-10 --context 50.

All seeds are learners of one program. The results are written after each task. Complete runs are
not repeated, and interrupted runs continue.
"""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import rljax
from rljax import datasets, envs
from rljax.envs.tasks.in_context.bandit import NOISE
from rljax.runs import run
from rljax.runs.policies import collect
from rljax.system.hardware import provenance
from scripts.results.shared import over_seeds
from scripts.studies import shared

BANDIT = "rljax/Bandit-5"
PRIOR_MEAN, PRIOR_VARIANCE = 0.5, 1 / 12  # of the arms' means


class Form(NamedTuple):
    """A form of DPT: which actors its data show, and its settings."""

    source: str = "policy"  # see `collect.demonstrated`
    config: Mapping[str, Any] = {}


AD = {"imitates": "data"}
FORMS = {
    "AD": Form("learning", AD),
    "AD, LHF's weights": Form("learning", {**AD, "history_stability": 1.0}),
    "DPT": Form(),
    "DPT, T2MIR's experts": Form(config={"token_experts": 6, "task_experts": 8}),
}


def data_of(env: str, source: str, options: argparse.Namespace) -> Path:
    """The file of a task's data, recorded if it is missing."""
    name = env.rpartition("/")[2]
    path = options.runs / (f"{name}.npz" if source == "policy" else f"{name}-{source}.npz")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        length, number = options.context + 1, options.lifetimes
        rows = length
        if source == "learning":
            length, number = options.history, options.learners
            rows = length * steps_of(env)
        dataset = collect.demonstrated(
            env, steps=number * rows, source=source, length=length, name=str(path)
        )
        datasets.write(dataset, path)
    return path


def steps_of(env: str) -> int:
    """The steps of an episode."""
    steps = envs.make(env).spec.max_episode_steps
    assert steps is not None
    return steps


def trained(
    env: str, played: str, options: argparse.Namespace, form: str = "DPT", **config: Any
) -> Path:
    """The folder of a form's complete run from data of `env`, evaluated in `played`."""
    data = str(data_of(env, FORMS[form].source, options))
    words = re.findall(r"\w+", f"{form}-{env.rpartition('/')[2]}")
    out = options.runs / "-".join([words[0].lower(), *words[1:]])
    config |= FORMS[form].config
    config |= {"context_length": options.context, "learning_rate": options.rate}
    begin = functools.partial(
        run.train,
        "dpt",
        played,
        options.updates,
        data=data,
        seeds=options.seeds,
        config=config,
        out=out,
        eval_every=max(options.updates // 2, 1),
        eval_episodes=10,
        checkpoint_every=max(options.updates // 5, 1),
        quiet=False,
    )
    return shared.trained(out, options.updates, begin, data, config)


def lifetimes(
    out: Path, env: str, learner: int, steps: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Rewards and regrets [steps, tasks] of a learner's policy, and the tasks' first states."""
    policy = rljax.load(out, learner=learner)
    environment = envs.make(envs.with_last_step(env))
    step = jax.jit(environment.step)
    key = jax.random.key(1)
    observation, state = environment.reset(jax.random.split(key, options.tasks))
    first, rewards, regrets = state.environment, [], []
    for time in range(steps):
        action = policy(np.asarray(observation), step=np.full(options.tasks, time))
        keys = jax.random.split(jax.random.fold_in(key, time), options.tasks)
        after, state = step(keys, state, np.asarray(action))
        observation = after.observation
        rewards.append(np.asarray(after.reward))
        regrets.append(np.asarray(after.signals.get("regret", np.zeros(options.tasks))))
    return {"reward": np.stack(rewards), "regret": np.stack(regrets), "first": first}


def thompson(counts: np.ndarray, means: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Arms [N] with the largest draw of the posterior."""
    weight = NOISE**2 / (NOISE**2 + counts * PRIOR_VARIANCE)
    mean = weight * PRIOR_MEAN + (1.0 - weight) * means
    variance = 1.0 / (1.0 / PRIOR_VARIANCE + counts / NOISE**2)
    return generator.normal(mean, np.sqrt(variance)).argmax(axis=1)


def upper_bound(counts: np.ndarray, means: np.ndarray, _: Any) -> np.ndarray:
    """Arms [N] with the largest mean and 1 / sqrt of pulls, after each was pulled once."""
    bound = means + 1.0 / np.sqrt(np.maximum(counts, 1.0))
    return np.where(counts == 0, np.inf, bound).argmax(axis=1)


def empirical(counts: np.ndarray, means: np.ndarray, _: Any) -> np.ndarray:
    """Arms [N] with the largest mean, after each was pulled once."""
    return np.where(counts == 0, np.inf, means).argmax(axis=1)


ALGORITHMS: dict[str, Callable[..., np.ndarray]] = {
    "Thompson sampling": thompson,
    "UCB": upper_bound,
    "largest mean": empirical,
}


def regrets_of(choose: Callable[..., np.ndarray], arms: np.ndarray, steps: int) -> np.ndarray:
    """Regrets [steps, N] of an algorithm on arms with true means [N, A]."""
    generator, rows = np.random.default_rng(0), np.arange(len(arms))
    counts, sums, regrets = np.zeros_like(arms), np.zeros_like(arms), []
    for _ in range(steps):
        arm = choose(counts, sums / np.maximum(counts, 1.0), generator)
        regrets.append(arms.max(axis=1) - arms[rows, arm])
        sums[rows, arm] += generator.normal(arms[rows, arm], NOISE)
        counts[rows, arm] += 1.0
    return np.stack(regrets)


def summary(values: np.ndarray, places: int = 3) -> dict[str, Any]:
    """Of values [steps, tasks] the mean over tasks, and the half width of its 95 % interval."""
    error = 1.96 * values.std(axis=1, ddof=1) / np.sqrt(values.shape[1])
    return {
        "mean": values.mean(axis=1).round(places).tolist(),
        "interval": error.round(places).tolist(),
    }


def bandits(options: argparse.Namespace) -> dict[str, Any]:
    """Cumulative regrets of DPT's seeds and of algorithms."""
    out = trained(BANDIT, BANDIT, options)
    each = [lifetimes(out, BANDIT, i, options.pulls, options) for i in range(options.seeds)]
    arms = np.asarray(each[0]["first"].means, np.float64)
    chance = np.cumsum(np.tile(arms.max(axis=1) - arms.mean(axis=1), (options.pulls, 1)), axis=0)
    others = {
        name: summary(np.cumsum(regrets_of(choose, arms, options.pulls), axis=0))
        for name, choose in ALGORITHMS.items()
    }
    return {
        "dpt": [summary(np.cumsum(x["regret"], axis=0)) for x in each],
        "others": others | {"uniform pulls": summary(chance)},
    }


def returns_of(form: str, options: argparse.Namespace) -> tuple[list[Any], dict[str, Any]]:
    """Returns of the episodes of a form's seeds in a dark room, and the largest ones."""
    played = f"lifetime-{options.episodes}/{options.room}-test"
    length = steps_of(options.room)
    out = trained(options.room, played, options, form, episode_steps=length)
    steps = options.episodes * length
    each = [lifetimes(out, played, i, steps, options) for i in range(options.seeds)]
    goal = np.asarray(each[0]["first"].environment.goal)
    largest = length + 1 - np.maximum(goal.sum(axis=1), 1)
    returns = [x["reward"].reshape(options.episodes, length, -1).sum(axis=1) for x in each]
    best = np.tile(largest, (options.episodes, 1)).astype(float)
    seeds = [summary(x) | {"share": (x / best).mean(axis=1).round(3).tolist()} for x in returns]
    return seeds, summary(best)


def dark_rooms(options: argparse.Namespace) -> dict[str, Any]:
    """Returns of DPT's seeds, and the largest ones."""
    seeds, best = returns_of("DPT", options)
    return {"dpt": seeds, "others": {"shortest ways": best}}


def forms(options: argparse.Namespace) -> dict[str, Any]:
    """Returns of the seeds of each form, and the largest ones."""
    found = {form: returns_of(form, options) for form in options.forms}
    return {
        "forms": {form: seeds for form, (seeds, _) in found.items()},
        "others": {"shortest ways": found[options.forms[0]][1]},
    }


TASKS = {"bandits": bandits, "dark_room": dark_rooms, "forms": forms}
LABELS = {
    "bandits": ("pulls", "cumulative regret"),
    "dark_room": ("episode of a lifetime", "return"),
    "forms": ("episode of a lifetime", "return"),
}


def learnt(study: Mapping[str, Any]) -> Mapping[str, list[Any]]:
    """The seeds of each form."""
    return study.get("forms") or {"DPT": study["dpt"]}


def table(study: Mapping[str, Any]) -> str:
    """The last values as Markdown."""
    measure = LABELS[study["task"]][1]
    lines = [
        f"| policy | {measure} at the end, each seed | 95 % interval over tasks |",
        "|---|---|---|",
    ]
    for form, seeds in learnt(study).items():
        last = [(x["mean"][-1], x["interval"][-1]) for x in seeds]
        widths = ", ".join(f"{error:.2f}" for _, error in last)
        lines.append(f"| {form} | {over_seeds([mean for mean, _ in last], 2)} | +- {widths} |")
    for name, values in study["others"].items():
        mean, error = values["mean"][-1], values["interval"][-1]
        lines.append(f"| {name} | {mean:.2f} | +- {error:.2f} |")
    return "\n".join(lines) + "\n"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw the mean over tasks with its interval: one line for each seed, and for the others."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 3.6), layout="constrained")
    axes = figure.subplots()
    drawn = [
        (f"{form}, each seed", seed) for form, seeds in learnt(study).items() for seed in seeds
    ]
    drawn += study["others"].items()
    names = [name for name, _ in drawn]
    for name, values in drawn:
        mean, error = (np.array(values[x]) for x in ("mean", "interval"))
        colour = f"C{[*dict.fromkeys(names)].index(name)}"
        time = np.arange(1, len(mean) + 1)
        axes.plot(time, mean, color=colour, label=name)
        axes.fill_between(time, mean - error, mean + error, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel=LABELS[study["task"]][0], ylabel=LABELS[study["task"]][1])
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside right upper")
    figure.savefig(path, dpi=130)


def main() -> None:
    """Record, train, play, and write the results as JSON, Markdown and PNG into `--output`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--learners", type=int, default=1_000, help="whose histories AD imitates")
    parser.add_argument("--history", type=int, default=100, help="episodes of a learner")
    parser.add_argument("--lifetimes", type=int, default=10_000, help="of the data")
    parser.add_argument("--context", type=int, default=100, help="transitions")
    parser.add_argument("--rate", type=float, default=1e-3, help="of learning")
    parser.add_argument("--updates", type=int, default=5_000)
    parser.add_argument("--tasks", type=int, default=200, help="that are played")
    parser.add_argument("--pulls", type=int, default=100, help="of a bandit")
    parser.add_argument("--room", default="rljax/DarkRoom-10x10")
    parser.add_argument("--episodes", type=int, default=10, help="in a dark room")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs/in_context"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/in_context"))
    options = parser.parse_args()
    names = ("lifetimes", "context", "rate", "updates", "tasks", "seeds")
    for task in options.parts:
        of_task = (*names, "learners", "history") if task == "forms" else names
        study = {"task": task} | {name: getattr(options, name) for name in of_task} | provenance()
        study |= {} if task == "bandits" else {"room": options.room}
        study |= TASKS[task](options)
        shared.write(study, options.output / task, table, draw)


if __name__ == "__main__":
    main()
