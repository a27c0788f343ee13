"""FamO2O [hybrid]: IQL with a policy for each inverse temperature.

The actor sees the inverse temperature beta and learns for a range of it.
The balance policy b chooses beta in each state, as SAC's actor would.

gamma discount, V value, Q_c critics, Q'_c targets, pi actor, tau expectile,
alpha temperature of b
x ~ b(.|s), a~ ~ pi(.|s, beta(x)), x^ ~ U(-1, 1), online x^ ~ b(.|s)
  beta(x)  = beta_min + (beta_max - beta_min) (x + 1) / 2
  Q(s, a)  = min_c Q'_c(s, a),  u = Q(s, a) - V(s)
  L(V)     = mean [ |tau - 1(u < 0)| u^2 ]  IQL's
  L(b)     = mean [ alpha log b(x|s) - Q(s, a~) ]  [2]
  L(alpha) = mean [ -alpha (log b(x|s) + target_entropy) ]  [2]
  w        = min(exp(beta(x^) (Q(s, a) - V(s))), max_weight)  V after its step
  L(pi)    = mean [ -w log pi(a|s, beta(x^)) ]  [2]
  y        = r + gamma (1 - terminated) V(s')  V after its step
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2
  Q'_c    <- (1 - rho) Q'_c + rho Q_c  rho: target_rate

Departs from the paper: this is its form on IQL [2], with each row's own beta in w.

[1] Wang et al., Train Once, Get a Family, arXiv:2310.17966
[2] github.com/LeapLabTHU/FamO2O, jax_iql

  rljax train famo2o --data d4rl/antmaze-umaze-v2 --then-online 1000000
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import Actor, distributions, encoders
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import expectiles, temperatures
from rljax.networks.optimisation.temperatures import Temperature, TemperatureSettings
from rljax.requirements import Count, LogStd, NonNegative, Real, Share, Widths


@agent.config
class Config(networks.WithCritics, buffers.DatasetSettings):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam; [2]
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    value_lr: NonNegative = 3e-4  # of Adam; [2]
    balance_lr: NonNegative = 3e-4  # of Adam; [2]
    temperature_lr: NonNegative = 3e-4  # of Adam; [2]
    batch_size: int = 256  # transitions per update; [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    expectile: Share = 0.7  # tau: 0.5 is the mean; IQL
    # Policy
    inverse_temperature_min: NonNegative = 1.0  # least beta: 0 imitates; [2]
    inverse_temperature_max: NonNegative = 5.0  # largest beta; [2]
    max_weight: NonNegative = 100.0  # bound of the weights; [2]
    shared_weights: bool = False  # w is a mean over all rows' beta; True in [2]
    log_std_min: LogStd = -5.0  # lower clip of log std; [2]
    log_std_max: LogStd = 2.0  # upper clip of log std; [2]
    init_temperature: Temperature = 1.0  # alpha at the start; [2]
    target_entropy: Real = -0.5  # of b, in nats; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256)  # of all networks; [2]
    num_critics: Count = 2  # C; the smallest counts; [2]
    activation: networks.Activation = "relu"  # of hidden layers; [2]
    num_frequencies: Count = 3  # of beta; [2]
    initialisation: networks.Initialisation = "orthogonal"  # gain sqrt 2; [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # Actor of [O] and beta's waves
    balance: networks.Trained  # Actor, [O] -> [1]: x before tanh
    critic: networks.Trained  # [O], [A] -> [C]
    value: networks.Trained  # [O] -> [1]
    target_critic: networks.Network
    log_temperature: networks.Trained  # []
    online: Array  # [] bool: whether new experience has come


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches; online, half are new experience."""
    columns = (buffers.Source(),)
    online = buffers.Replay.of(config, columns=columns)
    return buffers.Dataset.of(config, columns=columns, online=online)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("famo2o", spec)
    agent.require_order(config, "inverse_temperature_min", "inverse_temperature_max")
    agent.require_order(config, "log_std_min", "log_std_max")
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets equal the critics."""
    key_actor, key_critic, key_value, key_balance = jax.random.split(key, 4)
    encoding = EncoderSettings.of(config)
    action = jnp.zeros(spec.action_shape)
    angles = jnp.zeros(2 * config.num_frequencies)
    style = (config.activation, config.initialisation)
    gain = 2.0**0.5
    net = networks.MLP(config.hidden, spec.action_size, *style, output_scale=gain)
    mean = encoders.create(spec, encoding, net, key_actor, angles)
    actor = Actor(mean, log_std=jnp.zeros(spec.action_size))
    net = networks.MLP(config.hidden, 1, *style, output_scale=gain)
    mean = encoders.create(spec, encoding, net, key_balance)
    balance = Actor(mean, log_std=jnp.zeros(1))
    net = networks.MLP(config.critic_widths, 1, *style, output_scale=gain)
    value = encoders.create(spec, encoding, net, key_value)
    net = networks.Ensemble(config.num_critics, config.critic_widths, *style, output_scale=gain)
    critic = encoders.create(spec, encoding, net, key_critic, action)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        balance=networks.trained(balance, config.balance_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        value=networks.trained(value, config.value_lr, config),
        target_critic=networks.copy(critic),
        log_temperature=temperatures.create(config),
        online=jnp.zeros((), bool),
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]."""
    actor, balance = state.actor.parameters, state.balance.parameters
    beta = inverse_temperature(jnp.tanh(balance.mean(observation)[..., 0]), config)
    action = policy(actor, observation, beta, config)
    if not explore:
        return action, {}
    noise = std(actor, config) * jax.random.normal(key, action.shape)
    return jnp.clip(action + noise, -1.0, 1.0), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A]."""
    return state.critic(observation, action).mean(axis=0)


def inverse_temperature(x: Array, config: Config) -> Array:
    """beta of x in [-1, 1], of the same shape."""
    width = config.inverse_temperature_max - config.inverse_temperature_min
    return config.inverse_temperature_min + 0.5 * (x + 1.0) * width


def balance_policy(balance: Actor, observation: Array) -> distributions.SquashedGaussian:
    """b(.|s) over x [..., 1] for observations [..., O]."""
    mean = balance.mean(observation)
    log_std = jnp.clip(balance.log_std, -10.0, 2.0)  # [2]
    return distributions.squashed_gaussian(mean, jnp.broadcast_to(log_std, mean.shape))


def policy(actor: Actor, observation: Array, beta: Array, config: Config) -> Array:
    """The mean mu(s, beta) [..., A] of beta [...]."""
    exponent = jnp.arange(config.num_frequencies) / config.num_frequencies
    angle = beta[..., None] / 10_000.0**exponent
    return jnp.tanh(actor.mean(observation, jnp.sin(angle), jnp.cos(angle)))


def std(actor: Actor, config: Config) -> Array:
    """The policy's std [A]."""
    return jnp.exp(jnp.clip(actor.log_std, config.log_std_min, config.log_std_max))


def balance_loss(
    balance: Actor, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Weighted log b(x|s) minus the actions' value."""
    key_x, key_action = jax.random.split(key)
    b = balance_policy(balance, batch.observation)
    x, log_prob = b.sample_and_log_prob(seed=key_x)  # [B, 1], [B]
    beta = inverse_temperature(x[:, 0], config)
    actor = state.actor.parameters
    mean = policy(actor, batch.observation, beta, config)
    action = mean + std(actor, config) * jax.random.normal(key_action, mean.shape)
    q = networks.smallest(state.target_critic(batch.observation, action))  # [B]
    loss = (jnp.exp(state.log_temperature.parameters) * log_prob - q).mean()
    return loss, {
        "balance/loss": loss,
        "balance/q": q.mean(),
        "balance/entropy": -log_prob.mean(),
        "balance/beta": beta.mean(),
        "balance/beta_std": beta.std(),
    }


def actor_loss(
    actor: Actor, advantage: Array, beta: Array, batch: Transition, config: Config
) -> Loss:
    """-log pi(a|s, beta), weighted by advantage and beta [B]."""
    exponent = (beta[:, None] if config.shared_weights else beta[None]) * advantage[None]
    weight = jnp.minimum(jnp.exp(exponent), config.max_weight).mean(axis=0)  # [B]
    mean = policy(actor, batch.observation, beta, config)
    pi = distributions.gaussian(mean, std(actor, config))
    loss = -(weight * pi.log_prob(batch.action)).mean()
    return loss, {
        "actor/loss": loss,
        "actor/advantage": advantage.mean(),
        "actor/weight": weight.mean(),
    }


def critic_loss(critic: networks.Network, next_v: Array, batch: Transition, config: Config) -> Loss:
    """Squared error of the critics, from V(s') [B]."""
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * next_v
    q = critic(batch.observation, batch.action)  # [C, B]
    loss = jnp.square(q - target).mean(axis=-1).sum()
    return loss, {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of the networks and alpha."""
    key_balance, key_uniform, key_x = jax.random.split(key, 3)
    q = state.target_critic(batch.observation, batch.action).min(axis=0)  # [B]
    optimiser = networks.optimiser(config.value_lr, step, config)
    inputs = (q, batch.observation, config.expectile)
    value, value_metrics = state.value.step(optimiser, expectiles.loss, *inputs)
    v, next_v = expectiles.state_values(value, batch)

    optimiser = networks.optimiser(config.balance_lr, step, config)
    inputs = (state, batch, key_balance, config)
    balance, balance_metrics = state.balance.step(optimiser, balance_loss, *inputs)
    entropy = balance_metrics["balance/entropy"]
    settings = TemperatureSettings.of(config, temperature_loss="alpha")
    log_temperature, temperature_metrics = temperatures.step(
        state.log_temperature, entropy, 1, settings
    )

    online = state.online | ~batch.extras["offline"].all()  # and so it stays
    uniform = jax.random.uniform(key_uniform, batch.reward.shape, minval=-1.0, maxval=1.0)
    b = balance_policy(state.balance.parameters, batch.observation)
    x = jnp.where(online, b.sample(seed=key_x)[:, 0], uniform)
    beta = inverse_temperature(x, config)
    optimiser = networks.optimiser(config.actor_lr, step, config)
    actor, actor_metrics = state.actor.step(optimiser, actor_loss, q - v, beta, batch, config)

    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, next_v, batch, config)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    state = State(actor, balance, critic, value, target_critic, log_temperature, online)
    return state, metrics | value_metrics | balance_metrics | temperature_metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
