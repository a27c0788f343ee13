"""Policies on the host as bases: functions in a file, and ONNX models."""

from __future__ import annotations

import functools
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.agent import Base, EnvSpec, Part
from rljax.cli import main
from rljax.learning import population
from rljax.runs import experiments, extract, failures, records, run
from rljax.runs.export import packing
from rljax.runs.policies import evaluate, host_policies, loading, onnx_models
from rljax.trust import Folder
from tests.cli import commands
from tests.distributed.test_devices import devices_used, on_four_cores
from tests.environments import reach
from tests.helpers import small_runs
from tests.runs import parts

WEIGHTS = np.array([[0.4], [-0.2], [0.1]], np.float32)
OBSERVATIONS = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
SPEC = EnvSpec("mine", (3,), 2)
BOX = {"action": {"kind": "Box", "low": [-2, 0], "high": [2, 1], "shape": [2], "dtype": "float32"}}
SCALE = 0.1  # of ResFiT's corrections
CONFIG: dict[str, Any] = {
    **{"num_critics": 2, "num_updates": 1, "policy_delay": 1, "critic_updates": 0, "n_step": 1},
    **{"layer_norm": False, "warmup_noise": 0.1, "residual_scale": SCALE, "actor_lr": 1e-2},
}
FILE = f"""
import numpy as np

WEIGHTS = np.array({WEIGHTS.tolist()})

def policy(observation):
    assert type(observation) is np.ndarray and observation.dtype == np.float32
    observation *= 1.0  # its own copy
    return 2.0 * np.tanh(observation @ WEIGHTS)

CALLS = []

def fails_later(observation):
    CALLS.append(1)
    if len(CALLS) > 20:
        raise RuntimeError("the robot's\\n table is gone")
    return policy(observation)

def wrong_shape(observation):
    return observation

def nothing(observation):
    pass

class Policy:
    pass
"""


def expected(observation: np.ndarray) -> np.ndarray:
    """The actions of `policy`, which lie in [-2, 2]."""
    return 2.0 * np.tanh(observation @ WEIGHTS)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def made(
    path: Path, function: str, text: str, spec: EnvSpec = SPEC, spaces: Any = BOX, number: int = 1
) -> Base:
    path.write_text(f"import numpy as np\ndef {function}(observation):\n    return {text}\n")
    return host_policies.base(f"{path}:{function}", number, None, spec, spaces)


def train(base: Any, steps: int, out: Path, env: str = "Pendulum-v1", **settings: Any) -> Path:
    return small_runs.train("resfit", env, steps, out, CONFIG, base=base, **settings)


# Without a run


def test_actions_are_those_of_the_function_in_the_environments_units(tmp_path: Path) -> None:
    base = made(tmp_path / "a.py", "policy", "4.0 * observation[:, :2]", number=2)
    key, observation = jax.random.key(0), OBSERVATIONS
    own = np.clip(4.0 * observation[:, :2], [-2, 0], [2, 1])
    scaled = (own - [0.0, 0.5]) / [2.0, 0.5]
    one = population.bases_of(base, [0])
    act = jax.jit(lambda base, x: base.act(x, key))
    np.testing.assert_allclose(act(one, observation), scaled, rtol=1e-6)
    assert act(one, observation[0]).shape == (2,)
    np.testing.assert_allclose(act(one, observation[0]), scaled[0], rtol=1e-6)
    both = observation.reshape(2, 2, 5, 3)
    mapped = jax.jit(jax.vmap(jax.vmap(lambda base, x: base.act(x, key), (None, 0))))
    np.testing.assert_allclose(mapped(base, both), scaled.reshape(2, 2, 5, 2), rtol=1e-6)
    assert mapped(base, both).dtype == np.float32

    def loss(weights: Any) -> Any:
        return (weights * one.act(jnp.asarray(observation) * 1.0, key)).sum()

    gradient = jax.grad(loss)(np.ones(2, np.float32))
    np.testing.assert_allclose(gradient, scaled.sum(axis=0), rtol=1e-5)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])  # by their callbacks, both on the CPU
def test_a_function_is_given_all_learners_observations_at_once(
    backend: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    text = "np.full((len(observation), 2), len(observation) / 1000)"
    base = made(tmp_path / "a.py", "policy", text, spaces=None, number=2)
    act = jax.jit(jax.vmap(lambda base, x: base.act(x, jax.random.key(0))))
    np.testing.assert_allclose(act(base, OBSERVATIONS.reshape(2, 10, 3)), 0.02)


@pytest.mark.parametrize(
    ("spec", "spaces", "text", "actions"),
    [
        (SPEC, None, "3.0 * observation[:, :2]", [[1.0, -1.0], [0.3, 0.0]]),
        (
            EnvSpec("mine", (3,), 4, discrete=True),
            {"action": {"kind": "Discrete", "n": 4, "start": 3}},
            "np.where(observation[:, 0] > 0.5, 6, 4)",
            [3, 1],
        ),
        (
            EnvSpec("mine", (3,), 5, discrete=True, choices=(2, 3)),
            None,
            "np.where(observation[:, :2] > 0.5, 1.0, 0.0)",
            [[1, 0], [0, 0]],
        ),
    ],
)
def test_each_kind_of_actions(
    spec: EnvSpec, spaces: Any, text: str, actions: Any, tmp_path: Path
) -> None:
    base = made(tmp_path / "a.py", "policy", text, spec, spaces)
    observation = np.array([[2.0, -2.0, 0.0], [0.1, 0.0, 0.0]], np.float32)
    acted = base.act(jnp.asarray(observation), jax.random.key(0))
    assert acted.dtype == spec.action_dtype
    np.testing.assert_allclose(acted, actions, rtol=1e-6)


def test_observations_may_be_dictionaries(tmp_path: Path) -> None:
    spec = EnvSpec("mine", (), 2, parts=(Part("far", (1,)), Part("near", (2,))))
    text = "observation['near'] + observation['far']"
    base = made(tmp_path / "a.py", "policy", text, spec, None)
    observation = {"far": jnp.full((2, 1), 0.25), "near": jnp.full((2, 2), 0.5)}
    np.testing.assert_array_equal(base.act(observation, jax.random.key(0)), 0.75)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("observation", r"returned an array \[2, 3\] for 2 observations, it must return \[2, 2\]"),
        ("None", r"returned no array, it must return an array of numbers \[2, 2\]"),
        ("'left'", "returned an array of <U4, it must return an array of numbers"),
        ("observation['near']", r"failed: IndexError in line 3: only integers"),
        ("exit()", r"failed: SystemExit in line 3"),
    ],
)
def test_what_is_no_policy_is_said_at_once(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"^--base .*a\.py:policy {message}.*docs/runs\.md$"):
        made(tmp_path / "a.py", "policy", text)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("np.nan", r"returned nan, actions must be finite\."),
        ("1.5", r"returned 1\.5, which is not in Discrete\(4\)\."),
        ("4", r"returned 4, which is not in Discrete\(4\)\."),
        ("1 / 0", r"failed: ZeroDivisionError in line 3: division by zero\."),
    ],
)
def test_what_fails_inside_a_program_is_named(value: str, message: str, tmp_path: Path) -> None:
    spec = EnvSpec("mine", (3,), 4, discrete=True)
    text = f"np.array([{value} if x else 2 for x in observation[:, 0] > 0])"
    base = made(tmp_path / "a.py", "policy", text, spec, None)
    act = jax.jit(lambda x: base.act(x, jax.random.key(0)))
    np.testing.assert_array_equal(act(-np.ones((3, 3), np.float32)), 2)
    with (
        pytest.raises(host_policies.PolicyFailed, match=rf"^--base .*a\.py:policy {message}$"),
        host_policies.plain_failures(),
    ):
        jax.block_until_ready(act(np.ones((3, 3), np.float32)))


def test_an_observation_that_is_not_finite_spoils_its_own_action_alone(tmp_path: Path) -> None:
    base = made(tmp_path / "a.py", "policy", "observation[:, :2] / 4.0", spaces=None)
    observation = np.ones((2, 3), np.float32)
    observation[1, 2] = np.inf
    action = base.act(jnp.asarray(observation), jax.random.key(0))
    np.testing.assert_array_equal(action, [[0.25, 0.25], [np.nan, np.nan]])


def test_other_errors_of_jax_stay_what_they_are() -> None:
    error = jax.errors.JaxRuntimeError("INTERNAL: out of memory")
    assert host_policies.failure_in(error) is None
    with pytest.raises(jax.errors.JaxRuntimeError), host_policies.plain_failures():
        raise error


def test_actions_of_numbers_and_choices_are_refused(tmp_path: Path) -> None:
    spec = EnvSpec("mine", (3,), 4, choices=(2,))
    with pytest.raises(ValueError, match=r"acts in .*, and a base on the host returns one array"):
        made(tmp_path / "a.py", "policy", "observation", spec, None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine.py", r"^--base .*mine\.py is a file: name its function, as in .*mine\.py:policy$"),
        ("mine.py:absent", r"'.*mine\.py' has no function 'absent'\. .*docs/runs\.md$"),
        ("mine.py:Policy", r"'.*mine\.py' has no function 'Policy'\."),
        ("none.py:policy", r"there is no file '.*none\.py'\. .* restore it\.$"),
        ("none.onnx", r"there is no file '.*none\.onnx'\. .* restore it\.$"),
        ("broken.py:policy", r"'.*broken\.py' cannot be imported: SyntaxError in line 1"),
        ("broken.onnx", r"broken\.onnx is not a model that onnxruntime reads: "),
    ],
)
def test_a_file_without_a_policy_is_refused(name: str, message: str, file: Path) -> None:
    if name.endswith(".onnx"):
        pytest.importorskip("onnxruntime")
    file.with_name("broken.py").write_text("def policy(")
    file.with_name("broken.onnx").write_text("nothing")
    with pytest.raises(ValueError, match=message):
        host_policies.base(str(file.with_name(name)), 1, None, SPEC, BOX)


def test_a_run_in_a_folder_called_python_is_a_run() -> None:
    assert not host_policies.is_on_host("python/run")


def test_several_processes_cannot_share_one(file: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(host_policies.processes, "is_distributed", lambda: True)
    with pytest.raises(ValueError, match="acts on the host, which several processes cannot share"):
        host_policies.base(f"{file}:policy", 1, None, SPEC, BOX)


# Before a run


def test_python_hands_over_a_function(file: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(file.parent)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    import mine  # pyright: ignore[reportMissingImports]

    prepared = experiments.prepare("resfit", "Pendulum-v1", base=mine.policy)
    assert prepared.settings.base == f"{file}:policy"
    for other in (lambda observation: observation, mine.Policy, functools.partial(mine.policy)):
        with pytest.raises(TypeError, match=r'into a file, .*: base="mine\.py:policy"\.$'):
            experiments.prepare("resfit", "Pendulum-v1", base=other)
    monkeypatch.delitem(sys.modules, "mine")


def test_what_cannot_be_a_base_is_said_before_anything_is_written(
    file: Path, tmp_path: Path
) -> None:
    cases = [
        ("td3", "policy", r"^agent 'td3' takes no other run's policy: leave out --base\.$"),
        ("dsrl", "policy", r"of --base makes no actions of noise.* name a run of qc or another"),
        ("resfit", "wrong_shape", r"wrong_shape returned an array \[2, 3\] .* \[2, 1\], one of"),
        ("resfit", "nothing", r"mine\.py:nothing returned no array"),
    ]
    for agent, function, message in cases:
        with pytest.raises(ValueError, match=message):
            rljax.train(
                agent,
                "Pendulum-v1",
                1_000,
                base=f"{file}:{function}",
                config={"decoder": "base"} if agent == "dsrl" else None,
                out=tmp_path / "run",
            )
        assert not (tmp_path / "run").exists()


# Runs


@pytest.mark.learn
def test_learners_correct_a_function(file: Path, tmp_path: Path, capsys: Any) -> None:
    base = f"{file}:policy"
    both = train(base, 200, tmp_path / "both", seeds=2)
    described = records.read_config(both)
    assert described["base"] == base
    assert described["base_digests"][0] == described["base_digests"][1]
    assert set(described["code"]) == {"mine.py"}
    assert not [place for place in small_runs.arrays(both) if "base" in place]
    corrections = [rljax.load(both, learner=p)(OBSERVATIONS) for p in range(2)]
    corrections = [action - expected(OBSERVATIONS) for action in corrections]
    for correction in corrections:
        assert 0 < np.abs(correction).max() <= 2 * SCALE + 1e-6
    assert not np.array_equal(*corrections)
    alone = train(base, 200, tmp_path / "alone", seeds=[1])
    a, b = (records.read(out, "evaluations")[-1] for out in (both, alone))
    assert (a["step"], a["seed"]) == (b["step"], b["seed"]) == (200, 1)
    np.testing.assert_allclose(a["returns"], b["returns"], rtol=1e-3)
    played = evaluate.evaluate_run(alone, episodes=2)
    assert played["parameters"] > 0
    main(["eval", str(alone), "--episodes", "1"])
    assert "learner 0 (seed 1" in capsys.readouterr().out
    action = rljax.load(alone)(OBSERVATIONS)
    packed = packing.pack(alone, output=tmp_path / "alone.zip")
    np.testing.assert_array_equal(rljax.load(packed)(OBSERVATIONS), action)
    second = extract.extract(both, [1], tmp_path / "second")
    action = rljax.load(both, learner=1)(OBSERVATIONS)
    np.testing.assert_array_equal(rljax.load(second)(OBSERVATIONS), action)
    run.resume(second, 300)
    with pytest.raises(ValueError, match=r"acts by --base .*mine\.py:policy on the host, which no"):
        rljax.export(alone, "numpy")


@pytest.mark.learn
@pytest.mark.parametrize("env", ["rljax/Pendulum", "Pendulum-v1"])
def test_stopped_and_resumed_equals_uninterrupted(env: str, file: Path, tmp_path: Path) -> None:
    learn = functools.partial(train, f"{file}:policy", env=env, seeds=2)
    parts.resumed(learn, 200, 300, tmp_path)


@pytest.mark.learn
def test_a_file_that_is_gone_or_has_changed_or_is_not_ones_own_is_refused(
    file: Path, tmp_path: Path
) -> None:
    out = train(f"{file}:policy", 100, tmp_path / "run")
    before = rljax.load(out)(OBSERVATIONS)
    ways: list[Callable[[], Any]] = [
        lambda: run.resume(out, 200),
        lambda: rljax.load(out),
        lambda: evaluate.evaluate_run(out, episodes=1),
    ]

    def refused(message: str) -> None:
        for way in ways:
            with pytest.raises(ValueError, match=message):
                way()
        assert records.read_summary(out)["steps"] == 100

    file.write_text(FILE + "\n# another version\n")
    refused(r"the policy in '.*mine\.py' is not the one .* Restore it, or start a new run\.$")
    file.unlink()
    refused(r"there is no file '.*mine\.py'\. .* restore it\.$")
    file.write_text(FILE)
    described = records.read_config(out)
    seals = described.pop("seals")
    assert set(seals) == {f"base {file}:policy"}
    records.write_json(out / "config.json", described)
    refused(r"names code as its base .*mine\.py:policy, .*no command of yours .* add --trust")
    trusted = rljax.load(Folder(out, trusted=True))
    np.testing.assert_array_equal(trusted(OBSERVATIONS), before)
    run.resume(out, 200, trust=True)
    run.resume(out, 300)


@pytest.mark.learn
@pytest.mark.parametrize("env", ["rljax/Pendulum", "Pendulum-v1"])
def test_a_run_ends_where_its_base_fails(env: str, file: Path, tmp_path: Path) -> None:
    message = (
        r"^--base .*mine\.py:fails_later failed: RuntimeError in line \d+: the robot's table is "
        r"gone\. This was after step 0 of training\. .* rljax resume "
    )
    with pytest.raises(failures.RunError, match=message):
        train(f"{file}:fails_later", 200, tmp_path / "run", env)


@pytest.mark.learn
def test_learners_on_the_cores_of_a_cpu_share_a_function(file: Path, tmp_path: Path) -> None:
    flags = [f"--config.{name.replace('_', '-')}={value}" for name, value in CONFIG.items()]
    flags = [x.replace("layer-norm=False", "no-layer-norm") for x in flags]
    more = ("--base", f"{file}:policy", "--seeds", 4, *flags, "--steps")
    words = commands.train("resfit", "rljax/Pendulum", *more)
    on_four_cores(*words, 200, "--out", tmp_path / "whole")
    on_four_cores(*words, 100, "--out", tmp_path / "half")
    on_four_cores("resume", tmp_path / "half", "--steps", "200", "--quiet")
    small_runs.assert_same(tmp_path / "whole", tmp_path / "half")
    assert devices_used(tmp_path / "whole") == devices_used(tmp_path / "half") == 4


@pytest.mark.learn
def test_functions_are_judged_by_data(tmp_path: Path) -> None:
    data, file = str(reach.journeys(tmp_path / "reach.npz")), tmp_path / "mine.py"
    straight = f"(x[:, 1:] - x[:, :1]) / {reach.STRIDE}"
    file.write_text(f"def goes(x):\n    return {straight}\n\ndef flees(x):\n    return -goes(x)\n")
    config = {"hidden": (32, 32), "target_rate": 0.1, "critic_lr": 1e-3}
    values = []
    for name in ("goes", "flees"):
        base, out = f"{file}:{name}", tmp_path / name
        out = run.train("fqe", "none", 1_000, out=out, data=data, base=base, config=config)
        values.append(records.read(out, "metrics")[-1]["value/initial"][0])
        action = rljax.load(out)(np.array([[0.0, 0.1], [0.9, -0.9]], np.float32))
        expected = np.array([[0.5], [-1.0]]) if name == "goes" else np.array([[-0.5], [1.0]])
        np.testing.assert_allclose(action, expected, rtol=1e-5)
    assert values[0] > values[1] + 1.0


# ONNX


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of TD3, and its policy."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    out = tmp_path_factory.mktemp("exported") / "run"
    small_runs.train("td3", "Pendulum-v1", 100, out, {"hidden": (8,)})
    return out, rljax.export(out, "onnx").path


@pytest.mark.learn
def test_an_exported_policy_is_the_base_that_its_run_is(
    exported: tuple[Path, Path], tmp_path: Path
) -> None:
    out, model = exported
    described = records.read_config(out)
    spec, spaces = EnvSpec.read(described["spec"]), described["spaces"]
    of_run, of_model = (loading.base(x, 1, None, spec, spaces) for x in (out, model))
    key, observation = jax.random.key(0), jnp.asarray(OBSERVATIONS)
    actions = [population.bases_of(x, [0]).act(observation, key) for x in (of_model,)]
    state = jax.tree.map(lambda x: x[0], of_run)
    np.testing.assert_allclose(actions[0], state.act(observation, key), atol=1e-5)
    file = Path(shutil.copy(model, tmp_path / "policy.onnx"))
    beside_model, beside_run = (
        train(str(base), 150, tmp_path / name) for base, name in ((file, "model"), (out, "run"))
    )
    both = [rljax.load(x)(OBSERVATIONS) for x in (beside_model, beside_run)]
    np.testing.assert_allclose(*both, atol=5e-3)
    assert set(records.read_config(beside_model)["code"]) == {"policy.onnx"}
    file.write_bytes(model.read_bytes() + b"\0")
    with pytest.raises(ValueError, match=r"policy\.onnx' is not the one .* the file has changed"):
        run.resume(beside_model, 200)
    with pytest.raises(ValueError, match=r"takes \['N', 3\] as 'observation', .* shows \[2\]: "):
        rljax.train("resfit", "MountainCarContinuous-v0", 1_000, base=model, out=tmp_path / "x")


def test_inputs_and_outputs_of_models_are_checked(monkeypatch: Any) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    spec = EnvSpec("mine", (3,), 2)
    both = EnvSpec("mine", (), 2, parts=(Part("far", (3,)), Part("near", (2,))))
    good = model({"x": ["N", 3]}, {"y": "x"})
    np.testing.assert_array_equal(act(good, spec)(OBSERVATIONS), OBSERVATIONS)
    actions = model({"x": ["N", 3]}, {"action": "x", "value": "x"})
    np.testing.assert_array_equal(act(actions, spec)(OBSERVATIONS), OBSERVATIONS)
    named = {"observation/far": ["N", 3], "observation/near": ["N", 2]}
    parts = {"far": OBSERVATIONS, "near": OBSERVATIONS[:, :2]}
    near = model(named, {"action": "observation/near"})
    np.testing.assert_array_equal(act(near, both)(parts), parts["near"])
    cases = [
        (model({"x": ["N", 4]}, {"y": "x"}), spec, r"takes \['N', 4\] as 'x', .* shows \[3\]"),
        (model({"x": [1, 3]}, {"y": "x"}), spec, "takes 1 observations at once: .* dynamic"),
        (model({"x": ["N", 3]}, {"y": "x", "z": "x"}), spec, "outputs y, z: name .* 'action'"),
        (
            model({"observation": ["N", 3], "noise_0": ["N", 3]}, {"y": "noise_0"}),
            spec,
            "asks for 'observation', 'noise_0', .* which is one array: a policy that draws",
        ),
        (good, both, "asks for 'x', .* which is 'observation/far', 'observation/near': "),
    ]
    for content, observed, message in cases:
        with pytest.raises(ValueError, match=rf"^--base policy\.onnx.*{message}"):
            act(content, observed)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ValueError, match=r"onnxruntime\): pip install 'rljax-suite\[export\]'"):
        act(good, spec)


def act(content: bytes, spec: EnvSpec) -> Callable[[Any], np.ndarray]:
    return onnx_models.function(content, spec, "--base policy.onnx")


def model(inputs: dict[str, list[Any]], outputs: dict[str, str]) -> bytes:
    """A model whose outputs are inputs."""
    from onnx import TensorProto, helper

    def declared(name: str, shape: list[Any]) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        [helper.make_node("Identity", [x], [name]) for name, x in outputs.items()],
        "policy",
        [declared(name, shape) for name, shape in inputs.items()],
        [declared(name, inputs[x]) for name, x in outputs.items()],
    )
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()
