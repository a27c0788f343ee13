"""HNPG [hybrid]: natural policy gradient, with critic and policy from rollouts and data.

gamma discount, lambda trace decay, pi actor with parameters theta, pi_old the rollout's actor, Q critic; s, a, r, s' of
the rollout, o, u, q, o' the same of rows of the data set; KL mean over all s and o
  V(s)    = mean Q(s, a'), a' ~ pi_old(.|s), over `num_draws` draws, or over all values of one discrete action
  R_t     = r_t + gamma (1 - terminated_t) R_{t+1},  with V(s'_t) for R_{t+1} where the episode is cut
  y       = q + gamma (1 - terminated) V_k(o')                                  V_k: of Q at the start of pass k
  L(Q)    = mean [ (Q(s, a) - R)^2 ] + data_weight mean [ (Q(o, u) - y)^2 ]     [1, HPE]
  delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)                     with Q after its passes, from here on
  A_t     = delta_t + gamma lambda (1 - ended_t) A_{t+1}                        [3, eq. 16]; ended_t: at any end
  A(o)    = Q(o, a') - V(o), a' ~ pi_old(.|o)
  S(pi)   = mean over both [ pi(a|s) / pi_old(a|s) A ]
  g       = gradient of -S,  H = Hessian of KL(pi_old || pi) + damping I
  theta  <- theta - backtrack^k sqrt(2 kl_limit / g.H^-1 g) H^-1 g              [1, HNPG; 4, appendix C]
            with the least k for which KL(pi_old || pi) <= kl_limit, and S does not fall

H^-1 is applied by conjugate gradients. pi(.|s) is a diagonal Gaussian whose actions are clipped to [-1, 1] when they
leave the agent, or a softmax over discrete actions. With `data_size` 0, it is the on-policy half alone.

Departs from the paper: its experiments [2] have a policy and a critic for each step of an episode, fitted from the last
step backwards. Here one of each serves all steps, and values come backwards by passes, as in the paper's theory. V(o')
is a mean where [2] draws once. The line search asks for KL [4], [2] for a tenth of the promised gain.

[1] Zhou et al., Offline Data Enhanced On-Policy Policy Gradient with Provable Guarantees, arXiv:2311.08384
[2] github.com/YifeiZhou02/HNPG
[3] Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage Estimation, arXiv:1506.02438
[4] Schulman et al., Trust Region Policy Optimization, arXiv:1502.05477

  rljax train hnpg --env rljax/CombinationLock-10-discrete --data lock.npz
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import cg

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import distributions, encoders, normalise


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Policy step
    kl_limit: float = 0.01  # largest mean KL of pi_old and pi in an update; [2]
    damping: float = 0.1  # added to the diagonal of KL's Hessian; [2]
    cg_steps: int = 10  # of conjugate gradients; [2]
    backtrack: float = 0.5  # factor of each step of the line search, in (0, 1); [2]
    backtracks: int = 10  # steps of the line search, after which the policy stays; [2]
    # Optimisation of the critic
    learning_rate: float = 1e-3  # of Adam, for the critic; as cpo, [2]: 3e-4, begun anew in each update
    adam_epsilon: float = 1e-8  # added to Adam's denominator; [2]
    max_grad_norm: float = 0.5  # limit of the gradient's norm, 0 for none; as cpo
    num_epochs: int = 10  # passes over each rollout, and over the rows beside it; as cpo, [2]: 30 steps on all rows
    batch_size: int = 128  # transitions per minibatch of the critic, a divisor of a rollout; as cpo
    # Experience
    num_envs: int = 8  # environments stepped side by side; as cpo
    num_steps: int = 256  # steps of each environment per rollout; num_envs x num_steps is 1,000 in [2]
    data_size: int = 2048  # rows of the data set beside each rollout: as many as it has; 0: no data set; [2]
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; as cpo, [2]: 1 for episodes of fixed length
    trace_decay: float = 0.97  # lambda of the advantages, in [0, 1]; [2]
    num_draws: int = 10  # actions of which V is the mean, but for one discrete action; [2]
    data_weight: float = 1.0  # weight of the data set's errors in the critic's loss; [2]
    normalise_rewards: bool = True  # divide by the running std of the discounted return, clip to +-10; as cpo
    # Policy and networks
    init_log_std: float = 0.0  # log std at the start, the same in all states; [2]
    encoder: encoders.Kind = "auto"  # convolutions, where pictures are observed: rljax/networks/encoders.py
    actor_hidden: tuple[int, ...] = (64, 64)  # widths of the actor's hidden layers; as cpo, [2]: 16 for each step
    critic_hidden: tuple[int, ...] = (64, 64)  # widths of the critic's hidden layers; [2]
    activation: networks.Activation = "tanh"  # of the hidden layers; [2]
    initialisation: networks.Initialisation = "orthogonal"  # of all layers; as cpo
    normalise_observations: bool = True  # running mean and std of rollouts' observations, clipped to +-10; as cpo


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: distributions.Actor  # [O] -> [A]: mean, or logits, and the log std
    critic: networks.Network  # [O], [A] or [] -> [1]
    optimiser: optax.OptState
    statistics: normalise.Statistics  # of observations [O]
    returns: normalise.Returns  # discounted, of running episodes [E]
    spec: EnvSpec = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Rollout:
    """Each iteration's steps, once, with rows of the data set beside them."""
    size = {"num_envs": config.num_envs, "num_steps": config.num_steps, "batch_size": config.batch_size}
    return buffers.Rollout(**size, data_size=config.data_size)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a hyperparameter out of range."""
    agent.require_widths(config, "actor_hidden", "critic_hidden")
    agent.require_unmixed("hnpg", spec)
    agent.require_range(config, discount=(0, 1), trace_decay=(0, 1), learning_rate=(0, None), data_weight=(0, None))
    agent.require_above(config, adam_epsilon=0, kl_limit=0, damping=0, backtrack=0)
    agent.require_below(config, backtrack=1)
    agent.require_at_least(config, cg_steps=1, backtracks=1, num_epochs=1, num_draws=1)
    agent.require_range(config, max_grad_norm=(0, None), init_log_std=(-30, 30))
    encoders.check(spec, encoding(config))


def encoding(config: Config) -> encoders.EncoderSettings:
    """The settings of the encoders."""
    return encoders.EncoderSettings(config.encoder, config.activation, config.initialisation)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters: small actions (or equal logits) at first."""
    key_actor, key_critic = jax.random.split(key)
    seen, action = spec.example(), jnp.zeros(spec.action_shape, spec.action_dtype)
    style = (config.activation, config.initialisation)
    mean = networks.MLP(config.actor_hidden, spec.action_size, *style, output_scale=0.01)
    actor = networks.create(encoders.encoded(spec, encoding(config), mean), key_actor, seen)
    ensemble = networks.ensemble(spec, 1, config.critic_hidden, *style)
    critic = networks.create(encoders.encoded(spec, encoding(config), ensemble), key_critic, seen, action)
    log_std = jnp.full(spec.numbers, config.init_log_std, jnp.float32) if not spec.discrete else None
    return State(
        actor=distributions.Actor(actor, log_std, spec.discrete, spec.choices),
        critic=critic,
        optimiser=optimiser(config).init(critic),
        statistics=normalise.of_observations(spec),
        returns=normalise.create_returns(config.num_envs),
        spec=spec,
    )


def optimiser(config: Config) -> optax.GradientTransformation:
    """Adam on gradients of limited norm."""
    limit = jnp.where(jnp.asarray(config.max_grad_norm) > 0, config.max_grad_norm, jnp.inf)
    return optax.chain(optax.clip_by_global_norm(limit), optax.adam(config.learning_rate, eps=config.adam_epsilon))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [..., A] or [...] for observations [..., O...]: sampled, or the mode when not exploring."""
    pi = policy(state.actor, scaled(state, observation, config))
    if not explore:
        return emitted(pi.mode(), state.spec), {}
    raw = pi.sample(seed=key)
    return emitted(raw, state.spec), {"raw": raw}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """Q [...] of actions [..., A] or [...] for observations [..., O]."""
    return state.critic(scaled(state, observation, config), action).mean(axis=0)


def scaled(state: State, observation: Any, config: Config) -> Any:
    """Observations [..., O...] as the networks see them."""
    return normalise.normalise(state.statistics, observation) if config.normalise_observations else observation


def policy(actor: distributions.Actor, observation: Any) -> distributions.Distribution:
    """pi(.|s) over raw actions, which are not yet clipped."""
    output = actor.mean(observation)
    if actor.log_std is None:
        return distributions.discrete(output, actor.choices, agent.mask_of(observation))
    return distributions.gaussian_beside(output, jnp.exp(actor.log_std), actor.choices)


def emitted(raw: Array, spec: EnvSpec) -> Array:
    """The action that the environment gets, from a raw action."""
    return distributions.clipped(raw, spec)


def returns(state: State, batch: Transition, key: Array, config: Config) -> Array:
    """R_t [T, E] of a rollout with scaled observations."""
    next_value = values(state, state.critic, batch.next_observation, key, config)
    cut = batch.truncated.at[-1].set(True)
    gain = batch.reward + config.discount * (1.0 - batch.terminated) * cut * next_value
    return buffers.discounted_sums(gain, config.discount * (1.0 - (batch.terminated | cut)))


# [3, eq. 16]
def advantages(state: State, batch: Transition, key: Array, config: Config) -> Array:
    """A_t [T, E] of a rollout with scaled observations."""
    pairs = zip((batch.observation, batch.next_observation), jax.random.split(key), strict=True)
    value, next_value = (values(state, state.critic, seen, key, config) for seen, key in pairs)
    delta = batch.reward + config.discount * (1.0 - batch.terminated) * next_value - value
    decay = config.discount * config.trace_decay * (1.0 - (batch.terminated | batch.truncated))
    return buffers.discounted_sums(delta, decay)


def values(state: State, critic: networks.Network, observation: Any, key: Array, config: Config) -> Array:
    """V(s) [...] for scaled observations [..., O...]: of all of one discrete action, or of actions that are drawn."""
    pi: Any = policy(state.actor, observation)
    if state.spec.discrete and not state.spec.choices:
        return (pi.probs * critic(observation).mean(axis=0)).sum(axis=-1)

    def drawn(key: Array) -> Array:
        return critic(observation, emitted(pi.sample(seed=key), state.spec)).mean(axis=0)

    return jax.lax.map(drawn, jax.random.split(key, config.num_draws)).mean(axis=0)


# [4, appendix C]
def step_of(actor: distributions.Actor, observation: Any, raw: Array, gains: Array, config: Config) -> Any:
    """The actor after its step, and metrics, from raw actions [N, ...], their observations and their A, `gains` [N]."""
    old = policy(actor, observation)
    before: Any = old.log_prob(raw)
    start, unravel = ravel_pytree(actor)

    def judged(point: Array) -> tuple[Array, Array]:
        """-S and KL, [] each, of parameters in one vector."""
        pi = policy(unravel(point), observation)
        return jnp.mean(-jnp.exp(pi.log_prob(raw) - before) * gains), jnp.asarray(old.kl_divergence(pi)).mean()

    (loss, _), g = judged(start), jax.grad(lambda point: judged(point)[0])(start)
    _, along = jax.vjp(jax.grad(lambda point: judged(point)[1]), start)

    def curved(vector: Array) -> Array:
        """H times a vector: the gradient of KL's slope along it, which any network has."""
        return along(vector)[0] + config.damping * vector

    of_g = cg(curved, g, tol=1e-10, maxiter=config.cg_steps)[0]
    change = -jnp.sqrt(2.0 * config.kl_limit / jnp.maximum(g @ of_g, 1e-30)) * of_g

    def accepted(share: Array) -> Array:
        new_loss, kl = judged(start + share * change)
        return (kl <= config.kl_limit) & (new_loss <= loss)

    def shorter(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        number, share, _ = carry
        share = share * config.backtrack
        return number + 1, share, accepted(share)

    one = jnp.ones(())
    begin = (jnp.ones((), jnp.int32), one, accepted(one))
    _, share, found = jax.lax.while_loop(lambda x: ~x[2] & (x[0] < config.backtracks), shorter, begin)
    share = jnp.where(found, share, 0.0)
    point = jnp.where(found, start + share * change, start)
    loss, kl = judged(point)
    metrics = {"actor/loss": loss, "actor/kl": kl, "actor/step": share, "actor/entropy": jnp.mean(old.entropy())}
    return unravel(point), metrics


# [1, HPE]
def critic_loss(critic: networks.Network, on: Any, beside: Any, config: Config) -> tuple[Array, Metrics]:
    """Squared error of Q: `on` are a minibatch [B, ...] and R [B], `beside` are rows [K, ...] of the data and y [K]."""
    q = critic(on[0].observation, on[0].action)[0]
    loss = jnp.square(q - on[1]).mean()
    metrics = {"critic/loss": loss, "critic/q": q.mean(), "critic/target": on[1].mean()}
    if beside is None:
        return loss, metrics
    q = critic(beside[0].observation, beside[0].action)[0]
    error = jnp.square(q - beside[1]).mean()
    metrics |= {"critic/data_loss": error, "critic/data_q": q.mean()}
    return loss + config.data_weight * error, metrics


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """Learn from a rollout [T, E, ...] and rows [D, ...] of data: passes of the critic, then a step of the policy."""
    del step
    batch, data = buffers.beside(batch)
    seen, reward, ended = batch.observation, batch.reward, batch.terminated | batch.truncated
    if config.normalise_rewards:
        sums, reward = normalise.scale_rewards(state.returns, reward, ended, config.discount)
        state = state.replace(returns=sums)

    def prepared(rows: Transition, reward: Array) -> Transition:
        following = scaled(state, rows.next_observation, config)
        return rows.replace(
            observation=scaled(state, rows.observation, config), next_observation=following, reward=reward
        )

    batch, adam, number = prepared(batch, reward), optimiser(config), reward.size // config.batch_size
    if data is not None:
        normalises = config.normalise_rewards
        data = prepared(data, normalise.scaled_rewards(state.returns, data.reward) if normalises else data.reward)
    key_returns, key_fit, key_advantages, key_data = jax.random.split(key, 4)
    target = returns(state, batch, key_returns, config)

    def learn(carry: tuple[Any, Any], inputs: Any) -> tuple[tuple[Any, Any], Metrics]:
        critic, moments = carry
        gradient, metrics = jax.grad(critic_loss, has_aux=True)(critic, *inputs, config)
        changes, moments = adam.update(gradient, moments)
        return (optax.apply_updates(critic, changes), moments), metrics

    def epoch(carry: tuple[Any, Any], key: Array) -> tuple[tuple[Any, Any], Metrics]:
        key_order, key_rows, key_value = jax.random.split(key, 3)
        on = buffers.minibatches(key_order, (batch.replace(next_observation=None), target), config.batch_size)
        if data is None:
            return jax.lax.scan(learn, carry, (on, None))
        following = values(state, carry[0], data.next_observation, key_value, config)
        target_of_data = data.reward + config.discount * (1.0 - data.terminated) * following
        rows = jax.tree.map(lambda x: x[None], (data, target_of_data))
        return jax.lax.scan(learn, carry, (on, buffers.minibatches(key_rows, rows, following.size // number)))

    keys = jax.random.split(key_fit, config.num_epochs)
    (critic, moments), metrics = jax.lax.scan(epoch, (state.critic, state.optimiser), keys)
    state = state.replace(critic=critic, optimiser=moments)
    gains = advantages(state, batch, key_advantages, config)
    rows = (seen, batch.observation, batch.extras["raw"], gains)
    seen, *inputs = jax.tree.map(lambda x: x.reshape(reward.size, *x.shape[2:]), rows)
    if data is not None:
        key_action, key_value = jax.random.split(key_data)
        raw: Any = policy(state.actor, data.observation).sample(seed=key_action)
        gains = critic(data.observation, emitted(raw, state.spec))[0]
        gains = gains - values(state, critic, data.observation, key_value, config)
        inputs = jax.tree.map(lambda *x: jnp.concatenate(x), inputs, [data.observation, raw, gains])
    actor, found = step_of(state.actor, inputs[0], inputs[1], inputs[2], config)
    if config.normalise_observations:
        state = state.replace(statistics=normalise.update(state.statistics, seen))
    return state.replace(actor=actor), jax.tree.map(jnp.mean, metrics) | found


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
