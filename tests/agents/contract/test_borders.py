"""Hyperparameters at the borders of their ranges are refused before anything compiles,
or learn finite numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import typing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import agent as contract
from rljax.agent import float_fields
from tests.agents.contract.representatives import quick
from tests.agents.contract.test_contract import AGENTS, KEY, example, last_step, scalars

SMALLEST = (-100.0, -1.0, -1e-6, 0.0, 1e-30)
FLOATS = (*SMALLEST, 1.0 - 1e-9, 1.0, 1.0 + 1e-6, 1e39, np.nan, np.inf, -np.inf)
INTEGERS = (-1, 0)
# Settings under which a part of an agent computes that rests by default.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "bc": [{"loss": "squared"}],
    "crl": [{"policy_loss": "awr", "objective": "info_nce"}],
    "crl_online": [{"energy": "product", "contrast": "symmetric", "depth": 3, "skip": 1}],
    "cql": [{"lagrange": True, "gap_min": -1.0, "gap_max": 5.0, "target_entropy": -1.0}],
    "dqn": [
        {"exploration": "softmax", "target_entropy": 0.5},
        {"max_grad_norm": 1.0, "loss": "huber", "dueling": True, "double": True},
    ],
    "dsact": [{"critic_loss": "v1", "num_critics": 1}],
    "edac": [{"diversity_weight": None}],
    "gciql": [{"policy_loss": "awr"}],
    "qrl": [{"policy_loss": "awr"}, {"quasimetric": "mrn"}],
    "ppo": [{"policy": "tanh_gaussian", "clip_values": True}],
    "sac": [
        {"temperature_loss": "alpha", "target_entropy": -1.0},
        {"num_critics": 3, "min_critics": 2},
        {"value_head": "c51", "target_value": "mean"},
        {"value_head": "quantile", "dropout": 0.1, "layer_norm": True},
    ],
    "sac_discrete": [
        {"temperature_loss": "alpha", "reduction": "mean"},
        {"clip_q": 0.5, "entropy_penalty": 0.5},
    ],
    **{f"stream_{name}": [{"adaptive": True}] for name in ("ac", "q", "sarsa", "td")},
}
CASES = [
    pytest.param(name, changes, id=f"{name}-{number}", marks=marks)
    for name in AGENTS
    for marks in [pytest.mark.slow if name == "td3" else pytest.mark.learn]
    for number, changes in enumerate([{}, *VARIANTS.get(name, [])])
]


def configured(name: str, changes: Any) -> Any:
    return dataclasses.replace(example(name)[2], **changes)


@functools.cache
def programs(name: str) -> tuple[Any, Any]:
    """`init` and `update`, compiled once for all floats."""
    module, spec, *_ = example(name)
    init = jax.jit(lambda config: module.init(KEY, spec, config))
    return init, jax.jit(lambda *of: module.update(*of))


def is_refused(name: str, config: Any) -> bool:
    """Whether a Config is refused in a message that names the flag."""
    module, spec, *_ = example(name)
    try:
        contract.check(module, spec, config)
        module.experience(config).check()
    except ValueError as error:
        return "--config." in str(error)
    return False


def followed(name: str, config: Any) -> Any:
    """A Config whose schedules are in steps, and floats in float32."""
    module = example(name)[0]
    config = module.schedule(config, 10.0) if hasattr(module, "schedule") else config
    given = {field: getattr(config, field) for field in float_fields(type(config))}
    floats = {x: None if y is None else jnp.asarray(y, jnp.float32) for x, y in given.items()}
    return dataclasses.replace(config, **floats)


def assert_finite(name: str, config: Any) -> None:
    """Two updates keep everything finite."""
    init, update = programs(name)
    config, batch = followed(name, config), example(name)[3]
    state = init(config)
    for step in (last_step(config), 2 * last_step(config) + 1):
        state, metrics = update(state, batch, KEY, jnp.asarray(step, jnp.int32), config)
        for metric, value in scalars(metrics).items():
            assert np.isfinite(value), f"{metric} after update {step}"
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        assert np.isfinite(leaf).all(), jax.tree_util.keystr(path)


def wrong_floats(name: str, changes: Any) -> list[str]:
    """Those that are accepted and do not learn finite numbers."""
    base, wrong = configured(name, changes), []
    assert not is_refused(name, base)
    for field in float_fields(type(base)):
        if getattr(base, field) is None and field != "dropout":
            continue
        for value in FLOATS:
            config = dataclasses.replace(base, **{field: value})
            try:
                if not is_refused(name, config):
                    assert abs(value) <= float(np.finfo(np.float32).max), "it is not finite"
                    assert_finite(name, config)
            except AssertionError as error:
                wrong.append(f"{field} = {value}: {error}")
    return wrong


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_floats_at_their_borders_are_refused_or_finite(name: str, changes: Any) -> None:
    assert wrong_floats(name, changes) == []


@pytest.mark.parametrize(
    "name", [name for name in AGENTS if hasattr(example(name)[2], "reward_scale")]
)
@pytest.mark.parametrize("value", [-1.0, 0.0])
def test_rewards_are_neither_turned_round_nor_lost(name: str, value: float) -> None:
    config = configured(name, {"reward_scale": value})
    with pytest.raises(ValueError, match=r"^--config.reward-scale is -?\d, it must be .* above 0"):
        contract.check(*example(name)[:2], config)


def integers(config: Any) -> list[str]:
    """The names of integers, and of lists of them."""
    return [
        name
        for name, hint in typing.get_type_hints(type(config)).items()
        if hint in (int, tuple[int, ...]) or int in typing.get_args(hint)
    ]


def wrong_integers(name: str) -> list[str]:
    """Those that are accepted and cannot be, or do not fit."""
    config, wrong, accepted = example(name)[2], [], {}
    for field in integers(config):
        several = isinstance(getattr(config, field), tuple)
        for value in INTEGERS:
            change = {field: (value,) if several else value}
            if is_refused(name, dataclasses.replace(config, **change)):
                continue
            if value < 0:
                wrong.append(f"{field} = {value} is accepted")
            else:
                accepted |= change
    # Traced once, and one by one only where that fails.
    together = dataclasses.replace(config, **accepted)
    if is_refused(name, together) or misfit(name, together):
        for field, value in accepted.items():
            error = misfit(name, dataclasses.replace(config, **{field: value}))
            wrong += [f"{field} = {value}: {error}"] if error else []
    return wrong


def misfit(name: str, config: Any) -> str:
    """The error of tracing an agent with a Config, or ""."""
    module, spec, _, batch = example(name)
    try:
        state = jax.eval_shape(lambda: module.init(KEY, spec, config))
        step = jax.ShapeDtypeStruct((), jnp.int32)
        jax.eval_shape(lambda *of: module.update(*of, config), state, batch, KEY, step)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:80]}"
    return ""


@pytest.mark.parametrize("name", quick(AGENTS, ["sac"]))
def test_integers_at_their_borders_are_refused_or_fit(name: str) -> None:
    assert wrong_integers(name) == []


@pytest.mark.parametrize(
    ("name", "field", "value", "rule"),
    [
        ("dql", "denoising_steps", 0, "at least 1"),
        ("dql", "num_candidates", 0, "at least 1"),
        ("dql", "max_q_backup", 0, "at least 1"),
        ("dql", "average_every", 0, "at least 1"),
        ("dql", "embedding", 3, "at least 4"),
        ("fdvl", "optimism", 0.4, "finite and in [0.5, 1]"),
        ("fdvl", "temperature", 0.0, "finite and at least 1e-08"),
        ("fdvl", "uniform_actions", -1, "at least 0"),
        ("iql", "dropout", 1.0, "finite and in [0, 0.99]"),
        ("iql", "dropout", -0.1, "finite and in [0, 0.99]"),
        ("recoil", "discount", 1.0, "finite and in [0, 0.9999]"),
        ("recoil", "expectile", 0.4, "finite and in [0.5, 0.9999]"),
        ("recoil", "expert_part", -1, "at least 0"),
        ("stream_ac", "second_moment_decay", 1.0, "below 1"),
    ],
)
def test_numbers_out_of_range_are_refused(name: str, field: str, value: float, rule: str) -> None:
    module, spec, config, _ = example(name)
    message = f"--config.{field.replace('_', '-')} is {value:g}, it must be {rule}."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        contract.check(module, spec, dataclasses.replace(config, **{field: value}))
