"""CPO [constrained]: each step improves rewards, and keeps a limit on costs to first order.

gamma discount, lambda trace decay, pi actor with parameters theta, pi_old the rollout's actor, V critic; c cost,
d cost limit, V_c critic of costs, J_c and T mean cost and length of the episodes that ended last, KL mean over states
  delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
  A_t     = delta_t + gamma lambda (1 - ended_t) A_{t+1}                      [2, eq. 16], ended: terminated | truncated
  A_c     likewise, from c, V_c, its own gamma and lambda
  S(pi)   = mean [ pi(a|s) / pi_old(a|s) A ],  S_c(pi) = mean [ pi(a|s) / pi_old(a|s) (A_c - mean A_c) ]
  g, b    = gradients of -S and of S_c,  H = Hessian of KL(pi_old || pi) + damping I,  e = (J_c - d) / T
  x*      = argmin g.x  where  e + b.x <= 0,  x.Hx / 2 <= kl_limit            [1, eq. 11], by its dual [1, eq. 12]
          = -sqrt(2 kl_limit / b.H^-1 b) H^-1 b, where no x does both         [1, eq. 14], the recovery
  theta  <- theta + backtrack^k x*, with the least k for which KL(pi_old || pi) <= kl_limit, S_c <= max(-e, 0) and,
            unless in recovery, S does not fall                               [1, section 6.3]
  L(V)    = mean [ (V(s) - (A + V_old(s)))^2 ] / 2                            L(V_c) likewise

H^-1 is applied by conjugate gradients. pi(.|s) is a diagonal Gaussian whose actions are clipped to [-1, 1] when they
leave the agent, or a softmax over discrete actions. The environment gives the cost as its signal "cost".

Departs from the paper: the limit is on the sum of costs without discount, and S_c is a mean over steps, so that e is
divided by T, as in the authors' later code [3]. The cost critic learns costs divided by the running std of their
discounted sum. Before the first episode has ended, nothing is limited but KL. Critics learn by Adam after the policy.

[1] Achiam et al., Constrained Policy Optimization, arXiv:1705.10528
[2] Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage Estimation, arXiv:1506.02438
[3] Ray et al., Benchmarking Safe Exploration in Deep Reinforcement Learning, 2019

  rljax train cpo --env velocity/HalfCheetah-v5
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
from rljax.networks import distributions, encoders, multipliers, normalise, torsos


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Policy step
    kl_limit: float = 0.01  # largest mean KL of pi_old and pi in an update; [3]
    damping: float = 0.1  # added to the diagonal of KL's Hessian; [3]
    cg_steps: int = 10  # of conjugate gradients; [3]
    backtrack: float = 0.8  # factor of each step of the line search, in (0, 1); [3]
    backtracks: int = 10  # steps of the line search, after which the policy stays; [3]
    # Optimisation of critics
    learning_rate: float = 1e-3  # of Adam, for the critics; [3]
    adam_epsilon: float = 1e-8  # added to Adam's denominator; [3]
    max_grad_norm: float = 0.5  # limit of the gradient's norm over both critics, 0 for none; as ppo_lagrangian
    num_epochs: int = 10  # passes over each rollout; OmniSafe
    batch_size: int = 128  # transitions per minibatch of the critics, a divisor of a rollout; OmniSafe
    # Experience
    num_envs: int = 8  # environments stepped side by side; as ppo_lagrangian
    num_steps: int = 1024  # steps of each environment per rollout; num_envs x num_steps is 30,000 in [3]
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [3]
    trace_decay: float = 0.97  # lambda of the advantages, in [0, 1]; [3]
    normalise_advantages: bool = True  # to zero mean and unit std per rollout; [3]
    reward_scale: float = 1.0  # factor on rewards
    normalise_rewards: bool = True  # divide by the running std of the discounted return, clip to +-10; own choice
    # Costs
    cost_limit: float = 25.0  # d, per episode, without discount; [3]
    cost_discount: float = 0.99  # gamma of costs, in [0, 1]; [3]
    cost_trace_decay: float = 0.97  # lambda of the advantages of costs, in [0, 1]; [3]
    normalise_costs: bool = True  # for V_c: divide by the running std of the discounted cost; own choice
    # Policy and networks
    init_log_std: float = -0.5  # log std at the start, the same in all states; [3]
    encoder: encoders.Kind = "auto"  # convolutions, where pictures are observed: rljax/networks/encoders.py
    torso: torsos.Kind = "mlp"  # of actor and critic; [3]
    compute: int = 1  # T, thinking steps of torsos that take any number of them; own choice
    grid: tuple[int, int] | None = None  # rows and columns of the picture, where a drc gets it as a vector
    actor_hidden: tuple[int, ...] = (64, 64)  # widths of the actor's hidden layers; OmniSafe
    critic_hidden: tuple[int, ...] = (64, 64)  # widths of both critics' hidden layers; OmniSafe
    activation: networks.Activation = "tanh"  # of the hidden layers; [3]
    initialisation: networks.Initialisation = "orthogonal"  # of all layers; as ppo_lagrangian
    normalise_observations: bool = True  # running mean and std of observations, clipped to +-10; as ppo_lagrangian


class Critics(struct.PyTreeNode):
    """The parameters that Adam moves."""

    critic: networks.Network  # [O] -> [1]
    cost_critic: networks.Network  # [O] -> [1], of costs


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: distributions.Actor  # [O] -> [A]: mean, or logits, and the log std
    critics: Critics
    optimiser: optax.OptState
    statistics: normalise.Statistics  # of observations [O]
    returns: normalise.Returns  # discounted, of running episodes [E]
    cost_returns: multipliers.Costs  # of running episodes [E]
    length_returns: multipliers.Costs  # a cost of 1 per step: lengths of running episodes [E]
    episode_statistics: Array  # [2] J_c and T; 0 before the first episode ended
    spec: EnvSpec = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Rollout:
    """Each iteration's steps, once."""
    size = {"num_envs": config.num_envs, "num_steps": config.num_steps, "batch_size": config.batch_size}
    return buffers.Rollout(**size, signals=("cost",))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a hyperparameter out of range."""
    agent.require_widths(config, "actor_hidden", "critic_hidden")
    agent.require_range(config, discount=(0, 1), trace_decay=(0, 1), learning_rate=(0, None))
    agent.require_above(config, adam_epsilon=0, kl_limit=0, damping=0, backtrack=0)
    agent.require_below(config, backtrack=1)
    agent.require_at_least(config, cg_steps=1, backtracks=1, num_epochs=1)
    agent.require_range(config, max_grad_norm=(0, None), reward_scale=(None, None), init_log_std=(-30, 30))
    agent.require_range(config, cost_limit=(0, None), cost_discount=(0, 1), cost_trace_decay=(0, 1))
    torsos.check(spec, layers(config), config.actor_hidden, config.critic_hidden)


def layers(config: Config) -> torsos.TorsoSettings:
    """The settings of the torsos."""
    style = (config.activation, config.initialisation, False, config.grid, config.encoder)
    return torsos.TorsoSettings(config.torso, config.compute, None, *style)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters: small actions (or equal logits) at first."""
    key_actor, key_critic = jax.random.split(key)
    seen, chosen = spec.example(), layers(config)
    actor = torsos.network(spec, chosen, config.actor_hidden, spec.action_size, output_scale=0.01)
    critic = torsos.network(spec, chosen, config.critic_hidden, 1)
    log_std = jnp.full(spec.numbers, config.init_log_std, jnp.float32) if not spec.discrete else None
    critics = Critics(
        critic=networks.create(critic, key_critic, seen),
        cost_critic=networks.create(critic, jax.random.fold_in(key_critic, 1), seen),
    )
    return State(
        actor=distributions.Actor(networks.create(actor, key_actor, seen), log_std, spec.discrete, spec.choices),
        critics=critics,
        optimiser=optimiser(config).init(critics),
        statistics=normalise.of_observations(spec),
        returns=normalise.create_returns(config.num_envs),
        cost_returns=multipliers.create_costs(config.num_envs),
        length_returns=multipliers.create_costs(config.num_envs),
        episode_statistics=jnp.zeros(2),
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


# [2, eq. 16]
def advantages(critics: Critics, batch: Transition, config: Config) -> tuple[Array, Array]:
    """A_t and V(s_t), of rewards and of costs, [T, E, 2] each, of a rollout with scaled observations."""
    value, next_value = (values(critics, x) for x in (batch.observation, batch.next_observation))
    gain = jnp.stack([batch.reward, batch.extras["cost"]], axis=-1)
    discount = jnp.stack([config.discount, config.cost_discount])
    delta = gain + discount * (1.0 - batch.terminated)[..., None] * next_value - value
    traces = discount * jnp.stack([config.trace_decay, config.cost_trace_decay])
    decay = traces * (1.0 - (batch.terminated | batch.truncated))[..., None]
    return buffers.discounted_sums(delta, decay), value


def values(critics: Critics, observation: Any) -> Array:
    """V(s) and V_c(s) [..., 2] for scaled observations [..., O...]."""
    return jnp.concatenate([critics.critic(observation), critics.cost_critic(observation)], axis=-1)


# [1, section 6.3]
def step_of(actor: distributions.Actor, batch: Transition, gains: Array, excess: Array, config: Config) -> Any:
    """The actor after its step, and metrics; `gains` [T, E, 2] are A and A_c, `excess` [] is (J_c - d) / T."""
    old = policy(actor, batch.observation)
    before: Any = old.log_prob(batch.extras["raw"])
    start, unravel = ravel_pytree(actor)

    def judged(point: Array) -> tuple[Array, Array, Array]:
        """-S, S_c and KL, [] each, of parameters in one vector."""
        pi = policy(unravel(point), batch.observation)
        ratio = jnp.exp(pi.log_prob(batch.extras["raw"]) - before)
        loss, cost = jnp.mean(-ratio * gains[..., 0]), jnp.mean(ratio * gains[..., 1])
        return loss, cost, jnp.asarray(old.kl_divergence(pi)).mean()

    g, b = (jax.grad(lambda point, i=i: judged(point)[i])(start) for i in (0, 1))
    _, along = jax.vjp(jax.grad(lambda point: judged(point)[2]), start)

    def curved(vector: Array) -> Array:
        """H times a vector: the gradient of KL's slope along it, which any network has."""
        return along(vector)[0] + config.damping * vector

    of_g, of_b = (cg(curved, vector, tol=1e-10, maxiter=config.cg_steps)[0] for vector in (g, b))
    solved = multipliers.dual(g @ of_g, g @ of_b, b @ of_b, excess, config.kl_limit)
    change = -(solved.of_gain * of_g + solved.of_cost * of_b)
    loss, cost, _ = judged(start)

    def accepted(share: Array) -> Array:
        new_loss, new_cost, kl = judged(start + share * change)
        improves = (new_loss <= loss) | solved.recovers
        return (kl <= config.kl_limit) & improves & (new_cost - cost <= jnp.maximum(-excess, 0.0))

    def shorter(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        number, share, _ = carry
        share = share * config.backtrack
        return number + 1, share, accepted(share)

    one = jnp.ones(())
    begin = (jnp.ones((), jnp.int32), one, accepted(one))
    _, share, found = jax.lax.while_loop(lambda x: ~x[2] & (x[0] < config.backtracks), shorter, begin)
    share = jnp.where(found, share, 0.0)
    point = jnp.where(found, start + share * change, start)
    loss, cost, kl = judged(point)
    metrics = {"actor/loss": loss, "actor/kl": kl, "actor/step": share, "actor/entropy": jnp.mean(old.entropy())}
    return unravel(point), metrics | {"cost/loss": cost, "cost/recovers": solved.recovers.astype(jnp.float32)}


def critic_loss(critics: Critics, batch: Transition, target: Array) -> tuple[Array, Metrics]:
    """Half the squared errors of V(s) and V_c(s), [B, 2]."""
    value = values(critics, batch.observation)
    loss, cost_loss = 0.5 * jnp.square(value - target).mean(axis=0)
    mean, cost_mean = value.mean(axis=0)
    found = {"critic/loss": loss, "critic/value": mean, "critic/cost_loss": cost_loss, "critic/cost_value": cost_mean}
    return loss + cost_loss, found


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """Learn from one rollout [T, E, ...]: one step of the policy, then `num_epochs` passes of the critics over it."""
    del step
    seen, reward, ended = batch.observation, config.reward_scale * batch.reward, batch.terminated | batch.truncated
    if config.normalise_rewards:
        returns, reward = normalise.scale_rewards(state.returns, reward, ended, config.discount)
        state = state.replace(returns=returns)
    cost = batch.extras["cost"]
    costs, scaled_cost, episodes = multipliers.observe(state.cost_returns, cost, ended, config.cost_discount)
    lengths, _, length = multipliers.observe(state.length_returns, jnp.ones_like(cost), ended, 1.0)
    last = jnp.where(episodes.weight > 0, jnp.stack([episodes.value, length.value]), state.episode_statistics)
    state = state.replace(cost_returns=costs, length_returns=lengths, episode_statistics=last)
    batch = batch.replace(
        observation=scaled(state, batch.observation, config),
        next_observation=scaled(state, batch.next_observation, config),
        reward=reward,
        extras={**batch.extras, "cost": scaled_cost if config.normalise_costs else cost},
    )
    adam = optimiser(config)
    estimates, value = advantages(state.critics, batch, config)
    advantage = estimates[..., 0]
    price: Any = estimates[..., 1] * multipliers.scale(state.cost_returns, config.normalise_costs)
    if config.normalise_advantages:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    excess = (last[0] - config.cost_limit) / jnp.maximum(last[1], 1.0)
    gains = jnp.stack([advantage, price - price.mean()], axis=-1)
    actor, found = step_of(state.actor, batch, gains, excess, config)

    def learn(carry: tuple[Any, Any], inputs: Any) -> tuple[tuple[Any, Any], Metrics]:
        critics, moments = carry
        gradient, metrics = jax.grad(critic_loss, has_aux=True)(critics, *inputs)
        changes, moments = adam.update(gradient, moments)
        return (optax.apply_updates(critics, changes), moments), metrics

    def epoch(carry: tuple[Any, Any], key: Array) -> tuple[tuple[Any, Any], Metrics]:
        drawn = buffers.minibatches(key, (batch.replace(next_observation=None), estimates + value), config.batch_size)
        return jax.lax.scan(learn, carry, drawn)

    keys = jax.random.split(key, config.num_epochs)
    (critics, moments), metrics = jax.lax.scan(epoch, (state.critics, state.optimiser), keys)
    state = state.replace(actor=actor, critics=critics, optimiser=moments)
    if config.normalise_observations:
        flat = jax.tree.map(lambda x: x.reshape(reward.size, *x.shape[2:]), seen)
        state = state.replace(statistics=normalise.update(state.statistics, flat))
    return state, jax.tree.map(jnp.mean, metrics) | found | {"cost/episode": episodes}


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
