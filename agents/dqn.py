"""DQN [off-policy]: Q-learning from replayed transitions; settings add later extensions.

gamma discount, Q_c critics, Q'_c their targets, Q and Q' the means (or the smallest) of them;  s' is k <= n steps ahead
  R        = sum_{i<k} gamma^i r_i                       k = n, fewer where the episode ends: `buffers.NStep`     [4]
  y        = R + gamma^k (1 - terminated) max_a Q'(s', a)                                       [1, algorithm 1]
       or    R + gamma^k (1 - terminated) Q'(s', argmax_a Q(s', a))                             double [2]
  L(Q)     = sum_c mean w l(Q_c(s, a), y)                l: Huber's, the clipped error of [1], the square, or that of
                                                         distributions [7, 8]: `heads`; w: 1, or of priorities [4]
  Q_c(s, a) = V_c(s) + A_c(s, a) - mean_a' A_c(s, a')                                           dueling [3, eq. 9]
  L(alpha) = mean [ (H(softmax(Q(s, .) / alpha)) - target_entropy)^2 ]                          [5], its code
  Q'_c    <- (1 - rho) Q'_c + rho Q_c                    every target_every-th update, rho target_rate

Actions are greedy except for a share epsilon of uniform ones, which falls linearly, or drawn from softmax(Q(s, .) /
alpha), or greedy for weights with noise [9]. Noise is drawn anew for each call, and in each update for each network;
evaluation uses the mean weights. Torsos that think may learn by (1 - w) L(Q) + w L(Q after a part of the steps) [6].

Departs from the paper: Adam and not RMSProp; V and A share all but the last layer.

[1] Mnih et al., Human-level control through deep reinforcement learning, Nature 518, 2015
[2] van Hasselt et al., Deep Reinforcement Learning with Double Q-learning, arXiv:1509.06461
[3] Wang et al., Dueling Network Architectures for Deep Reinforcement Learning, arXiv:1511.06581
[4] Hessel et al., Rainbow: Combining Improvements in Deep Reinforcement Learning, arXiv:1710.02298
[5] Ghugare et al., On (the Role of Iterative) Computation and Reinforcement Learning, arXiv:2602.05999
[6] Bansal et al., End-to-end Algorithm Synthesis with Recurrent Networks, arXiv:2202.05826
[7] Bellemare et al., A Distributional Perspective on Reinforcement Learning, arXiv:1707.06887
[8] Dabney et al., Distributional Reinforcement Learning with Quantile Regression, arXiv:1710.10044
[9] Fortunato et al., Noisy Networks for Exploration, arXiv:1706.10295

  rljax train dqn --env CartPole-v1 --preset rainbow
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Metrics, Transition
from rljax.networks import distributions, encoders, heads, noise, normalise, torsos


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    learning_rate: float = 2.5e-4  # of Adam, for the critics; CleanRL
    adam_epsilon: float = 1e-8  # in Adam's denominator; Adam's paper, 1.5e-4 in [4]
    max_grad_norm: float = 0.0  # limit of the gradient's norm over all parameters, 0 for none; CleanRL, SB3: 10
    batch_size: int = 128  # transitions per update; CleanRL
    # Experience
    replay_size: int = 10_000  # transitions kept; the oldest are overwritten; CleanRL
    warmup_steps: int = 10_000  # environment steps with uniform actions and no update; CleanRL
    num_envs: int = 1  # environments stepped side by side
    num_steps: int = 10  # steps of each environment per iteration; CleanRL
    num_updates: int = 1  # updates per iteration, each on a fresh batch; CleanRL
    n_step: int = 1  # n, rewards summed before the bootstrap; [1], 3 in [4]
    clip_rewards: bool = False  # to [-1, 1]; for Atari [1]
    hindsight: float = 0.0  # share of goals replaced: half by later states, half by other episodes' states; 1 in [5]
    prioritised: float = 0.0  # exponent of the errors by which transitions are drawn, 0 for uniform draws; 0.5 in [4]
    correction: float = 0.4  # exponent of the weights that correct for this, at the start; [4]
    correction_steps: float = 1.0  # share of the run (above 1: environment steps) over which it rises to 1; [4]
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; [1]
    target_rate: float = 1.0  # rho, share of the online critics in the targets: 1 is a copy; [1], 0.005 in [5]
    target_every: int = 50  # updates between moves of the targets; CleanRL: 500 environment steps; 1 in [5]
    double: bool = False  # choose the next action by Q, evaluate it by Q'; [2]
    loss: Literal["huber", "squared"] = "squared"  # loss of the error; CleanRL and [5], huber in [1]
    distribution: heads.Name = "none"  # what critics learn of the return: its mean, or [7], [8]
    atoms: int = 51  # learnt by distribution c51; [7]
    v_min: float = -10.0  # the lowest atom; [7]
    v_max: float = 10.0  # the highest atom; [7]
    quantiles: int = 200  # learnt by distribution quantile; [8]
    kappa: float = 1.0  # error up to which the quantiles' loss is quadratic; [8]
    # Policy
    exploration: Literal["epsilon", "softmax", "noisy"] = "epsilon"  # how actions are drawn; [1], [5] or [9]
    noise: float = 0.5  # sigma_0, the standard deviation of noisy weights at the start, by sqrt(inputs); [9]
    epsilon_start: float = 1.0  # share of uniform actions at first; [1]
    epsilon_end: float = 0.05  # and at the end; CleanRL, 0.1 in [1]
    epsilon_steps: float = 0.5  # share of the run (above 1: environment steps) over which it falls; CleanRL
    evaluation: Literal["greedy", "softmax"] = "greedy"  # how evaluation takes actions; [1], softmax in [5]
    init_temperature: float = 1.0  # alpha at the start; [5]
    target_entropy: float | None = None  # of the softmax in nats; None is log(A / 2), [5]
    temperature_lr: float = 3e-4  # Adam learning rate of log alpha; [5]
    # Networks
    encoder: encoders.Kind = "auto"  # convolutions, where pictures are observed: rljax/networks/encoders.py
    torso: torsos.Kind = "mlp"  # the layers before the last one: rljax/networks/torsos.py
    compute: int = 1  # T, thinking steps of torsos that take any number of them; 5 in [5]
    progressive: float | None = None  # w, weight of the loss after a part of the thinking steps; 0.01 for mazes in [6]
    hidden: tuple[int, ...] = (120, 84)  # widths of the torso's parts; CleanRL
    grid: tuple[int, int] | None = None  # rows and columns of the picture, where a drc gets it as a vector
    num_critics: int = 1  # C; 2 in [5]
    reduction: Literal["mean", "min"] = "mean"  # of the critics' values, for actions and targets; [5]
    dueling: bool = False  # a value and advantages in place of Q; [3]
    action_input: bool = False  # the critics take the action as a one-hot input, not as an output; [5]
    activation: networks.Activation = "relu"  # of the hidden layers; [1]
    layer_norm: bool = False  # normalise an mlp's hidden layers before activation; own choice
    initialisation: networks.Initialisation = "torch"  # of all layers; CleanRL, SB3
    normalise_observations: bool = False  # running mean and std of observations; own choice


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    critic: networks.Network  # [O] -> [C, A K], or [C, (1 + A) K] dueling; [O], [A] -> [C (, K)] with action_input
    target_critic: networks.Network
    log_temperature: Array | None  # [], with softmax exploration
    critic_optimiser: optax.OptState
    temperature_optimiser: optax.OptState | None
    statistics: normalise.Statistics  # of observations [O]
    steps: Array  # [] int32: updates so far, for epsilon
    spec: EnvSpec = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Replay:
    """Batches of new experience: uniform or by priority, of n steps, or with goals replaced."""
    sizes = ("replay_size", "batch_size", "warmup_steps", "num_envs", "num_steps", "num_updates", "clip_rewards")
    drawn = ("discount", "n_step", "hindsight", "prioritised", "correction", "correction_steps")
    draw = buffers.chosen(**{name: getattr(config, name) for name in drawn})
    declared: Any = {name: getattr(config, name) for name in sizes}
    return buffers.Replay(**declared, perceives=config.normalise_observations, draw=draw)


def schedule(config: Config, steps: float) -> Config:
    """Turn shares of the run's `steps` into numbers of environment steps."""
    names = ["epsilon_steps"] + ["correction_steps"] * bool(np.max(config.prioritised) > 0)
    return dataclasses.replace(config, **{name: agent.in_steps(getattr(config, name), steps) for name in names})


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for continuous actions or a hyperparameter out of range."""
    agent.require_widths(config, "hidden")
    agent.require_discrete("dqn", spec, "sac")
    agent.require_range(config, learning_rate=(0, None), max_grad_norm=(0, None), temperature_lr=(0, None))
    agent.require_range(config, discount=(0, 1), target_rate=(0, 1), hindsight=(0, 1), prioritised=(0, 1))
    agent.require_range(config, epsilon_start=(0, 1), epsilon_end=(0, 1), correction=(0, 1), noise=(0, None))
    agent.require_range(config, init_temperature=(1e-6, None))
    agent.require_above(config, epsilon_steps=0, correction_steps=0, adam_epsilon=0)
    if config.target_entropy is not None:
        agent.require_range(config, target_entropy=(0, math.log(spec.action_size)))
    agent.require_at_least(config, target_every=1, num_critics=1, n_step=1, atoms=2, quantiles=2)
    torsos.check(spec, layers(config), config.hidden)
    if config.evaluation == "softmax" and config.exploration != "softmax":
        raise ValueError("--config.evaluation softmax needs the temperature that --config.exploration softmax learns.")
    heads.check(head(config), config.num_critics)
    if config.exploration == "noisy" and config.torso in torsos.THINKING:
        raise ValueError(f"--config.exploration noisy is for --config.torso mlp or resnet, not for {config.torso}.")
    clash = {"dueling": config.dueling, "torso drc": config.torso == "drc"} | {"encoder": not spec.is_vector}
    for other in (kind for kind, given in clash.items() if given and config.action_input):
        raise ValueError(f"--config.action-input does not go with --config.{other}: it is an input beside a vector.")


def layers(config: Config) -> torsos.TorsoSettings:
    """The settings of the torsos."""
    style = (config.activation, config.initialisation, config.layer_norm)
    return torsos.TorsoSettings(config.torso, config.compute, config.progressive, *style, config.grid, config.encoder)


def head(config: Config) -> heads.Head:
    """What the critics' outputs say of the return."""
    floats = {"v_min": config.v_min, "v_max": config.v_max, "kappa": config.kappa}
    return heads.chosen(config.distribution, config.loss, config.atoms, config.quantiles, **floats)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, targets equal to the critics."""
    features = head(config).features * (1 if config.action_input else spec.action_size + config.dueling)
    module = torsos.ensemble(spec, layers(config), config.num_critics, config.hidden, features)
    critic = networks.create(module, key, spec.example(), *[jnp.zeros(spec.action_size)] * config.action_input)
    if config.exploration == "noisy":
        critic = noise.noisy(critic, config.noise)
    log_temperature = temperature_optimiser = None
    if config.exploration == "softmax":
        log_temperature = jnp.log(jnp.asarray(config.init_temperature, jnp.float32))
        temperature_optimiser = optax.adam(config.temperature_lr).init(log_temperature)
    targets, steps = networks.copy(critic), jnp.zeros((), jnp.int32)
    optimisers = (optimiser(config).init(critic), temperature_optimiser)
    return State(critic, targets, log_temperature, *optimisers, normalise.of_observations(spec), steps, spec)


def optimiser(config: Config) -> optax.GradientTransformation:
    """Adam on gradients whose norm is limited to `max_grad_norm`."""
    limit = jnp.where(jnp.asarray(config.max_grad_norm) > 0, config.max_grad_norm, jnp.inf)
    return optax.chain(optax.clip_by_global_norm(limit), optax.adam(config.learning_rate, eps=config.adam_epsilon))


def perceive(state: State, observation: Array, first: Array, config: Config) -> State:
    """Count observations [E, O] into the input statistics; `first` [E] marks the starts of episodes."""
    del first
    if not config.normalise_observations:
        return state
    return state.replace(statistics=normalise.update(state.statistics, observation))


def act(state: State, observation: Array, key: Array, config: Config, explore: bool) -> tuple[Array, dict]:
    """Actions [...] for observations [..., O...]: greedy, or drawn when exploring or with `evaluation = "softmax"`."""
    mask = agent.mask_of(observation)
    critic = noise.sampled(state.critic, key) if explore else state.critic
    q = reduced(values(critic, scaled(state, observation, config), state, config), config)
    q = distributions.allowed(q, mask)
    greedy = q.argmax(axis=-1).astype(jnp.int32)
    if config.exploration == "noisy" or (not explore and config.evaluation == "greedy"):
        return greedy, {}
    if config.exploration == "softmax":
        return policy(state.log_temperature, q).sample(seed=key), {}
    key_choice, key_action = jax.random.split(key)
    uniform = distributions.uniform(key_action, state.spec, greedy.shape, mask)
    return jnp.where(jax.random.uniform(key_choice, greedy.shape) < epsilon(state, config), uniform, greedy), {}


def epsilon(state: State, config: Config) -> Array:
    """The share of uniform actions []. It falls with the environment steps that came with the updates so far."""
    steps = state.steps * (config.num_envs * config.num_steps / config.num_updates)
    passed = jnp.minimum(steps / config.epsilon_steps, 1.0)
    return config.epsilon_start + (config.epsilon_end - config.epsilon_start) * passed


def policy(log_temperature: Array | None, q: Array) -> distributions.Distribution:
    """softmax(Q(s, .) / alpha) for values [..., A]."""
    return distributions.categorical(q / jnp.maximum(jnp.exp(log_temperature), 1e-6))


def scaled(state: State, observation: Any, config: Config) -> Any:
    """Observations [..., O...] as the critics see them."""
    return normalise.normalise(state.statistics, observation) if config.normalise_observations else observation


def values(critic: networks.Network, observation: Any, state: State, config: Config) -> Array:
    """Q_c(s, .) [C, ..., A] for observations [..., O...]."""
    return head(config).mean(outputs(critic, observation, state, config))


def outputs(critic: networks.Network, observation: Any, state: State, config: Config) -> Array:
    """The critics' outputs for all actions, [C, ..., A] or [C, ..., A, K], for observations [..., O...]."""
    if config.action_input:
        return critic(observation[..., None, :], jnp.eye(state.spec.action_size))
    return heads.of_actions(critic(observation), head(config), config.dueling)


def reduced(q: Array, config: Config) -> Array:
    """The mean or the smallest [..., A] of the critics' values [C, ..., A], or of their outputs."""
    return q.mean(axis=0) if config.reduction == "mean" else q.min(axis=0)


# [1, algorithm 1]
def critic_loss(critic: networks.Network, state: State, batch: Transition, config: Config) -> tuple[Array, Metrics]:
    """Errors of all critics to the target, summed over critics."""
    following = reduced(outputs(state.target_critic, batch.next_observation, state, config), config)  # [B, A (, K)]
    chooser = state.critic if config.double else state.target_critic
    judge = reduced(values(chooser, batch.next_observation, state, config), config)
    judge = distributions.allowed(judge, agent.mask_of(batch.next_observation))
    best = jax.nn.one_hot(judge.argmax(axis=-1), state.spec.action_size)
    discount = config.discount if config.n_step == 1 else batch.extras["discount"]  # gamma^k [B]; the reward is R
    following = heads.of_action(following, best, head(config))
    target = head(config).target(following, batch.reward, discount * (1.0 - batch.terminated))
    action = jax.nn.one_hot(batch.action, state.spec.action_size)
    if config.action_input:
        found = critic(batch.observation, action)  # [C, B (, K)]
    else:
        found = heads.of_action(outputs(critic, batch.observation, state, config), action, head(config))
    loss = buffers.weighted(head(config).loss(found, target), batch).mean(axis=-1).sum()
    means = {"critic/q": head(config).mean(found).mean(), "critic/target": head(config).target_mean(target).mean()}
    return loss, {"critic/loss": loss} | means | buffers.priorities(head(config).error(found, target), batch)


# [5], its code
def temperature_loss(log_temperature: Array, q: Array, config: Config) -> tuple[Array, Metrics]:
    """Squared distance of the softmax's entropy to its target, for values [B, A]."""
    target_entropy = math.log(q.shape[-1] / 2) if config.target_entropy is None else config.target_entropy
    entropy = policy(log_temperature, q).entropy()  # [B]
    loss = jnp.square(entropy - target_entropy).mean()
    metrics = {"temperature/loss": loss, "temperature/value": jnp.exp(log_temperature)}
    return loss, metrics | {"actor/entropy": entropy.mean()}


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the critics, any temperature and, every `target_every`-th time, the targets."""
    batch = batch.replace(
        observation=scaled(state, batch.observation, config),
        next_observation=scaled(state, batch.next_observation, config),
    )

    def loss(critic: networks.Network, key: Array) -> tuple[Array, Metrics]:
        drawn = noise.sampled((critic, state.critic, state.target_critic), key)  # noise of its own for each
        return critic_loss(drawn[0], state.replace(critic=drawn[1], target_critic=drawn[2]), batch, config)

    gradient, metrics = jax.grad(torsos.progressive(loss, layers(config)), has_aux=True)(state.critic, key)
    changes, critic_optimiser = optimiser(config).update(gradient, state.critic_optimiser)
    critic = optax.apply_updates(state.critic, changes)

    log_temperature, temperature_optimiser = state.log_temperature, state.temperature_optimiser
    if config.exploration == "softmax":
        q = reduced(values(state.critic, batch.observation, state, config), config)
        q = distributions.allowed(q, agent.mask_of(batch.observation))
        gradient, temperature_metrics = jax.grad(temperature_loss, has_aux=True)(log_temperature, q, config)
        changes, temperature_optimiser = optax.adam(config.temperature_lr).update(gradient, temperature_optimiser)
        log_temperature = optax.apply_updates(log_temperature, changes)
        metrics |= temperature_metrics
    elif config.exploration == "epsilon":
        metrics |= {"actor/epsilon": epsilon(state, config)}

    moved = lambda target: (networks.polyak(critic, target, config.target_rate), {})  # noqa: E731
    target_critic, _ = agent.every(config.target_every, step, moved, state.target_critic)
    learnt = {"critic": critic, "target_critic": target_critic, "critic_optimiser": critic_optimiser}
    learnt |= {"log_temperature": log_temperature, "temperature_optimiser": temperature_optimiser}
    return state.replace(**learnt, steps=optax.safe_increment(state.steps)), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
