"""DQN [off-policy]: Q-learning from replay with a target network, and its extensions.

gamma discount, Q_c critics, Q'_c targets, Q and Q' their means or smallest
s' is k <= n steps ahead, less at an end;  R = sum_{i<k} gamma^i r_i
  y        = R + gamma^k (1 - terminated) Q'(s', a')  [1, algorithm 1]
  a'       = argmax_a Q'(s', a), or argmax_a Q(s', a)  double [2]
  L(Q)     = sum_c mean w l(Q_c(s, a), y)  l: rljax/networks/heads; w: priorities' [4]
  Q_c(s, a) = V_c(s) + A_c(s, a) - mean_a' A_c(s, a')  dueling [3, eq. 9]
  y with log pi(a|s) as a reward: rljax/networks/soft_values [7]
  L(alpha) = mean (H(softmax(Q(s, .) / alpha)) - target_entropy)^2  [5], its code
  Q'_c    <- (1 - rho) Q'_c + rho Q_c  every target_every-th update
Exploration: some uniform actions, noisy weights [6], or softmax(Q / alpha) [5].

Departs from the paper: Adam, not RMSProp; V and A share all but the last layer.

[1] Mnih et al., Human-level control through deep RL, Nature 518, 2015
[2] van Hasselt et al., Double Q-learning, arXiv:1509.06461
[3] Wang et al., Dueling Network Architectures, arXiv:1511.06581
[4] Hessel et al., Rainbow, arXiv:1710.02298
[5] Ghugare et al., Iterative Computation and RL, arXiv:2602.05999
[6] Fortunato et al., Noisy Networks for Exploration, arXiv:1706.10295
[7] Vieillard et al., Munchausen Reinforcement Learning, arXiv:2007.14430

  rljax train dqn --env CartPole-v1 --preset rainbow
"""

from __future__ import annotations

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import distributions, heads, noise, soft_values, torsos
from rljax.networks.optimisation import temperatures
from rljax.networks.torsos import TorsoSettings
from rljax.requirements import Count, NonNegative, Positive, Share, Widths


@agent.config
class Config(
    networks.WithSchedule,
    buffers.ReplaySettings,
    buffers.PrioritySettings,
    heads.WithDistribution,
    noise.WithEpsilon,
    soft_values.WithMunchausen,
    torsos.WithTorso,
):
    """Hyperparameters."""

    # Optimisation
    learning_rate: NonNegative = 2.5e-4  # of Adam; CleanRL
    adam_epsilon: Positive = 1e-8  # of Adam; 1.5e-4 in [4]
    max_grad_norm: NonNegative = 0.0  # 0: no limit; CleanRL, SB3: 10
    batch_size: int = 128  # transitions per update; CleanRL
    # Experience
    replay_size: int = 10_000  # newest transitions kept; CleanRL
    warmup_steps: int = 10_000  # uniform actions, no update; CleanRL
    num_steps: int = 10  # per environment; CleanRL
    n_step: Count = 1  # n, rewards in R; 3 in [4]
    clip_rewards: bool = False  # to [-1, 1]; for Atari [1]
    correction_steps: Positive = 1.0  # until correction is 1; [4]
    # Targets
    discount: Share = 0.99  # gamma; [1]
    target_rate: Share = 1.0  # rho: 1 is a copy; [1], 0.005 in [5]
    target_every: Count = 50  # updates between; CleanRL, 1 in [5]
    double: bool = False  # a' by Q, not Q'; [2]
    # Policy
    exploration: Literal["epsilon", "softmax", "noisy"] = "epsilon"  # of actions; [5], [6]
    noise: NonNegative = 0.5  # std of noisy weights; [6]
    evaluation: Literal["greedy", "softmax"] = "greedy"  # softmax: [5]
    init_temperature: float = 1.0  # alpha at the start; [5]
    target_entropy: float | None = None  # None: log(n / 2), n allowed; [5]
    temperature_lr: NonNegative = 3e-4  # of Adam; [5]
    # Networks
    hidden: Widths = (120, 84)  # of the torso's parts; CleanRL
    num_critics: Count = 1  # C, of Q; 2 in [5]
    reduction: networks.Reduction = "mean"  # over critics; [5]
    dueling: bool = False  # value and advantages; [3]
    action_input: bool = False  # actions as inputs; [5]
    activation: networks.Activation = "relu"  # of hidden layers; [1]
    layer_norm: bool = False  # of an mlp; own choice
    initialisation: networks.Initialisation = "torch"  # CleanRL, SB3


class State(struct.PyTreeNode):
    """What learning changes."""

    critic: networks.Trained  # [O] -> [C, A K], [C, (1 + A) K]; [O], [A] -> [C (, K)]
    target_critic: networks.Network
    log_temperature: networks.Trained | None  # [], of softmax
    steps: Array  # [] int32: updates so far
    spec: EnvSpec = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience."""
    return buffers.Replay.of(config, draw=buffers.draw_of(config))


def schedule(config: Config, steps: float) -> Config:
    """Turn shares of the run into numbers of steps."""
    names = ["epsilon_steps"] + ["correction_steps"] * bool(np.max(config.prioritised) > 0)
    return agent.in_steps(config, steps, *names)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_discrete("dqn", spec, "sac")
    agent.require_range(config, init_temperature=(1e-6, None))
    if config.target_entropy is not None:
        agent.require_range(config, target_entropy=(0, math.log(spec.action_size)))
    head, noisy = heads.of_returns(config), config.exploration == "noisy"
    torsos.check(spec, TorsoSettings.of(config), config.hidden, noisy=noisy)
    if config.action_input:
        torsos.check_action_input(spec, TorsoSettings.of(config), config.dueling)
    heads.check(head, config.num_critics)
    soft_values.check(config, config.double, config.n_step, head)
    if config.evaluation == "softmax" and config.exploration != "softmax":
        raise ValueError(
            "--config.evaluation softmax needs the temperature that "
            "--config.exploration softmax learns."
        )


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets equal the critics."""
    features = heads.of_returns(config).features
    features *= 1 if config.action_input else spec.action_size + config.dueling
    inputs = [jnp.zeros(spec.action_size)] * config.action_input
    settings = TorsoSettings.of(config)
    net = torsos.ensemble(spec, settings, config.num_critics, config.hidden, features)
    critic = networks.create(net, key, spec.example(), *inputs)
    if config.exploration == "noisy":
        critic = noise.noisy(critic, config.noise)
    softmax = config.exploration == "softmax"
    return State(
        critic=networks.Trained.create(critic, optimiser(0, config)),
        target_critic=networks.copy(critic),
        log_temperature=temperatures.create(config) if softmax else None,
        steps=jnp.zeros((), jnp.int32),
        spec=spec,
    )


def optimiser(step: Array | int, config: Config) -> optax.GradientTransformation:
    """The networks' optimiser, after `step` [] updates."""
    return networks.optimiser(config.learning_rate, step, config, config.adam_epsilon)


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [...] for observations [..., O]."""
    critic = state.critic.parameters
    critic = noise.sampled(critic, key) if explore else critic
    q = values(critic, observation, state, config)
    greedy = q.argmax(axis=-1).astype(jnp.int32)
    if config.exploration == "noisy" or (not explore and config.evaluation == "greedy"):
        return greedy, {}
    if state.log_temperature is not None:
        pi = temperatures.softmax(state.log_temperature.parameters, q)
        return pi.sample(seed=key), {}
    epsilon = noise.falling_epsilon(state.steps, config)
    mask = agent.mask_of(observation)
    return noise.epsilon_greedy(key, greedy, epsilon, state.spec, mask), {}


def values(critic: Any, observation: Any, state: State, config: Config) -> Array:
    """Q(s, .) [..., A]; small where an action is not allowed."""
    q = heads.of_returns(config).mean(outputs(critic, observation, state, config))
    q = networks.reduced(q, config.reduction)
    return distributions.allowed(q, agent.mask_of(observation))


def outputs(critic: Any, observation: Any, state: State, config: Config) -> Array:
    """The outputs [C, ..., A (, K)] for all actions."""
    if config.action_input:
        return critic(observation[..., None, :], jnp.eye(state.spec.action_size))
    return heads.of_actions(critic(observation), heads.of_returns(config), config.dueling)


# [1, algorithm 1]
def critic_loss(critic: Any, state: State, batch: Transition, config: Config) -> Loss:
    """Error of the critics to the target."""
    head = heads.of_returns(config)
    chooser = state.critic if config.double else state.target_critic
    next_q = values(chooser, batch.next_observation, state, config)  # [B, A]
    policy = jax.nn.one_hot(next_q.argmax(axis=-1), state.spec.action_size)
    reward, penalty = batch.reward, None
    if config.munchausen:
        q = values(state.target_critic, batch.observation, state, config)
        bonus, policy, penalty = soft_values.munchausen(q, batch.action, next_q, config)
        reward += bonus
    next_outputs = outputs(state.target_critic, batch.next_observation, state, config)
    next_outputs = networks.reduced(next_outputs, config.reduction)
    next_outputs = heads.of_action(next_outputs, policy, head)  # [B (, K)]
    discount = batch.extras.get("discount", config.discount) * (1.0 - batch.terminated)
    target = head.target(next_outputs, reward, discount, penalty)
    action = jax.nn.one_hot(batch.action, state.spec.action_size)
    if config.action_input:
        prediction = critic(batch.observation, action)  # [C, B (, K)]
    else:
        prediction = outputs(critic, batch.observation, state, config)
        prediction = heads.of_action(prediction, action, head)
    loss = buffers.weighted(head.loss(prediction, target), batch).mean(axis=-1).sum()
    means = {"critic/q": head.mean(prediction), "critic/target": head.target_mean(target)}
    means |= head.clipped_mass(next_outputs, reward, discount, penalty)
    metrics = {"critic/loss": loss} | jax.tree.map(jnp.mean, means)
    return loss, metrics | buffers.priorities(head.error(prediction, target), batch)


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of critics, any alpha and, if due, targets."""

    def loss(critic: networks.Network, key: Array) -> Loss:
        drawn = noise.sampled((critic, state.critic.parameters, state.target_critic), key)
        others = state.replace(critic=drawn[1], target_critic=drawn[2])
        return critic_loss(drawn[0], others, batch, config)

    progressive = torsos.progressive(loss, TorsoSettings.of(config))
    critic, metrics = state.critic.step(optimiser(step, config), progressive, key)
    log_temperature = state.log_temperature
    if log_temperature is not None:
        q = values(state.critic, batch.observation, state, config)
        log_temperature, temperature_metrics = temperatures.softmax_step(
            log_temperature, q, agent.mask_of(batch.observation), config
        )
        metrics |= temperature_metrics
    elif config.exploration == "epsilon":
        metrics |= {"actor/epsilon": noise.falling_epsilon(state.steps, config)}

    rate, every = config.target_rate, config.target_every
    return state.replace(
        critic=critic,
        target_critic=networks.polyak_every(every, step, critic, state.target_critic, rate),
        log_temperature=log_temperature,
        steps=optax.safe_increment(state.steps),
    ), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
