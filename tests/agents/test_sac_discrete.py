"""SAC for discrete actions against float64 NumPy written from the papers,
and what they promise of its parts.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.agent import MASK, EnvSpec, Part, Transition, Weighted
from rljax.agents import sac_discrete
from tests.agents import reference

ACTIONS = 4
SPEC = EnvSpec("test/Example-v0", (3,), ACTIONS, discrete=True)
MASKED = EnvSpec(
    "test/Masked-v0",
    (),
    ACTIONS,
    discrete=True,
    parts=(Part(MASK, (ACTIONS,), "bool"), Part("vector", (3,))),
)
CONFIG = sac_discrete.Config(
    hidden=(8, 8), batch_size=5, actor_lr=1e-2, critic_lr=2e-2, temperature_lr=3e-2, target_rate=0.1
)
KEY = jax.random.key(0)
PROBE: dict[str, Any] = {
    "init_temperature": 1e-3,  # so entropy hardly weighs
    "learn_temperature": False,
    # An observation of 0 moves the last bias alone, and a value of 10 is far for it.
    "num_updates": 2,
}


def transitions(seed: int = 0, spec: EnvSpec = SPEC) -> Transition:
    """A batch of every kind, with entropies of when actions were taken.

    Masks allow each row's own action.
    """
    batch, generator = reference.transitions(seed), np.random.default_rng(seed)
    action = generator.integers(ACTIONS, size=5)
    lack = jnp.asarray(generator.uniform(0.0, 0.3, 5), jnp.float32)
    batch = batch.replace(action=jnp.asarray(action, jnp.int32), extras={sac_discrete.LACK: lack})
    if not spec.masked:
        return batch
    masks = generator.random((2, 5, ACTIONS)) < 0.5
    masks[:, np.arange(5), action] = True
    observation, next_observation = (
        {MASK: jnp.asarray(mask), "vector": x}
        for mask, x in zip(masks, (batch.observation, batch.next_observation), strict=True)
    )
    return batch.replace(observation=observation, next_observation=next_observation)


def example() -> tuple[EnvSpec, sac_discrete.Config, Transition]:
    """What the contract's tests run on."""
    return SPEC, CONFIG, transitions()


def inner(network: networks.Network) -> networks.Network:
    """The network behind its encoder, which has no parameters of its own here."""
    network = networks.parameters_of(network)
    return network.replace(params=network.params.get("body", network.params))


class Reference:
    """Discrete soft actor-critic in float64; gradients of networks are by central differences of
    the losses.
    """

    def __init__(self, state: sac_discrete.State, config: sac_discrete.Config) -> None:
        self.config = config
        self.actor = reference.mlp(inner(state.actor))
        self.critics = reference.critics(inner(state.critic))
        self.targets = reference.critics(inner(state.target_critic))
        self.log_temperature = float(np.log(config.init_temperature))
        self.adams = [
            reference.Adam(rate)
            for rate in (config.actor_lr, config.critic_lr, config.temperature_lr)
        ]

    def inputs(self, observation: Any) -> tuple[np.ndarray, np.ndarray]:
        """Vectors [B, O], and which actions are allowed [B, A]."""
        if isinstance(observation, dict):
            return np.asarray(observation["vector"], np.float64), np.asarray(observation[MASK])
        return np.asarray(observation, np.float64), np.ones((len(observation), ACTIONS), bool)

    def soft_value(
        self, actor: Any, critics: Any, observation: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """sum_a pi(a|s) Q(s, a) + alpha H(pi) [B], summed over allowed actions alone, and H [B]."""
        vectors, allowed = self.inputs(observation)
        logits = reference.forward(actor, vectors)[0]
        each = np.stack([reference.forward(critic, vectors)[0] for critic in critics])
        q = each.min(axis=0) if self.config.reduction == "min" else each.mean(axis=0)
        values, entropies = [], []
        for row, mask in enumerate(allowed):
            x = np.exp(logits[row, mask] - logits[row, mask].max())
            p = x / x.sum()
            entropies.append(-(p * np.log(p)).sum())
            values.append((p * q[row, mask]).sum() + np.exp(self.log_temperature) * entropies[-1])
        return np.array(values), np.array(entropies)

    def update(self, batch: Transition, step: int) -> dict[str, float]:
        """One update; the metrics of the parts that moved."""
        config, rows = self.config, np.arange(len(batch.reward))
        reward, terminated, action = (
            np.asarray(x) for x in (batch.reward, batch.terminated, batch.action)
        )
        next_v = self.soft_value(self.actor, self.targets, batch.next_observation)[0]
        y = (
            config.reward_scale * reward.astype(np.float64)
            + config.discount * (1.0 - terminated) * next_v
        )
        vectors, allowed = self.inputs(batch.observation)

        def taken(critics: Any) -> np.ndarray:
            return np.stack(
                [reference.forward(critic, vectors)[0][rows, action] for critic in critics]
            )

        def critic_loss(critics: Any) -> float:
            q, old = taken(critics), taken(self.targets)
            error = (q - y) ** 2
            if config.clip_q is not None:
                near = old + np.clip(q - old, -config.clip_q, config.clip_q)
                error = np.maximum(error, (near - y) ** 2)
            return float(error.mean(axis=1).sum())

        metrics = {"critic/loss": critic_loss(self.critics), "critic/q": taken(self.critics).mean()}
        metrics["critic/target"] = y.mean()
        self.critics = self.adams[1].step(
            self.critics, reference.differences(critic_loss, self.critics)
        )

        if (step + 1) % config.policy_delay == 0:
            most = np.log(allowed.sum(axis=1))

            def actor_loss(actor: Any) -> float:
                value, entropy = self.soft_value(actor, self.critics, batch.observation)
                penalty = 0.0
                if config.entropy_penalty is not None:
                    old = most - np.asarray(batch.extras[sac_discrete.LACK], np.float64)
                    penalty = config.entropy_penalty * 0.5 * ((old - entropy) ** 2).mean()
                return float(penalty - value.mean())

            entropy = self.soft_value(self.actor, self.critics, batch.observation)[1].mean()
            metrics |= {"actor/loss": actor_loss(self.actor), "actor/entropy": entropy}
            self.actor = self.adams[0].step(
                self.actor, reference.differences(actor_loss, self.actor)
            )

            temperature, error = (
                np.exp(self.log_temperature),
                entropy - config.entropy_share * most.mean(),
            )
            own_form = config.temperature_loss == "alpha"
            factor, slope = (temperature, temperature) if own_form else (self.log_temperature, 1.0)
            metrics |= {"temperature/loss": factor * error, "temperature/value": temperature}
            if config.learn_temperature:
                self.log_temperature = self.adams[2].step(self.log_temperature, slope * error)

        self.targets = reference.towards(self.critics, self.targets, config.target_rate)
        return metrics


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "revisited": {
        "reduction": "mean",
        "clip_q": 0.2,
        "entropy_penalty": 0.5,
        "entropy_share": 0.98,
    },
    "paper's temperature, delay": {
        "temperature_loss": "alpha",
        "init_temperature": 0.3,
        "policy_delay": 2,
    },
    "fixed temperature, scaled rewards, three critics": {
        "learn_temperature": False,
        "init_temperature": 0.2,
        "reward_scale": 7.0,
        "num_critics": 3,
    },
    "masks": {"entropy_penalty": 0.5},
}

# Compiled once for all tests: a Config's floats are traced.
update = jax.jit(sac_discrete.update)
act = jax.jit(sac_discrete.act, static_argnames="explore")


def fresh(config: sac_discrete.Config, spec: EnvSpec = SPEC) -> sac_discrete.State:
    """A State to start from."""
    known = {
        "log_temperature": jnp.log(jnp.float32(config.init_temperature)),
        "action_size": ACTIONS,
    }
    return reference.state(sac_discrete, spec, config, **known)


@pytest.mark.parametrize("case", CASES)
def test_updates_equal_the_papers(case: str) -> None:
    config, spec = dataclasses.replace(CONFIG, **CASES[case]), MASKED if case == "masks" else SPEC
    sac_discrete.check(spec, config)
    state = fresh(config, spec)
    expected = Reference(state, config)
    for step in range(4):
        batch = transitions(step, spec)
        state, metrics = update(state, batch, KEY, step, config)
        reference.assert_metrics(metrics, expected.update(batch, step))
    reference.assert_same(reference.critics(inner(state.critic)), expected.critics, "critic")
    reference.assert_same(
        reference.critics(inner(state.target_critic)), expected.targets, "target_critic"
    )
    reference.assert_same(reference.mlp(inner(state.actor)), expected.actor, "actor")
    reference.assert_same(
        state.log_temperature.parameters, expected.log_temperature, "log_temperature"
    )


def test_losses_by_hand() -> None:
    batch = jax.tree.map(lambda x: x[:2], transitions())
    batch = batch.replace(
        reward=np.asarray([1.0, 2.0], np.float32), terminated=np.array([False, True])
    )
    config = dataclasses.replace(CONFIG, discount=0.5, reward_scale=10.0)
    state = fresh(CONFIG).replace(
        actor=lambda observation: jnp.log(jnp.array([[0.5, 0.25, 0.25]] * 2)),
        target_critic=lambda *inputs: jnp.array([[[4.0, 8.0, 0.0]] * 2, [[6.0, 4.0, 8.0]] * 2]),
        critic=lambda *inputs: jnp.array([[[4.0, 8.0, 0.0]] * 2, [[6.0, 4.0, 8.0]] * 2]),
        log_temperature=networks.Trained(jnp.log(2.0), None),
        action_size=3,
    )
    entropy = 1.5 * np.log(2.0)
    # min_c Q' = (4, 4, 0): V = 2 + 1 + 2 H, y = (10 + V / 2, 20)
    critic: Any = lambda observation, action: jnp.array([[12.0, 20.0], [12.0, 23.0]])  # noqa: E731
    loss, metrics = sac_discrete.critic_loss(critic, state, batch, config)
    y = np.array([10.0 + (3.0 + 2.0 * entropy) / 2.0, 20.0])
    np.testing.assert_allclose(metrics["critic/target"], y.mean(), rtol=1e-6)
    np.testing.assert_allclose(loss, (12.0 - y[0]) ** 2 + 9.0 / 2.0, rtol=1e-5)
    loss, metrics = sac_discrete.actor_loss(state.actor, state, batch, config)
    np.testing.assert_allclose(
        [loss, metrics["actor/entropy"]], [-3.0 - 2.0 * entropy, entropy], rtol=1e-6
    )


def test_only_termination_cuts_the_bootstrap() -> None:
    state, batch = fresh(CONFIG), transitions()
    never, always = np.zeros(5, bool), np.ones(5, bool)

    def target(**flags: np.ndarray) -> Any:
        return sac_discrete.critic_loss(state.critic, state, batch.replace(**flags), CONFIG)[1][
            "critic/target"
        ]

    assert target(terminated=never, truncated=always) == target(terminated=never, truncated=never)
    np.testing.assert_allclose(
        target(terminated=always, truncated=never), batch.reward.mean(), rtol=1e-6
    )


@jax.jit
def gradients(state: sac_discrete.State, batch: Transition) -> Any:
    """Of the critics' loss in all that it reads, and of the actor's loss in the actor."""

    def loss(critic: Any, actor: Any, target_critic: Any, log_temperature: Any) -> Any:
        temperature = state.log_temperature.replace(parameters=log_temperature)
        whole = state.replace(actor=actor, target_critic=target_critic, log_temperature=temperature)
        return sac_discrete.critic_loss(critic, whole, batch, CONFIG)[0]

    actor = state.actor.parameters
    parts = (state.critic.parameters, actor, state.target_critic, state.log_temperature.parameters)
    of_actor = jax.grad(lambda actor: sac_discrete.actor_loss(actor, state, batch, CONFIG)[0])(
        actor
    )
    return jax.grad(loss, argnums=(0, 1, 2, 3))(*parts), of_actor


def test_critic_loss_teaches_the_critic_alone() -> None:
    own, *others = gradients(fresh(CONFIG), transitions())[0]
    assert all(np.any(leaf) for leaf in jax.tree.leaves(own))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(others))


def test_forbidden_actions_are_never_taken_and_teach_nothing() -> None:
    state, batch = fresh(CONFIG, MASKED), transitions(0, MASKED)
    several = jax.tree.map(lambda x: jnp.broadcast_to(x, (50, *x.shape)), batch.observation)
    for explore in (False, True):
        action = np.asarray(act(state, several, KEY, CONFIG, explore=explore)[0])
        assert np.take_along_axis(np.asarray(several[MASK]), action[..., None], axis=-1).all()
    assert len(np.unique(action)) > 1
    assert not np.asarray(batch.observation[MASK]).all()

    # One allowed action in some states, and none in others, as it may be where an episode has
    # ended.
    mask = np.zeros((5, ACTIONS), bool)
    mask[:3, 2] = True
    batch = batch.replace(next_observation=batch.next_observation | {MASK: mask})
    for leaf in jax.tree.leaves(gradients(state, batch)):
        assert np.isfinite(leaf).all()
    mask[:, 2] = True
    alone = batch.replace(observation=batch.observation | {MASK: mask})
    bias = gradients(state, alone)[1].params["body"]["output"]["bias"]
    np.testing.assert_array_equal(bias, 0.0)  # nothing is to be chosen
    new, metrics = update(state, alone, KEY, 0, CONFIG)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(new))
    np.testing.assert_allclose(
        [metrics["actor/entropy"], metrics["temperature/loss"]], 0.0, atol=1e-6
    )


@pytest.mark.parametrize("explore", [False, True])
def test_act_samples_the_policy_or_takes_its_mode(explore: bool) -> None:
    config = dataclasses.replace(CONFIG, entropy_penalty=0.5)
    state, observation = fresh(config), reference.observed()[:6]
    logits = reference.forward(reference.mlp(state.actor), np.asarray(observation, np.float64))[0]
    several = np.broadcast_to(observation, (4_000, 6, 3))
    action, extras = act(state, several, KEY, config, explore=explore)
    share = np.stack([(np.asarray(action) == a).mean(axis=0) for a in range(ACTIONS)], axis=1)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = p if explore else np.eye(ACTIONS)[logits.argmax(axis=1)]
    np.testing.assert_allclose(share, expected, atol=0.04)
    assert extras.keys() == ({sac_discrete.LACK} if explore else set())
    for lack in extras.values():
        np.testing.assert_allclose(
            lack[0], np.log(ACTIONS) + (p * np.log(p)).sum(axis=1), rtol=1e-3, atol=1e-5
        )


def test_delayed_actor_and_temperature_rest() -> None:
    config = dataclasses.replace(CONFIG, **CASES["paper's temperature, delay"])
    old = fresh(config)
    for step in range(2):
        new, metrics = update(old, transitions(), KEY, step, config)
        for part in ("actor", "log_temperature"):
            pairs = zip(
                *map(jax.tree.leaves, (getattr(old, part), getattr(new, part))), strict=True
            )
            assert any(np.any(np.asarray(x) != np.asarray(y)) for x, y in pairs) == (
                step % 2 == 1
            ), part
        assert isinstance(metrics["actor/loss"], Weighted)
        assert metrics["actor/loss"].weight == step % 2


def test_takes_pictures() -> None:
    spec = EnvSpec(
        "test/Pictures-v0", (10, 10, 4), ACTIONS, discrete=True, observation_dtype="uint8"
    )
    sac_discrete.check(spec, CONFIG)
    picture = np.zeros((5, 10, 10, 4), np.uint8)
    batch = transitions().replace(observation=picture, next_observation=picture)
    state = jax.eval_shape(lambda key: sac_discrete.init(key, spec, CONFIG), KEY)
    new = jax.eval_shape(sac_discrete.update, state, batch, KEY, 0, CONFIG)[0]
    assert jax.tree.structure(new) == jax.tree.structure(state)
    assert state.actor.parameters.params["encoder"]["pictures"]["dense"]["bias"].shape == (128,)
    with pytest.raises(
        ValueError, match=r"^--config\.encoder nature needs pictures of at least 36 x 36"
    ):
        sac_discrete.check(spec, dataclasses.replace(CONFIG, encoder="nature"))


def test_refuses_other_actions() -> None:
    with pytest.raises(
        ValueError, match=r"^agent 'sac_discrete' chooses among .* Use: rljax train sac --env Pend"
    ):
        sac_discrete.check(EnvSpec("Pendulum-v1", (3,), 1), CONFIG)
    with pytest.raises(
        ValueError, match=r"^agent 'sac_discrete' takes one discrete action at a time"
    ):
        sac_discrete.check(EnvSpec("Several-v0", (3,), 5, discrete=True, choices=(2, 3)), CONFIG)


def test_entropies_of_old_actions_are_needed_for_their_penalty() -> None:
    config = dataclasses.replace(CONFIG, entropy_penalty=0.5)
    with pytest.raises(
        ValueError, match=r"^--config\.entropy-penalty needs experience of .* out with --data\."
    ):
        sac_discrete.update(
            fresh(config), transitions().replace(extras={}), KEY, jnp.zeros((), jnp.int32), config
        )


def test_rewards_can_be_clipped_as_in_cleanrls_games() -> None:
    """cleanrl fe8d8a03, sac_atari.py: env = ClipRewardEnv(env), the sign of a game's score."""
    declared = sac_discrete.experience(dataclasses.replace(CONFIG, clip_rewards=True))
    step: Any = types.SimpleNamespace(
        reward=jnp.array([-7.0, 0.0, 200.0]),
        **dict.fromkeys(("terminated", "truncated", "next_observation"), jnp.zeros(3)),
    )
    stored = declared.transition(jnp.zeros(3), jnp.zeros(3, jnp.int32), {}, step)
    np.testing.assert_array_equal(stored.reward, [-1.0, 0.0, 1.0])
