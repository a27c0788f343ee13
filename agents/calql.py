"""Cal-QL [hybrid]: CQL whose critics stay above the returns that the data have.

Each critic's penalty lowers values at candidate actions. Those of the policy's candidates count at least as much as the
discounted return from the row on, R, so that values stay on the scale of returns when the agent goes on online.

R return to go, of rows that have one; a_k, p_k candidates and their densities, y and all other losses: agents/cql.py
  q_ck     = max(Q_c(s, a_k), R) for a_k of the policy,  Q_c(s, a_k) for uniform ones                  [1, section 5]
  G_c      = mean [ T log sum_k exp((q_ck - log p_k) / T) - Q_c(s, a) ]        T gap_temperature
  L(Q)     = sum_c [ mean (Q_c(s, a) - y)^2 + w G_c ]      or m w (G_c - tau) with a multiplier m, w penalty_weight

Departs from the paper: defaults are those of the authors' code [2]. A new episode's rows have no R before it ends,
where the authors learn from whole episodes alone.

[1] Nakamoto et al., Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online Fine-Tuning, arXiv:2303.05479
[2] github.com/nakamotoo/Cal-QL

  rljax train calql --data d4rl/antmaze-medium-play-v2 --then-online 1000000
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import distributions, normalise


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    actor_lr: float = 1e-4  # Adam learning rate of the actor; [2]
    critic_lr: float = 3e-4  # Adam learning rate of the critics and of log m; [2]
    temperature_lr: float = 1e-4  # Adam learning rate of log alpha; [2], the actor's
    batch_size: int = 256  # transitions per update; [2]
    num_parts: int = 4  # parts of a batch, in turn: speed alone; faster in a CPU's cache, use 1 on a GPU; own choice
    # Experience
    reward_transform: buffers.RewardTransform = "none"  # of the data set's rewards, before any update; [2]
    normalise_observations: bool = False  # by the data set's mean and std; [2]
    replay_size: int = 1_000_000  # online: transitions kept beside the data set; own choice
    warmup_steps: int = 0  # online: environment steps with uniform actions and no update; own choice
    num_envs: int = 1  # online: environments stepped side by side
    num_steps: int = 1  # online: steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [2]
    target_rate: float = 0.005  # rho, share of the online critics in the targets per update; [2]
    backup: Literal["deterministic", "entropy", "max", "max_of_min"] = "deterministic"  # of Q'; [2], see the page
    # Conservatism
    calibrate: bool = True  # bound the policy's candidates by returns to go; False is CQL; [1]
    failure_reward: float | None = None  # of each step without success; then R is it / (1 - gamma), see the page; [2]
    penalty_weight: float = 5.0  # w; [2] for antmaze, 1 for adroit
    num_actions: int = 10  # N, candidates of each kind per state; [2]
    importance_sampling: bool = True  # False: p_k = 1, and the data's action is a candidate too; [2], CQL(rho)
    gap_temperature: float = 1.0  # T, of the soft maximum; [2]
    gap_min: float | None = None  # lower clip of a transition's gap; None in [2]
    gap_max: float | None = None  # upper clip of a transition's gap; None in [2]
    lagrange: bool = False  # learn the multiplier m that keeps the gap at tau; [2], True for antmaze
    target_gap: float = 0.8  # tau, the weighted gap above which m rises; [2] for antmaze
    weighted_target: bool = True  # P_c = m w (G_c - tau): tau is a gap without w; [2]
    init_multiplier: float = 2.718281828  # m at the start; [2]
    # Policy
    bc_steps: int = 0  # first updates, where the actor clones the data set's actions; [2]
    update_order: Literal["critic_first", "together"] = "together"  # actor by new critics, or by old ones as in [2]
    init_temperature: float = 1.0  # alpha at the start; [2]
    target_entropy: float | None = None  # in nats of the normalised action; None is -A, [2]
    log_std_min: float = -20.0  # lower clip of log std; [2]
    log_std_max: float = 2.0  # upper clip of log std; [2]
    log_std_offset: float = -1.0  # added to the network's log std; [2], which learns it
    # Networks
    hidden: tuple[int, ...] = (256, 256)  # widths of the actor's hidden layers; [2] for antmaze
    critic_hidden: tuple[int, ...] = (256, 256, 256, 256)  # widths of the critics' hidden layers; [2] for antmaze
    num_critics: int = 2  # C; the smallest value counts; [2]
    activation: networks.Activation = "relu"  # of the hidden layers; [2]
    layer_norm: bool = False  # normalise the critics' hidden layers before activation; True in WSRL
    initialisation: networks.Initialisation = "torch"  # of the actor's layers; own choice
    critic_initialisation: networks.Initialisation = "torch"  # of the critics' layers; own choice


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    actor: networks.Network  # [O] -> [2 A]: mean and log std
    critic: networks.Network  # [O], [A] -> [C]
    target_critic: networks.Network
    log_temperature: Array  # []
    log_multiplier: Array  # []
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    temperature_optimiser: optax.OptState
    multiplier_optimiser: optax.OptState
    statistics: normalise.Statistics  # of observations [O]


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches of a data set with returns to go; online, half of each batch is new experience."""
    columns = (buffers.ReturnToGo(discount=config.discount, failure=config.failure_reward),) if config.calibrate else ()
    online = buffers.Replay(
        replay_size=config.replay_size,
        batch_size=config.batch_size,
        warmup_steps=config.warmup_steps,
        num_envs=config.num_envs,
        num_steps=config.num_steps,
        num_updates=config.num_updates,
        columns=columns,
    )
    return buffers.Dataset(
        batch_size=config.batch_size,
        num_updates=config.num_updates,
        reward_transform=config.reward_transform,
        columns=columns,
        online=online,
    )


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for a discrete action space or a hyperparameter out of range."""
    agent.require_vectors("calql", spec)
    agent.require_widths(config, "hidden", "critic_hidden")
    agent.require_continuous("calql", spec, "cql_discrete")
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), actor_lr=(0, None), critic_lr=(0, None))
    agent.require_range(config, temperature_lr=(0, None), init_temperature=(1e-8, None), init_multiplier=(1e-8, 1e6))
    agent.require_range(config, penalty_weight=(0, None), gap_temperature=(1e-8, None), target_gap=(None, None))
    agent.require_range(config, log_std_min=(-30, 30), log_std_max=(-30, 30), log_std_offset=(None, None))
    agent.require_order(config, "log_std_min", "log_std_max")
    given = [x for x in ("target_entropy", "gap_min", "gap_max", "failure_reward") if getattr(config, x) is not None]
    agent.require_range(config, **dict.fromkeys(given, (None, None)))
    agent.require_order(config, "gap_min", "gap_max")
    agent.require_at_least(config, num_actions=1, num_critics=1, bc_steps=0, num_parts=1)
    if config.batch_size % config.num_parts:
        raise ValueError(f"--config.num-parts is {config.num_parts}, it must divide the batch of {config.batch_size}.")


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the critics."""
    key_actor, key_critic = jax.random.split(key)
    observation, action = jnp.zeros(spec.observation_shape), jnp.zeros(spec.action_shape)
    style, critic_style = ((config.activation, x) for x in (config.initialisation, config.critic_initialisation))
    actor = networks.create(networks.MLP(config.hidden, 2 * spec.action_size, *style), key_actor, observation)
    ensemble = networks.Ensemble(config.num_critics, config.critic_hidden, *critic_style, config.layer_norm)
    critic = networks.create(ensemble, key_critic, observation, action)
    start = (config.init_temperature, config.init_multiplier)
    log_temperature, log_multiplier = (jnp.log(jnp.asarray(x, jnp.float32)) for x in start)
    return State(
        actor=actor,
        critic=critic,
        target_critic=networks.copy(critic),
        log_temperature=log_temperature,
        log_multiplier=log_multiplier,
        actor_optimiser=optax.adam(config.actor_lr).init(actor),
        critic_optimiser=optax.adam(config.critic_lr).init(critic),
        temperature_optimiser=optax.adam(config.temperature_lr).init(log_temperature),
        multiplier_optimiser=optax.adam(config.critic_lr).init(log_multiplier),
        statistics=normalise.create(spec.observation_shape),
    )


def prepare(state: State, data: Transition, config: Config) -> State:
    """Count the observations of a data set [N, O] into the input statistics."""
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.of_data(data.observation))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]: sampled, or the tanh of the mean when not exploring."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    if not explore:
        return jnp.tanh(jnp.split(state.actor(observation), 2, axis=-1)[0]), {}
    return policy(state.actor, observation, config).sample(seed=key), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean value [...] of actions [..., A] for observations [..., O]."""
    if config.normalise_observations:
        observation = normalise.standardise(state.statistics, observation)
    return state.critic(observation, action).mean(axis=0)


def policy(actor: networks.Network, observation: Array, config: Config) -> distributions.SquashedGaussian:
    """pi(.|s) for observations [..., O]."""
    mean, raw = jnp.split(actor(observation), 2, axis=-1)
    log_std = jnp.clip(raw + config.log_std_offset, config.log_std_min, config.log_std_max)
    return distributions.squashed_gaussian(mean, log_std)


def candidates(state: State, batch: Transition, key: Array, config: Config) -> dict[str, Array]:
    """Actions of the policy in s and s', [B, 1 + N, A], uniform ones [B, N, A], and the policy's log-probabilities."""
    key_policy, key_uniform = jax.random.split(key)
    both = jnp.concatenate([batch.observation, batch.next_observation])  # [2 B, O], in one pass
    drawn = policy(state.actor, both, config).sample_and_log_prob(seed=key_policy, sample_shape=1 + config.num_actions)
    (action, next_action), (log_prob, next_log_prob) = (jnp.split(x, 2, 1) for x in drawn)
    uniform = jax.random.uniform(key_uniform, action[1:].shape, minval=-1.0, maxval=1.0)
    found = {"action": action, "next_action": next_action, "uniform": uniform}
    found |= {"log_prob": log_prob, "next_log_prob": next_log_prob}
    return {name: x.swapaxes(0, 1) for name, x in found.items()}


# [1, section 5]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, drawn: dict[str, Array], config: Config
) -> tuple[Array, Metrics]:
    """Squared error of all critics to the target, plus the penalty on their gaps, summed over critics."""
    drawn = {name: jax.lax.stop_gradient(x.swapaxes(0, 1)) for name, x in drawn.items()}  # [1 + N, B, ...]
    action, next_action, uniform = drawn["action"], drawn["next_action"], drawn["uniform"]
    log_prob, next_log_prob = drawn["log_prob"], drawn["next_log_prob"]

    tried = next_action[1:] if config.backup in ("max", "max_of_min") else next_action[:1]  # [N, B, A] or [1, B, A]
    next_q = state.target_critic(batch.next_observation, tried)  # [C, N or 1, B]
    next_q = next_q.max(axis=1).min(axis=0) if config.backup == "max" else next_q.min(axis=0).max(axis=0)  # [B]
    if config.backup == "entropy":
        next_q -= jnp.exp(state.log_temperature) * next_log_prob[0]
    target = batch.reward + config.discount * (1.0 - batch.terminated) * next_q

    uniform_log_prob = jnp.full_like(log_prob[1:], -uniform.shape[-1] * jnp.log(2.0))
    log_density = jnp.concatenate([uniform_log_prob, log_prob[1:], next_log_prob[1:]])  # [3 N, B]
    q = critic(batch.observation, jnp.concatenate([batch.action[None], uniform, action[1:], next_action[1:]]))
    bounded = {}
    if config.calibrate:
        of_policy = (jnp.arange(q.shape[1]) > len(uniform))[:, None]  # [1 + 3 N, 1]
        bound = jnp.where(of_policy & batch.extras["has_return_to_go"], batch.extras["return_to_go"], -jnp.inf)
        bounded, q = {"critic/bounded": (q < bound)[:, 1 + len(uniform) :].mean()}, jnp.maximum(q, bound)
    logits = q[:, 1:] - log_density if config.importance_sampling else q
    soft_maximum = config.gap_temperature * jax.nn.logsumexp(logits / config.gap_temperature, axis=1)  # [C, B]
    gap = jnp.clip(soft_maximum - q[:, 0], config.gap_min, config.gap_max).mean(axis=-1)  # [C]
    error = jnp.square(q[:, 0] - jax.lax.stop_gradient(target)).mean(axis=-1)  # [C]
    loss = (error + penalty(state.log_multiplier, gap, config)).sum()
    metrics = bounded | {"critic/loss": loss, "critic/error": error.sum(), "critic/gap": gap.mean()}
    return loss, metrics | {"critic/q": q[:, 0].mean(), "critic/target": target.mean()}


def penalty(log_multiplier: Array, gap: Array, config: Config) -> Array:
    """P, the penalty on gaps [...]."""
    if not config.lagrange:
        return config.penalty_weight * gap
    multiplier = jnp.clip(jnp.exp(log_multiplier), 0.0, 1e6)
    target_gap = config.penalty_weight * config.target_gap if config.weighted_target else config.target_gap
    return multiplier * (config.penalty_weight * gap - target_gap)


# CQL's, arXiv:2006.04779, equation 30
def multiplier_loss(log_multiplier: Array, gap: Array, config: Config) -> tuple[Array, Metrics]:
    """Minus the penalty on the mean gap []: the multiplier rises while the gap is above its target."""
    loss = -penalty(log_multiplier, gap, config)
    return loss, {"multiplier/loss": loss, "multiplier/value": jnp.exp(log_multiplier)}


def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[Array, Metrics]:
    """Temperature-weighted log-probability minus the smallest critic's value, at first minus the data's log pi(a|s)."""
    distribution = policy(actor, batch.observation, config)
    action, log_prob = distribution.sample_and_log_prob(seed=key)
    inside = jnp.clip(batch.action, -1.0 + 1e-5, 1.0 - 1e-5)  # at the bounds a density can be infinite
    judged = lambda: networks.smallest(state.critic(batch.observation, action))  # noqa: E731
    merit = jax.lax.cond(step < config.bc_steps, lambda: distribution.log_prob(inside), judged)  # [B]
    loss = (jnp.exp(state.log_temperature) * log_prob - merit).mean()
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean()}


def temperature_loss(
    log_temperature: Array, entropy: Array, batch: Transition, config: Config
) -> tuple[Array, Metrics]:
    """The policy's entropy [] minus the target, times log alpha."""
    target_entropy = -batch.action.shape[-1] if config.target_entropy is None else config.target_entropy
    loss = log_temperature * (entropy - target_entropy)
    return loss, {"temperature/loss": loss, "temperature/value": jnp.exp(log_temperature)}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the critics, the multiplier, the actor, the temperature and the targets."""
    key_critic, key_actor = jax.random.split(key)
    if config.normalise_observations:
        batch = normalise.standardise_batch(state.statistics, batch)

    # All candidates at once exceed a CPU's cache. The loss is a mean over the batch: so is the gradient over the parts.
    drawn, slope = candidates(state, batch, key_critic, config), jax.grad(critic_loss, has_aux=True)
    parts = jax.tree.map(lambda x: x.reshape(config.num_parts, -1, *x.shape[1:]), (batch, drawn))
    slopes = jax.lax.map(lambda part: slope(state.critic, state, *part, config), parts)
    gradient, metrics = jax.tree.map(lambda x: x.mean(axis=0), slopes)
    changes, critic_optimiser = optax.adam(config.critic_lr).update(gradient, state.critic_optimiser)
    critic = optax.apply_updates(state.critic, changes)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    new = state.replace(critic=critic, critic_optimiser=critic_optimiser, target_critic=target_critic)

    judge = new if config.update_order == "critic_first" else state
    gradient, actor_metrics = jax.grad(actor_loss, has_aux=True)(state.actor, judge, batch, key_actor, step, config)
    changes, actor_optimiser = optax.adam(config.actor_lr).update(gradient, state.actor_optimiser)
    new = new.replace(actor=optax.apply_updates(state.actor, changes), actor_optimiser=actor_optimiser)
    inputs = (state.log_temperature, actor_metrics["actor/entropy"], batch, config)
    gradient, temperature_metrics = jax.grad(temperature_loss, has_aux=True)(*inputs)
    changes, temperature_optimiser = optax.adam(config.temperature_lr).update(gradient, state.temperature_optimiser)
    log_temperature = optax.apply_updates(state.log_temperature, changes)
    new = new.replace(log_temperature=log_temperature, temperature_optimiser=temperature_optimiser)
    metrics = metrics | actor_metrics | temperature_metrics
    if config.lagrange:
        gradient, own = jax.grad(multiplier_loss, has_aux=True)(state.log_multiplier, metrics["critic/gap"], config)
        changes, multiplier_optimiser = optax.adam(config.critic_lr).update(gradient, state.multiplier_optimiser)
        log_multiplier = optax.apply_updates(state.log_multiplier, changes)
        new = new.replace(log_multiplier=log_multiplier, multiplier_optimiser=multiplier_optimiser)
        metrics = metrics | own
    return new, metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
