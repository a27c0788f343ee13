"""What authors' JAX code needs and the newest JAX cannot import, by other packages.

Distributions of TensorFlow Probability are those of distrax.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import distrax
import jax


class Squashed(distrax.Transformed):
    """As in TensorFlow Probability, a sample remembers what it came of."""

    def __init__(self, distribution: Any, bijector: Any, validate_args: bool = False) -> None:
        del validate_args
        super().__init__(distribution, distrax.Block(bijector, 1))
        self.before: Any = None

    def sample(self, *, seed: Any) -> Any:
        """Actions [..., A]."""
        self.before = self.distribution.sample(seed=seed)
        return self.bijector.forward(self.before)

    def log_prob(self, value: Any) -> Any:
        """Of the last sample."""
        del value
        change: Any = self.bijector.forward_log_det_jacobian(self.before)
        return self.distribution.log_prob(self.before) - change


def _gaussian(loc: Any, scale_diag: Any) -> Any:
    return distrax.MultivariateNormalDiag(loc, scale_diag)


def probability() -> dict[str, types.ModuleType]:
    """Modules in place of TensorFlow Probability's, by their names."""
    name = "tensorflow_probability"
    substrates = types.ModuleType(f"{name}.substrates")
    substrates.jax = types.SimpleNamespace(  # type: ignore[attr-defined]
        distributions=types.SimpleNamespace(
            Distribution=object, MultivariateNormalDiag=_gaussian, TransformedDistribution=Squashed
        ),
        bijectors=types.SimpleNamespace(Tanh=distrax.Tanh),
    )
    package = types.ModuleType(name)
    package.substrates = substrates  # type: ignore[attr-defined]
    return {name: package, substrates.__name__: substrates}


@contextlib.contextmanager
def importing(peer: Path, modules: Mapping[str, Any]) -> Iterator[Callable[[str], Any]]:
    """Inside, the given function imports a module of a checkout, and `modules` stand in for others.

    JAX has the name `tree_map` of older versions there, and where its functions run.
    """
    stand_ins = {**probability(), **modules}
    path = mock.patch.object(sys, "path", [str(peer), *sys.path])
    with mock.patch.dict(sys.modules, stand_ins), path, old_names():
        yield importlib.import_module


def old_names() -> Any:
    """Inside, JAX has the name `tree_map` of older versions."""
    return mock.patch.object(jax, "tree_map", jax.tree.map, create=True)
