"""R2D2 [off-policy]: Q-learning with a memory, from replayed sequences with burn-in.

gamma discount, Q critic, Q' its target, m_t what the episode has shown until t: the memory of Q or Q', which has first
seen burn_in steps from the memory that is stored;  s'_t the true successor, also where t ended
  V_t     = h^-1( Q'(m'_t, argmax_a Q(m'_t, a)) )          m'_t: m_t and s'_t;  double [2]
  R^1_t   = r_t + gamma (1 - terminated_t) V_t
  R^k_t   = R^1_t                                          where t ended, and in the last step of the sequence
          = r_t + gamma R^{k-1}_{t+1}                      elsewhere
  delta_t = Q(m_t, a_t) - h(R^n_t)                                                          [1, section 2.3]
  L(Q)    = mean w delta_t^2 / 2                           over all steps after the burn-in; w of priorities [4]
  p       = eta max_t |delta_t| + (1 - eta) mean_t |delta_t|                                [1, section 2.3]
  Q(m, a) = V(m) + A(m, a) - mean_a' A(m, a')              dueling [3]
  h(x)    = sign(x) (sqrt(|x| + 1) - 1) + epsilon x        [5]
  Q'     <- (1 - rho) Q' + rho Q                           every target_every-th update, rho target_rate

Actions are greedy except for a share of uniform ones: that of environment i of N is epsilon^(1 + 7 i / (N - 1)) [6], or
falls linearly and is the same in all.

Departs from the paper: sequences go on beyond the end of an episode, where the memory begins anew; it bootstraps at
time limits; new sequences have the largest priority so far; the last action and reward are inputs
of environments called `with-last-step/...` alone.

[1] Kapturowski et al., Recurrent Experience Replay in Distributed Reinforcement Learning, ICLR 2019
[2] van Hasselt et al., Deep Reinforcement Learning with Double Q-learning, arXiv:1509.06461
[3] Wang et al., Dueling Network Architectures for Deep Reinforcement Learning, arXiv:1511.06581
[4] Schaul et al., Prioritized Experience Replay, arXiv:1511.05952
[5] Pohlen et al., Observe and Look Further: Achieving Consistent Performance on Atari, arXiv:1805.11593
[6] Horgan et al., Distributed Prioritized Experience Replay, arXiv:1803.00933

  rljax train r2d2 --env gymnax/MemoryChain-bsuite
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import MEMORY, Array, EnvSpec, Metrics, Transition
from rljax.networks import distributions, encoders, heads, memories, normalise, torsos


@agent.config
class Config:
    """Hyperparameters; floats can differ between the learners of one program."""

    # Optimisation
    learning_rate: float = 1e-3  # of Adam; 1e-4 in [1]
    adam_epsilon: float = 1e-3  # added to Adam's denominator; [1]
    max_grad_norm: float = 40.0  # limit of the gradient's norm over all parameters, 0 for none; Acme
    batch_size: int = 32  # sequences per update; 64 in [1]
    # Experience
    replay_size: int = 100_000  # transitions kept; the oldest are overwritten; 4M in [1]
    warmup_steps: int = 2_000  # environment steps with uniform actions and no update; own choice
    num_envs: int = 16  # environments stepped side by side; 256 in [1]
    num_steps: int = 4  # steps of each environment per iteration; own choice
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    length: int = 20  # steps of a sequence that are learnt from: as many as gradients can span; 80 in [1]
    burn_in: int = 10  # steps before them, of which only the memory is computed; 40 in [1], 0 for none
    overlap: int = 10  # steps that a sequence shares with the next one; 40 in [1]
    stored_memory: bool = True  # begin the burn-in with the memory of when it was acted, not with zeros; [1]
    priority_exponent: float = 0.9  # of the errors by which sequences are drawn, 0 for uniform draws; [1]
    priority_max: float = 0.9  # eta, the largest error's share of a sequence's priority; [1]
    correction: float = 0.6  # exponent of the weights that correct for this; [1]
    # Targets
    discount: float = 0.99  # gamma, per environment step, in [0, 1]; 0.997 in [1]
    n_step: int = 5  # n, rewards summed before the bootstrap; [1]
    target_rate: float = 1.0  # rho, share of the online critic in the target: 1 is a copy; [1]
    target_every: int = 200  # updates between moves of the target; 2,500 in [1]
    double: bool = True  # choose the next action by Q, evaluate it by Q'; [1]
    rescale: bool = True  # learn h(Q) in place of Q; [1]
    rescale_slope: float = 1e-3  # epsilon of h; [1]
    # Policy
    exploration: Literal["ladder", "falling"] = "ladder"  # the share of uniform actions: as in [6], or falling
    epsilon_base: float = 0.4  # epsilon of the ladder; [6]
    epsilon_start: float = 1.0  # the falling share at first; own choice
    epsilon_end: float = 0.05  # and at the end; own choice
    epsilon_steps: float = 0.5  # share of the run (above 1: environment steps) over which it falls; own choice
    # Networks
    encoder: encoders.Kind = "auto"  # convolutions, where pictures are observed: rljax/networks/encoders.py
    torso: torsos.Kind = "mlp"  # the layers before the memory: rljax/networks/torsos.py
    compute: int = 1  # T, thinking steps of torsos that take any number of them; own choice
    grid: tuple[int, int] | None = None  # rows and columns of the picture, where a drc gets it as a vector
    hidden: tuple[int, ...] = (64,)  # widths of the torso's parts; 512 after the convolutions in [1]
    memory: memories.Kind = "gru"  # what is kept from step to step: rljax/networks/memories.py; lstm in [1]
    memory_hidden: tuple[int, ...] = (64,)  # widths of the memory's layers; 512 in [1]
    memory_length: int = 64  # steps that gtrxl sees
    memory_span: int | None = None  # steps that the other memories bridge at the start; None: as published
    head_hidden: tuple[int, ...] = ()  # widths of the layers after the memory; 512 in [1]
    dueling: bool = True  # a value and advantages in place of Q; [1]
    activation: networks.Activation = "relu"  # of the hidden layers; [1]
    layer_norm: bool = False  # normalise an mlp's hidden layers before activation; own choice
    initialisation: networks.Initialisation = "torch"  # of all layers; own choice
    normalise_observations: bool = False  # running mean and std of observations; own choice


class State(struct.PyTreeNode):
    """Everything that learning changes."""

    critic: networks.Network  # [O...] and a memory -> h(Q): [A], or [1 + A] dueling
    target_critic: networks.Network
    critic_optimiser: optax.OptState
    statistics: normalise.Statistics  # of observations [O]
    steps: Array  # [] int32: updates so far, for epsilon
    spec: EnvSpec = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Replay:
    """Batches of sequences, each of `burn_in` + `length` steps."""
    sizes = ("replay_size", "batch_size", "warmup_steps", "num_envs", "num_steps", "num_updates")
    declared: Any = {name: getattr(config, name) for name in sizes}
    draw = buffers.Sequences(
        length=config.burn_in + config.length,
        every=max(config.length - config.overlap, 1),
        exponent=config.priority_exponent if np.max(config.priority_exponent) > 0 else None,
        correction=config.correction,
    )
    declared |= {"remembers": config.memory != "none" and config.stored_memory}
    return buffers.Replay(**declared, draw=draw, perceives=config.normalise_observations)


def schedule(config: Config, steps: float) -> Config:
    """Turn a share of the run's `steps` into a number of environment steps."""
    return dataclasses.replace(config, epsilon_steps=agent.in_steps(config.epsilon_steps, steps))


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for continuous or several actions, or a hyperparameter out of range."""
    agent.require_widths(config, "hidden", "head_hidden")
    agent.require_discrete("r2d2", spec, "ppo")
    agent.require_range(config, learning_rate=(0, None), max_grad_norm=(0, None), discount=(0, 1), target_rate=(0, 1))
    agent.require_range(config, priority_exponent=(0, 1), priority_max=(0, 1), correction=(0, 1))
    agent.require_range(config, epsilon_base=(0, 1), epsilon_start=(0, 1), epsilon_end=(0, 1), rescale_slope=(0, None))
    agent.require_above(config, epsilon_steps=0, adam_epsilon=0)
    agent.require_at_least(config, target_every=1, n_step=1, length=1, burn_in=0, overlap=0)
    if config.overlap >= config.length:
        raise ValueError(
            f"--config.overlap is {config.overlap}, it must be less than --config.length {config.length}: sequences "
            "begin every `length - overlap` steps."
        )
    torsos.check(spec, layers(config), config.hidden)


def layers(config: Config) -> torsos.TorsoSettings:
    """The settings of torso and memory."""
    thinking = (config.torso, config.compute, None)
    style = (config.activation, config.initialisation, config.layer_norm, config.grid, config.encoder)
    kept = (config.memory, config.memory_hidden, config.memory_length, config.memory_span)
    return torsos.TorsoSettings(*thinking, *style, *kept)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters, the target equal to the critic."""
    style = (config.activation, config.initialisation)
    head = networks.MLP(config.head_hidden, spec.action_size + config.dueling, *style, layer_norm=config.layer_norm)
    body = torsos.torso(spec, layers(config), config.hidden)
    critic, _ = memories.create(body, layers(config), key, spec.example(), head)
    return State(
        critic=critic,
        target_critic=networks.copy(critic),
        critic_optimiser=optimiser(config).init(critic),
        statistics=normalise.of_observations(spec),
        steps=jnp.zeros((), jnp.int32),
        spec=spec,
    )


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


def remember(spec: EnvSpec, config: Config) -> Any:
    """The memory of one environment where an episode begins."""
    return memories.initial(layers(config))


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool, memory: Any = None
) -> tuple[Array, dict, Any]:
    """Actions [...] for observations [..., O...]: greedy, except for a share of uniform ones when exploring.

    Without a memory it is that with which an episode begins.
    """
    mask, (seen, one) = agent.mask_of(observation), (jax.tree.leaves(x)[0] for x in (observation, state.spec.example()))
    shape = seen.shape[: seen.ndim - one.ndim]
    memory = memories.initial(layers(config), *shape) if memory is None else memory
    outputs, memory = memories.step(state.critic, scaled(state, observation, config), memory)
    q = distributions.allowed(of_actions(outputs, config), mask)
    greedy = q.argmax(axis=-1).astype(jnp.int32)
    if not explore:
        return greedy, {}, memory
    key_choice, key_action = jax.random.split(key)
    uniform = distributions.uniform(key_action, state.spec, shape, mask)
    chance = jax.random.uniform(key_choice, shape)
    return jnp.where(chance < epsilon(state, shape[-1:], config), uniform, greedy), {}, memory


def epsilon(state: State, shape: tuple[int, ...], config: Config) -> Array:
    """The share of uniform actions in N environments, [N], or [] where it is the same in all; `shape` is (N,) or ()."""
    if config.exploration == "ladder":  # [6, section 4.1]
        rank = jnp.arange(shape[0]) / max(shape[0] - 1, 1) if shape else jnp.zeros(())
        return jnp.asarray(config.epsilon_base) ** (1.0 + 7.0 * rank)
    steps = state.steps * (config.num_envs * config.num_steps / config.num_updates)
    passed = jnp.minimum(steps / config.epsilon_steps, 1.0)
    return config.epsilon_start + (config.epsilon_end - config.epsilon_start) * passed


def scaled(state: State, observation: Any, config: Config) -> Any:
    """Observations [..., O...] as the critics see them."""
    return normalise.normalise(state.statistics, observation) if config.normalise_observations else observation


def of_actions(outputs: Array, config: Config) -> Array:
    """h(Q) [..., A] of a critic's outputs."""
    return heads.of_actions(outputs, heads.Scalar(), config.dueling)


# [5]
def rescaled(x: Array, config: Config) -> Array:
    """h(x)."""
    if not config.rescale:
        return x
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1.0) - 1.0) + config.rescale_slope * x


def unscaled(x: Array, config: Config) -> Array:
    """h^-1(x) = sign(x) (z^2 - 1), with z = (sqrt(1 + 4 epsilon u) - 1) / (2 epsilon) and u = |x| + 1 + epsilon."""
    if not config.rescale:
        return x
    u = jnp.abs(x) + 1.0 + config.rescale_slope
    z = 2.0 * u / (jnp.sqrt(1.0 + 4.0 * config.rescale_slope * u) + 1.0)  # the same, and no small difference
    return jnp.sign(x) * (jnp.square(z) - 1.0)


# [1, section 3]
def after_burn_in(critic: networks.Network, batch: Transition, config: Config) -> Transition:
    """The steps [T, B] of sequences that are learnt from, with the memory that a critic has before them."""
    number, whole = config.burn_in, (MEMORY, "weight", "row")  # these are of sequences, not of steps
    extras = {name: x if name in whole else x[number:] for name, x in batch.extras.items()}
    if number and MEMORY in extras:
        seen = jax.tree.map(lambda x: x[:number], batch.observation)
        _, memory, _ = critic(seen, batch.extras["first"][:number], batch.extras[MEMORY])
        extras |= {MEMORY: jax.lax.stop_gradient(memory)}
    return jax.tree.map(lambda x: x[number:], batch.replace(extras={})).replace(extras=extras)


def n_step_returns(value: Array, batch: Transition, config: Config) -> Array:
    """R^n_t [T, B] of sequences, for the values V_t [T, B] of their successors."""
    last = (batch.terminated | batch.truncated).at[-1].set(True)
    following = (1.0 - batch.terminated) * value

    def longer(_: Any, later: Array) -> Array:  # R^k of R^{k-1}
        return batch.reward + config.discount * jnp.where(last, following, jnp.roll(later, -1, axis=0))

    return jax.lax.fori_loop(1, config.n_step, longer, batch.reward + config.discount * following)


# [1, section 2.3]
def critic_loss(
    critic: networks.Network, target_critic: networks.Network, online: Transition, other: Transition, config: Config
) -> tuple[Array, Metrics]:
    """Half the squared error, and metrics; `online` and `other` hold the memories of critic and target."""
    outputs, following = memories.successors(critic, online)
    judged = of_actions(memories.successors(target_critic, other)[1], config)  # [T, B, A]
    chosen = of_actions(following, config) if config.double else judged
    chosen = distributions.allowed(chosen, agent.mask_of(online.next_observation)).argmax(axis=-1, keepdims=True)
    value = unscaled(jnp.take_along_axis(judged, chosen, axis=-1).squeeze(-1), config)
    target = jax.lax.stop_gradient(rescaled(n_step_returns(value, online, config), config))
    q = jnp.take_along_axis(of_actions(outputs, config), online.action[..., None], axis=-1).squeeze(-1)
    error = q - target
    loss = 0.5 * buffers.weighted(jnp.square(error), online).mean()
    size = jnp.abs(error)
    priority = config.priority_max * size.max(axis=0) + (1.0 - config.priority_max) * size.mean(axis=0)
    means = {"critic/q": unscaled(q, config).mean(), "critic/target": unscaled(target, config).mean()}
    return loss, {"critic/loss": loss} | means | buffers.priorities(priority[None], online)


def update(state: State, batch: Transition, key: Array, step: Array, config: Config) -> tuple[State, Metrics]:
    """One update of the critic from sequences [T, B, ...] and, every `target_every`-th time, of the target."""
    del key
    batch = batch.replace(
        observation=scaled(state, batch.observation, config),
        next_observation=scaled(state, batch.next_observation, config),
    )
    if config.memory != "none" and MEMORY not in batch.extras:
        batch = batch.replace(extras={**batch.extras, MEMORY: memories.initial(layers(config), batch.reward.shape[1])})
    online, other = (after_burn_in(critic, batch, config) for critic in (state.critic, state.target_critic))
    gradient, metrics = jax.grad(critic_loss, has_aux=True)(state.critic, state.target_critic, online, other, config)
    changes, critic_optimiser = optimiser(config).update(gradient, state.critic_optimiser)
    critic = optax.apply_updates(state.critic, changes)
    moved = lambda target: (networks.polyak(critic, target, config.target_rate), {})  # noqa: E731
    target_critic, _ = agent.every(config.target_every, step, moved, state.target_critic)
    if config.exploration == "falling":
        metrics |= {"actor/epsilon": epsilon(state, (), config)}
    learnt = {"critic": critic, "target_critic": target_critic, "critic_optimiser": critic_optimiser}
    return state.replace(**learnt, steps=optax.safe_increment(state.steps)), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
