"""Search spaces are read strictly and ship with every agent."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rljax.agent import EnvSpec
from rljax.agents import td3
from rljax.learning import configuration, registry, schedules
from rljax.tuning import search_spaces

SPACES = registry.AGENTS / "spaces"
WRITTEN = [
    path.stem for path in sorted(SPACES.glob("*.toml")) if "\nsource" in "\n" + path.read_text()
]
CONTINUOUS = EnvSpec("example", (3,), 2, False, 100)
DISCRETE = EnvSpec("example", (3,), 4, True, 100)


def written(folder: Path, text: str) -> Path:
    file = folder / "space.toml"
    file.write_text(text)
    return file


def test_every_agent_has_a_file_for_its_space() -> None:
    assert sorted(path.stem for path in SPACES.glob("*.toml")) == registry.names()
    written = {path.stem for path in SPACES.glob("*.toml") if tomllib.loads(path.read_text())}
    assert written == set(WRITTEN)


@pytest.mark.parametrize("name", WRITTEN)
def test_every_space_is_one_that_its_agent_accepts(name: str) -> None:
    module: Any = importlib.import_module(f"rljax.agents.{name}")
    space = search_spaces.space(name, module.Config())
    spec = DISCRETE if "require_discrete(" in registry.source(name) else CONTINUOUS
    for end in (0, -1):
        corner = space.corner(end)
        assert corner.keys() == space.untuned().keys()
        module.check(spec, configuration.replace(module.Config(), corner, "corner"))
    for setting, entry in space.entries.items():
        default = getattr(module.Config(), setting)
        assert entry["low"] <= default <= entry["high"] or default == 0, (
            f"the default {setting} is out of reach"
        )


def test_a_space_is_read(tmp_path: Path) -> None:
    text = (
        "actor_lr = { low = 1e-5, high = 1e-2, log = true }\n"
        "batch_size = { low = 32, high = 256 }\n"
    )
    text += 'hidden = { choices = ["64x64", "256"] }\nlayer_norm = { choices = [true, false] }\n'
    space = search_spaces.space("td3", td3.Config(), written(tmp_path, text))
    made = space.distributions()
    assert (made["actor_lr"].low, made["actor_lr"].high, made["actor_lr"].log) == (1e-5, 1e-2, True)
    assert type(made["batch_size"]).__name__ == "IntDistribution"
    params = {"actor_lr": 1e-3, "batch_size": 64, "hidden": "64x64", "layer_norm": "false"}
    settings = space.settings(params)
    assert settings == {"actor_lr": 1e-3, "batch_size": 64, "hidden": (64, 64), "layer_norm": False}
    with pytest.raises(ValueError, match="'32' is no choice of 'hidden'"):  # a storage may have any
        space.settings(params | {"hidden": "32"})
    assert space.corner(-1) == {
        "actor_lr": 1e-2,
        "batch_size": 256,
        "hidden": (256,),
        "layer_norm": False,
    }
    assert [space.is_traced(name) for name in settings] == [True, False, False, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"names no setting: there is nothing to search"),
        ("actor_lr = ", r"is not TOML: "),
        ("actor_rl = { low = 1, high = 2 }", r"no setting 'actor_rl'\. Nearest: 'actor_lr'"),
        ("actor_lr = 1e-4", r"'actor_lr' must have low, high and perhaps log, or choices"),
        (
            "actor_lr = { low = 1e-3, high = 1e-4 }",
            r"'actor_lr' goes from 0\.001 to 0\.0001\. It must rise",
        ),
        (
            "discount = { low = 0.0, high = 1.0, log = true }",
            r"It must rise, and from above 0 if log",
        ),
        ("batch_size = { low = 0.5, high = 2 }", r"'batch_size' is 0\.5, it must be int"),
        (
            "hidden = { choices = ['64-64'] }",
            r"'64-64' is no value of 'hidden', which is integers such as 256x256",
        ),
        ("hidden = { choices = [] }", r"'hidden' must have low, high and perhaps log, or choices"),
    ],
)
def test_what_is_no_space_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        search_spaces.space("td3", td3.Config(), written(tmp_path, text))


def test_an_agent_without_a_space_is_told_to_name_one() -> None:
    with pytest.raises(
        ValueError,
        match=r"there is no search space '.*mine\.toml'\. Write one and name it: --space",
    ):
        search_spaces.space("./mine.py", td3.Config())


def test_brackets_are_those_of_the_paper() -> None:
    # Table 1 of the paper, R = 81 and eta = 3: configurations and resource at the beginning.
    found = list(search_spaces.brackets(81, 1, 3))
    beginnings = [(size, rungs[0]) for size, rungs in found]
    assert beginnings == [(81, 1), (34, 3), (15, 9), (8, 27), (5, 81)]
    assert found[0][1] == [1, 3, 9, 27, 81]
    with pytest.raises(ValueError, match=r"--min-steps is 82, it must lie in \[1, 81\]"):
        list(search_spaces.brackets(81, 82, 3))


def test_a_sampler_is_the_same_after_a_restart_and_another_in_the_next_generation() -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = search_spaces.space("td3", td3.Config())

    def asked(method: str, generation: int) -> dict[str, Any]:
        study = optuna.create_study(sampler=search_spaces.sampler(method, 3, generation))
        return study.ask(space.distributions()).params

    for method in ("random", "tpe"):
        assert asked(method, 1) == asked(method, 1)
        assert asked(method, 1) != asked(method, 2)


def test_values_within_limits_are_returns_and_others_fall_with_their_excess() -> None:
    most = search_spaces.limits(search_spaces.Protocol(limits=("cost=25", "wear=0.5")))
    assert most == {"cost": 25.0, "wear": 0.5}
    assert schedules.constrained(-7.0, {"cost": 25.0, "wear": 0.1}, most) == -7.0
    little = schedules.constrained(1e6, {"cost": 30.0, "wear": 0.1}, most)
    much = schedules.constrained(1e6, {"cost": 30.0, "wear": 0.7}, most)
    assert little == pytest.approx(-1.2e9)
    assert much == pytest.approx(-1.4e9)
    assert search_spaces.limits(search_spaces.Protocol()) == {}
