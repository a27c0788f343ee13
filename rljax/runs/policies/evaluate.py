"""Evaluate the policies of a run in complete episodes without exploration."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljax import datasets, envs
from rljax.agent import EnvSpec, acting, difference
from rljax.envs.environment import EnvironmentFailed
from rljax.learning import action_cost, configuration, evaluation
from rljax.learning.evaluation import Episodes
from rljax.learning.named_code import PARTS
from rljax.runs import arguments, records
from rljax.runs.policies import host_policies
from rljax.runs.policies.loading import load_all
from rljax.runs.policies.policy import Policies
from rljax.runs.statistics import estimators, summaries
from rljax.trust import Folder


def evaluate_run(
    out: str | Path | Folder,
    *,
    episodes: int = 10,
    env: str | None = None,
    best: bool = False,
    seed: int = 0,
    config: Mapping[str, Any] | None = None,
    hold: int | None = None,
) -> dict[str, Any]:
    """Play `episodes` complete episodes with each learner.

    Returns the learners' records, their summary, and the cost of an action, ready for JSON.

    `config` is that of `load_all`. With `hold`, the policy decides once in `hold` steps.

    Raises `ValueError` for an unfit environment, and the errors of `load_all`.
    """
    episodes = configuration.integer(episodes, "episodes")
    seed = configuration.integer(seed, "seed", 2**63)
    if env is not None:
        env = configuration.text("env", env)
    changes: dict[str, Any] = configuration.native(config or {})
    hold = None if hold is None else configuration.integer(hold, "hold")
    for flag, number in ("--episodes", episodes), ("--hold", hold):
        if number is not None and number < 1:
            raise ValueError(f"{flag} is {number}, it must be at least 1.")
    parts = PARTS if env is None else ("agent",)
    folder = arguments.run_folder(out)
    policies = load_all(folder, best=best, config=changes, parts=parts)
    settings, sequence = policies.settings, acting(policies.module, policies.config).sequence
    if hold is not None and sequence in changes:
        flag = configuration.flag(str(sequence))
        raise ValueError(f"--hold sets {flag} for this agent: give one of them.")
    _, used = evaluation.deciding(policies.module, policies.config, hold)
    name, number = env or settings.evaluated_in, len(settings.seeds)
    played = play_episodes(policies, env, episodes, seed, hold)
    scores = None if env else datasets.score(played.returns, policies.reference)
    lines = [
        {
            "step": policies.step,
            "learner": i,
            "seed": settings.seeds[i],
            "returns": played.returns[i].tolist(),
            "lengths": played.lengths[i].tolist(),
            **played.details(i),
            **({} if scores is None else {"scores": scores[i].tolist()}),
        }
        for i in range(number)
    ]
    emitted = evaluation.sequence_length(policies.module, used)
    return {
        "environment": name,
        "steps": _steps_of_best(folder.path, policies.step) if best else None,
        "config": changes,
        "hold": hold or emitted or 1,
        "emits": emitted is not None,
        **action_cost.of_action(policies.module, policies.state, policies.spec, policies.config),
        "episodes": lines,
        "summary": summaries.summarise(lines)["final"],
    }


def play_episodes(
    policies: Policies, env: str | None, episodes: int, seed: int, hold: int | None = None
) -> Episodes:
    """Play `episodes` complete episodes [P, N] with each learner, without exploration.

    `env` is the name of another environment. All learners play the same episodes. With `hold`, the
    policies decide once in `hold` steps. Raises `ValueError` for an environment that does not fit.
    """
    agent, config = evaluation.deciding(policies.module, policies.config, hold)
    settings = policies.settings
    name, number = env or settings.evaluated_in, len(settings.seeds)
    if name == "none":
        raise ValueError("the run has no environment to play in. Name one that fits: --env NAME")
    limits, limit = {}, policies.spec.max_episode_steps
    if settings.data and name == settings.env and limit is not None:
        limits["max_episode_steps"] = limit  # of the data's environment, as in training
    observed = envs.observed(name, policies.experience.observes)
    evaluator = evaluation.make(agent, observed, number, episodes, limits)
    require_fit(policies.spec, evaluator.spec)
    starts = evaluator.starts([seed] * number, episodes)
    with host_policies.plain_failures():
        played = evaluator(policies.state, starts, config)
    close(evaluator)
    return played


def close(environments: Any) -> None:
    """Close environments or an evaluator; errors become warnings."""
    try:
        environments.close()
    except EnvironmentFailed as error:
        warnings.warn(f"{error} The result is not affected.\n{error.trace}", stacklevel=2)


def table(result: Mapping[str, Any]) -> str:
    """An evaluation as text: a line per learner, and one for all."""
    kind = "checkpoint of step" if result["steps"] is None else "best policies until step"
    lines = [f"{result['environment']}, {kind} {result['summary']['step']:,}"]
    changes = "".join(
        f"{configuration.flag(name)} {value}, " for name, value in result["config"].items()
    )
    flops = result["flops_per_action"]
    operations = "" if flops is None else f", {flops:,} FLOPs an action"
    decisions = "a decision in every" if result["emits"] else "each action held for"
    hold = f"{decisions} {result['hold']} steps, " if result["hold"] > 1 else ""
    lines.append(f"  {changes}{hold}{result['parameters']:,} parameters{operations}")
    summary = result["summary"]
    for entry, means in zip(result["episodes"], summary["learners"], strict=True):
        returns, length = np.array(entry["returns"]), np.mean(entry["lengths"])
        step = f", of step {result['steps'][entry['learner']]:,}" if result["steps"] else ""
        cut = f", {entry['cut']} of them cut before their end" if "cut" in entry else ""
        lines.append(
            f"  learner {entry['learner']} (seed {entry['seed']}{step}): "
            f"return {returns.mean():,.1f} +- {returns.std():,.1f} over {len(returns)} episodes, "
            f"length {length:,.0f}{cut}{_details(means)}"
        )
    if len(result["episodes"]) > 1 and summary["mean"] is not None:
        interval = summary["interval"]
        bounds = "" if interval is None else " [{:,.1f}, {:,.1f}]".format(*interval)
        lines.append(
            f"  all learners: mean {summary['mean']:,.1f}, IQM {summary['iqm']:,.1f}{bounds}"
            f"{_details(summary)}"
        )
    return "\n".join(lines)


def _details(means: Mapping[str, Any]) -> str:
    success = "" if means["success"] is None else f", success {means['success']:.1%}"
    score = "" if means["score"] is None else f", score {means['score']:.1f}"
    return success + score + summaries.signals_text(means)


def line_over_holds(results: Sequence[Mapping[str, Any]]) -> str:
    """The mean return over values of `hold`, from a result for each."""
    ordered = sorted(results, key=lambda result: result["hold"])
    holds = [result["hold"] for result in ordered]
    means = [[np.mean(entry["returns"]) for entry in result["episodes"]] for result in ordered]
    each = [estimators.frequency_averaged(returns, holds) for returns in zip(*means, strict=True)]
    spread = f" +- {np.std(each):,.1f} over {len(each)} learners" if len(each) > 1 else ""
    return (
        f"frequency-averaged return over holds of {min(holds)} to {max(holds)} "
        f"steps: {np.mean(each):,.1f}{spread}"
    )


def _steps_of_best(folder: Path, until: int) -> list[int]:
    evaluations = [line for line in records.read(folder, "evaluations") if line["step"] <= until]
    best = summaries.summarise(evaluations)["best"]
    return [] if best is None else [learner["step"] for learner in best["learners"]]


def require_fit(trained: EnvSpec, other: EnvSpec) -> None:
    """Raise `ValueError` where policies of the first spaces cannot play in the other ones."""
    name = difference(trained, other)
    if name is not None:
        raise ValueError(
            f"the policy was trained with {name} = {getattr(trained, name)} on '{trained.name}', "
            f"'{other.name}' has {getattr(other, name)}. Evaluate on an environment of the "
            "same shapes."
        )
