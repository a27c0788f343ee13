"""FamO2O [hybrid]: IQL with a family of policies, and a second policy that chooses one.

The actor sees the inverse temperature beta, and learns for a whole range of it at once. The balance policy b chooses
beta for each state. It learns as SAC's actor does: which beta leads to the action with the highest value?

gamma discount, V value, Q_c critics, Q'_c their targets, pi actor, tau expectile, alpha temperature of b;  x ~ b(.|s),
beta(x) = beta_min + (beta_max - beta_min) (x + 1) / 2,  a~ ~ pi(.|s, beta(x));  x^ ~ U(-1, 1), or online x^ ~ b(.|s)
  Q(s, a)  = min_c Q'_c(s, a),  u = Q(s, a) - V(s)
  L(V)     = mean [ |tau - 1(u < 0)| u^2 ]                              IQL's
  L(b)     = mean [ alpha log b(x|s) - Q(s, a~) ]                       [2]; log b in nats of x in [-1, 1]
  L(alpha) = mean [ -alpha (log b(x|s) + target_entropy) ]              [2]; the gradient is that in log alpha
  w        = min(exp(beta(x^) (Q(s, a) - V(s))), max_weight)            V after its step
  L(pi)    = mean [ -w log pi(a|s, beta(x^)) ]                          [2]
  y        = r + gamma (1 - terminated) V(s')                           V after its step
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2                               IQL's
  Q'_c    <- (1 - rho) Q'_c + rho Q_c                                   rho target_rate

pi is a Gaussian as in IQL, whose network sees sines and cosines of beta. b is tanh of a Gaussian with the same std in
all states. To act, beta is that of x = tanh(mean), from data and online alike.

Departs from the paper: this is its form on IQL, as in the authors' code [2], and not the one on CQL. In [2] the product
of beta [B, 1] and the advantage [B] is a matrix, so that a row's weight is a mean over all betas of the batch; here it
is that of its own beta. In [2] x and the noise of a~ come from one random key; here they are independent.

[1] Wang et al., Train Once, Get a Family: State-Adaptive Balances for Offline-to-Online RL, arXiv:2310.17966
[2] github.com/LeapLabTHU/FamO2O, jax_iql

  rljax train famo2o --data d4rl/antmaze-umaze-v2 --then-online 1000000 --offline-share pooled
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import Actor, distributions, normalise


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    actor_lr: float = 3e-4  # Adam learning rate of the actor; [2]
    critic_lr: float = 3e-4  # Adam learning rate of the critics; [2]
    value_lr: float = 3e-4  # Adam learning rate of the value; [2]
    balance_lr: float = 3e-4  # Adam learning rate of the balance policy; [2]
    temperature_lr: float = 3e-4  # Adam learning rate of log alpha; [2]
    batch_size: int = 256  # transitions per update; [2]
    # Experience
    reward_transform: buffers.RewardTransform = "none"  # of the data set's rewards, before any update; presets
    normalise_observations: bool = False  # by the data set's mean and std; [2]
    replay_size: int = 1_000_000  # online: transitions kept beside the data set; own choice
    warmup_steps: int = 0  # online: environment steps with uniform actions and no update; [2]
    num_envs: int = 1  # online: environments stepped side by side
    num_steps: int = 1  # online: steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [2]
    target_rate: float = 0.005  # rho, share of the online critics in the targets per update; [2]
    expectile: float = 0.7  # tau, in [0, 1]: 0.5 is the mean, towards 1 the maximum; IQL's for locomotion
    # Policy
    inverse_temperature_min: float = 1.0  # least beta: 0 imitates the data, more follows the advantage; [2]
    inverse_temperature_max: float = 5.0  # largest beta; IQL's own should lie between both, 3 for locomotion; [2]
    max_weight: float = 100.0  # bound of the weights; [2]
    log_std_min: float = -5.0  # lower clip of log std; [2]
    log_std_max: float = 2.0  # upper clip of log std; [2]
    init_temperature: float = 1.0  # alpha at the start; [2]
    target_entropy: float = -0.5  # of the balance policy, in nats of x in [-1, 1]; [2]
    # Networks
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers, of all networks; [2]
    num_critics: int = 2  # C; the smallest value counts; [2]
    activation: networks.Activation = "relu"  # of the hidden layers; [2]
    num_frequencies: int = 3  # of the sines, and of the cosines, as which the actor sees beta; [2]
    initialisation: networks.Initialisation = "orthogonal"  # of all layers, with gain sqrt 2; [2]


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: Actor  # of [O] and beta as [2 num_frequencies]
    balance: Actor  # [O] -> [1]: x before tanh
    critic: networks.Network  # [O], [A] -> [C]
    value: networks.Network  # [O] -> [1]
    target_critic: networks.Network
    log_temperature: Array  # []
    online: Array  # [] bool: whether new experience has come
    actor_optimiser: optax.OptState
    balance_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    value_optimiser: optax.OptState
    temperature_optimiser: optax.OptState
    statistics: normalise.Statistics  # of observations [O]


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches of a data set; online, half of each batch is new experience."""
    online = buffers.Replay(
        replay_size=config.replay_size,
        batch_size=config.batch_size,
        warmup_steps=config.warmup_steps,
        num_envs=config.num_envs,
        num_steps=config.num_steps,
        num_updates=config.num_updates,
        columns=(buffers.Source(),),
    )
    return buffers.Dataset(
        batch_size=config.batch_size,
        num_updates=config.num_updates,
        reward_transform=config.reward_transform,
        columns=(buffers.Source(),),
        online=online,
    )


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a discrete action space or a hyperparameter out of range."""
    agent.require_vectors("famo2o", spec)
    agent.require_widths(config, "hidden")
    agent.require_continuous("famo2o", spec)
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, value_lr=(0, None), expectile=(0, 1), balance_lr=(0, None), temperature_lr=(0, None))
    agent.require_range(config, inverse_temperature_min=(0, None), inverse_temperature_max=(0, None))
    agent.require_order(config, "inverse_temperature_min", "inverse_temperature_max")
    agent.require_range(config, max_weight=(0, None), init_temperature=(1e-8, None), target_entropy=(None, None))
    agent.require_range(config, log_std_min=(-30, 30), log_std_max=(-30, 30))
    agent.require_order(config, "log_std_min", "log_std_max")
    agent.require_at_least(config, num_critics=1, num_frequencies=1)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the critics."""
    key_actor, key_critic, key_value, key_balance = jax.random.split(key, 4)
    observation, action = jnp.zeros(spec.observation_shape), jnp.zeros(spec.action_shape)
    style, gain = (config.activation, config.initialisation), 2.0**0.5
    mean = networks.MLP(config.hidden, spec.action_size, *style, output_scale=gain)
    mean = networks.create(mean, key_actor, observation, jnp.zeros(2 * config.num_frequencies))
    actor = Actor(mean, log_std=jnp.zeros(spec.action_size))
    head = networks.MLP(config.hidden, 1, *style, output_scale=gain)
    balance = Actor(networks.create(head, key_balance, observation), log_std=jnp.zeros(1))
    ensemble = networks.Ensemble(config.num_critics, config.hidden, *style, output_scale=gain)
    critic = networks.create(ensemble, key_critic, observation, action)
    value = networks.create(head, key_value, observation)
    log_temperature = jnp.log(jnp.asarray(config.init_temperature, jnp.float32))
    return State(
        actor=actor,
        balance=balance,
        critic=critic,
        value=value,
        target_critic=networks.copy(critic),
        log_temperature=log_temperature,
        online=jnp.zeros((), bool),
        actor_optimiser=optax.adam(config.actor_lr).init(actor),
        balance_optimiser=optax.adam(config.balance_lr).init(balance),
        critic_optimiser=optax.adam(config.critic_lr).init(critic),
        value_optimiser=optax.adam(config.value_lr).init(value),
        temperature_optimiser=optax.adam(config.temperature_lr).init(log_temperature),
        statistics=normalise.create(spec.observation_shape),
    )


def prepare(state: State, data: Transition, config: Config) -> State:
    """Count the observations of a data set [N, O] into the input statistics."""
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.of_data(data.observation))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O] by the balance policy's tanh(mean): the mean, or a sample."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    beta = inverse_temperature(jnp.tanh(state.balance.mean(observation)[..., 0]), config)
    action = policy(state.actor, observation, beta, config)
    if not explore:
        return action, {}
    return jnp.clip(action + std(state.actor, config) * jax.random.normal(key, action.shape), -1.0, 1.0), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A] for observations [..., O]."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
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
    """The policy's mean, mu(s, beta), [..., A] for observations [..., O] and beta [...]."""
    angle = beta[..., None] / 10_000.0 ** (jnp.arange(config.num_frequencies) / config.num_frequencies)
    return jnp.tanh(actor.mean(observation, jnp.sin(angle), jnp.cos(angle)))


def std(actor: Actor, config: Config) -> Array:
    """The policy's std [A]."""
    return jnp.exp(jnp.clip(actor.log_std, config.log_std_min, config.log_std_max))


def expected(value: networks.Network, batch: Transition) -> tuple[Array, Array]:
    """V(s) and V(s') [B] of a batch, in one pass."""
    both = jax.tree.map(lambda *x: jnp.concatenate(x), batch.observation, batch.next_observation)
    v = value(both)[:, 0]
    return v[: batch.reward.size], v[batch.reward.size :]


def value_loss(value: networks.Network, q: Array, batch: Transition, config: Config) -> tuple[Array, Metrics]:
    """Squared distance to the actions' values q [B]; weight `expectile` above V, 1 - `expectile` below."""
    v = value(batch.observation)[:, 0]  # [B]
    weight = jnp.where(q < v, 1.0 - config.expectile, config.expectile)
    loss = (weight * jnp.square(q - v)).mean()
    return loss, {"value/loss": loss, "value/v": v.mean()}


def balance_loss(balance: Actor, state: State, batch: Transition, key: Array, config: Config) -> tuple[Array, Metrics]:
    """Temperature-weighted log-probability of x minus the smallest target critic's value of an action of the policy."""
    key_x, key_action = jax.random.split(key)
    x, log_prob = balance_policy(balance, batch.observation).sample_and_log_prob(seed=key_x)  # [B, 1], [B]
    beta = inverse_temperature(x[:, 0], config)
    mean = policy(state.actor, batch.observation, beta, config)
    action = mean + std(state.actor, config) * jax.random.normal(key_action, mean.shape)
    q = networks.smallest(state.target_critic(batch.observation, action))  # [B]
    loss = (jnp.exp(state.log_temperature) * log_prob - q).mean()
    metrics = {"balance/loss": loss, "balance/q": q.mean(), "balance/entropy": -log_prob.mean()}
    return loss, metrics | {"balance/beta": beta.mean(), "balance/beta_std": beta.std()}


def temperature_loss(log_temperature: Array, entropy: Array, config: Config) -> tuple[Array, Metrics]:
    """The balance policy's entropy [] minus the target, times alpha."""
    loss = jnp.exp(log_temperature) * (entropy - config.target_entropy)
    return loss, {"temperature/loss": loss, "temperature/value": jnp.exp(log_temperature)}


def actor_loss(actor: Actor, advantage: Array, beta: Array, batch: Transition, config: Config) -> tuple[Array, Metrics]:
    """-log pi(a|s, beta) of the data's actions, weighted by the exponential of beta [B] times their advantage [B]."""
    weight = jnp.minimum(jnp.exp(beta * advantage), config.max_weight)
    pi = distributions.gaussian(policy(actor, batch.observation, beta, config), std(actor, config))
    loss = -(weight * pi.log_prob(batch.action)).mean()
    return loss, {"actor/loss": loss, "actor/advantage": advantage.mean(), "actor/weight": weight.mean()}


def critic_loss(critic: networks.Network, next_v: Array, batch: Transition, config: Config) -> tuple[Array, Metrics]:
    """Squared error of all critics to the target from V(s') [B], summed over critics."""
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * next_v
    q = critic(batch.observation, batch.action)  # [C, B]
    loss = jnp.square(q - target).mean(axis=-1).sum()
    return loss, {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the value, the balance policy and its temperature, the actor, the critics and their targets."""
    del step
    key_balance, key_uniform, key_chosen = jax.random.split(key, 3)
    if config.normalise_observations:
        batch = normalise.standardise_batch(state.statistics, batch)
    q = state.target_critic(batch.observation, batch.action).min(axis=0)  # [B]

    gradient, value_metrics = jax.grad(value_loss, has_aux=True)(state.value, q, batch, config)
    changes, value_optimiser = optax.adam(config.value_lr).update(gradient, state.value_optimiser)
    value = optax.apply_updates(state.value, changes)
    v, next_v = expected(value, batch)

    gradient, balance_metrics = jax.grad(balance_loss, has_aux=True)(state.balance, state, batch, key_balance, config)
    changes, balance_optimiser = optax.adam(config.balance_lr).update(gradient, state.balance_optimiser)
    balance = optax.apply_updates(state.balance, changes)
    entropy = balance_metrics["balance/entropy"]
    gradient, temperature_metrics = jax.grad(temperature_loss, has_aux=True)(state.log_temperature, entropy, config)
    changes, temperature_optimiser = optax.adam(config.temperature_lr).update(gradient, state.temperature_optimiser)
    log_temperature = optax.apply_updates(state.log_temperature, changes)

    online = state.online | ~batch.extras["offline"].all()  # and so it stays
    uniform = jax.random.uniform(key_uniform, batch.reward.shape, minval=-1.0, maxval=1.0)
    chosen = balance_policy(state.balance, batch.observation).sample(seed=key_chosen)[:, 0]
    beta = inverse_temperature(jnp.where(online, chosen, uniform), config)
    gradient, actor_metrics = jax.grad(actor_loss, has_aux=True)(state.actor, q - v, beta, batch, config)
    changes, actor_optimiser = optax.adam(config.actor_lr).update(gradient, state.actor_optimiser)
    actor = optax.apply_updates(state.actor, changes)

    gradient, metrics = jax.grad(critic_loss, has_aux=True)(state.critic, next_v, batch, config)
    changes, critic_optimiser = optax.adam(config.critic_lr).update(gradient, state.critic_optimiser)
    critic = optax.apply_updates(state.critic, changes)
    state = state.replace(
        actor=actor,
        balance=balance,
        critic=critic,
        value=value,
        target_critic=networks.polyak(critic, state.target_critic, config.target_rate),
        log_temperature=log_temperature,
        online=online,
        actor_optimiser=actor_optimiser,
        balance_optimiser=balance_optimiser,
        critic_optimiser=critic_optimiser,
        value_optimiser=value_optimiser,
        temperature_optimiser=temperature_optimiser,
    )
    return state, metrics | value_metrics | balance_metrics | temperature_metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
