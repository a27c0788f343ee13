"""The agents of docs/examples do what their equations say, and nothing else knows them."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import agent as contract
from rljax import buffers, load, networks
from rljax.agent import Transition
from rljax.learning import configuration, registry
from rljax.learning.learner import Learner
from rljax.networks import distributions
from rljax.runs import records, run
from tests import test_imports, test_style
from tests.agents import reference, trees
from tests.agents.value_learning import KEY, SPEC
from tests.helpers import small_runs
from tests.helpers.counting import dataset

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
GUIDE = EXAMPLES.parent / "new_agent.md"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
SMALL: dict[str, dict[str, Any]] = {
    "crossq": {"hidden": (8,)},
    "tqc": {
        "actor_hidden": (8,),
        "critic_hidden": (8,),
        "num_critics": 3,
        "num_quantiles": 4,
        "dropped": 1,
    },
}
LINES = 200

examples = pytest.mark.parametrize("name", NAMES)


def example(name: str) -> Any:
    return registry.load_agent(str(EXAMPLES / f"{name}.py"))


def small(name: str) -> Any:
    """Networks of 8 units and batches of 5 rows."""
    return example(name).Config(**SMALL[name], batch_size=5, replay_size=40)


@functools.cache
def fresh(name: str) -> Any:
    return jax.jit(example(name).init, static_argnums=1)(KEY, SPEC, small(name))


@functools.cache
def after(name: str, step: int) -> tuple[Any, Any]:
    """One update."""
    return jax.jit(example(name).update)(
        fresh(name), reference.transitions(), KEY, jnp.asarray(step), small(name)
    )


def test_nothing_outside_their_files_knows_the_examples() -> None:
    root = EXAMPLES.parents[1]
    for folder in ("rljax", "agents", "envs"):
        for path in (root / folder).rglob("*.py"):
            assert not any(f"{name}.py" in path.read_text().lower() for name in NAMES), path


@examples
def test_examples_are_written_as_agents_are(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    assert len(text.splitlines()) <= LINES
    assert test_style.misplaced(text) == []
    assert test_style.unexplained(text) == []
    assert list(test_style.undocumented(ast.parse(text), {})) == []
    match = registry.FIRST_LINE.fullmatch(text.split('"""')[1].splitlines()[0])
    assert match is not None
    assert match["family"] in registry.FAMILIES
    packages = {module.partition(".")[0] for module in test_imports.imported(ast.parse(text))}
    assert packages <= {"__future__", "rljax", *test_imports.PACKAGES_OF_AGENTS}


@examples
def test_examples_keep_the_contract(name: str) -> None:
    """As two learners in one program."""
    module, config = example(name), small(name)
    contract.check(module, SPEC, config)
    contract.check(module, SPEC, module.Config())
    learners = Learner(module, SPEC, 2)
    hyper = learners.hyperparameters(configuration.stack(config, 2))
    state = jax.eval_shape(lambda: learners.init(jax.random.split(KEY, 2), hyper))
    changed = jax.eval_shape(lambda state: learners.update(state, hyper), state)
    assert jax.tree.structure(changed) == jax.tree.structure(state)
    seen = SPEC.shaped(4)
    for explore in (False, True):
        act = functools.partial(module.act, config=config, explore=explore)
        action, _ = jax.eval_shape(act, fresh(name), seen, KEY)
        assert (action.shape, action.dtype) == ((4, 2), jnp.float32)


@pytest.mark.slow
@examples
def test_update_moves_every_parameter(name: str) -> None:
    step = getattr(small(name), "policy_delay", 1) - 1
    state, metrics = after(name, step)
    for field in dataclasses.fields(state):
        old, new = getattr(fresh(name), field.name), getattr(state, field.name)
        if isinstance(old, networks.Trained):
            assert trees.all_differ(old.parameters, new.parameters), field.name
        else:
            assert field.name.startswith("target_")
    assert all(np.isfinite(value) for value in map(np.asarray, jax.tree.leaves(metrics)))


@pytest.mark.slow
def test_critics_of_crossq_are_normalised_over_both_halves_of_the_batch() -> None:
    crossq = example("crossq")
    config = dataclasses.replace(small("crossq"), momentum=0.5)
    state, batch = fresh("crossq"), reference.transitions()
    key, _ = jax.random.split(KEY)  # as `update` does
    critic = state.critic.parameters
    _, (moved, _) = jax.jit(crossq.critic_loss)(critic, state, batch, key, config)

    @jax.jit
    def policy(actor: Any, seen: Any) -> Any:
        return distributions.squashed(actor(seen), config).sample_and_log_prob(seed=key)

    next_action, _ = policy(state.actor, batch.next_observation)
    halves = (batch.observation, batch.action), (batch.next_observation, next_action)
    inputs = np.concatenate([np.concatenate(half, axis=-1) for half in halves])
    first = moved.collections["batch_stats"]["Normalised_0"]["BatchNorm_0"]
    np.testing.assert_allclose(first["mean"], 0.5 * inputs.mean(axis=0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(first["var"], 0.5 + 0.5 * inputs.var(axis=0), rtol=1e-4)

    new, _ = jax.jit(crossq.update)(state, batch, KEY, jnp.asarray(0), config)
    new_critic = new.critic.parameters
    # Adam moves no statistics.
    trees.assert_close(new_critic.collections, moved.collections, rtol=1e-5, atol=1e-6)
    assert not trees.equal(new_critic.params, critic.params)


@functools.cache
def windows() -> Any:
    """The draw that the guide shows."""
    (code,) = re.findall(
        r"```python\n(@buffers\.declaration\n.+?)```", GUIDE.read_text(), re.DOTALL
    )
    names: dict[str, Any] = {"buffers": buffers, "np": np, "jnp": jnp}
    exec(code, names)
    return names["Windows"](length=3)


@pytest.mark.parametrize("on_host", [True, False])
def test_the_draw_of_the_guide_cuts_windows_at_trajectories(on_host: bool) -> None:
    numbers, no = np.arange(6, dtype=np.float32), np.zeros(6, bool)
    seen, ends = numbers[:, None], np.array([False, False, False, True, False, False])
    data = windows().prepare(Transition(seen, seen, numbers, no, ends, seen, {}))
    rows = np.array([[0, 1, 3], [4, 5, 2]], np.int32)  # [U, B]
    if on_host:
        batch = windows().take(data, rows)
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(batch))
    else:
        batch = jax.jit(windows().take)(jax.tree.map(jnp.asarray, data), rows)
    expected = [[[0, 0, 0], [0, 0, 1], [1, 2, 3]], [[4, 4, 4], [4, 4, 5], [0, 1, 2]]]
    np.testing.assert_array_equal(batch.reward, expected)
    np.testing.assert_array_equal(batch.observation[..., 0], expected)
    mask = [[[0, 0, 1], [0, 1, 1], [1, 1, 1]], [[0, 0, 1], [0, 1, 1], [1, 1, 1]]]
    np.testing.assert_array_equal(batch.extras["mask"], np.array(mask, bool))


def test_the_draw_of_the_guide_is_drawn_by_a_declaration() -> None:
    """For two learners."""
    data = windows().prepare(dataset(10))
    declared = buffers.Dataset(batch_size=4, num_updates=3, draw=windows())
    keys = jax.eval_shape(jax.vmap(jax.random.key), np.zeros(2, np.uint32))
    batch = jax.eval_shape(lambda keys, data: declared.sample(None, data, keys), keys, data)
    assert batch.reward.shape == batch.extras["mask"].shape == (2, 3, 4, 3)
    assert batch.observation.shape == (2, 3, 4, 3, 2)


def test_tqc_drops_the_largest_quantiles_of_all_critics_together() -> None:
    """One critic may lose all of its quantiles."""
    quantiles = np.array(
        [[[9.0, 7.0, 8.0, 6.0]], [[1.0, 2.0, 3.0, 4.0]], [[0.0, 10.0, 5.0, -1.0]]]
    )  # [C, 1, M]
    smallest = example("tqc").truncated(jnp.asarray(quantiles), small("tqc"))
    np.testing.assert_array_equal(smallest, [[-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]])


@pytest.mark.slow
def test_critic_loss_of_tqc_is_the_papers() -> None:
    tqc, config, state, batch = example("tqc"), small("tqc"), fresh("tqc"), reference.transitions()
    loss, metrics = jax.jit(tqc.critic_loss)(state.critic.parameters, state, batch, KEY, config)

    @jax.jit
    def outputs(state: Any) -> Any:
        pi = distributions.squashed(state.actor(batch.next_observation), config)
        sample = pi.sample_and_log_prob(seed=KEY)
        later = state.target_critic(batch.next_observation, sample[0])
        return state.critic(batch.observation, batch.action), later, sample[1]

    now, later, log_prob = (np.asarray(x, np.float64) for x in outputs(state))
    number = len(later) * (config.num_quantiles - config.dropped)
    smallest = np.sort(later.swapaxes(0, 1).reshape(5, -1))[:, :number]
    soft = smallest - log_prob[:, None]  # the temperature begins at 1
    alive = config.discount * (1.0 - np.asarray(batch.terminated))[:, None]
    target = np.asarray(batch.reward)[:, None] + alive * soft
    u = target[:, None] - now[..., None]  # [C, B, M, N]
    huber = np.where(np.abs(u) <= 1, 0.5 * u**2, np.abs(u) - 0.5)
    tau = (np.arange(config.num_quantiles)[:, None] + 0.5) / config.num_quantiles
    losses = np.abs(tau - (u < 0)) * huber
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-5)
    np.testing.assert_allclose(metrics["critic/q"], now.mean(), rtol=1e-5)


def test_tqc_keeps_at_least_one_quantile_of_each_critic() -> None:
    tqc = example("tqc")
    message = r"^--config\.dropped is 25, it must be below the --config\.num-quantiles 25 "
    with pytest.raises(ValueError, match=message):
        contract.check(tqc, SPEC, tqc.Config(dropped=25))


@pytest.mark.learn
@examples
def test_examples_are_stopped_and_resumed(name: str, tmp_path: Path) -> None:
    config = SMALL[name] | {"batch_size": 32, "warmup_steps": 50, "replay_size": 300}
    file, how = str(EXAMPLES / f"{name}.py"), {"seeds": 2, "config": config, **small_runs.EVERY}
    whole = run.train(file, "rljax/Pendulum", 200, out=tmp_path / "whole", **how)
    half = run.train(file, "rljax/Pendulum", 100, out=tmp_path / "half", **how)
    run.resume(half, 200)
    small_runs.assert_same(whole, half)
    statistics = any("batch_stats" in place for place in small_runs.arrays(whole))
    assert statistics == (name == "crossq")
    assert np.abs(load(whole)(np.zeros(3))).max() <= 1.0


LEARNING: dict[str, dict[str, Any]] = {
    "crossq": {"hidden": (64, 64), "warmup_steps": 1_000},
    "tqc": {
        "actor_hidden": (64, 64),
        "critic_hidden": (64, 64),
        "actor_lr": 1e-3,
        "critic_lr": 1e-3,
    },
}


@pytest.mark.learn
@examples
def test_examples_swing_the_pendulum_up(name: str, tmp_path: Path) -> None:
    config = {
        "warmup_steps": 1_000,
        "replay_size": 50_000,
        "temperature_lr": 1e-3,
        "batch_size": 128,
        **LEARNING[name],
    }
    out = run.train(
        str(EXAMPLES / f"{name}.py"),
        "rljax/Pendulum",
        8_000,
        out=tmp_path / "run",
        config=config,
        eval_every=2_000,
        eval_episodes=10,
    )
    assert records.read_summary(out)["best"]["mean"] >= -250
