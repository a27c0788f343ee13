"""Agents by name or path, and presets that each apply somewhere."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import importlib.util
import tomllib
from pathlib import Path
from typing import Any

import jax
import pytest

from rljax import datasets, envs
from rljax.learning import configuration, registry
from tests.helpers.example_config import Config

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "agents").glob("*.py") if path.stem != "__init__")
PRESETS = sorted((ROOT / "agents/presets").glob("*.toml"))
BESIDE = ("source", "online")  # of a section, what is no setting of the agent's
SECTIONS = {path.stem: list(tomllib.loads(path.read_text())) for path in PRESETS}

files = pytest.mark.parametrize("name", SECTIONS)


def of(name: str) -> dict[str, dict[str, Any]]:
    """The presets of a file such as "dqn" or "dqn.rainbow"."""
    agent, _, variant = name.partition(".")
    return registry.presets(agent, variant or None)


# Agents.


def test_agents_are_the_files() -> None:
    assert registry.names() == NAMES
    assert {"sac", "td3"} <= set(NAMES)


def test_agents_are_loaded_by_name_and_by_path() -> None:
    for name in NAMES:
        module = registry.load_agent(name)
        assert module is importlib.import_module(f"rljax.agents.{name}")
        assert registry.load_agent(str(ROOT / f"agents/{name}.py")) is module
        assert registry.agent_name(name) == registry.agent_name(f"some/where/{name}.py") == name


def test_users_own_agent_is_loaded_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        registry.source("sac").replace("discount: Share = 0.99 ", "discount: Share = 0.5 ")
    )
    module = registry.load_agent(str(path))
    assert module.Config().discount == 0.5
    assert registry.load_agent("sac").Config().discount == 0.99
    assert dataclasses.is_dataclass(module.State)
    assert len(jax.tree.leaves(module.Config())) > 3
    assert registry.preset(str(path), module, "Pendulum-v1") == module.Config(), (
        "presets are for its parent"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "sca",
            (
                r"^no agent 'sca'\. Nearest: .*'sac'.*\. All of them: rljax list\. A file "
                r".* \./mine\.py$"
            ),
        ),
        ("zzzzzz", r"^no agent 'zzzzzz'\. All of them: rljax list"),
        ("presets", r"^no agent 'presets'"),
        ("__init__", r"^no agent '__init__'"),
        (
            "absent/mine.py",
            r"^no agent file 'absent/mine\.py'\. .*: rljax new absent/mine\.py --from sac$",
        ),
    ],
)
def test_unknown_agents(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry.load_agent(name)


def test_file_that_is_no_agent(tmp_path: Path) -> None:
    path = tmp_path / "half.py"
    path.write_text(
        "storage = 'replay'\n\ndef act(state, observation, key, config, explore): ...\n"
    )
    lacks = r"Config, experience, check, init, update"
    message = (
        rf"^'.*half\.py' is not an agent: it lacks {lacks}\. .* rljax new mine\.py --from sac$"
    )
    with pytest.raises(ValueError, match=message):
        registry.load_agent(str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "x = 1\ndef act(:\n",
            r"SyntaxError in line 2 of '.*mine\.py': invalid syntax\.\n  def act\(:",
        ),
        (
            "def act():\npass\n",
            r"IndentationError in line 2 of '.*mine\.py': expected an indented block.*\n  pass",
        ),
        ("x = 1\n1 / 0\n", r"ZeroDivisionError in line 2: division by zero\."),
        ("raise SystemExit(0)\n", r"SystemExit in line 1: 0\."),
    ],
)
def test_file_that_cannot_be_imported(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ValueError, match=rf"^'.*mine\.py' cannot be imported: {message}$"):
        registry.load_agent(str(tmp_path / "mine.py"))


def test_source_and_summary() -> None:
    assert registry.source("td3") == (ROOT / "agents/td3.py").read_text()
    for name in NAMES:
        assert len(registry.summary(name).split()) > 3
        assert registry.summary(name) in registry.source(name)
    with pytest.raises(
        ValueError, match=r"^no agent 'td' to start from\. Nearest: .*'td3'.*rljax list"
    ):
        registry.source("td")


def test_every_agent_is_in_one_family_that_has_a_heading() -> None:
    families = registry.families()
    assert sorted(name for names in families.values() for name in names) == NAMES
    assert families.keys() == registry.FAMILIES.keys()
    assert registry.title("sac_discrete") == "SAC for discrete actions"


def test_a_family_of_ones_own_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {"a": "A [planning]: it plans", "b": "B [offline]: it learns", "c": "C: it acts"}
    for name, line in lines.items():
        (tmp_path / f"{name}.py").write_text(f'"""{line}.\n\nMore."""\n')
    monkeypatch.setattr(registry, "AGENTS", tmp_path)
    assert registry.families() == {"offline": ["b"], "planning": ["a"], "others": ["c"]}
    assert registry.heading("planning") == "planning"
    (tmp_path / "d.py").write_text('"""D does it."""\n')
    with pytest.raises(
        ValueError,
        match=r"^the first line of agent 'd' is 'D does it\.', it must be 'TITLE \[FAMILY",
    ):
        registry.families()


# Presets.


@functools.cache
def environments() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All names, data sets' too, and families that are not installed."""
    families = envs.names()
    missing = tuple(
        family.partition(" ")[0] + "/" for family, names in families.items() if not names
    )
    if "envpool/" in missing:
        missing += ("envpool-lives/",)
    families["lives"] = [
        name.replace("envpool/", "envpool-lives/", 1) for name in families.get("envpool", [])
    ]
    families |= datasets.names()
    return tuple(name for names in families.values() for name in names), missing


def test_every_preset_is_an_agents() -> None:
    assert {path.stem.partition(".")[0] for path in PRESETS} <= set(NAMES)


@files
def test_presets_say_their_source_and_set_what_there_is(name: str) -> None:
    for section in SECTIONS[name]:
        check(name, section)


def settings_of(section: dict[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in section.items() if field not in BESIDE}


def check(name: str, section: str) -> None:
    """A section has a source, and each of its values changes a setting."""
    values = of(name)[section]
    assert len(values["source"]) > 5
    assert len(values) > 1
    module = registry.load_agent(name.partition(".")[0])
    without = module.Config()
    for other, broader in sorted(of(name).items(), key=lambda item: len(item[0])):
        if other != section and fnmatch.fnmatchcase(section, other):
            without = configuration.replace(without, settings_of(broader), other)
    settings = settings_of(values)
    config = configuration.replace(without, settings, section)
    changed = {field for field in settings if getattr(config, field) != getattr(without, field)}
    # A section may take back what a shorter one, such as the environment's, sets.
    shorter = [values for other, values in of(name).items() if len(other) < len(section)]
    if "." in name:  # a variant may take back the environment's own presets
        shorter += list(of(name.partition(".")[0]).values())
    changed |= {
        field
        for field in settings
        if any(x.get(field, settings[field]) != settings[field] for x in shorter)
    }
    assert changed == set(settings), "a value that holds already says nothing"
    online = values.get("online", {})
    configuration.replace(config, online, f"{section} online")


def applies(section: str) -> bool:
    """Whether a pattern's environments are there, or in a package that is not installed."""
    known, missing = environments()
    module = section.partition(":")[0]
    pattern = section.partition("/")[0] + "/"
    if any(fnmatch.fnmatchcase(family, pattern) for family in missing) or (
        module in envs.PACKAGES and importlib.util.find_spec(module) is None
    ):
        return True
    if module in envs.PACKAGES:
        importlib.import_module(module)  # registers its environments
        known = tuple(f"{module}:{registered}" for registered in envs.names()["Gymnasium"])
    return bool(fnmatch.filter(known, section))


@files
def test_presets_apply_somewhere(name: str) -> None:
    assert [section for section in SECTIONS[name] if not applies(section)] == []


def test_preset_that_applies_nowhere_would_be_noticed() -> None:
    assert not fnmatch.filter(environments()[0], "Hoper-v*")


@pytest.fixture
def presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
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
    monkeypatch.setattr(registry, "PRESETS", tmp_path)

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
        (
            'maze/large?{"size": 3}',
            Config(learning_rate=0.5, hidden=(4,), batch_size=3, layer_norm=True),
        ),
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
    hopper = registry.preset("sac", module, "brax/hopper")  # notebooks/training.ipynb
    assert (hopper.reward_scale, hopper.batch_size, hopper.num_updates) == (30.0, 512, 64)
    assert registry.preset("sac", module, "Hopper-v5") == module.Config()


ONLINE = """
["maze/*"]
source = "x"
batch_size = 2
online = { learning_rate = 0.5, batch_size = 7 }

["maze/large"]
source = "x"
learning_rate = 0.125

["maze/large".online]
batch_size = 9
layer_norm = true

["d4rl/*"]
source = "x"
online = { entropy = -1.0 }
"""


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("other",), {}),
        (("maze/small",), {"learning_rate": 0.5, "batch_size": 7}),
        (("maze/large",), {"learning_rate": 0.5, "batch_size": 9, "layer_norm": True}),
        (("other", "d4rl/maze-v2"), {"entropy": -1.0}),
        (
            ("maze/small", "some-file.hdf5", "d4rl/maze-v2"),
            {"learning_rate": 0.5, "batch_size": 7, "entropy": -1.0},
        ),
        ((None, "d4rl/maze-v2"), {"entropy": -1.0}),
    ],
)
def test_presets_say_what_changes_online(
    presets: Any, tmp_path: Path, names: tuple[str | None, ...], expected: dict[str, Any]
) -> None:
    (tmp_path / "some.toml").write_text(ONLINE)
    assert registry.preset_online("some", *names) == expected
    assert registry.preset_online("none", *names) == {}


def test_what_changes_online_is_no_setting_before(presets: Any, tmp_path: Path) -> None:
    (tmp_path / "some.toml").write_text(ONLINE)
    assert registry.preset("some", presets, "maze/large") == Config(
        batch_size=2, learning_rate=0.125
    )


VARIANT = """
["*"]
source = "x"
batch_size = 7

["maze/*"]
source = "x"
layer_norm = true
"""


def test_a_variant_comes_after_the_presets_of_the_environment(presets: Any, tmp_path: Path) -> None:
    (tmp_path / "some.quick.toml").write_text(VARIANT)
    assert registry.variants("some") == ["quick"]
    large = Config(learning_rate=0.5, hidden=(4,), batch_size=7, layer_norm=True)
    assert registry.preset("some", presets, "maze/large", variant="quick") == large
    assert registry.preset("some", presets, "other", variant="quick").batch_size == 7
    assert registry.preset("some", presets, "maze/large").batch_size == 3


def test_a_variant_that_is_not_there_is_refused(presets: Any, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"^agent 'some' has no --preset quick\. It has none: leave --preset out\.$",
    ):
        registry.preset("some", presets, "maze/large", variant="quick")
    (tmp_path / "some.quick.toml").write_text('["maze/*"]\nsource = "x"\nbatch_size = 7\n')
    with pytest.raises(ValueError, match=r"^agent 'some' has no --preset quack\. It has: quick\.$"):
        registry.preset("some", presets, "maze/large", variant="quack")
    with pytest.raises(
        ValueError,
        match=r"^--preset quick of agent 'some' is for maze/\*, not for other\. Choose ano",
    ):
        registry.preset("some", presets, "other", variant="quick")


def test_rainbow_and_munchausen_are_variants_of_dqn() -> None:
    dqn = registry.load_agent("dqn")
    assert registry.variants("dqn") == ["munchausen", "rainbow", "rainbow-100k"]
    plain = registry.preset("dqn", dqn, "CartPole-v1")
    rainbow = registry.preset("dqn", dqn, "CartPole-v1", variant="rainbow")
    assert (rainbow.learning_rate, rainbow.batch_size) == (plain.learning_rate, plain.batch_size)
    assert (rainbow.distribution, rainbow.exploration, rainbow.n_step) == ("c51", "noisy", 3)
    for name in ("rainbow", "rainbow-100k"):
        atari = registry.preset("dqn", dqn, "atari-sticky/Pong", variant=name)
        assert atari.clip_rewards
        assert atari.num_steps == {"rainbow": 4, "rainbow-100k": 1}[name]
        for game in ("envpool/Pong-v5", "envpool-lives/Pong-v5", "with-last-step/envpool/Pong-v5"):
            assert registry.preset("dqn", dqn, game, variant=name) == atari
    soft = registry.preset("dqn", dqn, "atari-sticky/Pong", variant="munchausen")
    assert soft.munchausen
    # 8,000 agent steps between copies, with an update every 4; configs/atari.gin of the authors
    assert (soft.target_every * soft.num_steps, soft.learning_rate) == (8_000, 5e-5)
