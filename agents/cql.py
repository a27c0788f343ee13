"""CQL [offline]: SAC from a data set, with critics held low beyond the data.

gamma discount, alpha temperature, m multiplier
Q_c critics, Q'_c targets, pi actor
a' ~ pi(.|s'), a~ ~ pi(.|s), a_k candidates of density p_k
  y        = r + gamma (1 - terminated) min_c Q'_c(s', a')  see `backup`
  G_c      = mean [ T log sum_k exp((Q_c(s, a_k) - log p_k) / T) - Q_c(s, a) ]
  P_c      = w G_c, or m (w G_c - tau)  [1, eq. 4 and 30]
  L(Q)     = sum_c [ mean (Q_c(s, a) - y)^2 + P_c ]
  L(pi)    = mean [ alpha log pi(a~|s) - min_c Q_c(s, a~) ]
  L(alpha) = mean [ -log alpha (log pi(a~|s) + target_entropy) ]
  L(m)     = -mean_c P_c
  Q'_c    <- (1 - rho) Q'_c + rho Q_c

Departs from the paper as its code [2] does: fixed w, at first
log pi(a|s) in place of Q in L(pi), candidates of pi(.|s') too,
no division by their number in G.

[1] Kumar et al., Conservative Q-Learning, arXiv:2006.04779; its code [2], and others'
[3, 4]: github.com/aviralkumar2907/CQL, corl-team/CORL, young-geng/JaxCQL

  rljax train cql --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, encoders, heads, noise, policies
from rljax.networks.encoders import EncoderSettings
from rljax.networks.heads import HeadSettings
from rljax.networks.optimisation import conservatism, temperatures
from rljax.networks.optimisation.conservatism import Candidates, Part
from rljax.networks.optimisation.temperatures import Temperature
from rljax.requirements import Count, LogStd, NonNegative, Real, Share, Whole, Widths


@agent.config
class Config(
    networks.WithSchedule,
    buffers.RowSettings,
    heads.WithHead,
    conservatism.WithConservatism,
    policies.WithPolicyNetwork,
):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 1e-4  # of Adam; [2], 3e-5 in [1]
    critic_lr: NonNegative = 3e-4  # of Adam, log m too; [2]
    temperature_lr: NonNegative = 1e-4  # of Adam; [2]
    batch_size: int = 256  # transitions per update; [2]
    # Data
    normalise_observations: bool = False  # by mean and std; True in [3]
    # Targets
    discount: Share = 0.99  # gamma; [2]
    target_rate: Share = 0.005  # rho; [2]
    # Policy
    bc_steps: Whole = 40_000  # first updates that clone; [2], 0 in [3], [4]
    update_order: Literal["critic_first", "together"] = "critic_first"  # of losses; [2]
    init_temperature: Temperature = 1.0  # alpha at the start; [2]
    target_entropy: Real | None = None  # in nats; None: -A, [2]
    log_std_min: LogStd = -5.0  # lower clip of log std; [2], -20 in [3], [4]
    log_std_max: LogStd = 2.0  # upper clip of log std; [2]
    log_std_offset: Real = 0.0  # added to log std; [2], -1 in [3], [4]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256, 256)  # of the actor; [2]
    critic_hidden: Widths = (256, 256, 256)  # of the critics; [2]
    num_critics: Count = 2  # C; the smallest counts; [2]
    activation: networks.Activation = "relu"  # of hidden layers; [2]
    layer_norm: bool = False  # of the critics; True in WSRL
    initialisation: networks.Initialisation = "torch"  # of the actor; [3]
    critic_initialisation: networks.Initialisation = "torch"  # of the critics


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # [O] -> [2 A]: mean and log std
    critic: networks.Trained  # [O], [A] -> [C]
    target_critic: networks.Network
    log_temperature: networks.Trained  # []
    log_multiplier: networks.Trained  # []


def experience(config: Config) -> buffers.Dataset:
    """Uniform batches; half new online."""
    return buffers.row_dataset(config)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("cql", spec, "cql_discrete")
    agent.require_order(config, "log_std_min", "log_std_max")
    conservatism.check(config, config.num_critics, config.batch_size)
    heads.check_bins(HeadSettings.of(config))
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_actor, key_critic = jax.random.split(key)
    encoding = EncoderSettings.of(config)
    style = (config.activation, config.initialisation)
    net = policies.gaussian_network(config.hidden, spec, config, *style)
    actor = encoders.create(spec, encoding, net, key_actor)
    encoding = encoding._replace(initialisation=config.critic_initialisation)
    style = (config.activation, config.critic_initialisation)
    size = (config.num_critics, config.critic_hidden)
    net = networks.Ensemble(*size, *style, config.layer_norm)
    net = encoders.encoded(spec, encoding, net)
    head, action = HeadSettings.of(config), jnp.zeros(spec.action_shape)
    critic = networks.create_critic(net, head, spec, key_critic, spec.example(), action)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        target_critic=networks.copy(critic),
        log_temperature=temperatures.create(config),
        log_multiplier=conservatism.create_multiplier(config, config.critic_lr),
    )


def prepare(state: State, data: Transition, config: Config) -> State:
    """Fit any bins to the returns of the data [N, ...]."""
    return state.replace(
        critic=networks.fit_bins(state.critic, data, config.discount),
        target_critic=networks.fit_bins(state.target_critic, data, config.discount),
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]."""
    pi = policy(state.actor, observation, config)
    action, _ = noise.action(pi, key, explore)
    return action, {}


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    return state.critic(observation, action).mean(axis=0)


def policy(
    actor: networks.AnyNetwork, observation: Array, config: Config
) -> distributions.SquashedGaussian:
    """pi(.|s) for observations [..., O]."""
    return distributions.squashed(actor(observation), config, config.log_std_offset)


def candidates(state: State, batch: Transition, key: Array, config: Config) -> Candidates:
    """Actions of pi in s and s', and uniform ones."""
    pair = (batch.observation, batch.next_observation)
    both = jax.tree.map(lambda *x: jnp.concatenate(x), *pair)  # [2 B, O]
    pi = policy(state.actor, both, config)
    return conservatism.candidates(pi, key, config.num_actions)


# [1, eq. 4]
def critic_loss(
    critic: networks.Network, part: Part, state: State, key: Array, config: Config
) -> Loss:
    """Error of the critics to the target, plus the penalty."""
    key_target, key_gap = jax.random.split(key)
    batch, samples = part[0], part[1].actions_first()
    next_q = conservatism.next_values(state.target_critic, batch, samples, key_target, config)
    if config.backup == "entropy":
        alpha = jnp.exp(state.log_temperature.parameters)
        next_q -= alpha * samples.next_log_prob[0]
    bootstrap = config.discount * (1.0 - batch.terminated)  # [B]
    target = batch.reward + bootstrap * next_q
    actions = jnp.concatenate([batch.action[None], samples.actions()])  # [1 + 3 N, B, A]
    outputs, head = networks.outputs_and_head(critic, batch.observation, actions)
    q = head.mean(outputs)  # [C, 1 + 3 N, B]
    gap = conservatism.gap(q, samples, key_gap, config)  # [C]
    penalty = conservatism.penalty(state.log_multiplier.parameters, gap, config)
    error = head.loss(outputs[:, 0], head.encode(target)).mean(axis=-1)  # [C]
    loss = (error + penalty).sum()
    metrics = {
        "critic/loss": loss,
        "critic/error": error.sum(),
        "critic/gap": gap.mean(),
        "critic/q": q[:, 0].mean(),
        "critic/target": target.mean(),
    }
    return loss, metrics | head.clipped(target)


def actor_loss(
    actor: networks.Network,
    state: State,
    batch: Transition,
    key: Array,
    step: Array,
    config: Config,
) -> Loss:
    """Weighted log-probability minus value, or log pi(a|s)."""
    pi = policy(actor, batch.observation, config)
    action, log_prob = pi.sample_and_log_prob(seed=key)
    inside = jnp.clip(batch.action, -1.0 + 1e-5, 1.0 - 1e-5)  # finite density
    merit = jax.lax.cond(
        step < config.bc_steps,
        lambda: pi.log_prob(inside),
        lambda: networks.smallest(state.critic(batch.observation, action)),
    )  # [B]
    loss = (jnp.exp(state.log_temperature.parameters) * log_prob - merit).mean()
    return loss, {"actor/loss": loss, "actor/entropy": -log_prob.mean()}


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of the networks, alpha and m."""
    key_critic, key_actor = jax.random.split(key)
    whole = (batch, candidates(state, batch, key_critic, config))
    optimiser = networks.optimiser(config.critic_lr, step, config)
    inputs = (config.num_parts, state, jax.random.fold_in(key_critic, 1), config)
    critic, metrics = state.critic.step_in_parts(optimiser, critic_loss, whole, *inputs)
    target_critic = networks.polyak(critic, state.target_critic, config.target_rate)
    teacher = state
    if config.update_order == "critic_first":
        teacher = state.replace(critic=critic)
    optimiser = networks.optimiser(config.actor_lr, step, config)
    inputs = (teacher, batch, key_actor, step, config)
    actor, actor_metrics = state.actor.step(optimiser, actor_loss, *inputs)
    log_temperature, temperature_metrics = temperatures.step(
        state.log_temperature, actor_metrics["actor/entropy"], batch.action.shape[-1], config
    )
    log_multiplier, multiplier_metrics = conservatism.step_multiplier(
        state.log_multiplier, metrics["critic/gap"], config, config.critic_lr
    )
    state = State(actor, critic, target_critic, log_temperature, log_multiplier)
    return state, metrics | actor_metrics | temperature_metrics | multiplier_metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
