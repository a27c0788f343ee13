"""ResFiT [hybrid]: TD3 of small corrections to another run's policy, which stays as it is.

gamma discount, n n_step, beta the policy of `--base`
mu actor, mu' its target, Q_c critics, Q'_c targets, R the sum of n rewards
e ~ clip(N(0, exploration_noise^2), +-target_noise_clip)
  b        = beta(s), b' = beta(s_n)
  a'       = clip(b' + residual_scale mu'(s_n, b') + e, -1, 1)
  y        = R + gamma^n (1 - terminated) min_c Q'_c(s_n, a')  over min_critics
  L(Q)     = mean (mean_c |Q_c(s, a) - y|)^2  [2]
  Q'_c    <- (1 - rho) Q'_c + rho Q_c  rho: target_rate
  L(mu)    = -mean_c mean Q_c(s, clip(b + residual_scale mu(s, b), -1, 1))
             every policy_delay-th update after critic_updates, and then
  mu'     <- (1 - rho) mu' + rho mu

Acts by clip(b + residual_scale mu(s, b) + noise, -1, 1), where mu is 0 at first;
before the first update by b + U(+-warmup_noise). Where beta remembers, b and b'
are stored. With `--data`, half of each batch is of demonstrations, and n is 1.

Departs from the paper: states, not pictures, and a larger actor_lr.

[1] Ankile et al., Residual Off-Policy RL, arXiv:2509.19301
[2] github.com/amazon-science/residual-offpolicy-rl

  rljax train resfit --env Hopper-v5 --base runs/bc
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, Base, EnvSpec, Loss, Metrics, Transition
from rljax.networks import encoders
from rljax.networks.encoders import EncoderSettings
from rljax.requirements import Count, NonNegative, Share, Whole, Widths


@agent.config
class Config(networks.WithCritics, buffers.ReplaySettings, buffers.PrioritySettings):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 1e-4  # of Adam; own choice; 1e-6 in [2], of pictures
    critic_lr: NonNegative = 1e-4  # of Adam; [2]
    weight_decay: NonNegative | None = 0.01  # in each step, times the learning rate; [2]
    max_grad_norm: NonNegative | None = 1.0  # of each network; [2]
    batch_size: int = 256  # transitions per update; [2]
    num_updates: int = 4  # updates of the critics in a step; [2]
    # Experience
    replay_size: int = 200_000  # newest transitions; [2]
    warmup_steps: int = 10_000  # by the base and noise, no update; [2]
    n_step: Count = 3  # n; [2]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    target_noise_clip: NonNegative = 0.3  # bound of noise on target actions; [2]
    # Policy
    residual_scale: NonNegative = 0.1  # largest correction; [2]
    exploration_noise: NonNegative = 0.05  # std of noise on actions; [2]
    warmup_noise: NonNegative = 0.2  # largest, before the first update; [2]
    policy_delay: Count = 4  # updates per update of the actor; [2]
    critic_updates: Whole = 10_000  # of the critics alone, at first; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (1024, 1024)  # of all networks; [2]
    num_critics: Count = 10  # C; [2]
    min_critics: int | None = 2  # random ones whose smallest counts; [2]
    activation: networks.Activation = "relu"  # of hidden layers; [2]
    layer_norm: bool = True  # of all networks, before activation; [2]
    initialisation: networks.Initialisation = "orthogonal"  # of all layers; [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O], [A] -> [A]: before tanh
    critic: networks.Trained  # [O], [A] -> [C]
    target_actor: networks.Network
    target_critic: networks.Network
    is_fresh: Array  # [] bool: no update yet
    spec: EnvSpec = struct.field(pytree_node=False)
    base: Base | None = None  # whose actions are corrected


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience, of the base from the first step."""
    return buffers.Replay.of(config, draw=buffers.draw_of(config)).with_policy()


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("resfit", spec)
    agent.require_subset(config.min_critics, config.num_critics)
    encoders.check(spec, EncoderSettings.of(config))


def check_base(base: Base | None, config: Config) -> None:
    """Raise `ValueError` without a base."""
    del config
    agent.require_base("resfit", base)


def base_acts(config: Config) -> bool:
    """A base that remembers acts before the agent."""
    del config
    return True


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic = jax.random.split(key)
    encoding, action = EncoderSettings.of(config), jnp.zeros(spec.action_shape)
    style = (config.activation, config.initialisation)
    size, norm = spec.action_size, config.layer_norm
    net = networks.MLP(config.hidden, size, *style, output_scale=0.0, layer_norm=norm)
    actor = encoders.create(spec, encoding, net, key_actor, action)
    net = networks.Ensemble(config.num_critics, config.critic_widths, *style, norm)
    critic = encoders.create(spec, encoding, net, key_critic, action)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        target_actor=networks.copy(actor),
        target_critic=networks.copy(critic),
        is_fresh=jnp.ones((), jnp.bool_),
        spec=spec,
    )


def use_base(state: State, base: Base | None, config: Config) -> State:
    """Correct the base's actions."""
    return state.replace(base=base)


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]."""
    key_base, key_noise = jax.random.split(key)
    action = based(state, observation, key_base)
    correction = residual(state.actor, observation, action, config)
    if explore:
        normal = config.exploration_noise * jax.random.normal(key_noise, action.shape)
        uniform = jax.random.uniform(key_noise, action.shape, minval=-1.0, maxval=1.0)
        correction += jnp.where(state.is_fresh, config.warmup_noise * uniform, normal)
    return jnp.clip(action + correction, -1.0, 1.0), {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    return state.critic(observation, action).mean(axis=0)


def based(state: State, observation: Array, key: Array, stored: Array | None = None) -> Array:
    """beta(s) [..., A] for observations [..., O], `stored` ones, or 0 without a base."""
    if stored is not None:
        return stored
    if state.base is None:
        spec = state.spec
        return jnp.zeros((*spec.leading(observation), spec.action_size))
    return state.base.act(observation, key)


def residual(
    actor: networks.AnyNetwork, observation: Array, action: Array, config: Config
) -> Array:
    """residual_scale mu(s, b) [..., A] for the base's actions b [..., A]."""
    return config.residual_scale * jnp.tanh(actor(observation, action))


def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Square of the critics' mean distance to the target."""
    key_base, key_noise, key_subset = jax.random.split(key, 3)
    smoothing = config.exploration_noise * jax.random.normal(key_noise, batch.action.shape)
    smoothing = jnp.clip(smoothing, -config.target_noise_clip, config.target_noise_clip)
    following = batch.next_observation
    stored = batch.extras.get(agent.NEXT_BASE_ACTION)
    next_action = based(state, following, key_base, stored)
    correction = residual(state.target_actor, following, next_action, config) + smoothing
    next_action = jnp.clip(next_action + correction, -1.0, 1.0)
    next_q = state.target_critic(following, next_action)  # [C, B]
    next_q = networks.smallest_of_subset(next_q, config.min_critics, key_subset)
    target = buffers.bootstrapped(batch, next_q, config.discount)
    q = critic(batch.observation, batch.action)  # [C, B]
    distance = jnp.abs(q - target).mean(axis=0)
    loss = buffers.weighted(jnp.square(distance), batch).mean()
    metrics = {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}
    return loss, metrics | buffers.priorities(q - target, batch)


def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Minus the critics' mean value."""
    stored = batch.extras.get(agent.BASE_ACTION)
    action = based(state, batch.observation, key, stored)
    correction = residual(actor, batch.observation, action, config)
    q = state.critic(batch.observation, jnp.clip(action + correction, -1.0, 1.0))
    loss = -q.mean()
    return loss, {"actor/loss": loss, "actor/residual": jnp.abs(correction).mean()}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Update critics and, if due, the actor."""
    key_critic, key_actor = jax.random.split(key)
    rate = config.target_rate
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(optimiser, critic_loss, state, batch, key_critic, config)
    target_critic = networks.polyak(critic, state.target_critic, rate)
    has_learnt = jnp.zeros_like(state.is_fresh)
    state = state.replace(critic=critic, target_critic=target_critic, is_fresh=has_learnt)

    def improve(state: State) -> tuple[State, Metrics]:
        optimiser = networks.optimiser(config.actor_lr, step, config)
        arguments = (state, batch, key_actor, config)
        actor, metrics = state.actor.step(optimiser, actor_loss, *arguments)
        target_actor = networks.polyak(actor, state.target_actor, rate)
        return state.replace(actor=actor, target_actor=target_actor), metrics

    due = (config.policy_delay, step, improve, state, config.critic_updates)
    state, actor_metrics = agent.every(*due)
    return state, metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
