"""CRL-online against float64 NumPy written from the paper and the authors' code.

scripts/updates/goals/compare_crl_online.py compares it with that code, norms and all.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.agent import EnvSpec, Transition
from rljax.agents import crl_online
from rljax.runs import records, run
from tests.agents import reference, trees

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = crl_online.Config(
    hidden=(4,),
    critic_hidden=(5,),
    latent_size=3,
    batch_size=5,
    num_envs=4,
    actor_lr=1e-2,
    critic_lr=2e-2,
    temperature_lr=3e-2,
    init_temperature=0.2,
)
KEY = jax.random.key(0)


def transitions(seed: int = 0, size: int = 5) -> Transition:
    """The last number of an observation is its goal."""
    is_goal = jnp.broadcast_to(jnp.asarray([0.0, 0.0, 1.0]), (size, 3))
    return reference.transitions(seed, size).replace(extras={"is_goal": is_goal})


def example() -> Any:
    return SPEC, CONFIG, transitions()


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1.0 + np.exp(-x))


def network(mlp: reference.MLP, x: np.ndarray, skip: int) -> np.ndarray:
    """The authors' networks.py without norms: layer 0's output is the first to be added, behind
    layer `skip`, and each sum is added to the one `skip` layers on.
    """
    number = len(mlp) // 2 - 1
    outputs: dict[int, np.ndarray] = {}
    for i in range(number):
        x = silu(x @ mlp[2 * i] + mlp[2 * i + 1])
        if skip and i and i % skip == 0:
            x = x + outputs[i - skip]
        outputs[i] = x
    return x @ mlp[-2] + mlp[-1]


class Reference:
    """agents/crl/losses.py: the actor, alpha and the critic move in this order, and nothing that
    one of them needs has moved before.
    """

    def __init__(self, state: crl_online.State, config: crl_online.Config) -> None:
        self.config, self.actor = config, reference.exact(state.actor)
        self.critic = reference.exact(state.critic)  # of states and actions, and of goals
        self.log_temperature = np.log(config.init_temperature)
        rates = (config.actor_lr, config.critic_lr, config.temperature_lr)
        self.adams = [reference.Adam(rate) for rate in rates]

    def energy(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if self.config.energy == "product":
            return np.einsum("...k,...k->...", x, y)
        square = ((x - y) ** 2).sum(axis=-1)
        return -square if self.config.energy == "square" else -np.sqrt(square + 1e-6)

    def features(self, critic: Any, batch: Any, action: np.ndarray) -> tuple[Any, Any]:
        nothing = np.zeros((len(action), 1))
        state = np.concatenate([batch.observation[:, :2], nothing, action], axis=1)
        goal = np.concatenate([nothing, nothing, batch.observation[:, 2:]], axis=1)
        skip = self.config.skip
        return network(critic[0], state, skip), network(critic[1], goal, skip)

    def climbed(self, actor: Any, batch: Any, noise: np.ndarray) -> dict[str, float]:
        mean, u = np.split(network(actor, batch.observation, self.config.skip), 2, axis=1)
        log_std = -5.0 + 0.5 * 7.0 * (np.tanh(u) + 1.0)
        raw = mean + np.exp(log_std) * noise
        action = np.tanh(raw)
        log_prob = -0.5 * noise**2 - log_std - 0.5 * np.log(2.0 * np.pi)
        log_prob = (log_prob - np.log(1.0 - action**2)).sum(axis=1)
        energy = self.energy(*self.features(self.critic, batch, action))
        loss = (np.exp(self.log_temperature) * log_prob - energy).mean()
        parts = {"loss": loss, "energy": energy.mean(), "entropy": -log_prob.mean()}
        return {f"actor/{name}": part for name, part in parts.items()}

    def contrasted(self, critic: Any, batch: Any) -> dict[str, float]:
        x, y = self.features(critic, batch, batch.action)
        logits = self.energy(x[:, None], y[None])
        own, goals, states = np.diag(logits), *(np.log(np.exp(logits).sum(i)) for i in (1, 0))
        loss = {
            "forward": -(own - goals).mean(),
            "backward": -(own - states).mean(),
            "symmetric": -(2.0 * own - goals - states).mean(),
        }[self.config.contrast]
        loss += self.config.normaliser_penalty * (goals**2).mean()
        others = logits[~np.eye(len(logits), dtype=bool)]
        parts = {"loss": loss, "normaliser": goals.mean(), "positive": own.mean()}
        parts |= {"negative": others.mean(), "accuracy": (own >= logits.max(axis=1)).mean()}
        return {f"critic/{name}": part for name, part in parts.items()}

    def update(self, batch: Any, key: jax.Array, step: int) -> dict[str, float]:
        noise, actor, critic = reference.noise(key, batch.action.shape), self.actor, self.critic
        metrics = self.climbed(actor, batch, noise) | self.contrasted(critic, batch)
        climbed = lambda x: self.climbed(x, batch, noise)["actor/loss"]  # noqa: E731
        contrasted = lambda x: self.contrasted(x, batch)["critic/loss"]  # noqa: E731
        of_actor, of_critic = (
            reference.differences(climbed, actor),
            reference.differences(contrasted, critic),
        )
        temperature = np.exp(self.log_temperature)
        excess = metrics["actor/entropy"] + self.config.target_entropy_share * 2.0
        metrics |= {"temperature/loss": temperature * excess, "temperature/value": temperature}
        self.actor = self.adams[0].step(actor, of_actor)
        self.critic = self.adams[1].step(critic, of_critic)
        self.log_temperature = self.adams[2].step(self.log_temperature, temperature * excess)
        return metrics


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "five layers, sums": {"depth": 5, "skip": 2, "contrast": "symmetric"},
    "squares, backward": {"energy": "square", "contrast": "backward", "skip": 0},
    "products, a target entropy": {"energy": "product", "target_entropy_share": 1.0},
}

update = jax.jit(crl_online.update)
fresh = functools.partial(reference.state, crl_online, SPEC)


@reference.cases(CASES)
def test_updates_equal_the_authors(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    reference.assert_updates(update, fresh(config), config, Reference, batches=transitions)


def test_the_critic_sees_states_and_goals_apart() -> None:
    """A goal moves no features of its state, and a state none of its goal; rewards nothing."""
    batch = transitions()
    state = fresh(CONFIG)
    mask = batch.extras["is_goal"]
    critic = state.critic.parameters
    now, goal = crl_online.energies.separated(batch.observation, mask)
    np.testing.assert_array_equal(now, batch.observation * np.array([1, 1, 0]))
    np.testing.assert_array_equal(goal, batch.observation * np.array([0, 0, 1]))
    pairs = np.asarray(critic.pairs(now, batch.action, goal))
    np.testing.assert_allclose(np.diag(pairs), critic(now, batch.action, goal), rtol=1e-5)
    ended = batch.replace(reward=-batch.reward, terminated=~batch.terminated)
    one, two = (update(state, rows, KEY, 0, CONFIG)[0] for rows in (batch, ended))
    assert trees.equal(one, two)


def test_begins_as_the_authors_do() -> None:
    """Weights within 1 / sqrt(inputs), biases 0; as many layers as asked for."""
    config = dataclasses.replace(CONFIG, hidden=(64,), critic_hidden=(64,), depth=3)
    state = jax.jit(crl_online.init, static_argnums=1)(KEY, SPEC, config)
    networks = {"actor": (state.actor.parameters, 3, 4)}
    networks["states"] = (state.critic.parameters.of_actions, 5, 3)
    networks["goals"] = (state.critic.parameters.of_goals, 3, 3)
    for net, inputs, outputs in networks.values():
        assert set(net.params) == {"hidden_0", "hidden_1", "hidden_2", "output"}
        for name, layer in net.params.items():
            rows = inputs if name == "hidden_0" else 64
            assert layer["kernel"].shape == (rows, outputs if name == "output" else 64)
            largest = np.abs(layer["kernel"]).max() * np.sqrt(rows)
            assert 0.9 < largest <= 1.0
            assert not layer["bias"].any()
    assert state.log_temperature.parameters == np.float32(np.log(0.2))


def test_it_acts_from_the_first_step_and_draws_goals_of_its_discount() -> None:
    declared = crl_online.experience(dataclasses.replace(CONFIG, discount=0.9))
    assert declared.random_steps == 0
    draw: Any = declared.draw
    assert draw.discount == 0.9


def test_refuses_environments_without_goals() -> None:
    message = r"^this agent learns to reach goals, and the observations of 'rljax/Pendulum' hold"
    with pytest.raises(ValueError, match=message + r" none\. .* such as rljax/GoalMaze\.$"):
        run.train("crl_online", "rljax/Pendulum", 1_000, out=None)


@pytest.mark.parametrize("name", ["hidden", "critic_hidden"])
def test_refuses_layers_of_other_widths(name: str) -> None:
    config = dataclasses.replace(CONFIG, **{name: (8, 4)})
    with pytest.raises(ValueError, match=rf"--config\.{name.replace('_', '-')} is \(8, 4\)"):
        crl_online.check(SPEC, config)


SMALL: dict[str, Any] = {"batch_size": 128, "latent_size": 32}


@pytest.mark.learn
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="default"),
        pytest.param({"depth": 5, "layer_norm": True}, id="five layers with a sum"),
    ],
)
def test_defaults_learn_to_reach_goals_in_a_maze(changes: dict[str, Any], tmp_path: Path) -> None:
    """In a quarter of the default widths. The fresh policy ends 2 % of episodes at the goal."""
    out, env = tmp_path / "run", "rljax/GoalMaze"
    config = SMALL | {"hidden": (64,), "critic_hidden": (64,)} | changes
    run.train("crl_online", env, 300_000, config=config, out=out, eval_episodes=100)
    assert records.read_summary(out)["best"]["success"] >= 0.4


@pytest.mark.slow
def test_goals_are_those_of_the_environment(tmp_path: Path) -> None:
    """A run of a few updates, with normalised observations."""
    config: Any = {"hidden": (4,), "critic_hidden": (4,), "num_envs": 4, "warmup_steps": 40}
    config |= {"replay_size": 400, "batch_size": 8, "normalise_observations": True}
    out = tmp_path / "run"
    run.train("crl_online", "rljax/GoalMaze", 200, config=config, out=out, eval_episodes=2)
    last = records.read(out, "metrics")[-1]
    assert np.isfinite(last["critic/loss"][0])
    assert envs.make("rljax/GoalMaze").spec.observation_shape == (6,)
