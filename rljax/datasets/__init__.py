"""Offline data: recorded transitions from files, read by the rules of their publishers.

See docs/datasets.md.
"""

from rljax.datasets.dataset import OfflineDataset, cut, require_integers, score
from rljax.datasets.formats.dataset_writing import write, write_archive, write_hdf5
from rljax.datasets.publishers.catalogue import aliases, environment, identity, load, names, short
from rljax.datasets.publishers.d4rl import reference
from rljax.datasets.publishers.minari_writing import write_minari
from rljax.datasets.tools.check import Finding, check
from rljax.datasets.tools.info import describe, draw
from rljax.datasets.tools.preprocess import (
    effective_sizes,
    join,
    require_labels,
    reward_transform,
    row_weights,
    subset,
    top_fraction,
)

__all__ = [
    "Finding",
    "OfflineDataset",
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
