"""ReBRAC [offline]: TD3+BC whose critics are penalised as well.

Four changes to TD3+BC: the critics' target has a penalty of its own, both penalties have their own weights, the actor
follows the smallest critic, and critics are deep and have normalised layers.

beta_1 actor's penalty, beta_2 critics' penalty, mu actor, a'_data next action of the data; targets as in TD3
  a'       = clip(mu'(s') + clip(noise))
  y        = r + gamma (1 - terminated) [ min_c Q'_c(s', a') - beta_2 |a' - a'_data|^2 ]                   [1, eq. 5]
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2
  lambda   = 1 / mean |min_c Q_c(s, mu(s))|                                               [2], without a gradient
  L(mu)    = mean [ beta_1 |mu(s) - a|^2 - lambda min_c Q_c(s, mu(s)) ]  [1, eq. 6], every policy_delay-th update

Departs from the paper: the value is scaled by lambda, as in the authors' code [2]. Rows whose trajectory is cut have no
next action and no penalty; the authors drop them. The layers' first values are close to the authors', see the page.

[1] Tarasov et al., Revisiting the Minimalist Approach to Offline Reinforcement Learning, arXiv:2305.09836
[2] github.com/DT6A/ReBRAC
[3] github.com/corl-team/CORL, rebrac.py of algorithms/offline and algorithms/finetune

  rljax train rebrac --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import normalise


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    actor_lr: float = 1e-3  # Adam learning rate of the actor; [2], 3e-4 on Adroit and AntMaze
    critic_lr: float = 1e-3  # Adam learning rate of the critics; [2], 3e-4 on Adroit, 5e-5 on AntMaze
    batch_size: int = 1024  # transitions per update; [2], 256 on Adroit and AntMaze
    # Experience
    reward_transform: buffers.RewardTransform = "none"  # of the data set's rewards, before any update; [2]
    normalise_observations: bool = False  # by the data set's mean and std; [2]
    replay_size: int = 1_000_000  # online: transitions kept beside the data set; own choice
    warmup_steps: int = 0  # online: environment steps with uniform actions and no update; own choice
    num_envs: int = 1  # online: environments stepped side by side
    num_steps: int = 1  # online: steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [2], 0.999 on AntMaze
    target_rate: float = 0.005  # rho, share of the online networks in the targets per move; [2]
    critic_penalty: float = 0.01  # beta_2; tuned per data set in [2], online 0 in [3]
    target_noise: float = 0.2  # std of the noise on target actions; [2]
    target_noise_clip: float = 0.5  # bound of that noise; [2]
    # Policy
    actor_penalty: float = 0.01  # beta_1: 0 follows the critics, more imitates the data; tuned per data set in [2]
    exploration_noise: float = 0.1  # online: std of the noise on actions while exploring; TD3's
    policy_delay: int = 2  # updates between moves of the actor and of all targets; [2]
    # Networks
    hidden: tuple[int, ...] = (256, 256, 256)  # widths of the hidden layers, actor and critics alike; [2]
    num_critics: int = 2  # C; the smallest value counts; [2]
    min_critics: int | None = None  # random critics per update of which the smallest counts; None: all; 2 in REDQ, RLPD
    activation: networks.Activation = "relu"  # of the hidden layers; [2]
    layer_norm: networks.Norm = "last"  # normalise the critics' hidden layers, after their activation; [2]
    initialisation: networks.Initialisation = "edac"  # of all layers; close to [2], see the page


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: networks.Network  # [O] -> [A]: before tanh
    critic: networks.Network  # [O], [A] -> [C]
    target_actor: networks.Network
    target_critic: networks.Network
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    statistics: normalise.Statistics  # of observations [O]


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches of a data set with the next actions; online, half of each batch is new experience."""
    columns = (buffers.NextAction(),)
    online = buffers.Replay(
        replay_size=config.replay_size,
        batch_size=config.batch_size,
        warmup_steps=config.warmup_steps,
        num_envs=config.num_envs,
        num_steps=config.num_steps,
        num_updates=config.num_updates,
        columns=columns,
    )
    return buffers.Dataset(
        batch_size=config.batch_size,
        num_updates=config.num_updates,
        reward_transform=config.reward_transform,
        columns=columns,
        online=online,
    )


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a discrete action space or a hyperparameter out of range."""
    agent.require_vectors("rebrac", spec)
    agent.require_widths(config, "hidden")
    agent.require_continuous("rebrac", spec)
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, critic_penalty=(0, None), actor_penalty=(0, None))
    agent.require_range(config, target_noise=(0, None), target_noise_clip=(0, None), exploration_noise=(0, None))
    agent.require_at_least(config, policy_delay=1, num_critics=1)
    agent.require_subset(config.min_critics, config.num_critics)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the actor and the critics."""
    key_actor, key_critic = jax.random.split(key)
    observation, action = jnp.zeros(spec.observation_shape), jnp.zeros(spec.action_shape)
    style = (config.activation, config.initialisation)
    actor = networks.create(networks.MLP(config.hidden, spec.action_size, *style), key_actor, observation)
    ensemble = networks.Ensemble(config.num_critics, config.hidden, *style, config.layer_norm)
    critic = networks.create(ensemble, key_critic, observation, action)
    return State(
        actor=actor,
        critic=critic,
        target_actor=networks.copy(actor),
        target_critic=networks.copy(critic),
        actor_optimiser=optax.adam(config.actor_lr).init(actor),
        critic_optimiser=optax.adam(config.critic_lr).init(critic),
        statistics=normalise.create(spec.observation_shape),
    )


def prepare(state: State, data: Transition, config: Config) -> State:
    """Count the observations of a data set [N, O] into the input statistics."""
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.of_data(data.observation))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]: mu(s), with Gaussian noise when exploring."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    action = policy(state.actor, observation)
    if not explore:
        return action, {}
    return jnp.clip(action + config.exploration_noise * jax.random.normal(key, action.shape), -1.0, 1.0), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A] for observations [..., O]."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    return state.critic(observation, action).mean(axis=0)


def policy(actor: networks.Network, observation: Array) -> Array:
    """mu(s) [..., A] for observations [..., O]."""
    return jnp.tanh(actor(observation))


# [1, eq. 5]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Squared error of all critics to the smoothed and penalised target, summed over critics."""
    noise = config.target_noise * jax.random.normal(key, batch.action.shape)
    noise = jnp.clip(noise, -config.target_noise_clip, config.target_noise_clip)
    next_action = jnp.clip(policy(state.target_actor, batch.next_observation) + noise, -1.0, 1.0)
    next_q = state.target_critic(batch.next_observation, next_action)  # [C, B]
    next_q = networks.smallest_of_subset(next_q, config.min_critics, key)  # [B]
    distance = jnp.square(next_action - batch.extras["next_action"]).sum(axis=-1)  # [B]
    penalty = config.critic_penalty * jnp.where(batch.extras["has_next_action"], distance, 0.0)
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * (next_q - penalty)
    q = critic(batch.observation, batch.action)  # [C, B]
    error = q - jax.lax.stop_gradient(target)
    loss = buffers.weighted(jnp.square(error), batch).mean(axis=-1).sum()
    metrics = {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}
    return loss, metrics | {"critic/penalty": penalty.mean()} | buffers.priorities(error, batch)


# [1, eq. 6]
def actor_loss(actor: networks.Network, state: State, batch: Transition, config: Config) -> tuple[Array, Metrics]:
    """Squared distance to the data's actions minus the smallest critic's value, which is scaled to 1."""
    action = policy(actor, batch.observation)
    q = networks.smallest(state.critic(batch.observation, action))  # [B]
    scale = 1.0 / jax.lax.stop_gradient(jnp.abs(q).mean())
    imitation = jnp.square(action - batch.action).sum(axis=-1).mean()
    loss = config.actor_penalty * imitation - scale * q.mean()
    return loss, {"actor/loss": loss, "actor/imitation": imitation, "actor/value_scale": scale}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the critics and, every `policy_delay`-th time, the actor and all targets."""
    if config.normalise_observations:
        batch = normalise.standardise_batch(state.statistics, batch)

    gradient, metrics = jax.grad(critic_loss, has_aux=True)(state.critic, state, batch, key, config)
    changes, critic_optimiser = optax.adam(config.critic_lr).update(gradient, state.critic_optimiser)
    critic = optax.apply_updates(state.critic, changes)
    state = state.replace(critic=critic, critic_optimiser=critic_optimiser)

    def improve(state: State) -> tuple[State, Metrics]:
        gradient, metrics = jax.grad(actor_loss, has_aux=True)(state.actor, state, batch, config)
        changes, actor_optimiser = optax.adam(config.actor_lr).update(gradient, state.actor_optimiser)
        actor = optax.apply_updates(state.actor, changes)
        state = state.replace(actor=actor, actor_optimiser=actor_optimiser)
        target_actor = networks.polyak(state.actor, state.target_actor, config.target_rate)
        target_critic = networks.polyak(state.critic, state.target_critic, config.target_rate)
        return state.replace(target_actor=target_actor, target_critic=target_critic), metrics

    state, actor_metrics = agent.every(config.policy_delay, step, improve, state)
    return state, metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
