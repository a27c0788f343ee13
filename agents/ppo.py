"""PPO: on-policy actor-critic. A clipped ratio keeps the policy near the one that collected the rollout.

gamma discount, lambda trace decay, epsilon clip range, pi actor, pi_old the rollout's actor, V critic
  delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
  A_t     = delta_t + gamma lambda (1 - ended_t) A_{t+1}                      [2, eq. 16], ended: terminated | truncated
  ratio_t = pi(a_t|s_t) / pi_old(a_t|s_t)
  L(pi)   = -mean [ min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon) A) ]   [1, eq. 7]
  L(V)    = mean [ (V(s) - (A + V_old(s)))^2 ] / 2                            [1, eq. 9]
  L       = L(pi) + value_cost L(V) - entropy_cost mean H(pi(.|s))            [1, eq. 9]

pi(.|s) is a diagonal Gaussian whose actions are clipped to [-1, 1] when they leave the agent, tanh of a Gaussian, or a
softmax over discrete actions. Actor and critic are two networks, or two last layers after one torso (`shared`).
With a `memory`, the torso is shared and remembers: s_t is what the episode has shown until t. A rollout keeps the
memory before its first step, and minibatches are the whole rollouts of environments, at least one.

Departs from the paper in what [3] found to matter; each is a setting. It bootstraps at time limits and can recompute
advantages in each epoch, as in Tianshou. Statistics move once per rollout, so that pi_old is exactly its policy.

[1] Schulman et al., Proximal Policy Optimization Algorithms, arXiv:1707.06347
[2] Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage Estimation, arXiv:1506.02438
[3] Huang et al., The 37 Implementation Details of Proximal Policy Optimization, ICLR blog track 2022

  rljax train ppo --env HalfCheetah-v5
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import distributions, encoders, memories, normalise, torsos


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    learning_rate: float = 3e-4  # of Adam, for actor and critic; [1, table 3]
    decay_steps: float | None = None  # share of the run (above 1: steps) in which the learning rate falls to 0; [3]: 1
    adam_epsilon: float = 1e-5  # added to Adam's denominator; [3]
    max_grad_norm: float = 0.5  # limit of the gradient's norm over all parameters, 0 for none; [3]
    num_epochs: int = 10  # passes over each rollout; [1, table 3]
    batch_size: int = 64  # transitions per minibatch, a divisor of a rollout; [1, table 3]
    # Experience
    num_envs: int = 8  # environments stepped side by side; Tianshou
    num_steps: int = 256  # steps of each environment per rollout; num_envs x num_steps is 2,048 in [1, table 3]
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [1, table 3]
    trace_decay: float = 0.95  # lambda of the advantages, in [0, 1]; [1, table 3]
    recompute_advantages: bool = True  # in each epoch with its critic, not only in the first one; Tianshou
    normalise_advantages: bool = True  # to zero mean and unit std per minibatch; [3]
    reward_scale: float = 1.0  # factor on rewards; Brax's presets use 0.1 to 10
    normalise_rewards: bool = True  # divide by the running std of the discounted return, clip to +-10; [3]
    # Losses
    clip_ratio: float = 0.2  # epsilon; [1, table 3]
    clip_values: bool = False  # limit V's change to +-epsilon as well; [3] does, Tianshou and Brax do not
    value_cost: float = 0.5  # weight of the critic's loss; [3]
    entropy_cost: float = 0.0  # weight of the entropy bonus; [1] for MuJoCo
    # Policy and networks
    policy: Literal["gaussian", "tanh_gaussian"] = "gaussian"  # of continuous actions; Brax: tanh_gaussian
    init_log_std: float = 0.0  # log std at the start, the same in all states (gaussian only); [3]
    encoder: encoders.Kind = "auto"  # convolutions, where pictures are observed: rljax/networks/encoders.py
    torso: torsos.Kind = "mlp"  # of actor and critic; [1]
    compute: int = 1  # T, thinking steps of torsos that take any number of them; own choice
    progressive: float | None = None  # weight of the loss after a part of the thinking steps; arXiv:2202.05826
    grid: tuple[int, int] | None = None  # rows and columns of the picture, where a drc gets it as a vector
    shared: bool = False  # one torso, the actor's, for actor and critic; arXiv:2602.05999
    memory: memories.Kind = "none"  # what the shared torso keeps from step to step: rljax/networks/memories.py
    memory_hidden: tuple[int, ...] = (64,)  # widths of the memory's layers
    memory_length: int = 64  # steps that gtrxl sees
    memory_span: int | None = None  # steps that the other memories bridge at the start; None: as published
    actor_hidden: tuple[int, ...] = (64, 64)  # widths of the actor's hidden layers; [1]
    critic_hidden: tuple[int, ...] = (64, 64)  # widths of the critic's hidden layers; [1]
    activation: networks.Activation = "tanh"  # of the hidden layers; [1]
    initialisation: networks.Initialisation = "orthogonal"  # of all layers; [3]
    normalise_observations: bool = True  # running mean and std of observations, clipped to +-10; [3]


class Parameters(struct.PyTreeNode):
    """The parameters that the one optimiser moves."""

    torso: networks.Network | None  # [O] -> [m], where it is shared; then the inputs below are [m]
    actor: networks.Network  # [O] -> [A]: mean, or logits; [2 A] for tanh_gaussian
    critic: networks.Network  # [O] -> [1]
    log_std: Array | None  # [A] for gaussian


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    parameters: Parameters
    optimiser: optax.OptState
    statistics: normalise.Statistics  # of observations [O]
    returns: normalise.Returns  # discounted, of running episodes [E]
    spec: EnvSpec = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Rollout:
    """Each iteration's steps, once."""
    size = {"num_envs": config.num_envs, "num_steps": config.num_steps, "batch_size": config.batch_size}
    return buffers.Rollout(**size, learns_until=config.decay_steps, remembers=config.memory != "none")


def schedule(config: Config, steps: float) -> Config:
    """Turn a share of the run's `steps` into a number of environment steps."""
    return dataclasses.replace(config, decay_steps=agent.in_steps(config.decay_steps, steps))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a hyperparameter out of range."""
    agent.require_widths(config, "actor_hidden", "critic_hidden")
    agent.require_range(config, discount=(0, 1), trace_decay=(0, 1), learning_rate=(0, None))
    agent.require_above(config, adam_epsilon=0, decay_steps=0)
    agent.require_range(config, max_grad_norm=(0, None), clip_ratio=(0, None), value_cost=(0, None))
    agent.require_range(config, entropy_cost=(None, None), reward_scale=(None, None), init_log_std=(-30, 30))
    agent.require_at_least(config, num_epochs=1)
    torsos.check(spec, layers(config), config.actor_hidden, *([] if shares(config) else [config.critic_hidden]))


def layers(config: Config) -> torsos.Settings:
    """The settings of the torsos."""
    style = (config.activation, config.initialisation, False, config.grid, config.encoder)
    kept = (config.memory, config.memory_hidden, config.memory_length, config.memory_span)
    return torsos.Settings(config.torso, config.compute, config.progressive, *style, *kept)


def squashes(spec: EnvSpec, config: Config) -> bool:
    """Whether actions are tanh of a Gaussian: not where there are choices."""
    return config.policy == "tanh_gaussian" and not (spec.discrete or spec.choices)


def shares(config: Config) -> bool:
    """Whether actor and critic have one torso."""
    return config.shared or config.memory != "none"


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters: small actions (or equal logits) at first."""
    key_actor, key_critic = jax.random.split(key)
    seen = spec.example()
    features = spec.action_size * (2 if squashes(spec, config) else 1)
    chosen = layers(config)
    actor = torsos.network(spec, chosen, config.actor_hidden, features, output_scale=0.01)
    critic, torso = torsos.network(spec, chosen, config.critic_hidden, 1), None
    if shares(config):
        body = torsos.torso(spec, chosen, config.actor_hidden)
        torso, seen = memories.create(body, chosen, jax.random.fold_in(key, 1), seen)
        actor, critic = torsos.last(chosen, features, output_scale=0.01), torsos.last(chosen, 1)
    plain = not (spec.discrete or squashes(spec, config))
    parameters = Parameters(
        torso=torso,
        actor=networks.create(actor, key_actor, seen),
        critic=networks.create(critic, key_critic, seen),
        log_std=jnp.full(spec.numbers, config.init_log_std, jnp.float32) if plain else None,
    )
    return State(
        parameters=parameters,
        optimiser=optimiser(0, config).init(parameters),
        statistics=normalise.of_observations(spec),
        returns=normalise.create_returns(config.num_envs),
        spec=spec,
    )


def optimiser(step: Array | int, config: Config) -> optax.GradientTransformation:
    """Adam on gradients of limited norm; the learning rate falls with the environment steps of `step` [] rollouts."""
    rate: Any = config.learning_rate
    if config.decay_steps is not None:  # in float32, since int32 could overflow
        rate *= jnp.maximum(0.0, 1.0 - jnp.float32(step) * (config.num_envs * config.num_steps) / config.decay_steps)
    limit = jnp.where(jnp.asarray(config.max_grad_norm) > 0, config.max_grad_norm, jnp.inf)
    return optax.chain(optax.clip_by_global_norm(limit), optax.adam(rate, eps=config.adam_epsilon))


def remember(spec: EnvSpec, config: Config) -> Any:
    """The memory of one environment where an episode begins."""
    return memories.initial(layers(config))


def acting(config: Config) -> agent.Acting:
    """Evaluations may change the thinking steps."""
    return agent.Acting(settings=("compute",))


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool, memory: Any = None
) -> tuple[Array, dict, Any]:
    """Actions [..., A] or [...] for observations [..., O...]: sampled, or the mode when not exploring."""
    seen = scaled(state, observation, config)
    features, memory = memories.step(state.parameters.torso, seen, memory)
    pi = policy(state.parameters, features, agent.mask_of(seen), state.spec, config)
    if not explore:
        return emitted(pi.mode(), state.spec, config), {}, memory
    raw = pi.sample(seed=key)
    return emitted(raw, state.spec, config), {"raw": raw, "log_prob": log_prob(pi, raw, state.spec, config)}, memory


def scaled(state: State, observation: Any, config: Config) -> Any:
    """Observations [..., O...] as the networks see them."""
    return normalise.normalise(state.statistics, observation) if config.normalise_observations else observation


def policy(
    parameters: Parameters, features: Any, mask: Array | None, spec: EnvSpec, config: Config
) -> distributions.Distribution:
    """pi(.|s) over raw actions, which are not yet clipped or squashed; `mask` [..., A] says which ones are allowed."""
    output = parameters.actor(features)
    if spec.discrete:
        return distributions.discrete(output, spec.choices, mask)
    if not squashes(spec, config):
        return distributions.gaussian_beside(output, jnp.exp(parameters.log_std), spec.choices)
    mean, deviation = jnp.split(output, 2, axis=-1)
    return distributions.gaussian(mean, jax.nn.softplus(deviation) + 1e-3)  # Brax's lower limit


def emitted(raw: Array, spec: EnvSpec, config: Config) -> Array:
    """The action that the environment gets, from a raw action."""
    return jnp.tanh(raw) if squashes(spec, config) else distributions.clipped(raw, spec)


def log_prob(pi: distributions.Distribution, raw: Array, spec: EnvSpec, config: Config) -> Array:
    """log pi(a|s) [...] of raw actions [..., A] or [...]."""
    density: Any = pi.log_prob(raw)
    return density - distributions.tanh_log_slope(raw) if squashes(spec, config) else density


# [2, eq. 16]
def advantages(parameters: Parameters, batch: Transition, config: Config) -> tuple[Array, Array]:
    """A_t and V(s_t), [T, E] each, of a rollout with scaled observations."""
    features, successors = memories.following(parameters.torso, batch)
    value, next_value = (parameters.critic(x).squeeze(-1) for x in (features, successors))
    delta = batch.reward + config.discount * (1.0 - batch.terminated) * next_value - value
    decay = config.discount * config.trace_decay * (1.0 - (batch.terminated | batch.truncated))
    return buffers.discounted_sums(delta, decay), value


# [1, eq. 7]
def actor_loss(
    parameters: Parameters, features: Any, state: State, batch: Transition, advantage: Array, key: Array, config: Config
) -> tuple[Array, Metrics]:
    """Minus the clipped surrogate of a minibatch [B], minus the entropy bonus."""
    if config.normalise_advantages:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    pi = policy(parameters, features, agent.mask_of(batch.observation), state.spec, config)
    log_ratio = log_prob(pi, batch.extras["raw"], state.spec, config) - batch.extras["log_prob"]
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - config.clip_ratio, 1.0 + config.clip_ratio)
    loss = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
    entropy = pi.entropy()
    if squashes(state.spec, config):
        entropy = entropy + distributions.tanh_log_slope(pi.sample(seed=key))  # an estimate, as there is no closed form
    return loss - config.entropy_cost * entropy.mean(), {
        "actor/loss": loss,
        "actor/entropy": entropy.mean(),
        "actor/kl": (ratio - 1.0 - log_ratio).mean(),
        "actor/clipped": (jnp.abs(ratio - 1.0) > config.clip_ratio).mean(),
    }


# [1, eq. 9]
def critic_loss(
    parameters: Parameters, features: Any, target: Array, old: Array, config: Config
) -> tuple[Array, Metrics]:
    """Half the squared error of V(s) [B]; `old` is V before this epoch."""
    value = parameters.critic(features).squeeze(-1)
    error = jnp.square(value - target)
    if config.clip_values:
        near = old + jnp.clip(value - old, -config.clip_ratio, config.clip_ratio)
        error = jnp.maximum(error, jnp.square(near - target))
    loss = 0.5 * error.mean()
    return loss, {"critic/loss": loss, "critic/value": value.mean()}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """Learn from one rollout [T, E, ...]: `num_epochs` passes over it in minibatches."""
    seen, reward, ended = batch.observation, config.reward_scale * batch.reward, batch.terminated | batch.truncated
    if config.normalise_rewards:
        returns, reward = normalise.scale_rewards(state.returns, reward, ended, config.discount)
        state = state.replace(returns=returns)
    batch = batch.replace(
        observation=scaled(state, batch.observation, config),
        next_observation=scaled(state, batch.next_observation, config),
        reward=reward,
    )
    rows, adam = reward.size, optimiser(step, config)
    first = advantages(state.parameters, batch, config)

    def losses(parameters: Parameters, batch: Transition, advantage: Array, value: Array, key: Array) -> Any:
        features = memories.embedded(parameters.torso, batch)
        policy_loss, policy_metrics = actor_loss(parameters, features, state, batch, advantage, key, config)
        value_loss, value_metrics = critic_loss(parameters, features, advantage + value, value, config)
        return policy_loss + config.value_cost * value_loss, policy_metrics | value_metrics

    def learn(carry: tuple[Any, Any], inputs: Any) -> tuple[tuple[Any, Any], Metrics]:
        parameters, moments = carry
        gradient, metrics = jax.grad(torsos.progressive(losses, layers(config)), has_aux=True)(parameters, *inputs)
        changes, moments = adam.update(gradient, moments)
        return (optax.apply_updates(parameters, changes), moments), metrics

    def epoch(carry: tuple[Any, Any], key: Array) -> tuple[tuple[Any, Any], Metrics]:
        key_order, key_entropy = jax.random.split(key)
        estimates = advantages(carry[0], batch, config) if config.recompute_advantages else first
        drawn = buffers.minibatches(key_order, (batch, *estimates), config.batch_size)
        return jax.lax.scan(learn, carry, (*drawn, jax.random.split(key_entropy, len(drawn[-1]))))

    keys = jax.random.split(key, config.num_epochs)
    (parameters, moments), metrics = jax.lax.scan(epoch, (state.parameters, state.optimiser), keys)
    state = state.replace(parameters=parameters, optimiser=moments)
    if config.normalise_observations:
        flat = jax.tree.map(lambda x: x.reshape(rows, *x.shape[2:]), seen)
        state = state.replace(statistics=normalise.update(state.statistics, flat))
    return state, jax.tree.map(jnp.mean, metrics)


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
