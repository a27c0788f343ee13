"""A Config's values, and their way to and from JSON."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agents import stream_q
from rljax.learning import configuration, registry
from rljax.learning.settings import Settings
from tests.helpers.example_config import Config


def replaced(**values: Any) -> Config:
    return configuration.replace(Config(), values, "here")


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
        ({"batch_size": 1e3}, 1000),
        ({"batch_size": np.int64(8)}, 8),
        ({"hidden": [1e2, 8]}, (100, 8)),
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


def test_a_class_in_a_file_is_a_value_beside_choices() -> None:
    config = registry.load_agent("td3").Config()
    for value in ("nature", "mine.py:Encoder"):
        changed = configuration.replace(config, {"encoder": value}, "here")
        assert changed.encoder == configuration.parse(config, "encoder", value, "here") == value
        assert json.loads(json.dumps(configuration.as_json(changed)))["encoder"] == value
    message = r"one of auto, nature, .* or a class of your own, FILE\.py:CLASS"
    for refused in ("natur", "mine.txt:Encoder", "mine.py:"):
        with pytest.raises(ValueError, match=message):
            configuration.parse(config, "encoder", refused, "here")


def test_names_of_other_libraries_mean_settings_of_some_agents() -> None:
    agents = [registry.load_agent(agent).Config() for agent in registry.names()]
    fields = {name for agent in agents for name in configuration.as_json(agent)}
    names = configuration.elsewhere()
    for name, settings in names["same"].items():
        assert {*settings} <= fields - {name}, name
        assert any(configuration.setting(agent, name) in settings for agent in agents), name
    for name, near in names["near"].items():
        assert {*near["settings"]} <= fields, name
        assert near["remark"], name
    options = {field.name for field in dataclasses.fields(Settings)} | {"out"}
    assert {*names["run"].values()} <= options
    assert all(sentence.endswith(".") for sentence in names["said"].values())
    assert not names["said"].keys() & (fields | names["run"].keys() | names["same"].keys())


@pytest.mark.parametrize(
    ("agent", "name", "sentence"),
    [
        ("sac", "gamma", " Here it is --config.discount."),
        ("sac", "learning_rate", " --config.critic-lr, --config.temperature-lr: one for each"),
        (
            "ppo",
            "net_arch",
            " Here it is --config.actor-hidden, --config.critic-hidden: the widths",
        ),
        ("ppo", "ent_coef", " Here it is --config.entropy-cost."),
        ("sac", "ent_coef", " Here it is --config.init-temperature: the first temperature"),
        ("iql", "tau", " Here it is --config.target-rate or --config.expectile."),
        ("dqn", "target_network_frequency", " --config.target-every: counted in updates"),
        ("sac", "target_network_frequency", " This agent has no such setting."),
        ("sac", "total_timesteps", " Here it is --steps, in Python steps=."),
        ("sac", "n_stack", " Frames: --frame-stack N, or stacked-N/ before"),
        ("td3", "features_extractor_class", " Here it is --config.encoder."),
        ("rebrac", "critic_n_hiddens", " Here it is --config.critic-hidden: the widths of all"),
        ("sac", "zzz", ""),
    ],
)
def test_a_setting_of_another_library_is_named_as_it_is_here(
    agent: str, name: str, sentence: str
) -> None:
    config = registry.load_agent(agent).Config()
    hint = configuration.hint(config, name)
    assert sentence in hint if sentence else hint == ""
    with pytest.raises(ValueError, match=f"no setting '{name}'") as error:
        configuration.replace(config, {name: 1}, "here")
    assert hint in str(error.value)


def test_a_name_of_its_own_an_unknown_one_and_one_of_two_meanings_stay() -> None:
    settings = {agent: registry.load_agent(agent).Config() for agent in ("dsact", "iql", "sac")}
    assert configuration.setting(settings["dsact"], "clip_range") == "clip_range"
    assert configuration.setting(settings["sac"], "zzz") == "zzz"
    # The expectile, or the rate of the targets.
    assert configuration.setting(settings["iql"], "tau") == "tau"
    assert configuration.setting(settings["sac"], "tau") == "target_rate"


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (
            {"batchsize": 8},
            ValueError,
            r"^here: no setting 'batchsize'\. Nearest: 'batch_size'.*All of them: learn",
        ),
        ({"zzz": 8}, ValueError, r"^here: no setting 'zzz'\. All of them: "),
        (
            {"learning_rate": None},
            TypeError,
            r"^here: 'learning_rate' is None, it must be a number\.$",
        ),
        ({"learning_rate": True}, TypeError, r"'learning_rate' is True, it must be a number"),
        (
            {"learning_rate": ["a", 1.0]},
            TypeError,
            r"'learning_rate' is \['a', 1\.0\], it must be a number",
        ),
        ({"entropy": "auto"}, TypeError, r"'entropy' is 'auto', it must be a number"),
        ({"batch_size": 8.5}, TypeError, r"'batch_size' is 8\.5, it must be int: a whole number"),
        ({"batch_size": float("inf")}, TypeError, r"'batch_size' is inf, it must be int"),
        (
            {"batch_size": 10**12},
            ValueError,
            r"^here: 'batch_size' is 1,000,000,000,000, it must be at most 2,147,483,647\.$",
        ),
        (
            {"hidden": [8, 10**23]},
            ValueError,
            r"^here: 'hidden' is 100,000,000,000,000,000,000,000, it must be at most 2",
        ),
        (
            {"batch_size": -(10**10)},
            ValueError,
            r"'batch_size' is -10,000,000,000, it must be at least -2,147,483,647\.$",
        ),
        ({"batch_size": True}, TypeError, r"'batch_size' is True, it must be int"),
        ({"layer_norm": 1}, TypeError, r"'layer_norm' is 1, it must be True or False"),
        ({"title": 1}, TypeError, r"'title' is 1, it must be text"),
        ({"hidden": 256}, TypeError, r"'hidden' is 256, it must be a list of integers"),
        ({"hidden": [256.5]}, TypeError, r"'hidden' is \[256\.5\], it must be a list of integers"),
        ({"hidden": [True]}, TypeError, r"'hidden' is \[True\], it must be a list of integers"),
        ({"hidden": "256"}, TypeError, r"'hidden' is '256', it must be a list of integers"),
        (
            {"activation": "sigmoid"},
            ValueError,
            r"'activation' is 'sigmoid', it must be one of relu, tanh\.$",
        ),
    ],
)
def test_values_of_another_kind(
    values: dict[str, Any], error: type[Exception], message: str
) -> None:
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
    np.testing.assert_array_equal(
        configuration.stack(replaced(entropy=-1), 3).entropy, np.full(3, -1, np.float32)
    )


@pytest.mark.parametrize("values", [[0.1, 0.2], [0.1], []])
def test_stacking_another_number_of_values(values: list[float]) -> None:
    message = rf"^config\.learning_rate has {len(values)} values for 3 learners\.$"
    with pytest.raises(ValueError, match=message):
        configuration.stack(replaced(learning_rate=values), 3)


def test_json_and_back() -> None:
    for name, environment in itertools.product(registry.names(), ("Hopper-v5", "brax/ant")):
        module = registry.load_agent(name)
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


def test_lists_of_lists() -> None:
    def replaced(values: Any) -> Any:
        return configuration.replace(stream_q.Config(), values, "test")

    changed = replaced({"convolutions": [[16, 3, 1], [8, 2, 1]]})
    assert changed.convolutions == ((16, 3, 1), (8, 2, 1))
    assert replaced(json.loads(json.dumps(configuration.as_json(changed)))) == changed
    for wrong in ([16, 3, 1], [[16, 3]], [[16, 3, 1.5]], 16):
        with pytest.raises(TypeError, match=r"it must be a list of lists of 3 integers\.$"):
            replaced({"convolutions": wrong})


def test_integers_that_may_be_none() -> None:
    assert replaced(grid=[5, 6]).grid == (5, 6)
    assert replaced(grid=None).grid is None
    assert configuration.parse(Config(), "grid", "5x6", "here") == (5, 6)
    assert configuration.parse(Config(), "grid", "none", "here") is None
    with pytest.raises(
        TypeError, match=r"^here: 'grid' is 5, it must be a list of integers or None\.$"
    ):
        replaced(grid=5)


def test_choices_beside_a_bool() -> None:
    config = registry.load_agent("rebrac").Config()
    for text, value in (("true", True), ("false", False), ("last", "last")):
        assert configuration.parse(config, "layer_norm", text, "here") == value
        assert configuration.replace(config, {"layer_norm": value}, "here").layer_norm == value
    with pytest.raises(
        ValueError, match=r"^here: 'layer_norm' is 'first', it must be True or False or one of last"
    ):
        configuration.replace(config, {"layer_norm": "first"}, "here")


@pytest.mark.parametrize(
    ("values", "flag"), [({"batch_size": 2**31}, "batch-size"), ({"hidden": (8, 10**23)}, "hidden")]
)
def test_integers_beyond_int32_are_refused(values: dict[str, Any], flag: str) -> None:
    """Of a Config that was made by hand, too."""
    with pytest.raises(
        ValueError, match=rf"^--config\.{flag} is [0-9,]+, it must be at most 2,147,483,647\.$"
    ):
        configuration.require_integers(Config(**values))
    configuration.require_integers(Config(batch_size=2**31 - 1))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1e6", 10**6),
        ("3E+5", 300_000),
        ("300000.0", 300_000),
        ("2.5e5", 250_000),
        ("1_000", 1000),
        ("-1e3", -1000),
        ("9" * 18, 10**18 - 1),
        ("123456789.012345678e9", 123456789012345678),
    ],
)
def test_whole_numbers_of_the_command_line(text: str, number: int) -> None:
    found = configuration.whole_number(text)
    assert (found, type(found)) == (number, int)


@pytest.mark.parametrize("text", ["1.5", "x", "", "nan", "inf", "1e-1", "1e6x"])
def test_no_whole_numbers_of_the_command_line(text: str) -> None:
    message = rf"^'{text}' is not a whole number, such as 300000, 300_000 or 3e5\.$"
    with pytest.raises(ValueError, match=message):
        configuration.whole_number(text)


@pytest.mark.parametrize("text", ["1e18", "1e999999999", "-1e999999999", "1" + "0" * 22])
def test_large_numbers_of_the_command_line_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is too large: it has more than 18 digits"):
        configuration.whole_number(text)
