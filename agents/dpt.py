"""Decision-Pretrained Transformer [offline]: learns in context what is optimal in a new task.

s state, a action, s' successor, r reward, a* optimal action, D_j the first j of
H transitions (s, a, s', r) of a task, f a causal transformer
  x_0 = W [s_query, 0],  x_i = W [s_i, a_i, s'_i, r_i]    each + e_i of its place
  f_j = the j-th output, which sees x_0 to x_j
  L   = sum_j -log softmax(f_j)[a*(s_query)],  j = 1 to H  "optimal" [1, eq. 2]
  L   = sum_j -log softmax(f_j)[a_(j+1)],  j = 0 to H      "data" [2, eq. 3]

"optimal" has transitions in random order, and one of them as the query. "data"
is algorithm distillation [2]: the data are histories of an algorithm that
learns, s_query is the first state, and s'_j the one in which a_(j+1) is taken.
Acts by f_j of the last j transitions of a lifetime, `lifetime-N/`. With
"optimal" they are those of the episodes that have ended, and s_query is now.

Departs from [1]: each context has many queries, and a transition that ends an
episode is not seen; from [2]: a transition is one token, as in [1].

[1] Lee et al., DPT, arXiv:2306.14892; jon--lee/decision-pretrained-transformer
[2] Laskin et al., AD, arXiv:2210.14215
[3] Chen et al., LHF, arXiv:2505.15143
[4] Wu et al., T2MIR, arXiv:2506.05426

  rljax data record rljax/DarkRoom-10x10 darkroom.npz
  rljax train dpt --data darkroom.npz --env lifetime-10/rljax/DarkRoom-10x10-test
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from rljax import agent, buffers, networks
from rljax.agent import Array, EnvSpec, Loss, Metrics, Transition
from rljax.networks.layers import Dense, Dropout, Module
from rljax.networks.recurrent import contexts, experts, transformer
from rljax.requirements import Count, DropoutRate, NonNegative


@agent.config
class Config(experts.WithExperts, networks.WithSchedule):
    """Hyperparameters."""

    acting = agent.Acting(settings=("episode_steps", "sampled"))

    # Optimisation
    learning_rate: NonNegative = 1e-3  # of Adam; [1]
    batch_size: int = 64  # contexts per update; [1]
    weight_decay: NonNegative | None = 1e-4  # in each step, times the learning rate; [1]
    # Data
    imitates: Literal["optimal", "data"] = "optimal"  # actions to learn; "data": [2]
    context_length: Count = 100  # H, in transitions; [1]
    history_stability: NonNegative | None = None  # lambda of [3]; None: all alike, 1: [3]
    normalise_observations: bool = False  # by mean and std; [1]
    num_updates: int = 1  # updates per iteration
    # Policy
    episode_steps: Count = 1  # steps of an episode within a lifetime; dark room: 100
    sampled: bool = True  # evaluations draw actions by their probability; [1]
    # Network
    width: Count = 32  # of tokens; [1]
    layers: Count = 4  # blocks; [1]
    heads: Count = 1  # of the attention; [1]
    dropout: DropoutRate | None = None  # of tokens, attention and blocks; [1]


class State(struct.PyTreeNode):
    """What learning changes."""

    policy: networks.Trained  # Policy
    target_gate: Any  # of task experts, if there are any


class Policy(Module):
    """f: a query and transitions to logits."""

    action_size: int
    width: int
    layers: int
    heads: int
    experts: experts.Sizes | None

    @nn.compact
    def __call__(
        self,
        rows: Array,
        dropout: Dropout | None = None,
        trains: experts.GateTraining | None = None,
    ) -> tuple[Array, experts.Losses]:
        """Logits [..., H + 1, A] of a query and H transitions [..., H + 1, 2 O + A + 1]."""
        number = rows.shape[-2]
        initialise = nn.initializers.normal(transformer.STD)
        places = self.param("place", initialise, (number, self.width))
        x = Dense(self.width, name="input")(rows) + places
        f = transformer.gpt2(self.layers, self.heads, self.experts, name="transformer")
        x, losses = f.with_losses(x, jnp.ones(x.shape[:-1], bool), dropout, trains)
        return Dense(self.action_size, name="output")(x), losses


def experience(config: Config) -> buffers.Dataset:
    """Pieces of lifetimes: H transitions, and one more."""
    imitates_data = config.imitates == "data"
    draw = buffers.Contexts(
        length=config.context_length + 1,
        shuffled=not imitates_data,
        imitates_data=imitates_data,
        episode_steps=config.episode_steps,
        stability=config.history_stability,
        pairs=config.task_experts > 0,
    )
    return buffers.Dataset.of(config, draw=draw, last_step=True)


def check(spec: EnvSpec, config: Config) -> None:
    """Raise `ValueError` for what does not fit."""
    agent.require_vectors("dpt", spec)
    agent.require_discrete("dpt", spec, "dt")
    experts.check(config, config.width, config.batch_size)
    if config.width % config.heads:
        raise ValueError(
            f"--config.width {config.width} is not a multiple of --config.heads {config.heads}."
        )


def init(key: Array, spec: EnvSpec, config: Config) -> State:
    """Fresh parameters."""
    sizes = (spec.action_size, config.width, config.layers, config.heads)
    module = Policy(*sizes, config.sizes)
    rows = contexts.context(spec, config.context_length + 1).recent.rows
    policy = networks.create(module, key, rows)
    return State(
        policy=networks.trained(policy, config.learning_rate, config),
        target_gate=experts.target_gate(policy.params["transformer"]),
    )


def remember(spec: EnvSpec, config: Config) -> contexts.Context:
    """Nothing of a lifetime."""
    return contexts.context(spec, config.context_length)


def act(
    state: State,
    observation: Array,
    key: Array,
    config: Config,
    explore: bool,
    memory: contexts.Context,
) -> tuple[Array, dict, contexts.Context]:
    """Actions [...] for observations [..., O] with the last action and reward."""
    imitates_data = config.imitates == "data"
    memory = memory.after(observation, 1 if imitates_data else config.episode_steps)
    seen, now = memory.seen, memory.state
    if imitates_data:
        first = seen.rows[..., 0, : now.shape[-1]]
        now = jnp.where(seen.number[..., None] > 0, first, now)
    logits, _ = output(state.policy, now, seen.rows)
    place = seen.number[..., None, None]
    logits = jnp.take_along_axis(logits, place, axis=-2)[..., 0, :]
    if explore or config.sampled:
        return jax.random.categorical(key, logits), {}, memory
    return jnp.argmax(logits, axis=-1), {}, memory


def output(policy: Any, state: Array, rows: Array, **training: Any) -> tuple[Array, experts.Losses]:
    """f_0 to f_H [..., H + 1, A] of a query [..., O] and H transitions."""
    action_size = rows.shape[-1] - 2 * state.shape[-1] - 1
    query = contexts.query(state, action_size)[..., None, :]
    return policy(jnp.concatenate([query, rows], axis=-2), **training)


# [1, eq. 2; train.py]; [2, eq. 3]; [4, train.py]
def policy_loss(
    policy: networks.Network, state: State, batch: Transition, config: Config, key: Array
) -> Loss:
    """Cross-entropy of the actions after each number of transitions."""
    action_size = policy.params["output"]["kernel"].shape[-1]
    size = batch.next_observation.shape[-1] - action_size - 1
    now, successor = (x[..., :size] for x in (batch.observation, batch.next_observation))
    action = jax.nn.one_hot(batch.action, action_size)
    rows = contexts.packed(now, action, successor, batch.reward)[:, :-1]
    training = {
        "dropout": Dropout.of(config.dropout, key, 0),
        "trains": experts.training(state.target_gate, key),
    }
    if config.imitates == "data":
        logits, losses = output(policy, now[:, 0], rows, **training)  # [B, H + 1, A]
        target = batch.action
    else:
        logits, losses = output(policy, now[:, -1], rows, **training)
        logits = logits[:, 1:]
        target = batch.extras[buffers.OPTIMAL_ACTION][:, -1:].astype(jnp.int32)
    log_probs = jax.nn.log_softmax(logits)
    target = jnp.broadcast_to(target, log_probs.shape[:-1])[..., None]
    log_prob = jnp.take_along_axis(log_probs, target, axis=-1)[..., 0]
    metrics = {
        "policy/loss": -log_prob.mean(),
        "policy/last_loss": -log_prob[:, -1].mean(),
    }
    if config.token_experts:
        metrics |= {"policy/balance": losses.balance, "policy/contrast": losses.contrast}
    return log_prob.size * (losses.total(config) - log_prob.mean()), metrics


def update(
    state: State, batch: Transition, key: Array, step: Array, config: Config
) -> tuple[State, Metrics]:
    """One update."""
    optimiser = networks.optimiser(config.learning_rate, step, config)
    policy, metrics = state.policy.step(optimiser, policy_loss, state, batch, config, key)
    params = policy.parameters.params["transformer"]
    target_gate = experts.followed(state.target_gate, params, config.gate_rate)
    return State(policy, target_gate), metrics


if __name__ == "__main__":
    from rljax import cli

    cli.train_file(__file__)
