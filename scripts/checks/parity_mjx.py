"""Differences between MJX's and Gymnasium's tasks, after 1,
10 and 100 steps from the same states and actions.

Gymnasium takes random actions. From some of its states, the task inside the program takes the same
actions. The difference of a step is the largest over the observation's entries. The script reports
the median and the largest difference over all starts. Under random actions, Hopper and Walker2d
fall within about 30 steps. Both simulations continue, so most of their 100 steps are on the ground,
with many contacts. The script computes in float32, like training, and in float64, which shows the
effect of rounding alone.

  python scripts/checks/parity_mjx.py --output results/checks/parity_mjx
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from rljax.envs.tasks import mjx

STEPS = 100
SHOWN = (1, 10, 100)


def recorded(task: str, starts: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Gymnasium's states at `starts` times, and the actions, observations,
    rewards and ends of the steps after each.
    """
    generator = np.random.default_rng(seed)
    environment: Any = gymnasium.make(f"{task}-v5").unwrapped
    data = environment.data
    taken = ("action", "observation", "reward", "terminated")
    columns: dict[str, list[Any]] = {name: [] for name in ("qpos", "qvel", "warmstart", *taken)}
    for start in range(starts):
        environment.reset(seed=seed + start)
        low, high = environment.action_space.low, environment.action_space.high
        for _ in range(int(generator.integers(0, 10 if task != "HalfCheetah" else 200))):
            environment.step(generator.uniform(low, high))
        columns["qpos"].append(data.qpos.copy())
        columns["qvel"].append(data.qvel.copy())
        columns["warmstart"].append(data.qacc_warmstart.copy())
        rows = []
        for _ in range(STEPS):
            action = 0.3 * generator.uniform(low, high)
            observation, reward, terminated, _, _ = environment.step(action)
            rows.append((action, observation, reward, terminated))
        for name, values in zip(taken, zip(*rows, strict=True), strict=True):
            columns[name].append(np.array(values))
    return {name: np.stack(values) for name, values in columns.items()}


def replayed(
    task: str, recording: dict[str, np.ndarray], dtype: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Observations [S, T, O], rewards [S, T] and ends [S, T] of the task inside the program."""
    environment: Any = mjx.MJX(f"rljax/{task}")
    qpos, qvel, warmstart, action = (
        jnp.asarray(recording[name], dtype) for name in ("qpos", "qvel", "warmstart", "action")
    )

    def run(qpos: Any, qvel: Any, warmstart: Any, actions: Any) -> Any:
        def body(state: Any, action: Any) -> Any:
            observation, state, reward, terminated, _, _ = environment.step(
                jax.random.key(0), state, action, None
            )
            return state, (observation, reward, terminated)

        return jax.lax.scan(body, mjx.MJXState(qpos.at[0].set(0.0), qvel, warmstart), actions)[1]

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(run))(qpos, qvel, warmstart, action))


def apart(
    recording: dict[str, np.ndarray],
    observation: np.ndarray,
    reward: np.ndarray,
    terminated: np.ndarray,
) -> dict[str, np.ndarray]:
    """Differences [S, T] in observation and reward, and whether the first end [S] is at the same
    step.
    """
    return {
        "observation": np.abs(observation - recording["observation"]).max(axis=-1),
        "reward": np.abs(reward - recording["reward"]),
        "ends": first_end(terminated) == first_end(recording["terminated"]),
    }


def first_end(terminated: np.ndarray) -> np.ndarray:
    """The step [S] of each row's first end; T if there is none."""
    return np.where(terminated.any(axis=1), terminated.argmax(axis=1), terminated.shape[1])


def draw(errors: dict[str, dict[str, dict[str, np.ndarray]]], path: Path) -> None:
    """Draw the differences over steps, one panel per task."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(errors), 3.6), layout="constrained")
    panels = figure.subplots(1, len(errors), squeeze=False)[0]
    for panel, (task, kinds) in zip(panels, errors.items(), strict=True):
        for (kind, values), colour in zip(kinds.items(), ("#D55E00", "#0072B2"), strict=True):
            steps = np.arange(1, STEPS + 1)
            panel.plot(
                steps,
                np.median(values["observation"], axis=0),
                color=colour,
                label=f"{kind}, median",
            )
            panel.plot(
                steps,
                np.max(values["observation"], axis=0),
                color=colour,
                linestyle=":",
                label=f"{kind}, largest",
            )
        panel.set(
            title=f"rljax/{task} against {task}-v5", xlabel="steps", xscale="log", yscale="log"
        )
    panels[0].set_ylabel("largest difference in an observation's entry")
    panels[0].legend(fontsize=8)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Measure, print, draw, and write the numbers to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=list(mjx.TASKS))
    parser.add_argument("--starts", type=int, default=64)
    parser.add_argument("--output", type=Path, default=Path("results/checks/parity_mjx"))
    options = parser.parse_args()
    errors: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    table: dict[str, Any] = {}
    for task in options.tasks:
        recording = recorded(task, options.starts)
        errors[task], table[task] = {}, {}
        for kind in ("float32", "float64"):
            jax.config.update("jax_enable_x64", kind == "float64")
            errors[task][kind] = apart(recording, *replayed(task, recording, kind))
            table[task][kind] = {"same_end": float(errors[task][kind]["ends"].mean())}
            print(
                f"{task:<12} {kind} {'ends':<12} at the same step in "
                f"{table[task][kind]['same_end']:.0%} of the starts"
            )
            for name in ("observation", "reward"):
                table[task][kind][name] = {}
                for step in SHOWN:
                    values = errors[task][kind][name][:, step - 1]
                    errors_at_step = {
                        "median": float(np.median(values)),
                        "largest": float(values.max()),
                    }
                    table[task][kind][name][str(step)] = errors_at_step
                    print(
                        f"{task:<12} {kind} {name:<12} {step:>4} steps: median "
                        f"{errors_at_step['median']:.2e}, largest {errors_at_step['largest']:.2e}",
                        flush=True,
                    )
    jax.config.update("jax_enable_x64", False)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "parity.json").write_text(json.dumps(table, indent=1) + "\n")
    draw(errors, options.output / "divergence.png")


if __name__ == "__main__":
    main()
