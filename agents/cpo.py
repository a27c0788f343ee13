"""CPO [constrained]: steps of the policy within a trust region and a limit of costs.

gamma discount, lambda trace decay, V critic
theta parameters of the actor pi, pi_old the rollout's actor
ended: terminated or truncated, KL mean over states
c cost, d its limit, V_c critic of costs
J_c and T: mean cost and length of the episodes that ended last
  delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
  A_t     = delta_t + gamma lambda (1 - ended_t) A_{t+1}  [2, eq. 16]
  S(pi)   = mean pi(a|s) / pi_old(a|s) A
  S_c(pi) = mean pi(a|s) / pi_old(a|s) (A_c - mean A_c)  A_c of c, V_c
  g, b    = gradients of -S and of S_c,  e = (J_c - d) / T
  H       = Hessian of KL(pi_old || pi) + damping I
  x*      = argmin g.x                           [1, eq. 11]
            where  e + b.x <= 0,  x.Hx / 2 <= kl_limit
            or, where no x does both, the recovery  [1, eq. 14]
  theta  <- theta + backtrack^k x*               [1, alg. 1]
            with the least k for which  KL <= kl_limit,
            S_c <= max(-e, 0)  and, where e < 0,
            S does not fall                      [3]
  L(V)    = mean (V(s) - (A + V_old(s)))^2 / 2  L(V_c) likewise

Departs from the paper: d limits sums without discount.
V_c learns scaled costs.
The environment gives c as its signal "cost".

[1] Achiam et al., Constrained Policy Optimization, arXiv:1705.10528
[2] Schulman et al., Generalized Advantage Estimation, arXiv:1506.02438
[3] Ray et al., Benchmarking Safe Exploration in Deep RL, 2019

  rljax train cpo --env velocity/HalfCheetah-v5
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import encoders, normalise, policies, torsos
from rljax.networks.heads import rollouts
from rljax.networks.optimisation import multipliers, trust_region
from rljax.networks.optimisation.multipliers import ValueAndCost
from rljax.networks.torsos import TorsoSettings
from rljax.requirements import Backtrack, Count, LogStd, NonNegative, Positive, Share, Widths


@agent.config
class Config(networks.WithSchedule):
    """Hyperparameters."""

    acting = agent.Acting(settings=("compute",))
    # Policy step
    kl_limit: Positive = 0.01  # mean KL of pi_old and pi; [3]
    damping: Positive = 0.1  # added to KL's Hessian; [3]
    cg_steps: Count = 10  # of conjugate gradients; [3]
    backtrack: Backtrack = 0.8  # factor of each try; [3]
    backtracks: Count = 10  # tries of the line search; [3]
    # Optimisation of critics
    learning_rate: NonNegative = 1e-3  # of Adam; [3]
    adam_epsilon: Positive = 1e-8  # of Adam; [3]
    max_grad_norm: NonNegative = 0.5  # 0: no limit; ppo_lagrangian
    num_epochs: Count = 10  # passes over each rollout; OmniSafe
    batch_size: int = 128  # transitions per minibatch; OmniSafe
    # Experience
    num_envs: int = 8  # side by side; ppo_lagrangian
    num_steps: int = 1024  # per environment; [3]: 30,000
    # Targets
    discount: Share = 0.99  # gamma; [3]
    trace_decay: Share = 0.97  # lambda of the advantages; [3]
    normalise_advantages: bool = True  # per rollout; [3]
    reward_scale: Positive = 1.0  # factor on rewards
    normalise_rewards: bool = True  # by the std of returns; own choice
    # Costs
    cost_limit: NonNegative = 25.0  # d, sum per episode; [3]
    cost_discount: Share = 0.99  # gamma of costs; [3]
    cost_trace_decay: Share = 0.97  # lambda of costs; [3]
    normalise_costs: bool = True  # by std, for V_c; own choice
    # Policy and networks
    init_log_std: LogStd = -0.5  # in all states; [3]
    encoder: encoders.Kind = "auto"  # of other than vectors
    torso: torsos.Kind = "mlp"  # of all networks; [3]
    compute: int = 1  # T, thinking steps; own choice
    grid: tuple[int, int] | None = None  # rows, columns of a drc
    actor_hidden: Widths = (64, 64)  # of layers; OmniSafe
    critic_hidden: Widths = (64, 64)  # of layers; OmniSafe
    activation: networks.Activation = "tanh"  # of hidden layers; [3]
    initialisation: networks.Initialisation = "orthogonal"  # ppo_lagrangian
    normalise_observations: bool = True  # running; ppo_lagrangian


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Actor  # [O] -> [A]: mean or logits
    critics: networks.Trained  # ValueAndCost: [O] -> [2]
    returns: normalise.Returns  # of running episodes [E]
    cost_returns: multipliers.Costs  # of running episodes [E]
    length_returns: multipliers.Costs  # lengths [E]
    episode_statistics: Array  # [2] J_c and T; 0 at first
    actions: policies.RawActions = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Rollout:
    """Each iteration's steps, once."""
    return buffers.Rollout.of(config, signals=("cost",))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    settings = TorsoSettings.of(config, progressive=None)
    torsos.check(spec, settings, config.actor_hidden, config.critic_hidden)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters: small actions, or equal logits."""
    key_actor, key_critic = jax.random.split(key)
    actions = policies.RawActions.of(spec)
    inputs = spec.example()
    settings = TorsoSettings.of(config, progressive=None)
    mean = torsos.network(spec, settings, config.actor_hidden, actions.features, 0.01)
    critic = torsos.network(spec, settings, config.critic_hidden, 1)
    critics = ValueAndCost.create(critic, key_critic, inputs)
    return State(
        actor=actions.actor(networks.create(mean, key_actor, inputs), config.init_log_std),
        critics=networks.Trained.create(critics, optimiser(0, config)),
        returns=normalise.create_returns(config.num_envs),
        cost_returns=multipliers.create_costs(config.num_envs),
        length_returns=multipliers.create_costs(config.num_envs),
        episode_statistics=jnp.zeros(2),
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


# [2, eq. 16]
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


def observe_costs(
    state: State, batch: Transition, config: Config
) -> tuple[State, Transition, agent.Weighted]:
    """The state, the rollout with scaled costs, and J_c."""
    costs, rollout, cost = multipliers.observe_rollout(
        state.cost_returns, batch, config.cost_discount, config.normalise_costs
    )
    ended = batch.terminated | batch.truncated
    steps = jnp.ones_like(batch.reward)
    lengths, _, length = multipliers.observe(state.length_returns, steps, ended, 1.0)
    newest = jnp.stack([cost.value, length.value])
    means = jnp.where(cost.weight > 0, newest, state.episode_statistics)
    state = state.replace(cost_returns=costs, length_returns=lengths, episode_statistics=means)
    return state, rollout, cost


# [1, sections 6.1 and 6.2]; demands of the line search: [3], its code
def policy_step(state: State, batch: Transition, config: Config) -> tuple[networks.Actor, Metrics]:
    """The actor after its step, for a rollout with advantages."""
    advantage, cost_advantage = jnp.moveaxis(batch.extras["advantage"], -1, 0)
    cost_advantage = multipliers.centred(state.cost_returns, cost_advantage, config.normalise_costs)
    if config.normalise_advantages:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    mean_cost, mean_length = state.episode_statistics
    excess = (mean_cost - config.cost_limit) / jnp.maximum(mean_length, 1.0)
    near = trust_region.Neighbourhood(
        state.actions, state.actor, batch.observation, batch.extras["raw"]
    )
    g = -jax.grad(near.surrogate)(near.start, advantage)
    b = jax.grad(near.surrogate)(near.start, cost_advantage)
    product = trust_region.fisher_vector_product(near.kl, near.start, config.damping)
    natural_g = trust_region.natural_gradient(product, g, config.cg_steps)
    natural_b = trust_region.natural_gradient(product, b, config.cg_steps)
    dual = multipliers.dual(g @ natural_g, g @ natural_b, b @ natural_b, excess, config.kl_limit)
    change = -(dual.of_gain * natural_g + dual.of_cost * natural_b)
    gain = near.surrogate(near.start, advantage)
    cost = near.surrogate(near.start, cost_advantage)

    def accepts(point: Array) -> Array:
        # The way back to the limit may cost rewards
        improves = (near.surrogate(point, advantage) >= gain) | (excess >= 0)
        growth = near.surrogate(point, cost_advantage) - cost
        keeps_limit = growth <= jnp.maximum(-excess, 0.0)
        return (near.kl(point) <= config.kl_limit) & improves & keeps_limit

    point, share = trust_region.line_search(
        near.start, change, accepts, config.backtrack, config.backtracks
    )
    metrics = near.metrics(point, share, advantage)
    metrics["cost/loss"] = near.surrogate(point, cost_advantage)
    metrics["cost/recovers"] = dual.recovers.astype(jnp.float32)
    return near.actor(point), metrics


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Learn from a rollout [T, E, ...]: policy, then critics."""
    batch = batch.replace(reward=config.reward_scale * batch.reward)
    if config.normalise_rewards:
        returns, batch = normalise.scale_rollout(state.returns, batch, config.discount)
        state = state.replace(returns=returns)
    state, batch, episode_cost = observe_costs(state, batch, config)
    rollout = with_advantages(state.critics.parameters, batch, config)
    target = rollout.extras["advantage"] + rollout.extras["value"]
    actor, metrics = policy_step(state, rollout, config)
    metrics |= buffers.explained_variance(rollout)
    batch = batch.replace(next_observation=None)  # no minibatch needs it

    def epoch(critics: networks.Trained, key: Array) -> tuple[networks.Trained, Metrics]:
        rows = buffers.minibatches(key, (batch, target), config.batch_size)
        return critics.fit(optimiser(step, config), multipliers.critic_loss, rows)

    keys = jax.random.split(key, config.num_epochs)
    critics, critic_metrics = jax.lax.scan(epoch, state.critics, keys)
    metrics |= jax.tree.map(jnp.mean, critic_metrics) | {"cost/episode": episode_cost}
    return state.replace(actor=actor, critics=critics), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
