"""The comparisons of FastTD3 and FastSAC with their authors' code: their functions and names."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from rljax.agent import EnvSpec
from rljax.agents import fastsac, fasttd3
from scripts.updates import compare_fastsac, compare_fasttd3, shared
from tests.scripts.test_compare_td7 import Tensor

SCRIPT = """
def main():
    def update_main(data):
        return data + seen
    def update_pol(data):
        return update_main(data) * 2
    def soft_update(one, other):
        return one - other
    raise RuntimeError("nothing else of it may run")
"""


def test_nested_functions_are_cut_out_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "fast_td3").mkdir()
    (tmp_path / "fast_td3" / "train.py").write_text(SCRIPT)
    script, names = tmp_path / "fast_td3" / "train.py", compare_fasttd3.FUNCTIONS
    functions = shared.cut_out(script, names, {"seen": 3})
    assert functions["update_pol"](1) == 8
    assert functions["soft_update"](5, 2) == 3


def module(layer: Any) -> Any:
    """A layer of ours as their module; scales of norms have one axis."""
    weight = layer["kernel"] if "kernel" in layer else layer["scale"]
    return SimpleNamespace(weight=Tensor(np.asarray(weight).T), bias=Tensor(layer["bias"]))


def theirs(layers: Any) -> list[Any]:
    """Layers of ours as their modules, with activations between them."""
    return [part for layer in layers.values() for part in (module(layer), object())]


def members(state: Any) -> list[Any]:
    """The parameters of our critics."""
    params = compare_fasttd3.of_ours(state)["critic"]["members"]
    return [jax.tree.map(lambda x, c=c: x[c], params) for c in range(2)]


def states(agent: Any, script: Any) -> list[Any]:
    spec = EnvSpec("test/Example-v0", (script.OBSERVATION,), script.ACTION)
    init = jax.jit(agent.init, static_argnums=1)
    return [init(jax.random.key(i), spec, script.CONFIG) for i in range(2)]


def assert_known(known: Any, ours: Any, other: Any) -> None:
    """Their parameters are ours, and another State takes them."""
    jax.tree.map(np.testing.assert_array_equal, known, ours)
    copy = compare_fasttd3.of_ours(compare_fasttd3.with_parameters(other, known))
    jax.tree.map(np.testing.assert_array_equal, copy, ours)


def test_numbers_of_fasttd3_come_under_our_names() -> None:
    one, other = states(fasttd3, compare_fasttd3)
    ours = compare_fasttd3.of_ours(one)
    nets = [SimpleNamespace(net=theirs(x), fc_head=[]) for x in members(one)]
    critic = SimpleNamespace(qnet1=nets[0], qnet2=nets[1])
    actor = SimpleNamespace(net=theirs(ours["actor"]), fc_head=[], fc_mu=[])
    learner = {"actor": actor, "qnet": critic, "qnet_target": critic}
    assert_known(compare_fasttd3.of_peer(learner), ours, other)


def test_numbers_of_fastsac_come_under_our_names() -> None:
    one, other = states(fastsac, compare_fastsac)
    ours = compare_fastsac.of_ours(one)
    last, hidden = ours["actor"]["output"], dict(ours["actor"])
    del hidden["output"]
    halves = zip(*(np.split(last[name], 2, axis=-1) for name in ("kernel", "bias")), strict=True)
    mean, log_std = (module({"kernel": kernel, "bias": bias}) for kernel, bias in halves)
    actor = SimpleNamespace(net=theirs(hidden), fc_mu=[mean], fc_logstd=log_std)
    critic = SimpleNamespace(qnets=[SimpleNamespace(net=theirs(x)) for x in members(one)])
    learner = SimpleNamespace(actor=actor, qnet=critic, qnet_target=critic)
    assert_known(compare_fastsac.of_peer(learner), ours, other)
