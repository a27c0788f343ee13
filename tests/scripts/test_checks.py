"""The scripts that compare with other people's files: what they take, draw and table."""

from __future__ import annotations

import json
from types import SimpleNamespace

import jax
import numpy as np

from rljax.agent import EnvSpec
from rljax.analysis.comparison import mean_difference
from rljax.training import registry
from scripts.checks import authors_pairs, compare_returns, compare_updates, watch_authors_file


def test_references_are_tabled_with_the_interval_of_the_difference(tmp_path):
    out = tmp_path / "theirs.json"
    mine, other = [100.0, 110.0, 120.0], [90.0, 95.0, 100.0]
    each = {
        "label": "TD3+BC",
        "updates": 10_000,
        "seeds": [0, 1, 2],
        "returns": {"ours": [mine, mine], "theirs": [mine, other]},
        "differences": [mean_difference(mine, mine), mean_difference(mine, other)],
        "speed": {"ours, one learner": [300.0, 310.0, 290.0], "theirs": [100.0, 90.0, 150.0]},
    }
    text = compare_returns.table({"comparisons": {"td3_bc": each}})
    assert "| TD3+BC | 10,000 | 3 | 110 [100, 120] | 95 [90, 100] | +15 [" in text
    assert "] | +0 [" in text
    assert text.endswith("| 300 | 100 | 3.0 |\n")
    assert len({line.count("|") for line in text.splitlines()}) == 1, "all rows have as many cells"
    out.write_text(json.dumps({"evaluations": [{"returns": [1.0] * 10}, {"returns": [1.0] * 9}]}))
    assert not compare_returns.finished(out), "an interrupted process is run again"
    part = {"evaluations": [{"began": 8.0, "ended": 10.0}, {"began": 30.0, "ended": 32.0}]}
    assert compare_returns.rate(part, 5_000) == 250.0, "updates alone count, not evaluations"


def test_an_agent_takes_anothers_parameters():
    module = registry.load_agent("td3_bc")
    state = module.init(jax.random.key(0), EnvSpec("data", (3,), 2), module.Config(hidden=(4, 4)))
    sizes = {"actor": (1, [3, 4, 4, 2]), "critic": (2, [5, 4, 4, 1])}
    rng = np.random.default_rng(0)
    layers = ("hidden_0", "hidden_1", "output")
    given = {
        f"first/{name}/{i}/{layer}/{kind}": rng.normal(size=widths[j : j + 2] if kind == "kernel" else widths[j + 1])
        for name, (members, widths) in sizes.items()
        for i in range(members)
        for j, layer in enumerate(layers)
        for kind in ("kernel", "bias")
    }
    for name in sizes:
        taken = compare_updates.parameters_of(compare_updates.replaced(state, name, given), name)
        assert jax.tree.map(np.shape, taken) == jax.tree.map(np.shape, compare_updates.parameters_of(state, name))
        found = dict(compare_updates.leaves(taken))
        assert {f"first/{name}/{key}" for key in found} == {key for key in given if f"/{name}/" in key}
        for key, value in found.items():
            np.testing.assert_array_equal(value, given[f"first/{name}/{key}"])


def test_losses_of_updates_without_one_do_not_count():
    theirs = np.array([np.nan, 2.0] * 10)
    found = compare_updates.relative(np.where(np.arange(20) == 15, 3.0, 2.0), theirs)
    assert found == {"first 10": 0.0, "all": 0.5}


def test_updates_draw_given_numbers_in_place_of_random_ones():
    rng = np.random.default_rng(0)
    shapes = [(5, 2, 3), (5, 2, 3), (5, 2, 4, 3), (5, 2, 4, 3)]  # 5 updates, batches of 2, 4 candidates of 3 numbers
    actor, target, present, following = normal = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    uniform = rng.uniform(size=(5, 2, 4, 3)).astype(np.float32)
    noise = authors_pairs.cql_noise({"normal": normal, "uniform": [uniform]})

    @jax.jit
    def drawn(noise):
        with compare_updates.given_noise(noise):
            key = jax.random.key(0)
            both, first = jax.random.normal(key, (5, 4, 3)), jax.random.normal(key, shape=(2, 3))
            return both, jax.random.uniform(key, (4, 2, 3), minval=-1.0, maxval=1.0), first

    both, candidates, first = drawn(jax.tree.map(lambda x: x[3], noise))  # of the fourth update
    np.testing.assert_array_equal(first, actor[3])
    np.testing.assert_array_equal(both[0, 2:], target[3])
    np.testing.assert_array_equal(both[1:, :2], present[3].swapaxes(0, 1))
    np.testing.assert_array_equal(both[1:, 2:], following[3].swapaxes(0, 1))
    np.testing.assert_array_equal(candidates, uniform[3].swapaxes(0, 1))
    assert jax.random.normal(jax.random.key(0), (2,)).shape == (2,), "afterwards numbers are random again"


def test_draws_of_another_agent_are_seen_in_order_and_some_repeated():
    place = SimpleNamespace(draw=iter(np.arange(6.0).reshape(6, 1)).__next__)
    updates = []
    for _ in range(2):
        with watch_authors_file.recorded_draws([("normal", place, "draw")], {1: 0}) as drawn:
            seen = [place.draw() for _ in range(3)]
        np.testing.assert_array_equal(seen, drawn["normal"])
        updates.append(drawn)
    (draws,) = watch_authors_file.stacked(updates).values()
    np.testing.assert_array_equal(draws, [[[0], [2]], [[0], [2]], [[1], [3]]], "the second is the first again")
    np.testing.assert_array_equal(place.draw(), [4.0], "afterwards nothing is repeated")


def test_diffusion_draws_its_chains_at_once():
    rng = np.random.default_rng(0)
    normal = [rng.normal(size=(5, 2, 3)) for _ in range(7)]  # 5 updates, batches of 2, chains of 2 steps from noise
    drawn = {"normal": normal, "integer": [np.zeros((5, 2)), np.ones((5, 2))], "uniform": [np.linspace(0, 1, 5)]}
    noise = authors_pairs.diffusion_noise(drawn)
    target, noisy, policy = (each[4] for each in noise["normal"])  # of the last update
    np.testing.assert_array_equal(target, [each[4] for each in normal[:3]])
    np.testing.assert_array_equal(noisy, normal[3][4])
    np.testing.assert_array_equal(policy, [each[4] for each in normal[4:]])
    np.testing.assert_array_equal(noise["randint"], [np.ones((5, 2))], "not those that chose the batch")
    np.testing.assert_array_equal(noise["bernoulli"], [[False, False, False, True, True]])


def test_an_actor_of_several_networks_takes_the_parameters_of_one():
    module = registry.load_agent("fql")
    state = module.init(jax.random.key(0), EnvSpec("data", (3,), 2), module.Config(hidden=(4,)))
    names = [
        f"first/actor.flow/{name}"
        for name, _ in compare_updates.leaves(compare_updates.parameters_of(state, "actor.flow"))
    ]
    assert "first/actor.flow/0/body/hidden_0/kernel" in names
    given = {name: np.full(1, i) for i, name in enumerate(names)}
    taken = compare_updates.replaced(state, "actor.flow", given)
    assert [float(x[0]) for _, x in compare_updates.leaves(compare_updates.parameters_of(taken, "actor.flow"))] == [
        0,
        1,
        2,
        3,
    ]
    assert taken.actor.one_step is state.actor.one_step
