"""Mixtures of experts beside T2MIR's (PyTorch), from the same parameters and random numbers.

  git clone https://github.com/NJU-RL/T2MIR
  python -m venv peer && peer/bin/pip install torch transformers jax flax optax distrax
  PYTHONPATH=. peer/bin/python scripts/updates/compare_experts.py --peer T2MIR \
      --output results/checks/references/experts.json

Their classes and `contrastive_loss` are cut out of moe.py and gpt2moe_model.py, unchanged. Outputs,
both losses, and the gradients of their sum are compared in float64, but for the weights of experts,
which theirs round to float32.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from rljax.networks import layers
from rljax.networks.recurrent import experts
from scripts.updates import shared
from scripts.updates.shared import exact

ROWS, TOKENS, WIDTH = 6, 5, 8
CASES: dict[str, dict[str, Any]] = {
    "two of four and of three": {"tokens": 4, "tasks": 3, "chosen": 2, "width": 5},
    "one of two": {"tokens": 2, "tasks": 2, "chosen": 1, "width": 3},
}
FOLDER = Path("T2MIR-DPT/algorithms")


def their_code(peer: Path) -> dict[str, Any]:
    """T2MIR's layers and loss."""
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]
    from transformers import activations  # pyright: ignore[reportMissingImports]

    nodes: list[Any] = [
        node
        for node in ast.parse((peer / FOLDER / "moe.py").read_text()).body
        if isinstance(node, ast.ClassDef)
    ]
    nodes += [
        node
        for node in ast.parse((peer / FOLDER / "gpt2moe_model.py").read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "contrastive_loss"
    ]

    def freeze(module: Any) -> None:
        for parameter in module.parameters():
            parameter.requires_grad = False

    namespace = {
        "ACT2FN": activations.ACT2FN,
        "F": torch.nn.functional,
        "ModelOutput": transformers.utils.ModelOutput,
        "Normal": torch.distributions.Normal,
        "Optional": Optional,
        "dataclass": dataclasses.dataclass,
        "freeze": freeze,
        "hard_update": lambda target, source: target.load_state_dict(source.state_dict()),
        "math": math,
        "nn": torch.nn,
        "torch": torch,
        "warnings": warnings,
    }
    # Their dataclasses are looked up by the module's name.
    namespace["__name__"] = __name__
    exec(compile(ast.Module(nodes, []), "moe.py", "exec"), namespace)
    return namespace


class Theirs:
    """Both of T2MIR's layers, as its block has them."""

    def __init__(self, peer: Path, sizes: experts.Sizes, params: Any, target: Any) -> None:
        import torch  # pyright: ignore[reportMissingImports]

        self.torch, code = torch, their_code(peer)
        common = {"hidden_act": "leaky_relu", "dropout": 0.0}
        half = WIDTH // 2
        self.tokens = code["LinearGLUMoELayer"](
            WIDTH, sizes.tokens * sizes.width, half, num_experts=sizes.tokens,
            num_selects=sizes.chosen, gate_balance_loss_weight=1.0, **common,
        )  # fmt: skip
        self.tasks = code["LinearGLUMoELayerContrastive"](
            WIDTH, sizes.tasks * sizes.width, half, num_experts_contrastive=sizes.tasks,
            num_selects_contrastive=sizes.chosen, **common,
        )  # fmt: skip
        self.contrastive_loss = code["contrastive_loss"]
        self.leaves: dict[str, Any] = {}
        for name, layer in (("token", self.tokens), ("task", self.tasks)):
            self._load(f"{name}_gate", layer.gate.gate_network, params[f"{name}_gate"])
            self._load_experts(f"{name}s", layer.calculator.experts, params[f"{name}s"])
        self._set("noise", self.tokens.gate.weight_noise, "weight", params["noise"].T)
        self._load("", self.tasks.gate_target.gate_network, target)
        self.matrix = torch.nn.Parameter(torch.tensor(np.array(params["contrast"])))
        self.leaves["contrast"] = self.matrix

    def _set(self, name: str, module: Any, field: str, value: Any) -> None:
        parameter = self.torch.nn.Parameter(self.torch.tensor(np.array(value)))
        setattr(module, field, parameter)
        self.leaves[name] = parameter

    def _load(self, name: str, network: Any, gate: Mapping[str, Any]) -> None:
        self._set(f"{name}/hidden", network[0], "weight", gate["hidden"].T)
        self._set(f"{name}/output", network[2], "weight", gate["output"].T)

    def _load_experts(self, name: str, module: Any, params: Mapping[str, Any]) -> None:
        lists = {
            "up": "weight_up",
            "up_bias": "bias_up",
            "down": "weight_down",
            "down_bias": "bias_down",
        }
        for ours, field in lists.items():
            values = [np.array(x) for x in params[ours]]
            values = [x.T if x.ndim == 2 else x for x in values]
            parameters = [self.torch.nn.Parameter(self.torch.tensor(x)) for x in values]
            setattr(module, field, self.torch.nn.ParameterList(parameters))
            self.leaves[f"{name}/{ours}"] = parameters

    def run(self, x: Any, noise: Any) -> dict[str, Any]:
        """Outputs and losses."""
        tokens = self.torch.tensor(np.array(x))
        drawn = self.torch.tensor(np.array(noise).reshape(-1, noise.shape[-1]))
        tensor = self.torch.Tensor
        with (
            mock.patch.object(self.torch, "randn_like", return_value=drawn),
            mock.patch.object(tensor, "float", tensor.double),
        ):
            one = self.tokens(tokens)
        other = self.tasks(tokens)
        contrast = self.contrastive_loss(
            other.gate_logits, other.gate_logits_target.detach(), len(x), self.matrix, True
        )
        output = self.torch.cat([one.hidden_states, other.hidden_states], dim=-1)
        return {"output": output, "balance": one.balance_loss, "contrast": contrast}

    def gradients(self) -> dict[str, np.ndarray]:
        """Gradients under our names, in our axes."""
        result = {}
        for name, leaf in self.leaves.items():
            parts = leaf if isinstance(leaf, list) else [leaf]
            if parts[0].grad is None:
                continue
            arrays = [x.grad.numpy() for x in parts]
            if name != "contrast":
                arrays = [x.T if x.ndim == 2 else x for x in arrays]
            result[name] = np.stack(arrays) if isinstance(leaf, list) else arrays[0]
        return result


def compared(options: argparse.Namespace, updates: int, case: Mapping[str, Any]) -> dict[str, Any]:
    """Largest relative differences over so many draws."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_default_dtype(torch.float64)
    sizes, generator = experts.Sizes(**case), np.random.default_rng(0)

    def random(leaf: Any) -> Any:
        return jnp.asarray(generator.normal(size=leaf.shape))

    network = layers.create(experts.Mixtures(sizes), jax.random.key(0), jnp.zeros((2, 2, WIDTH)))
    largest: dict[str, float] = {}

    def note(name: str, one: np.ndarray, other: np.ndarray) -> None:
        difference = float(np.abs(one - other).max() / np.abs(other).max())
        largest[name] = max(largest.get(name, 0.0), difference)

    for draw in range(updates):
        params = exact(jax.tree.map(random, network.params))
        target = jax.tree.map(random, dict(network.params["task_gate"]))
        x, key = random(jnp.zeros((ROWS, TOKENS, WIDTH))), jax.random.key(draw)
        cotangent = random(x)
        noise = jax.random.normal(key, (ROWS, TOKENS, sizes.tokens))
        training = {"trains": experts.GateTraining(target, key)}

        def ours(params: Any, x: Any = x, training: Any = training, by: Any = cotangent) -> Any:
            y, losses = network.replace(params=params)(x, **training)
            return (y * by).sum() + losses.balance + losses.contrast, (y, losses)

        gradient, (y, losses) = jax.grad(ours, has_aux=True)(params)
        theirs = Theirs(options.peer, sizes, params, target)
        parts = theirs.run(x, noise)
        total = (parts["output"] * torch.tensor(np.array(cotangent))).sum()
        (total + parts["balance"] + parts["contrast"]).backward()
        own = {"output": y, "balance": losses.balance, "contrast": losses.contrast}
        for name, value in own.items():
            note(name, np.asarray(value), parts[name].detach().numpy())
        for name, expected in theirs.gradients().items():
            leaf = gradient
            for part in name.split("/"):
                leaf = leaf[part]
            note("gradient", np.asarray(leaf), expected)
    return largest


def main() -> None:
    """Compare, print, and write the file of results."""
    options = shared.parser(__doc__).parse_args()
    shared.report(options, CASES, lambda updates, case: compared(options, updates, case))


if __name__ == "__main__":
    main()
