"""Decision Transformer [offline]: the data's actions, given the return that follows.

s_t state, a_t action, R_t sum of the rewards from t on, c return_scale, mu a
causal transformer over the last context_length = K steps
  x_t  = W_R c R_t + e_t,  W_s s_t + e_t,  W_a a_t + e_t  e_t: of time t
  mu_t = tanh of what comes out where s_t went in, which sees x up to s_t
  L    = mean_t 1(t is in the episode) |mu_t - a_t|^2 / A  [2]

With predict_next, what comes out where a_t went in predicts the next state
and return, s^_t and R^_t, and their errors are added to L [3]:
  L_s  = mean_t 1(t is in the episode) |s^_t - s_t+1|^2 / O
  L_R  = mean_t 1(t is in the episode) (R^_t - c R_t+1)^2
  L    = L + w_s L_s + w_R L_R

The batch's pieces begin at any row, and 1(...) is 0 beyond an episode's end.
Acts by mu with R_t = target - (rewards of the episode so far). The target is
`target_return`, or the largest return of the data.

Departs from the paper [1]: the loss is a mean over all K steps, as in [2].
Departs from [3]: without regions of actions, and w_s and w_R are ours.

[1] Chen et al., Decision Transformer, arXiv:2106.01345
[2] Tarasov et al., CORL, arXiv:2210.07105; algorithms/offline/dt.py
[3] Ghanem et al., Multi-Objective Decision Transformers, arXiv:2308.16379

  rljax train dt --data d4rl/hopper-medium-v2
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks.layers import Dropout, Module
from rljax.networks.recurrent import returns_to_go
from rljax.networks.recurrent.transformer import Linear, Transformer
from rljax.requirements import Count, NonNegative, Positive, Share

STD = 0.02  # of the embeddings of time at the start; [2]


@agent.config
class Config(networks.WithSchedule, returns_to_go.WithTargetReturn):
    """Hyperparameters."""

    # Optimisation
    learning_rate: NonNegative = 1e-4  # of Adam, after the warm-up; [2]
    warmup_updates: Positive | None = 0.1  # share of the run in which the rate rises; [2]
    batch_size: int = 64  # pieces per update; [2]
    weight_decay: NonNegative | None = 1e-4  # in each step, times the learning rate; [2]
    max_grad_norm: NonNegative | None = 0.25  # of the gradient; [2]
    # Data
    normalise_observations: bool = True  # by mean and std; [2]
    num_updates: int = 1  # updates per iteration
    # Policy
    context_length: Count = 20  # K, in steps; [2]
    return_scale: Positive = 1e-3  # c; [2]
    exploration_noise: NonNegative = 0.1  # std of noise on actions; TD3
    # Predictions
    predict_next: bool = False  # the next state and return too; [3] does
    state_weight: NonNegative = 1.0  # w_s, of the next state's error
    return_weight: NonNegative = 1.0  # w_R, of the next return's error
    # Network
    width: Count = 128  # of tokens; [2]
    layers: Count = 3  # blocks; [2]
    heads: Count = 1  # of the attention; [2]
    dropout: Share = 0.1  # of tokens, attention and blocks; [2]
    times: Count = 1000  # steps with an embedding of their own; [2]


class State(struct.PyTreeNode):
    """What learning changes."""

    policy: networks.Trained  # Policy
    best_return: Array  # [] the data's largest


class Policy(Module):
    """mu: states, actions, returns and times of K steps to actions."""

    action_size: int
    predict_next: bool
    width: int
    layers: int
    heads: int
    times: int

    @nn.compact
    def __call__(
        self,
        state: Array,
        action: Array,
        target: Array,
        time: Array,
        valid: Array,
        dropout: Dropout | None = None,
    ) -> tuple[Array, Array]:
        """For states [..., K, O], and for the rest [..., K] each, actions [..., K, A], and next
        states and returns [..., K, O + 1], or [..., K, 0] where they are not predicted.
        """
        table = self.param("time", nn.initializers.normal(STD), (self.times, self.width))
        of_time = table[jnp.clip(time, 0, self.times - 1)]
        parts = (("return", target[..., None]), ("state", state), ("action", action))
        tokens = [Linear(self.width, name=name)(x) + of_time for name, x in parts]
        x = jnp.stack(tokens, axis=-2)  # [..., K, 3, m]
        x = x.reshape(*x.shape[:-3], -1, self.width)
        transformer = Transformer(self.layers, self.heads, name="transformer")
        x = transformer(x, jnp.repeat(valid, 3, axis=-1), dropout)
        mean = jnp.tanh(Linear(self.action_size, name="output")(x[..., 1::3, :]))
        if not self.predict_next:
            return mean, jnp.zeros((*mean.shape[:-1], 0))
        return mean, Linear(state.shape[-1] + 1, name="next")(x[..., 2::3, :])


def experience(config: Config) -> buffers.Dataset:
    """Pieces of trajectories, with the return from each step on."""
    return buffers.Dataset.of(
        config,
        draw=buffers.TrajectoryWindows(length=config.context_length),
        columns=(buffers.ReturnToGo(), buffers.Time()),
        last_step=True,
    )


def schedule(config: Config, steps: float) -> Config:
    """Turn shares of the run into updates."""
    return agent.in_steps(config, steps, "warmup_updates")


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_vectors("dt", spec)
    agent.require_continuous("dt", spec)
    agent.require_range(config, dropout=(0, 0.99))
    if config.width % config.heads:
        raise ValueError(
            f"--config.width {config.width} is not a multiple of --config.heads {config.heads}."
        )


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters."""
    outputs = (spec.action_size, config.predict_next)
    sizes = (config.width, config.layers, config.heads, config.times)
    history = returns_to_go.history(spec, config.context_length)
    policy = networks.create(Policy(*outputs, *sizes), key, *history.inputs(config.return_scale))
    return State(networks.trained(policy, config.learning_rate, config), jnp.zeros(()))


def remember(spec: EnvSpec, config: Config) -> Any:
    """The last K steps."""
    return returns_to_go.history(spec, config.context_length)


def act(
    state: State, observation: Array, key: Array, config: Config, explore: bool, memory: Any
) -> tuple[Array, dict, Any]:
    """Actions [..., A] for observations [..., O] with the last action and reward."""
    target = config.target(state.best_return)
    memory = memory.after(observation, target)
    mean, _ = state.policy(*memory.inputs(config.return_scale))
    action = mean[..., -1, :]
    if explore:
        noise = config.exploration_noise * jax.random.normal(key, action.shape)
        action = jnp.clip(action + noise, -1.0, 1.0)
    return action, {}, memory


def prepare(state: State, data: Transition, config: Config) -> State:
    """Keep the largest return of the data."""
    del config
    return state.replace(best_return=returns_to_go.largest(data))


# [1, algorithm 1]; [2]; next states and returns: [3]
def policy_loss(policy: networks.Network, batch: Transition, config: Config, key: Array) -> Loss:
    """Distance to the data's actions within episodes, and to what follows them."""
    observation, _, _ = returns_to_go.split(batch.observation, batch.action.shape[-1])
    target = config.return_scale * batch.extras["return_to_go"]  # [B, K]
    inputs = (observation, batch.action, target, batch.extras["time"], batch.extras["valid"])
    mean, following = policy(*inputs, dropout=Dropout(key, config.dropout))  # [B, K, ...]

    def distance(prediction: Array, truth: Array) -> Array:
        error = jnp.square(prediction - truth).mean(axis=-1)
        return jnp.where(batch.extras["valid"], error, 0.0).mean()

    loss = distance(mean, batch.action)
    if not config.predict_next:
        return loss, {"policy/loss": loss}
    next_state, _, _ = returns_to_go.split(batch.next_observation, batch.action.shape[-1])
    next_target = target - config.return_scale * batch.reward  # [B, K]
    of_state = distance(following[..., :-1], next_state)
    of_return = distance(following[..., -1:], next_target[..., None])
    total = loss + config.state_weight * of_state + config.return_weight * of_return
    metrics = {"policy/loss": loss, "policy/state_loss": of_state, "policy/return_loss": of_return}
    return total, metrics


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update; the rate rises at first."""
    rate = config.learning_rate
    if config.warmup_updates is not None:
        rate = rate * jnp.minimum((step + 1) / config.warmup_updates, 1.0)
    optimiser = networks.optimiser(rate, step, config)
    policy, metrics = state.policy.step(optimiser, policy_loss, batch, config, key)
    return state.replace(policy=policy), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
