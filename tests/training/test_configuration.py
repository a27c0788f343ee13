"""Agents by name or path, presets that each apply somewhere, and a Config's way to and from JSON."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import importlib
import json
import tomllib
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import agent, datasets, envs
from rljax.training import configuration, registry

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "agents").glob("*.py") if path.stem != "__init__")
PRESETS = sorted((ROOT / "agents" / "presets").glob("*.toml"))
SECTIONS = [(path.stem, section) for path in PRESETS for section in tomllib.loads(path.read_text())]


@agent.config
class Config:
    """One field of each kind."""

    learning_rate: float = 1e-3
    entropy: float | None = None
    batch_size: int = 4
    hidden: tuple[int, ...] = (8, 8)
    activation: Literal["relu", "tanh"] = "relu"
    layer_norm: bool = False
    title: str = "none"
    grid: tuple[int, int] | None = None


def replaced(**values: Any) -> Config:
    return configuration.replace(Config(), values, "here")


# Agents.


def test_agents_are_the_files() -> None:
    assert registry.names() == NAMES
    assert {"sac", "td3"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_agents_are_loaded_by_name_and_by_path(name: str) -> None:
    module = registry.load_agent(name)
    assert module is importlib.import_module(f"rljax.agents.{name}")
    assert registry.load_agent(str(ROOT / "agents" / f"{name}.py")) is module, "one agent, not two"
    assert registry.agent_name(name) == registry.agent_name(f"some/where/{name}.py") == name


def test_users_own_agent_is_loaded_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(registry.source("sac").replace("discount: float = 0.99 ", "discount: float = 0.5 "))
    module = registry.load_agent(str(path))
    assert module.Config().discount == 0.5
    assert registry.load_agent("sac").Config().discount == 0.99
    assert dataclasses.is_dataclass(module.State)
    assert len(jax.tree.leaves(module.Config())) > 3, "floats are leaves there too"
    assert registry.preset(str(path), module, "Pendulum-v1") == module.Config(), "presets are for its parent"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sca", r"^no agent 'sca'\. Nearest: .*'sac'.*\. All of them: rljax list\. A file .* \./mine\.py$"),
        ("zzzzzz", r"^no agent 'zzzzzz'\. All of them: rljax list"),
        ("presets", r"^no agent 'presets'"),
        ("__init__", r"^no agent '__init__'"),
        ("absent/mine.py", r"^no agent file 'absent/mine\.py'\. .*: rljax new absent/mine\.py --from sac$"),
    ],
)
def test_unknown_agents(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry.load_agent(name)


def test_file_that_is_no_agent(tmp_path: Path) -> None:
    path = tmp_path / "half.py"
    path.write_text("storage = 'replay'\n\ndef act(state, observation, key, config, explore): ...\n")
    message = r"^'.*half\.py' is not an agent: it lacks Config, check, init, update\. .* rljax new mine\.py --from sac$"
    with pytest.raises(ValueError, match=message):
        registry.load_agent(str(path))


def test_source_and_summary() -> None:
    assert registry.source("td3") == (ROOT / "agents" / "td3.py").read_text()
    for name in NAMES:
        assert len(registry.summary(name).split()) > 3
        assert registry.summary(name) in registry.source(name)
    with pytest.raises(ValueError, match=r"^no agent 'td' to start from\. Nearest: 'td3'.*rljax list"):
        registry.source("td")


@pytest.mark.parametrize(
    ("name", "expected"), [("Hoper-v5", "Nearest: 'Hopper-v5', 'Hopper-v4'. "), ("xyz", ""), ("", "")]
)
def test_nearest(name: str, expected: str) -> None:
    assert configuration.nearest(name, ["Ant-v5", "Hopper-v4", "Hopper-v5"]) == expected


# Presets.


@functools.cache
def environments() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All names, those of data sets too, and the families that are not installed."""
    families = envs.names()
    missing = tuple(family.partition(" ")[0] + "/" for family, names in families.items() if not names)
    families |= datasets.names()
    return tuple(name for names in families.values() for name in names), missing


def test_a_copied_agent_keeps_its_presets(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    assert registry.copy("sac", file) == [file, tmp_path / "mine.toml"]
    module = registry.load_agent(str(file))
    mine = registry.preset(str(file), module, "Pendulum-v1")
    own = registry.preset("sac", registry.load_agent("sac"), "Pendulum-v1")
    assert configuration.as_json(mine) == configuration.as_json(own)
    assert mine.warmup_steps == 1_000
    with pytest.raises(FileExistsError, match=r"mine\.py' exists"):
        registry.copy("td3", file)
    file.unlink()
    with pytest.raises(FileExistsError, match=r"mine\.toml' exists"):
        registry.copy("td3", file)
    assert not file.exists()


def test_every_preset_is_an_agents() -> None:
    assert {path.stem for path in PRESETS} <= set(NAMES)


@pytest.mark.parametrize(("name", "section"), SECTIONS)
def test_preset_says_its_source_and_sets_what_there_is(name: str, section: str) -> None:
    values = registry.presets(name)[section]
    assert isinstance(values["source"], str)
    assert len(values["source"]) > 5, "where the values come from"
    assert len(values) > 1, "at least one value"
    module = registry.load_agent(name)
    without = module.Config()
    for other, broader in sorted(registry.presets(name).items(), key=lambda item: len(item[0])):
        if other != section and fnmatch.fnmatchcase(section, other):
            shared = {field: value for field, value in broader.items() if field != "source"}
            without = configuration.replace(without, shared, other)
    settings = {field: value for field, value in values.items() if field != "source"}
    config = configuration.replace(without, settings, section)
    changed = {field for field in settings if getattr(config, field) != getattr(without, field)}
    assert changed == set(settings), "a value that holds already says nothing"


@pytest.mark.parametrize(("name", "section"), SECTIONS)
def test_preset_applies_somewhere(name: str, section: str) -> None:
    known, missing = environments()
    if section.startswith(missing):
        pytest.skip(f"the package for '{section}' is not installed")
    assert fnmatch.filter(known, section), f"agents/presets/{name}.toml: section '{section}' matches no environment"


def test_preset_that_applies_nowhere_would_be_noticed() -> None:
    assert not fnmatch.filter(environments()[0], "Hoper-v*")


@pytest.fixture
def presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module whose presets are these."""
    (tmp_path / "some.toml").write_text("""
["maze/large"]
source = "x"
batch_size = 3

["maze/*-of-a-longer-name"]
source = "x"
learning_rate = 0.25

["maze/*"]
source = "x"
learning_rate = 0.5
batch_size = 2

["maze/[l-m]arge"]
source = "x"
batch_size = 5
layer_norm = true

["*"]
source = "x"
learning_rate = 1
hidden = [4]
""")
    monkeypatch.setattr(configuration, "PRESETS", tmp_path)

    class Module:
        pass

    Module.Config = Config  # type: ignore[attr-defined]
    return Module


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ("other", Config(learning_rate=1.0, hidden=(4,))),
        ("maze/small", Config(learning_rate=0.5, hidden=(4,), batch_size=2)),
        ("maze/large", Config(learning_rate=0.5, hidden=(4,), batch_size=3, layer_norm=True)),
        ("maze/one-of-a-longer-name", Config(learning_rate=0.25, hidden=(4,), batch_size=2)),
        ("Maze/small", Config(learning_rate=1.0, hidden=(4,))),
    ],
)
def test_exact_name_comes_before_patterns_and_longer_ones_before_shorter(
    presets: Any, environment: str, expected: Config
) -> None:
    assert registry.preset("some", presets, environment) == expected


def test_agent_without_presets_has_its_defaults(presets: Any) -> None:
    assert registry.presets("none") == {}
    assert registry.preset("none", presets, "maze/large") == Config()


def test_mistake_in_a_preset_is_named(presets: Any, tmp_path: Path) -> None:
    (tmp_path / "some.toml").write_text('["*"]\nsource = "x"\nlearning_rat = 1.0\n')
    message = r"^preset '\*' of agent 'some': no setting 'learning_rat'\. Nearest: 'learning_rate'"
    with pytest.raises(ValueError, match=message):
        registry.preset("some", presets, "maze/large")


def test_brax_presets_are_read() -> None:
    module = registry.load_agent("sac")
    ant = registry.preset("sac", module, "brax/ant")
    assert (ant.reward_scale, ant.num_envs, ant.normalise_observations) == (30.0, 128, True)
    assert registry.preset("sac", module, "Hopper-v5") == module.Config()


# Values.


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"learning_rate": 2}, 2.0),
        ({"learning_rate": 0.5}, 0.5),
        ({"learning_rate": [0.1, 0.2]}, [0.1, 0.2]),
        ({"learning_rate": np.float32(0.5)}, 0.5),
        ({"entropy": None}, None),
        ({"entropy": -3}, -3.0),
        ({"batch_size": 8}, 8),
        ({"hidden": [256, 128]}, (256, 128)),
        ({"hidden": ()}, ()),
        ({"activation": "tanh"}, "tanh"),
        ({"layer_norm": True}, True),
        ({"title": "some"}, "some"),
    ],
)
def test_values_become_what_the_field_says(values: dict[str, Any], expected: Any) -> None:
    ((name, _),) = values.items()
    found = getattr(replaced(**values), name)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("name", configuration.ELSEWHERE)
def test_names_of_other_suites_mean_a_setting_of_some_agent(name: str) -> None:
    agents = [registry.load_agent(agent).Config() for agent in registry.names()]
    found = [(agent, configuration.setting(agent, name)) for agent in agents]
    assert any(meant in configuration.ELSEWHERE[name] and hasattr(agent, meant) for agent, meant in found)


def test_a_name_of_its_own_an_unknown_one_and_one_of_two_meanings_stay() -> None:
    settings = {agent: registry.load_agent(agent).Config() for agent in ("dsact", "iql", "sac")}
    assert configuration.setting(settings["dsact"], "clip_range") == "clip_range"
    assert configuration.setting(settings["sac"], "zzz") == "zzz"
    assert configuration.setting(settings["iql"], "tau") == "tau"  # the expectile, or the rate of the targets
    assert configuration.setting(settings["sac"], "tau") == "target_rate"


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"batchsize": 8}, ValueError, r"^here: no setting 'batchsize'\. Nearest: 'batch_size'.*All of them: learn"),
        ({"zzz": 8}, ValueError, r"^here: no setting 'zzz'\. All of them: "),
        ({"learning_rate": None}, TypeError, r"^here: 'learning_rate' is None, it must be a number\.$"),
        ({"learning_rate": True}, TypeError, r"'learning_rate' is True, it must be a number"),
        ({"learning_rate": "1e-3"}, TypeError, r"'learning_rate' is '1e-3', it must be a number"),
        ({"learning_rate": ["a", 1.0]}, TypeError, r"'learning_rate' is \['a', 1\.0\], it must be a number"),
        ({"entropy": "auto"}, TypeError, r"'entropy' is 'auto', it must be a number"),
        ({"batch_size": 8.0}, TypeError, r"'batch_size' is 8\.0, it must be int"),
        ({"batch_size": True}, TypeError, r"'batch_size' is True, it must be int"),
        ({"batch_size": None}, TypeError, r"'batch_size' is None, it must be int"),
        ({"layer_norm": 1}, TypeError, r"'layer_norm' is 1, it must be bool"),
        ({"title": 1}, TypeError, r"'title' is 1, it must be str"),
        ({"hidden": 256}, TypeError, r"'hidden' is 256, it must be a list of integers"),
        ({"hidden": [256.0]}, TypeError, r"'hidden' is \[256\.0\], it must be a list of integers"),
        ({"hidden": [True]}, TypeError, r"'hidden' is \[True\], it must be a list of integers"),
        ({"hidden": [[256]]}, TypeError, r"'hidden' is \[\[256\]\], it must be a list of integers"),
        ({"hidden": "256"}, TypeError, r"'hidden' is '256', it must be a list of integers"),
        ({"activation": "sigmoid"}, ValueError, r"'activation' is 'sigmoid', it must be one of relu, tanh\.$"),
        ({"activation": 3}, ValueError, r"'activation' is 3, it must be one of relu, tanh"),
    ],
)
def test_values_of_another_kind(values: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        replaced(**values)


def test_replacing_leaves_the_rest() -> None:
    config = replaced(batch_size=9)
    assert config == Config(batch_size=9)
    assert Config().batch_size == 4


def test_stacked_floats_have_one_value_per_learner() -> None:
    stacked: Any = configuration.stack(replaced(learning_rate=[0.1, 0.2, 0.3]), 3)
    np.testing.assert_array_equal(stacked.learning_rate, np.array([0.1, 0.2, 0.3], np.float32))
    assert isinstance(stacked.learning_rate, jax.Array)
    assert stacked.learning_rate.dtype == jnp.float32
    assert stacked.entropy is None
    assert (stacked.batch_size, stacked.hidden) == (4, (8, 8))
    np.testing.assert_array_equal(configuration.stack(replaced(entropy=-1), 3).entropy, np.full(3, -1, np.float32))


@pytest.mark.parametrize("values", [[0.1, 0.2], [0.1], []])
def test_stacking_another_number_of_values(values: list[float]) -> None:
    message = rf"^config\.learning_rate has {len(values)} values for 3 learners\.$"
    with pytest.raises(ValueError, match=message):
        configuration.stack(replaced(learning_rate=values), 3)


@pytest.mark.parametrize("name", NAMES)
def test_json_and_back(name: str) -> None:
    module = registry.load_agent(name)
    for environment in ("Hopper-v5", "brax/ant"):
        config = registry.preset(name, module, environment)
        written = json.loads(json.dumps(configuration.as_json(config), allow_nan=False))
        assert configuration.replace(module.Config(), written, "config.json") == config


def test_json_and_back_with_values_per_learner() -> None:
    stacked = configuration.stack(replaced(learning_rate=[0.1, 0.2], hidden=[3]), 2)
    written = json.loads(json.dumps(configuration.as_json(stacked)))
    assert written["hidden"] == [3]
    again = configuration.stack(configuration.replace(Config(), written, "config.json"), 2)
    np.testing.assert_array_equal(again.learning_rate, stacked.learning_rate)
    assert again.hidden == stacked.hidden


def test_compilations_are_kept_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: jax.config.values[name] for name in names}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        jax.config.update(names[0], "already/chosen")
        configuration.persist_compilations()
        assert jax.config.values[names[0]] == "already/chosen"
        jax.config.update(names[0], None)
        configuration.persist_compilations()
        assert jax.config.values[names[0]] == str(tmp_path / "rljax" / "xla")
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def test_lists_of_lists() -> None:
    from rljax.agents import stream_q

    changed = configuration.replace(stream_q.Config(), {"convolutions": [[16, 3, 1], [8, 2, 1]]}, "test")
    assert changed.convolutions == ((16, 3, 1), (8, 2, 1))
    again = configuration.replace(stream_q.Config(), json.loads(json.dumps(configuration.as_json(changed))), "test")
    assert again == changed
    for wrong in ([16, 3, 1], [[16, 3]], [[16, 3, 1.0]], 16):
        with pytest.raises(TypeError, match=r"it must be a list of lists of 3 integers\.$"):
            configuration.replace(stream_q.Config(), {"convolutions": wrong}, "test")


def test_integers_that_may_be_none() -> None:
    assert replaced(grid=[5, 6]).grid == (5, 6)
    assert replaced(grid=None).grid is None
    assert configuration.parse(Config(), "grid", "5x6", "here") == (5, 6)
    assert configuration.parse(Config(), "grid", "none", "here") is None
    with pytest.raises(TypeError, match=r"^here: 'grid' is 5, it must be a list of integers\.$"):
        replaced(grid=5)
