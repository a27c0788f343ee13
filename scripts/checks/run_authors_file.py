"""Run another project's agent, unmodified, on a data set that rljax recorded,
and keep its returns and terminal values.

  python scripts/checks/run_authors_file.py Hopper-replay.hdf5 OUT.json \
      CORL/algorithms/offline/iql.py -- --device cpu --env hopper-medium-replay-v2 --seed 0 \
      --max_timesteps 28000 --eval_freq 7000
  python scripts/checks/run_authors_file.py Hopper-replay.hdf5 OUT.json RIQL/RIQL.py \
      --set train_seed=0 num_epochs=28 eval_every=7

What follows `--` is the file's own command line. A file whose command line lacks a setting is given
its fields by `--set`: they become those of its class `TrainConfig`, and its function `train` is
called. `--hidden-dim` sets the width of networks in files that have it only as a default of their
classes.

These files need `d4rl`, Gym before 0.26 and Weights & Biases. Small modules of the same names take
their place here. Every D4RL data set is the recorded file, all of its rows, and every environment
is the one in which the file was recorded, in Gymnasium. The Python has torch, numpy, h5py,
gymnasium[mujoco], tqdm and pyrallis; it needs no rljax. A file that uses JAX, such as CORL's
rebrac.py, needs the versions of its time in place of torch: jax 0.4.35, flax 0.9.0. Tried with
RIQL.py of github.com/YangRui2015/RIQL, main.py of
github.com/Zhendong-Wang/Diffusion-Policies-for-Offline-RL and
algorithms/offline/{any_percent_bc,cql,edac,iql,rebrac,td3_bc}.py of github.com/tinkoff-ai/CORL.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.util
import inspect
import json
import runpy
import sys
import time
import types
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np

# What the files call the object that holds the networks.
AGENTS = ("trainer", "agent", "awac", "model", "params")
CRITICS = ("qf", "critic", "critic_1", "critic_2")  # what these objects call their critics


class Recorded:
    """The recorded file, what an agent made of it, and what became of the agent."""

    def __init__(self, path: Path) -> None:
        """Read a file that `rljax data record` wrote."""
        names = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
        with h5py.File(path) as file:
            self.rows = {name: np.asarray(file[name]) for name in names}
            described = json.loads(bytes(np.asarray(file["metadata/rljax"])[()]).decode())
        self.environment, self.reference = described["env"], described["reference"] or (0.0, 1.0)
        self.served: dict[str, np.ndarray] = {}
        self.evaluations: list[dict[str, Any]] = []
        self.began = time.perf_counter()

    def serve(self, *_: Any, **__: Any) -> dict[str, np.ndarray]:
        """D4RL's dictionary.

        A file changes its rewards and observations in place, so that it stays what is learnt.
        """
        self.served = {name: array.copy() for name, array in self.rows.items()}
        return self.served

    @property
    def terminal_reward(self) -> float | None:
        """The mean reward of terminal rows, which is their true value; None without such rows."""
        rewards = self.served["rewards"][self.served["terminals"].astype(bool)]
        return float(rewards.mean()) if len(rewards) else None

    @property
    def seconds(self) -> float:
        """Since the file was read."""
        return round(time.perf_counter() - self.began, 4)

    def begin_evaluation(self) -> None:
        """Find the agent that is about to play among the callers, and note what its critics say."""
        frame = sys._getframe()
        while frame is not None and not any(name in frame.f_locals for name in AGENTS):
            frame = frame.f_back
        if frame is None:  # the environment is seeded before there is an agent
            return
        near = frame.f_locals
        agent = next(near[name] for name in AGENTS if name in near)
        counts = [
            getattr(agent, "total_it", None),
            near.get("total_updates"),
            getattr(agent, "step", None),
        ]
        updates = next((int(count) for count in counts if count is not None), None)
        values = self.values(agent)
        self.evaluations.append(
            {"updates": updates, **values, "returns": [], "began": self.seconds, "ended": None}
        )

    def values(self, agent: Any) -> dict[str, float | None]:
        """The mean value of terminal rows and of any rows, over critics too, as in rljax;
        None without critics.
        """
        (ends,) = np.nonzero(self.served["terminals"])
        some = np.arange(0, len(self.served["rewards"]), 50)
        critics = [getattr(agent, name) for name in CRITICS if hasattr(agent, name)]
        return {
            "terminal_value": self.mean_value(critics, ends),
            "value": self.mean_value(critics, some),
        }

    def mean_value(self, critics: list[Any], rows: np.ndarray) -> float | None:
        """The mean value of some rows, over critics too; None without critics or rows."""
        if not critics or not len(rows):
            return None
        import torch  # pyright: ignore[reportMissingImports]

        observation, action = (
            torch.as_tensor(self.served[name][rows], dtype=torch.float32)
            for name in ("observations", "actions")
        )
        means = []
        with torch.no_grad():
            for critic in critics:
                q = getattr(critic, "both", critic)(observation, action)
                means += [x.mean().item() for x in (q if isinstance(q, tuple) else (q,))]
        return float(np.mean(means))


class Env:
    """Gymnasium's environment under Gym's interface before 0.26."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded, self.env = recorded, gymnasium.make(recorded.environment)
        self.observation_space = self.env.observation_space
        self.action_space = self.env.action_space
        self._max_episode_steps = self.env.spec.max_episode_steps if self.env.spec else None
        self.start: int | None = None
        self.total = 0.0

    def seed(self, seed: int) -> None:
        """The next episode begins from this seed: the first one of an evaluation,
        if an agent is there.
        """
        self.start = seed
        self.recorded.begin_evaluation()

    def reset(self) -> np.ndarray:
        """The first observation of an episode."""
        observation, _ = self.env.reset(seed=self.start)
        self.start, self.total = None, 0.0
        return observation

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, dict]:
        """One step; `done` also marks the time limit."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.total += float(reward)
        if (terminated or truncated) and self.recorded.evaluations:
            evaluation = self.recorded.evaluations[-1]
            evaluation["returns"].append(self.total)
            evaluation["ended"] = self.recorded.seconds
        return observation, float(reward), terminated or truncated, info

    def get_dataset(self) -> dict[str, np.ndarray]:
        """All rows, as D4RL's environments give them."""
        return self.recorded.serve()

    def get_normalized_score(self, returns: Any) -> Any:
        """0 and 1 for the two reference returns of the file."""
        low, high = self.recorded.reference
        return (returns - low) / (high - low)


class Transformed:
    """An environment whose observations or rewards go through a function."""

    def __init__(self, env: Any, observation: Any = None, reward: Any = None) -> None:
        self.env = env
        self.observation = observation or (lambda x: x)
        self.reward = reward or (lambda x: x)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self) -> Any:
        """The first observation of an episode."""
        return self.observation(self.env.reset())

    def step(self, action: Any) -> Any:
        """One step."""
        observation, reward, done, info = self.env.step(action)
        return self.observation(observation), self.reward(reward), done, info


def install(recorded: Recorded) -> None:
    """Put the small modules in the places of `d4rl`, `gym`, `wandb` and TensorBoard's writer."""

    def module(name: str, **contents: Any) -> types.ModuleType:
        made = types.ModuleType(name)
        made.__dict__.update(contents)
        sys.modules[name] = made
        return made

    def nothing(*_: Any, **__: Any) -> None:
        """Log nothing."""

    module("d4rl", qlearning_dataset=recorded.serve)
    wrappers = module(
        "gym.wrappers",
        TransformObservation=lambda env, change: Transformed(env, observation=change),
        TransformReward=lambda env, change: Transformed(env, reward=change),
    )
    module("gym", Env=Env, make=lambda name: Env(recorded), wrappers=wrappers)
    run = types.SimpleNamespace(save=nothing)
    module("wandb", init=nothing, log=nothing, finish=nothing, mark_preempting=nothing, run=run)
    module("torch.utils.tensorboard", SummaryWriter=nothing)


def execute(
    file: Path, arguments: list[str], fields: dict[str, Any], hidden_dim: int | None
) -> None:
    """Run a file by its own command line, or call its `train` after changes of its settings."""
    sys.path.insert(0, str(file.parent))
    sys.argv = [str(file), *arguments]
    if not fields and hidden_dim is None:
        runpy.run_path(str(file), run_name="__main__")
        return
    module = loaded(file)
    if hidden_dim is not None:
        set_width(module, hidden_dim)
    for name, value in fields.items():
        if not hasattr(module.TrainConfig, name):
            raise SystemExit(f"error: TrainConfig of {file.name} has no field '{name}'.")
        setattr(module.TrainConfig, name, value)
    module.train(*[module.TrainConfig] * bool(fields))


def loaded(file: Path) -> Any:
    """A file as a module, whose main part has not run."""
    spec: Any = importlib.util.spec_from_file_location("reference", file)
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules["reference"] = module
    spec.loader.exec_module(module)
    return module


def set_width(module: Any, hidden_dim: int) -> None:
    """Give every network of a file another width, where the file has it only as a default of its
    classes.
    """
    for network in [x for x in vars(module).values() if inspect.isclass(x)]:
        parameters = inspect.signature(network.__init__).parameters.values()
        named = [x for x in parameters if x.default is not x.empty]
        if "hidden_dim" in [x.name for x in named]:
            changed = tuple(hidden_dim if x.name == "hidden_dim" else x.default for x in named)
            network.__init__.__defaults__ = changed


def versions() -> dict[str, str]:
    """The versions of the packages that can change a number."""
    names = ("torch", "jax", "flax", "optax", "numpy", "gymnasium", "mujoco")
    return {name: metadata.version(name) for name in names if importlib.util.find_spec(name)}


def value(text: str) -> Any:
    """A number or a constant of Python, or else the text itself."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def main() -> None:
    """Run the file and write what it came to."""
    middle = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    words, arguments = sys.argv[1:middle], sys.argv[middle + 1 :]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="a file that `rljax data record` wrote")
    parser.add_argument("out", type=Path, help="the JSON file to write")
    parser.add_argument("file", type=Path, help="the other project's file")
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        metavar="NAME=VALUE",
        help="fields of the file's TrainConfig",
    )
    parser.add_argument(
        "--hidden-dim", type=int, help="units of each hidden layer, where the file fixes them"
    )
    parser.add_argument(
        "--source", default="", help="where the file comes from, such as owner/name@commit"
    )
    options = parser.parse_args(words)
    fields = {
        name: value(text) for name, _, text in (entry.partition("=") for entry in options.set)
    }
    if importlib.util.find_spec("torch"):
        importlib.import_module("torch").set_num_threads(1)
    recorded = Recorded(options.data)
    install(recorded)
    began = time.perf_counter()
    try:
        execute(options.file.resolve(), arguments, fields, options.hidden_dim)
    finally:  # also after Ctrl-C: what was evaluated until then is kept
        outcome = {
            "source": options.source,
            "file": options.file.name,
            "fields": fields,
            "hidden_dim": options.hidden_dim,
            "arguments": arguments,
            "data": options.data.name,
            "sha256": hashlib.sha256(options.data.read_bytes()).hexdigest(),
            "terminal_reward": recorded.terminal_reward,
            "evaluations": recorded.evaluations,
            "wall_seconds": time.perf_counter() - began,
            "versions": versions(),
        }
        options.out.write_text(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main()
