"""FastSAC [off-policy]: SAC for thousands of environments side by side.

gamma discount, alpha temperature, pi actor
Z_c critics' distributions of returns, Z'_c their targets
z atoms, Pi the projection on them, a' ~ pi(.|s'), a~ ~ pi(.|s)
  m_c      = Pi(r + gamma (1 - terminated)
                (Z'_c(s', a') - alpha log pi(a'|s')))  [2]
  L(Z)     = -sum_c mean sum_i m_c,i log Z_c(s, a)_i
  L(alpha) = -alpha mean (log pi(a'|s') + target_entropy)
  L(pi)    = mean (alpha log pi(a~|s) - mean_c E Z_c(s, a~))
             every policy_delay-th update
  Z'_c    <- (1 - rho) Z'_c + rho Z_c  rho: target_rate

pi(.|s) is tanh of a Gaussian, with the density of actions in [-1, 1].
A batch has the same number of rows of each environment.

Departs from the paper: no mirrored copies of batches, and statistics
of observations see each once. Sizes are smaller by default.

[1] Seo et al., arXiv:2512.01996
[2] github.com/amazon-far/holosoma, agents/fast_sac

  rljax train fastsac --env brax/ant
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Number, Transition
from rljax.networks import distributions, encoders, heads, noise
from rljax.networks.encoders import EncoderSettings
from rljax.networks.optimisation import temperatures
from rljax.networks.optimisation.temperatures import TemperatureSettings
from rljax.requirements import Count, Decay, LogStd, NonNegative, Positive, Real, Share, Widths


@agent.config
class Config(
    buffers.ReplaySettings,
    temperatures.WithTemperature,
    heads.WithCriticHead,
    encoders.WithCriticParts,
):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of AdamW; [2]
    critic_lr: NonNegative = 3e-4  # of AdamW; [2]
    weight_decay: NonNegative | None = 1e-3  # in each step, times the learning rate; [2]
    second_moment: Decay = 0.95  # beta_2 of AdamW; [2]
    batch_size: int = 256  # transitions per update; own choice, [2]: 8,192
    policy_delay: Count = 4  # updates per update of the actor; [2]
    # Experience
    num_envs: int = 64  # side by side; own choice, [2]: 4,096
    num_updates: int = 8  # per step of all environments; [2]
    replay_size: int = 1_000_000  # newest transitions; own choice
    warmup_steps: int = 768  # steps without update; [2]: 12 of each environment
    n_step: Count = 1  # rewards in a target; [2]
    # Targets
    discount: Share = 0.97  # gamma; [2]
    target_rate: Share = 0.125  # rho; [2]
    reward_scale: Positive = 1.0  # factor on rewards; own choice
    value_head: heads.CriticKind = "c51"  # what critics learn; [2]
    v_min: Real = -20.0  # lower end of the atoms; [2]
    v_max: Real = 20.0  # upper end of the atoms; [2]
    target_value: heads.Combination = "own"  # of target critics; [2]
    # Policy
    init_temperature: temperatures.Temperature = 0.001  # alpha; [2]
    temperature_loss: temperatures.Form = "alpha"  # alpha itself, not its log; [2]
    temperature_decay: NonNegative | None = 0.01  # of log alpha, as weight_decay; [2]
    target_entropy_share: Real = 0.0  # of -A, the target; [2]
    log_std_min: LogStd = -5.0  # lower limit of log std; [2]
    log_std_max: LogStd = 0.0  # upper limit of log std; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (512, 256, 128)  # of the actor; [2]
    critic_hidden: Widths | None = (768, 384, 192)  # of critics; [2]
    num_critics: Count = 2  # C; [2]
    activation: networks.Activation = "silu"  # of hidden layers; [2]
    layer_norm: bool = True  # of hidden layers; [2]
    initialisation: networks.Initialisation = "torch_zero"  # of the actor; [2]
    critic_initialisation: networks.Initialisation = "torch"  # of critics; [2]
    normalise_observations: bool = True  # by running statistics; [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O] -> [2 A]: mean and log std
    critic: networks.Trained  # [O], [A] -> [C, K]
    target_critic: networks.Network
    log_temperature: networks.Trained  # []


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience; the policy acts from the first step on."""
    return buffers.Replay.of(
        config,
        draw=buffers.draw_of(config),
        by_environment=True,
        uniform_warmup=False,
    )


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("fastsac", spec)
    agent.require_order(config, "log_std_min", "log_std_max")
    heads.check_critics(config)
    encoders.check_with_parts(spec, config)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic = jax.random.split(key)
    encoding = EncoderSettings.of(config)
    norm = config.layer_norm
    style = (config.activation, config.initialisation)
    net = networks.MLP(config.hidden, 2 * spec.action_size, *style, layer_norm=norm)
    actor = encoders.create(spec, encoders.of_actor(config), net, key_actor)
    size, features = (config.num_critics, config.critic_widths), heads.of_critics(config).features
    style = (config.activation, config.critic_initialisation)
    net = networks.Ensemble(*size, *style, norm, features)
    critic = encoders.create(spec, encoding, net, key_critic, jnp.zeros(spec.action_shape))
    return State(
        actor=networks.Trained.create(actor, optimiser(config.actor_lr, 0, config)),
        critic=networks.Trained.create(critic, optimiser(config.critic_lr, 0, config)),
        target_critic=networks.copy(critic),
        log_temperature=temperatures.create(temperature_settings(config)),
    )


def optimiser(rate: Number, step: Array | int, config: Config) -> optax.GradientTransformation:
    """The networks' optimiser, after `step` [] updates."""
    return networks.optimiser(
        rate,
        step,
        config,
        second_moment=config.second_moment,
    )


def temperature_settings(config: Config) -> TemperatureSettings:
    """What moves the temperature."""
    return TemperatureSettings.of(
        config,
        temperature_second_moment=config.second_moment,
    )


def act(
    state: State,
    observation: Array,
    key: Array,
    config: Config,
    explore: bool,
) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]."""
    pi = distributions.squashed_within(state.actor(observation), config)
    action, _ = noise.action(pi, key, explore)
    return action, {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    return heads.of_critics(config).mean(state.critic(observation, action)).mean(axis=0)


# [2, _update_main]
def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Cross-entropy of the critics to their soft targets."""
    head = heads.of_critics(config)
    pi = distributions.squashed_within(state.actor(batch.next_observation), config)
    next_action, next_log_prob = pi.sample_and_log_prob(seed=key)
    next_outputs = state.target_critic(batch.next_observation, next_action)
    next_outputs = heads.combined(next_outputs, head, config.target_value)  # [C, B, K]
    reward = config.reward_scale * batch.reward
    discount = batch.extras.get("discount", config.discount)
    discount *= 1.0 - batch.terminated  # [B]
    penalty = jnp.exp(state.log_temperature.parameters) * next_log_prob
    target = head.target(next_outputs, reward, discount, penalty)
    outputs = critic(batch.observation, batch.action)  # [C, B, K]
    loss = head.loss(outputs, target).mean(axis=-1).sum()
    means = {"critic/q": head.mean(outputs), "critic/target": head.target_mean(target)}
    means |= head.clipped_mass(next_outputs, reward, discount, penalty)
    means |= {"critic/loss": loss, "actor/next_entropy": jnp.negative(next_log_prob)}
    return loss, jax.tree.map(jnp.mean, means)


# [2, _update_pol]
def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Weighted log-probability minus the critics' value."""
    pi = distributions.squashed_within(actor(batch.observation), config)
    action, log_prob = pi.sample_and_log_prob(seed=key)
    outputs = state.critic(batch.observation, action)
    q = heads.of_critics(config).mean(outputs)  # [C, B]
    q = networks.smallest(q) if config.target_value == "smallest" else q.mean(axis=0)
    loss = (jnp.exp(state.log_temperature.parameters) * log_prob - q).mean()
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean()}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Update critics, temperature, the actor if due, and targets."""
    key_critic, key_actor = jax.random.split(key)
    adam = optimiser(config.critic_lr, step, config)
    critic, metrics = state.critic.step(adam, critic_loss, state, batch, key_critic, config)
    log_temperature, temperature_metrics = temperatures.step(
        state.log_temperature,
        metrics["actor/next_entropy"],
        batch.action.shape[-1],
        temperature_settings(config),
    )
    metrics |= temperature_metrics
    state = state.replace(critic=critic, log_temperature=log_temperature)

    def improve(state: State) -> tuple[State, Metrics]:
        adam = optimiser(config.actor_lr, step, config)
        actor, metrics = state.actor.step(adam, actor_loss, state, batch, key_actor, config)
        return state.replace(actor=actor), metrics

    state, actor_metrics = agent.every(config.policy_delay, step, improve, state)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    return state.replace(target_critic=target_critic), metrics | actor_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
