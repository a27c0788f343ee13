"""A user's own environment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax import envs, trust
from rljax.cli import parsing, training
from rljax.envs.environment import EnvironmentFailed
from rljax.learning.loop import Training
from rljax.runs import experiments, records
from tests.helpers import small_runs

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"
RECIPE = next(
    block
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    if "Corridor" in block
)


def written(tmp_path: Path, source: str) -> str:
    (tmp_path / "corridor.py").write_text(source)
    return f"{tmp_path}/corridor.py:Corridor"


def of_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The words of the page's command."""
    (command,) = re.findall(r"^rljax (train sac --env \./corridor.*)$", PAGE.read_text(), re.M)
    written(tmp_path, RECIPE)
    monkeypatch.chdir(tmp_path)
    return command.split()


def test_the_command_of_the_page_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = of_the_page(monkeypatch, tmp_path)[1:]

    def made(words: list[str]) -> Training:
        parsed, config = parsing.parse_with_agent(training.Train, words, "train")
        settings = parsing.run_settings(parsed) | {"online": None}
        return Training(experiments.prepare(**settings, config=config))

    learns = made(words)
    assert not learns.warnings
    learns.close()
    with pytest.raises(ValueError, match="nothing will be learnt: the first update comes after 10"):
        made(words[:-2])


@pytest.mark.learn
def test_the_command_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = small_runs.command(
        *of_the_page(monkeypatch, tmp_path), "--quiet", "--out", tmp_path / "run"
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    assert records.read(tmp_path / "run", "metrics")[-1]["update"] == 4501


def test_a_state_keeps_its_dtypes(tmp_path: Path) -> None:
    def clock(first: str, later: str) -> Any:
        source = RECIPE.replace("jnp.clip(state +", "jnp.clip(")
        for before, value in (("position\n", first), ("position, ", later)):
            state = f"return position, {{'t': {value}}}{before.removeprefix('position')}"
            source = source.replace(f"return position, {before}", state)
        return envs.make(written(tmp_path, source))

    for first, later in (
        ("jnp.array(0)", "state['t'] + 0.1"),
        ("jnp.array(False)", "state['t'] + 1"),
        ("jnp.array(0, jnp.uint8)", "state['t'] + jnp.arange(3)[0]"),
        ("jnp.array(0, jnp.bfloat16)", "state['t'] + jnp.ones(())"),
    ):
        with pytest.raises(
            ValueError, match=r"the state\['t'\] of .* is .* in reset and .* in step"
        ):
            clock(first, later)
    for first, later in (
        ("0.0", "state['t'] + 0.1"),
        ("0", "state['t'] + 1"),
        ("jnp.array(0.0)", "0"),
        ("jnp.array(0, jnp.uint8)", "state['t'] + 1"),
        ("jnp.array(0.0)", "jnp.arange(3)[0]"),
    ):
        clock(first, later)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            "class Corridor",
            "class Corridors",
            r"has no class 'Corridor'\. Name the environment's class: .*corridor\.py:Name",
        ),
        (
            "params = None",
            "parameters = None",
            r"is not an environment: it lacks params\. See docs/environments\.md",
        ),
        (
            "observation_shape=(1,)",
            "observation_shape=(2,)",
            r"shape \(1,\), its spec promises \(2,\)",
        ),
        (
            "position[0] - 1.0, terminated",
            "position - 1.0, terminated",
            r"returns a reward of shape \(1,\), it must be",
        ),
        (
            ", False, {}",
            ", {}",
            "must return six things: observation, state, reward, terminated, truncated, info",
        ),
        (
            "return position, position, ",
            "return position, (position,), ",
            "a state of another structure",
        ),
        (
            "0.1 * action",
            "0.1 * actoin",
            "step of .* cannot be traced by JAX, with NameError: name 'actoin'",
        ),
        (
            "max_episode_steps=50)",
            "max_episode_steps=50, signals=(agent.Part('cost', ()),))",
            r"declares the signal 'cost' of shape \(\), and its info has none",
        ),
        (
            "spec = EnvSpec(",
            "spec = dict(name=",
            "the spec of .* is a dict, it must be a rljax.agent.EnvSpec",
        ),
    ],
)
def test_mistakes_are_named(before: str, after: str, message: str, tmp_path: Path) -> None:
    assert before in RECIPE
    with pytest.raises(ValueError, match=message):
        envs.make(written(tmp_path, "from rljax import agent\n" + RECIPE.replace(before, after)))


@pytest.mark.parametrize("make", [envs.make, lambda name: envs.make_hosted(name, 1)])
def test_wrong_syntax_is_file_line_and_text(make: Any, tmp_path: Path) -> None:
    name = written(tmp_path, "x = 1\nclass Corridor(:\n")
    message = r"SyntaxError in line 2 of '.*corridor\.py': invalid syntax\.\n  class Corridor\(:"
    with pytest.raises(
        ValueError, match=rf"^'.*corridor\.py:Corridor' cannot be imported: {message}$"
    ) as raised:
        make(name)
    assert not getattr(raised.value, "trace", ""), "no frames of Python's own importer"


def test_what_a_file_raises_is_traced_from_its_own_line_on(tmp_path: Path) -> None:
    for text, kind in (
        ("x = 1\nx / 0\n", "ZeroDivisionError"),
        ("import sys\nsys.exit(3)\n", "SystemExit"),
    ):
        with pytest.raises(
            EnvironmentFailed, match=f"raised {kind} when its file was imported"
        ) as raised:
            envs.make(written(tmp_path, text))
        lines = raised.value.trace.splitlines()
        assert lines[1].endswith('corridor.py", line 2, in <module>'), lines
        assert "importlib" not in raised.value.trace


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(
        ValueError, match=r"no file 'absent\.py' for the environment 'absent\.py:A'"
    ):
        envs.make("absent.py:A")


GYMNASIUM = """
import gymnasium
import numpy as np

class Memory:
    def __init__(self):
        self.steps = 0

class Asym(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (2,))
    action_space = gymnasium.spaces.Box(
        np.array([-3, 0.5], np.float32), np.array([1, 2], np.float32)
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.memory = Memory()
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        assert action in self.action_space
        self.memory.steps += 1
        observation = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return observation, float(action.sum()), False, self.memory.steps == 20, {}

class Limited(Asym):
    max_episode_steps = 7

def made():
    return Asym()
"""


@pytest.fixture
def gymnasium_file(tmp_path: Path) -> Path:
    path = tmp_path / "weird.py"
    path.write_text(GYMNASIUM)
    return path


def test_a_gymnasium_class_runs_on_the_host(gymnasium_file: Path) -> None:
    name = f"{gymnasium_file}:Asym"
    assert not envs.is_compiled(name)
    assert not envs.is_compiled(f"async/{name}")
    assert not envs.is_compiled(f"timed/{name}")
    assert (envs.short(name), envs.evaluated(f"async/{name}"), envs.task(f"async/{name}")) == (
        "Asym",
        name,
        name,
    )
    assert envs.make_hosted(name, 2).spec.max_episode_steps is None
    limited = envs.make_hosted(f"timed/{gymnasium_file}:Limited", 1)
    assert (limited.spec.max_episode_steps, limited.spec.observation_shape) == (7, (3,))


def test_a_gymnasium_class_is_saved_with_its_objects(gymnasium_file: Path) -> None:
    one, other = (envs.make_hosted(f"{gymnasium_file}:Asym", 2) for _ in range(2))
    action = np.zeros((2, 2), np.float32)
    one.reset([0, 1])
    for _ in range(15):
        one.step(action)
    other.restore(trust.TrustedState(one.save() or b""))
    for _ in range(10):
        ours, theirs = one.step(action), other.step(action)
        np.testing.assert_array_equal(ours.observation, theirs.observation)
        np.testing.assert_array_equal(ours.truncated, theirs.truncated)


def test_a_function_that_makes_a_gymnasium_environment_is_refused(gymnasium_file: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"makes one of Gymnasium's environments. Name its class, .* or register it",
    ):
        envs.make(f"{gymnasium_file}:made")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_episode_steps=50", "max_episode_steps=0", "max_episode_steps of .* is 0, it must"),
        (
            "max_episode_steps=50",
            "observation_dtype='uint8'",
            "of float32, its spec promises",
        ),
        (
            "max_episode_steps=50",
            "parts=(Part('action_mask', (1,), 'bool'),)",
            "must be the mask of discrete",
        ),
        ("position[0] - 1.0", "1j", "it must be a real scalar, and is complex64"),
        ("False, {}", "False, None", "must return a dictionary as info"),
        ("False, {}", "False, {'action_mask': position}", "'action_mask' in info: make it a part"),
        ("False, {}", "False, {'success': position}", "'success' in it as a scalar"),
    ],
)
def test_what_would_be_cut_or_dropped_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    source = RECIPE.replace("import EnvSpec", "import EnvSpec, Part")
    assert old in source
    with pytest.raises(ValueError, match=message):
        envs.make(written(tmp_path, source.replace(old, new)))
