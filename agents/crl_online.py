"""CRL-online [off-policy]: SAC's actor climbs a critic that tells which goal follows.

gamma of the goals' times, alpha temperature, pi actor
f(s, a), k(g) features, i and j rows of the batch
a~ ~ pi(.|s, g)
  g        = reached k steps after s, k = 1, 2, ...,
             with P(k) ~ gamma^k up to the episode's end
  d(x, y)  = -sqrt(|x - y|^2 + 1e-6)  "distance"
           = -|x - y|^2  "square"
           = x . y  "product"
  L(pi)    = mean (alpha log pi(a~|s, g) - d(f(s, a~), k(g)))
  L(alpha) = mean (-alpha (log pi(a~|s, g) + target_entropy))
  x_ij     = d(f(s_i, a_i), k(g_j))
  n_i      = log sum_j exp(x_ij),  m_i = log sum_j exp(x_ji)
  e_i      = n_i - x_ii  "forward"
           = m_i - x_ii  "backward"
           = n_i + m_i - 2 x_ii  "symmetric"
  L(f, k)  = mean (e_i + p n_i^2)  p: normaliser_penalty

All losses use the networks from before the update. There are no
rewards and no targets. pi(.|s, g) is tanh of a Gaussian.
Networks have `depth` layers. What goes into `skip` of them is added
to what comes out [3]: rljax/networks/blocks/residual.py.

Departs from the paper's code [2]: f and k see whole observations, with
zeros for the goal or for all but it; log pi is exact; a goal may be
the last state of an episode.

[1] Bortkiewicz et al., JaxGCRL, arXiv:2408.11052
[2] github.com/MichalBortkiewicz/JaxGCRL
[3] Wang et al., 1000 Layer Networks for Self-Supervised RL, arXiv:2503.14858
[4] Eysenbach et al., Contrastive Learning as Goal-Conditioned RL, arXiv:2206.07568

  rljax train crl_online --env rljax/GoalMaze
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, noise
from rljax.networks.blocks.residual import SkipMLP
from rljax.networks.goals import contrast, energies
from rljax.networks.goals.energies import Energy
from rljax.networks.optimisation import temperatures
from rljax.requirements import Count, LogStd, NonNegative, Real, Share, Whole, Widths


@agent.config
class Config(buffers.ReplaySettings, temperatures.WithTemperature):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of Adam; [2]
    critic_lr: NonNegative = 3e-4  # of Adam; [2]
    batch_size: int = 256  # transitions per update; [2]
    # Experience
    num_envs: int = 64  # side by side; own choice, [2]: 256
    num_updates: int = 4  # per step of all: one for 16 steps; [2]
    replay_size: int = 640_000  # 10,000 of each environment; [2]
    warmup_steps: int = 64_000  # no update: 1,000 of each; [2]
    # Critic
    discount: Share = 0.99  # gamma; [2]
    energy: energies.Kind = "distance"  # d; [2]
    contrast: contrast.Direction = "forward"  # of x; [2]
    normaliser_penalty: NonNegative = 0.1  # of n^2; [2]
    # Policy
    temperature_loss: temperatures.Form = "alpha"  # alpha itself, not its log; [2]
    target_entropy_share: Real = 0.5  # of -A, the target; [2]
    log_std_min: LogStd = -5.0  # lower bound of log std; [2]
    log_std_max: LogStd = 2.0  # upper bound of log std; [2]
    # Networks
    hidden: Widths = (256,)  # width of the actor's layers; [2]
    critic_hidden: Widths = (256,)  # the same of f and k; [2]
    depth: Count = 2  # how often these are repeated; [2], [3]: to 1,024
    skip: Whole = 4  # layers between sums, 0: none; [2]
    latent_size: Count = 64  # features; [2]
    activation: networks.Activation = "silu"  # of hidden layers; [2]
    layer_norm: bool = False  # before it, in all networks; [2], [3]: True
    initialisation: networks.Initialisation = "fan_in_uniform"  # of all layers; [2]


class State(struct.PyTreeNode):
    """What learning changes; [O] holds a goal."""

    actor: networks.Trained  # [O] -> [2 A]: mean and u
    critic: networks.Trained  # [O], [A], [O] -> []: d
    log_temperature: networks.Trained  # []


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience with goals; the policy acts from the first step on."""
    draw = buffers.FutureGoals(discount=config.discount)
    return buffers.Replay.of(config, draw=draw, uniform_warmup=False)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_vectors("crl_online", spec)
    agent.require_continuous("crl_online", spec)
    agent.require_order(config, "log_std_min", "log_std_max")
    agent.require_one_width(config, "hidden", "critic_hidden")


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters."""
    key_actor, key_action, key_goal = jax.random.split(key, 3)
    observation, action = spec.example(), jnp.zeros(spec.action_shape)
    style = (config.skip, config.activation, config.initialisation, config.layer_norm)
    net = SkipMLP(config.hidden * config.depth, 2 * spec.action_size, *style)
    actor = networks.create(net, key_actor, observation)
    net = SkipMLP(config.critic_widths * config.depth, config.latent_size, *style)
    of_actions = networks.create(net, key_action, observation, action)
    of_goals = networks.create(net, key_goal, observation)
    critic = Energy(of_actions, of_goals, config.energy)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        log_temperature=temperatures.create(config),
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for observations with goals [..., O]."""
    pi = distributions.squashed_within(state.actor(observation), config)
    action, _ = noise.action(pi, key, explore)
    return action, {}


# [2, update_actor_and_alpha]
def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Weighted log-probability minus the energy of the row's own goal."""
    pi = distributions.squashed_within(actor(batch.observation), config)
    action, log_prob = pi.sample_and_log_prob(seed=key)
    now, goal = energies.separated(batch.observation, batch.extras[buffers.IS_GOAL])
    energy = state.critic(now, action, goal)  # [B]
    loss = (jnp.exp(state.log_temperature.parameters) * log_prob - energy).mean()
    return loss, {
        "actor/loss": loss,
        "actor/energy": energy.mean(),
        "actor/entropy": -log_prob.mean(),
    }


# [2, update_critic], [4]
def critic_loss(critic: Energy, batch: Transition, config: Config) -> Loss:
    """Contrast of each row's own goal to those of others."""
    now, goal = energies.separated(batch.observation, batch.extras[buffers.IS_GOAL])
    score = critic.pairs(now, batch.action, goal)  # [B, B]
    settings = (config.contrast, config.normaliser_penalty)
    return contrast.directed_loss(score, *settings, "critic")


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of actor, temperature and critic."""
    optimiser = networks.optimiser(config.actor_lr, step, config)
    actor, metrics = state.actor.step(optimiser, actor_loss, state, batch, key, config)
    log_temperature, temperature_metrics = temperatures.step(
        state.log_temperature, metrics["actor/entropy"], batch.action.shape[-1], config
    )
    optimiser = networks.optimiser(config.critic_lr, step, config)
    critic, critic_metrics = state.critic.step(optimiser, critic_loss, batch, config)
    metrics |= temperature_metrics | critic_metrics
    return State(actor, critic, log_temperature), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
