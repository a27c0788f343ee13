"""Two mixtures of experts in place of the last hidden layer of a transformer.

x token, E experts of which k are chosen for a token, c noise's scale, B / 2 pairs of the same task
  l      = tanh(x W_1) W_2                            logits of a gate
  p      = softmax of the k largest of l (+ c n), 0 for others,  n ~ N(0, 1) in training
  y      = sum_e p_e expert_e(x)
  tokens   c = softplus(x W_c) + 0.01
           balance  = cv^2(sum of p over all tokens) + cv^2(sum of chances to be chosen)
  tasks    z, z' = mean of l over a sequence's tokens but the first, of the gate and its target
           contrast = -mean log softmax_j(z_i^T M z'_j)[i],  of i in one half, j in the other

Half of the outputs are of experts of tokens, half of experts of tasks.

Source: Wu et al., T2MIR, arXiv:2506.05426; NJU-RL/T2MIR, moe.py and gpt2moe_model.py. The balance
is that of Shazeer et al., arXiv:1701.06538.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from rljax.agent import Array, Number, config
from rljax.networks.initialisation import initialisers
from rljax.networks.layers import ACTIVATIONS, Activation, Dropout, Module
from rljax.networks.optimisation import targets
from rljax.requirements import Count, NonNegative, Share, Whole

STD = 0.02  # of the gates' weights at the start
NOISE = 0.01  # least scale
EPSILON = 1e-10


@config
class WithExperts:
    """Mixtures of experts in a transformer: a base of an agent's Config."""

    token_experts: Whole = 0  # in the last block; 0: a hidden layer, T2MIR: 6
    task_experts: Whole = 0  # beside them; T2MIR: 8
    chosen_experts: Count = 2  # k of each kind for a token; T2MIR
    expert_width: Count = 256  # hidden units of each; T2MIR
    balance_weight: NonNegative = 0.01  # of the balance in the loss; T2MIR
    contrast_weight: NonNegative = 1e-3  # of the contrast in the loss; T2MIR
    gate_rate: Share = 0.005  # of the task gate's target; T2MIR

    @property
    def sizes(self) -> Sizes | None:
        """The sizes of the mixtures, if there are any."""
        if not self.token_experts:
            return None
        return Sizes(self.token_experts, self.task_experts, self.chosen_experts, self.expert_width)


class Sizes(NamedTuple):
    """Sizes of both mixtures."""

    tokens: int
    tasks: int
    chosen: int
    width: int


class GateTraining(NamedTuple):
    """What mixtures need in training."""

    target_gate: Any
    key: Array  # of the noise


class Losses(NamedTuple):
    """What mixtures add to a loss, [] each; 0 without them, and outside of training."""

    balance: Array | float = 0.0
    contrast: Array | float = 0.0

    def total(self, settings: WithExperts) -> Array | float:
        """Their weighted sum []."""
        balance = settings.balance_weight * self.balance
        return balance + settings.contrast_weight * self.contrast


def training(target_gate: Any, key: Array) -> GateTraining | None:
    """What mixtures need in training; None without any."""
    return None if target_gate is None else GateTraining(target_gate, jax.random.fold_in(key, 1))


def target_gate(params: Any) -> Any:
    """A copy of the task experts' gate in a transformer's parameters; None without experts."""
    mixtures = params.get("mixtures")
    return None if mixtures is None else targets.copy(dict(mixtures["task_gate"]))


def followed(target: Any, params: Any, rate: Number) -> Any:
    """The target gate that has moved by a share `rate` towards that in a transformer's
    parameters.
    """
    if target is None:
        return None
    return targets.polyak(dict(params["mixtures"]["task_gate"]), target, rate)


def check(settings: WithExperts, width: int, batch_size: int) -> None:
    """Raise `ValueError` for sizes that do not fit a transformer of this width, or its batches."""
    if not settings.token_experts and not settings.task_experts:
        return
    least = min(settings.token_experts, settings.task_experts)
    if least < settings.chosen_experts:
        raise ValueError(
            f"--config.chosen-experts {settings.chosen_experts} are chosen of "
            f"--config.token-experts {settings.token_experts} and --config.task-experts "
            f"{settings.task_experts}: give at least as many of both, or 0 of both."
        )
    if width % 2 or batch_size % 2:
        raise ValueError(
            f"--config.width is {width} and --config.batch-size {batch_size}: two mixtures of "
            "experts share the one, two halves with the same tasks the other. Both must be even."
        )


class Router(Module):
    """l: tokens [..., m] to logits [..., E]."""

    experts: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shapes = {"hidden": (x.shape[-1], self.experts), "output": (self.experts,) * 2}
        initialise = nn.initializers.normal(STD)
        return logits(x, {name: self.param(name, initialise, shapes[name]) for name in shapes})


def logits(x: Array, gate: Mapping[str, Array]) -> Array:
    """A gate's logits [..., E] of tokens [..., m]."""
    return jnp.tanh(x @ gate["hidden"]) @ gate["output"]


class Experts(Module):
    """Networks of one hidden layer, whose outputs are weighted."""

    width: int
    features: int
    activation: Activation

    @nn.compact
    def __call__(self, x: Array, weight: Array, dropout: Dropout | None, place: int) -> Array:
        """Outputs [..., F] for tokens [..., m] and weights [..., E]."""
        number, size = weight.shape[-1], x.shape[-1]
        of_input, of_hidden = (initialisers("torch", n, 1.0)[0] for n in (size, self.width))
        up = self.param("up", of_input, (number, size, self.width))
        up_bias = self.param("up_bias", of_input, (number, self.width))
        down = self.param("down", of_hidden, (number, self.width, self.features))
        down_bias = self.param("down_bias", of_input, (number, self.features))
        # One product for all experts: one for each takes a CPU 1.6 times as long.
        rows, weight = x.reshape(-1, size), weight.reshape(-1, number)
        hidden = rows @ jnp.moveaxis(up, 0, 1).reshape(size, -1) + up_bias.ravel()
        hidden = ACTIVATIONS[self.activation](hidden).reshape(-1, number, self.width)
        if dropout is not None:
            hidden = dropout(hidden, place)
        hidden = (weight[..., None] * hidden).reshape(len(rows), -1)
        y = hidden @ down.reshape(-1, self.features) + weight @ down_bias
        return y.reshape(*x.shape[:-1], self.features)


class Mixtures(Module):
    """Both mixtures."""

    sizes: Sizes
    activation: Activation = "leaky_relu"

    @nn.compact
    def __call__(
        self, x: Array, dropout: Dropout | None = None, trains: GateTraining | None = None
    ) -> tuple[Array, Losses]:
        """Outputs [..., N, m] for tokens [..., N, m], and in training the losses of a batch [B, N,
        m], whose halves have the same tasks.
        """
        number, features = self.sizes.chosen, x.shape[-1] // 2
        of_tokens = Router(self.sizes.tokens, name="token_gate")(x)
        noise = self.param("noise", nn.initializers.zeros_init(), (x.shape[-1], self.sizes.tokens))
        of_tasks = Router(self.sizes.tasks, name="task_gate")(x)
        contrast = self.param("contrast", nn.initializers.normal(1.0), (self.sizes.tasks,) * 2)
        noisy, losses = of_tokens, Losses()
        if trains is not None:
            scale = jax.nn.softplus(x @ noise) + NOISE
            drawn = scale * jax.random.normal(trains.key, scale.shape)
            noisy = of_tokens + drawn
            target = logits(jax.lax.stop_gradient(x), trains.target_gate)
            losses = Losses(
                balance=_balance(of_tokens, noisy, drawn, scale, number),
                contrast=_contrast(of_tasks, jax.lax.stop_gradient(target), contrast),
            )
        sizes = (self.sizes.width, features, self.activation)
        outputs = [
            Experts(*sizes, name=name)(x, weights(gate, number), dropout, place)
            for place, name, gate in ((1, "tokens", noisy), (2, "tasks", of_tasks))
        ]
        return jnp.concatenate(outputs, axis=-1), losses


def weights(gate: Array, number: int) -> Array:
    """p [..., E] of logits [..., E]."""
    largest, index = jax.lax.top_k(gate, number)
    share = jax.nn.softmax(largest, axis=-1)
    return (share[..., None] * jax.nn.one_hot(index, gate.shape[-1])).sum(axis=-2)


def _balance(plain: Array, noisy: Array, drawn: Array, scale: Array, number: int) -> Array:
    """The balance of logits [..., E], with the noise that was `drawn`."""
    axes = tuple(range(plain.ndim - 1))
    weight = weights(noisy, number)
    if number == plain.shape[-1]:
        load = (weight > 0).astype(weight.dtype).sum(axis=axes)
        return _variation(weight.sum(axis=axes)) + _variation(load)
    largest, _ = jax.lax.top_k(noisy, number + 1)
    if_in, if_out = largest[..., number, None], largest[..., number - 1, None]
    # The authors compare the noise alone, and not the noisy logits.
    threshold = jnp.where(drawn > if_in, if_in, if_out)
    chance = jax.scipy.stats.norm.cdf((plain - threshold) / scale)
    return _variation(weight.sum(axis=axes)) + _variation(chance.sum(axis=axes))


def _variation(x: Array) -> Array:
    """The squared coefficient of variation [] of numbers [E]."""
    return x.var(ddof=1) / (jnp.square(x.mean()) + EPSILON)


def _contrast(gate: Array, target: Array, matrix: Array) -> Array:
    """The contrast of logits [B, N, E]."""
    z, others = (x[:, 1:].mean(axis=1) for x in (gate, target))  # [B, E]
    half = len(z) // 2
    parts = []
    for own, other in ((z[:half], others[half:]), (z[half:], others[:half])):
        log_probs = jax.nn.log_softmax(own @ matrix @ other.T, axis=-1)
        parts.append(-jnp.diagonal(log_probs).mean())
    return 0.5 * parts[0] + 0.5 * parts[1]
