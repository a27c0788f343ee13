"""PPO [on-policy]: on-policy actor-critic whose policy stays near the last one.

gamma discount, lambda trace decay, epsilon clip range, V critic
pi actor, pi_old the rollout's actor, ended: terminated or truncated
  delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
  A_t     = delta_t + gamma lambda (1 - ended_t) A_{t+1}         [2, eq. 16]
  ratio_t = pi(a_t|s_t) / pi_old(a_t|s_t)
  L(pi)   = -mean min(ratio A, clip(ratio, 1 +- epsilon) A)      [1, eq. 7]
            or another of rljax/networks/optimisation/surrogates.py
  L(V)    = mean (V(s) - (A + V_old(s)))^2 / 2                   [1, eq. 9]
  L       = L(pi) + value_cost L(V) - entropy_cost mean H(pi)    [1, eq. 9]
Departs from the paper in what [3] found to matter.

[1] Schulman et al., Proximal Policy Optimization, arXiv:1707.06347
[2] Schulman et al., Generalized Advantage Estimation, arXiv:1506.02438
[3] Huang et al., The 37 Implementation Details of PPO, 2022

  rljax train ppo --env HalfCheetah-v5
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, encoders, memories, normalise, policies, torsos
from rljax.networks.heads import rollouts
from rljax.networks.optimisation import surrogates
from rljax.networks.torsos import TorsoSettings
from rljax.requirements import Count, LogStd, NonNegative, Positive, Real, Share, Widths


@agent.config
class Config(
    networks.WithOptimiser,
    torsos.WithMemory,
    surrogates.WithSurrogate,
    rollouts.WithRolloutValues,
    encoders.WithCriticParts,
):
    """Hyperparameters."""

    # Optimisation
    learning_rate: NonNegative = 3e-4  # of Adam; [1]
    decay_steps: Positive | None = None  # share of the run to rate 0; [3]: 1
    adam_epsilon: Positive = 1e-5  # of Adam; [3]
    max_grad_norm: NonNegative = 0.5  # 0: no limit; [3]
    num_epochs: Count = 10  # passes over each rollout; [1]
    batch_size: int = 64  # transitions per minibatch; [1]
    # Experience
    num_envs: int = 8  # side by side; Tianshou
    num_steps: int = 256  # per environment; [1]: 2,048 in all
    clip_rewards: bool = False  # to [-1, 1]; for Atari [1]
    # Targets
    discount: Share = 0.99  # gamma; [1]
    trace_decay: Share = 0.95  # lambda of the advantages; [1]
    recompute_advantages: bool = True  # in each epoch; Tianshou
    normalise_advantages: bool = True  # per minibatch; [3]
    reward_scale: Positive = 1.0  # factor on rewards; Brax: 0.1 to 10
    normalise_rewards: bool = True  # by the std of returns; [3]
    # Losses
    value_cost: NonNegative = 0.5  # weight of L(V); [3]
    entropy_cost: Real = 0.0  # weight of entropy; [1]
    # Policy and networks
    policy: policies.Kind = "gaussian"  # if continuous; Brax: tanh_gaussian
    init_log_std: LogStd = 0.0  # in all states (gaussian); [3]
    shared: bool = False  # one torso for both; arXiv:2602.05999
    actor_hidden: Widths = (64, 64)  # widths of layers; [1]
    critic_hidden: Widths = (64, 64)  # widths of layers; [1]
    activation: networks.Activation = "tanh"  # of hidden layers; [1]
    initialisation: networks.Initialisation = "orthogonal"  # of all layers; [3]
    normalise_observations: bool = True  # by running statistics; [3]


class ActorCritic(struct.PyTreeNode):
    """The networks that the one optimiser moves."""

    torso: networks.Network | None  # [O] -> [m] if shared
    actor: networks.Network  # [O] -> [A]: mean or logits; [2 A] if squashed
    critic: networks.Network  # [O] -> [1]
    log_std: Array | None  # [A] for gaussian


class State(struct.PyTreeNode):
    """What learning changes."""

    actor_critic: networks.Trained  # ActorCritic
    returns: normalise.Returns  # of running episodes [E]
    penalty: Array  # beta of an adaptive penalty []
    actions: policies.RawActions = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Rollout:
    """Each iteration's steps, once."""
    remembers = config.memory != "none"
    return buffers.Rollout.of(config, learns_until=config.decay_steps, remembers=remembers)


def schedule(config: Config, steps: float) -> Config:
    """Turn shares of the run into numbers of steps."""
    return agent.in_steps(config, steps, "decay_steps", "trust_steps")


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    surrogates.check(config)
    encoders.check_with_parts(spec, config, shares(config))
    critic_hidden = config.actor_hidden if shares(config) else config.critic_hidden
    torsos.check(spec, TorsoSettings.of(config), config.actor_hidden, critic_hidden)


def shares(config: Config) -> bool:
    """Whether actor and critic have one torso."""
    return config.shared or config.memory != "none"


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters: small actions, or equal logits."""
    key_actor, key_critic = jax.random.split(key)
    settings = TorsoSettings.of(config)
    actions = policies.RawActions.of(spec, config.policy)
    outputs, torso, inputs = rollouts.outputs(config), None, spec.example()
    if shares(config):
        body = torsos.torso(spec, settings, config.actor_hidden)
        torso, inputs = memories.create(body, settings, jax.random.fold_in(key, 1), inputs)
        actor = torsos.last(settings, actions.features, 0.01)
        critic = torsos.last(settings, outputs)
    else:
        of_actor, features = TorsoSettings.of_actor(config), actions.features
        actor = torsos.network(spec, of_actor, config.actor_hidden, features, 0.01)
        critic = torsos.network(spec, settings, config.critic_hidden, outputs)
    actor_critic = ActorCritic(
        torso=torso,
        actor=networks.create(actor, key_actor, inputs),
        critic=networks.create(critic, key_critic, inputs),
        log_std=actions.log_std(config.init_log_std),
    )
    trained = networks.Trained.create(actor_critic, surrogates.optimiser(0, config))
    return State(
        actor_critic=trained,
        returns=normalise.create_returns(config.num_envs),
        penalty=1.0 / jnp.asarray(config.mirror_step, jnp.float32),
        actions=actions,
    )


def remember(spec: EnvSpec, config: Config) -> Any:
    """What lasts from one step of an episode to the next."""
    return memories.initial(TorsoSettings.of(config))


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool, memory: Any = None
) -> tuple[Array, dict, Any]:
    """Actions [..., A] or [...] for observations [..., O...]."""
    networks = state.actor_critic.parameters
    features, memory = memories.step(networks.torso, observation, memory)
    pi = policy(state, networks, features, observation)
    if not explore:
        return state.actions.emit(pi.mode()), {}, memory
    raw = pi.sample(seed=key)
    log_prob = state.actions.log_prob(pi, raw)
    return state.actions.emit(raw), {"raw": raw, "log_prob": log_prob}, memory


def policy(
    state: State, networks: ActorCritic, features: Any, observation: Any
) -> distributions.Distribution:
    """pi(.|s) over raw actions, from features [..., m]."""
    mask = agent.mask_of(observation)
    return state.actions.distribution(networks.actor(features), networks.log_std, mask)


def with_advantages(networks: ActorCritic, batch: Transition, config: Config) -> Transition:
    """A rollout with A, [2, eq. 16], and V, [T, E] each, in its extras."""
    both = rollouts.values(networks.critic, networks.torso, batch)
    value, next_value = (outputs.mean(axis=-1) for outputs in both)
    advantage = buffers.generalised_advantages(
        batch, batch.reward, value, next_value, config.discount, config.trace_decay
    )
    return batch.replace(extras={**batch.extras, "advantage": advantage, "value": value})


def divergence(
    pi: distributions.Distribution, state: State, batch: Transition, config: Config
) -> Array:
    """KL [...] between pi and the rollout's policy."""
    log_std, mask = state.actor_critic.parameters.log_std, agent.mask_of(batch.observation)
    old = state.actions.distribution(batch.extras["old"], log_std, mask)
    return surrogates.divergence(pi, old, config)


# [1, eq. 7]
def actor_loss(
    pi: distributions.Distribution, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """The surrogate's loss, minus the entropy bonus."""
    advantage = batch.extras["advantage"]
    if config.normalise_advantages:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    log_prob = state.actions.log_prob(pi, batch.extras["raw"])
    log_ratio = log_prob - batch.extras["log_prob"]
    kl: Any = 0.0
    if surrogates.needs_divergence(config):
        kl = divergence(pi, state, batch, config)
    loss, metrics = surrogates.loss(log_ratio, advantage, config, kl)
    entropy = state.actions.entropy(pi, key).mean()
    return loss - config.entropy_cost * entropy, metrics | {"actor/entropy": entropy}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Learn from one rollout [T, E, ...] in minibatches."""
    batch = batch.replace(reward=config.reward_scale * batch.reward)
    if config.normalise_rewards:
        returns, batch = normalise.scale_rollout(state.returns, batch, config.discount)
        state = state.replace(returns=returns)
    old, config = state.actor_critic.parameters, surrogates.at(config, step, state.penalty)
    if surrogates.needs_divergence(config):
        outputs = old.actor(memories.embedded(old.torso, batch))
        batch = batch.replace(extras={**batch.extras, "old": outputs})
    first_rollout = with_advantages(old, batch, config)
    adam = surrogates.optimiser(step, config)

    def joint_loss(networks: ActorCritic, batch: Transition, key: Array) -> Loss:
        features = memories.embedded(networks.torso, batch)
        pi = policy(state, networks, features, batch.observation)
        loss, metrics = actor_loss(pi, state, batch, key, config)
        outputs = networks.critic(features)
        value_loss, value_metrics = rollouts.value_loss(outputs, batch, config)
        return loss + config.value_cost * value_loss, metrics | value_metrics

    loss = torsos.progressive(joint_loss, TorsoSettings.of(config))

    def epoch(actor_critic: networks.Trained, key: Array) -> tuple[networks.Trained, Metrics]:
        key_order, key_loss = jax.random.split(key)
        rollout = first_rollout
        if config.recompute_advantages:
            rollout = with_advantages(actor_critic.parameters, batch, config)
        (rows,) = buffers.minibatches(key_order, (rollout,), config.batch_size)
        keys = jax.random.split(key_loss, len(rows.reward))
        actor_critic, metrics = actor_critic.fit(adam, loss, (rows, keys))
        return actor_critic, metrics | buffers.explained_variance(rollout)

    actor_critic, metrics = surrogates.passes(epoch, state.actor_critic, key, config)
    penalty = surrogates.reweighted(state.penalty, metrics, config)
    return state.replace(actor_critic=actor_critic, penalty=penalty), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
