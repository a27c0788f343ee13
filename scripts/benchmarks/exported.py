"""Time of one action: `rljax.load`, exported files, and Stable-Baselines3's `predict`.

  peer/bin/pip install torch stable-baselines3
  python scripts/benchmarks/exported.py --peer peer/bin/python \\
      --output results/speed/measurements/exported.json

Ours needs onnx and onnxruntime: pip install 'rljax-suite[export]'. All are SAC's actors of two
hidden layers, untrained, from one observation of HalfCheetah's size to one action within its
bounds, without exploration, on one CPU with one thread each. Processes alternate; each number is
the median of its calls, and medians of rounds are reported.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from scripts.benchmarks.measuring import add_sample, conclude, measure, options_of

OBSERVATION, ACTION = 17, 6
WIDTHS = (64, 256)


def ours(width: int, calls: int) -> dict[str, float]:
    """Microseconds of an action of the loaded policy, and of each exported one."""
    import jax
    import numpy as np
    import onnxruntime
    from gymnasium import spaces

    from rljax.agents import sac
    from rljax.envs.host.spaces import Spaces
    from rljax.learning import agent_state, configuration
    from rljax.learning.settings import Settings
    from rljax.runs.export import checks, exporting
    from rljax.runs.export.program import Program
    from rljax.runs.policies.policy import Policies, Policy

    seen = spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float64)
    both = Spaces(seen, spaces.Box(-1.0, 1.0, (ACTION,), np.float32), "HalfCheetah-v5")
    config = configuration.stack(sac.Config(hidden=(width, width)), 1)
    inputs, spec = sac.experience(config).inputs, both.spec(1000)

    def create(key: Any, config: Any) -> Any:
        return agent_state.create(sac, key, spec, config, inputs)

    state = jax.jit(jax.vmap(create))(jax.random.split(jax.random.key(0), 1), config)
    described = json.loads(json.dumps(both.described()))
    settings = Settings("sac", "HalfCheetah-v5")
    policies = Policies(settings, spec, sac, config, state, 0, None, described)
    program, file = Program(policies, 0), {}
    exec(exporting.made(program, "numpy")[0], file)
    model, run = exporting.made(program, "onnx")
    checks.SampledCheck(policies, program).largest_difference(run)
    threads = onnxruntime.SessionOptions()
    threads.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, threads, providers=["CPUExecutionProvider"])
    observation, policy = np.zeros(OBSERVATION), Policy(policies, 0)
    return {
        "rljax.load": timed(lambda: policy(observation), calls),
        "policy.py": timed(lambda: file["act"](observation), calls),
        "policy.onnx": timed(
            lambda: np.asarray(session.run(None, {"observation": observation[None]})[0])[0], calls
        ),
    }


def peer(width: int, calls: int) -> dict[str, float]:
    """Microseconds of an action of Stable-Baselines3."""
    import gymnasium
    import numpy as np
    import torch  # pyright: ignore[reportMissingImports]
    from gymnasium import spaces
    from stable_baselines3 import SAC  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)

    class Sized(gymnasium.Env):
        """An environment of HalfCheetah's sizes."""

        observation_space = spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float64)
        action_space = spaces.Box(-1.0, 1.0, (ACTION,), np.float32)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            """Begin an episode."""
            return np.zeros(OBSERVATION), {}

        def step(self, action: Any) -> Any:
            """Stay."""
            return np.zeros(OBSERVATION), 0.0, False, False, {}

    model = SAC("MlpPolicy", Sized(), policy_kwargs={"net_arch": [width, width]}, device="cpu")
    observation = np.zeros(OBSERVATION)
    return {"predict": timed(lambda: model.predict(observation, deterministic=True)[0], calls)}


def timed(act: Callable[[], Any], calls: int) -> float:
    """The median microseconds of a call, after as many calls to warm up."""
    seconds = []
    for _ in range(2 * calls):
        began = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - began)
    return 1e6 * statistics.median(seconds[calls:])


def main() -> None:
    """Measure in rounds that alternate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--peer", help="Python of an environment with Stable-Baselines3")
    options = options_of(parser, {"ours": ours, "peer": peer})
    samples: dict[str, list[float]] = {}
    workers = [("ours", sys.executable)] + ([("peer", options.peer)] if options.peer else [])
    for _ in range(options.rounds):
        for width in WIDTHS:
            for worker, python in workers:
                figures = measure(python, worker, width, options.calls, script=__file__)
                for name, microseconds in figures.items():
                    add_sample(samples, f"2x{width} {name}, us", microseconds)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    ratios = {}
    for width in WIDTHS if options.peer else ():
        ours_us, peer_us = (medians[f"2x{width} {x}, us"] for x in ("rljax.load", "predict"))
        ratios[f"2x{width} rljax.load / predict"] = ours_us / peer_us
    conclude(medians, ratios, samples, options.output)


if __name__ == "__main__":
    main()
