"""Policies that several agents share.

On-policy agents clip raw actions to [-1, 1], with log-probabilities of the raw ones, or squash
them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from rljax import networks
from rljax.agent import Array, EnvSpec, Number, choose, config, mask_of, same_fields
from rljax.networks import distributions
from rljax.networks.distributions import Actor
from rljax.networks.layers import MLP, Module, Network
from rljax.requirements import LogStd, NonNegative, Real, require_order, require_range

Kind = Literal["gaussian", "tanh_gaussian"]  # of continuous actions


@dataclasses.dataclass(frozen=True)
class RawActions:
    """An environment's raw actions, and how a network's output describes them."""

    spec: EnvSpec
    squashed: bool = False  # actions are tanh of a Gaussian

    @classmethod
    def of(cls, spec: EnvSpec, kind: Kind = "gaussian") -> RawActions:
        """Those of an environment. Choices are not squashed."""
        return cls(spec, kind == "tanh_gaussian" and not (spec.discrete or spec.choices))

    @property
    def features(self) -> int:
        """Outputs of the actor's network: means or logits, and deviations where squashed."""
        return self.spec.action_size * (2 if self.squashed else 1)

    def log_std(self, value: Number) -> Array | None:
        """Log std [A] of all states; None for discrete and for squashed actions."""
        if self.spec.discrete or self.squashed:
            return None
        return jnp.full(self.spec.numbers, value, jnp.float32)

    def distribution(
        self, output: Array, log_std: Array | None, mask: Array | None = None
    ) -> distributions.Distribution:
        """pi(.|s) for outputs [..., `features`]; `mask` [..., A] says which discrete actions are
        allowed.
        """
        if self.squashed:
            mean, deviation = jnp.split(output, 2, axis=-1)
            std = jax.nn.softplus(deviation) + 1e-3  # Brax's lower limit
            return distributions.gaussian(mean, std)
        if log_std is None:
            return distributions.discrete(output, self.spec.choices, mask)
        return distributions.gaussian_beside(output, jnp.exp(log_std), self.spec.choices)

    def actor(self, network: Network, log_std: Number) -> Actor:
        """The parameters of a policy: `network` maps [O] to [`features`]."""
        return Actor(network, self.log_std(log_std), self.spec.discrete, self.spec.choices)

    def policy(self, actor: Actor, observation: Any) -> distributions.Distribution:
        """pi(.|s) for observations [..., O...], which may hold a mask."""
        return self.distribution(actor.mean(observation), actor.log_std, mask_of(observation))

    def emit(self, raw: Any) -> Array:
        """The action that the environment gets."""
        return jnp.tanh(raw) if self.squashed else distributions.clipped(raw, self.spec)

    def log_prob(self, pi: distributions.Distribution, raw: Any) -> Array:
        """log pi(a|s) [...] of raw actions [..., A] or [...]."""
        density: Any = pi.log_prob(raw)
        return density - distributions.tanh_log_slope(raw) if self.squashed else density

    def entropy(self, pi: distributions.Distribution, key: Array) -> Array:
        """H(pi(.|s)) [...]; where squashed, an estimate by one sample."""
        entropy: Any = pi.entropy()
        if not self.squashed:
            return entropy
        sample: Any = pi.sample(seed=key)
        return entropy + distributions.tanh_log_slope(sample)


@config
class WithImitation:
    """Settings of imitations of data: a base of an agent's Config."""

    log_std_min: LogStd = -5.0  # lower clip of log std; arXiv:2110.06169
    log_std_max: LogStd = 2.0  # upper clip of log std; arXiv:2110.06169
    exploration_noise: NonNegative = 0.03  # std around a deterministic policy; CORL
    dropout: float | None = None  # of the actor's hidden units; IQL on Adroit: 0.1


class Imitation(NamedTuple):
    """A policy that imitates actions of data.

    It is a softmax, deterministic, or a Gaussian around tanh of the output with one std for all
    states; without `squashes` around the output, with clipped actions.
    """

    log_std_min: Any
    log_std_max: Any
    exploration_noise: Any
    dropout: Any
    squashes: bool = True  # a Gaussian's mean; a deterministic policy always does

    @classmethod
    def of(cls, config: Any, **others: Any) -> Imitation:
        """By a Config, with `others` in place of its fields."""
        return cls(**same_fields(config, cls._fields) | others)

    def check(self) -> None:
        """Raise `ValueError` for settings that do not fit each other."""
        require_order(self, "log_std_min", "log_std_max")
        if self.dropout is not None:
            require_range(self, dropout=(0, 0.99))

    def mean(
        self, actor: Actor, observation: Any, dropout: networks.Dropout | None = None
    ) -> Array:
        """mu(s) [..., A] for observations [..., O...]."""
        mean = actor.mean(observation, dropout=dropout)
        return jnp.tanh(mean) if self.squashes or actor.log_std is None else mean

    def choice(
        self, actor: Actor, observation: Any, dropout: networks.Dropout | None = None
    ) -> distributions.Distribution:
        """The policy over allowed discrete actions for observations [..., O...]."""
        logits = actor.mean(observation, dropout=dropout)
        return distributions.discrete(logits, actor.choices, mask_of(observation))

    def std(self, actor: Actor) -> Number:
        """The policy's std [A], or that [] of noise around a deterministic one."""
        if actor.log_std is None:
            return self.exploration_noise
        return jnp.exp(jnp.clip(actor.log_std, self.log_std_min, self.log_std_max))

    def act(self, actor: Actor, observation: Any, key: Array, explore: bool) -> Array:
        """Actions [..., A] or [...]: a sample to explore, else the mean or mode."""
        if actor.discrete:
            pi = self.choice(actor, observation)
            action = pi.sample(seed=key) if explore else pi.mode()
            return jnp.asarray(action, jnp.int32)
        action = self.mean(actor, observation)
        if not explore:
            return action if self.squashes else jnp.clip(action, -1.0, 1.0)
        noise = self.std(actor) * jax.random.normal(key, action.shape)
        return jnp.clip(action + noise, -1.0, 1.0)

    def distance(self, actor: Actor, observation: Any, action: Array, key: Array) -> Array:
        """-log pi(a|s) [B], or |mu(s) - a|^2 of a deterministic policy; `key` is for dropout."""
        dropout = None if self.dropout is None else networks.Dropout(key, self.dropout)
        if actor.discrete:
            return jnp.negative(self.choice(actor, observation, dropout).log_prob(action))
        mean = self.mean(actor, observation, dropout)
        if actor.log_std is None:
            return jnp.square(mean - action).sum(axis=-1)
        pi = distributions.gaussian(mean, jnp.asarray(self.std(actor)))
        return jnp.negative(pi.log_prob(action))


def create_actor(spec: EnvSpec, module: nn.Module, key: Array, gaussian: bool = True) -> Actor:
    """A fresh actor of a network [O...] -> [A], deterministic unless `gaussian` or discrete."""
    network = networks.create(module, key, spec.example())
    log_std = jnp.zeros(spec.action_size) if gaussian and not spec.discrete else None
    return Actor(network, log_std, spec.discrete, spec.choices)


@config
class WithPolicyNetwork:
    """Settings of a squashed Gaussian's network: a base of an agent's Config."""

    actor_layer_norm: bool = False  # of the actor's hidden layers; True in WSRL
    state_dependent_std: bool = True  # False: one std for all states; WSRL on AntMaze


def gaussian_network(
    hidden: tuple[int, ...],
    spec: EnvSpec,
    settings: WithPolicyNetwork,
    activation: networks.Activation,
    initialisation: networks.Initialisation,
) -> nn.Module:
    """A network of means and log stds: [O...] -> [2 A]."""
    features = spec.action_size * (2 if settings.state_dependent_std else 1)
    norm = settings.actor_layer_norm
    network = MLP(hidden, features, activation, initialisation, layer_norm=norm)
    return network if settings.state_dependent_std else MeanAndSharedStd(network, features)


class MeanAndSharedStd(Module):
    """Means by a network, and one log std for all states, which begins at 0."""

    mean: nn.Module
    action_size: int

    @nn.compact
    def __call__(self, *inputs: Array) -> Array:
        """Means and log stds [..., 2 A] for inputs [..., I_1], [..., I_2], ..."""
        mean = self.mean(*inputs)
        log_std = self.param("log_std", nn.initializers.zeros_init(), (self.action_size,))
        return jnp.concatenate([mean, jnp.broadcast_to(log_std, mean.shape)], axis=-1)


def with_output_scale(network: Network, scale: float) -> Network:
    """A network of means whose output layer has its kernel and bias times `scale`."""
    output = jax.tree.map(lambda x: scale * x, network.params["output"])
    return network.replace(params=network.params | {"output": output})


def unit_action(mean: Array, key: Array, explore: bool) -> Array:
    """Actions [..., A] of N(mean, 1), or the mean, within [-1, 1]."""
    if explore:
        mean += jax.random.normal(key, mean.shape)
    return jnp.clip(mean, -1.0, 1.0)


def unit_distance(mean: Array, action: Array) -> Array:
    """-log N(a; mean, 1) [B] of actions [B, A]."""
    pi = distributions.gaussian(mean, jnp.ones(()))
    return jnp.negative(pi.log_prob(action))


@config
class WithEdits:
    """Settings of policies that change another policy's actions: a base of an agent's Config."""

    edit_scale: NonNegative = 0.1  # of the largest change; arXiv:2601.14234: 0.1 to 0.9
    target_entropy_share: Real = 0.5  # of -A, the target; arXiv:2601.14234
    log_std_min: LogStd = -20.0  # lower clip of log std; arXiv:2601.14234
    log_std_max: LogStd = 2.0  # upper clip of log std; arXiv:2601.14234


def edited(output: Array, action: Array, key: Array, settings: WithEdits) -> tuple[Array, Array]:
    """clip(a + scale b) [..., A] for actions a [..., A], and log e(b|s, a) [...].

    The outputs [..., 2 A] are means and log stds of a Gaussian whose tanh is b.
    """
    change, log_prob = distributions.squashed(output, settings).sample_and_log_prob(seed=key)
    return jnp.clip(action + settings.edit_scale * change, -1.0, 1.0), jnp.asarray(log_prob)


def chunk_spec(spec: EnvSpec, length: int) -> EnvSpec:
    """The spaces of a policy whose action is a chunk, `length` actions side by side: [h A]."""
    return dataclasses.replace(spec, action_size=length * spec.action_size)


def first_chunk(spec: EnvSpec, length: int) -> Any:
    """The memory of a policy that plays chunks, where an episode begins; None for single actions.

    All actions of it are played: a decision follows.
    """
    if length == 1:
        return None
    actions = jnp.zeros((length, *spec.action_shape))
    return {"actions": actions, "played": jnp.asarray(length, jnp.int32)}


def play(decide: Callable[[], Array], memory: Any, length: int) -> tuple[Array, Any]:
    """The next actions [..., A] of chunks, and the next memory; where all `length` actions are
    played, of new chunks [..., h A] by `decide`.

    Without a memory, the first actions of new chunks.
    """

    def new() -> Array:
        chunk = decide()
        return chunk.reshape(*chunk.shape[:-1], length, -1)  # [..., h, A]

    if memory is None:
        return new()[..., 0, :], None
    is_over = memory["played"] == length
    actions = jax.lax.cond(is_over.any(), new, lambda: memory["actions"])
    actions = choose(is_over, actions, memory["actions"])
    played = jnp.where(is_over, 0, memory["played"])
    action = jnp.take_along_axis(actions, played[..., None, None], axis=-2)
    return action[..., 0, :], {"actions": actions, "played": played + 1}


def act_in_chunks(decide: Callable[[], Array], memory: Any, length: int) -> tuple[Array, dict, Any]:
    """What `act` returns for a policy that plays chunks without extras; see `play`."""
    action, memory = play(decide, memory, length)
    return action, {}, memory


def refuse_chunks(length: int) -> None:
    """Raise `ValueError` for the value of one action, where critics judge chunks."""
    if length > 1:
        raise ValueError(
            f"critics with --config.chunk-length {length} judge chunks, not single actions: this "
            "needs an agent with --config.chunk-length 1."
        )
