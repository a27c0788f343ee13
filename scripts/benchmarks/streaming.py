"""Speed of streaming agents: of one, of many at once, of a Python loop,
and of the authors' PyTorch code.

  git clone https://github.com/mohmdelsayed/streaming-drl peer/streaming-drl
  python scripts/benchmarks/streaming.py --peer peer/bin/python --code peer/streaming-drl \\
      --output results/speed/measurements/streaming.json

The peer's Python has torch, gymnasium[mujoco] and stable-baselines3. Measurements alternate, each
in a separate process. Medians are reported. The Python loop is the same agent on the same task with
Gymnasium's environment, with one compiled call for an action and one for an update: the simplest
code. On Atari (pip install 'rljax-suite[atari]') our agent plays, and the authors' agent receives
noise, without a game.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from scripts.benchmarks.measuring import (
    add_sample,
    conclude,
    measure,
    options_of,
    prepared,
    timed,
    use_code,
)

STREAMS = 16


def ours(agent: str, environment: str, seeds: int, steps: int) -> dict[str, Any]:
    """Steps per second of all streams of a run's training loop,
    and the bytes of one stream's state.
    """
    from rljax.learning import registry

    settings = vars(registry.preset(agent, registry.load_agent(agent), environment))
    with prepared(agent, seeds, 3 * steps, settings, environment) as training:
        timed(training.driver, max(steps // 4, 500))
        seconds = timed(training.driver, steps)
        size = training.needed_bytes
    return {"steps_per_second": seeds * steps / seconds, "bytes": size / seeds}


def python_loop(steps: int) -> dict[str, Any]:
    """Steps per second of stream Q on CartPole, stepped from Python."""
    import gymnasium
    import jax
    import numpy as np

    from rljax.agent import EnvSpec, Transition
    from rljax.agents import stream_q
    from rljax.learning import agent_state

    config = stream_q.Config()
    spec = EnvSpec("CartPole-v1", (5,), 2, discrete=True, max_episode_steps=500)
    environment = gymnasium.make("CartPole-v1")
    inputs = stream_q.experience(config).inputs
    state = agent_state.create(stream_q, jax.random.key(0), spec, config, inputs)
    act = jax.jit(
        lambda state, observation, key: agent_state.act(
            stream_q, state, observation, key, config, explore=True
        )[:2]
    )
    update = jax.jit(
        lambda state, batch, key, step: agent_state.update(
            stream_q, state, batch, key, step, config
        )
    )
    perceive = jax.jit(
        lambda state, observation, first: agent_state.perceive(
            stream_q, state, observation, first, config
        )
    )
    key = jax.random.key(1)

    def begin(state: Any) -> tuple[Any, np.ndarray]:
        observation = np.append(environment.reset()[0], -0.5).astype(np.float32)
        return perceive(state, observation[None], np.array([True])), observation

    state, observation = begin(state)
    length, began = 0, 0.0
    for step in range(500 + steps):
        if step == 500:
            began = time.perf_counter()
        action, extras = act(state, observation, jax.random.fold_in(key, step))
        following, reward, terminated, truncated, _ = environment.step(int(action))
        length += 1
        following = np.append(following, length / 500 - 0.5).astype(np.float32)
        ends: Any = (np.bool_(terminated), np.bool_(truncated))
        transition = Transition(observation, action, np.float32(reward), *ends, following, extras)  # type: ignore[arg-type]
        state, _ = update(state, transition, key, step)
        observation = following
        if terminated or truncated:
            length = 0
            state, observation = begin(state)
    jax.block_until_ready(state)
    return {"steps_per_second": steps / (time.perf_counter() - began)}


def peer(code: str, repetitions: int) -> dict[str, Any]:
    """Steps per second of the authors' stream AC on HalfCheetah,
    from the time of 900 further steps.

    No episode ends in that time. At an end, their code reads values that Gymnasium has moved since
    1.0.
    """
    use_code(code)
    import stream_ac_continuous  # pyright: ignore[reportMissingImports]

    def seconds(total: int) -> float:
        began = time.perf_counter()
        stream_ac_continuous.main(
            "HalfCheetah-v5", 0, 1.0, 0.99, 0.8, total, 0.01, 3.0, 2.0, False, False
        )
        return time.perf_counter() - began

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the code writes its returns to the current folder
        seconds(50)
        taken = [seconds(990) - seconds(90) for _ in range(repetitions)]
    return {"steps_per_second": 900 / statistics.median(taken)}


def peer_atari(code: str, steps: int) -> dict[str, Any]:
    """Steps per second of the authors' stream Q for Atari alone:
    on pictures of noise, without a game.
    """
    use_code(code)
    import numpy as np
    from stream_q_atari import StreamQ  # pyright: ignore[reportMissingImports]

    agent = StreamQ(n_actions=4, exploration_fraction=0.05, total_steps=10_000_000)
    pictures = np.random.default_rng(0).normal(size=(16, 4, 84, 84)).astype(np.float32)

    def learn(number: int) -> float:
        began = time.perf_counter()
        for i in range(number):
            before, after = pictures[i % 16], pictures[(i + 1) % 16]
            action, explored = agent.sample_action(before)
            agent.update_params(before, int(action), 0.1, after, False, explored)
        return time.perf_counter() - began

    learn(50)
    return {"steps_per_second": steps / learn(steps)}


WORKERS: dict[str, Callable[..., dict[str, Any]]] = {
    "ours": ours,
    "python_loop": python_loop,
    "peer": peer,
    "peer_atari": peer_atari,
}


def main() -> None:
    """Measure everything, print a table and write the numbers to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peer",
        help="Python of an environment that has torch, gymnasium[mujoco], stable-baselines3",
    )
    parser.add_argument("--code", help="folder of the authors' code")
    parser.add_argument("--steps", type=int, default=5_000)
    options = options_of(parser, WORKERS)

    samples: dict[str, list[float]] = {}

    def note(name: str, worker: str, *arguments: Any, python: str = sys.executable) -> None:
        for what, value in measure(python, worker, *arguments, script=__file__).items():
            full = f"{name} {what.replace('steps_per_second', 'steps/s')}"
            add_sample(samples, full, value)

    steps, inside = options.steps, 20 * options.steps
    for _ in range(options.rounds):
        note("stream AC HalfCheetah ours", "ours", "stream_ac", "HalfCheetah-v5", 1, 4 * steps)
        if options.peer:
            note("stream AC HalfCheetah authors", "peer", options.code, 3, python=options.peer)
        note(
            "stream AC HalfCheetah ours, 5 streams", "ours", "stream_ac", "HalfCheetah-v5", 5, steps
        )
        note("stream Q CartPole ours", "ours", "stream_q", "gymnax/CartPole-v1", 1, inside)
        note("stream Q CartPole, Python loop", "python_loop", steps)
        note(
            f"stream Q CartPole ours, {STREAMS} streams",
            "ours",
            "stream_q",
            "gymnax/CartPole-v1",
            STREAMS,
            inside,
        )
        note("stream Q Breakout ours", "ours", "stream_q", "atari/Breakout", 1, steps)
        if options.peer:
            note(
                "stream Q Breakout authors, no game",
                "peer_atari",
                options.code,
                steps // 5,
                python=options.peer,
            )
        note("stream AC Pendulum ours", "ours", "stream_ac", "rljax/Pendulum", 1, inside)
        note(
            f"stream AC Pendulum ours, {STREAMS} streams",
            "ours",
            "stream_ac",
            "rljax/Pendulum",
            STREAMS,
            inside // 4,
        )

    medians = {name: statistics.median(values) for name, values in samples.items()}
    ratios = {}
    for name, one, other in (
        (
            "stream AC HalfCheetah, ours / authors",
            "stream AC HalfCheetah ours",
            "stream AC HalfCheetah authors",
        ),
        (
            "stream Q Breakout, ours / authors",
            "stream Q Breakout ours",
            "stream Q Breakout authors, no game",
        ),
        (
            "stream Q CartPole, ours / Python loop",
            "stream Q CartPole ours",
            "stream Q CartPole, Python loop",
        ),
        (
            f"stream Q CartPole, {STREAMS} streams / 1",
            f"stream Q CartPole ours, {STREAMS} streams",
            "stream Q CartPole ours",
        ),
        (
            f"stream AC Pendulum, {STREAMS} streams / 1",
            f"stream AC Pendulum ours, {STREAMS} streams",
            "stream AC Pendulum ours",
        ),
    ):
        if f"{other} steps/s" in medians:
            ratios[name] = medians[f"{one} steps/s"] / medians[f"{other} steps/s"]
    conclude(medians, ratios, samples, options.output)


if __name__ == "__main__":
    main()
