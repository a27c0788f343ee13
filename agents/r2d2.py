"""R2D2 [off-policy]: Q-learning with a memory, from replayed sequences.

gamma discount, Q critic, Q' its target, s'_t the true successor of t
m_t what the episode has shown until t: the memory of Q or Q'
It first sees burn_in steps from a stored memory;  m'_t: m_t and s'_t
  V_t     = h^-1( Q'(m'_t, argmax_a Q(m'_t, a)) )  double [2]
  R^1_t   = r_t + gamma (1 - terminated_t) V_t
  R^k_t   = R^1_t  where t ended, and in the last step of the sequence
          = r_t + gamma R^{k-1}_{t+1}  elsewhere
  delta_t = Q(m_t, a_t) - h(R^n_t)  [1, section 2.3]
  L(Q)    = mean w sum_t delta_t^2 / 2  t after the burn-in; w of priorities [4]
  p       = eta max_t |delta_t| + (1 - eta) mean_t |delta_t|  [1, section 2.3]
  Q(m, a) = V(m) + A(m, a) - mean_a' A(m, a')  dueling [3]
  h(x)    = sign(x) (sqrt(|x| + 1) - 1) + epsilon x  [5]
  Q'     <- (1 - rho) Q' + rho Q  every target_every-th update

A share of actions is uniform: epsilon^(1 + 7 i / (N - 1)) in
environment i of N [6], or one that falls in a line. One
environment alone has the middle of the ladder, epsilon^4.5.

Departs from the paper: sequences go on beyond an episode's end, and
the memory begins anew; it bootstraps at time limits; new sequences
have the largest priority; only `with-last-step/...` environments
show last actions and rewards. The sum over steps in L(Q) is Acme's.

[1] Kapturowski et al., Recurrent Experience Replay (R2D2), ICLR 2019
[2] van Hasselt et al., Double Q-learning, arXiv:1509.06461
[3] Wang et al., Dueling Network Architectures, arXiv:1511.06581
[4] Schaul et al., Prioritized Experience Replay, arXiv:1511.05952
[5] Pohlen et al., Observe and Look Further, arXiv:1805.11593
[6] Horgan et al., Distributed Prioritized Experience Replay, arXiv:1803.00933

  rljax train r2d2 --env gymnax/MemoryChain-bsuite
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import MEMORY, Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import WithSchedule, distributions, encoders, heads, memories, noise, torsos
from rljax.networks.torsos import TorsoSettings
from rljax.requirements import Count, NonNegative, Positive, Share, Whole, Widths


@agent.config
class Config(WithSchedule, buffers.ReplaySettings, noise.WithEpsilon, torsos.WithMemoryAlone):
    """Hyperparameters."""

    acting = agent.Acting(settings=("compute",))
    # Optimisation
    learning_rate: NonNegative = 1e-3  # of Adam; 1e-4 in [1]
    adam_epsilon: Positive = 1e-3  # of Adam; [1]
    max_grad_norm: NonNegative = 0.0  # 0: no limit; Acme
    batch_size: int = 32  # sequences per update; 64 in [1]
    # Experience
    replay_size: int = 100_000  # newest transitions kept; 4M in [1]
    warmup_steps: int = 2_000  # uniform actions, no update; own choice
    num_envs: int = 16  # side by side; 256 in [1]
    num_steps: int = 4  # per environment; own choice
    length: Count = 20  # steps learnt from; 80 in [1]
    burn_in: Whole = 10  # steps before, for memory; 40 in [1]
    overlap: Whole = 10  # with the next sequence; 40 in [1]
    stored_memory: bool = True  # begin with it, not with 0; [1]
    priority_exponent: Share = 0.9  # of errors, 0: uniform; [1]
    priority_max: Share = 0.9  # eta, of the largest error; [1]
    correction: Share = 0.6  # exponent of weights; [1]
    # Targets
    discount: Share = 0.99  # gamma; 0.997 in [1]
    n_step: Count = 5  # n, rewards in R; [1]
    target_rate: Share = 1.0  # rho: 1 is a copy; [1]
    target_every: Count = 200  # updates per copy; 2,500 in [1]
    double: bool = True  # choose by Q, evaluate by Q'; [1]
    rescale: bool = True  # learn h(Q), not Q; [1]
    rescale_slope: NonNegative = 1e-3  # epsilon of h; [1]
    # Policy
    exploration: Literal["ladder", "falling"] = "ladder"  # of uniform actions; [6]
    epsilon_base: Share = 0.4  # epsilon of the ladder; [6]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    torso: torsos.Kind = "mlp"  # before the memory
    compute: int = 1  # T, thinking steps; own choice
    grid: tuple[int, int] | None = None  # rows, columns of a drc
    hidden: Widths = (64,)  # of the torso; 512 in [1]
    memory: memories.Kind = "gru"  # kept between steps; lstm in [1]
    head_hidden: Widths = ()  # after the memory; 512 in [1]
    dueling: bool = True  # value and advantages; [1]
    activation: networks.Activation = "relu"  # of hidden layers; [1]
    layer_norm: bool = False  # of an mlp; own choice
    initialisation: networks.Initialisation = "torch"  # of all layers; own choice


class State(struct.PyTreeNode):
    """What learning changes."""

    critic: networks.Trained  # [O...], memory -> h(Q): [A], or [1 + A] dueling
    target_critic: networks.Network
    steps: Array  # [] int32: updates so far, for epsilon
    spec: EnvSpec = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Replay:
    """Sequences of `burn_in` + `length` steps."""
    prioritised = np.max(config.priority_exponent) > 0
    draw = buffers.Sequences(
        length=config.burn_in + config.length,
        every=max(config.length - config.overlap, 1),
        exponent=config.priority_exponent if prioritised else None,
        correction=config.correction,
    )
    remembers = config.memory != "none" and config.stored_memory
    return buffers.Replay.of(config, draw=draw, remembers=remembers)


def schedule(config: Config, steps: float) -> Config:
    """Turn shares of the run into numbers of steps."""
    return agent.in_steps(config, steps, "epsilon_steps")


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_discrete("r2d2", spec, "ppo")
    if config.overlap >= config.length:
        raise ValueError(
            f"--config.overlap is {config.overlap}, it must be less than --config.length "
            f"{config.length}: sequences begin every `length - overlap` steps."
        )
    torsos.check(spec, settings_of(config), config.hidden)


def settings_of(config: Config) -> TorsoSettings:
    """Of torso and memory; the loss is never progressive."""
    return TorsoSettings.of(config, progressive=None)


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; the target equals the critic."""
    style = (config.activation, config.initialisation)
    features = spec.action_size + config.dueling
    head = networks.MLP(config.head_hidden, features, *style, layer_norm=config.layer_norm)
    settings = settings_of(config)
    body = torsos.torso(spec, settings, config.hidden)
    critic, _ = memories.create(body, settings, key, spec.example(), head)
    return State(
        critic=networks.Trained.create(critic, optimiser(0, config)),
        target_critic=networks.copy(critic),
        steps=jnp.zeros((), jnp.int32),
        spec=spec,
    )


def optimiser(step: Array | int, config: Config) -> optax.GradientTransformation:
    """The networks' optimiser, after `step` [] updates."""
    return networks.optimiser(config.learning_rate, step, config, config.adam_epsilon)


def remember(spec: EnvSpec, config: Config) -> Any:
    """What lasts from one step of an episode to the next."""
    return memories.initial(settings_of(config))


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool, memory: Any = None
) -> tuple[Array, dict, Any]:
    """Actions [...] for observations [..., O...].

    Without a memory, an episode begins.
    """
    leading = state.spec.leading(observation)
    if memory is None:
        memory = memories.initial(settings_of(config), *leading)
    outputs, memory = memories.step(state.critic.parameters, observation, memory)
    mask = agent.mask_of(observation)
    q = distributions.allowed(of_actions(outputs, config), mask)
    greedy = q.argmax(axis=-1).astype(jnp.int32)
    if explore:
        share = epsilon(state, leading[-1:], config)
        greedy = noise.epsilon_greedy(key, greedy, share, state.spec, mask)
    return greedy, {}, memory


def epsilon(state: State, shape: tuple[int, ...], config: Config) -> Array:
    """The share of uniform actions, in `shape` (N,) or ()."""
    if config.exploration == "falling":
        return noise.falling_epsilon(state.steps, config)
    rank = jnp.linspace(0.0, 1.0, shape[0]) if shape[:1] > (1,) else jnp.full(shape, 0.5)
    return jnp.asarray(config.epsilon_base) ** (1.0 + 7.0 * rank)  # [6, section 4.1]


def of_actions(outputs: Array, config: Config) -> Array:
    """h(Q) [..., A] of a critic's outputs."""
    return heads.of_actions(outputs, heads.Scalar(), config.dueling)


# [1, section 2.3]
def critic_loss(
    critic: networks.Network, state: State, online: Transition, other: Transition, config: Config
) -> Loss:
    """Half the squared error; `other` is for the target."""
    slope = config.rescale_slope if config.rescale else None
    outputs, next_outputs = memories.successors(critic, online)
    _, target_outputs = memories.successors(state.target_critic, other)
    target_q = of_actions(target_outputs, config)  # [T, B, A]
    next_q = of_actions(next_outputs, config) if config.double else target_q
    next_q = distributions.allowed(next_q, agent.mask_of(online.next_observation))
    best = next_q.argmax(axis=-1, keepdims=True)
    value = jnp.take_along_axis(target_q, best, axis=-1).squeeze(-1)
    value = heads.unscaled(value, slope)  # [T, B]
    returns = buffers.n_step_returns(value, online, config.discount, config.n_step)
    target = jax.lax.stop_gradient(heads.rescaled(returns, slope))
    q = of_actions(outputs, config)
    q = jnp.take_along_axis(q, online.action[..., None], axis=-1).squeeze(-1)
    error = q - target
    loss = 0.5 * buffers.weighted(jnp.square(error), online).sum(axis=0).mean()
    size = jnp.abs(error)
    eta = config.priority_max
    priority = eta * size.max(axis=0) + (1.0 - eta) * size.mean(axis=0)
    metrics = {
        "critic/loss": loss,
        "critic/q": heads.unscaled(q, slope).mean(),
        "critic/target": heads.unscaled(target, slope).mean(),
    }
    return loss, metrics | buffers.priorities(priority[None], online)


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Learn from sequences [T, B, ...]; if due, the target."""
    del key
    if config.memory != "none" and MEMORY not in batch.extras:
        memory = memories.initial(settings_of(config), batch.reward.shape[1])
        batch = batch.replace(extras={**batch.extras, MEMORY: memory})
    online = memories.after_burn_in(state.critic.parameters, batch, config.burn_in)
    other = memories.after_burn_in(state.target_critic, batch, config.burn_in)
    adam = optimiser(step, config)
    critic, metrics = state.critic.step(adam, critic_loss, state, online, other, config)
    if config.exploration == "falling":
        metrics |= {"actor/epsilon": epsilon(state, (), config)}
    rate, every = config.target_rate, config.target_every
    return state.replace(
        critic=critic,
        target_critic=networks.polyak_every(every, step, critic, state.target_critic, rate),
        steps=optax.safe_increment(state.steps),
    ), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
