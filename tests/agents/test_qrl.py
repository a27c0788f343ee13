"""QRL against float64 NumPy written from the papers and OGBench's code."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Transition
from rljax.agents import qrl
from rljax.learning import configuration
from rljax.learning.drivers.offline import OfflineDriver
from rljax.learning.learner import Learner
from tests.agents import reference, trees, value_learning
from tests.agents.test_gciql import SPEC, transitions
from tests.agents.value_learning import KEY, SIZES

SMALL: dict[str, Any] = {name: SIZES[name] for name in ("hidden", "batch_size", "actor_lr")}
RATES: dict[str, Any] = {"model_lr": 2e-2, "multiplier_lr": 3e-2}
CONFIG = qrl.Config(**SMALL, **RATES, latent_size=16, activation="relu", layer_norm=False)


def example() -> Any:
    return SPEC, CONFIG, transitions()


def distances(x: np.ndarray, y: np.ndarray, mixing: Any) -> np.ndarray:
    """d [B] of features [B, K]: iqe with the logit of the mean's share, or mrn without one.

    The union of intervals in the order of their beginnings: each adds what lies beyond all ends so
    far.
    """
    if mixing is None:
        half = x.shape[1] // 2
        length = np.linalg.norm((x - y)[:, :half], axis=1)
        return length + np.maximum((x - y)[:, half:].max(axis=1), 0.0)
    left, right = x.reshape(len(x), -1, 8), y.reshape(len(y), -1, 8)
    order = np.argsort(left, axis=2)
    left, right = (np.take_along_axis(z, order, axis=2) for z in (left, right))
    end, total = np.full(left.shape[:2], -np.inf), np.zeros(left.shape[:2])
    for i in range(8):
        total = total + np.maximum(right[..., i] - np.maximum(left[..., i], end), 0.0)
        end = np.maximum(end, right[..., i])
    share = 1.0 / (1.0 + np.exp(-mixing))
    return share * total.mean(axis=1) + (1.0 - share) * total.max(axis=1)


class Reference:
    """Every loss is of the networks before the update, as in the authors' qrl.py; gradients of
    networks are by differences.
    """

    def __init__(self, state: qrl.State, config: qrl.Config) -> None:
        self.config = config
        self.actor, self.model = (reference.exact(x) for x in (state.actor, state.model))
        self.log_multiplier = reference.exact(state.log_multiplier)
        self.actor_adam = reference.Adam(config.actor_lr)
        self.model_adam = reference.Adam(config.model_lr)
        self.multiplier_adam = reference.Adam(config.multiplier_lr)

    def distance(self, model: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return distances(x, y, model[0][1] if self.config.quasimetric == "iqe" else None)

    def features(self, model: Any, x: np.ndarray) -> np.ndarray:
        return reference.forward(model[0][0], x)[0]

    def after(self, model: Any, z: np.ndarray, action: np.ndarray) -> np.ndarray:
        return z + reference.forward(model[1], np.concatenate([z, action], axis=1))[0]

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        config, action = self.config, np.asarray(batch.action)
        state, goal = np.split(np.asarray(batch.observation), 2, axis=1)
        successor = np.split(np.asarray(batch.next_observation), 2, axis=1)[0]
        multiplier, guided = np.exp(self.log_multiplier), config.policy_loss == "ddpg_bc"

        def model_parts(model: Any) -> dict[str, float]:
            z, z_goal, z_next = (self.features(model, x) for x in (state, goal, successor))
            far, near = self.distance(model, z, z_goal), self.distance(model, z, z_next)
            o, w = config.push_offset, config.push_width
            push = (w * np.log1p(np.exp((o - far) / w))).mean()
            excess = (np.maximum(near - 1.0, 0.0) ** 2).mean()
            parts = {"far": far.mean(), "near": near.mean(), "excess": excess, "push": push}
            parts["loss"] = push + multiplier * excess
            if guided:
                foreseen = self.after(model, z, action)
                both = self.distance(model, z_next, foreseen)
                both = both + self.distance(model, foreseen, z_next)
                parts["error"] = both.mean() / 2.0
                parts["loss"] += parts["error"]
            return {f"model/{name}": value for name, value in parts.items()}

        before = self.model
        metrics = model_parts(before)
        gradient = reference.differences(lambda x: model_parts(x)["model/loss"], before)
        metrics |= self.policy(before, batch)
        self.model = self.model_adam.step(before, gradient)
        slack = config.tolerance - metrics["model/excess"]
        metrics |= {"multiplier/loss": multiplier * slack, "multiplier/value": multiplier}
        self.log_multiplier = self.multiplier_adam.step(self.log_multiplier, multiplier * slack)
        return metrics

    def policy(self, model: Any, batch: Transition) -> dict[str, float]:
        """Move the actor; its metrics."""
        config, action = self.config, np.asarray(batch.action)
        observation = np.asarray(batch.extras["actor_observation"])
        state, goal = np.split(observation, 2, axis=1)
        successor = np.split(np.asarray(batch.next_observation), 2, axis=1)[0]
        z, z_goal, z_next = (self.features(model, x) for x in (state, goal, successor))
        scale: list[float] = []  # of the first mean, which is detached

        def parts(actor: Any) -> dict[str, float]:
            mean = reference.forward(actor, observation)[0]
            far = 0.5 * np.square(mean - action).sum(axis=1)
            far += 0.5 * np.log(2.0 * np.pi) * action.shape[1]
            if config.policy_loss == "awr":
                saved = self.distance(model, z, z_goal) - self.distance(model, z_next, z_goal)
                weight = np.minimum(np.exp(config.inverse_temperature * saved), config.max_weight)
                values = {"advantage": saved.mean(), "weight": weight.mean()}
                values["loss"] = (weight * far).mean()
            else:
                foreseen = self.after(model, z, np.clip(mean, -1.0, 1.0))
                q = -self.distance(model, foreseen, z_goal)
                scale.append(np.abs(q).mean() + 1e-6)
                values = {"q": q.mean(), "imitation": far.mean()}
                values["loss"] = -q.mean() / scale[0] + config.imitation_weight * far.mean()
            return {f"actor/{name}": value for name, value in values.items()}

        metrics = parts(self.actor)
        gradient = reference.differences(lambda x: parts(x)["actor/loss"], self.actor)
        self.actor = self.actor_adam.step(self.actor, gradient)
        return metrics


CASES = {
    "default": {},
    "a narrow push, a large multiplier": {
        "push_offset": 3.0,
        "push_width": 1.5,
        "init_multiplier": 4.0,
        "imitation_weight": 0.3,
    },
    "mrn": {"quasimetric": "mrn", "push_offset": 3.0, "push_width": 1.5},
}

update = jax.jit(qrl.update)
act = jax.jit(qrl.act, static_argnames="explore")


def fresh(config: qrl.Config) -> qrl.State:
    return reference.state(qrl, SPEC, config)


@reference.cases(CASES, quick=2)
def test_updates_equal_the_papers(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    reference.assert_updates(update, fresh(config), config, Reference, transitions, range(3))


@pytest.mark.learn
@pytest.mark.parametrize("kind", ["iqe", "mrn"])
def test_one_update_with_weights_equals_the_papers(kind: Any) -> None:
    """Later ones differ: without dynamics the slope in some biases is 0, and Adam makes whole steps
    of its rounding.
    """
    config = dataclasses.replace(CONFIG, policy_loss="awr", max_weight=1.5, quasimetric=kind)
    state, batch = fresh(config), transitions()
    expected = Reference(state, config)
    state, metrics = update(state, batch, KEY, 0, config)
    reference.assert_metrics(metrics, expected.update(reference.float64(batch), KEY, 0))
    reference.assert_same(reference.exact(state.actor), expected.actor)
    assert state.model.parameters.dynamics is None


def test_only_the_actor_sees_its_own_goals() -> None:
    state, batch = fresh(CONFIG), transitions()
    other = batch.replace(extras={"actor_observation": batch.observation})
    one, two = (update(state, x, KEY, 0, CONFIG)[0] for x in (batch, other))
    for part, same in (("model", True), ("log_multiplier", True), ("actor", False)):
        assert trees.equal(getattr(one, part), getattr(two, part)) == same, part


def test_the_multiplier_rises_while_steps_are_too_long() -> None:
    state, batch = fresh(CONFIG), transitions()
    for tolerance, rises in ((0.0, True), (1e6, False)):
        config = dataclasses.replace(CONFIG, tolerance=tolerance)
        new, metrics = update(state, batch, KEY, 0, config)
        assert metrics["model/excess"] > 0.0
        assert (new.log_multiplier.parameters > state.log_multiplier.parameters) == rises


def test_begins_as_the_authors_do() -> None:
    config = qrl.Config(hidden=(16, 16), latent_size=8)
    state = jax.jit(qrl.init, static_argnums=1)(KEY, SPEC, config)
    limit = np.sqrt(6.0 / (16 + 2))
    kernel = np.asarray(state.actor.parameters.params["output"]["kernel"])
    # A tenth of the others: a hundredth of their variance.
    assert 0.05 * limit < np.abs(kernel).max() <= 0.1 * limit
    model = state.model.parameters
    for net, inputs in ((model.distance.embedding, 3), (model.dynamics, 8 + 2)):
        assert net.params["hidden_0"]["kernel"].shape == (inputs, 16)
        assert net.params["output"]["kernel"].shape == (16, 8)
        assert "norm_1" in net.params
    assert state.log_multiplier.parameters == model.distance.mixing == 0.0


@pytest.mark.learn
@pytest.mark.parametrize("torso", ["resnet", "iru", "recall"])
def test_every_torso_learns(torso: Any) -> None:
    config = dataclasses.replace(CONFIG, torso=torso, compute=1 if torso == "resnet" else 3)
    qrl.check(SPEC, config)
    state = qrl.init(KEY, SPEC, config)
    new, metrics = update(state, transitions(), KEY, 0, config)
    assert all(np.isfinite(value) for value in metrics.values())
    for part in ("actor", "model"):
        both = (getattr(x, part).parameters for x in (state, new))
        assert trees.all_differ(*both), part


def test_act_explores_around_the_mean_within_bounds() -> None:
    state, observation = fresh(CONFIG), transitions(9).observation
    mean = reference.forward(reference.mlp(state.actor), np.asarray(observation, np.float64))[0]
    value_learning.assert_explores_around(mean, 1.0, act, state, observation, CONFIG)


@pytest.mark.parametrize(("kind", "size"), [("iqe", 12), ("mrn", 5)])
def test_refuses_features_without_equal_parts(kind: Any, size: int) -> None:
    config = dataclasses.replace(CONFIG, quasimetric=kind, latent_size=size)
    with pytest.raises(ValueError, match=rf"--config\.latent-size is {size}, .* multiple of"):
        qrl.check(SPEC, config)


# A ring of places, on which actions lead one place on, or two: ways back are other ways.
PLACES, JUMP = 5, 2
STEPS = np.array([0, 1, 1, 2, 2])  # to the places ahead


def ring() -> Transition:
    """Trajectories of one step each, one-hot states."""
    place, action = np.repeat(np.arange(PLACES), 2), np.tile([-1.0, 1.0], PLACES)
    after = (place + np.where(action > 0, JUMP, 1)) % PLACES
    one_hot, never = np.eye(PLACES, dtype=np.float32), np.zeros(2 * PLACES, bool)
    actions, nothing = action[:, None].astype(np.float32), np.zeros(2 * PLACES, np.float32)
    columns: Any = (one_hot[place], actions, nothing, never, ~never, one_hot[after])
    return Transition(*columns)


@pytest.mark.learn
@pytest.mark.parametrize(
    ("kind", "policy_loss"), [("iqe", "ddpg_bc"), ("mrn", "ddpg_bc"), ("iqe", "awr")]
)
def test_on_a_ring_distances_are_numbers_of_steps_and_actions_lead_to_the_goal(
    kind: str, policy_loss: str
) -> None:
    changes: Any = {
        "hidden": (64, 64),
        "latent_size": 64,
        "batch_size": 64,
        "quasimetric": kind,
        "policy_loss": policy_loss,
        "actor_goal_future": 0.0,
        "push_offset": 5.0,
        "push_width": 1.0,
        "tolerance": 0.003,
        "imitation_weight": 0.03,
        "multiplier_lr": 3e-2,
        "rate_schedule": "cosine",
        "rate_updates": 4_000,
    } | {f"{name}_lr": 1e-3 for name in ("actor", "model")}
    config = configuration.stack(configuration.replace(qrl.Config(), changes, "test"), 1)
    learner = Learner(qrl, EnvSpec("ring", (2 * PLACES,), 1), 1)  # pyright: ignore[reportArgumentType]
    driver = OfflineDriver(learner, qrl.experience(config).prepare(ring()), config)
    driver.start([0])
    driver.advance(4_000)
    state: Any = jax.tree.map(lambda x: x[0], driver.agent_state.state)
    one_hot = np.eye(PLACES, dtype=np.float32)
    place, ahead = (x.ravel() for x in np.mgrid[:PLACES, :PLACES])
    observation = jnp.concatenate([one_hot[place], one_hot[(place + ahead) % PLACES]], axis=1)
    distance = np.asarray(state.model.parameters.distance(observation))
    np.testing.assert_allclose(distance, STEPS[ahead], atol=0.3)
    action = np.asarray(qrl.act(state, observation, KEY, qrl.Config(), explore=False)[0])[:, 0]
    for number, sign in ((1, -1.0), (2, 1.0), (4, 1.0)):
        np.testing.assert_array_equal(np.sign(action[ahead == number]), sign)
