"""PPO: on-policy actor-critic. A clipped ratio keeps the policy near the one that acted.

gamma discount, lambda trace decay, epsilon clip range, ended: terminated or truncated
pi actor, pi_old the rollout's actor, V critic
  delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
  A_t     = delta_t + gamma lambda (1 - ended_t) A_{t+1}                      [2, eq. 16]
  ratio_t = pi(a_t|s_t) / pi_old(a_t|s_t)
  L(pi)   = -mean [ min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon) A) ]   [1, eq. 7]
  L(V)    = mean [ (V(s) - (A + V_old(s)))^2 ] / 2                            [1, eq. 9]
  L       = L(pi) + value_cost L(V) - entropy_cost mean H(pi(.|s))            [1, eq. 9]

pi(.|s) is a diagonal Gaussian whose actions are clipped to [-1, 1] when they leave the agent,
tanh of a Gaussian, or a softmax over discrete actions. Actor and critic are two networks, or two
last layers after one torso (`shared`). With a `memory`, the torso is shared and remembers: s_t is
what the episode has shown until t.

Departs from the paper in what [3] found to matter; each is a setting. It bootstraps at time
limits and can recompute advantages in each epoch, as in Tianshou.

[1] Schulman et al., Proximal Policy Optimization Algorithms, arXiv:1707.06347
[2] Schulman et al., Generalized Advantage Estimation, arXiv:1506.02438
[3] Huang et al., The 37 Implementation Details of PPO, ICLR blog track 2022

  rljax train ppo --env HalfCheetah-v5
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, memories, normalise, policies, torsos
from rljax.networks.torsos import TorsoSettings
from rljax.requirements import Count, LogStd, NonNegative, Positive, Real, Share, Widths


@agent.config
class Config(torsos.WithMemory):
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    learning_rate: NonNegative = 3e-4  # of Adam, for actor and critic; [1, table 3]
    decay_steps: Positive | None = None  # share of the run until the rate is 0; [3]: 1
    adam_epsilon: Positive = 1e-5  # added to Adam's denominator; [3]
    max_grad_norm: NonNegative = 0.5  # of all parameters, 0 for no limit; [3]
    num_epochs: Count = 10  # passes over each rollout; [1, table 3]
    batch_size: int = 64  # transitions per minibatch; [1, table 3]
    # Experience
    num_envs: int = 8  # environments stepped side by side; Tianshou
    num_steps: int = 256  # of each environment; 2,048 in all in [1, table 3]
    # Targets
    discount: Share = 0.99  # gamma, per environment step; [1, table 3]
    trace_decay: Share = 0.95  # lambda of the advantages; [1, table 3]
    recompute_advantages: bool = True  # in each epoch, not only in the first; Tianshou
    normalise_advantages: bool = True  # per minibatch; [3]
    reward_scale: Real = 1.0  # factor on rewards; Brax's presets: 0.1 to 10
    normalise_rewards: bool = True  # by the std of the return, clipped to +-10; [3]
    # Losses
    clip_ratio: NonNegative = 0.2  # epsilon; [1, table 3]
    clip_values: bool = False  # limit V's change to +-epsilon as well; [3]
    value_cost: NonNegative = 0.5  # weight of the critic's loss; [3]
    entropy_cost: Real = 0.0  # weight of the entropy bonus; [1] for MuJoCo
    # Policy and networks
    policy: policies.Kind = "gaussian"  # Brax: tanh_gaussian
    init_log_std: LogStd = 0.0  # the same in all states (gaussian only); [3]
    shared: bool = False  # one torso for actor and critic; arXiv:2602.05999
    actor_hidden: Widths = (64, 64)  # [1]
    critic_hidden: Widths = (64, 64)  # [1]
    activation: networks.Activation = "tanh"  # [1]
    initialisation: networks.Initialisation = "orthogonal"  # [3]
    normalise_observations: bool = True  # by running statistics; [3]


class ActorCritic(struct.PyTreeNode):
    """The networks that the one optimiser moves."""

    torso: networks.Network | None  # [O] -> [m], if shared; the inputs below are then [m]
    actor: networks.Network  # [O] -> [A]: mean or logits; [2 A] for tanh_gaussian
    critic: networks.Network  # [O] -> [1]
    log_std: Array | None  # [A] for gaussian


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor_critic: networks.Trained  # ActorCritic
    returns: normalise.Returns  # discounted, of running episodes [E]
    actions: policies.RawActions = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Rollout:
    """Each iteration's steps, once."""
    remembers = config.memory != "none"
    return buffers.Rollout.of(config, learns_until=config.decay_steps, remembers=remembers)


def schedule(config: Config, steps: float) -> Config:
    """Turn a share of the run's `steps` into a number of environment steps."""
    return dataclasses.replace(config, decay_steps=agent.in_steps(config.decay_steps, steps))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for torsos and memories that do not fit."""
    widths = (
        [config.actor_hidden] if shares(config) else [config.actor_hidden, config.critic_hidden]
    )
    torsos.check(spec, TorsoSettings.of(config), *widths)


def shares(config: Config) -> bool:
    """Whether actor and critic have one torso."""
    return config.shared or config.memory != "none"


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters: small actions (or equal logits) at first."""
    key_actor, key_critic = jax.random.split(key)
    settings, actions = (
        TorsoSettings.of(config),
        policies.RawActions.of(spec, config.policy),
    )
    inputs, torso = spec.example(), None
    if shares(config):
        body = torsos.torso(spec, settings, config.actor_hidden)
        torso, inputs = memories.create(body, settings, jax.random.fold_in(key, 1), inputs)
        actor = torsos.last(settings, actions.features, 0.01)
        critic = torsos.last(settings, 1)
    else:
        actor = torsos.network(spec, settings, config.actor_hidden, actions.features, 0.01)
        critic = torsos.network(spec, settings, config.critic_hidden, 1)
    actor_critic = ActorCritic(
        torso=torso,
        actor=networks.create(actor, key_actor, inputs),
        critic=networks.create(critic, key_critic, inputs),
        log_std=actions.log_std(config.init_log_std),
    )
    return State(
        actor_critic=networks.Trained.create(actor_critic, optimiser(0, config)),
        returns=normalise.create_returns(config.num_envs),
        actions=actions,
    )


def optimiser(step: Array | int, config: Config) -> optax.GradientTransformation:
    """Adam on gradients of limited norm; its rate falls with the steps of `step` [] rollouts."""
    rate: Any = config.learning_rate
    if config.decay_steps is not None:
        taken = jnp.float32(step) * (config.num_envs * config.num_steps)  # int32 could overflow
        rate *= jnp.maximum(0.0, 1.0 - taken / config.decay_steps)
    adam = optax.adam(rate, eps=config.adam_epsilon)
    return networks.clipped(adam, config.max_grad_norm)


def remember(spec: EnvSpec, config: Config) -> Any:
    """The memory of one environment where an episode begins."""
    return memories.initial(TorsoSettings.of(config))


def act(
    state: State,
    observation: Array,
    key: Array,
    config: Config,
    explore: bool,
    memory: Any = None,
) -> tuple[Array, dict, Any]:
    """Actions [..., A] or [...] for observations [..., O...]: sampled, or the mode."""
    networks = state.actor_critic.parameters
    features, memory = memories.step(networks.torso, observation, memory)
    pi = policy(state, networks, features, observation)
    if not explore:
        return state.actions.emit(pi.mode()), {}, memory
    raw = pi.sample(seed=key)
    extras = {"raw": raw, "log_prob": state.actions.log_prob(pi, raw)}
    return state.actions.emit(raw), extras, memory


def policy(
    state: State, networks: ActorCritic, features: Any, observation: Any
) -> distributions.Distribution:
    """pi(.|s) over raw actions, from the torso's features [..., m] of observations [..., O...]."""
    mask = agent.mask_of(observation)
    return state.actions.distribution(networks.actor(features), networks.log_std, mask)


# [2, eq. 16]
def with_advantages(networks: ActorCritic, batch: Transition, config: Config) -> Transition:
    """A rollout with A_t and V(s_t), [T, E] each, in its extras."""
    features, successors = memories.following(networks.torso, batch)
    value = networks.critic(features).squeeze(-1)
    next_value = networks.critic(successors).squeeze(-1)
    delta = batch.reward + config.discount * (1.0 - batch.terminated) * next_value - value
    ended = batch.terminated | batch.truncated
    decay = config.discount * config.trace_decay * (1.0 - ended)
    advantage = buffers.discounted_sums(delta, decay)
    return batch.replace(extras=batch.extras | {"advantage": advantage, "value": value})


# [1, eq. 7]
def actor_loss(
    networks: ActorCritic,
    features: Any,
    state: State,
    batch: Transition,
    key: Array,
    config: Config,
) -> Loss:
    """Minus the clipped surrogate of a minibatch [B], minus the entropy bonus."""
    advantage = batch.extras["advantage"]
    if config.normalise_advantages:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    pi = policy(state, networks, features, batch.observation)
    log_ratio = state.actions.log_prob(pi, batch.extras["raw"]) - batch.extras["log_prob"]
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - config.clip_ratio, 1.0 + config.clip_ratio)
    loss = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
    entropy = state.actions.entropy(pi, key).mean()
    return loss - config.entropy_cost * entropy, {
        "actor/loss": loss,
        "actor/entropy": entropy,
        "actor/kl": (ratio - 1.0 - log_ratio).mean(),
        "actor/clipped": (jnp.abs(ratio - 1.0) > config.clip_ratio).mean(),
    }


# [1, eq. 9]
def critic_loss(networks: ActorCritic, features: Any, batch: Transition, config: Config) -> Loss:
    """Half the squared error of V(s) [B]."""
    old = batch.extras["value"]  # before this epoch
    target = old + batch.extras["advantage"]
    value = networks.critic(features).squeeze(-1)
    error = jnp.square(value - target)
    if config.clip_values:
        near = old + jnp.clip(value - old, -config.clip_ratio, config.clip_ratio)
        error = jnp.maximum(error, jnp.square(near - target))
    loss = 0.5 * error.mean()
    return loss, {"critic/loss": loss, "critic/value": value.mean()}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Learn from one rollout [T, E, ...]: `num_epochs` passes over it in minibatches."""
    batch = batch.replace(reward=config.reward_scale * batch.reward)
    if config.normalise_rewards:
        returns, batch = normalise.scale_rollout(state.returns, batch, config.discount)
        state = state.replace(returns=returns)
    adam, settings = optimiser(step, config), TorsoSettings.of(config)
    with_first_estimates = with_advantages(state.actor_critic.parameters, batch, config)

    def loss(networks: ActorCritic, batch: Transition, key: Array) -> Loss:
        features = memories.embedded(networks.torso, batch)
        policy_loss, policy_metrics = actor_loss(networks, features, state, batch, key, config)
        value_loss, value_metrics = critic_loss(networks, features, batch, config)
        return (
            policy_loss + config.value_cost * value_loss,
            policy_metrics | value_metrics,
        )

    def epoch(trained: networks.Trained, key: Array) -> tuple[networks.Trained, Metrics]:
        key_order, key_entropy = jax.random.split(key)
        rollout = with_first_estimates
        if config.recompute_advantages:
            rollout = with_advantages(trained.parameters, batch, config)
        (rows,) = buffers.minibatches(key_order, (rollout,), config.batch_size)
        keys = jax.random.split(key_entropy, len(rows.reward))
        return trained.fit(adam, torsos.progressive(loss, settings), (rows, keys))

    keys = jax.random.split(key, config.num_epochs)
    actor_critic, metrics = jax.lax.scan(epoch, state.actor_critic, keys)
    return state.replace(actor_critic=actor_critic), jax.tree.map(jnp.mean, metrics)


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
