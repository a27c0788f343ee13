"""Noise-contrastive losses: which goal of a batch comes after which state.

x_ij scores of the state in row i with the goal in row j, whose own goal is that in row i

  binary    mean_ij [ softplus(x_ij) - 1(i = j) x_ij ]    cross-entropy of "is it its goal?" [1]
  info_nce  n_i = log sum_j exp(x_ij)
            mean_i [ n_i - x_ii + 0.1 n_i^2 ]             cross-entropy of "which goal?"  [2, 3]

Without n_i^2 a number of each row could be added to its scores. Of both directions, with
m_j = log sum_i exp(x_ij) and a penalty p, [3] has

  forward    mean_i [ n_i - x_ii + p n_i^2 ]
  backward   mean_i [ m_i - x_ii + p n_i^2 ]              cross-entropy of "which state?"
  symmetric  mean_i [ n_i + m_i - 2 x_ii + p n_i^2 ]

[1] Eysenbach et al., Contrastive Learning as Goal-Conditioned RL, arXiv:2206.07568
[2] van den Oord et al., Contrastive Predictive Coding, arXiv:1807.03748
[3] Bortkiewicz et al., JaxGCRL, arXiv:2408.11052, its code
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from rljax.agent import Array, Loss, Metrics, Number

Direction = Literal["forward", "backward", "symmetric"]
Kind = Literal["binary", "info_nce"]
PENALTY = 0.1  # of squared normalisers; [3]


def loss(score: Array, kind: Kind, name: str) -> Loss:
    """The loss of scores [C, B, B], and metrics of the part `name`."""
    diagonal = jnp.diagonal(score, axis1=1, axis2=2)  # [C, B]
    if kind == "binary":
        loss = jax.nn.softplus(score).mean() - diagonal.mean() / score.shape[-1]
    else:
        normaliser = jax.nn.logsumexp(score, axis=-1)  # [C, B]
        loss = (normaliser - diagonal + PENALTY * jnp.square(normaliser)).mean()
    return loss, {f"{name}/loss": loss, **metrics_of(score, name)}


def directed_loss(score: Array, direction: Direction, penalty: Number, name: str) -> Loss:
    """The loss of scores [B, B] of one critic, and metrics of the part `name`."""
    diagonal = jnp.diagonal(score)  # [B]
    goals, states = (jax.nn.logsumexp(score, axis=axis) for axis in (1, 0))  # n, m
    error = {
        "forward": goals - diagonal,
        "backward": states - diagonal,
        "symmetric": goals + states - 2.0 * diagonal,
    }[direction]
    loss = (error + penalty * jnp.square(goals)).mean()
    metrics = {f"{name}/loss": loss, f"{name}/normaliser": goals.mean()}
    return loss, metrics | metrics_of(score[None], name)


def metrics_of(score: Array, name: str) -> Metrics:
    """Means of scores [C, B, B] with own goals and with others, and how often the own one has the
    highest.
    """
    diagonal = jnp.diagonal(score, axis1=1, axis2=2)
    rest = (score.sum() - diagonal.sum()) / max(score.size - diagonal.size, 1)
    is_best = score.mean(axis=0).argmax(axis=-1) == jnp.arange(score.shape[-1])
    return {
        f"{name}/positive": diagonal.mean(),
        f"{name}/negative": rest,
        f"{name}/accuracy": is_best.mean(),
    }
