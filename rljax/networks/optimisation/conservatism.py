"""Conservative penalties on values of actions that the data lack.

With the data's action a, and 3 N candidates a_k of density p_k, N each of U[-1, 1]^A, pi(.|s),
pi(.|s'):

  G    = T log sum_k exp((Q(s, a_k) - log p_k) / T) - Q(s, a)    the gap
  P    = w G, or m (w G - tau)                                   with a multiplier m
  L(m) = -P                                                      [1, eq. 30], learnt as log m

P is that of [1, eq. 4]. With `min_critics` targets are the smallest value of some random critics,
and the gaps are those of some others [2].

[1] Kumar et al., arXiv:2006.04779
[2] github.com/zhouzypaul/wsrl (891ee35), wsrl/agents/cql.py
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rljax.agent import Array, Loss, Metrics, Number, Transition, config
from rljax.networks.ensembles import smallest_of_subset
from rljax.networks.optimisation.temperatures import Temperature
from rljax.networks.optimisation.trained import Trained
from rljax.requirements import Between, Count, NonNegative, Real, require_order, require_subset

Backup = Literal["deterministic", "entropy", "max", "max_of_min"]
Part = tuple[Transition, "Candidates"]  # of a batch, and the actions that are drawn for it
Multiplier = Annotated[float, Between(1e-8, 1e6)]


@config
class WithConservatism:
    """Settings of a conservative penalty: a base of an agent's Config."""

    backup: Backup = "deterministic"  # of Q' in the target; CQL's code
    min_critics: int | None = None  # random ones that count; 2 in WSRL
    num_parts: Count = 4  # of a batch, for speed; 1 on a GPU
    penalty_weight: NonNegative = 10.0  # w, of the gap; CQL's code and CORL for gym
    num_actions: Count = 10  # N, candidates of each kind; CQL's code
    importance_sampling: bool = True  # False: p_k = 1, and a is a candidate; CQL's code
    gap_temperature: Temperature = 1.0  # T, of the soft maximum; CQL's code
    gap_min: Real | None = None  # lower clip of a gap; -200 in CORL for antmaze
    gap_max: Real | None = None  # upper clip of a gap; CQL's code
    lagrange: bool = False  # learn the multiplier m that keeps the gap at tau; CQL's code
    target_gap: Real = 5.0  # tau, the weighted gap above which m rises; CQL's code for antmaze
    weighted_target: bool = False  # m w (G - tau): tau is a gap without w; True in CORL
    init_multiplier: Multiplier = 1.0  # m at the start; CQL's code, e in CORL


class Candidates(NamedTuple):
    """Actions of a policy and uniform ones; the batch comes first."""

    action: Array  # [B, 1 + N, A] of pi(.|s)
    next_action: Array  # the same of pi(.|s')
    uniform: Array  # [B, N, A]
    log_prob: Array  # [B, 1 + N]
    next_log_prob: Array

    def actions_first(self) -> Candidates:
        """The same without gradients, as [1 + N, B, ...]."""
        return Candidates(*[jax.lax.stop_gradient(x.swapaxes(0, 1)) for x in self])

    def actions(self) -> Array:
        """Those of the soft maximum [3 N, B, A], where actions come first."""
        return jnp.concatenate([self.uniform, self.action[1:], self.next_action[1:]])

    def log_density(self) -> Array:
        """log p_k [3 N, B], where actions come first."""
        uniform = jnp.full_like(self.log_prob[1:], -self.uniform.shape[-1] * jnp.log(2.0))
        return jnp.concatenate([uniform, self.log_prob[1:], self.next_log_prob[1:]])


def candidates(policy: Any, key: Array, number: int) -> Candidates:
    """Draw 1 + N actions in each state of `policy`, of s and then s' [2 B], and N uniform."""
    key_policy, key_uniform = jax.random.split(key)
    samples = policy.sample_and_log_prob(seed=key_policy, sample_shape=1 + number)
    (action, next_action), (log_prob, next_log_prob) = (jnp.split(x, 2, axis=1) for x in samples)
    uniform = jax.random.uniform(key_uniform, action[1:].shape, minval=-1.0, maxval=1.0)
    drawn = (action, next_action, uniform, log_prob, next_log_prob)
    return Candidates(*[x.swapaxes(0, 1) for x in drawn])


def next_values(
    target_critic: Any,
    batch: Transition,
    samples: Candidates,
    key: Array,
    settings: WithConservatism,
) -> Array:
    """The smallest value [B] of an action in s', without entropy; actions come first in `samples`.

    The action is the policy's first, or the best of N: by each critic before the smallest is taken
    ("max"), or by the smallest ("max_of_min"). `key` draws the critics that count, with
    replacement as in [2].
    """
    best = settings.backup in ("max", "max_of_min")
    action = samples.next_action[1:] if best else samples.next_action[:1]
    q = target_critic(batch.next_observation, action)  # [C, N or 1, B]
    if settings.backup == "max":
        q = q.max(axis=1, keepdims=True)
    q = smallest_of_subset(q, settings.min_critics, key, with_replacement=True)
    return q.max(axis=0)


def gap(q: Array, samples: Candidates, key: Array, settings: WithConservatism) -> Array:
    """G [C], the mean over a batch, of values [C, 1 + 3 N, B]: of the data's action and
    `samples.actions()`.

    With `min_critics`, `key` draws some critics, with replacement. A gap is multiplied by C over
    their number as often as its critic is drawn.
    """
    logits = q[:, 1:] - samples.log_density() if settings.importance_sampling else q
    temperature = settings.gap_temperature
    soft_maximum = temperature * jax.nn.logsumexp(logits / temperature, axis=1)  # [C, B]
    gap = jnp.clip(soft_maximum - q[:, 0], settings.gap_min, settings.gap_max).mean(axis=-1)
    if settings.min_critics is None:
        return gap
    size = len(gap)
    drawn = jax.random.choice(key, size, (settings.min_critics,))
    return gap * jax.nn.one_hot(drawn, size).mean(axis=0) * size


def penalty(log_multiplier: Array, gap: Array, settings: WithConservatism) -> Array:
    """P of gaps [...]."""
    if not settings.lagrange:
        return settings.penalty_weight * gap
    multiplier, weight = jnp.clip(jnp.exp(log_multiplier), 0.0, 1e6), settings.penalty_weight
    target_gap = weight * settings.target_gap if settings.weighted_target else settings.target_gap
    return multiplier * (weight * gap - target_gap)


def check(settings: WithConservatism, num_critics: int, batch_size: int) -> None:
    """Raise `ValueError` for settings that do not fit each other."""
    require_order(settings, "gap_min", "gap_max")
    require_subset(settings.min_critics, num_critics)
    number = settings.num_parts
    if batch_size % number:
        batch = f"the batch of {batch_size}"
        raise ValueError(f"--config.num-parts is {number}, it must divide {batch}.")


def create_multiplier(settings: WithConservatism, learning_rate: Number) -> Trained:
    """log m [] before the first step of Adam."""
    log_multiplier = jnp.log(jnp.asarray(settings.init_multiplier, jnp.float32))
    return Trained.create(log_multiplier, optax.adam(learning_rate))


def multiplier_loss(log_multiplier: Array, gap: Array, settings: WithConservatism) -> Loss:
    """L(m) of the mean gap []."""
    loss = -penalty(log_multiplier, gap, settings)
    return loss, {"multiplier/loss": loss, "multiplier/value": jnp.exp(log_multiplier)}


def step_multiplier(
    log_multiplier: Trained, gap: Array, settings: WithConservatism, learning_rate: Number
) -> tuple[Trained, Metrics]:
    """log m after one step on the mean gap [], if it is learnt, and metrics."""
    if not settings.lagrange:
        return log_multiplier, {}
    return log_multiplier.step(optax.adam(learning_rate), multiplier_loss, gap, settings)
