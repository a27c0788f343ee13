"""QSM [generative]: a diffusion model whose noise matches the slope of values.

gamma discount, h chunk_length, T denoising_steps, abar_t share of variance
eps noise predictor, Q_c critics, Q'_c targets, e standard normal
a the chunk of the data, R and w as in QC
lambda inverse_temperature, alpha imitation_weight
  a'      = DDPM's reverse process from noise, T steps along eps, at s'
  y       = R + gamma^h (1 - terminated) lower_c Q'_c(s', a')
            lower: mean - pessimism std
  L(Q)    = mean_c mean w (Q_c(s, a) - y)^2
  t       ~ U{1..T},  a_t = sqrt(abar_t) a + sqrt(1 - abar_t) e
  g       = lambda grad mean_c Q'_c(s, a_t)  in a_t
  L(eps)  = alpha mean w (eps(s, a_t, t) - e)^2
            + mean w (eps(s, a_t, t) + g)^2  [1]
  Q'      <- (1 - rho) Q' + rho (Q before the step)  rho: target_rate
Acts by a'. With matching "actor_critic" the last loss is DAC's
            + mean w sqrt(1 - abar_t) g eps(s, a_t, t)  [2]

Departs from the paper: it has the imitation, ensembles and chunks of [3].

[1] Psenka et al., Q-Score Matching, arXiv:2312.11752
[2] Fang et al., Diffusion Actor-Critic, arXiv:2405.20555
[3] Li and Levine, Q-learning with Adjoint Matching, arXiv:2601.14234, code

  rljax train qsm --data ogbench/cube-double-play-singletask-v0
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import encoders, generative, policies
from rljax.networks.encoders import EncoderSettings
from rljax.requirements import Count, NonNegative, Share, Widths


@agent.config
class Config(networks.WithCritics, buffers.WithChunks, buffers.RowSettings):
    """Hyperparameters."""

    # Optimisation
    learning_rate: NonNegative = 3e-4  # of Adam; [3]
    max_grad_norm: NonNegative | None = 1.0  # of all networks together; [3]
    batch_size: int = 256  # chunks; [3]
    # Targets
    discount: Share = 0.99  # gamma; [3]
    target_rate: Share = 0.005  # rho; [3]
    pessimism: NonNegative = 0.5  # std of the critics off their mean; [3]
    # Policy
    matching: Literal["score", "actor_critic"] = "score"  # QSM's loss; DAC's
    inverse_temperature: NonNegative = 10.0  # lambda, to be tuned; [3]
    imitation_weight: NonNegative = 10.0  # alpha, to be tuned; [3]
    denoising_steps: Count = 10  # T; [3]
    noising: generative.Noising = "vp"  # growth of noise; [3]
    sampling: generative.Sampling = "clean"  # a step's draw; [3]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (512, 512, 512, 512)  # of all networks; [3]
    num_critics: Count = 10  # C; [3]
    activation: networks.Activation = "mish"  # of the noise predictor; [3]
    critic_activation: networks.Activation = "gelu_tanh"  # of the critics; [3]
    layer_norm: bool = True  # of the critics, after activation; [3]
    embedding: generative.Embedding = 64  # waves of the step; [3]
    initialisation: networks.Initialisation = "glorot_uniform"  # of all layers; [3]


class Networks(struct.PyTreeNode):
    """What the one optimiser moves."""

    critic: networks.Network  # [O], [h A] -> [C]
    denoiser: networks.Network  # a_t, s, t -> noise in a_t [h A]


class State(struct.PyTreeNode):
    """What learning changes."""

    networks: networks.Trained  # Networks
    target_critic: networks.Network
    spec: EnvSpec = struct.field(pytree_node=False)  # its actions are chunks


def experience(config: Config) -> buffers.Dataset:
    """Uniform chunks; half new online."""
    return buffers.row_dataset(config)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("qsm", spec)
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; targets are copies."""
    key_critic, key_denoiser = jax.random.split(key)
    spec = policies.chunk_spec(spec, config.chunk_length)
    observation, action = spec.example(), jnp.zeros(spec.action_shape)
    encoding = EncoderSettings.of(config)
    field = generative.Field(
        config.hidden,
        spec.action_size,
        config.activation,
        config.initialisation,
        embedding=config.embedding,
        time_widths=config.hidden,
        encoder=encoders.encoder_or_none(spec, encoding),
    )
    net = networks.Ensemble(
        config.num_critics,
        config.critic_widths,
        activation=config.critic_activation,
        layer_norm="last" if config.layer_norm else False,
        initialisation=config.initialisation,
    )
    learnt = Networks(
        critic=encoders.create(spec, encoding, net, key_critic, action),
        denoiser=networks.create(field, key_denoiser, action, observation, jnp.zeros(())),
    )
    target = networks.copy(learnt.critic)
    return State(networks.trained(learnt, config.learning_rate, config), target, spec)


def remember(spec: EnvSpec, config: Config) -> Any:
    """The chunk that is played."""
    return policies.first_chunk(spec, config.chunk_length)


def act(
    state: State,
    observation: Array,
    key: Array,
    config: Config,
    explore: bool,
    memory: Any = None,
) -> tuple[Array, dict, Any]:
    """Actions [..., A] for observations [..., O]."""
    return policies.act_in_chunks(
        lambda: policy(state, observation, key, config), memory, config.chunk_length
    )


def value(state: State, observation: Array, action: Array, config: Config) -> Array:
    """The critics' mean [...] of actions [..., A]."""
    policies.refuse_chunks(config.chunk_length)
    return state.networks.parameters.critic(observation, action).mean(axis=0)


def policy(state: State, observation: Array, key: Array, config: Config) -> Array:
    """a' [..., h A] for observations [..., O]."""
    denoiser = state.networks.parameters.denoiser
    schedule = generative.schedule(config.noising, config.denoising_steps)
    shape = (*state.spec.leading(observation), state.spec.action_size)

    def noise(noisy: Array, step: Array) -> Array:
        return denoiser(noisy, observation, step + 1)

    return generative.ancestral(schedule, noise, key, shape, config.sampling)


def critic_loss(
    critic: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """Squared error of the critics to the target, of whole chunks."""
    following = policy(state, batch.next_observation, key, config)
    next_q = state.target_critic(batch.next_observation, following)  # [C, B]
    next_q = networks.lower_bound(next_q, config.pessimism)
    target = buffers.bootstrapped(batch, next_q, config.discount)
    q = critic(batch.observation, batch.action)  # [C, B]
    return buffers.squared_loss(q, target, batch)


# [1], [2]
def matching_errors(
    denoiser: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> dict[str, Array]:
    """Errors [B, h A] of the noise to the data's, and to the slope of values."""
    key_step, key_noise = jax.random.split(key)
    schedule = generative.schedule(config.noising, config.denoising_steps)
    step = jax.random.randint(key_step, batch.reward.shape, 0, config.denoising_steps)
    noise = jax.random.normal(key_noise, batch.action.shape)
    noisy = generative.noised(schedule, batch.action, step, noise)
    predicted = denoiser(noisy, batch.observation, step + 1)

    def gain(action: Array) -> Array:
        return state.target_critic(batch.observation, action).mean(axis=0).sum()

    slope = config.inverse_temperature * jax.grad(gain)(noisy)
    if config.matching == "score":
        matching = jnp.square(predicted + slope)
    else:
        matching = jnp.sqrt(1.0 - schedule.signal[step])[:, None] * slope * predicted
    return {"actor/imitation": jnp.square(predicted - noise), "actor/matching": matching}


def loss(learnt: Networks, state: State, batch: Transition, key: Array, config: Config) -> Loss:
    """The sum of all losses."""
    key_critic, key_actor = jax.random.split(key)
    total, metrics = critic_loss(learnt.critic, state, batch, key_critic, config)
    whole = buffers.whole_chunks(batch)
    errors = matching_errors(learnt.denoiser, state, batch, key_actor, config)
    losses = {
        name: (error if whole is None else error * whole).mean() for name, error in errors.items()
    }
    total += config.imitation_weight * losses["actor/imitation"] + losses["actor/matching"]
    return total, metrics | losses


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update of critics, noise predictor and targets."""
    batch = buffers.with_chunk_return(batch, config.discount)
    old = state.networks.parameters.critic
    optimiser = networks.optimiser(config.learning_rate, step, config)
    learnt, metrics = state.networks.step(optimiser, loss, state, batch, key, config)
    target_critic = networks.polyak(old, state.target_critic, config.target_rate)
    return State(learnt, target_critic, state.spec), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
