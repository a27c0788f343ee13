"""Memories; docs/memory.md describes their settings. With x_t the features of step t, h the memory,
0 where an episode begins, * the product of elements:

    gru    r = sigmoid(W_r x + U_r h),  z = sigmoid(W_z x + U_z h)                             [1]
           n = tanh(W_n x + r * (U_n h + b))
           h <- (1 - z) * n + z * h                                output h
    lstm   f, i, g, o: W x + U h + b                                                           [2]
           c <- sigmoid(f) * c + sigmoid(i) * tanh(g)
           h <- sigmoid(o) * tanh(c)                               output h
    lru    lambda = exp(-exp(nu) + i exp(theta)),  exp(gamma)^2 = 1 - |lambda|^2 at the start  [3]
           s <- lambda * s + exp(gamma) * (B LN(x))
           y = gelu(Re(C s) + D * LN(x))                           output x + W_1 y * sigmoid(W_2 y)
    gtrxl  y = gate(x, relu(attention(LN(x))))                     output gate(y, relu(MLP(LN(y))))
    iru    the torso's equations from the last c and from h = 0    output h

gtrxl [4] attends to the last `memory_length` steps of the episode. With a span the others' units at
first forget all but 1/e in n = 1 to `memory_span` - 1 steps [5]: the bias of z or f is log n, that
of lstm's i -log n, and -1 / log |lambda| is n.

[1] Cho et al., GRU, arXiv:1406.1078; with PyTorch's second bias
[2] Hochreiter and Schmidhuber, LSTM, 1997; forget bias of Jozefowicz et al., ICML 2015
[3] Orvieto et al., LRU, arXiv:2303.06349
[4] Parisotto et al., GTrXL, arXiv:1910.06764
[5] Tallec and Ollivier, arXiv:1804.11188
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from rljax.agent import MEMORY, Array, Transition
from rljax.networks.layers import Module, Network
from rljax.networks.layers import create as create_network
from rljax.networks.recurrent import memory_layers
from rljax.networks.recurrent.attention import GTrXL
from rljax.networks.torsos import TorsoSettings

Kind = memory_layers.Kind
PARTS = 8  # of a rollout's environments: `following` sees a part at a time again


def initial(settings: TorsoSettings, *leading: int) -> Any:
    """Memories [..., M...] where an episode begins, with these leading axes, or None."""

    def zeros(*axes: int) -> tuple[Array, ...]:
        return tuple(jnp.zeros((*leading, *axes, width)) for width in settings.memory_hidden)

    match settings.memory:
        case "gru" | "iru":
            return zeros()
        case "lstm":
            return tuple((zero, zero) for zero in zeros())
        case "lru":
            return zeros(2)  # real and imaginary parts
        case "gtrxl":
            known = jnp.zeros(leading, jnp.int32)
            return {"inputs": zeros(settings.memory_length), "known": known}
    return None


def layers(settings: TorsoSettings) -> nn.Module:
    """The layers of a memory."""
    widths, style, span = settings.memory_hidden, settings.initialisation, settings.memory_span
    match settings.memory:
        case "gru":
            return memory_layers.GRU(widths, style, span)
        case "lstm":
            return memory_layers.LSTM(widths, style, span)
        case "lru":
            return memory_layers.LRU(widths, style, span)
        case "gtrxl":
            return GTrXL(widths, style, settings.memory_length)
        case "iru":
            return memory_layers.IRU(widths, settings.compute, style, span)
    raise ValueError(f"no memory '{settings.memory}'.")


class Remembering(Module):
    """A network with a memory between `body` and `head`, which do not see time."""

    body: nn.Module
    settings: TorsoSettings
    head: nn.Module | None = None

    @nn.compact
    def __call__(
        self, observation: Any, first: Array, memory: Any, successor: Any = None
    ) -> tuple[Any, Any, Any]:
        """Outputs [T, ..., m] for observations [T, ..., O...], the memory after them, and outputs
        for `successor` [T, ..., O...], the observations after each step.

        `memory` [..., M...] is that before step 0. Steps marked by `first` [T, ...] begin an
        episode with an empty one. A successor sees the memory after its step.
        """
        shape = first.shape

        def each(network: nn.Module | None, x: Any) -> Any:
            """Rows of one axis: gradients of their products copy nothing."""
            if network is None or x is None:
                return x
            rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[len(shape) :]), x)
            return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), network(rows))

        core = layers(self.settings)
        encoded, after = each(self.body, observation), each(self.body, successor)
        features, memory, following = core(encoded, first, memory, after)
        return each(self.head, features), memory, each(self.head, following)


def create(
    body: nn.Module,
    settings: TorsoSettings,
    key: Array,
    observation: Any,
    head: nn.Module | None = None,
) -> tuple[Network, Any]:
    """A fresh network for an example of observations [O...], and its output [m]."""
    memory = initial(settings)
    if memory is None:
        module = body if head is None else nn.Sequential([body, head])
        network = create_network(module, key, observation)
        return network, network(observation)
    row = jax.tree.map(lambda x: x[None], observation)
    module = Remembering(body, settings, head)
    network = create_network(module, key, row, jnp.zeros(1, jnp.bool_), memory)
    return network, step(network, observation, memory)[0]


def step(network: Network | None, observation: Any, memory: Any) -> tuple[Any, Any]:
    """Outputs [..., m] for observations [..., O...] of one step, and next memories [..., M...]."""
    if network is None or memory is None:
        return observation if network is None else network(observation), None
    one, several = jax.tree.leaves(initial(network.module.settings))[0], jax.tree.leaves(memory)[0]
    leading = several.shape[: several.ndim - one.ndim]
    observation = jax.tree.map(lambda x: x[None], observation)
    output, memory, _ = network(observation, jnp.zeros((1, *leading), jnp.bool_), memory)
    return output[0], memory


def embedded(network: Network | None, batch: Transition) -> Any:
    """A network's outputs [T, E, m] for a batch's observations, or these without a network.

    With a `memory` [E, M...] in its extras, the network remembers along T; `first` [T, E] marks
    beginnings of episodes.
    """
    if network is None:
        return batch.observation
    if MEMORY not in batch.extras:
        return network(batch.observation)
    return network(batch.observation, batch.extras["first"], batch.extras[MEMORY])[0]


def successors(network: Network | None, batch: Transition) -> tuple[Any, Any]:
    """The outputs of `embedded`, and for `next_observation` with the memory after its step."""
    if network is None:
        return batch.observation, batch.next_observation
    if MEMORY not in batch.extras:
        return network(batch.observation), network(batch.next_observation)
    first, memory = batch.extras["first"], batch.extras[MEMORY]
    outputs, _, after = network(batch.observation, first, memory, batch.next_observation)
    return outputs, after


def following(network: Network | None, batch: Transition) -> tuple[Any, Any]:
    """As `successors` for a rollout, at less cost. Take no gradients of the second output; where a
    step terminated, it is another episode's.
    """
    if network is None or MEMORY not in batch.extras:
        return successors(network, batch)
    first, memory = batch.extras["first"], batch.extras[MEMORY]
    features, after, _ = network(batch.observation, first, memory)
    newest = step(network, jax.tree.map(lambda x: x[-1], batch.next_observation), after)[0]
    missing = batch.truncated.at[-1].set(False)  # [T, E]
    several = missing.any(axis=0)
    order, size = jnp.argsort(~several), max(1, several.size // PARTS)

    def compute(part: Array, outputs: Array) -> Array:
        columns = jax.lax.dynamic_slice(order, (part * size,), (size,))
        inputs = (batch.observation, first, batch.next_observation)
        observation, begins, successor = jax.tree.map(lambda x: x[:, columns], inputs)
        part_memory = jax.tree.map(lambda x: x[columns], memory)
        output = network(observation, begins, part_memory, successor)[2]
        output = jnp.where(missing[:, columns, None], output, outputs[:, columns])
        return outputs.at[:, columns].set(output)

    outputs = jnp.concatenate([features[1:], newest[None]])
    return features, jax.lax.fori_loop(0, -(-several.sum() // size), compute, outputs)


def after_burn_in(network: Network, batch: Transition, number: int) -> Transition:
    """Sequences [T, B, ...] without their first `number` steps; a `memory` [B, M...] in the extras
    is the network's from then. R2D2, ICLR 2019, section 3.
    """
    whole = (MEMORY, "weight", "row")  # of sequences, not of steps
    extras = {name: x if name in whole else x[number:] for name, x in batch.extras.items()}
    if number and MEMORY in extras:
        observation = jax.tree.map(lambda x: x[:number], batch.observation)
        _, memory, _ = network(observation, batch.extras["first"][:number], batch.extras[MEMORY])
        extras[MEMORY] = jax.lax.stop_gradient(memory)
    steps = jax.tree.map(lambda x: x[number:], batch.replace(extras={}))
    return steps.replace(extras=extras)
