"""HNPG [hybrid]: natural policy gradient from rollouts and a data set.

gamma discount, lambda trace decay, Q critic, theta parameters of the actor pi
s, a, r, s' of the rollout; o, u, q, o' of rows of the data set
pi_old the rollout's actor, KL mean over all s and o, ended: terminated or truncated
  V(s)    = mean Q(s, a'),  a' ~ pi_old(.|s)
  R_t     = r_t + gamma (1 - terminated_t) R_{t+1}  V(s'_t) for R_{t+1} at a cut
  L(Q)    = mean (Q(s, a) - R)^2 + data_weight mean (Q(o, u) - y)^2  [1, HPE]
            with y = q + gamma (1 - terminated) V(o'), anew in each pass
  delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
  A_t     = delta_t + gamma lambda (1 - ended_t) A_{t+1}  [3, eq. 16]
  S(pi)   = mean over both of pi(a|s) / pi_old(a|s) A,   A(o) = Q(o, a') - V(o)
  g       = gradient of -S,  H = Hessian of KL(pi_old || pi) + damping I
  theta  <- theta - backtrack^k sqrt(2 kl_limit / g.H^-1 g) H^-1 g  [1, HNPG]
            with the least k for which KL <= kl_limit and S does not fall

Departs from [2], where each step of an episode has a policy and a critic.

[1] Zhou et al., Offline Data Enhanced On-Policy PG, arXiv:2311.08384
[2] github.com/YifeiZhou02/HNPG
[3] Schulman et al., Generalized Advantage Estimation, arXiv:1506.02438

  rljax train hnpg --env rljax/CombinationLock-10-discrete --data lock.npz
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import encoders, normalise, policies
from rljax.networks.optimisation import trust_region
from rljax.requirements import Backtrack, Count, LogStd, NonNegative, Positive, Share, Widths


@agent.config
class Config(networks.WithSchedule):
    """Hyperparameters."""

    # Policy step
    kl_limit: Positive = 0.01  # mean KL of pi_old and pi; [2]
    damping: Positive = 0.1  # added to KL's Hessian; [2]
    cg_steps: Count = 10  # of conjugate gradients; [2]
    backtrack: Backtrack = 0.5  # factor of each try; [2]
    backtracks: Count = 10  # tries of the line search; [2]
    # Optimisation of the critic
    learning_rate: NonNegative = 1e-3  # of Adam; cpo, [2]: 3e-4
    adam_epsilon: Positive = 1e-8  # of Adam; [2]
    max_grad_norm: NonNegative = 0.5  # 0: no limit; cpo
    num_epochs: Count = 10  # passes; cpo, [2]: 30 steps
    batch_size: int = 128  # transitions per minibatch; cpo
    # Experience
    num_envs: int = 8  # side by side; cpo
    num_steps: int = 256  # per environment; [2]: 1,000
    data_size: int = 2048  # of data per rollout, 0: none; [2]
    # Targets
    discount: Share = 0.99  # gamma; cpo, [2]: 1
    trace_decay: Share = 0.97  # lambda of the advantages; [2]
    num_draws: Count = 10  # actions for V; [2]
    data_weight: NonNegative = 1.0  # of the data in L(Q); [2]
    normalise_rewards: bool = True  # by the std of returns; cpo
    # Policy and networks
    init_log_std: LogStd = 0.0  # in all states; [2]
    encoder: encoders.Kind = "auto"  # of other than vectors
    actor_hidden: Widths = (64, 64)  # cpo, [2]: 16 per step
    critic_hidden: Widths = (64, 64)  # of layers; [2]
    activation: networks.Activation = "tanh"  # of hidden layers; [2]
    initialisation: networks.Initialisation = "orthogonal"  # of all layers; cpo
    normalise_observations: bool = True  # by rollouts; cpo


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Actor  # [O] -> [A]: mean or logits
    critic: networks.Trained  # [O], [A] or [] -> [1]
    returns: normalise.Returns  # of running episodes [E]
    actions: policies.RawActions = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Rollout:
    """Each iteration's steps, once, with rows of data."""
    return buffers.Rollout.of(config)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_unmixed("hnpg", spec)
    encoders.check(spec, encoders.EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters: small actions, or equal logits."""
    key_actor, key_critic = jax.random.split(key)
    observation = spec.example()
    action = jnp.zeros(spec.action_shape, spec.action_dtype)
    actions = policies.RawActions.of(spec)
    encoding = encoders.EncoderSettings.of(config)
    style = (config.activation, config.initialisation)
    mean = networks.MLP(config.actor_hidden, actions.features, *style, output_scale=0.01)
    mean = networks.create(encoders.encoded(spec, encoding, mean), key_actor, observation)
    critic = networks.ensemble(spec, 1, config.critic_hidden, *style)
    critic = encoders.encoded(spec, encoding, critic)
    critic = networks.create(critic, key_critic, observation, action)
    return State(
        actor=actions.actor(mean, config.init_log_std),
        critic=networks.Trained.create(critic, optimiser(0, config)),
        returns=normalise.create_returns(config.num_envs),
        actions=actions,
    )


def optimiser(step: Array | int, config: Config) -> optax.GradientTransformation:
    """The networks' optimiser, after `step` [] updates."""
    return networks.optimiser(config.learning_rate, step, config, config.adam_epsilon)


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] or [...] for observations [..., O]."""
    pi = state.actions.policy(state.actor, observation)
    if not explore:
        return state.actions.emit(pi.mode()), {}
    raw = pi.sample(seed=key)
    return state.actions.emit(raw), {"raw": raw}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critic's value [...] of actions [..., A] or [...]."""
    return state.critic(observation, action).mean(axis=0)


def values(state: State, observation: Any, key: Array, config: Config) -> Array:
    """V(s) [...]: exact for one discrete action."""
    pi: Any = state.actions.policy(state.actor, observation)
    if state.actions.spec.discrete and not state.actions.spec.choices:
        return (pi.probs * state.critic(observation).mean(axis=0)).sum(axis=-1)

    def draw(key: Array) -> Array:
        action = state.actions.emit(pi.sample(seed=key))
        return state.critic(observation, action).mean(axis=0)

    keys = jax.random.split(key, config.num_draws)
    return jax.lax.map(draw, keys).mean(axis=0)


def returns(state: State, batch: Transition, key: Array, config: Config) -> Array:
    """R_t [T, E] of a rollout."""
    next_value = values(state, batch.next_observation, key, config)
    cut = batch.truncated.at[-1].set(True)
    alive = config.discount * (1.0 - batch.terminated)
    decay = config.discount * (1.0 - (batch.terminated | cut))
    return buffers.discounted_sums(batch.reward + alive * cut * next_value, decay)


# [3, eq. 16]
def advantages(state: State, batch: Transition, key: Array, config: Config) -> Array:
    """A_t [T, E] of a rollout."""
    key_value, key_next = jax.random.split(key)
    value = values(state, batch.observation, key_value, config)
    next_value = values(state, batch.next_observation, key_next, config)
    return buffers.generalised_advantages(
        batch, batch.reward, value, next_value, config.discount, config.trace_decay
    )


# [1, HNPG]
def policy_step(
    state: State, observation: Any, raw: Array, advantage: Array, config: Config
) -> tuple[networks.Actor, Metrics]:
    """The actor after its step, for N rows and their A."""
    near = trust_region.Neighbourhood(state.actions, state.actor, observation, raw)
    g = -jax.grad(near.surrogate)(near.start, advantage)
    product = trust_region.fisher_vector_product(near.kl, near.start, config.damping)
    natural_g = trust_region.natural_gradient(product, g, config.cg_steps)
    size = jnp.sqrt(2.0 * config.kl_limit / jnp.maximum(g @ natural_g, 1e-30))
    gain = near.surrogate(near.start, advantage)

    def accepts(point: Array) -> Array:
        return (near.kl(point) <= config.kl_limit) & (near.surrogate(point, advantage) >= gain)

    point, share = trust_region.line_search(
        near.start, -size * natural_g, accepts, config.backtrack, config.backtracks
    )
    return near.actor(point), near.metrics(point, share, advantage)


# [1, HPE]
def critic_loss(critic: networks.Network, rollout: Any, data: Any, config: Config) -> Loss:
    """Squared errors of Q; pairs are rows and targets [B]."""
    batch, target = rollout
    q = critic(batch.observation, batch.action)[0]
    loss = jnp.square(q - target).mean()
    metrics = {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}
    if data is None:
        return loss, metrics
    batch, target = data
    q = critic(batch.observation, batch.action)[0]
    data_loss = jnp.square(q - target).mean()
    metrics |= {"critic/data_loss": data_loss, "critic/data_q": q.mean()}
    return loss + config.data_weight * data_loss, metrics


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Learn from a rollout [T, E, ...] and rows [D, ...]."""
    key_returns, key_fit, key_advantages, key_data = jax.random.split(key, 4)
    batch, data = buffers.beside(batch)
    if config.normalise_rewards:
        sums, batch = normalise.scale_rollout(state.returns, batch, config.discount)
        state = state.replace(returns=sums)
        if data is not None:
            data = data.replace(reward=normalise.scaled_rewards(sums, data.reward))
    target = returns(state, batch, key_returns, config)
    loss = functools.partial(critic_loss, config=config)

    def epoch(critic: networks.Trained, key: Array) -> tuple[networks.Trained, Metrics]:
        key_order, key_rows, key_value = jax.random.split(key, 3)
        rollout = (batch.replace(next_observation=None), target)
        rollout = buffers.minibatches(key_order, rollout, config.batch_size)
        if data is None:
            return critic.fit(optimiser(step, config), loss, (rollout, None))
        next_value = values(state.replace(critic=critic), data.next_observation, key_value, config)
        y = data.reward + config.discount * (1.0 - data.terminated) * next_value
        rows = jax.tree.map(lambda x: x[None], (data, y))
        rows = buffers.minibatches(key_rows, rows, y.size // (target.size // config.batch_size))
        return critic.fit(optimiser(step, config), loss, (rollout, rows))

    keys = jax.random.split(key_fit, config.num_epochs)
    critic, metrics = jax.lax.scan(epoch, state.critic, keys)
    state = state.replace(critic=critic)
    advantage = advantages(state, batch, key_advantages, config)
    inputs = (batch.observation, batch.extras["raw"], advantage)
    inputs = jax.tree.map(lambda x: x.reshape(target.size, *x.shape[2:]), inputs)
    if data is not None:
        key_action, key_value = jax.random.split(key_data)
        raw = state.actions.policy(state.actor, data.observation).sample(seed=key_action)
        q = critic(data.observation, state.actions.emit(raw))[0]
        advantage = q - values(state, data.observation, key_value, config)
        rows = (data.observation, raw, advantage)
        inputs = jax.tree.map(lambda *x: jnp.concatenate(x), inputs, rows)
    actor, policy_metrics = policy_step(state, *inputs, config=config)
    return state.replace(actor=actor), jax.tree.map(jnp.mean, metrics) | policy_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
