"""SAC for discrete actions against float64 NumPy written from the papers."""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from rljax import networks
from rljax.agent import MASK, EnvSpec, Transition
from rljax.agents import sac_discrete
from tests.agents import actor_critic, reference

ACTIONS = 4
SPEC = EnvSpec("test/Example-v0", (3,), ACTIONS, discrete=True)
MASKED = reference.masked_spec(ACTIONS)
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
    batch, generator = reference.choices(ACTIONS, seed), np.random.default_rng(seed)
    lack = jnp.asarray(generator.uniform(0.0, 0.3, 5), jnp.float32)
    batch = batch.replace(extras={sac_discrete.LACK: lack})
    if not spec.masked:
        return batch
    masks = generator.random((2, 5, ACTIONS)) < 0.5
    masks[:, np.arange(5), batch.action] = True
    return reference.masked(batch, *masks)


def example() -> tuple[EnvSpec, sac_discrete.Config, Transition]:
    return SPEC, CONFIG, transitions()


class Reference(actor_critic.SAC):
    """Discrete soft actor-critic in float64; gradients of networks are by central differences of
    the losses.
    """

    def inputs(self, observation: Any) -> tuple[np.ndarray, np.ndarray]:
        """Vectors [B, O], and which actions are allowed [B, A]."""
        if isinstance(observation, dict):
            return observation["vector"], observation[MASK]
        return observation, np.ones((len(observation), ACTIONS), bool)

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
            p = softmax(logits[row, mask])
            entropies.append(-(p * np.log(p)).sum())
            values.append((p * q[row, mask]).sum() + self.temperature * entropies[-1])
        return np.array(values), np.array(entropies)

    def update(self, batch: Transition, key: Any, step: int) -> dict[str, float]:
        config, rows, action = self.config, np.arange(len(batch.reward)), batch.action
        next_v = self.soft_value(self.actor, self.target_critic, batch.next_observation)[0]
        y = self.bootstrapped(batch, next_v)
        vectors, allowed = self.inputs(batch.observation)

        def taken(critics: Any) -> np.ndarray:
            each = [reference.forward(critic, vectors)[0] for critic in critics]
            return np.stack(each)[:, rows, action]

        def critic_loss(critics: Any) -> float:
            q, old = taken(critics), taken(self.target_critic)
            error = (q - y) ** 2
            if config.clip_q is not None:
                near = old + np.clip(q - old, -config.clip_q, config.clip_q)
                error = np.maximum(error, (near - y) ** 2)
            return float(error.mean(axis=1).sum())

        metrics = {"critic/loss": critic_loss(self.critic), "critic/q": taken(self.critic).mean()}
        metrics["critic/target"] = y.mean()
        self.move("critic", reference.differences(critic_loss, self.critic))

        if self.is_due(step):
            most = np.log(allowed.sum(axis=1))

            def actor_loss(actor: Any) -> float:
                value, entropy = self.soft_value(actor, self.critic, batch.observation)
                penalty = 0.0
                if config.entropy_penalty is not None:
                    old = most - batch.extras[sac_discrete.LACK]
                    penalty = config.entropy_penalty * 0.5 * ((old - entropy) ** 2).mean()
                return float(penalty - value.mean())

            entropy = self.soft_value(self.actor, self.critic, batch.observation)[1].mean()
            metrics["actor/loss"] = actor_loss(self.actor)
            self.move("actor", reference.differences(actor_loss, self.actor))
            # Of a continuous policy the target is minus a share.
            metrics |= self.cool(entropy, -config.entropy_share * most.mean())
        self.follow("critic")
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

update = jax.jit(sac_discrete.update)
act = jax.jit(sac_discrete.act, static_argnames="explore")


def fresh(config: sac_discrete.Config, spec: EnvSpec = SPEC) -> sac_discrete.State:
    """A State to start from."""
    return reference.state(sac_discrete, spec, config, action_size=ACTIONS)


@pytest.mark.parametrize("case", CASES)
def test_updates_equal_the_papers(case: str) -> None:
    config, spec = dataclasses.replace(CONFIG, **CASES[case]), MASKED if case == "masks" else SPEC
    sac_discrete.check(spec, config)
    batches = functools.partial(transitions, spec=spec)
    reference.assert_updates(update, fresh(config, spec), config, Reference, batches)


def test_losses_by_hand() -> None:
    batch = reference.two_rows()
    config = dataclasses.replace(CONFIG, discount=0.5, reward_scale=10.0)
    values = lambda *inputs: jnp.array([[[4.0, 8.0, 0.0]] * 2, [[6.0, 4.0, 8.0]] * 2])  # noqa: E731
    state = fresh(CONFIG).replace(
        actor=lambda observation: jnp.log(jnp.array([[0.5, 0.25, 0.25]] * 2)),
        target_critic=values,
        critic=values,
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
    values = [loss, metrics["actor/entropy"]]
    np.testing.assert_allclose(values, [-3.0 - 2.0 * entropy, entropy], rtol=1e-6)


def test_only_termination_cuts_the_bootstrap() -> None:
    reference.assert_only_termination_cuts_the_bootstrap(
        update, fresh(CONFIG), CONFIG, transitions()
    )


def test_critic_loss_teaches_the_critic_alone() -> None:
    batch = transitions()
    reference.assert_teaches_the_critic_alone(
        lambda critic, state: sac_discrete.critic_loss(critic, state, batch, CONFIG)[0],
        fresh(CONFIG),
    )


def assert_finite(tree: Any) -> None:
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


def test_forbidden_actions_are_never_taken_and_teach_nothing() -> None:
    state, batch = fresh(CONFIG, MASKED), transitions(0, MASKED)
    several = jax.tree.map(lambda x: jnp.broadcast_to(x, (50, *x.shape)), batch.observation)
    for explore in (False, True):
        action = np.asarray(act(state, several, KEY, CONFIG, explore=explore)[0])
        assert np.take_along_axis(np.asarray(several[MASK]), action[..., None], axis=-1).all()
    assert len(np.unique(action)) > 1
    assert not np.asarray(batch.observation[MASK]).all()

    # One allowed action in some states, and none in others, as where an episode has ended.
    mask = np.zeros((5, ACTIONS), bool)
    mask[:3, 2] = True
    batch = batch.replace(next_observation=batch.next_observation | {MASK: mask})
    assert_finite(update(state, batch, KEY, 0, CONFIG)[0])
    mask[:, 2] = True
    alone = batch.replace(observation=batch.observation | {MASK: mask})
    gradient = jax.grad(sac_discrete.actor_loss, has_aux=True)
    slope = gradient(state.actor.parameters, state, alone, CONFIG)[0]
    bias = slope.params["body"]["output"]["bias"]
    np.testing.assert_array_equal(bias, 0.0)  # nothing is to be chosen
    new, metrics = update(state, alone, KEY, 0, CONFIG)
    assert_finite(new)
    values = [metrics["actor/entropy"], metrics["temperature/loss"]]
    np.testing.assert_allclose(values, 0.0, atol=1e-6)


@pytest.mark.parametrize("explore", [False, True])
def test_act_samples_the_policy_or_takes_its_mode(explore: bool) -> None:
    config = dataclasses.replace(CONFIG, entropy_penalty=0.5)
    state, observation = fresh(config), reference.observed()[:6]
    logits = reference.forward(reference.mlp(state.actor), observation)[0]
    several = np.broadcast_to(observation, (4_000, 6, 3))
    action, extras = act(state, several, KEY, config, explore=explore)
    share = np.stack([(np.asarray(action) == a).mean(axis=0) for a in range(ACTIONS)], axis=1)
    p = softmax(logits, axis=1)
    expected = p if explore else np.eye(ACTIONS)[logits.argmax(axis=1)]
    np.testing.assert_allclose(share, expected, atol=0.04)
    assert extras.keys() == ({sac_discrete.LACK} if explore else set())
    for lack in extras.values():
        expected = np.log(ACTIONS) + (p * np.log(p)).sum(axis=1)
        np.testing.assert_allclose(lack[0], expected, rtol=1e-3, atol=1e-5)


def test_takes_pictures() -> None:
    shape, dtype = (10, 10, 4), "uint8"
    spec = EnvSpec("test/Pictures-v0", shape, ACTIONS, discrete=True, observation_dtype=dtype)
    reference.assert_takes_pictures(sac_discrete, spec, CONFIG, transitions())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (EnvSpec("Pendulum-v1", (3,), 1), "chooses among .* Use: rljax train sac --env Pend"),
        (
            EnvSpec("Several-v0", (3,), 5, discrete=True, choices=(2, 3)),
            "takes one discrete action at a time",
        ),
    ],
)
def test_refuses_other_actions(spec: EnvSpec, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^agent 'sac_discrete' {message}"):
        sac_discrete.check(spec, CONFIG)


def test_entropies_of_old_actions_are_needed_for_their_penalty() -> None:
    config = dataclasses.replace(CONFIG, entropy_penalty=0.5)
    batch = transitions().replace(extras={})
    message = r"^--config\.entropy-penalty needs experience of .* out with --data\."
    with pytest.raises(ValueError, match=message):
        sac_discrete.update(fresh(config), batch, KEY, jnp.int32(0), config)


def test_rewards_can_be_clipped_as_in_cleanrls_games() -> None:
    """cleanrl fe8d8a03, sac_atari.py: env = ClipRewardEnv(env), the sign of a game's score."""
    declared = sac_discrete.experience(dataclasses.replace(CONFIG, clip_rewards=True))
    step: Any = types.SimpleNamespace(
        reward=jnp.array([-7.0, 0.0, 200.0]),
        **dict.fromkeys(("terminated", "truncated", "next_observation"), jnp.zeros(3)),
    )
    stored = declared.transition(jnp.zeros(3), jnp.zeros(3, jnp.int32), {}, step)
    np.testing.assert_array_equal(stored.reward, [-1.0, 0.0, 1.0])
