"""rljax env check: what an environment does wrong, before a training."""

from __future__ import annotations

import dataclasses

import tyro

from rljax.cli import parsing


@dataclasses.dataclass
class EnvCheck:
    """Play random actions in an environment, and say what it does wrong: spaces, numbers that are
    not finite, episodes' ends and time limits, seeds, masks, scales, saving, speed.
    """

    env: tyro.conf.Positional[str]  # such as Hopper-v5, ./mine.py:Room, my_module:Room-v0
    # FILE:CLASS of a wrapper of Gymnasium around it; repeated, the first is innermost
    wrap: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    frame_stack: int = 1  # newest observations at once
    steps: int = 2_000  # of random actions
    seed: int = 0  # of the environment and the actions


def main(arguments: list[str]) -> None:
    """rljax env COMMAND"""
    if arguments[:1] in (["-h"], ["--help"]):
        print("rljax env check ENV plays random actions, and says what an environment does wrong.")
        return
    if arguments[:1] != ["check"]:
        raise ValueError("give the command: rljax env check ENV")
    options = parsing.parse(EnvCheck, arguments[1:], "env check")
    from rljax import envs
    from rljax.runs.interface.environment_check import check_env
    from rljax.trust import show

    name = envs.with_wrappers(options.env, options.wrap, options.frame_stack)
    report = check_env(name, options.steps, options.seed)
    show(str(report))
    if any(finding.severity == "error" for finding in report.findings):
        raise SystemExit(1)
