"""Streaming agents beside their authors' files, each of which has a network of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.checks.authors import readers
from scripts.checks.authors.shared import Rule, Source, Tasks

STREAM: dict[str, Rule] = {
    "learning_rate": "lr",
    "discount": "gamma",
    "trace_decay": "lamda",
    "critic_kappa": "kappa_value",
    "hidden": "hidden",
}
STREAM_Q: dict[str, Rule] = {
    **STREAM,
    "epsilon_start": "epsilon_start",
    "epsilon_end": "epsilon_target",
    "epsilon_steps": "exploration_fraction",
    "convolutions": "convolutions",
}
STREAM_AC: dict[str, Rule] = {
    **STREAM,
    "actor_kappa": "kappa_policy",
    "entropy_cost": "entropy_coeff",
    "convolutions": "convolutions",
}


def stream_tasks(learner: str, files: Mapping[str, str]) -> Callable[[Path], Tasks]:
    """The files of a method, by our name of a task; each has its own network and options."""

    def read(checkout: Path) -> Tasks:
        tasks: Tasks = {}
        for task, file in files.items():
            path = checkout / f"{file}.py"
            code = readers.parameters(path, f"{learner}.__init__")
            convolutions = readers.convolutions(path)
            if learner == "StreamAC":  # those of the actor, then those of the critic
                convolutions = convolutions[: len(convolutions) // 2]
            depth = 1 if convolutions else 2
            tasks[task] = {
                **code,
                **readers.arguments(path),
                "hidden": (code["hidden_size"],) * depth,
                "convolutions": convolutions,
            }
        return tasks

    return read


STREAM_FILES = {
    "CartPole-v1": "{}",
    "gymnax/Breakout-MinAtar": "{}_minatar",
    "atari/Breakout": "{}_atari",
}


SOURCES = (
    Source(
        "stream_ac",
        "streaming-drl",
        "stream_ac_*.py",
        stream_tasks(
            "StreamAC",
            {
                "HalfCheetah-v5": "stream_ac_continuous",
                "CartPole-v1": "stream_ac_discrete",
                "Acrobot-v1": "stream_ac_discrete",
                "gymnax/Breakout-MinAtar": "stream_ac_discrete_minatar",
                "atari/Breakout": "stream_ac_discrete_atari",
            },
        ),
        STREAM_AC,
    ),
    *(
        Source(
            f"stream_{name}",
            "streaming-drl",
            f"stream_{name}*.py",
            stream_tasks(
                learner,
                {task: file.format(f"stream_{name}") for task, file in STREAM_FILES.items()},
            ),
            STREAM_Q,
        )
        for name, learner in (("q", "StreamQ"), ("sarsa", "StreamSARSA"))
    ),
    Source(
        "stream_td",
        "streaming-drl",
        "stream_td.py",
        stream_tasks("StreamTD", {"defaults": "stream_td"}),
        STREAM,
    ),
)
