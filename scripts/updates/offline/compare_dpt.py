"""Updates and outputs of DPT and of its authors' transformer (PyTorch), from the same parameters,
on the same contexts.

  git clone https://github.com/jon--lee/decision-pretrained-transformer DPT
  git -C DPT checkout 15172df
  python -m venv peer && peer/bin/pip install torch transformers jax flax optax distrax
  PYTHONPATH=. peer/bin/python scripts/updates/offline/compare_dpt.py --peer DPT \
      --output results/checks/references/dpt.json

All is in float64, and the networks have a few units. The authors' class is cut out of net.py,
unchanged, with GPT-2 of the package transformers in it. With `--times` one update of the authors'
size in the dark room is timed in turns.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.agents import dpt
from scripts.updates import shared
from scripts.updates.shared import distance, exact, relative

CONFIG = dpt.Config(context_length=6, width=8, layers=2, learning_rate=1e-2, batch_size=7)
CASES: dict[str, dict[str, Any]] = {"dark room": {}, "three blocks": {"layers": 3}}
STATE, ACTIONS = 2, 5  # of the dark room
SPEC = EnvSpec("test/DarkRoom", (STATE + ACTIONS + 1,), ACTIONS, discrete=True)


def batch(config: dpt.Config, seed: int) -> Transition:
    """Random pieces of lifetimes."""
    generator = np.random.default_rng(seed)
    shape = (config.batch_size, config.context_length + 1)
    last = np.zeros((*shape, ACTIONS + 1))
    states, after = generator.integers(10, size=(2, *shape, STATE)).astype(float)
    action, optimal = generator.integers(ACTIONS, size=(2, *shape))
    columns: Any = (
        np.concatenate([states, last], axis=-1),
        action.astype(np.int32),
        generator.integers(2, size=shape).astype(float),
        np.zeros(shape, bool),
        np.zeros(shape, bool),
        np.concatenate([after, last], axis=-1),
        {"optimal_action": optimal.astype(float)},
    )
    return jax.tree.map(jnp.asarray, Transition(*columns))


class Theirs:
    """The authors' model, loss and optimiser, as their script makes them."""

    def __init__(self, peer: Path, config: dpt.Config) -> None:
        import torch  # pyright: ignore[reportMissingImports]
        import transformers  # pyright: ignore[reportMissingImports]

        nodes: Any = [
            node
            for node in ast.parse((peer / "net.py").read_text()).body
            if isinstance(node, ast.ClassDef) and node.name == "Transformer"
        ]
        namespace = {
            "torch": torch,
            "nn": torch.nn,
            "GPT2Config": transformers.GPT2Config,
            "GPT2Model": transformers.GPT2Model,
        }
        exec(compile(ast.Module(nodes, []), "net.py", "exec"), namespace)
        settings = {
            "test": False,
            "horizon": config.context_length,
            "n_embd": config.width,
            "n_layer": config.layers,
            "n_head": config.heads,
            "state_dim": STATE,
            "action_dim": ACTIONS,
            "dropout": 0.0,
        }
        self.torch, self.model = torch, namespace["Transformer"](settings)
        self.loss = torch.nn.CrossEntropyLoss(reduction="sum")
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(),
            lr=float(config.learning_rate),
            weight_decay=float(config.weight_decay or 0.0),
        )

    def inputs(self, batch: Transition) -> dict[str, Any]:
        """A batch of ours as theirs."""
        states, after = (
            np.asarray(x)[..., :STATE] for x in (batch.observation, batch.next_observation)
        )
        optimal = np.asarray(batch.extras["optimal_action"])[:, -1].astype(int)
        arrays = {
            "query_states": states[:, -1],
            "context_states": states[:, :-1],
            "context_actions": np.eye(ACTIONS)[np.asarray(batch.action)][:, :-1],
            "context_next_states": after[:, :-1],
            "context_rewards": np.asarray(batch.reward)[:, :-1, None],
            "optimal_actions": np.eye(ACTIONS)[optimal],
            "zeros": np.zeros((len(states), STATE**2 + ACTIONS + 1)),
        }
        dtype = self.torch.get_default_dtype()
        return {name: self.torch.tensor(x).to(dtype) for name, x in arrays.items()}

    def update(self, inputs: Mapping[str, Any]) -> float:
        """One update, in the order of their script; the loss of an example and prefix."""
        predicted = self.model(inputs)
        true = inputs["optimal_actions"].unsqueeze(1).repeat(1, predicted.shape[1], 1)
        loss = self.loss(predicted.reshape(-1, ACTIONS), true.reshape(-1, ACTIONS))
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return float(loss.detach()) / (predicted.shape[0] * predicted.shape[1])


def parameters_of(model: Any, length: int) -> dict[str, Any]:
    """Their parameters under our names; of places, those that `length` tokens use."""

    def array(x: Any) -> np.ndarray:
        return x.detach().numpy().copy()

    def linear(layer: Any) -> dict[str, Any]:
        return {"kernel": array(layer.weight).T, "bias": array(layer.bias)}

    def product(layer: Any) -> dict[str, Any]:  # of GPT-2, whose weights are transposed
        return {"kernel": array(layer.weight), "bias": array(layer.bias)}

    def norm(layer: Any) -> dict[str, Any]:
        return {"scale": array(layer.weight), "bias": array(layer.bias)}

    inner: dict[str, Any] = {"norm_output": norm(model.transformer.ln_f)}
    for i, block in enumerate(model.transformer.h):
        inner |= {
            f"norm_attention_{i}": norm(block.ln_1),
            f"norm_hidden_{i}": norm(block.ln_2),
            f"hidden_{i}": product(block.mlp.c_fc),
            f"output_{i}": product(block.mlp.c_proj),
            f"attention_{i}": {
                **product(block.attn.c_attn),
                "output": product(block.attn.c_proj),
            },
        }
    return {
        "input": linear(model.embed_transition),
        "place": array(model.transformer.wpe.weight)[:length],
        "transformer": inner,
        "output": linear(model.pred_actions),
    }


def ours_like(theirs: Theirs, config: dpt.Config) -> dpt.State:
    """Our State with their parameters."""
    state = dpt.init(jax.random.key(0), SPEC, config)
    theirs_now = parameters_of(theirs.model, config.context_length + 1)
    params = jax.tree.map(jnp.asarray, theirs_now)
    parameters = state.policy.parameters
    expected, given = (jax.tree.map(jnp.shape, x) for x in (parameters.params, params))
    assert expected == given, (expected, given)
    network = dpt.networks.Network(params, parameters.module)
    return state.replace(policy=dpt.networks.trained(network, config.learning_rate, config))


def compared(options: argparse.Namespace, updates: int, case: Mapping[str, Any]) -> dict[str, Any]:
    """Largest relative differences of losses, and of parameters by how far they moved; and how many
    actions differ while a context grows.
    """
    import torch  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    config = dataclasses.replace(CONFIG, **case)
    theirs = Theirs(options.peer, config)
    state = exact(ours_like(theirs, config))
    before, update = state.policy.parameters.params, jax.jit(dpt.update)
    losses = []
    for step in range(updates):
        rows = batch(config, step)
        loss = theirs.update(theirs.inputs(rows))
        state, metrics = update(state, rows, jax.random.key(step), jnp.asarray(step), config)
        losses.append(relative(float(metrics["policy/loss"]), loss))
    after = parameters_of(theirs.model, config.context_length + 1)
    return {
        "loss": max(losses),
        "parameters": distance(before, state.policy.parameters.params, after),
        "other_actions": played(theirs, state, config),
    }


def played(theirs: Theirs, state: dpt.State, config: dpt.Config) -> int:
    """How many actions differ in a lifetime longer than the context, where theirs sees the context
    so far and ours one step after the other.
    """
    generator, steps = np.random.default_rng(0), 3 * config.context_length
    greedy = dataclasses.replace(config, sampled=False)
    states = generator.integers(10, size=(steps, STATE)).astype(float)
    rewards = generator.integers(2, size=steps).astype(float)
    memory, last, others = dpt.remember(SPEC, config), np.zeros(ACTIONS + 1), 0
    context: dict[str, list[Any]] = {x: [] for x in ("states", "actions", "next_states", "rewards")}
    theirs.model.test = True
    for step in range(steps):
        observation = jnp.asarray(np.concatenate([states[step], last]))
        action, _, memory = dpt.act(
            state, observation, jax.random.key(0), greedy, explore=False, memory=memory
        )
        sizes = dict(zip(context, (STATE, ACTIONS, STATE, 1), strict=True))
        inputs = {
            f"context_{name}": np.array(rows[-config.context_length :]).reshape(1, -1, sizes[name])
            for name, rows in context.items()
        }
        inputs |= {
            "query_states": states[step][None],
            "zeros": np.zeros((1, STATE**2 + ACTIONS + 1)),
        }
        tensors = {name: theirs.torch.as_tensor(x) for name, x in inputs.items()}
        expected = int(theirs.model(tensors)[0].argmax())
        others += int(action) != expected
        following = states[min(step + 1, steps - 1)]
        vector = np.eye(ACTIONS)[expected]
        rows = (states[step], vector, following, [rewards[step]])
        for name, row in zip(context, rows, strict=True):
            context[name].append(row)
        last = np.append(vector, rewards[step])
    return others


def times(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of one update of the authors' size in the dark room in turns."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    config = dpt.Config()
    theirs = Theirs(options.peer, config)
    rows = batch(config, 0)
    inputs = theirs.inputs(shared.in_float32(rows))
    state = dpt.init(jax.random.key(0), SPEC, config)
    return shared.update_times(dpt, state, rows, config, lambda: theirs.update(inputs))


def main() -> None:
    """Compare, print, and write the file of results."""
    options = shared.timed_parser(__doc__).parse_args()
    if options.times:
        shared.publish(options.output, times(options))
    else:
        shared.report(options, CASES, lambda updates, case: compared(options, updates, case))


if __name__ == "__main__":
    main()
