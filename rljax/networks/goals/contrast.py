"""Noise-contrastive losses: which goal of a batch comes after which state.

x_ij scores of the state in row i with the goal in row j, whose own goal is that in row i

  binary    mean_ij [ softplus(x_ij) - 1(i = j) x_ij ]    cross-entropy of "is it its goal?" [1]
  info_nce  n_i = log sum_j exp(x_ij)
            mean_i [ n_i - x_ii + 0.1 n_i^2 ]             cross-entropy of "which goal?"  [2, 3]

Without n_i^2 a number of each row could be added to its scores.

[1] Eysenbach et al., Contrastive Learning as Goal-Conditioned RL, arXiv:2206.07568
[2] van den Oord et al., Contrastive Predictive Coding, arXiv:1807.03748
[3] Bortkiewicz et al., JaxGCRL, arXiv:2408.11052, its code
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from rljax.agent import Array, Loss

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
    rest = (score.sum() - diagonal.sum()) / max(score.size - diagonal.size, 1)
    is_best = score.mean(axis=0).argmax(axis=-1) == jnp.arange(score.shape[-1])
    return loss, {
        f"{name}/loss": loss,
        f"{name}/positive": diagonal.mean(),
        f"{name}/negative": rest,
        f"{name}/accuracy": is_best.mean(),
    }
