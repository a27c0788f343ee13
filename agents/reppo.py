"""REPPO [on-policy]: SAC's policy gradient on rollouts, near the last policy.

gamma discount, lambda trace decay, Q critic, f its features
pi actor, pi_k the rollout's, alpha temperature, beta multiplier
a'_t ~ pi_k(.|s'_t),  a~ ~ pi(.|s),  f'_t those of s'_t, a'_t
g, h the critic's predictions of f' and r, F the size of f
  S_t      = Q_k(s'_t, a'_t) - alpha log pi_k(a'_t|s'_t)
  G_t      = r_t + gamma (1 - terminated_t) S_t
             at ends and in the last step, elsewhere
           = r_t + gamma (S_t + lambda (G_{t+1} - Q_k(s'_t, a'_t)))
  L(Q)     = mean (l(Q(s, a), G) + cost e)   l: HL-Gauss [3]
  e        = (1 - terminated) (|g - f'|^2 + (h - r)^2) / (F + 1)
  KL       = mean_i log pi_k(a_i|s) / pi(a_i|s),  a_i ~ pi_k
  L(pi)    = mean (alpha log pi(a~|s) - Q(s, a~) if KL < bound,
             else beta KL)
  L(alpha) = mean alpha (-log pi(a~|s) - target_entropy)
  L(beta)  = mean beta (bound - KL)

Departs from [2]: it bootstraps at time limits.

[1] Voelcker et al., REPPO, arXiv:2507.11019
[2] github.com/cvoelcker/reppo
[3] Farebrother et al., Stop Regressing, arXiv:2403.03950

  rljax train reppo --env playground/CheetahRun
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, encoders, heads, noise, normalise
from rljax.networks.blocks.predictive import PredictiveCritic
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import optimisers
from rljax.requirements import Count, NonNegative, Positive, Real, Share, Widths

LIMIT = 0.999  # of actions; [2]


@agent.config
class Config(networks.WithOptimiser, encoders.WithCriticParts):
    """Hyperparameters."""

    # Optimisation
    learning_rate: NonNegative = 3e-4  # of Adam; [2]
    decay_steps: Positive | None = None  # share of the run to rate 0; [2]: none
    max_grad_norm: NonNegative = 0.5  # 0: no limit; [2]
    num_epochs: Count = 4  # passes over each rollout; [2]
    batch_size: int = 512  # transitions per minibatch; own choice
    # Experience
    num_envs: int = 64  # side by side; own choice, [2]: 1,024
    num_steps: int = 64  # per environment; own choice, [2]: 128
    # Targets
    discount: Share = 0.99  # gamma; [2]
    trace_decay: Share = 0.95  # lambda; [2]
    reward_scale: Positive = 1.0  # factor on rewards; [2]: 0.1 on Brax
    normalise_rewards: bool = True  # by the std of returns; own choice, [2]: off
    value_head: heads.Kind = "hl_gauss"  # what the critic learns; [2]
    bins: Count = 151  # classes of values; [2]
    v_min: Real = -10.0  # lower end of the bins; [2] for humanoids
    v_max: Real = 10.0  # upper end of the bins; [2] for humanoids
    prediction_cost: NonNegative = 1.0  # weight of e; [2]
    # Policy
    kl_bound: Positive = 0.1  # KL from which it counts alone; [2]
    kl_samples: Count = 16  # actions for KL, in each state; [2]
    init_multiplier: Positive = 0.01  # beta at first; [2]
    init_temperature: Positive = 0.01  # alpha at first; [2]
    target_entropy_share: Real = 0.5  # of -A, the target; [2]
    min_std: NonNegative = 0.1  # added to the policy's std; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256)  # of the actor; own choice, [2]: 512
    critic_hidden: Widths = (256,)  # of the critic's three parts; [2]: 512
    embedding_size: Count = 256  # F; [2]: 512
    activation: networks.Activation = "silu"  # of hidden layers; [2]
    initialisation: networks.Initialisation = "lecun_normal"  # of all layers; [2]
    layer_norm: networks.Norm = "rms"  # of hidden layers; [2]
    normalise_observations: bool = True  # by running statistics; [2]


class Policy(struct.PyTreeNode):
    """What the actor's optimiser moves."""

    actor: networks.Network  # [O] -> [2 A]: mean and log std
    log_temperature: Array  # []
    log_multiplier: Array  # []


class State(struct.PyTreeNode):
    """What learning changes."""

    policy: networks.Trained  # Policy
    critic: networks.Trained  # [O], [A] -> Q [K], f [F], predictions [F + 1]
    returns: normalise.Returns  # of running episodes [E]


def experience(config: Config) -> buffers.Rollout:
    """Each iteration's steps, once."""
    return buffers.Rollout.of(config, learns_until=config.decay_steps)


def schedule(config: Config, steps: float) -> Config:
    """Turn shares of the run into numbers of steps."""
    return agent.in_steps(config, steps, "decay_steps")


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("reppo", spec, "ppo")
    heads.check_critics(config)
    encoders.check_with_parts(spec, config)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters: the first values are 0."""
    key_actor, key_critic = jax.random.split(key)
    encoding, head = EncoderSettings.of(config), heads.of_numbers(config)
    style = (config.activation, config.initialisation)
    net = networks.MLP(config.hidden, 2 * spec.action_size, *style, layer_norm=config.layer_norm)
    actor = encoders.create(spec, encoders.of_actor(config), net, key_actor)
    sizes = (config.critic_hidden, config.embedding_size, head.features)
    net = PredictiveCritic(*sizes, *style, config.layer_norm)
    net = encoders.encoded(spec, encoding, net)
    inputs = (spec.example(), jnp.zeros(spec.action_shape))
    zero = head.encode(jnp.zeros(()))
    critic = networks.create(net, key_critic, *inputs, first=zero)
    first = (config.init_temperature, config.init_multiplier)
    logs = [jnp.log(jnp.float32(x)) for x in first]
    return State(
        policy=networks.Trained.create(Policy(actor, *logs), optimiser(0, config)),
        critic=networks.Trained.create(critic, optimiser(0, config)),
        returns=normalise.create_returns(config.num_envs),
    )


def optimiser(step: Array | int, config: Config) -> optax.GradientTransformation:
    """Both networks' optimiser, after `step` [] rollouts."""
    rate = optimisers.decayed(config, step)
    return networks.optimiser(rate, step, config)


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]."""
    pi = distribution(state.policy.parameters.actor, observation, config)
    action, _ = noise.action(pi, key, explore)
    return jnp.clip(action, -LIMIT, LIMIT), {}


def distribution(
    actor: networks.Network, observation: Any, config: Config
) -> distributions.Distribution:
    """pi(.|s) for observations [..., O]."""
    return distributions.squashed_above(actor(observation), config.min_std)


def with_targets(state: State, batch: Transition, key: Array, config: Config) -> Transition:
    """A rollout with G [T, E] and f' [T, E, F] in its extras."""
    old = state.policy.parameters
    pi = distribution(old.actor, batch.next_observation, config)
    next_action, log_prob = pi.sample_and_log_prob(seed=key)
    outputs, features, _ = state.critic(batch.next_observation, next_action)
    value = heads.of_numbers(config).mean(outputs)
    soft = value - jnp.exp(old.log_temperature) * log_prob
    ended = (batch.terminated | batch.truncated).at[-1].set(True)
    discount = config.discount * (1.0 - batch.terminated)
    share = config.trace_decay * (1.0 - ended)  # of G_{t+1}
    gain = batch.reward + discount * (soft - share * value)
    target = buffers.discounted_sums(gain, discount * share)
    extras = {**batch.extras, "target": target, "next_features": features}
    return batch.replace(next_observation=None, extras=extras)


def critic_loss(critic: networks.Network, batch: Transition, config: Config) -> Loss:
    """Distance to the targets, and errors of the predictions."""
    head, target = heads.of_numbers(config), batch.extras["target"]
    outputs, _, prediction = critic(batch.observation, batch.action)
    loss = head.loss(outputs, head.encode(target)).mean()
    following = [batch.extras["next_features"], batch.reward[..., None]]
    error = jnp.square(prediction - jnp.concatenate(following, axis=-1))
    error = ((1.0 - batch.terminated) * error.mean(axis=-1)).mean()
    metrics = {"critic/loss": loss, "critic/prediction_error": error}
    metrics |= {"critic/q": head.mean(outputs).mean(), "critic/target": target.mean()}
    return loss + config.prediction_cost * error, metrics | head.clipped(target)


def actor_loss(
    policy: Policy, state: State, old: Policy, batch: Transition, key: Array, config: Config
) -> Loss:
    """The policy's loss, and those of alpha and beta."""
    key_action, key_divergence = jax.random.split(key)
    pi = distribution(policy.actor, batch.observation, config)
    action, log_prob = pi.sample_and_log_prob(seed=key_action)
    outputs, _, _ = state.critic(batch.observation, action)
    q = heads.of_numbers(config).mean(outputs)
    pi_k = distribution(old.actor, batch.observation, config)
    kl = distributions.sampled_kl(pi_k, pi, key_divergence, config.kl_samples)
    temperature = jnp.exp(policy.log_temperature)
    multiplier = jnp.exp(policy.log_multiplier)
    alpha, beta = jax.lax.stop_gradient((temperature, multiplier))
    improves = kl < config.kl_bound
    loss = jnp.where(improves, alpha * log_prob - q, beta * kl).mean()
    excess = config.target_entropy_share * action.shape[-1] - log_prob
    dual_loss = temperature * jax.lax.stop_gradient(excess).mean()
    dual_loss += multiplier * jax.lax.stop_gradient(config.kl_bound - kl).mean()
    return loss + dual_loss, {
        "actor/loss": loss,
        "actor/entropy": -log_prob.mean(),
        "actor/kl": kl.mean(),
        "actor/improves": improves.mean(),
        "temperature/value": temperature,
        "multiplier/value": multiplier,
    }


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Learn from one rollout [T, E, ...] in minibatches."""
    key_target, key_epochs = jax.random.split(key)
    batch = batch.replace(reward=config.reward_scale * batch.reward)
    if config.normalise_rewards:
        returns, batch = normalise.scale_rollout(state.returns, batch, config.discount)
        state = state.replace(returns=returns)
    rollout = with_targets(state, batch, key_target, config)
    adam, old = optimiser(step, config), state.policy.parameters

    def learn(state: State, minibatch: tuple[Transition, Array]) -> tuple[State, Metrics]:
        batch, key = minibatch
        critic, metrics = state.critic.step(adam, critic_loss, batch, config)
        inputs = (state.replace(critic=critic), old, batch, key, config)
        policy, actor_metrics = state.policy.step(adam, actor_loss, *inputs)
        return state.replace(critic=critic, policy=policy), metrics | actor_metrics

    def epoch(state: State, key: Array) -> tuple[State, Metrics]:
        key_order, key_loss = jax.random.split(key)
        (rows,) = buffers.minibatches(key_order, (rollout,), config.batch_size)
        keys = jax.random.split(key_loss, len(rows.reward))
        return jax.lax.scan(learn, state, (rows, keys))

    keys = jax.random.split(key_epochs, config.num_epochs)
    state, metrics = jax.lax.scan(epoch, state, keys)
    return state, jax.tree.map(jnp.mean, metrics)


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
