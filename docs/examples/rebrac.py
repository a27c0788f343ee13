"""ReBRAC: TD3+BC whose critics are also penalised for next actions that the data do not have.

An example of an agent with batch contents of its own: the action that the data took in the next state.

beta_1 actor's penalty, beta_2 critics' penalty, mu actor, mu' and Q'_c targets, a'_data next action of the data
  a'       = clip(mu'(s') + clip(noise))
  y        = r + gamma (1 - terminated) [ min_c Q'_c(s', a') - beta_2 |a' - a'_data|^2 ]                   [1, eq. 5]
  L(Q)     = sum_c mean (Q_c(s, a) - y)^2
  lambda   = 1 / mean |min_c Q_c(s, mu(s))|                                                     without a gradient
  L(mu)    = mean [ beta_1 |mu(s) - a|^2 - lambda min_c Q_c(s, mu(s)) ]         every policy_delay-th update [1, eq. 6]

Departs from the paper: rows whose trajectory is cut have no next action and no penalty. The authors drop them.

[1] Tarasov et al., Revisiting the Minimalist Approach to Offline Reinforcement Learning, arXiv:2305.09836

  rljax train docs/examples/rebrac.py --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    learning_rate: float = 1e-3  # of Adam, for actor and critics; [1]
    batch_size: int = 1024  # transitions per update; [1]
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [1]
    target_rate: float = 0.005  # share of the online networks in the targets per move; [1]
    actor_penalty: float = 0.01  # beta_1; [1], tuned per data set
    critic_penalty: float = 0.01  # beta_2; [1], tuned per data set
    target_noise: float = 0.2  # std of the noise on target actions; [1]
    target_noise_clip: float = 0.5  # bound of that noise; [1]
    policy_delay: int = 2  # updates between moves of the actor and of all targets; [1]
    hidden: tuple[int, ...] = (256, 256, 256)  # widths of the hidden layers; [1]
    num_critics: int = 2  # C; the smallest value counts; [1]


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: networks.Network  # [O] -> [A]: before tanh
    critic: networks.Network  # [O], [A] -> [C]
    target_actor: networks.Network
    target_critic: networks.Network
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches of a data set, each row with the data's next action."""
    return buffers.Dataset(batch_size=config.batch_size, columns=(buffers.NextAction(),))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a discrete action space or a hyperparameter out of range."""
    agent.require_vectors("rebrac", spec)
    agent.require_widths(config, "hidden")
    agent.require_continuous("rebrac", spec)
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), learning_rate=(0, None))
    agent.require_range(config, actor_penalty=(0, None), critic_penalty=(0, None))
    agent.require_range(config, target_noise=(0, None), target_noise_clip=(0, None))
    agent.require_at_least(config, policy_delay=1, num_critics=1)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the actor and the critics."""
    key_actor, key_critic = jax.random.split(key)
    observation, action = jnp.zeros(spec.observation_shape), jnp.zeros(spec.action_shape)
    actor = networks.create(networks.MLP(config.hidden, spec.action_size), key_actor, observation)
    critic = networks.Ensemble(config.num_critics, config.hidden, layer_norm=True)
    critic = networks.create(critic, key_critic, observation, action)
    adam = optax.adam(config.learning_rate)
    return State(actor, critic, networks.copy(actor), networks.copy(critic), adam.init(actor), adam.init(critic))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions mu(s) [..., A] for observations [..., O], whether exploring or not."""
    return policy(state.actor, observation), {}


def policy(actor: networks.Network, observation: Array) -> Array:
    """mu(s) [..., A] for observations [..., O]."""
    return jnp.tanh(actor(observation))


# [1, eq. 5]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Squared error of all critics to the penalised target, summed over critics."""
    noise = config.target_noise * jax.random.normal(key, batch.action.shape)
    noise = jnp.clip(noise, -config.target_noise_clip, config.target_noise_clip)
    next_action = jnp.clip(policy(state.target_actor, batch.next_observation) + noise, -1.0, 1.0)
    distance = jnp.square(next_action - batch.extras["next_action"]).sum(axis=-1)  # [B]
    penalty = config.critic_penalty * jnp.where(batch.extras["has_next_action"], distance, 0.0)
    next_q = state.target_critic(batch.next_observation, next_action).min(axis=0)  # [B]
    target = batch.reward + config.discount * (1.0 - batch.terminated) * (next_q - penalty)
    q = critic(batch.observation, batch.action)  # [C, B]
    loss = jnp.square(q - jax.lax.stop_gradient(target)).mean(axis=-1).sum()
    return loss, {"critic/loss": loss, "critic/q": q.mean(), "critic/penalty": penalty.mean()}


# [1, eq. 6]
def actor_loss(actor: networks.Network, state: State, batch: Transition, config: Config) -> tuple[Array, Metrics]:
    """Distance to the data's actions minus the smallest critic's value, in units of its size."""
    action = policy(actor, batch.observation)
    q = networks.smallest(state.critic(batch.observation, action))  # [B]
    scale = 1.0 / jax.lax.stop_gradient(jnp.abs(q).mean())
    imitation = jnp.square(action - batch.action).sum(axis=-1).mean()
    loss = config.actor_penalty * imitation - scale * q.mean()
    return loss, {"actor/loss": loss, "actor/imitation": imitation}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the critics and, every `policy_delay`-th time, the actor and all targets."""
    adam = optax.adam(config.learning_rate)
    gradient, metrics = jax.grad(critic_loss, has_aux=True)(state.critic, state, batch, key, config)
    changes, critic_optimiser = adam.update(gradient, state.critic_optimiser)
    state = state.replace(critic=optax.apply_updates(state.critic, changes), critic_optimiser=critic_optimiser)

    def improve(state: State) -> tuple[State, Metrics]:
        gradient, metrics = jax.grad(actor_loss, has_aux=True)(state.actor, state, batch, config)
        changes, actor_optimiser = adam.update(gradient, state.actor_optimiser)
        state = state.replace(actor=optax.apply_updates(state.actor, changes), actor_optimiser=actor_optimiser)
        target_actor = networks.polyak(state.actor, state.target_actor, config.target_rate)
        target_critic = networks.polyak(state.critic, state.target_critic, config.target_rate)
        return state.replace(target_actor=target_actor, target_critic=target_critic), metrics

    state, actor_metrics = agent.every(config.policy_delay, step, improve, state)
    return state, metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
