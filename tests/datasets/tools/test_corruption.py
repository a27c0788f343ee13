"""Corruption is RIQL's protocol, against plain NumPy."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import datasets
from rljax.agent import Transition
from rljax.datasets.tools import corruption
from rljax.learning import registry
from rljax.learning.agent_state import AgentState
from rljax.networks import normalise
from rljax.networks.inputs import OfData, Raw, Running
from rljax.runs import run
from rljax.runs.policies.attackers import AttackedAgent, load_attacker
from tests.agents import reference
from tests.datasets.files import same

ELEMENTS: Any = ("observation", "action", "reward", "dynamics")
FIELDS: dict[str, str] = dict(
    zip(ELEMENTS, ("observation", "action", "reward", "next_observation"), strict=True)
)
# One above 1, where the start of an attack may lie outside the box.
STD = np.array([0.2, 1.0, 4.0], np.float32)


@functools.cache
def dataset(rows: int = 500, actions: int = 2, bound: float = 2.0) -> datasets.OfflineDataset:
    """Episodes of 50 steps, terminal and truncated by turns."""
    generator = np.random.default_rng(0)
    observation = (generator.normal(size=(rows + 1, 3)) * STD).astype(np.float32)
    ends = np.arange(rows) % 50 == 49
    fields = dict(
        observation=observation[:-1],
        action=generator.uniform(-1, 1, size=(rows, actions)).astype(np.float32),
        reward=generator.normal(size=rows).astype(np.float32),
        terminated=ends & (np.arange(rows) % 100 == 49),
        truncated=ends & (np.arange(rows) % 100 == 99),
        next_observation=observation[1:],
    )
    bounds = (np.full(actions, -bound, np.float32), np.full(actions, bound, np.float32))
    return datasets.OfflineDataset(
        "test", Transition(**fields), "Test-v0", (-20.0, 3000.0), bounds, {"max_episode_steps": 50}
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(datasets.write(dataset(), tmp_path_factory.mktemp("data") / "clean.npz"))


@pytest.fixture(scope="module")
def folder(data: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """EDAC, after enough updates for its values to have slopes."""
    changes = {"num_critics": 3, "critic_lr": 1e-2, "actor_lr": 1e-2, "initialisation": "torch"}
    changes |= {"hidden": (16, 16), "batch_size": 32}
    options = {"log_every": 50, "checkpoint_every": 50, "config": changes}
    out = tmp_path_factory.mktemp("runs") / "edac"
    return run.train("edac", "none", 50, data=data, out=out, **options)


@pytest.fixture(scope="module")
def attacker(folder: Path) -> corruption.Attacker:
    return load_attacker(folder)


def changed(
    before: datasets.OfflineDataset, after: datasets.OfflineDataset, element: str
) -> np.ndarray:
    """[N] bool."""
    old, new = (np.asarray(getattr(x.transitions, FIELDS[element])) for x in (before, after))
    return (old != new).reshape(len(old), -1).any(axis=1)


def randomly(before: Any, elements: Any, rate: float, scale: float, seed: int) -> dict[str, Any]:
    """RIQL's attack.py, with its order of random numbers."""
    generator = np.random.RandomState(seed)
    result = {name: np.array(getattr(before.transitions, FIELDS[name])) for name in ELEMENTS}
    for name in elements:
        x = result[name]
        attacked = np.where(generator.random(before.num) < rate)[0]
        noise = generator.uniform(-scale, scale, size=x[attacked].shape)
        std = np.std(x, axis=0, keepdims=True)
        x[attacked] = 30 * noise if name == "reward" else x[attacked] + noise * std
    return result


SETTINGS = [(0.3, 1.0, 0), (0.7, 0.5, 3), (1.0, 2.0, 1)]


@pytest.mark.parametrize(
    "what", [*ELEMENTS, ("action", "reward"), ("dynamics", "observation"), ELEMENTS], ids=str
)
@pytest.mark.parametrize(("rate", "scale", "seed"), SETTINGS)
def test_random_corruption_is_the_protocols(
    what: Any, rate: float, scale: float, seed: int
) -> None:
    before = dataset()
    after = corruption.corrupt(before, what=what, how="random", rate=rate, scale=scale, seed=seed)
    chosen = (what,) if isinstance(what, str) else what
    elements = [name for name in ELEMENTS if name in chosen]
    expected = randomly(before, elements, rate, scale, seed)
    for name in ELEMENTS:
        array = np.asarray(getattr(after.transitions, FIELDS[name]))
        np.testing.assert_array_equal(array, expected[name])
        assert array.dtype == np.float32
    for name in ("terminated", "truncated"):
        assert getattr(after.transitions, name) is getattr(before.transitions, name)
    for name in ("name", "env", "reference", "action_bounds", "complete", "max_episode_steps"):
        assert getattr(after, name) is getattr(before, name)
    assert [note["what"] for note in after.provenance["corruptions"]] == elements


def test_the_one_given_stays_as_it_is() -> None:
    before, copy = dataset(), jax.tree.map(np.array, dataset().transitions)
    corruption.corrupt(before, what=ELEMENTS, how="random", rate=1.0)
    jax.tree.map(np.testing.assert_array_equal, before.transitions, copy)
    assert "corruptions" not in before.provenance


def test_adversarial_rewards_turn_their_sign_without_an_attacker() -> None:
    before = dataset()
    after = corruption.corrupt(before, what="reward", how="adversarial", scale=2.0, seed=4)
    mask = np.random.RandomState(4).random(before.num) < 0.3
    reward = np.asarray(before.transitions.reward)
    np.testing.assert_array_equal(after.transitions.reward, np.where(mask, -2.0 * reward, reward))


class Critics:
    """The attacker's values in float64, with slopes by hand."""

    def __init__(self, attacker: corruption.Attacker) -> None:
        state = attacker.state.state
        self.actor, self.critics = reference.mlp(state.actor), reference.critics(state.critic)

    def value(self, element: str, observation: Any, action: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean value [B] and its slope in what moves [B, D]."""
        size = observation.shape[1]
        if element == "dynamics":
            output, inputs = reference.forward(self.actor, observation)
            action = np.tanh(output[:, : output.shape[1] // 2])
        q, slopes = [], []
        for critic in self.critics:
            value, rows = reference.forward(critic, np.concatenate([observation, action], axis=1))
            q.append(value[:, 0])
            slopes.append(reference.backward(critic, rows, np.ones_like(value))[1])
        of_observation, of_action = np.split(np.mean(slopes, axis=0), [size], axis=1)
        if element == "dynamics":
            change = of_action * (1.0 - action**2)
            change = np.concatenate([change, np.zeros_like(action)], axis=1)
            of_observation = of_observation + reference.backward(self.actor, inputs, change)[1]
        return np.mean(q, axis=0), of_action if element == "action" else of_observation


def attacked(
    critics: Critics, before: datasets.OfflineDataset, element: str, scale: float, seed: int
) -> tuple[Any, ...]:
    """Rows, start and end of z, and std, by section 12.3: ten chunks, and a fresh Adam for each
    step.
    """
    rows = np.flatnonzero(np.random.RandomState(seed).random(before.num) < 0.3)
    observation, action = pairs(before, element)
    std = np.std(np.asarray(getattr(before.transitions, FIELDS[element]), np.float64), axis=0)
    shape, key = (len(rows), len(std)), [seed, ELEMENTS.index(element)]
    start = 2 * scale * std * (np.random.default_rng(key).random(shape, np.float32) - 0.5)
    ends = []
    sizes = [len(rows) // 10] * 9
    for part in np.split(np.arange(len(rows)), np.cumsum(sizes)):
        z = start[part]
        for _ in range(100):
            moved = [observation[rows[part]], action[rows[part]]]
            moved[element == "action"] = moved[element == "action"] + z * std
            slope = critics.value(element, *moved)[1] * std / len(part)
            first, second = 0.1 * slope, 0.001 * slope**2
            step = 0.01 * scale * (first / 0.1) / (np.sqrt(second / 0.001) + 1e-8)
            z = np.clip(z - step, -scale, scale)
        ends.append(z)
    return rows, start, np.concatenate(ends), std


def pairs(before: datasets.OfflineDataset, element: str) -> tuple[np.ndarray, np.ndarray]:
    fields = before.transitions
    where = fields.next_observation if element == "dynamics" else fields.observation
    return np.asarray(where, np.float64), np.asarray(fields.action, np.float64)


@pytest.mark.learn
@pytest.mark.parametrize("element", ["observation", "action", "dynamics"])
@pytest.mark.parametrize(("scale", "seed"), [(1.0, 0), (0.5, 2)])
def test_attacks_are_the_protocols(
    attacker: corruption.Attacker, element: Any, scale: float, seed: int
) -> None:
    before, critics = dataset(), Critics(attacker)
    options = {"how": "adversarial", "scale": scale, "seed": seed, "attacker": attacker}
    after = corruption.corrupt(before, what=element, **options)
    rows, start, z, std = attacked(critics, before, element, scale, seed)
    old, new = (
        np.asarray(getattr(x.transitions, FIELDS[element]), np.float64) for x in (before, after)
    )
    np.testing.assert_array_equal(np.delete(old, rows, axis=0), np.delete(new, rows, axis=0))
    moved = (new[rows] - old[rows]) / std
    assert np.abs(moved).max() <= scale * (1 + 1e-4), "inside the box"
    # At a kink, float32 and float64 may step to different sides.
    assert (np.abs(moved - z) < 1e-3 * scale).mean() > 0.95
    if element != "action":
        assert np.abs(start).max() > scale, "the std is in the start already"

    def worth(moved: np.ndarray) -> np.ndarray:
        pair = [x[rows] for x in pairs(before, element)]
        pair[element == "action"] = moved
        return critics.value(element, *pair)[0]

    noise = np.random.default_rng(0).uniform(-scale, scale, size=z.shape) * std
    attack, none, random = (worth(x) for x in (new[rows], old[rows], old[rows] + noise))
    assert (attack < none).mean() > 0.9
    assert (attack < random).mean() > 0.8, "random noise of the same scale does less"
    assert attack.mean() < min(random.mean(), none.mean())


@pytest.mark.slow
def test_later_attacks_meet_what_was_corrupted_before(attacker: corruption.Attacker) -> None:
    before, options = dataset(), {"how": "adversarial", "attacker": attacker}
    after = corruption.corrupt(before, what=["action", "observation"], **options)
    alone = corruption.corrupt(before, what="observation", **options)
    np.testing.assert_array_equal(after.transitions.observation, alone.transitions.observation)
    generator = np.random.RandomState(0)
    rows = [np.flatnonzero(generator.random(before.num) < 0.3) for _ in range(2)][1]
    np.testing.assert_array_equal(np.flatnonzero(changed(before, after, "action")), rows)
    both = np.intersect1d(rows, np.flatnonzero(changed(before, after, "observation")))
    (met, new), (_, old) = ([x[both] for x in pairs(of, "action")] for of in (after, before))
    q = Critics(attacker).value
    assert (q("action", met, new)[0] < q("action", met, old)[0]).mean() > 0.9


@pytest.mark.slow
def test_calls_of_any_size_give_the_same(
    attacker: corruption.Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = functools.partial(
        corruption.corrupt, dataset(), what="action", how="adversarial", attacker=attacker
    )
    whole = attack().transitions.action
    monkeypatch.setattr(corruption, "ROWS", 64)
    np.testing.assert_allclose(attack().transitions.action, whole, atol=1e-5)


def test_agents_of_all_kinds_but_streams_have_values() -> None:
    agents = map(registry.load_agent, registry.names())
    agents = [agent for agent in agents if hasattr(agent, "value")]
    kinds = {agent.experience(agent.Config()).kind for agent in agents}
    assert kinds == {"dataset", "replay", "rollout"}


@pytest.mark.parametrize(
    ("inputs", "seen"), [(Raw(), 9.0), (Running(), 10.0), (OfData(), 8.5 / 0.101)], ids=str
)
def test_attackers_see_observations_as_their_updates_do(inputs: Raw, seen: float) -> None:
    value = lambda state, observation, action, config: observation[..., 2]  # noqa: E731
    statistics = normalise.Statistics(jnp.ones(()), jnp.full(3, 0.5), jnp.full(3, 0.01))
    module = AttackedAgent(types.SimpleNamespace(value=value))
    state = AgentState(None, statistics, inputs)
    shown = module.value(state, jnp.array([[0.6, 0.4, 9.0]]), jnp.zeros((1, 2)), None)
    np.testing.assert_allclose(shown, [seen], rtol=1e-4)


def test_what_was_done_is_noted(attacker: corruption.Attacker) -> None:
    options = {"how": "adversarial", "seed": 7, "attacker": attacker}
    after = corruption.corrupt(dataset(), what=["action", "reward"], **options)
    action, reward = after.provenance["corruptions"]
    assert action.items() >= {"how": "adversarial", "rate": 0.3, "scale": 1.0, "seed": 7}.items()
    assert action["rows"] == changed(dataset(), after, "action").sum()
    beyond = (np.abs(after.transitions.action) > 1).any(axis=1).sum()
    assert action["rows_beyond_bounds"] == beyond > 0
    origin = {"run": "edac", "agent": "edac", "training_step": 50}
    assert action["attacker"].items() >= origin.items()
    assert "attacker" not in reward
    json.dumps(after.provenance)
    twice = corruption.corrupt(after, what="reward", how="random").provenance["corruptions"]
    assert [note["how"] for note in twice] == ["adversarial", "adversarial", "random"]


@pytest.mark.parametrize("name", ["corrupted.npz", "corrupted.hdf5"])
@pytest.mark.parametrize("bound", [1.0, 2.0])
def test_corrupted_files_read_back_as_the_same(tmp_path: Path, name: str, bound: float) -> None:
    after = corruption.corrupt(dataset(bound=bound), what=ELEMENTS, how="random")
    assert np.abs(after.transitions.action).max() > 1.1
    path = datasets.write(after, tmp_path / name)
    copy = datasets.load(str(path))
    same(copy, after)
    np.testing.assert_array_equal(copy.action_bounds, after.action_bounds)
    assert copy.provenance["corruptions"] == after.provenance["corruptions"]
    same(datasets.load(str(datasets.write(copy, tmp_path / f"again-{name}"))), after)
    part = datasets.join([copy, dataset(bound=bound)], "joined")
    same(datasets.load(str(datasets.write(part, tmp_path / f"joined-{name}"))), part)
    assert np.abs(datasets.load(str(path), clip_actions=True).transitions.action).max() == 1.0
    assert "actions_out_of_bounds" in [finding.name for finding in datasets.check(copy)]


def test_actions_beyond_bounds_are_refused_where_nothing_corrupted_them(tmp_path: Path) -> None:
    after = corruption.corrupt(dataset(), what="observation", how="random")
    wide = after.transitions.replace(action=2.0 * np.asarray(after.transitions.action))
    path = datasets.write(dataclasses.replace(after, transitions=wide), tmp_path / "a.npz")
    with pytest.raises(ValueError, match="outside"):
        datasets.load(str(path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rate": 1.1},
            r"^rate is 1\.1, it must be in \[0, 1\]: 0\.3 corrupts about three rows of ten\.$",
        ),
        ({"rate": float("nan")}, r"^rate is nan, it must be in"),
        ({"scale": -1.0}, r"^scale is -1, it must be finite and at least 0\.$"),
        ({"scale": float("inf")}, r"^scale is inf, it must be finite"),
        ({"how": "adversary"}, r"^how is 'adversary', it must be 'random' or 'adversarial'\.$"),
        (
            {"what": "actions"},
            r"^what is 'actions', it must be one of observation, action, reward, dynamics, or sev",
        ),
        ({"what": []}, r"^what is \[\], it must be one of"),
        ({"what": ["reward", "reward"]}, r"or several of them, each once\.$"),
        (
            {"how": "adversarial"},
            r"^how is 'adversarial', which needs an attacker: .* rljax train edac --data test$",
        ),
    ],
)
def test_refuses(changes: dict[str, Any], message: str) -> None:
    options = {"what": "action", "how": "random"} | changes
    with pytest.raises(ValueError, match=message):
        corruption.corrupt(dataset(), **options)


def test_refuses_an_attacker_of_other_dimensions(
    attacker: corruption.Attacker, folder: Path
) -> None:
    message = r"observes \(3,\) and acts in 2 dimensions, 'test' has .* and 1 action dim"
    with pytest.raises(ValueError, match=message):
        corruption.corrupt(dataset(actions=1), what="action", how="adversarial", attacker=attacker)
    with pytest.raises(ValueError, match=r"^no learner 1: the run has 1, 0 to 0\.$"):
        load_attacker(folder, 1)
    with pytest.raises(ValueError, match="nowhere"):
        load_attacker("nowhere")


@pytest.mark.parametrize(
    "value", [None, lambda *inputs: jnp.zeros((2, 5)), lambda *inputs: jnp.zeros((4, 2, 2))]
)
def test_refuses_an_attacker_without_values(attacker: corruption.Attacker, value: Any) -> None:
    functions = {"act": attacker.module.module.act} | ({} if value is None else {"value": value})
    other = dataclasses.replace(attacker, module=AttackedAgent(types.SimpleNamespace(**functions)))
    with pytest.raises(
        ValueError, match=r"is of agent 'edac', which has no `value` that gives one number for an"
    ):
        corruption.corrupt(dataset(), what="action", how="adversarial", attacker=other)


def test_refuses_choices() -> None:
    clean = dataset()
    choices = clean.transitions.replace(action=np.zeros(clean.num, np.int32))
    discrete = dataclasses.replace(clean, transitions=choices, action_bounds=None)
    cases = [("action", "random"), ("observation", "adversarial")]
    for what, how in cases:
        with pytest.raises(
            ValueError,
            match=r"^actions of 'test' are choices, which have neither a std nor a slope",
        ):
            corruption.corrupt(discrete, what=what, how=how)
    cases = [("dynamics", "random"), ("reward", "adversarial")]
    for what, how in cases:
        assert changed(discrete, corruption.corrupt(discrete, what=what, how=how), what).any()
