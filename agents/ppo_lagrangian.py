"""PPO-Lagrangian: PPO that keeps a cost per episode below a limit, by a multiplier that weighs the cost.

gamma discount, lambda trace decay, epsilon clip range, pi actor, pi_old the rollout's actor, V critic; c cost,
d cost limit, V_c critic of costs, nu multiplier, J_c mean cost of the episodes that ended in the rollout
  nu      <- max(0, nu + Adam's step along J_c - d)                           [1], or by PID control [2, alg. 2]
  delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
  A_t     = delta_t + gamma lambda (1 - ended_t) A_{t+1}                      [4, eq. 16], ended: terminated | truncated
  A_c     likewise, from c, V_c, its own gamma and lambda
  A       <- (A - nu (A_c - mean A_c)) / (1 + nu)                             [2]
  ratio_t = pi(a_t|s_t) / pi_old(a_t|s_t)
  L(pi)   = -mean [ min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon) A) ]   [3, eq. 7]
  L(V)    = mean [ (V(s) - (A + V_old(s)))^2 ] / 2                            [3, eq. 9], L(V_c) likewise
  L       = L(pi) + value_cost (L(V) + L(V_c)) - entropy_cost mean H(pi(.|s)) [3, eq. 9]

pi(.|s) is a diagonal Gaussian whose actions are clipped to [-1, 1] when they leave the agent, or a softmax over
discrete actions. The environment gives the cost as its signal "cost".

Departs from the paper: it is our PPO, with one Adam for all networks. The cost critic learns costs divided by the
running std of their discounted sum. nu stays where no episode ended. No update ends early where the policy moved far.

[1] Ray et al., Benchmarking Safe Exploration in Deep Reinforcement Learning, 2019
[2] Stooke et al., Responsive Safety in Reinforcement Learning by PID Lagrangian Methods, arXiv:2007.03964
[3] Schulman et al., Proximal Policy Optimization Algorithms, arXiv:1707.06347
[4] Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage Estimation, arXiv:1506.02438
[5] Huang et al., The 37 Implementation Details of Proximal Policy Optimization, ICLR blog track 2022

  rljax train ppo_lagrangian --env velocity/HalfCheetah-v5
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import distributions, encoders, multipliers, normalise, torsos


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    learning_rate: float = 3e-4  # of Adam, for actor and critics; [3, table 3]
    decay_steps: float | None = None  # share of the run (above 1: steps) in which the learning rate falls to 0; [5]: 1
    adam_epsilon: float = 1e-5  # added to Adam's denominator; [5]
    max_grad_norm: float = 0.5  # limit of the gradient's norm over all parameters, 0 for none; [5]
    num_epochs: int = 10  # passes over each rollout; [3, table 3]
    batch_size: int = 64  # transitions per minibatch, a divisor of a rollout; [3, table 3]
    # Experience
    num_envs: int = 8  # environments stepped side by side; Tianshou
    num_steps: int = 256  # steps of each environment per rollout; num_envs x num_steps is 2,048 in [3, table 3]
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [3, table 3]
    trace_decay: float = 0.95  # lambda of the advantages, in [0, 1]; [3, table 3]
    recompute_advantages: bool = True  # in each epoch with its critic, not only in the first one; Tianshou
    normalise_advantages: bool = True  # to zero mean and unit std per minibatch; [5]
    reward_scale: float = 1.0  # factor on rewards; Brax's presets use 0.1 to 10
    normalise_rewards: bool = True  # divide by the running std of the discounted return, clip to +-10; [5]
    # Costs
    cost_limit: float = 25.0  # d, per episode, without discount; [1]
    cost_discount: float = 0.99  # gamma of costs, in [0, 1]; [1]
    cost_trace_decay: float = 0.95  # lambda of the advantages of costs, in [0, 1]; [1]: 0.97, OmniSafe: 0.95
    normalise_costs: bool = True  # for V_c: divide by the running std of the discounted cost; own choice
    multiplier: multipliers.Kind = "gradient"  # how nu moves; [1]: gradient, [2]: pid
    init_multiplier: float = 0.001  # nu at the start (gradient only); OmniSafe
    multiplier_rate: float = 0.035  # learning rate of Adam for nu (gradient only); OmniSafe
    gain_p: float = 0.1  # K_P, of J_c - d (pid only); OmniSafe
    gain_i: float = 0.01  # K_I, of its sum (pid only); OmniSafe
    gain_d: float = 0.01  # K_D, of the growth of J_c (pid only); OmniSafe
    # Losses
    clip_ratio: float = 0.2  # epsilon; [3, table 3]
    value_cost: float = 0.5  # weight of the critic's loss; [5]
    entropy_cost: float = 0.0  # weight of the entropy bonus; [3] for MuJoCo
    # Policy and networks
    init_log_std: float = 0.0  # log std at the start, the same in all states; [5]
    encoder: encoders.Kind = "auto"  # convolutions, where pictures are observed: rljax/networks/encoders.py
    torso: torsos.Kind = "mlp"  # of actor and critic; [3]
    compute: int = 1  # T, thinking steps of torsos that take any number of them; own choice
    progressive: float | None = None  # weight of the loss after a part of the thinking steps; arXiv:2202.05826
    grid: tuple[int, int] | None = None  # rows and columns of the picture, where a drc gets it as a vector
    actor_hidden: tuple[int, ...] = (64, 64)  # widths of the actor's hidden layers; [3]
    critic_hidden: tuple[int, ...] = (64, 64)  # widths of both critics' hidden layers; [3]
    activation: networks.Activation = "tanh"  # of the hidden layers; [3]
    initialisation: networks.Initialisation = "orthogonal"  # of all layers; [5]
    normalise_observations: bool = True  # running mean and std of observations, clipped to +-10; [5]


class Parameters(struct.PyTreeNode):
    """The parameters that the one optimiser moves."""

    actor: networks.Network  # [O] -> [A]: mean, or logits
    critic: networks.Network  # [O] -> [1]
    cost_critic: networks.Network  # [O] -> [1], of costs
    log_std: Array | None  # [A]; None for discrete actions


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    parameters: Parameters
    optimiser: optax.OptState
    statistics: normalise.Statistics  # of observations [O]
    returns: normalise.Returns  # discounted, of running episodes [E]
    cost_returns: multipliers.Costs  # of running episodes [E]
    multiplier: multipliers.Multiplier  # nu
    spec: EnvSpec = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Rollout:
    """Each iteration's steps, once."""
    size = {"num_envs": config.num_envs, "num_steps": config.num_steps, "batch_size": config.batch_size}
    return buffers.Rollout(**size, learns_until=config.decay_steps, signals=("cost",))


def schedule(config: Config, steps: float) -> Config:
    """Turn a share of the run's `steps` into a number of environment steps."""
    return dataclasses.replace(config, decay_steps=agent.in_steps(config.decay_steps, steps))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a hyperparameter out of range."""
    agent.require_widths(config, "actor_hidden", "critic_hidden")
    agent.require_range(config, discount=(0, 1), trace_decay=(0, 1), learning_rate=(0, None))
    agent.require_above(config, adam_epsilon=0)
    agent.require_range(config, max_grad_norm=(0, None), clip_ratio=(0, None), value_cost=(0, None))
    agent.require_range(config, entropy_cost=(None, None), reward_scale=(None, None), init_log_std=(-30, 30))
    agent.require_above(config, decay_steps=0)
    agent.require_at_least(config, num_epochs=1)
    agent.require_range(config, cost_limit=(0, None), cost_discount=(0, 1), cost_trace_decay=(0, 1))
    agent.require_range(config, init_multiplier=(0, None), multiplier_rate=(0, None))
    agent.require_range(config, gain_p=(0, None), gain_i=(0, None), gain_d=(0, None))
    torsos.check(spec, layers(config), config.actor_hidden, config.critic_hidden)


def layers(config: Config) -> torsos.Settings:
    """The settings of the torsos."""
    thinking = (config.torso, config.compute, config.progressive)
    style = (config.activation, config.initialisation, False, config.grid, config.encoder)
    return torsos.Settings(*thinking, *style)


def control(config: Config) -> multipliers.Settings:
    """The settings of the multiplier."""
    gains = (config.gain_p, config.gain_i, config.gain_d)
    return multipliers.Settings(config.multiplier, config.cost_limit, config.multiplier_rate, gains)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters: small actions (or equal logits) at first."""
    key_actor, key_critic = jax.random.split(key)
    seen = spec.example()
    chosen = layers(config)
    actor = torsos.network(spec, chosen, config.actor_hidden, spec.action_size, output_scale=0.01)
    critic = torsos.network(spec, chosen, config.critic_hidden, 1)
    parameters = Parameters(
        actor=networks.create(actor, key_actor, seen),
        critic=networks.create(critic, key_critic, seen),
        cost_critic=networks.create(critic, jax.random.fold_in(key_critic, 1), seen),
        log_std=jnp.full(spec.numbers, config.init_log_std, jnp.float32) if not spec.discrete else None,
    )
    return State(
        parameters=parameters,
        optimiser=optimiser(0, config).init(parameters),
        statistics=normalise.of_observations(spec),
        returns=normalise.create_returns(config.num_envs),
        cost_returns=multipliers.create_costs(config.num_envs),
        multiplier=multipliers.create(config.init_multiplier, control(config)),
        spec=spec,
    )


def optimiser(step: Array | int, config: Config) -> optax.GradientTransformation:
    """Adam on gradients of limited norm; the learning rate falls with the environment steps of `step` [] rollouts."""
    rate: Any = config.learning_rate
    if config.decay_steps is not None:  # in float32, since int32 could overflow
        rate *= jnp.maximum(0.0, 1.0 - jnp.float32(step) * (config.num_envs * config.num_steps) / config.decay_steps)
    limit = jnp.where(jnp.asarray(config.max_grad_norm) > 0, config.max_grad_norm, jnp.inf)
    return optax.chain(optax.clip_by_global_norm(limit), optax.adam(rate, eps=config.adam_epsilon))


def acting(config: Config) -> agent.Acting:
    """Evaluations may change the thinking steps."""
    return agent.Acting(settings=("compute",))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [..., A] or [...] for observations [..., O...]: sampled, or the mode when not exploring."""
    seen = scaled(state, observation, config)
    pi = policy(state.parameters, seen, agent.mask_of(seen), state.spec)
    if not explore:
        return emitted(pi.mode(), state.spec), {}
    raw = pi.sample(seed=key)
    return emitted(raw, state.spec), {"raw": raw, "log_prob": pi.log_prob(raw)}


def scaled(state: State, observation: Any, config: Config) -> Any:
    """Observations [..., O...] as the networks see them."""
    return normalise.normalise(state.statistics, observation) if config.normalise_observations else observation


def policy(parameters: Parameters, observation: Any, mask: Array | None, spec: EnvSpec) -> distributions.Distribution:
    """pi(.|s) over raw actions, which are not yet clipped; `mask` [..., A] says which ones are allowed."""
    output = parameters.actor(observation)
    if spec.discrete:
        return distributions.discrete(output, spec.choices, mask)
    return distributions.gaussian_beside(output, jnp.exp(parameters.log_std), spec.choices)


def emitted(raw: Array, spec: EnvSpec) -> Array:
    """The action that the environment gets, from a raw action."""
    return distributions.clipped(raw, spec)


# [4, eq. 16]
def advantages(parameters: Parameters, batch: Transition, config: Config) -> tuple[Array, Array]:
    """A_t and V(s_t), of rewards and of costs, [T, E, 2] each, of a rollout with scaled observations."""
    value, next_value = (values(parameters, x) for x in (batch.observation, batch.next_observation))
    gain = jnp.stack([batch.reward, batch.extras["cost"]], axis=-1)
    discount = jnp.stack([config.discount, config.cost_discount])
    delta = gain + discount * (1.0 - batch.terminated)[..., None] * next_value - value
    traces = discount * jnp.stack([config.trace_decay, config.cost_trace_decay])
    decay = traces * (1.0 - (batch.terminated | batch.truncated))[..., None]
    return buffers.discounted_sums(delta, decay), value


def values(parameters: Parameters, observation: Any) -> Array:
    """V(s) and V_c(s) [..., 2] for scaled observations [..., O...]."""
    return jnp.concatenate([parameters.critic(observation), parameters.cost_critic(observation)], axis=-1)


# [3, eq. 7]
def actor_loss(
    parameters: Parameters, state: State, batch: Transition, estimates: Array, config: Config
) -> tuple[Array, Metrics]:
    """Minus the clipped surrogate of a minibatch [B], minus the entropy bonus; `estimates` [B, 2] are A and A_c."""
    advantage = estimates[..., 0]
    price = estimates[..., 1] * multipliers.scale(state.cost_returns, config.normalise_costs)
    if config.normalise_advantages:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    multiplier = state.multiplier.value
    advantage = (advantage - multiplier * (price - price.mean())) / (1.0 + multiplier)
    pi = policy(parameters, batch.observation, agent.mask_of(batch.observation), state.spec)
    log_ratio = pi.log_prob(batch.extras["raw"]) - batch.extras["log_prob"]
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - config.clip_ratio, 1.0 + config.clip_ratio)
    loss = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
    entropy = pi.entropy()
    return loss - config.entropy_cost * entropy.mean(), {
        "actor/loss": loss,
        "actor/entropy": entropy.mean(),
        "actor/kl": (ratio - 1.0 - log_ratio).mean(),
        "actor/clipped": (jnp.abs(ratio - 1.0) > config.clip_ratio).mean(),
    }


# [3, eq. 9]
def critic_loss(parameters: Parameters, batch: Transition, target: Array) -> tuple[Array, Metrics]:
    """Half the squared errors of V(s) and V_c(s), [B, 2]."""
    value = values(parameters, batch.observation)
    loss, cost_loss = 0.5 * jnp.square(value - target).mean(axis=0)
    mean, cost_mean = value.mean(axis=0)
    found = {"critic/loss": loss, "critic/value": mean, "critic/cost_loss": cost_loss, "critic/cost_value": cost_mean}
    return loss + cost_loss, found


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """Learn from one rollout [T, E, ...]: `num_epochs` passes over it in minibatches."""
    seen, reward, ended = batch.observation, config.reward_scale * batch.reward, batch.terminated | batch.truncated
    if config.normalise_rewards:
        returns, reward = normalise.scale_rewards(state.returns, reward, ended, config.discount)
        state = state.replace(returns=returns)
    cost = batch.extras["cost"]
    costs, scaled_cost, episodes = multipliers.observe(state.cost_returns, cost, ended, config.cost_discount)
    multiplier = multipliers.update(state.multiplier, episodes, control(config))
    state = state.replace(cost_returns=costs, multiplier=multiplier)
    batch = batch.replace(
        observation=scaled(state, batch.observation, config),
        next_observation=scaled(state, batch.next_observation, config),
        reward=reward,
        extras={**batch.extras, "cost": scaled_cost if config.normalise_costs else cost},
    )
    rows, adam = reward.size, optimiser(step, config)
    first = advantages(state.parameters, batch, config)

    def losses(parameters: Parameters, batch: Transition, advantage: Array, value: Array, key: Array) -> Any:
        del key  # of `torsos.progressive`
        policy_loss, policy_metrics = actor_loss(parameters, state, batch, advantage, config)
        value_loss, value_metrics = critic_loss(parameters, batch, advantage + value)
        return policy_loss + config.value_cost * value_loss, policy_metrics | value_metrics

    def learn(carry: tuple[Any, Any], inputs: Any) -> tuple[tuple[Any, Any], Metrics]:
        parameters, moments = carry
        gradient, metrics = jax.grad(torsos.progressive(losses, layers(config)), has_aux=True)(parameters, *inputs)
        changes, moments = adam.update(gradient, moments)
        return (optax.apply_updates(parameters, changes), moments), metrics

    def epoch(carry: tuple[Any, Any], key: Array) -> tuple[tuple[Any, Any], Metrics]:
        key_order, key_part = jax.random.split(key)
        estimates = advantages(carry[0], batch, config) if config.recompute_advantages else first
        drawn = buffers.minibatches(key_order, (batch, *estimates), config.batch_size)
        return jax.lax.scan(learn, carry, (*drawn, jax.random.split(key_part, len(drawn[-1]))))

    keys = jax.random.split(key, config.num_epochs)
    (parameters, moments), metrics = jax.lax.scan(epoch, (state.parameters, state.optimiser), keys)
    state = state.replace(parameters=parameters, optimiser=moments)
    if config.normalise_observations:
        flat = jax.tree.map(lambda x: x.reshape(rows, *x.shape[2:]), seen)
        state = state.replace(statistics=normalise.update(state.statistics, flat))
    found = {"cost/multiplier": multiplier.value, "cost/episode": episodes}
    return state, jax.tree.map(jnp.mean, metrics) | found


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
