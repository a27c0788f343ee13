"""MPO against float64 written from the papers and Acme's settings, with networks of its own.

scripts/updates/compare_mpo.py compares it with Acme's code.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax.agent import EnvSpec, Transition
from rljax.agents import mpo
from tests.agents import batch_norms, reference
from tests.agents.layer_norms import forward, members

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = mpo.Config(
    hidden=(6, 5),
    batch_size=5,
    actor_lr=1e-2,
    critic_lr=2e-2,
    dual_lr=5e-2,
    n_step=1,
    target_rate=0.5,
    target_every=1,
    num_actions=4,
    epsilon=0.2,
    epsilon_mean=0.03,
    epsilon_std=0.02,
    epsilon_penalty=0.1,
    init_temperature=0.8,
    init_multiplier_mean=0.7,
    init_multiplier_std=1.5,
    init_std=1.2,  # many actions are beyond [-1, 1]
)
KEY = jax.random.key(0)
init = jax.jit(mpo.init, static_argnums=1)
PROBE: dict[str, Any] = {
    "n_step": 1,
    "target_every": 20,
    "target_rate": 1.0,
    "epsilon_mean": 0.05,
    "epsilon_std": 1e-3,
    "init_multiplier_std": 10.0,
}
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "two critics, sums, no penalty": {
        "num_critics": 2,
        "per_dimension": False,
        "epsilon_penalty": None,
        "states": "next",
    },
    "classes": {"value_head": "c51", "bins": 7, "v_min": -3.0, "v_max": 3.0},
}


def example() -> tuple[EnvSpec, mpo.Config, Transition]:
    return SPEC, CONFIG, reference.transitions()


def normal(x: Any, mean: Any, std: Any) -> Any:
    """log Normal(x; mean, std), elementwise."""
    return -0.5 * ((x - mean) / std) ** 2 - jnp.log(std) - 0.5 * np.log(2.0 * np.pi)


class Expected:
    """The learner, step by step; duals are eta, eta_o, alpha_mu and alpha_sigma before softplus."""

    def __init__(self, state: mpo.State, config: mpo.Config) -> None:
        self.config = config
        self.parameters = {
            "actor": state.actor.parameters.params,
            "critic": members(state.critic.parameters.params),
            "dual": dataclasses.asdict(state.duals.parameters),
        }
        self.target_actor = state.target_actor.params
        self.target_critic = members(state.target_critic.params)
        rates = {"actor": config.actor_lr, "critic": config.critic_lr, "dual": config.dual_lr}
        self.optimisers = {name: optax.adam(rate) for name, rate in rates.items()}
        self.states = {name: self.optimisers[name].init(x) for name, x in self.parameters.items()}

        self.nexts = jax.jit(self.next_outputs)
        self.critic_gradient = jax.jit(jax.grad(self.critic_loss))
        self.policy_gradient = jax.jit(jax.grad(self.policy_loss, argnums=(0, 1)))

    def policy(self, params: Any, observation: Any) -> tuple[Any, Any]:
        output = forward(params, observation)
        half = output.shape[-1] // 2
        std = self.config.init_std * jnp.log1p(jnp.exp(output[:, half:])) / np.log(2.0) + 1e-6
        return output[:, :half], std

    def outputs(self, params: Any, observation: Any, action: Any) -> Any:
        return forward(params, jnp.concatenate([observation, action], axis=1))

    def q(self, output: Any) -> Any:
        if self.config.value_head == "squared":
            return output[:, 0]
        return jax.nn.softmax(output) @ np.linspace(-3.0, 3.0, 7)

    def next_outputs(self, targets: Any, states: Any, actions: Any) -> Any:
        """Outputs of each critic for each action."""
        inside = [jnp.clip(a, -1.0, 1.0) for a in actions]
        return [[self.outputs(target, states, a) for a in inside] for target in targets]

    def target(self, outputs: Any, batch: Any) -> Any:
        """y, or the probabilities of classes."""
        alive = self.config.discount * (1.0 - np.asarray(batch.terminated))
        if self.config.value_head == "squared":
            means = [sum(np.asarray(x)[:, 0] for x in each) / len(each) for each in outputs]
            return np.asarray(batch.reward) + alive * np.minimum.reduce(means)
        p = sum(np.asarray(jax.nn.softmax(x)) for x in outputs[0]) / len(outputs[0])
        return self.projected(p, np.asarray(batch.reward), alive)

    def critic_loss(self, critics: Any, batch: Any, target: Any) -> Any:
        loss = 0.0
        for critic in critics:
            output = self.outputs(critic, batch.observation, batch.action)
            if self.config.value_head == "squared":
                loss += ((output[:, 0] - target) ** 2).mean()
            else:
                loss -= (target * jax.nn.log_softmax(output)).sum(axis=1).mean()
        return loss

    def projected(self, p: np.ndarray, reward: Any, alive: Any) -> np.ndarray:
        """C51's algorithm 1."""
        mass = np.zeros_like(p)
        for row, column in np.ndindex(*p.shape):
            y = np.clip(reward[row] + alive[row] * (column - 3.0), -3.0, 3.0)
            below = min(int(np.floor(y + 3.0)), 5)
            mass[row, below] += p[row, column] * (below + 1 - (y + 3.0))
            mass[row, below + 1] += p[row, column] * (y + 3.0 - below)
        return mass

    def policy_loss(self, actor: Any, dual: Any, targets: Any, states: Any, actions: Any) -> Any:
        """All of Acme's loss, with its stopped gradients; targets of actor and critics."""
        config, stop = self.config, jax.lax.stop_gradient
        outputs = self.next_outputs(targets[1], states, actions)
        q = jnp.stack([jnp.stack([self.q(x) for x in each]) for each in outputs]).min(axis=0)
        objectives = [(q, config.epsilon)]
        if config.epsilon_penalty is not None:
            cost = [-jnp.sqrt(((a - jnp.clip(a, -1.0, 1.0)) ** 2).sum(axis=1)) for a in actions]
            objectives.append((jnp.stack(cost), config.epsilon_penalty))
        loss, weight = 0.0, 0.0
        for i, (v, epsilon) in enumerate(objectives):
            eta = jnp.log1p(jnp.exp(dual["temperatures"][i])) + 1e-8
            powers = jnp.exp(v / eta)
            loss += eta * (epsilon + jnp.log(powers.mean(axis=0)).mean())
            weight += stop(powers / powers.sum(axis=0))
        old_mean, old_std = self.policy(targets[0], states)
        mean, std = self.policy(actor, states)
        for n, a in enumerate(actions):
            log_prob = normal(a, mean, old_std) + normal(a, old_mean, std)
            loss -= (weight[n] * log_prob.sum(axis=1)).mean()
        kl_mean = (mean - old_mean) ** 2 / (2.0 * old_std**2)
        kl_std = jnp.log(std / old_std) + old_std**2 / (2.0 * std**2) - 0.5
        alpha = jnp.log1p(jnp.exp(dual["multipliers"])) + 1e-8
        pairs = ((kl_mean, config.epsilon_mean), (kl_std, config.epsilon_std))
        for i, (kl, epsilon) in enumerate(pairs):
            kl = kl.mean(axis=0) if config.per_dimension else kl.sum(axis=1).mean()
            loss += (stop(alpha[i]) * kl + alpha[i] * (epsilon - stop(kl))).sum()
        return loss

    def move(self, name: str, gradient: Any) -> None:
        changes, self.states[name] = self.optimisers[name].update(gradient, self.states[name])
        self.parameters[name] = optax.apply_updates(self.parameters[name], changes)

    def update(self, batch: Transition, key: Any) -> None:
        config = self.config
        states = batch.next_observation
        if config.states == "both":
            states = jnp.concatenate([batch.observation, states])
        targets = (self.target_actor, self.target_critic)
        mean, std = self.policy(self.target_actor, states)
        noise = jax.random.normal(key, (config.num_actions, *mean.shape))
        actions = [mean + std * e for e in noise]
        size = len(batch.reward)
        outputs = self.nexts(targets[1], batch.next_observation, [a[-size:] for a in actions])
        target = self.target(outputs, batch)
        critic = self.critic_gradient(self.parameters["critic"], batch, target)
        pair = (self.parameters["actor"], self.parameters["dual"])
        actor, dual = self.policy_gradient(*pair, targets, states, actions)
        for name, gradient in (("critic", critic), ("actor", actor), ("dual", dual)):
            self.move(name, gradient)
        rate = config.target_rate
        self.target_actor, self.target_critic = jax.tree.map(
            lambda new, old: rate * new + (1.0 - rate) * old,
            (self.parameters["actor"], self.parameters["critic"]),
            (self.target_actor, self.target_critic),
        )


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    with jax.enable_x64():
        state = batch_norms.exact(init(KEY, SPEC, config))
        expected, update = Expected(state, config), jax.jit(mpo.update)
        for step in range(4):
            batch = batch_norms.exact(reference.transitions(step, size=6))
            key = jax.random.key(step)
            state, metrics = update(state, batch, key, step, config)
            expected.update(batch, key)
    for actual, theirs in (
        (state.actor.parameters.params, expected.parameters["actor"]),
        (members(state.critic.parameters.params), expected.parameters["critic"]),
        (dataclasses.asdict(state.duals.parameters), expected.parameters["dual"]),
        (state.target_actor.params, expected.target_actor),
        (members(state.target_critic.params), expected.target_critic),
    ):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-9), actual, theirs
        )
    assert float(metrics["actor/kl_mean"]) > 0


def test_targets_are_copied_now_and_then_and_act() -> None:
    config = dataclasses.replace(CONFIG, target_every=2, target_rate=1.0)
    state, batch = init(KEY, SPEC, config), reference.transitions()
    update = jax.jit(mpo.update)
    first, _ = update(state, batch, KEY, 0, config)
    second, _ = update(first, batch, KEY, 1, config)
    observation = batch.observation
    actions = [
        np.asarray(mpo.act(each, observation, KEY, config, explore=False)[0])
        for each in (state, first, second)
    ]
    np.testing.assert_array_equal(actions[0], actions[1])
    mean, _ = mpo.policy(second.actor, observation, config)
    np.testing.assert_allclose(actions[2], np.clip(mean, -1.0, 1.0), rtol=1e-6)
    assert not np.allclose(actions[1], actions[2])


def test_duals_begin_at_their_settings_and_stay_above_a_limit() -> None:
    state = init(KEY, SPEC, CONFIG)
    dual = mpo.duals.positive(state.duals.parameters)
    np.testing.assert_allclose(dual.temperatures, [0.8, 0.8], rtol=1e-5)
    np.testing.assert_allclose(dual.multipliers, [[0.7, 0.7], [1.5, 1.5]], rtol=1e-5)
    low = state.duals.replace(parameters=jax.tree.map(lambda x: x - 30.0, state.duals.parameters))
    assert all(np.all(x == -18.0) for x in jax.tree.leaves(mpo.duals.bounded(low).parameters))


def test_only_termination_cuts_the_bootstrap() -> None:
    reference.assert_only_termination_cuts_the_bootstrap(
        jax.jit(mpo.update), init(KEY, SPEC, CONFIG), CONFIG
    )
