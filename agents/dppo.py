"""DPPO [on-policy]: PPO on the denoising steps of a diffusion policy.

gamma discount, lambda trace decay, V critic, e standard normal
eps noise predictor, eps' its frozen base, T denoising_steps
K tuned_steps, g step_discount, epsilon clip_ratio, epsilon' clip_first
ended: terminated or truncated
  a_T       = e
  x         = estimate of a_0 from a_t and eps(a_t, s, t), clipped to +-1
              t = T ... 1; eps' where t > K
  mu, b     = mean and std of q(a_{t-1} | a_t, x)
  a_{t-1}   = mu + max(b, noise_min) clip(e, +-noise_clip)
  a         = a_0 clipped to +-1
  log p_t   = mean of log N(a_{t-1}; mu, max(b, density_min)),
              each number's clipped to [-5, 2]  t = K ... 1
  delta_n   = r_n + gamma (1 - terminated_n) V(s'_n) - V(s_n)
  A_n       = delta_n + gamma lambda (1 - ended_n) A_{n+1}  [3, eq. 16]
  epsilon_t = epsilon' + (epsilon - epsilon') (e^{c u} - 1) / (e^c - 1)
              c = clip_growth, u = (K - t) / (K - 1)
  ratio_t   = p_t / p_t,old,  B_t = g^{t-1} A
  L(eps)    = -mean min(ratio_t B_t, clip(ratio_t, 1 +- epsilon_t) B_t)
              - imitation_weight mean log p_t of chains of eps'  [1]
  L(V)      = mean (V(s) - (A + V_old(s)))^2 / 2

Acts with max(b, 0.001) in place of noise_min, and none in the last step.

Departs from the paper: details are those of [2], but truncation bootstraps.

[1] Ren et al., DPPO, arXiv:2409.00588
[2] github.com/irom-princeton/dppo
[3] Schulman et al., Generalized Advantage Estimation, arXiv:1506.02438

  rljax train dppo --env Hopper-v5 --from RUN --from-parts actor base=actor
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Number, Transition
from rljax.networks import distributions, encoders, generative, normalise
from rljax.networks.encoders import EncoderSettings
from rljax.networks.heads import chains, rollouts
from rljax.networks.optimisation import surrogates
from rljax.requirements import Count, NonNegative, Positive, Share, Whole, Widths


@agent.config
class Config(networks.WithSchedule, rollouts.WithRolloutValues, chains.WithDenoising):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 1e-4  # of eps; [2]
    critic_lr: NonNegative = 1e-3  # of V; [2]
    num_epochs: Count = 5  # passes over a rollout; [2]
    batch_size: int = 256  # transitions, with K steps each; [2]: 5,000
    critic_warmup: Whole = 0  # rollouts for V alone; [2]
    clip_ratio: NonNegative = 0.01  # epsilon, of the last step; [2]
    clip_first: NonNegative = 0.01  # epsilon', of the first of K; [2]
    clip_growth: Positive = 3.0  # c, from epsilon' to epsilon; [2]
    target_kl: Positive | None = 1.0  # ends the passes; [2]
    # Experience
    num_envs: int = 8  # side by side; [2]: 40
    num_steps: int = 256  # per environment; [2]: 500
    # Targets
    discount: Share = 0.99  # gamma; [2]
    trace_decay: Share = 0.95  # lambda of the advantages; [2]
    step_discount: Share = 0.99  # g, per denoising step; [2]
    normalise_advantages: bool = True  # per minibatch; [2]
    reward_scale: Positive = 1.0  # factor on rewards; [2]
    normalise_rewards: bool = True  # by the std of returns; [2]
    # Losses
    imitation_weight: NonNegative | None = None  # towards eps'; [2]
    # Networks
    encoder: encoders.Kind = "auto"  # of other than vectors
    hidden: Widths = (256, 256, 256)  # of eps; [2]: 512
    activation: networks.Activation = "mish"  # of eps; [2]: relu
    critic_hidden: Widths = (256, 256, 256)  # of V; [2]
    critic_activation: networks.Activation = "mish"  # of V; [2]
    initialisation: networks.Initialisation = "torch"  # of all layers; [2]
    normalise_observations: bool = False  # running; [2]: the data's


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # a_t, s, t -> noise in a_t [A]
    base: networks.Network  # the same, frozen
    critic: networks.Trained  # [O] -> [1]
    returns: normalise.Returns  # of running episodes [E]
    spec: EnvSpec = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Rollout:
    """Each iteration's steps, once."""
    return buffers.Rollout.of(config)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("dppo", spec)
    agent.require_order(config, "tuned_steps", "denoising_steps")
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters; the base is a copy."""
    key_actor, key_critic = jax.random.split(key)
    encoding, style = EncoderSettings.of(config), networks.style_of(config)
    size, sizes = spec.action_size, {"hidden": config.hidden, "embedding": config.embedding}
    actor = generative.create_field(spec, encoding, key_actor, size, **sizes, **style)
    style["activation"] = config.critic_activation
    critic = networks.MLP(config.critic_hidden, rollouts.outputs(config), **style)
    critic = encoders.create(spec, encoding, critic, key_critic)
    return State(
        actor=networks.trained(actor, config.actor_lr, config),
        base=networks.copy(actor),
        critic=networks.trained(critic, config.critic_lr, config),
        returns=normalise.create_returns(config.num_envs),
        spec=spec,
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]."""
    actor = state.actor.parameters
    least = config.noise_min if explore else 1e-3
    chain, mean, std = denoise(actor, state, observation, key, least, config)
    if not explore:
        return jnp.clip(mean[..., -1, :], -1.0, 1.0), {}
    old = config.log_prob(chain[..., 1:, :], mean, std)
    action = jnp.clip(chain[..., -1, :], -1.0, 1.0)
    return action, {"chain": chain, "log_prob": old}


def transition(denoiser: networks.Network, observation: Array, config: Config) -> chains.Moments:
    """mu and b from points [..., A] at steps t - 1 [...]."""
    schedule = generative.schedule(config.noising, config.denoising_steps)
    return generative.reverse(schedule, lambda a, t: denoiser(a, observation, t))


def denoise(
    actor: networks.Network,
    state: State,
    observation: Array,
    key: Array,
    least: Number,
    config: Config,
) -> tuple[Array, Array, Array]:
    """The tuned steps' chain [..., K + 1, A], with mu and b [..., K, A]."""
    key_start, key_steps = jax.random.split(key)
    start = generative.action_noise(state.spec, observation, key_start)
    noise = jax.random.normal(key_steps, (config.denoising_steps, *start.shape))
    noise = jnp.clip(noise, -config.noise_clip, config.noise_clip)
    steps = jnp.arange(config.denoising_steps)[::-1]  # t - 1
    early, late = slice(-config.tuned_steps), slice(-config.tuned_steps, None)
    moments = transition(state.base, observation, config)
    chain, _, _ = chains.walk(moments, steps[early], start, noise[early], least)
    moments, point = transition(actor, observation, config), chain[..., -1, :]
    return chains.walk(moments, steps[late], point, noise[late], least)


def with_advantages(critic: networks.Network, batch: Transition, config: Config) -> Transition:
    """A rollout with A, [3, eq. 16], and V, [T, E] each, in its extras."""
    both = rollouts.values(critic, None, batch)
    value, next_value = (outputs.mean(axis=-1) for outputs in both)
    advantage = buffers.generalised_advantages(
        batch, batch.reward, value, next_value, config.discount, config.trace_decay
    )
    return batch.replace(extras={**batch.extras, "advantage": advantage, "value": value})


# [2], PPODiffusion.loss
def actor_loss(
    actor: networks.Network, state: State, batch: Transition, key: Array, config: Config
) -> Loss:
    """The surrogate of steps, and the imitation of the base."""
    extras, last = batch.extras, config.tuned_steps - 1
    advantage, chain = extras["advantage"], extras["chain"]
    if config.normalise_advantages:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    step = last - extras["step"]  # t - 1
    u = 1.0 - step / max(last, 1)
    growth = jnp.expm1(config.clip_growth * u) / jnp.expm1(config.clip_growth)
    epsilon = config.clip_first + (config.clip_ratio - config.clip_first) * growth
    mean, std = transition(actor, batch.observation, config)(chain[:, 0], step)
    log_ratio = config.log_prob(chain[:, 1], mean, std) - extras["log_prob"]
    discounted = config.step_discount**step * advantage
    loss, metrics = surrogates.clipped(log_ratio, discounted, epsilon)
    if config.imitation_weight is not None:
        imitation = imitation_loss(actor, state, batch.observation, key, config)
        loss += config.imitation_weight * imitation
        metrics |= {"actor/imitation": imitation}
    return loss, metrics


# [2], PPODiffusion.loss: bc_loss
def imitation_loss(
    actor: networks.Network, state: State, observation: Array, key: Array, config: Config
) -> Array:
    """-log p [] of the base's chains."""
    number, least = config.tuned_steps, config.noise_min
    chain, _, _ = denoise(state.base, state, observation, key, least, config)
    each = generative.repeated(state.spec, observation, number)
    steps = jnp.broadcast_to(jnp.arange(number)[::-1], (len(chain), number))
    mean, std = transition(actor, each, config)(chain[:, :-1], steps)
    return -config.log_prob(chain[:, 1:], mean, std).mean()


def critic_loss(critic: networks.Network, batch: Transition, config: Config) -> Loss:
    """The loss of the returns' means or quantiles."""
    return rollouts.value_loss(critic(batch.observation), batch, config)


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """Learn from one rollout [T, E, ...] in minibatches."""
    batch = batch.replace(reward=config.reward_scale * batch.reward)
    if config.normalise_rewards:
        returns, batch = normalise.scale_rollout(state.returns, batch, config.discount)
        state = state.replace(returns=returns)
    rollout = with_advantages(state.critic.parameters, batch, config)
    explained = buffers.explained_variance(rollout)
    rollout = rollout.replace(next_observation=None)  # no minibatch needs it
    actor_adam = networks.optimiser(config.actor_lr, step, config)
    critic_adam = networks.optimiser(config.critic_lr, step, config)
    actor_learns = jnp.asarray(step >= config.critic_warmup)

    def learn(both: tuple, inputs: tuple) -> tuple[tuple, Metrics]:
        (actor, critic), (index, key) = both, inputs
        rows = chains.steps_at(rollout, index)
        new, metrics = actor.step(actor_adam, actor_loss, state, rows, key, config)
        actor = agent.choose(actor_learns, new, actor)
        critic, others = critic.step(critic_adam, critic_loss, rows, config)
        return (actor, critic), metrics | others

    def epoch(both: tuple, key: Array) -> tuple[tuple, Metrics]:
        key_order, key_draws = jax.random.split(key)
        order = distributions.permutation(key_order, rollout.extras["log_prob"].size)
        order = order.reshape(-1, config.batch_size * config.tuned_steps)
        return jax.lax.scan(learn, both, (order, jax.random.split(key_draws, len(order))))

    both = (state.actor, state.critic)
    (actor, critic), metrics = surrogates.passes(epoch, both, key, config)
    return state.replace(actor=actor, critic=critic), metrics | explained


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
