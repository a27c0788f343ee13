"""PQN [on-policy]: Q-learning in many environments, without replay and target.

gamma discount, lambda trace decay, Q critic
s'_t the true successor of s_t
  V'_t = max_a Q(s'_t, a)  over the allowed actions
  G_t  = r_t + gamma (1 - terminated_t) V'_t
         at ends and in the last step, elsewhere
       = r_t + gamma ((1 - lambda) V'_t + lambda G_{t+1})  [1, 2]
  L(Q) = mean (Q(s_t, a_t) - G_t)^2 / 2                 by RAdam [3]

G is computed once for all passes over a rollout.
A share epsilon of actions is uniform, and others are greedy.
With a `memory`, s_t is what the episode has shown until t.

Departs from the paper: it bootstraps at time limits.
The learning rate falls once per rollout.

[1] Gallici et al., PQN, arXiv:2407.04811
[2] Peng and Williams, Incremental Multi-Step Q-Learning, 1996
[3] Liu et al., On the Variance of the Adaptive Learning Rate, arXiv:1908.03265

  rljax train pqn --env gymnax/Breakout-MinAtar
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, encoders, memories, torsos
from rljax.networks.heads import rollouts
from rljax.networks.optimisation import optimisers
from rljax.networks.torsos import TorsoSettings
from rljax.requirements import Count, NonNegative, Positive, Share, Widths


@agent.config
class Config(networks.WithOptimiser):
    """Hyperparameters."""

    # Optimisation
    learning_rate: NonNegative = 5e-4  # of RAdam; [1], Atari: 2.5e-4
    decay_steps: Positive | None = None  # share of the run to rate 0; [1]: 1
    max_grad_norm: NonNegative = 10.0  # 0: no limit; [1]
    optimiser: optimisers.Kind = "radam"  # of the networks; [1]
    num_epochs: Count = 2  # passes over each rollout; [1]
    batch_size: int = 128  # transitions per minibatch; [1]
    # Experience
    num_envs: int = 128  # side by side; [1]
    num_steps: int = 32  # per environment; [1]
    clip_rewards: bool = False  # to [-1, 1]; for Atari [1]
    # Targets
    discount: Share = 0.99  # gamma; [1]
    trace_decay: Share = 0.65  # lambda; [1]
    reward_scale: Positive = 1.0  # factor on rewards; [1]: 0.1 for CartPole
    # Policy
    epsilon_start: Share = 1.0  # uniform actions at first; [1]
    epsilon_end: Share = 0.05  # and at the end; [1], Atari: 0.001
    epsilon_steps: Positive = 0.1  # share of the run until then; [1]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256)  # widths of layers; [1] for CartPole
    memory: memories.Kind = "none"  # after them; [1], Craftax: gru
    memory_hidden: tuple[int, ...] = (128,)  # widths of its layers
    memory_length: int = 64  # steps that gtrxl sees
    memory_span: int | None = None  # steps others bridge at first
    activation: networks.Activation = "relu"  # of hidden layers; [1]
    layer_norm: networks.Norm = True  # of hidden layers; [1]
    initialisation: networks.Initialisation = "lecun_uniform"  # [1]: normal, as large
    normalise_observations: bool = False  # by running statistics; [1]: off


class State(struct.PyTreeNode):
    """What learning changes."""

    critic: networks.Trained  # [O...] -> [A]: Q of each action
    steps: Array  # [] int32: rollouts so far, for epsilon
    spec: EnvSpec = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Rollout:
    """Each iteration's steps, once."""
    remembers = config.memory != "none"
    return buffers.Rollout.of(config, learns_until=config.decay_steps, remembers=remembers)


def schedule(config: Config, steps: float) -> Config:
    """Turn shares of the run into numbers of steps."""
    return agent.in_steps(config, steps, "decay_steps", "epsilon_steps")


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_discrete("pqn", spec, "ppo")
    torsos.check(spec, layers(config))


def layers(config: Config) -> TorsoSettings:
    """The layers before the values of actions."""
    return TorsoSettings.of(config, torso="mlp", compute=1, progressive=None)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters."""
    settings = layers(config)
    if config.memory == "none":
        module = torsos.network(spec, settings, config.hidden, spec.action_size)
        critic = networks.create(module, key, spec.example())
    else:
        body = torsos.torso(spec, settings, config.hidden)
        last = torsos.last(settings, spec.action_size)
        critic, _ = memories.create(body, settings, key, spec.example(), last)
    critic = networks.Trained.create(critic, optimiser(0, config))
    return State(critic=critic, steps=jnp.zeros((), jnp.int32), spec=spec)


def optimiser(step: Array | int, config: Config) -> optax.GradientTransformation:
    """The critic's optimiser, after `step` [] rollouts."""
    rate = optimisers.decayed(config, step)
    return networks.optimiser(rate, step, config)


def remember(spec: EnvSpec, config: Config) -> Any:
    """What lasts from one step of an episode to the next."""
    return memories.initial(layers(config))


def act(
    state: State,
    observation: Any,
    key: Array,
    config: Config,
    explore: bool,
    memory: Any = None,
) -> tuple[Array, dict, Any]:
    """Actions [...] for observations [..., O...]."""
    q, memory = memories.step(state.critic.parameters, observation, memory)
    mask = agent.mask_of(observation)
    greedy = distributions.allowed(q, mask).argmax(axis=-1).astype(jnp.int32)
    if not explore:
        return greedy, {}, memory
    key_choice, key_action = jax.random.split(key)
    uniform = distributions.uniform(key_action, state.spec, greedy.shape, mask)
    explores = jax.random.uniform(key_choice, greedy.shape) < epsilon(state, config)
    return jnp.where(explores, uniform, greedy), {"value": best(q, mask)}, memory


def epsilon(state: State, config: Config) -> Array:
    """The share of uniform actions []."""
    steps = state.steps * jnp.float32(config.num_envs * config.num_steps)
    start, end = config.epsilon_start, config.epsilon_end
    return optimisers.linear(start, end, steps, config.epsilon_steps)


def best(q: Array, mask: Array | None) -> Array:
    """max_a Q(s, a) [...] of allowed actions; 0 without any."""
    largest = distributions.allowed(q, mask).max(axis=-1)
    return largest if mask is None else jnp.where(mask.any(axis=-1), largest, 0.0)


def next_values(critic: networks.Network, batch: Transition) -> Array:
    """V'_t [T, E] of a rollout; acting has computed V_t."""
    if agent.MEMORY in batch.extras:
        q = memories.following(critic, batch)[1]
        return best(q, agent.mask_of(batch.next_observation))

    def value(observation: Any) -> Array:
        return best(critic(observation), agent.mask_of(observation))

    return rollouts.next_values(value, batch.extras["value"], batch)


# [1, 2]
def targets(critic: networks.Network, batch: Transition, config: Config) -> Array:
    """G_t [T, E] of a rollout."""
    value = next_values(critic, batch)
    ended = (batch.terminated | batch.truncated).at[-1].set(True)
    share = config.trace_decay * (1.0 - ended)  # of G_{t+1}
    discount = config.discount * (1.0 - batch.terminated)
    gain = batch.reward + discount * (1.0 - share) * value
    return buffers.discounted_sums(gain, discount * share)


# [1]
def critic_loss(critic: networks.Network, batch: Transition, target: Array) -> Loss:
    """Half the squared error of Q(s, a) [B]."""
    q = memories.embedded(critic, batch)
    q = jnp.take_along_axis(q, batch.action[..., None], axis=-1).squeeze(-1)
    loss = 0.5 * jnp.square(q - target).mean()
    return loss, {
        "critic/loss": loss,
        "critic/q": q.mean(),
        "critic/target": target.mean(),
    }


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Learn from one rollout [T, E, ...] in minibatches."""
    batch = batch.replace(reward=config.reward_scale * batch.reward)
    target = targets(state.critic.parameters, batch, config)
    batch = batch.replace(next_observation=None)  # no minibatch needs it
    radam = optimiser(step, config)

    def epoch(critic: networks.Trained, key: Array) -> tuple[networks.Trained, Metrics]:
        rows = buffers.minibatches(key, (batch, target), config.batch_size)
        return critic.fit(radam, critic_loss, rows)

    keys = jax.random.split(key, config.num_epochs)
    critic, metrics = jax.lax.scan(epoch, state.critic, keys)
    metrics = jax.tree.map(jnp.mean, metrics) | {"actor/epsilon": epsilon(state, config)}
    steps = optax.safe_increment(state.steps)
    return state.replace(critic=critic, steps=steps), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
