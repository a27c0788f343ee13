"""What a user's environment wrongly does is one error that names it."""

from __future__ import annotations

import functools
import multiprocessing
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rljax import envs
from rljax.envs.environment import EnvironmentFailed
from rljax.envs.host.checks import Checked
from rljax.envs.host.hosted import Hosted
from rljax.envs.host.serial import Serial
from tests.envs.host.walk import Walk

ZERO = np.zeros((2, 2), np.float32)
ONE = spaces.Box(-1, 1, (1,))
SOURCE = """
import gymnasium, numpy, os, sys

class Odd(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (2,))
    steps = 0

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 3:
            self.fail(5 % 3)
        return numpy.zeros(2, numpy.float32), 1.0, False, False, {}

    def fail(self, number):
        pass

class Raises(Odd):
    def fail(self, number):
        raise ZeroDivisionError("100 % wrong")

class Exits(Odd):
    def fail(self, number):
        sys.exit(3)

class Dies(Odd):
    def fail(self, number):
        os._exit(3)

class Unclosed(Odd):
    def close(self):
        raise RuntimeError("cannot close")

class Unmade(Odd):
    def __init__(self, render_mode=None):
        raise FileNotFoundError("model.xml")

class OldStep(Odd):
    def step(self, action):
        return numpy.zeros(2, numpy.float32), 1.0, False, {}

class OldReset(Odd):
    def reset(self):
        return numpy.zeros(2, numpy.float32)

class OldObservation(Odd):
    def reset(self, *, seed=None, options=None):
        return numpy.zeros(2, numpy.float32)

class Unpicturable(Odd):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 9}
    def render(self):
        raise KeyError("no camera")
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("odd") / "odd.py"
    path.write_text(SOURCE)
    return path


def failed(name: str) -> EnvironmentFailed:
    """The error of two environments that are made, reset and stepped."""

    def play() -> None:
        hosted = envs.make_hosted(name, 2)
        try:
            hosted.reset([0, 1])
            for _ in range(3):
                hosted.step(ZERO)
        finally:
            hosted.close()

    warnings.simplefilter("ignore")  # of Gymnasium's own checks
    with pytest.raises(EnvironmentFailed) as caught:
        play()
    return caught.value


@pytest.mark.parametrize(
    ("kind", "message", "trace"),
    [
        (
            "Raises",
            "environment 0 of '.*' raised ZeroDivisionError in step 3 of its episode: 100 % wro",
            "in fail",
        ),
        (
            "Exits",
            "environment 0 of '.*' raised SystemExit in step 3 of its episode: 3.$",
            "sys.exit",
        ),
        (
            "Unclosed",
            "environment 0 of '.*' raised RuntimeError in close: cannot close.$",
            "in close",
        ),
        ("Unmade", "'.*' raised FileNotFoundError when it was made: model.xml.$", "in __init__"),
        (
            "OldStep",
            "(not enough values|returned 4 values from step).* step returns .observation, reward",
            "",
        ),
        (
            "OldReset",
            "raised TypeError in reset: .* 'seed'. Gymnasium's reset returns .obser",
            "",
        ),
        ("OldObservation", "returned one value of type ndarray from reset. Gymnasium's reset", ""),
    ],
)
def test_what_environments_raise(file: Path, kind: str, message: str, trace: str) -> None:
    error = failed(f"{file}:{kind}")
    assert re.search(message, str(error)), str(error)
    assert trace in error.trace
    assert "checks.py" not in error.trace, "it begins with the user's own code"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "message", "traced"),
    [
        ("Raises", "raised ZeroDivisionError in step 3 of its episode: 100 % wrong.", True),
        ("Dies", "a process of 'async/", False),
    ],
)
def test_what_environments_raise_in_processes(
    file: Path, kind: str, message: str, traced: bool, capfd: Any
) -> None:
    error = failed(f"async/{file}:{kind}")
    assert message in str(error)
    assert ("in fail" in error.trace) == traced
    assert "Traceback" not in capfd.readouterr().err, "there is one message"
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_a_script_without_a_guard_is_one_error(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    made = "envs.make_hosted('async/Pendulum-v1', 1).close()"
    script.write_text(f"from rljax import envs\n{made}\nprint('made')\n")

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)

    failure = run()
    assert failure.returncode == 1
    assert failure.stderr.count("Traceback") == 1
    assert 'train below a line if __name__ == "__main__": in it.' in failure.stderr
    script.write_text(f"from rljax import envs\nif __name__ == '__main__':\n    {made}\n")
    assert run().returncode == 0


def test_pictures_that_fail(file: Path) -> None:
    hosted = envs.make_hosted(f"{file}:Unpicturable", 1, render_mode="rgb_array")
    hosted.reset([0])
    message = "could not be rendered, with KeyError: 'no camera'"
    with pytest.raises(EnvironmentFailed, match=message) as caught:
        hosted.render()
    assert "in render" in caught.value.trace


@pytest.mark.usefixtures("walk_is_registered")
@pytest.mark.parametrize(
    ("place", "given", "received"),
    [
        (1, np.array([2.5]), 2.5),
        (1, np.bool_(True), 1.0),
        (1, None, "the reward None, it must be one real number"),
        (1, 1j, "the reward 1j, it must be one real number"),
        (
            1,
            np.zeros(2),
            r"the reward array\(\[0., 0.\]\), it must be one real number.*'objectives': \(2,\)",
        ),
        (1, [1.0], "the reward .1.0., it must be one real number"),
        (2, 1, True),
        (2, "yes", "terminated = 'yes', it must be True or False"),
        (3, 2, "truncated = 2, it must be True or False"),
        (4, None, "(the info None, it must be a dictionary|must be a python dictionary)"),
        (0, None, "no real numbers .None."),
        (0, np.zeros(3), r"an observation of shape \(3,\), its observation_space promises \(2,\)"),
    ],
)
def test_what_a_step_returns(place: int, given: Any, received: Any) -> None:
    hosted = envs.make_hosted("Walk-v0", 2, disable_env_checker=True)
    hosted.reset([0, 1])
    walk = hosted.vector_env.envs[1].unwrapped
    assert isinstance(walk, Walk)
    walk.spoil = (place, given)
    if isinstance(received, str):
        with pytest.raises(
            EnvironmentFailed, match=f"environment 1 of 'Walk-v0' (returned|raised).*{received}"
        ):
            hosted.step(ZERO)
    else:
        step = hosted.step(ZERO)
        assert {1: step.reward, 2: step.terminated}[place][1] == received


def test_a_module_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_module.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        EnvironmentFailed,
        match=r"module 'broken_module' .* raised ZeroDivisionError when it was imported",
    ):
        envs.make_hosted("broken_module:Name-v0", 1)
    (tmp_path / "broken_syntax.py").write_text("x = 1\nclass Name(:\n")
    message = (
        r"module 'broken_syntax' cannot be imported: SyntaxError in line 2 of '.*': invalid "
        r"syntax\.\n  class Name\(:$"
    )
    with pytest.raises(ValueError, match=message) as raised:
        envs.make_hosted("broken_syntax:Name-v0", 1)
    assert not isinstance(raised.value, EnvironmentFailed), "no traceback"
    (tmp_path / "importing_module.py").write_text("import broken_module")
    with pytest.raises(EnvironmentFailed, match="raised ZeroDivisionError") as failed:
        envs.make_hosted("importing_module:Name-v0", 1)
    assert failed.value.trace.splitlines()[1].endswith('importing_module.py", line 1, in <module>')


def test_the_length_of_an_episode_survives_a_restore(file: Path) -> None:
    hosted = envs.make_hosted(f"{file}:Odd", 1)
    hosted.reset([0])
    hosted.step(ZERO[:1])
    hosted.step(ZERO[:1])
    saved = hosted.save() or b""
    with pytest.raises(ValueError, match=r"the saved state is of 1 x .*Odd"):
        envs.make_hosted(f"{file}:Raises", 1).restore(saved)
    third = envs.make_hosted(f"{file}:Odd", 1)
    third.restore(saved)
    environment = third.vector_env.envs[0].unwrapped
    assert environment.steps == 2
    environment.fail = lambda number: 1 / 0
    message = "raised ZeroDivisionError in step 3 of its episode"
    with pytest.raises(EnvironmentFailed, match=message):
        third.step(ZERO[:1])
    assert issubclass(EnvironmentFailed, ValueError), "the command line ends with 2"


class Choosing(gymnasium.Env):
    """`masks` are of the reset and of each step; None is without."""

    observation_space: Any = ONE
    action_space: Any = spaces.MultiDiscrete([2, 4])

    def __init__(self, masks: list[Any], last: int = 9) -> None:
        self.masks, self.last, self.steps = masks, last, 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.observed(), self.info()

    def step(self, action):
        self.steps += 1
        return self.observed(), 0.0, self.steps == self.last, False, self.info()

    def observed(self):
        return np.zeros(1, np.float32)

    def mask(self):
        return self.masks[min(self.steps, len(self.masks) - 1)]

    def info(self):
        return {} if self.mask() is None else {"action_mask": self.mask()}


class WithMethod(Choosing):
    def info(self):
        return {}

    def action_masks(self):
        return self.mask()


class WithPicture(Choosing):
    observation_space: Any = spaces.Dict(camera=spaces.Box(0, 255, (8, 8, 3), np.uint8), joint=ONE)

    def observed(self):
        return {"camera": np.zeros((8, 8, 3), np.uint8), "joint": np.zeros(1, np.float32)}


class WithPart(Choosing):
    observation_space: Any = spaces.Dict(action_mask=spaces.MultiBinary(6), joint=ONE)

    def observed(self):
        return {"action_mask": np.array(self.mask()), "joint": np.zeros(1, np.float32)}

    def info(self):
        return {}


MASK = [1, 0, 0, 1, 1, 0]
PARTS = (np.array([1, 0], np.int8), np.array([0, 1, 1, 0], np.int8))
NOTHING = [1, 0, 0, 0, 0, 0]


def serial(*environments: gymnasium.Env) -> Hosted:
    return Hosted(Serial(environments, "Choosing"), "Choosing")


@pytest.mark.filterwarnings("ignore:'Choosing' observes a Dict")
@pytest.mark.parametrize(
    "mask", [MASK, PARTS, np.array(MASK, np.int8)], ids=["list", "tuple", "array"]
)
@pytest.mark.parametrize("kind", [Choosing, WithMethod, WithPicture])
def test_masks_are_read_wherever_they_are(kind: Any, mask: Any) -> None:
    hosted = serial(kind([mask]), kind([mask]))
    seen = [hosted.reset([0, 1])]
    seen.append(hosted.step(np.zeros((2, 2), np.int32)).next_observation)
    for observation in seen:
        np.testing.assert_array_equal(observation["action_mask"], [np.array(MASK) == 1] * 2)


@pytest.mark.filterwarnings("ignore:'Choosing' observes a Dict")
@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (Choosing([None, MASK]), "'action_mask' in the info of step 1 of its episode, and none"),
        (Choosing([MASK, MASK, None]), "no 'action_mask' in the info of step 2 of its episode"),
        (Choosing([MASK, MASK, NOTHING]), "in step 2 .* that allows nothing of choice 1"),
        (WithMethod([MASK, NOTHING]), "in step 1 .* that allows nothing of choice 1"),
        (WithPart([MASK, NOTHING]), "in step 1 .* that allows nothing of choice 1"),
        (Choosing([MASK, MASK[:4]]), r"\(4,\) .* for each of the 6 actions, those of all choices"),
        (Choosing([MASK, PARTS[:1]]), r"\(2,\) .* for each of the 6 actions"),
    ],
)
def test_masks_are_never_dropped_in_silence(environment: Any, message: str) -> None:
    hosted = serial(environment)
    hosted.reset([0])
    message = f"environment 0 of 'Choosing' returned .*{message}"
    with pytest.raises(EnvironmentFailed, match=message):  # noqa: PT012
        for _ in range(3):
            hosted.step(np.zeros((1, 2), np.int32))


@pytest.mark.parametrize("masks", [[MASK, NOTHING], [MASK, None]], ids=["nothing", "missing"])
def test_the_end_of_an_episode_needs_no_mask(masks: list[Any]) -> None:
    hosted = serial(Choosing(masks, last=1))
    hosted.reset([0])
    step = hosted.step(np.zeros((1, 2), np.int32))
    assert step.next_observation["action_mask"].all()
    np.testing.assert_array_equal(step.observation["action_mask"][0], np.array(MASK) == 1)


def test_a_vector_environment_gives_masks_from_its_first_reset_on() -> None:
    made = SyncVectorEnv([lambda: Choosing([None, MASK])], autoreset_mode=AutoresetMode.DISABLED)
    hosted = Hosted(made, "Choosing")
    hosted.reset([0])
    with pytest.raises(EnvironmentFailed, match="an action_mask in info that the first reset lack"):
        hosted.step(np.zeros((1, 2), np.int32))
    made = SyncVectorEnv([lambda: Choosing([PARTS])] * 2, autoreset_mode=AutoresetMode.DISABLED)
    np.testing.assert_array_equal(Hosted(made, "C").reset([0, 1])["action_mask"], [MASK] * 2)


def test_masks_beside_numbers_are_not_read_and_a_note_says_so() -> None:
    class Aimed(Choosing):
        action_space = spaces.Tuple((spaces.Discrete(2), ONE))

    with pytest.warns(UserWarning, match="The masks of 'Choosing' are not read, since its actions"):
        hosted = serial(Aimed([[1, 0]]))
    hosted.reset([0])
    assert hosted.step(np.zeros((1, 2), np.float32)).reward == 0


def test_other_names_of_masks_are_noted_and_two_masks_must_agree() -> None:
    class Elsewhere(Choosing):
        def info(self) -> dict[str, Any]:
            return {"valid_actions": MASK, "mask": [1]}

    class Twice(WithPart):
        def info(self) -> dict[str, Any]:
            return {"action_mask": np.ones(6)}

    with pytest.warns(UserWarning, match="gives info\\['valid_actions'\\], and masks"):
        serial(Elsewhere([])).reset([0])
    hosted = Serial([Twice([MASK])], "Twice")
    with pytest.raises(EnvironmentFailed, match="two masks in reset: 'action_mask' in info differ"):
        hosted.reset()


@pytest.mark.parametrize(("value", "success"), [(np.ones((1, 1)), 1.0), (None, np.nan)])
def test_success_is_one_number_or_missing(value: Any, success: float) -> None:
    class Reports(Choosing):
        def info(self) -> dict[str, Any]:
            return {"is_success": value}

    hosted = serial(Reports([], last=1))
    hosted.reset([0])
    hosted.step(np.zeros((1, 2), np.int32))
    np.testing.assert_array_equal(hosted.success, [success])
    value = "yes"
    with pytest.raises(EnvironmentFailed, match="the is_success 'yes', it must be one"):
        hosted.step(np.zeros((1, 2), np.int32))


class Returns(SyncVectorEnv):
    """Two environments whose steps are changed by a function."""

    def __init__(self, change: Any) -> None:
        super().__init__(
            [lambda: Choosing([None], last=1)] * 2, autoreset_mode=AutoresetMode.DISABLED
        )
        self.change = change

    def step(self, actions: Any) -> Any:
        return self.change(*super().step(actions))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o, r, *e: (o, np.ones((2, 2)), *e), "the reward .* 2 x a real number"),
        (lambda o, r, *e: (o, r + 1j, *e), "the reward .* a real number"),
        (lambda o, r, t, *e: (o, r, t * 0.5, *e), "the terminated .* 2 x True or False"),
        (lambda o, r, t, *e: (o, r, True, *e), "the terminated True"),
        (lambda *e: (*e[:4], {"success": ["a", "b"]}), "success.*one number for each"),
    ],
)
def test_vector_environments_return_one_number_for_each(change: Any, message: str) -> None:
    hosted = Hosted(Returns(change), "Batch")
    hosted.reset([0, 1])
    with pytest.raises(EnvironmentFailed, match=message):
        hosted.step(np.zeros((2, 2), np.int32))


def test_columns_of_vector_environments_are_read() -> None:
    def change(o: Any, r: Any, t: Any, u: Any, i: Any) -> Any:
        return o, np.array([[1], [2]]), t[:, None], u.astype(int), {"success": t[:, None]}

    hosted = Hosted(Returns(change), "Batch")
    hosted.reset([0, 1])
    step = hosted.step(np.zeros((2, 2), np.int32))
    assert (step.reward.tolist(), step.terminated.tolist()) == ([1, 2], [True, True])
    assert hosted.success.tolist() == [1, 1]


def test_a_wrong_first_mask_in_a_process_is_one_error() -> None:
    checked = functools.partial(Checked, Choosing([[2, 0] * 3]), "Choosing", 0)
    made = AsyncVectorEnv([checked], context="forkserver", autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(EnvironmentFailed, match="with the value 2: it must be 1 where an action"):
        Hosted(made, "Choosing")
    made.close(terminate=True)
