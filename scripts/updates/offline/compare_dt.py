"""Updates and actions of the Decision Transformer and of CORL's (PyTorch), from the same
parameters, on the same batches.

  git clone https://github.com/tinkoff-ai/CORL && git -C CORL checkout 6afec90
  python -m venv peer && peer/bin/pip install torch jax flax optax distrax
  PYTHONPATH=. peer/bin/python scripts/updates/offline/compare_dt.py --peer CORL \
      --output results/checks/references/dt.json

All is in float64 and without dropout, and the networks have a few units. CORL's two classes are cut
out of its script, unchanged. With `--times` one update of CORL's size on Hopper's shapes, with
dropout, is timed in turns.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.agents import dt
from scripts.updates import shared
from scripts.updates.shared import ACTION, OBSERVATION, distance, exact, relative

CONFIG = dt.Config(
    context_length=6,
    width=8,
    layers=2,
    dropout=0.0,
    times=30,
    learning_rate=1e-2,
    warmup_updates=8.0,
    return_scale=0.1,
)
CASES: dict[str, dict[str, Any]] = {
    "one head": {},
    "two heads, no limit of the gradient": {"heads": 2, "max_grad_norm": None},
}
CLASSES = ("TransformerBlock", "DecisionTransformer")
ROWS = 7
HOPPER = EnvSpec("test/Hopper", (11 + 3 + 1,), 3)  # with the last action and reward


def spec() -> EnvSpec:
    """The spaces of the comparison, with the last action and reward."""
    return EnvSpec("test/Example-v0", (OBSERVATION + ACTION + 1,), ACTION)


def batch(config: dt.Config, rows: int, sizes: tuple[int, int], seed: int) -> Transition:
    """Random pieces of trajectories, some of which end early."""
    generator, length = np.random.default_rng(seed), config.context_length
    observation = generator.normal(size=(rows, length, sizes[0]))
    action = np.tanh(generator.normal(size=(rows, length, sizes[1])))
    whole = generator.integers(1, length + 1, rows)
    begin = generator.integers(0, int(config.times) - length, rows)
    shown = np.zeros((rows, length, sizes[1] + 1))
    nothing = np.zeros((rows, length))
    extras = {
        "return_to_go": generator.normal(size=(rows, length)) * 10.0,
        "time": begin[:, None] + np.arange(length),
        "valid": np.arange(length) < whole[:, None],
        "has_return_to_go": np.ones((rows, length), bool),
    }
    states = np.concatenate([observation, shown], axis=-1)
    columns: Any = (states, action, nothing, nothing, nothing, states, extras)
    return jax.tree.map(jnp.asarray, Transition(*columns))


def their_classes(peer: Path) -> dict[str, Any]:
    """CORL's transformer."""
    import torch  # pyright: ignore[reportMissingImports]

    script = peer / "algorithms" / "offline" / "dt.py"
    nodes: Any = [
        node
        for node in ast.walk(ast.parse(script.read_text()))
        if isinstance(node, ast.ClassDef) and node.name in CLASSES
    ]
    namespace = {"torch": torch, "nn": torch.nn, "Optional": Optional}
    exec(compile(ast.Module(nodes, []), script.name, "exec"), namespace)
    return {name: namespace[name] for name in CLASSES}


class Theirs:
    """CORL's model, optimiser and warm-up, as its training function makes them."""

    def __init__(self, peer: Path, config: dt.Config, sizes: tuple[int, int]) -> None:
        import torch  # pyright: ignore[reportMissingImports]

        self.torch, self.config = torch, config
        self.model = their_classes(peer)["DecisionTransformer"](
            state_dim=sizes[0],
            action_dim=sizes[1],
            seq_len=config.context_length,
            episode_len=config.times - config.context_length,
            embedding_dim=config.width,
            num_layers=config.layers,
            num_heads=config.heads,
            attention_dropout=float(config.dropout),
            residual_dropout=float(config.dropout),
            embedding_dropout=float(config.dropout),
        )
        decay, rate = float(config.weight_decay or 0.0), float(config.learning_rate)
        parameters = self.model.parameters()
        self.optimiser = torch.optim.AdamW(parameters, lr=rate, weight_decay=decay)
        warmup = float(config.warmup_updates or 1.0)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimiser, lambda steps: min((steps + 1) / warmup, 1)
        )

    def inputs(self, batch: Transition) -> dict[str, Any]:
        """A batch of ours as the arguments of their model."""
        action_size = batch.action.shape[-1]
        arrays = {
            "states": batch.observation[..., : -action_size - 1],
            "actions": batch.action,
            "returns_to_go": self.config.return_scale * batch.extras["return_to_go"],
            "time_steps": batch.extras["time"],
            "padding_mask": ~batch.extras["valid"],
        }
        return {name: self.torch.as_tensor(np.array(x)) for name, x in arrays.items()}

    def update(self, inputs: Mapping[str, Any]) -> float:
        """One update, in the order of their training function; the loss."""
        mean = self.model(**inputs)
        loss = self.torch.nn.functional.mse_loss(mean, inputs["actions"], reduction="none")
        loss = (loss * (~inputs["padding_mask"]).to(mean.dtype).unsqueeze(-1)).mean()
        self.optimiser.zero_grad()
        loss.backward()
        if self.config.max_grad_norm is not None:
            limit = float(self.config.max_grad_norm)
            self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.optimiser.step()
        self.scheduler.step()
        return float(loss)


def parameters_of(model: Any) -> dict[str, Any]:
    """Their parameters under our names."""

    def linear(layer: Any) -> dict[str, Any]:
        return {"kernel": array(layer.weight).T, "bias": array(layer.bias)}

    def norm(layer: Any) -> dict[str, Any]:
        return {"scale": array(layer.weight), "bias": array(layer.bias)}

    def array(x: Any) -> np.ndarray:
        return x.detach().numpy().copy()

    inner: dict[str, Any] = {
        "norm_tokens": norm(model.emb_norm),
        "norm_output": norm(model.out_norm),
    }
    for i, block in enumerate(model.blocks):
        attention = block.attention
        inner |= {
            f"norm_attention_{i}": norm(block.norm1),
            f"norm_hidden_{i}": norm(block.norm2),
            f"hidden_{i}": linear(block.mlp[0]),
            f"output_{i}": linear(block.mlp[2]),
            f"attention_{i}": {
                "kernel": array(attention.in_proj_weight).T,
                "bias": array(attention.in_proj_bias),
                "output": linear(attention.out_proj),
            },
        }
    return {
        "time": array(model.timestep_emb.weight),
        "return": linear(model.return_emb),
        "state": linear(model.state_emb),
        "action": linear(model.action_emb),
        "transformer": inner,
        "output": linear(model.action_head[0]),
    }


def ours_like(theirs: Theirs, spaces: EnvSpec) -> dt.State:
    """Our State with their parameters."""
    state = dt.init(jax.random.key(0), spaces, theirs.config)
    params = jax.tree.map(jnp.asarray, parameters_of(theirs.model))
    expected, given = (jax.tree.map(jnp.shape, x) for x in (state.policy.parameters.params, params))
    assert expected == given, (expected, given)
    parameters = state.policy.parameters
    policy = dt.networks.trained(
        dt.networks.Network(params, parameters.module), theirs.config.learning_rate, theirs.config
    )
    return exact(state.replace(policy=policy))


def compared(options: argparse.Namespace, updates: int, case: Mapping[str, Any]) -> dict[str, Any]:
    """Largest relative differences of losses, of parameters by how far they moved, and of actions
    at the end.
    """
    import torch  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    config = dataclasses.replace(CONFIG, **case)
    theirs = Theirs(options.peer, config, (OBSERVATION, ACTION))
    state = ours_like(theirs, spec())
    before, update = state.policy.parameters.params, jax.jit(dt.update)
    losses = []
    for step in range(updates):
        rows = batch(config, ROWS, (OBSERVATION, ACTION), step)
        loss = theirs.update(theirs.inputs(rows))
        state, metrics = update(state, rows, jax.random.key(step), jnp.asarray(step), config)
        losses.append(relative(float(metrics["policy/loss"]), loss))
    after = parameters_of(theirs.model)
    return {
        "loss": max(losses),
        "parameters": distance(before, state.policy.parameters.params, after),
        "actions": played(theirs, state, config),
    }


def played(theirs: Theirs, state: dt.State, config: dt.Config) -> float:
    """The largest difference of actions in an episode longer than the context, where theirs sees
    the steps so far and ours one after the other.
    """
    generator, steps = np.random.default_rng(0), 2 * config.context_length
    observations = generator.normal(size=(steps, OBSERVATION))
    rewards, largest, target = generator.normal(size=steps), 0.0, 5.0
    states, actions = observations[:0], np.zeros((0, ACTION))
    returns, memory = np.zeros(0), dt.remember(spec(), config)
    last = np.zeros(ACTION + 1)
    for step in range(steps):
        states = np.concatenate([states, observations[step][None]])
        returns = np.append(returns, target - rewards[:step].sum())
        inputs = {
            "states": states,
            "actions": np.concatenate([actions, np.zeros((1, ACTION))]),
            "returns_to_go": float(config.return_scale) * returns,
            "time_steps": np.arange(step + 1),
        }
        recent = {
            name: theirs.torch.as_tensor(x[-config.context_length :])[None]
            for name, x in inputs.items()
        }
        expected = theirs.model(**recent)[0, -1].detach().numpy()
        observation = jnp.asarray(np.concatenate([observations[step], last]))
        best = state.replace(best_return=jnp.asarray(target))
        action, _, memory = dt.act(best, observation, jax.random.key(0), config, False, memory)
        largest = max(largest, float(np.abs(np.asarray(action) - expected).max()))
        actions = np.concatenate([actions, expected[None]])
        last = np.append(expected, rewards[step])
    return largest


def times(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of one update of CORL's default size in turns."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    config = dt.Config()
    theirs = Theirs(options.peer, config, (11, 3))
    rows = batch(config, config.batch_size, (11, 3), 0)
    inputs = theirs.inputs(shared.in_float32(rows))
    state = dt.init(jax.random.key(0), HOPPER, config)
    return shared.update_times(dt, state, rows, config, lambda: theirs.update(inputs))


def main() -> None:
    """Compare, print, and write the file of results."""
    options = shared.timed_parser(__doc__).parse_args()
    if options.times:
        shared.publish(options.output, times(options))
    else:
        shared.report(options, CASES, lambda updates, case: compared(options, updates, case))


if __name__ == "__main__":
    main()
