"""A user's own encoder and torso: what they are given, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from rljax.agent import MASK, EnvSpec, Part
from rljax.networks import encoders, memories, torsos, user_modules
from rljax.networks.encoders import EncoderSettings
from rljax.networks.torsos import TorsoSettings
from rljax.system import user_files
from rljax.system.user_files import FileClass
from tests.helpers import user_networks

VECTORS = EnvSpec("test/Vectors-v0", (3,), 2)
MIXED = EnvSpec(
    "test/Mixed-v0", (), 3, discrete=True,
    parts=(Part(MASK, (3,), "bool"), Part("camera", (2, 2, 3), "uint8"), Part("speed", (2,))),
)  # fmt: skip
FILE = str(user_networks.__file__)
ENCODER, TORSO = FileClass(f"{FILE}:Encoder"), FileClass(f"{FILE}:Torso")


def settings(**changes: Any) -> TorsoSettings:
    return TorsoSettings(torso="mlp", compute=1, progressive=None, activation="relu",
                         initialisation="torch")._replace(**changes)  # fmt: skip


@pytest.mark.parametrize("leading", [(), (4,), (2, 4)], ids=len)
@pytest.mark.parametrize("spec", [VECTORS, MIXED], ids=lambda spec: spec.name)
def test_an_encoder_takes_observations_of_any_leading_axes(spec: EnvSpec, leading: Any) -> None:
    encoders.check(spec, EncoderSettings(ENCODER))
    observation = spec.example(*leading)
    body = nn.Sequential([jnp.tanh])
    network = encoders.create(spec, EncoderSettings(ENCODER), body, jax.random.key(0))
    assert network(observation).shape == (*leading, user_networks.WIDTH)


def test_bytes_are_divided_and_the_mask_is_left_out() -> None:
    observation = MIXED.example(2) | {"camera": jnp.full((2, 2, 2, 3), 51, jnp.uint8)}
    one = {name: part for name, part in MIXED.observation.items() if name != MASK}
    parts = {name: part for name, part in observation.items() if name != MASK}
    rows = user_modules.rows(parts, one)
    np.testing.assert_allclose(rows["camera"], 0.2)
    assert rows["speed"].dtype == jnp.float32
    assert user_modules.example(MIXED).keys() == {"camera", "speed"}


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_a_torso_has_its_widths_and_stands_before_a_memory(memory: Any) -> None:
    chosen = settings(torso=TORSO, encoder=ENCODER, memory=memory, memory_hidden=(6,))
    torsos.check(VECTORS, chosen, (4, 2))
    body = torsos.torso(VECTORS, chosen, (4, 2))
    network, output = memories.create(body, chosen, jax.random.key(0), VECTORS.example())
    shapes = {x.shape for x in jax.tree.leaves(network.params)}
    assert {(3, 5), (5, 4), (9, 2)} <= shapes
    assert output.shape == ((11,) if memory == "none" else (6,))


def test_members_of_an_ensemble_differ() -> None:
    module = torsos.ensemble(VECTORS, settings(torso=TORSO), 3, (4,), 1)
    observation = jnp.ones((2, 3))
    output = module.init_with_output(jax.random.key(0), observation)[0]
    assert output.shape == (3, 2)
    assert len(np.unique(np.asarray(output[:, 0]))) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Nothing", "has no class 'Nothing'"),
        ("WIDTH", "is no class that derives from flax.linen.Module"),
        ("Needy", "cannot be made: TypeError: .*size"),
        ("Mute", r"fails for float32\[3, 3\]: RuntimeError in line \d+: not today"),
        ("Normal", "has variables 'batch_stats', and only parameters learn"),
        ("Counter", "has a parameter 'count' of int32: make it float32"),
        ("Mean", r"returns float32\[3\] for 3 rows, it must return features float32\[3, m\]"),
        ("Half", r"returns bfloat16\[3, 3\]"),
        ("Pair", "returns a tuple"),
        ("Noisy", r"fails for .*dropout"),
    ],
)
def test_what_is_no_encoder_is_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"--config.encoder {FILE}:{name}.*{message}"):
        encoders.check(VECTORS, EncoderSettings(FileClass(f"{FILE}:{name}")))


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    chosen = settings(torso=FileClass(f"{path}:Torso"))
    with pytest.raises(ValueError, match=r"--config.torso .*there is no file '.*mine.py'"):
        torsos.check(VECTORS, chosen, (4,))
    path.write_text("x = 1\nclass Torso(:\n")
    with pytest.raises(ValueError, match=r"cannot be imported: SyntaxError in line 2"):
        torsos.check(VECTORS, chosen, (4,))


def test_a_drc_takes_no_encoder() -> None:
    with pytest.raises(ValueError, match="takes the pictures themselves"):
        torsos.check(VECTORS, settings(torso="drc", encoder=ENCODER, grid=(1, 3)), (4,))


def test_a_class_of_python_has_its_file_only_where_it_can_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert user_files.name_of(user_networks.Encoder) == ENCODER

    class Local(user_networks.Encoder):
        pass

    name = user_files.name_of(Local)
    assert (name, user_files.name_of(Local)) == ("python/Local", name)
    encoders.check(VECTORS, EncoderSettings(name))
    monkeypatch.delitem(user_files._KNOWN, name)
    with pytest.raises(ValueError, match="this process does not know it: give the class again"):
        encoders.check(VECTORS, EncoderSettings(name))
    monkeypatch.syspath_prepend(tmp_path)
    for source, named in [("", True), ("from . import x\n", False)]:
        (tmp_path / "some_networks.py").write_text(f"class A: ...\nif 0:\n  {source or 'pass'}\n")
        monkeypatch.delitem(sys.modules, "some_networks", raising=False)
        module = __import__("some_networks")
        assert (user_files.file_of(user_files.name_of(module.A)) is not None) == named
