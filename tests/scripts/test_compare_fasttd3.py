"""The comparison of FastTD3 with its authors' code: their functions and names."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from rljax.agent import EnvSpec
from rljax.agents import fasttd3
from scripts.updates import compare_fasttd3
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
    functions = compare_fasttd3.their_functions(tmp_path, {"seen": 3})
    assert functions["update_pol"](1) == 8
    assert functions["soft_update"](5, 2) == 3


def theirs(layers: Any) -> list[Any]:
    """Layers of ours as their modules, with activations between them."""
    modules: list[Any] = []
    for layer in layers.values():
        weight, bias = Tensor(np.asarray(layer["kernel"]).T), Tensor(layer["bias"])
        modules += [SimpleNamespace(weight=weight, bias=bias), object()]
    return modules


def test_their_numbers_come_under_our_names() -> None:
    spec = EnvSpec("test/Example-v0", (compare_fasttd3.OBSERVATION,), compare_fasttd3.ACTION)
    init = jax.jit(fasttd3.init, static_argnums=1)
    one, other = (init(jax.random.key(i), spec, compare_fasttd3.CONFIG) for i in range(2))
    ours = compare_fasttd3.of_ours(one)
    members = [jax.tree.map(lambda x, c=c: x[c], ours["critic"]["members"]) for c in range(2)]
    nets = [SimpleNamespace(net=theirs(x), fc_head=[]) for x in members]
    critic = SimpleNamespace(qnet1=nets[0], qnet2=nets[1])
    actor = SimpleNamespace(net=theirs(ours["actor"]), fc_head=[], fc_mu=[])
    known = compare_fasttd3.of_peer({"actor": actor, "qnet": critic, "qnet_target": critic})
    jax.tree.map(np.testing.assert_array_equal, known, ours)
    copy = compare_fasttd3.of_ours(compare_fasttd3.with_parameters(other, known))
    jax.tree.map(np.testing.assert_array_equal, copy, ours)
