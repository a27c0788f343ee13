"""One file with the policies of a run, for `rljax.load`: a zip that `np.load` reads too.

config.json    as in the run's folder
policy.json    the format, the checkpoint's step, and settings by a schedule
agent/, best/  arrays of all learners, the last ones and those of the best evaluations, by their
               places in the State
card.md, ...   texts and a film for people; nothing reads them
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rljax.datasets.formats import npz, text
from rljax.runs import json_files
from rljax.trust import RefusedFileError

FORMAT = 1
CONFIG, POLICY = "config.json", "policy.json"
KIND = "file of `rljax pack`"
_FIELDS = {"format": json_files.WHOLE, "step": json_files.WHOLE}


def write(
    path: Path,
    described: Mapping[str, Any],
    notes: Mapping[str, Any],
    trees: Mapping[str, Any],
    files: Mapping[str, bytes],
) -> None:
    """Write a pack: config.json, `notes` with the step and `values`, trees of arrays by their
    names, and other files.
    """
    texts = {CONFIG: described, POLICY: {"format": FORMAT, **notes}}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in texts.items():
            archive.writestr(name, json_files.dumps(content, indent=2))
        for name, blob in files.items():
            archive.writestr(name, blob)
        for name, tree in trees.items():
            for place, leaf in _leaves(name, tree).items():
                with archive.open(f"{place}.npy", "w") as member:
                    np.lib.format.write_array(member, np.asarray(leaf), allow_pickle=False)


def read_config(path: Path) -> dict[str, Any]:
    """The run's config.json, unchecked. Raises `ValueError` for other files."""
    return _json(path, CONFIG)


def read_notes(path: Path) -> dict[str, Any]:
    """The step and the `values` of settings by a schedule. Raises `ValueError` for other files."""
    notes = _json(path, POLICY)
    wrong = json_files.problem(notes, _FIELDS, _FIELDS)
    if wrong is None and notes["format"] != FORMAT:
        wrong = f"says format {notes['format']}, this version of rljax reads format {FORMAT}"
    if wrong is not None:
        raise ValueError(f"'{path}' cannot be read: its {POLICY} {wrong}.")
    return notes


def restore(path: Path, name: str, template: Any) -> Any:
    """The tree `name`, with the structure, shapes and dtypes of `template`.

    Raises `ValueError` if it has others, and `RefusedFileError` for a damaged file.
    """
    with npz.opened(path) as archive:
        places = _leaves(name, template)
        leaves = []
        for place, expected in places.items():
            if place not in archive:
                raise ValueError(f"'{path}' has no array '{place}', which its agent needs.")
            array, data = archive[place], _plain(expected)
            if array.shape != data.shape or array.dtype != data.dtype:
                raise ValueError(
                    f"'{path}' holds {array.dtype}{list(array.shape)} as '{place}', and its agent "
                    f"needs {data.dtype}{list(data.shape)}."
                )
            leaf = jax.numpy.asarray(array)
            is_key = jax.numpy.issubdtype(expected.dtype, jax.dtypes.prng_key)
            leaves.append(jax.random.wrap_key_data(leaf) if is_key else leaf)
    return jax.tree.structure(template).unflatten(leaves)


def _json(path: Path, name: str) -> dict[str, Any]:
    try:
        with text.guarded(path, KIND), zipfile.ZipFile(path) as archive:
            if archive.getinfo(name).file_size > text.LONGEST:
                raise RefusedFileError(f"'{path}' has a {name} that is too long.")
            content = archive.read(name)
            value = text.parse_json(content, name)
    except json.JSONDecodeError as error:
        raise ValueError(f"'{path}': its {name} is no JSON: {error}.") from None
    if not isinstance(value, dict):
        raise ValueError(f"'{path}': its {name} is not a JSON object.")
    return value


def _leaves(name: str, tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their places in the file; keys of random numbers as plain arrays
    where they have values.
    """
    places = jax.tree_util.tree_leaves_with_path(tree)
    each = {"/".join([name, *(_word(entry) for entry in place)]): leaf for place, leaf in places}
    assert len(each) == len(places), "places are distinct"
    abstract = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in each.values())
    return each if abstract else {place: _data(leaf) for place, leaf in each.items()}


def _word(entry: Any) -> str:
    for attribute in ("name", "key", "idx"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute)).replace("/", "_")
    return str(entry)


def _data(leaf: Any) -> Any:
    is_key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def _plain(expected: Any) -> Any:
    """The shape and dtype that are stored."""
    return jax.eval_shape(_data, expected)
