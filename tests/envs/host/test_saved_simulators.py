"""Restored environments continue bit for bit."""

import functools
import importlib
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import zlib
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rljax import trust
from rljax.envs.host import saved_simulators
from rljax.envs.host.gymnasium import make_hosted
from rljax.envs.host.hosted import Hosted
from rljax.trust import states
from tests.envs.host.walk import FIELDS, Batch, Walk, actions_for, assert_same, inner, limited, roll

mujoco: Any = importlib.import_module("mujoco")
pytestmark = pytest.mark.usefixtures("walk_is_registered")

SAVED = [
    "Hopper-v5",
    "HalfCheetah-v5",
    "Ant-v5",
    "Humanoid-v5",
    "Pendulum-v1",
    "CartPole-v1",
    "MountainCarContinuous-v0",
]


def check_continuation(make: Any, before: int, after: int) -> bytes:
    """A restored environment steps as the saved one, across ends of episodes."""
    hosted = make()
    hosted.reset(range(hosted.num_envs))
    actions = actions_for(hosted, before + after)
    observation = roll(hosted, actions[:before])["observation"][-1]
    blob = hosted.save()
    assert (blob is not None, hosted.save_failure) == (True, None)
    expected = roll(hosted, actions[before:])
    assert (expected["terminated"] | expected["truncated"]).any()
    used = make()
    used.reset([77] * used.num_envs)
    roll(used, actions[:3])
    for restored in (make(), used):
        np.testing.assert_array_equal(restored.restore(blob), observation)
        assert_same(expected, roll(restored, actions[before:]))
        assert restored.save() is not None
    return blob


@pytest.mark.slow_after(3)
@pytest.mark.parametrize("name", SAVED)
def test_restored_continues_bit_for_bit(name):
    blob = check_continuation(
        functools.partial(make_hosted, name, 2, max_episode_steps=35), before=23, after=40
    )
    assert not trust.is_pickle(blob)
    assert len(blob) < 2 * 150_000


@pytest.mark.parametrize("mode", AutoresetMode)
def test_restored_continues_in_gymnasiums_own_vector_environment(mode):
    check_continuation(
        lambda: Hosted(SyncVectorEnv([limited] * 2, copy=False, autoreset_mode=mode), "Walk"),
        before=20,
        after=40,
    )


def test_restored_continues_where_an_episode_has_just_ended():
    make = functools.partial(make_hosted, "Hopper-v5", 1, max_episode_steps=10)
    for before in (1, 10):
        check_continuation(make, before=before, after=25)


def test_restored_continues_with_wrappers():
    def wrapped():
        env = gymnasium.wrappers.TransformObservation(
            Walk(), lambda observation: 2 * observation, None
        )
        env = gymnasium.wrappers.NormalizeObservation(gymnasium.wrappers.TimeLimit(env, 9))
        return gymnasium.wrappers.StickyAction(env, 0.3)

    check_continuation(lambda: Hosted(SyncVectorEnv([wrapped] * 2), "Walk"), before=20, after=40)


class Heavier(gymnasium.Wrapper):
    """Its model changes at every reset; it refers to the simulator and to a sampled goal."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.simulator, self.goal = env.unwrapped.data, 0.0

    def reset(self, *, seed=None, options=None):
        result = self.env.reset(seed=seed, options=options)
        model = self.simulator.model
        model.body_mass[1] = self.np_random.uniform(1, 2)
        model.opt.gravity[2] = self.np_random.uniform(-12, -8)
        model.opt.timestep = self.np_random.uniform(0.001, 0.002)
        self.goal = self.np_random.uniform(-1, 1)
        return result

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        return observation, float(reward) + self.goal * self.simulator.qpos[0], *rest


def test_restored_continues_with_a_changed_model():
    def make():
        return Hosted(
            SyncVectorEnv([lambda: Heavier(gymnasium.make("Hopper-v5", max_episode_steps=9))] * 2),
            "Heavy",
        )

    check_continuation(make, before=20, after=30)


@pytest.mark.slow
def test_restored_continues_in_another_process(tmp_path):
    program = """
import sys, numpy as np
from rljax.envs.host.gymnasium import make_hosted
hosted = make_hosted("Humanoid-v5", 2, max_episode_steps=30)
hosted.restore(open(sys.argv[1], "rb").read())
steps = [hosted.step(action) for action in np.load(sys.argv[2])]
fields = {name: [getattr(step, name) for step in steps] for name in sys.argv[4:]}
np.savez(sys.argv[3], **{name: np.stack(values) for name, values in fields.items()})
"""
    hosted = make_hosted("Humanoid-v5", 2, max_episode_steps=30)
    hosted.reset([1, 2])
    actions = actions_for(hosted, 50)
    roll(hosted, actions[:20])
    (tmp_path / "state").write_bytes(hosted.save() or b"")
    np.save(tmp_path / "actions.npy", actions[20:])
    expected = roll(hosted, actions[20:])
    files = [str(tmp_path / name) for name in ("state", "actions.npy", "steps.npz")]
    subprocess.run([sys.executable, "-c", program, *files, *FIELDS], check=True)
    with np.load(files[2]) as steps:
        for name in FIELDS:
            np.testing.assert_array_equal(steps[name], expected[name], err_msg=name)


def spoilt(attribute: Any) -> Hosted:
    hosted = make_hosted("Hopper-v5", 1)
    hosted.reset([0])
    (env,) = inner(hosted)
    env.extra = attribute(env)
    return hosted


@pytest.mark.parametrize(
    ("attribute", "reason"),
    [
        (lambda env: [lambda: 0], "cannot be saved: Can't (pickle|get local object)"),
        (lambda env: sys.stdout, "cannot be saved: cannot pickle"),
        (lambda env: env.data.qpos, "cannot be saved: it holds a ndarray that a"),
        (lambda env: env.data.qpos[1:], "cannot be saved: it holds a ndarray that a"),
        (lambda env: [mujoco.MjData(env.model)], "cannot be saved: it holds a MjData that a copy"),
        (lambda env: gymnasium.make("CartPole-v1"), "cannot be saved: it holds a TimeLimit that"),
    ],
)
def test_states_that_cannot_be_saved(attribute, reason):
    hosted = spoilt(attribute)
    assert hosted.save() is None
    assert re.search(f"attribute 'extra' of HopperEnv {reason}", hosted.save_failure or "")
    del inner(hosted)[0].extra
    assert hosted.save() is not None
    assert hosted.save_failure is None


def test_references_stay_references():
    one, two = spoilt(lambda env: [env, env.data, env.np_random]), make_hosted("Hopper-v5", 1)
    two.restore(one.save() or b"")
    (env,) = inner(two)
    assert env.extra[0] is env
    assert env.extra[1] is env.data
    assert env.extra[2] is env.np_random


def test_what_the_saved_state_lacks_is_removed():
    one, two = make_hosted("Hopper-v5", 1), spoilt(lambda env: 3)
    one.reset([0])
    two.restore(one.save() or b"")
    assert not hasattr(inner(two)[0], "extra")


def test_nothing_to_save_before_the_first_reset():
    with pytest.raises(
        ValueError, match=r"'Walk-v0' has no state before its first reset. Call reset"
    ):
        make_hosted("Walk-v0", 1).save()


class Extra:
    """What a later version of the code no longer has."""


@pytest.mark.filterwarnings("ignore:.*does not say how it resets itself")
def test_states_that_do_not_fit(monkeypatch):
    hosted = make_hosted("Hopper-v5", 2)
    hosted.reset([0, 1])
    blob = hosted.save() or b""
    inner(hosted)[0].extra = Extra()
    with_extra = trust.TrustedState(hosted.save() or b"")
    monkeypatch.delattr(sys.modules[__name__], "Extra")
    walks = Hosted(Batch(None, AutoresetMode.DISABLED), "Walk")
    for made, state, message in (
        (
            make_hosted("Hopper-v5", 1),
            blob,
            "saved state is of 2 x TimeLimit.*HopperEnv, 'Hopper-v5' is 1 x",
        ),
        (make_hosted("Ant-v5", 2), blob, "2 x .*HopperEnv, 'Ant-v5' is 2 x .*AntEnv. Make"),
        (
            make_hosted("Hopper-v5", 2),
            with_extra,
            "the saved state does not fit 'Hopper-v5': AttributeError.* the same code",
        ),
        (hosted, blob[:-20], "this is not a state of 'Hopper-v5' saved by Hosted.save"),
        (walks, blob, "'Walk' cannot be restored: Batch keeps the state of its environments out"),
    ):
        with pytest.raises(ValueError, match=message):
            made.restore(state)
    monkeypatch.setattr(mujoco, "__version__", "1.2.3")
    message = r"was saved with mujoco .*, this is 1.2.3.*pip install mujoco=="
    with pytest.raises(ValueError, match=message):
        hosted.restore(blob)


class Canary:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (self.path,))


@pytest.mark.parametrize("kind", ["of an attribute", "of everything", "of a simulator"])
def test_a_pickle_is_not_loaded_unless_it_is_trusted(tmp_path, kind):
    canary = Canary(str(tmp_path / "canary"))
    hosted = make_hosted("Hopper-v5", 1)
    hosted.reset([0])
    layers = saved_simulators._layer_names(hosted._environments)
    simulators = {(3, "data"): (pickle.dumps(canary), {})} if kind == "of a simulator" else {}
    state = {
        "layers": layers,
        "versions": {},
        "simulators": simulators,
        "hosted": (),
        "attributes": b"",
    }
    if kind == "of an attribute":
        state["attributes"] = pickle.dumps(canary)
    blob = zlib.compress(pickle.dumps(canary if kind == "of everything" else state))
    with pytest.raises(
        ValueError, match="the state of 'Hopper-v5' is a pickle, which can run any code, and is not"
    ):
        hosted.restore(blob)
    assert not (tmp_path / "canary").exists()
    with pytest.raises(ValueError, match="state"):
        hosted.restore(trust.TrustedState(blob))
    assert (tmp_path / "canary").exists()


HOSTILE = [
    ([["list", [[0], [1]]]], "no node 1"),
    ([["tuple", [[0]]]], "a tuple that holds itself"),
    ([["array", "O", [1], "C", 0]], "an array of objects"),
    ([["array", "<f8", [10**12], "C", 0]], "an array longer than its bytes"),
    ([["same", 0, "attribute", "os.system"]], "a function that the environment does not have"),
    ([["object", "Popen", [1]], ["dict", []]], "an object of another class"),
    ([["bits", "getrandbits", None, None]], "other random numbers"),
    ([["eval", "1"]], "another kind"),
    ([["part", 0, "env"]], "a part that is not there"),
]


@pytest.mark.parametrize("nodes", [pytest.param(nodes, id=name) for nodes, name in HOSTILE])
def test_plain_data_that_nobody_encoded_are_refused(nodes):
    hosted = make_hosted("Hopper-v5", 1)
    hosted.reset([0])
    head = {
        "roots": {key: [0] for key in ("layers", "versions", "simulators", "hosted", "attributes")}
    }
    head = json.dumps(head | {"nodes": nodes, "sizes": [3]}).encode()
    blob = states.PLAIN + zlib.compress(struct.pack("<Q", len(head)) + head + b"abc")
    with pytest.raises(ValueError, match="this is not a state of 'Hopper-v5'"):
        hosted.restore(blob)


def test_a_state_that_would_fill_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr(saved_simulators, "MOST", 1 << 20)
    hosted = make_hosted("Hopper-v5", 1)
    hosted.reset([0])
    with pytest.raises(
        ValueError, match=r"not a state of 'Hopper-v5'.* has more than 1,048,576 bytes"
    ):
        hosted.restore(states.PLAIN + zlib.compress(bytes(1 << 22)))
