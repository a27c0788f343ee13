"""R2D2 against float64 NumPy: whole updates with an unrolled memory, and exploration."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import agent
from rljax.agent import MEMORY, EnvSpec, Transition
from rljax.agents import r2d2
from rljax.learning import registry
from rljax.networks import memories
from rljax.runs import records, run
from tests.agents import actor_critic, reference
from tests.helpers import small_runs

ACTIONS, STEPS, BURN_IN, SIZE, WIDTH = 4, 7, 2, 3, 4
SPEC = EnvSpec("test/Example-v0", (3,), ACTIONS, discrete=True)
CONFIG = r2d2.Config(
    batch_size=SIZE,
    length=STEPS - BURN_IN,
    burn_in=BURN_IN,
    overlap=2,
    n_step=3,
    hidden=(6,),
    memory_hidden=(WIDTH,),
    learning_rate=1e-2,
    target_every=1,
    target_rate=0.5,
    discount=0.9,
    rescale_slope=0.1,
    activation="tanh",
)
KEY = jax.random.key(0)

update = jax.jit(r2d2.update)
act = jax.jit(r2d2.act, static_argnames="explore")
fresh = functools.partial(reference.state, r2d2, SPEC)


def sequences(seed: int = 0) -> Transition:
    """Sequences [T, B] with every kind of end, the memories before them, and weights."""
    generator = np.random.default_rng(seed)
    batch = jax.tree.map(
        lambda x: x.reshape(STEPS, SIZE, *x.shape[1:]),
        reference.choices(ACTIONS, seed, STEPS * SIZE),
    )
    kinds = generator.permutation(STEPS * SIZE).reshape(STEPS, SIZE)
    terminated, truncated = kinds <= 1, (kinds >= 1) & (kinds <= 3)
    first = np.concatenate([np.zeros((1, SIZE), bool), (terminated | truncated)[:-1]])
    extras = {
        MEMORY: (jnp.asarray(generator.normal(size=(SIZE, WIDTH)), jnp.float32),),
        "first": first,
        "weight": jnp.asarray(generator.uniform(0.2, 1.0, SIZE), jnp.float32),
        "row": jnp.arange(SIZE, dtype=jnp.int32),
    }
    batch = batch.replace(terminated=terminated, truncated=truncated, extras=extras)
    return jax.tree.map(jnp.asarray, batch)


def example() -> tuple[EnvSpec, r2d2.Config, Transition]:
    batch = sequences()
    del batch.extras["row"]
    return SPEC, CONFIG, batch


class Reference(actor_critic.ActorCritic):
    """R2D2 in float64, one step of one sequence at a time; gradients by differences."""

    def __init__(self, state: r2d2.State, config: r2d2.Config) -> None:
        super().__init__(state, config)
        self.adams["critic"] = reference.Adam(config.learning_rate, config.adam_epsilon)

    def step(
        self, p: list[np.ndarray], observation: np.ndarray, h: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """h(Q) of all actions, and the next memory."""
        x = np.tanh(observation @ p[0] + p[1])
        h = reference.gru(p[2:6], x, h)
        q = h @ p[6] + p[7]
        return (q[:1] + q[1:] - q[1:].mean() if self.config.dueling else q), h

    def unrolled(
        self, p: Any, batch: Any, b: int, h: np.ndarray, begin: int, end: int
    ) -> tuple[Any, Any, np.ndarray]:
        """Of steps from `begin` to `end` of sequence b:
        values, those of successors, and the memory after them.
        """
        now, after = [], []
        for t in range(begin, end):
            h = np.zeros(WIDTH) if batch.extras["first"][t, b] else h
            q, h = self.step(p, batch.observation[t, b], h)
            now.append(q)
            after.append(self.step(p, batch.next_observation[t, b], h)[0])
        return np.asarray(now), np.asarray(after), h

    def squash(self, x: float) -> float:
        """h(x)."""
        if not self.config.rescale:
            return x
        return float(np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + self.config.rescale_slope * x)

    def unsquash(self, y: float) -> float:
        """h^-1(y), by bisection."""
        if not self.config.rescale:
            return y
        low, high = -1e4, 1e4
        for _ in range(200):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.squash(middle) < y else (low, middle)
        return low

    def burnt_in(self, p: Any, batch: Any, b: int) -> np.ndarray:
        """The memory after the burn-in of sequence b."""
        h = batch.extras[MEMORY][0][b] if MEMORY in batch.extras else np.zeros(WIDTH)
        return self.unrolled(p, batch, b, h, 0, self.config.burn_in)[2]

    def targets(self, batch: Any) -> np.ndarray:
        """h(R^n_t) of the steps after the burn-in, [T, B]."""
        config = self.config
        found = np.zeros((STEPS - config.burn_in, SIZE))
        for b in range(SIZE):
            after = {}
            for name, p in (("critic", self.critic), ("target", self.target_critic)):
                h = self.burnt_in(p, batch, b)
                after[name] = self.unrolled(p, batch, b, h, config.burn_in, STEPS)[1]
            for t in range(config.burn_in, STEPS):
                total, factor = 0.0, 1.0
                for later in range(t, min(t + config.n_step, STEPS)):
                    total += factor * batch.reward[later, b]
                    factor *= config.discount
                    if batch.terminated[later, b] or batch.truncated[later, b]:
                        break
                row = later - config.burn_in
                action = after["critic" if config.double else "target"][row].argmax()
                value = self.unsquash(after["target"][row][action])
                total += 0.0 if batch.terminated[later, b] else factor * value
                found[t - config.burn_in, b] = self.squash(total)
        return found

    def update(self, batch: Any, key: Any, step: int) -> dict[str, Any]:
        config, target = self.config, self.targets(batch)
        begin = config.burn_in
        memories = [self.burnt_in(self.critic, batch, b) for b in range(SIZE)]

        def values(p: Any) -> np.ndarray:
            each = [self.unrolled(p, batch, b, memories[b], begin, STEPS)[0] for b in range(SIZE)]
            action = batch.action[begin:].T[..., None]
            return np.take_along_axis(np.stack(each), action, axis=-1)[..., 0].T

        def loss(p: Any) -> float:
            # Acme, agents/jax/r2d2/learning.py: 0.5 * square(td).sum(axis=0), then the weights
            # and the mean over sequences.
            of_sequences = np.square(values(p) - target).sum(axis=0) / 2
            return float((batch.extras["weight"] * of_sequences).mean())

        q = values(self.critic)
        error = np.abs(q - target)
        metrics: dict[str, Any] = {"critic/loss": loss(self.critic)}
        metrics |= {"critic/q": np.mean([self.unsquash(x) for x in q.ravel()])}
        metrics |= {"critic/target": np.mean([self.unsquash(x) for x in target.ravel()])}
        eta = config.priority_max
        metrics |= {"priorities": eta * error.max(axis=0) + (1 - eta) * error.mean(axis=0)}
        gradient = reference.differences(loss, self.critic)
        self.move("critic", reference.limited(gradient, config.max_grad_norm or None))
        self.follow("critic")
        return metrics


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "no-burn-in": {"burn_in": 0, "length": STEPS, "rescale": False},
    "zero": {"stored_memory": False, "double": False, "max_grad_norm": 0.1},
    "plain": {"dueling": False, "n_step": 1, "memory": "gru"},
    "long": {"n_step": 20},
}


@reference.cases(CASES)
def test_updates_equal_the_paper(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)

    def drawn(seed: int) -> Transition:
        batch = sequences(seed)
        if not config.stored_memory:
            batch.extras.pop(MEMORY)
        return batch

    reference.assert_updates(update, fresh(config), config, Reference, drawn, range(2))


def test_each_environment_explores_by_its_rank() -> None:
    state = fresh(CONFIG)
    expected = [0.4 ** (1.0 + 7.0 * i / 4) for i in range(5)]
    for shape, values in (((5,), expected), ((1,), [0.4**4.5]), ((), 0.4**4.5)):
        np.testing.assert_allclose(r2d2.epsilon(state, shape, CONFIG), values, rtol=1e-5)
    observation = jnp.broadcast_to(jnp.ones(3), (3000, 5, 3))
    explored, _, _ = act(state, observation, KEY, CONFIG, explore=True)
    greedy, _, _ = act(state, observation, KEY, CONFIG, explore=False)
    share = (np.asarray(explored) != np.asarray(greedy)).mean(axis=0) * ACTIONS / (ACTIONS - 1)
    np.testing.assert_allclose(share, expected, atol=0.03)


def test_the_share_of_uniform_actions_can_fall() -> None:
    config = dataclasses.replace(
        CONFIG, exploration="falling", epsilon_steps=640.0, num_envs=4, num_steps=8
    )
    for steps, expected in ((0, 1.0), (10, 1.0 - 0.95 / 2), (20, 0.05), (90, 0.05)):
        state = fresh(config).replace(steps=jnp.asarray(steps, jnp.int32))
        np.testing.assert_allclose(r2d2.epsilon(state, (4,), config), expected, rtol=1e-5)
    assert r2d2.schedule(config, 2_000.0).epsilon_steps == 640.0
    share = dataclasses.replace(config, epsilon_steps=0.25)
    assert r2d2.schedule(share, 2_000.0).epsilon_steps == 500.0


def test_acting_step_by_step_is_the_sequence() -> None:
    state, batch = fresh(CONFIG), sequences()
    (memory,), actions = batch.extras[MEMORY], []
    for first, observation in zip(batch.extras["first"], batch.observation, strict=True):
        memory = (jnp.where(first[:, None], 0.0, memory),)
        action, _, (memory,) = act(state, observation, KEY, CONFIG, explore=False, memory=memory)
        actions.append(action)
    outputs = memories.embedded(state.critic.parameters, batch)
    expected = r2d2.of_actions(outputs, CONFIG).argmax(axis=-1)
    np.testing.assert_array_equal(jnp.stack(actions), expected)


def test_targets_look_at_allowed_actions_alone() -> None:
    config, spec = dataclasses.replace(CONFIG, dueling=False), reference.masked_spec(ACTIONS)
    allowed = jnp.zeros((STEPS, SIZE, ACTIONS), bool).at[..., 1].set(True)
    batch = reference.masked(sequences(), allowed, allowed)
    state, compiled, targets = reference.state(r2d2, spec, config), jax.jit(r2d2.critic_loss), []
    critic = state.critic.parameters
    for value in (0.0, 50.0):  # of the forbidden actions, in critic and target
        bias = {"bias": jnp.asarray([value, 0.3, value, value])}
        head = {"output": critic.params["head"]["output"] | bias}
        other = critic.replace(params=critic.params | {"head": head})
        whole = state.replace(target_critic=other)
        targets.append(compiled(other, whole, batch, batch, config)[1]["critic/target"])
    np.testing.assert_array_equal(*targets)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"overlap": 5}, r"--config.overlap is 5, it must be less than --config.length 5"),
        ({"burn_in": -1}, r"--config.burn-in is -1"),
        ({"memory_hidden": ()}, r"--config.memory gru needs --config.memory-hidden"),
        ({"priority_max": 1.5}, r"--config.priority-max is 1.5"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        agent.check(r2d2, SPEC, dataclasses.replace(CONFIG, **changes))


@pytest.mark.parametrize(
    "task", ["with-last-step/atari-games/Pong", "with-last-step/envpool/Pong-v5"]
)
def test_the_preset_of_atari_is_the_papers(task: str) -> None:
    """Kapturowski et al., section 2.3 and the table of hyperparameters in the appendix."""
    config = registry.preset("r2d2", r2d2, task)
    r2d2.experience(config).check()
    expected = {
        "num_envs": 256,
        "length": 80,
        "burn_in": 40,
        "overlap": 40,
        "replay_size": 4_000_000,
        "priority_exponent": 0.9,
        "priority_max": 0.9,
        "correction": 0.6,
        "discount": 0.997,
        "n_step": 5,
        "batch_size": 64,
        "learning_rate": 1e-4,
        "adam_epsilon": 1e-3,
        "max_grad_norm": 0.0,
        "target_every": 2_500,
        "rescale_slope": 1e-3,
        "memory": "lstm",
        "memory_hidden": (512,),
        "hidden": (),
        "head_hidden": (512,),
        "dueling": True,
        "double": True,
    }
    assert {name: getattr(config, name) for name in expected} == expected
    assert not r2d2.experience(config).clip_rewards


def test_continuous_actions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"agent 'r2d2' .*ppo"):
        r2d2.check(dataclasses.replace(SPEC, discrete=False), CONFIG)


def test_a_replay_that_holds_no_sequence_is_refused_before_anything_compiles(
    tmp_path: Path,
) -> None:
    message = r"sequences of 30 steps in --config.num-envs 16 environments need"
    config = {"num_envs": 16, "length": 24, "burn_in": 6, "replay_size": 100}
    with pytest.raises(ValueError, match=message):
        small_runs.train("r2d2", "rljax/Memory-discrete", 100, tmp_path / "run", config)


@pytest.mark.learn
@pytest.mark.parametrize(
    ("env", "changes", "seeds"),
    [
        pytest.param(
            "rljax/Memory-discrete", {"normalise_observations": True}, 2, id="program-population"
        ),
        pytest.param(
            "rljax/Memory-discrete",
            {"stored_memory": False, "priority_exponent": 0.0},
            1,
            id="program",
        ),
        pytest.param("CartPole-v1", {"memory": "lstm"}, 2, id="host-population"),
    ],
)
def test_a_resumed_run_is_the_same_bit_for_bit(
    env: str, changes: dict[str, Any], seeds: int, tmp_path: Path
) -> None:
    config = {"hidden": (4,), "memory_hidden": (4,), "warmup_steps": 20} | changes
    settings: dict[str, Any] = {"seeds": seeds, "log_every": 40}
    settings |= {"eval_every": 200, "checkpoint_every": 200}
    small_runs.train("r2d2", env, 400, tmp_path / "whole", config, **settings)
    small_runs.train("r2d2", env, 200, tmp_path / "half", config, **settings)
    run.resume(tmp_path / "half", 400)
    small_runs.assert_same(tmp_path / "whole", tmp_path / "half")


@pytest.mark.learn
def test_learns_what_an_agent_without_memory_cannot(tmp_path: Path) -> None:
    """MemoryChain: the first observation says which last action is right."""
    returns = {}
    settings: dict[str, Any] = {"seeds": 3, "eval_every": 20_480, "eval_episodes": 100}
    for name in ("r2d2", "dqn"):
        out = tmp_path / name
        run.train(name, "gymnax/MemoryChain-bsuite", 20_480, out=out, **settings)
        returns[name] = records.read_summary(out)["final"]["mean"]
    assert returns["r2d2"] >= 0.9
    assert abs(returns["dqn"]) <= 0.3
