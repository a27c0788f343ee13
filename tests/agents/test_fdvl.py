"""f-DVL and XQL against float64 NumPy written from their codes."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Transition
from rljax.agents import fdvl
from rljax.learning import registry
from tests.agents import reference, value_learning
from tests.agents.value_learning import KEY, SPEC

CONFIG = fdvl.Config(**value_learning.SIZES, value_lr=3e-2)
# With biases of 0, an observation of 0 moves the last layer alone.
PROBE = {"initialisation": "torch"}


def example() -> Any:
    return SPEC, dataclasses.replace(CONFIG, decay_steps=10.0, dropout=0.1), reference.transitions()


class Reference(value_learning.NormalisedNetworks):
    """The order of hari-sikchi/DVL, with the losses of arXiv:2302.08560 and arXiv:2301.02328."""

    linear = ()  # shares of errors in Huber's linear part

    def value_loss(self, u: np.ndarray, largest: float) -> float:
        """For surpluses [K, B], critic.py."""
        if self.config.divergence == "reverse_kl":
            return self.reverse_kl(u, largest).mean()
        alpha = self.config.optimism  # --temp
        if self.config.divergence == "chi_square":
            return (alpha * np.maximum(u + u**2 / 4, 0) - (1 - alpha) * u).mean()
        return (alpha * np.maximum(u, 0) - (1 - alpha) * u).mean()

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        config, (key, key_uniform) = self.config, jax.random.split(key)
        shape = (config.uniform_actions, *batch.action.shape)
        uniform = jax.random.uniform(key_uniform, shape, minval=-1.0, maxval=1.0)
        observation, action, successor, reward, alive = value_learning.arrays(batch)
        actions = (action, *np.asarray(uniform, np.float64))
        q = np.stack([reference.smallest(self.targets, observation, x)[0] for x in actions])
        surplus = q - (old_v := value_learning.state_values(self.value, observation))
        largest = max(self.exponent(surplus).max(), -1.0)
        value_loss = self.move_value(lambda v: self.value_loss(q - v, largest), observation)
        v, next_v = (value_learning.state_values(self.value, x) for x in (observation, successor))
        metrics = self.imitate(observation, action, q[0] - v, key, step)
        y = reward + config.discount * alive * next_v
        losses, values, linear, gradients = value_learning.linear_errors(
            self.critics, observation, action, y, config.huber
        )
        self.linear = [*self.linear, linear]
        self.move_critics(gradients)
        return metrics | {
            "value/loss": value_loss,
            "value/v": old_v.mean(),
            "value/above": (surplus > 0).mean(),
            "critic/loss": losses.mean(axis=1).sum(),
            "critic/q": values.mean(),
            "critic/target": y.mean(),
        }


CASES = {
    "total variation": {},
    "chi-square, uniform actions": {
        "divergence": "chi_square",
        "optimism": 1.0,
        "uniform_actions": 2,
    },
    "chi-square, V far above": {"divergence": "chi_square", "optimism": 0.7, "above": 5.0},
    "XQL, clipped, linear errors": {
        "divergence": "reverse_kl",
        "temperature": 0.4,
        "max_exponent": 0.5,
        "huber": 0.3,
        "decay_steps": 3.0,
    },
}

update = jax.jit(fdvl.update)


def fresh(config: fdvl.Config, above: float = -0.2) -> fdvl.State:
    """By default values lie among the critics'."""
    state = reference.state(fdvl, SPEC, config)
    state.value.parameters.params["output"]["bias"] += above
    return state


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: Any) -> None:
    settings = {name: x for name, x in changes.items() if name != "above"}
    config = dataclasses.replace(CONFIG, **settings)
    state = fresh(config, changes.get("above", -0.2))
    expected = value_learning.assert_updates_equal(update, state, config, Reference)
    # Some errors are in the linear part, in the last case.
    assert (0 < np.mean(expected.linear) < 1) == ("huber" in changes)


def minimum(q: np.ndarray, **changes: Any) -> float:
    """The V of the smallest loss for values q of one state."""
    config = dataclasses.replace(CONFIG, **changes)
    batch = reference.transitions(0, len(q))
    grid = np.linspace(q.min() - 1.0, q.max() + 1.0, 4001)

    @jax.jit
    @jax.vmap
    def loss(v: Any) -> Any:
        of_v: Any = lambda observation: jnp.full((len(q), 1), v)  # noqa: E731
        loss = fdvl.value_loss(of_v, jnp.asarray(q)[None], batch, config)[0]
        if config.divergence != "reverse_kl":
            return loss
        z = jnp.minimum((jnp.asarray(q) - v) / config.temperature, config.max_exponent)
        return loss * jnp.exp(jnp.maximum(z.max(), -1.0))  # the rescaling depends on V

    return float(grid[int(np.argmin(loss(grid)))])


Q = np.random.default_rng(4).normal(size=400)


@pytest.mark.parametrize("optimism", [0.6, 0.8, 0.9])
def test_total_variation_is_a_quantile(optimism: float) -> None:
    """Pushed up with 2 lambda - 1, down with 1 - lambda: the quantile 2 - 1 / lambda."""
    value = minimum(Q, divergence="total_variation", optimism=optimism)
    assert value == pytest.approx(np.quantile(Q, 2 - 1 / optimism), abs=0.03)


def test_reverse_kl_is_the_soft_maximum() -> None:
    for temperature in (0.3, 1.0):
        value = minimum(Q, divergence="reverse_kl", temperature=temperature, max_exponent=50.0)
        expected = temperature * np.log(np.exp(Q / temperature).mean())
        assert value == pytest.approx(expected, abs=0.01)


def test_chi_square_lies_above_total_variation_and_below_the_maximum() -> None:
    both = [minimum(Q, divergence=name, optimism=0.7) for name in ("total_variation", "chi_square")]
    assert both[0] < both[1] < Q.max()


def test_far_below_the_value_chi_square_pushes_v_down() -> None:
    """The authors' max(u + u^2 / 4, 0) rises again below u = -4:
    at lambda = 1, their locomotion, nothing else holds V.
    """
    batch = reference.transitions()
    of_v: Any = lambda observation: jnp.full((5, 1), 10.0)  # noqa: E731
    config = dataclasses.replace(CONFIG, divergence="chi_square", optimism=1.0)
    values = (jnp.full((1, 5), q) for q in (12.0, 9.0, 6.0, 0.0))
    losses = [fdvl.value_loss(of_v, q, batch, config)[0] for q in values]
    np.testing.assert_allclose(losses, [3.0, 0.0, 0.0, 15.0], rtol=1e-6, atol=1e-6)


def test_v_is_normalised_and_the_critics_are_not() -> None:
    """Their learner.py: `layernorm` is V's alone, in all their configs."""
    state = jax.eval_shape(lambda: fdvl.init(KEY, SPEC, fdvl.Config()))
    assert {"norm_0", "norm_1"} <= set(state.value.parameters.params)
    assert not [x for x in state.critic.parameters.params["members"] if x.startswith("norm")]
    assert not [x for x in state.actor.parameters.mean.params if x.startswith("norm")]


def test_uniform_actions_of_discrete_spaces_are_refused() -> None:
    spec = EnvSpec("CartPole-v1", (4,), 2, discrete=True)
    with pytest.raises(ValueError, match=r"^--config\.uniform-actions is for continuous actions"):
        fdvl.check(spec, dataclasses.replace(CONFIG, uniform_actions=1))


# Of Div99/XQL dff09af, offline/reproduce/: the flags of each script that is for one set, but for
# --noise of halfcheetah-medium-v2 and --num_v_updates of antmaze-medium-diverse-v0, which no
# setting gives. AntMaze is version 0 there.
XQL = {
    "halfcheetah-medium-v2": "--max_clip=7 --temp=1",
    "halfcheetah-medium-replay-v2": "--batch_size=256 --max_clip=5 --temp=1",
    "halfcheetah-medium-expert-v2": "--max_clip=5 --temp=1",
    "hopper-medium-v2": "--max_clip=7 --temp=5",
    "hopper-medium-replay-v2": "--batch_size=256 --temp=2",
    "hopper-medium-expert-v2": "--temp=2 --sample_random_times=1",
    "walker2d-medium-v2": "--max_clip=7 --temp=10",
    "walker2d-medium-replay-v2": "--max_clip=5 --temp=5",
    "walker2d-medium-expert-v2": "--batch_size=256 --max_clip=5 --temp=2",
    "antmaze-umaze-v2": "--batch_size=256 --max_clip=7 --temp=2",
    "antmaze-umaze-diverse-v2": "--batch_size=256 --max_clip=7 --temp=5 --sample_random_times=1",
    "antmaze-medium-play-v2": "--batch_size=256 --max_clip=5 --temp=0.8",
    "antmaze-medium-diverse-v2": "--batch_size=256 --max_clip=7 --temp=0.6",
    "antmaze-large-play-v2": "--max_clip=5 --temp=0.6",
    "antmaze-large-diverse-v2": "--max_clip=5 --temp=0.55",
    "kitchen-complete-v0": "--max_clip=7 --temp=2",
    "kitchen-partial-v0": "--max_clip=7 --temp=5",
    "kitchen-mixed-v0": "--max_clip=7 --temp=8",
    # Of the README, and of the scripts for a whole domain: androit_consistent.sh.
    "pen-human-v1": "--max_clip=5 --sample_random_times=1 --temp=8",
    "door-cloned-v1": "--batch_size=256 --max_clip=7 --temp=5",
}
# Of hari-sikchi/DVL 4b7cf11, offline/README.md: one command for each domain.
README = {
    "halfcheetah-medium-expert-v2": "--f=chi-square --max_clip=5 --sample_random_times=1 --temp=1",
    "hopper-medium-v2": "--f=chi-square --sample_random_times=1 --temp=1",
    "walker2d-medium-replay-v2": "--f=chi-square --sample_random_times=1 --temp=1",
    "antmaze-large-play-v0": "--f=total-variation --max_clip=5 --temp=0.8",
    "antmaze-umaze-v2": "--f=total-variation --temp=0.8",
    "pen-human-v1": "--f=reverse-KL --max_clip=5 --sample_random_times=1 --temp=8",
    "kitchen-mixed-v0": "--f=reverse-KL --max_clip=5 --sample_random_times=1 --temp=8",
}
# Of configs/ in both: temperature, dropout_rate, opt_decay_schedule.
CONFIGS = {"antmaze": (10.0, None, False), "kitchen": (0.5, 0.1, True), "mujoco": (3.0, None, True)}


def domain(name: str) -> str:
    """The file of configs/ for a set."""
    task = name.split("-")[0]
    locomotion = task in ("halfcheetah", "hopper", "walker2d")
    return task if task == "antmaze" else "mujoco" if locomotion else "kitchen"


@pytest.mark.parametrize(
    ("variant", "name", "command"),
    [("xql", *item) for item in XQL.items()] + [(None, *item) for item in README.items()],
)
def test_presets_are_the_authors_commands(variant: str | None, name: str, command: str) -> None:
    flags = dict(flag.removeprefix("--").split("=") for flag in command.split())
    divergence = flags.get("f", "reverse-KL").replace("-", "_").lower()
    config = registry.preset("fdvl", fdvl, None, f"d4rl/{name}", variant=variant)
    assert config.divergence == divergence
    # train_offline.py's defaults.
    assert config.batch_size == int(flags.get("batch_size", 1024))
    assert config.uniform_actions == int(flags.get("sample_random_times", 0))
    if divergence == "reverse_kl":
        assert config.temperature == float(flags["temp"])
        assert config.max_exponent == float(flags.get("max_clip", 7.0))
    else:
        assert config.optimism == float(flags["temp"])
    assert (config.inverse_temperature, config.dropout, config.decay_steps == 1.0) == CONFIGS[
        domain(name)
    ]
    rewards = {"antmaze": "minus_one", "mujoco": "return_range", "kitchen": "none"}
    assert config.reward_transform == rewards[domain(name)]


@pytest.mark.parametrize("name", ["recorded.hdf5", "d4rl/maze2d-umaze-v1", "minari/x/y-v0"])
def test_xql_is_for_every_data_set(name: str) -> None:
    config = registry.preset("fdvl", fdvl, "Pendulum-v1", name, variant="xql")
    assert (config.divergence, config.batch_size) == ("reverse_kl", 256)
    # mujoco_consistent.sh
    assert (config.temperature, config.max_exponent, config.uniform_actions) == (2.0, 7.0, 0)
