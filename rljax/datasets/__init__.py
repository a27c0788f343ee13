"""Offline data: recorded transitions from files, read by the rules of their publishers.

    from rljax import datasets

    dataset = datasets.load("d4rl/hopper-medium-v2")
    findings = datasets.check(dataset)
    scale, shift = datasets.reward_transform("return_range", dataset)

Each family has a reader: `d4rl`, `minari`, `ogbench`, `neorl2`. `archive` reads files by path. See docs/datasets.md.
"""

from rljax.datasets.archive import write, write_archive, write_hdf5
from rljax.datasets.catalogue import aliases, environment, identity, load, names, short
from rljax.datasets.check import Finding, check
from rljax.datasets.d4rl import reference
from rljax.datasets.dataset import Dataset, cut, require_integers, score
from rljax.datasets.info import describe, draw
from rljax.datasets.minari import write_minari
from rljax.datasets.preprocess import (
    effective_sizes,
    join,
    require_labels,
    reward_transform,
    row_weights,
    subset,
    top_fraction,
)

__all__ = [
    "Dataset",
    "Finding",
    "aliases",
    "check",
    "cut",
    "describe",
    "draw",
    "effective_sizes",
    "environment",
    "identity",
    "join",
    "load",
    "names",
    "reference",
    "require_integers",
    "require_labels",
    "reward_transform",
    "row_weights",
    "score",
    "short",
    "subset",
    "top_fraction",
    "write",
    "write_archive",
    "write_hdf5",
    "write_minari",
]
