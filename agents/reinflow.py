"""ReinFlow [on-policy]: PPO on the steps of a flow, made random by learnt noise.

gamma discount, lambda trace decay, epsilon clip range, V critic, z normal
v flow, K flow_steps, d = 1 / K, m network of noise, b bound of sigma
ended: terminated or truncated, n = (K + 1) numbers of an action
  x_0       = z
  mu_k      = clip(x_k + d v(x_k, s, k d), +-1)  k = 0 ... K - 1
  sigma_k   = exp(l + (log b - l) (1 + tanh m(s, k d)) / 2)  l = log noise_min
  x_{k+1}   = mu_k + sigma_k clip(z, +-noise_clip)  [1]
  a         = x_K clipped to +-1
  log p     = [log N(x_0; 0, 1) + sum_k log N(x_{k+1}; mu_k, sigma_k)] / n
  H         = the entropy of these Gaussians / n
  delta_t   = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
  A_t       = delta_t + gamma lambda (1 - ended_t) A_{t+1}  [3, eq. 16]
  ratio     = p / p_old, of log p clipped to +-log_prob_limit
  L(v, m)   = -mean min(ratio A, clip(ratio, 1 +- epsilon) A)
              - entropy_cost mean H  [1]
  L(V)      = mean (V(s) - (A + V_old(s)))^2 / 2
  b         = noise_max; later half a cosine down to noise_left of the range

Acts by x_K without noise in the steps. The flow may be another run's.

Departs from the paper: the code [2] divides log p and H by n, and m does not
see x_k. Truncation bootstraps, unlike in [2].

[1] Zhang et al., ReinFlow, arXiv:2505.22094
[2] github.com/ReinFlow/ReinFlow
[3] Schulman et al., Generalized Advantage Estimation, arXiv:1506.02438

  rljax train reinflow --env Hopper-v5 --from RUN --from-parts actor.flow=actor
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks import encoders, generative, normalise
from rljax.networks.encoders import EncoderSettings
from rljax.networks.heads import chains, rollouts
from rljax.networks.heads.chains import Moments
from rljax.networks.optimisation import surrogates
from rljax.requirements import Count, NonNegative, Positive, Real, Share, Whole, Widths


@agent.config
class Config(
    networks.WithSchedule,
    rollouts.WithRolloutValues,
    generative.WithStepNoise,
    generative.WithFlowNetworks,
):
    """Hyperparameters."""

    # Optimisation
    actor_lr: NonNegative = 3e-4  # of flow and noise; [2]: 3e-5 to 4e-4
    critic_lr: NonNegative = 1e-3  # [2]: 3e-4 to 4e-3
    num_epochs: Count = 10  # passes over a rollout; [2]: 20
    batch_size: int = 256  # transitions; [2]: the rollout
    critic_warmup: Whole = 0  # rollouts for V alone; [2]: 0 to 10
    clip_ratio: NonNegative = 0.01  # epsilon; [2]
    target_kl: Positive | None = 1.0  # ends the passes; [2]
    # Experience
    num_envs: int = 8  # side by side; [2]: 40
    num_steps: int = 256  # per environment; [2]: 500
    # Targets
    discount: Share = 0.99  # gamma; [2]
    trace_decay: Share = 0.95  # lambda of the advantages; [2]
    normalise_advantages: bool = True  # per minibatch; [2]
    reward_scale: Positive = 1.0  # factor on rewards; [2]
    normalise_rewards: bool = True  # by the std of returns; [2]
    # Losses
    entropy_cost: Real = 0.03  # weight of entropy; [2]
    log_prob_limit: Positive = 1.0  # of log p; [2]
    # Policy
    flow_steps: Count = 4  # K; [2]
    # Networks
    noise_hidden: Widths = (64, 64)  # of m, with tanh; [2]
    critic_hidden: Widths = (256,) * 3  # of V; [2]
    critic_activation: networks.Activation = "mish"  # of V; [2]
    layer_norm: bool = False  # of V; [2]
    normalise_observations: bool = False  # running; [2]: the data's


class Policy(struct.PyTreeNode):
    """The networks that the actor's optimiser moves."""

    flow: networks.Network  # x_k, s, k d -> velocity [A]
    noise: networks.Network  # [O], k d -> m [A]


class State(struct.PyTreeNode):
    """What learning changes."""

    actor: networks.Trained  # Policy
    critic: networks.Trained  # [O] -> [1]
    returns: normalise.Returns  # of running episodes [E]
    bound: Array  # b []
    spec: EnvSpec = struct.field(pytree_node=False)


def experience(config: Config) -> buffers.Rollout:
    """Each iteration's steps, once."""
    return buffers.Rollout.of(config)


def schedule(config: Config, steps: float) -> Config:
    """Turn shares of the run into numbers of steps."""
    return agent.in_steps(config, steps, "noise_hold", "noise_steps")


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_continuous("reinflow", spec)
    agent.require_order(config, "noise_min", "noise_max")
    encoders.check(spec, EncoderSettings.of(config))


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters."""
    key_flow, key_noise, key_critic = jax.random.split(key, 3)
    start, encoding = config.initialisation, EncoderSettings.of(config)
    noise = networks.MLP(config.noise_hidden, spec.action_size, "tanh", start)
    outputs, activation = rollouts.outputs(config), config.critic_activation
    style = (activation, start, 1.0, config.norm)
    critic = networks.MLP(config.critic_hidden, outputs, *style)
    critic = encoders.create(spec, encoding, critic, key_critic)
    policy = Policy(
        flow=config.create_field(spec, key_flow),
        noise=encoders.create(spec, encoding, noise, key_noise, jnp.zeros(1)),
    )
    return State(
        actor=networks.trained(policy, config.actor_lr, config),
        critic=networks.trained(critic, config.critic_lr, config),
        returns=normalise.create_returns(config.num_envs),
        bound=jnp.asarray(config.noise_max, jnp.float32),
        spec=spec,
    )


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool
) -> tuple[Array, dict]:
    """Actions [..., A] for observations [..., O]."""
    key_start, key_steps = jax.random.split(key)
    start = generative.action_noise(state.spec, observation, key_start)
    if not explore:
        return decode(state, observation, start, config), {}
    noise = jax.random.normal(key_steps, (config.flow_steps, *start.shape))
    noise = jnp.clip(noise, -config.noise_clip, config.noise_clip)
    moments = transition(state.actor.parameters, state, observation, config)
    chain, mean, std = chains.of_flow(moments, start, noise)
    log_prob, _ = chains.likelihood(chain, mean, std)
    return chain[..., -1, :], {"chain": chain, "log_prob": log_prob}


def decode(state: State, observation: Array, noise: Array, config: Config) -> Array:
    """x_K [..., A] of x_0, without noise in the steps."""
    moments = transition(state.actor.parameters, state, observation, config)
    steps = jnp.zeros((config.flow_steps, *noise.shape))
    chain, _, _ = chains.of_flow(moments, noise, steps)
    return chain[..., -1, :]


def transition(actor: Policy, state: State, observation: Array, config: Config) -> Moments:
    """mu and sigma [..., A] from points [..., A] at times [...]."""

    def moments(point: Array, time: Array) -> tuple[Array, Array]:
        moved = point + actor.flow(point, observation, time) / config.flow_steps
        output = actor.noise(observation, time[..., None])
        share = 0.5 * (1.0 + jnp.tanh(output))
        low, high = jnp.log(config.noise_min), jnp.log(state.bound)
        return jnp.clip(moved, -1.0, 1.0), jnp.exp(low + (high - low) * share)

    return moments


def with_advantages(critic: networks.Network, batch: Transition, config: Config) -> Transition:
    """A rollout with A, [3, eq. 16], and V, [T, E] each, in its extras."""
    both = rollouts.values(critic, None, batch)
    value, next_value = (outputs.mean(axis=-1) for outputs in both)
    advantage = buffers.generalised_advantages(
        batch, batch.reward, value, next_value, config.discount, config.trace_decay
    )
    return batch.replace(extras={**batch.extras, "advantage": advantage, "value": value})


# [2], PPOFlow.loss
def actor_loss(actor: Policy, state: State, batch: Transition, config: Config) -> Loss:
    """The surrogate of chains, minus the entropy bonus."""
    advantage, chain = batch.extras["advantage"], batch.extras["chain"]
    if config.normalise_advantages:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    each = generative.repeated(state.spec, batch.observation, config.flow_steps)
    times = jnp.arange(config.flow_steps) / config.flow_steps
    times = jnp.broadcast_to(times, (len(chain), config.flow_steps))
    mean, std = transition(actor, state, each, config)(chain[:, :-1], times)
    new, entropy = chains.likelihood(chain, mean, std)
    old, limit = batch.extras["log_prob"], config.log_prob_limit
    new, old = (jnp.clip(x, -limit, limit) for x in (new, old))
    loss, metrics = surrogates.clipped(new - old, advantage, config.clip_ratio)
    entropy = entropy.mean()
    metrics |= {"actor/entropy": entropy, "actor/noise": std.mean()}
    return loss - config.entropy_cost * entropy, metrics


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

    def learn(both: tuple, rows: Transition) -> tuple[tuple, Metrics]:
        actor, critic = both
        new, metrics = actor.step(actor_adam, actor_loss, state, rows, config)
        actor = agent.choose(actor_learns, new, actor)
        critic, others = critic.step(critic_adam, critic_loss, rows, config)
        return (actor, critic), metrics | others

    def epoch(both: tuple, key: Array) -> tuple[tuple, Metrics]:
        (rows,) = buffers.minibatches(key, (rollout,), config.batch_size)
        return jax.lax.scan(learn, both, rows)

    both = (state.actor, state.critic)
    (actor, critic), metrics = surrogates.passes(epoch, both, key, config)
    passed = jnp.float32(step) * (config.num_envs * config.num_steps)
    bound = config.noise_bound(passed)
    state = state.replace(actor=actor, critic=critic, bound=bound)
    return state, metrics | explained


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
