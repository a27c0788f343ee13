"""Code that a run's folder names."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rljax import envs, trust
from rljax.learning import registry
from rljax.learning.named_code import PARTS, digests, named_code
from rljax.learning.settings import Settings
from rljax.runs import arguments, checkpoints, experiments, extract, records, run
from rljax.runs.policies import attackers, collect, evaluate, loading, videos
from rljax.trust import Folder, keys, states
from rljax.tuning import grids
from tests.helpers import counting, run_folders

SETTINGS = Settings("./mine.py", "./walk.py:Walk")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's own folder without a key."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "home"
    keys._key_in.cache_clear()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("Hopper-v5", None),
        ("async/Hopper-v5", None),
        ("brax/ant", None),
        ("ALE/Pong-v5", None),
        ("ogbench:cube-single-v0", None),
        ("goals/ogbench:cube-single-v0", None),
        ("gymnasium_robotics:AdroitHandPen-v1", None),
        ("rljax.envs.host.robots.neorl2:SafetyHalfCheetah-v0", None),
        ("evil:Env-v0", "evil"),
        ("async/evil:Env-v0", "evil"),
        ("timed/async/evil:Env-v0", "evil"),
        ("ogbench.evil:Env-v0", "ogbench.evil"),
        ("rljax.evil:Env-v0", "rljax.evil"),
        ("ogbench:evil:Env-v0", "ogbench:evil"),
        ("evil.py:Env", "evil.py"),
        ("timed/evil.py:Env", "evil.py"),
        ("timed/timed/evil.py:Env", "evil.py"),
        ("brax/evil.py:Env", "brax/evil.py"),
        ("async/evil.py:Env", "async/evil.py"),
    ],
)
def test_the_code_of_an_environment_is_known_from_its_name(name: str, code: str | None) -> None:
    assert envs.code_of(name) == code


def test_the_code_of_an_agent_is_known_from_its_name() -> None:
    assert registry.file_of("sac") is None
    assert registry.file_of(str(registry.AGENTS / "sac.py")) is None
    assert registry.file_of("./mine.py") == "./mine.py"


def require(settings: Settings, seals: Any, path: Path, trusted: bool = False) -> None:
    Folder(path, trusted).require_code("config.json", named_code(settings), seals)


def test_networks_are_code_at_any_depth_of_settings_and_searches() -> None:
    settings = Settings("sac", "Hopper-v5", online={"encoder": "a.py:A"}, schedule={"x": [1]})
    space = {"torso": {"choices": ["mlp", "b/c.py:C"]}}
    code = named_code(settings, {"encoder": "a.py:B", "torso": "python/D"}, space)
    here = Path.cwd()
    files = {"a.py:A": "a.py", "a.py:B": "a.py", "b/c.py:C": "b/c.py"}
    assert code == {f"network {name}": str(here / file) for name, file in files.items()}
    (here / "a.py").write_text("x = 1")
    assert digests(settings, space) == {"a.py": hashlib.sha256(b"x = 1").hexdigest()}


def test_the_function_of_a_base_is_code_that_a_policy_needs_too() -> None:
    settings = Settings("resfit", "Hopper-v5", base="a.py:policy")
    for parts in (("agent",), PARTS):
        code = named_code(settings, parts=parts)
        assert code == {"base a.py:policy": str(Path.cwd() / "a.py")}
    here = Path.cwd()
    (here / "a.py").write_text("x = 1")
    (here / "b.onnx").write_bytes(b"model")
    assert digests(settings) == {"a.py": hashlib.sha256(b"x = 1").hexdigest()}
    for base in ("b.onnx", "runs/a", "python/run"):
        other = dataclasses.replace(settings, base=base)
        assert named_code(other) == {}
    model = dataclasses.replace(settings, base="b.onnx")
    assert digests(model) == {"b.onnx": hashlib.sha256(b"model").hexdigest()}


def test_what_is_sealed_is_trusted_by_its_maker_alone(home: Path, tmp_path: Path) -> None:
    seals = trust.seals(named_code(SETTINGS))
    assert set(seals) == {"agent", "env"}
    require(SETTINGS, seals, tmp_path)
    assert (home / ".rljax/key").stat().st_mode & 0o777 == 0o600
    other_agent = dataclasses.replace(SETTINGS, agent="./other.py")
    other_env = dataclasses.replace(SETTINGS, env="evil:Walk-v0")
    other_eval_env = dataclasses.replace(SETTINGS, eval_env="evil:Walk-v0")
    for settings, signatures in [
        (SETTINGS, {}),
        (SETTINGS, None),
        (SETTINGS, ["agent"]),
        (SETTINGS, {"agent": seals["env"], "env": seals["agent"]}),
        (other_agent, seals),
        (other_env, seals),
        (other_eval_env, seals),
        (SETTINGS, seals | {"agent": 3}),
        (SETTINGS, seals | {"agent": "\ud800"}),
    ]:
        with pytest.raises(
            ValueError,
            match=r"names code as its (agent|env|eval_env), '.*no command of yours .*--trust",
        ):
            require(settings, signatures, tmp_path)
        require(settings, signatures, tmp_path, trusted=True)
    keys._key_in.cache_clear()
    (home / ".rljax/key").unlink()  # another user or machine
    with pytest.raises(ValueError, match="names code as its agent"):
        require(SETTINGS, seals, tmp_path)


def test_a_folder_is_trusted_only_if_the_user_says_so(tmp_path: Path) -> None:
    assert not Folder(tmp_path).trusted
    assert not Folder(tmp_path).other("base").trusted
    assert Folder(tmp_path, trusted=True).other("base") == Folder(Path("base"), trusted=True)
    assert not arguments.run_folder(tmp_path).trusted
    assert not arguments.run_folder(Folder(tmp_path)).trusted
    assert arguments.run_folder(Folder(tmp_path, trusted=True)).trusted
    assert arguments.run_folder(Folder(tmp_path), trusted=True).trusted


def test_nothing_is_sealed_where_no_key_can_be_made(home: Path, tmp_path: Path) -> None:
    home.write_text("a file, not a folder")
    assert trust.seals(named_code(SETTINGS)) == {}
    with pytest.raises(ValueError, match="names code"):
        require(SETTINGS, {"agent": "", "env": ""}, tmp_path)


def test_names_of_rljax_itself_need_no_seal(home: Path, tmp_path: Path) -> None:
    settings = Settings("sac", "Hopper-v5")
    assert named_code(settings) == {}
    assert trust.seals({}) == {}
    require(settings, None, tmp_path)
    assert not home.exists()


@pytest.mark.parametrize(
    "env",
    [
        "evil.py:Env",
        "evil:Env-v0",
        "timed/evil.py:Env",
        'Hopper-v5?{"xml_file": "/dev/zero"}',
        "Hopper-v5?[",
    ],
)
def test_a_data_set_does_not_choose_code(env: str) -> None:
    data = dataclasses.replace(counting.recorded(), name="a.npz", env=env)
    with pytest.raises(
        ValueError, match=r"the file of 'a.npz' names the environment .*name it yourself: --env"
    ):
        experiments._environment("sac", None, data)
    assert experiments._environment("sac", env, data) == env


def test_an_argument_that_may_be_a_path_needs_a_seal(tmp_path: Path) -> None:
    settings = Settings("sac", 'Hopper-v5?{"xml_file": "./mine.xml"}')
    seals = trust.seals(named_code(settings))
    require(settings, seals, tmp_path)
    changed = Settings("sac", 'Hopper-v5?{"xml_file": "/dev/zero"}')
    for run_settings, signatures in [(settings, {}), (changed, seals)]:
        with pytest.raises(ValueError, match="names code as its env, \"the argument 'xml_file' = "):
            require(run_settings, signatures, tmp_path)
    require(Settings("sac", 'Hopper-v5?{"reset_noise_scale": 0.1}'), {}, tmp_path)


CANARY = "from pathlib import Path\n\nPath({canary!r}).touch()\n"


@pytest.fixture
def strangers(tmp_path: Path) -> Path:
    """A run whose agent is a file that leaves a canary when it is imported."""
    spec = run_folders.SPEC | {"observation_shape": [3], "action_size": 1}
    env, sizes = "gymnax/Pendulum-v1", {"replay_size": 100}
    folder = run_folders.write(
        tmp_path / "run", environment=env, config=sizes, spec=spec, dataset=None
    )
    source = registry.source("sac").replace(
        "import jax\n", f"import jax\n{CANARY.format(canary='canary')}", 1
    )
    (tmp_path / "mine.py").write_text(source)
    described = records.read_config(folder)
    records.write_json(
        folder / "config.json", described | {"agent": "./mine.py", "seals": {"agent": "0" * 64}}
    )
    return folder


WAYS = {
    "load": loading.load,
    "load as a base": loading.base,
    "resume": lambda out: run.resume(out, 150),
    "eval": lambda out: evaluate.evaluate_run(out, episodes=1),
    "settings for eval": lambda out: loading.read_changes(out, {"compute": ["1"]}),
    "play": videos.play,
    "text": videos.tell,
    "record": lambda out: collect.record(out, source="replay"),
    "extract": lambda out: extract.extract(out, [0]),
    "attack": attackers.load_attacker,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_strangers_run_runs_nothing(strangers: Path, way: str) -> None:
    with pytest.raises(
        ValueError, match=r"names code as its agent, '.*mine.py', and no command of yours"
    ):
        WAYS[way](strangers)
    assert not Path("canary").exists()


def test_a_strangers_grid_runs_nothing(strangers: Path) -> None:
    described = records.read_config(strangers)
    grid = strangers.parent / "grid"
    grid.mkdir()
    entry = {"folder": "launch-000", "seeds": [0], "config": described["config"]}
    plan = {"settings": described, "launches": [entry], "command": "", "points": [{}]}
    records.write_json(grid / grids.PLAN, plan)
    for begun in (False, True):
        if begun:
            shutil.copytree(strangers, grid / "launch-000")
            (grid / "launch-000/summary.json").unlink()
        with pytest.raises(ValueError, match="names code as its agent"):
            grids.resume(grid)
    assert not Path("canary").exists()


TRUSTED: Any = {
    "load": lambda out: loading.load(out, trust=True),
    "resume": lambda out: run.resume(out, 150, trust=True),
    "eval": lambda out: evaluate.evaluate_run(Folder(out, trusted=True), episodes=1),
}


@pytest.mark.parametrize("way", TRUSTED)
def test_trust_lets_it_run(strangers: Path, way: str) -> None:
    with contextlib.suppress(Exception):  # the folder has no checkpoint, or no data set
        TRUSTED[way](strangers)
    assert Path("canary").exists()


def test_a_pickle_of_an_environment_needs_its_seal_or_trust(tmp_path: Path) -> None:
    (tmp_path / "environments").write_bytes(b"a pickle")
    notes: Any = {"environments": "saved", "seal": trust.state_seal(b"a pickle")}
    stranger, trusted = Folder(tmp_path), Folder(tmp_path, trusted=True)
    state = checkpoints.environments(stranger, tmp_path, notes)
    assert state == b"a pickle"
    assert isinstance(state, trust.TrustedState)
    for seal in (None, 3, "0" * 64, keys.seal("agent", b"a pickle")):
        with pytest.raises(
            ValueError,
            match=r"is a pickle, and no command of yours on this machine made it.*--trust",
        ):
            checkpoints.environments(stranger, tmp_path, notes | {"seal": seal})
        state = checkpoints.environments(trusted, tmp_path, notes | {"seal": seal})
        assert isinstance(state, trust.TrustedState)
    assert checkpoints.environments(stranger, tmp_path, {"environments": "lost"}) is None


def test_a_plain_state_of_a_stranger_is_no_trusted_one(tmp_path: Path) -> None:
    (tmp_path / "environments").write_bytes(states.PLAIN)
    state = checkpoints.environments(Folder(tmp_path), tmp_path, {"environments": "saved"})
    assert state == states.PLAIN
    assert not isinstance(state, trust.TrustedState)


def test_a_manifest_opens_nothing_outside(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("")
    inside = tmp_path / "000000000100"
    inside.mkdir()
    records.write_json(inside / checkpoints.MANIFEST, {"../secret": [0, 0]})
    assert checkpoints.damage(inside) == "manifest.json names a file outside of it"
