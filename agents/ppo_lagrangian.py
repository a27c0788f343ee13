"""PPO-Lagrangian [constrained]: PPO with a limit on the cost of an episode.

gamma discount, lambda trace decay, epsilon clip range, V critic
pi actor, pi_old the rollout's actor, ended: terminated or truncated
c the signal "cost", d its limit, V_c its critic, nu multiplier, J_c mean per episode
  nu      <- max(0, nu + Adam's step along J_c - d)  OmniSafe, or PID [2]
  delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
  A_t     = delta_t + gamma lambda (1 - ended_t) A_{t+1}  [4, eq. 16]
            A_c likewise, of c and V_c; means and std: of the rollout
  A       <- ((A - mean A) / std A - nu (A_c - mean A_c)) / (1 + nu)
  ratio_t = pi(a_t|s_t) / pi_old(a_t|s_t)
  L(pi)   = -mean min(ratio A, clip(ratio, 1 +- epsilon) A)  [3, eq. 7]
  L(V)    = mean (V(s) - (A + V_old(s)))^2 / 2  L(V_c) likewise
  L       = L(pi) + value_cost (L(V) + L(V_c)) - entropy_cost mean H(pi)

Departs from [1]: our PPO; nu moves, not its soft plus; V_c's costs are scaled.

[1] Ray et al., Benchmarking Safe Exploration in Deep RL, 2019
[2] Stooke et al., Responsive Safety by PID Lagrangian Methods, arXiv:2007.03964
[3] Schulman et al., Proximal Policy Optimization, arXiv:1707.06347
[4] Schulman et al., Generalized Advantage Estimation, arXiv:1506.02438
[5] Huang et al., The 37 Implementation Details of PPO, ICLR blog 2022

  rljax train ppo_lagrangian --env velocity/HalfCheetah-v5
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, normalise, policies, torsos
from rljax.networks.heads import rollouts
from rljax.networks.optimisation import multipliers, optimisers, surrogates
from rljax.networks.optimisation.multipliers import MultiplierSettings, ValueAndCost
from rljax.networks.torsos import TorsoSettings
from rljax.requirements import Count, LogStd, NonNegative, Positive, Real, Share, Widths


@agent.config
class Config(networks.WithOptimiser, torsos.WithTorso, multipliers.WithMultiplier):
    """Hyperparameters."""

    # Optimisation
    learning_rate: NonNegative = 3e-4  # of Adam; [3]
    decay_steps: Positive | None = None  # share of the run to rate 0; [5]: 1
    adam_epsilon: Positive = 1e-5  # of Adam; [5]
    max_grad_norm: NonNegative = 0.5  # 0: no limit; [5]
    num_epochs: Count = 10  # passes over each rollout; [3]
    batch_size: int = 64  # transitions per minibatch; [3]
    # Experience
    num_envs: int = 8  # side by side; Tianshou
    num_steps: int = 256  # per environment; [3]: 2,048 in all
    # Targets
    discount: Share = 0.99  # gamma; [3]
    trace_decay: Share = 0.95  # lambda of the advantages; [3]
    recompute_advantages: bool = True  # in each epoch; Tianshou
    normalise_advantages: bool = True  # per rollout; [1], OmniSafe
    reward_scale: Positive = 1.0  # factor on rewards; Brax: 0.1 to 10
    normalise_rewards: bool = True  # by the std of returns; [5]
    # Costs
    cost_limit: NonNegative = 25.0  # d, sum per episode; [1]
    cost_discount: Share = 0.99  # gamma of costs; [1]
    cost_trace_decay: Share = 0.95  # lambda of costs; OmniSafe, [1]: 0.97
    normalise_costs: bool = True  # by std, for V_c; own choice
    init_multiplier: NonNegative = 0.001  # nu, or I (pid), at first; OmniSafe
    multiplier_rate: NonNegative = 0.035  # of Adam (gradient); OmniSafe
    # Losses
    clip_ratio: NonNegative = 0.2  # epsilon; [3]
    value_cost: NonNegative = 0.5  # weight of L(V) and L(V_c); [5]
    entropy_cost: Real = 0.0  # weight of entropy; [3]
    # Policy and networks
    init_log_std: LogStd = 0.0  # in all states; [5]
    actor_hidden: Widths = (64, 64)  # of layers; [3]
    critic_hidden: Widths = (64, 64)  # of layers; [3]
    activation: networks.Activation = "tanh"  # of hidden layers; [3]
    initialisation: networks.Initialisation = "orthogonal"  # of all layers; [5]
    normalise_observations: bool = True  # by running statistics; [5]


class ActorCritic(struct.PyTreeNode):
    """The networks that the one optimiser moves."""

    actor: networks.Network  # [O] -> [A]: mean or logits
    critics: ValueAndCost  # [O] -> [2]
    log_std: Array | None  # [A]; None for discrete actions


class State(struct.PyTreeNode):
    """What learning changes."""

    actor_critic: networks.Trained  # ActorCritic
    returns: normalise.Returns  # of running episodes [E]
    cost_returns: multipliers.Costs  # of running episodes [E]
    multiplier: multipliers.Multiplier  # nu
    actions: policies.RawActions = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Rollout:
    """Each iteration's steps, once."""
    return buffers.Rollout.of(config, learns_until=config.decay_steps, signals=("cost",))


def schedule(config: Config, steps: float) -> Config:
    """Turn shares of the run into steps."""
    return agent.in_steps(config, steps, "decay_steps")


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    torsos.check(spec, TorsoSettings.of(config), config.actor_hidden, config.critic_hidden)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters: small actions, or equal logits."""
    key_actor, key_critic = jax.random.split(key)
    settings = TorsoSettings.of(config)
    actions = policies.RawActions.of(spec)
    inputs = spec.example()
    actor = torsos.network(spec, settings, config.actor_hidden, actions.features, 0.01)
    critic = torsos.network(spec, settings, config.critic_hidden, 1)
    actor_critic = ActorCritic(
        actor=networks.create(actor, key_actor, inputs),
        critics=ValueAndCost.create(critic, key_critic, inputs),
        log_std=actions.log_std(config.init_log_std),
    )
    return State(
        actor_critic=networks.Trained.create(actor_critic, optimiser(0, config)),
        returns=normalise.create_returns(config.num_envs),
        cost_returns=multipliers.create_costs(config.num_envs),
        multiplier=multipliers.create(config.init_multiplier, MultiplierSettings.of(config)),
        actions=actions,
    )


def optimiser(step: Array | int, config: Config) -> optax.GradientTransformation:
    """The networks' optimiser, after `step` [] rollouts."""
    rate = optimisers.decayed(config, step)
    return networks.optimiser(rate, step, config, config.adam_epsilon)


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] or [...] for observations [..., O...]."""
    pi = policy(state, state.actor_critic.parameters, observation)
    if not explore:
        return state.actions.emit(pi.mode()), {}
    raw = pi.sample(seed=key)
    log_prob = state.actions.log_prob(pi, raw)
    return state.actions.emit(raw), {"raw": raw, "log_prob": log_prob}


def policy(state: State, networks: ActorCritic, observation: Any) -> distributions.Distribution:
    """pi(.|s) over raw actions."""
    output = networks.actor(observation)
    mask = agent.mask_of(observation)
    return state.actions.distribution(output, networks.log_std, mask)


# [4, eq. 16]
def with_advantages(critics: ValueAndCost, batch: Transition, config: Config) -> Transition:
    """A rollout with A and V of rewards and costs, [T, E, 2]."""
    value, next_value = rollouts.values(critics, None, batch)
    rewards = jnp.stack([batch.reward, batch.extras["cost"]], axis=-1)
    discount = jnp.stack([config.discount, config.cost_discount])
    trace_decay = jnp.stack([config.trace_decay, config.cost_trace_decay])
    advantage = buffers.generalised_advantages(
        batch, rewards, value, next_value, discount, trace_decay
    )
    return batch.replace(extras={**batch.extras, "advantage": advantage, "value": value})


# [1], OmniSafe
def combined(critics: ValueAndCost, state: State, batch: Transition, config: Config) -> Transition:
    """A rollout with advantages [T, E] and critics' targets [T, E, 2]."""
    rollout = with_advantages(critics, batch, config)
    both = rollout.extras["advantage"]
    advantage, cost_advantage = jnp.moveaxis(both, -1, 0)
    price = multipliers.centred(state.cost_returns, cost_advantage, config.normalise_costs)
    if config.normalise_advantages:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    multiplier = state.multiplier.value
    advantage = (advantage - multiplier * price) / (1.0 + multiplier)
    extras = {**rollout.extras, "advantage": advantage, "target": both + rollout.extras["value"]}
    return rollout.replace(extras=extras)


# [3, eq. 7]
def actor_loss(networks: ActorCritic, state: State, batch: Transition, config: Config) -> Loss:
    """Minus the clipped surrogate, minus the entropy bonus."""
    advantage = batch.extras["advantage"]
    pi = policy(state, networks, batch.observation)
    log_prob = state.actions.log_prob(pi, batch.extras["raw"])
    log_ratio = log_prob - batch.extras["log_prob"]
    loss, metrics = surrogates.clipped(log_ratio, advantage, config.clip_ratio)
    entropy = jnp.mean(pi.entropy())
    return loss - config.entropy_cost * entropy, metrics | {"actor/entropy": entropy}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Learn from one rollout [T, E, ...] in minibatches."""
    batch = batch.replace(reward=config.reward_scale * batch.reward)
    if config.normalise_rewards:
        returns, batch = normalise.scale_rollout(state.returns, batch, config.discount)
        state = state.replace(returns=returns)
    cost_returns, batch, episode_cost = multipliers.observe_rollout(
        state.cost_returns, batch, config.cost_discount, config.normalise_costs
    )
    multiplier = multipliers.update(state.multiplier, episode_cost, MultiplierSettings.of(config))
    state = state.replace(cost_returns=cost_returns, multiplier=multiplier)
    first_rollout = combined(state.actor_critic.parameters.critics, state, batch, config)

    def joint_loss(networks: ActorCritic, batch: Transition, key: Array) -> Loss:
        del key
        loss, metrics = actor_loss(networks, state, batch, config)
        value_loss, more = multipliers.critic_loss(networks.critics, batch, batch.extras["target"])
        return loss + config.value_cost * value_loss, metrics | more

    loss = torsos.progressive(joint_loss, TorsoSettings.of(config))

    def epoch(actor_critic: networks.Trained, key: Array) -> tuple[networks.Trained, Metrics]:
        key_order, key_loss = jax.random.split(key)
        rollout = first_rollout
        if config.recompute_advantages:
            rollout = combined(actor_critic.parameters.critics, state, batch, config)
        (rows,) = buffers.minibatches(key_order, (rollout,), config.batch_size)
        keys = jax.random.split(key_loss, len(rows.reward))
        actor_critic, metrics = actor_critic.fit(optimiser(step, config), loss, (rows, keys))
        return actor_critic, metrics | buffers.explained_variance(rollout)

    keys = jax.random.split(key, config.num_epochs)
    actor_critic, metrics = jax.lax.scan(epoch, state.actor_critic, keys)
    metrics = jax.tree.map(jnp.mean, metrics)
    metrics |= {"cost/multiplier": multiplier.value, "cost/episode": episode_cost}
    return state.replace(actor_critic=actor_critic), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
