"""The comparison of FlashSAC with its authors' agent: their names, inputs and losses."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from rljax.agents import flashsac
from scripts.updates import authors_flashsac as peer
from scripts.updates import compare_flashsac

SIZES: dict[str, Any] = {"hidden": (4, 4), "critic_hidden": (3,), "bins": 5, "expansion": 2}


def norms(name: str, layer: Any, moments: Any) -> dict[str, Any]:
    """A batch normalisation of ours by their names."""
    names = {"weight": layer["scale"], "bias": layer["shift"]}
    names |= {"running_mean": moments["mean"], "running_var": moments["variance"]}
    return {f"{name}.{part}": np.asarray(x) for part, x in names.items()}


def rows(layer: Any) -> np.ndarray:
    """The weights of a layer with one row for each unit, as in PyTorch."""
    return np.swapaxes(np.asarray(layer["kernel"]), -1, -2)


def theirs(network: Any, critic: bool) -> dict[str, np.ndarray]:
    """A network of ours by their names."""
    params, moments = network.params, network.collections["batch_stats"]
    if critic:
        params, moments = params["member"], moments["member"]
    end = "weight" if critic else "w.weight"
    arrays = norms("embedder.norm", params["norm_input"], moments["norm_input"])
    arrays[f"embedder.w.{end}"] = rows(params["embedding"])
    for i in range(sum(name.startswith("block_") for name in params)):
        block, statistics = params[f"block_{i}"], moments[f"block_{i}"]
        for j in range(2):
            arrays[f"encoder.{i}.w{j + 1}.{end}"] = rows(block[f"hidden_{j}"])
            place = (block[f"norm_{j}"], statistics[f"norm_{j}"])
            arrays |= norms(f"encoder.{i}.norm{j + 1}", *place)
    arrays["post_norm.weight"] = np.asarray(params["norm_output"]["scale"])
    kernel, bias = rows(params["output"]), np.asarray(params["output"]["bias"])
    if critic:
        return arrays | {"predictor.w.weight": kernel, "predictor.bias": bias}
    for name, half, offset in zip(
        ("mean", "std"), np.split(kernel, 2), np.split(bias, 2), strict=True
    ):
        arrays |= {f"predictor.{name}_w.w.weight": half, f"predictor.{name}_bias": offset}
    return arrays


def of_state(state: flashsac.State, when: str) -> dict[str, np.ndarray]:
    """Our State as their file of results has it."""
    parts = {
        "actor": theirs(state.actor.parameters, critic=False),
        "critic": theirs(state.critic.parameters, critic=True),
        "target_critic": theirs(state.target_critic, critic=True),
        "temperature": {"log_temp": np.asarray(state.log_temperature.parameters)[None]},
    }
    return {
        f"{when}/{name}/{key}": x for name, arrays in parts.items() for key, x in arrays.items()
    }


@pytest.mark.slow
def test_a_peer_of_the_same_numbers_differs_by_nothing() -> None:
    """Ours plays the peer; what it did differently in the end is found."""
    arrays = compare_flashsac.inputs(2, 8, {})
    config, state = compare_flashsac.example(8, 2, SIZES)
    with jax.enable_x64():
        state = compare_flashsac.exact(state)
        last, losses = compare_flashsac.learn(state, arrays, config)
        results = of_state(state, "first") | of_state(last, "last")
        results |= {f"loss/{name}": values for name, values in losses.items()}
        same = compare_flashsac.compared(state, arrays, results, config)
        assert max(same.values()) < 1e-6
        results["last/critic/predictor.bias"] = results["last/critic/predictor.bias"] + 1e-3
        other = compare_flashsac.compared(state, arrays, results, config)
    assert {name for name, off in other.items() if off > 1e-6} == {"critic"}


def test_inputs_name_their_settings() -> None:
    arrays = compare_flashsac.inputs(3, 8, {"gamma": 0.9})
    settings = json.loads(str(arrays["settings"]))
    assert settings["updates"] == 3
    assert settings["changes"] == {"gamma": 0.9}
    assert arrays["actor_noise"].shape == (3, 16, compare_flashsac.ACTION)
    assert arrays["critic_noise"].shape == (3, 8, compare_flashsac.ACTION)
    assert 0 < arrays["terminated"].sum() < 24


def test_scales_of_rewards_are_the_std_or_the_largest_return() -> None:
    arrays = compare_flashsac.inputs(1, 1, {})
    scales = compare_flashsac.scales(arrays)
    sums, running, expected = [], np.zeros(compare_flashsac.STREAM[1]), []
    steps = (arrays[f"stream/{name}"] for name in ("reward", "terminated", "truncated"))
    for reward, terminated, truncated in zip(*steps, strict=True):
        running = 0.99 * running * ~(terminated | truncated) + reward
        sums.append(running)
        expected.append(max(np.std(sums), np.abs(sums).max() / 5.0))
    np.testing.assert_allclose(scales, expected, rtol=1e-4)


def test_their_agent_has_the_settings_of_a_case() -> None:
    agent = SimpleNamespace(FlashSACConfig=dict, FlashSACAgent=lambda *parts: parts)
    settings = json.loads(str(compare_flashsac.inputs(3, 8, {"gamma": 0.9})["settings"]))
    observations, actions, _, config = peer.create(agent, settings)
    assert observations.shape == (1, compare_flashsac.OBSERVATION)
    assert actions.shape == (1, compare_flashsac.ACTION)
    assert (config["gamma"], config["learning_rate_decay_step"]) == (0.9, 3)


def test_times_are_means_without_the_first_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    each = np.array([9.0] * compare_flashsac.FIRST + [1.0, 3.0])
    monkeypatch.setattr(compare_flashsac, "seconds", lambda *_: each)
    monkeypatch.setattr(compare_flashsac, "theirs", lambda *_: {"seconds": 2.0 * each})
    monkeypatch.setattr(compare_flashsac, "example", lambda *_: (None, None))
    times = compare_flashsac.measured(SimpleNamespace(updates=2, turns=2))  # type: ignore[arg-type]
    compiled = {"ours": [2.0, 2.0], "theirs": [4.0, 4.0], "theirs, compiled": [4.0, 4.0]}
    assert times["seconds of an update"] == compiled
