"""Files of other libraries.

Rollouts of HumanCompatibleAI/imitation hold `acts` [M, A], `rews` [M], `obs` [M + trajectories, O],
`indices` [trajectories - 1] of `acts` where later ones begin, and `terminal` [trajectories].

Episodes of d3rlpy 2 (takuseno/d3rlpy, dataset/io.py) are `observations_I` [T, O], `actions_I`,
`rewards_I` and one truth value `terminated_I`, with I from 0.

Demonstrations of robomimic, MimicGen and LIBERO are groups `data/demo_I` of `actions`, `rewards`,
`dones`, `obs/KEY` and perhaps `next_obs/KEY`, each [T, ...]. `dones` are terminal rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rljax.datasets.formats import schema, text
from rljax.datasets.formats.assembly import Rows

IMITATION = ("acts", "obs", "indices", "terminal")


def read(name: str, file: Mapping[str, Any]) -> tuple[Rows, list[str]] | None:
    """All rows of a file in one of these layouts, and notes on assumptions, or None.

    Raises `ValueError` for arrays that do not match.
    """
    if all(key in file for key in IMITATION):
        return _imitation(name, file)
    if "actions_0" in file and ("observations_0" in file or "observations_0_0" in file):
        return _d3rlpy(name, file)
    group = file.get("data")
    if isinstance(group, Mapping) and group and all(key.startswith("demo_") for key in group):
        return _robomimic(name, group)
    return None


def _d3rlpy(name: str, file: Mapping[str, Any]) -> tuple[Rows, list[str]]:
    for fact in ("columns", "num_episodes", "version"):
        file.get(fact)  # the arrays tell the same
    episodes = []
    while f"actions_{len(episodes)}" in file:
        index = len(episodes)
        keys = {field: f"{key}_{index}" for field, key in KEYS.items()}
        hint = " Observations of several arrays are not read."
        arrays = {field: _inside(name, file, key, hint) for field, key in keys.items()}
        terminated = _inside(name, file, f"terminated_{index}")
        one = getattr(terminated, "shape", None) in ((), (1,))
        if not one or terminated.dtype.kind not in "biuf":
            raise ValueError(f"'{name}': 'terminated_{index}' must be one truth value.")
        reward = schema.numbers(arrays["reward"], name, keys["reward"])
        done = np.zeros(len(reward), np.bool_)
        done[-1:] = np.all(schema.stored(terminated))
        episodes.append((keys, arrays, done))
    return _joined(name, episodes), []


def _robomimic(name: str, group: Mapping[str, Any]) -> tuple[Rows, list[str]]:
    episodes, parts = [], []
    for demo in sorted(group, key=lambda key: (len(key), key)):  # by number
        inside = group[demo]
        if not isinstance(inside, Mapping):
            raise ValueError(f"'{name}': 'data/{demo}' must be a group of arrays.")
        fields = KEYS | {"observation": "obs"}
        fields |= {"next_observation": "next_obs"} if "next_obs" in inside else {}
        hint = " robomimic's dataset_states_to_obs.py makes 'obs' from states."
        arrays = {field: _inside(name, inside, key, hint) for field, key in fields.items()}
        keys = {field: f"data/{demo}/{key}" for field, key in fields.items()}
        done = schema.marks(_inside(name, inside, "dones"), name, f"data/{demo}/dones")
        episodes.append((keys, arrays, done))
        parts = sorted(inside["obs"]) if isinstance(inside["obs"], Mapping) else []
    rows = _joined(name, episodes)
    if parts and not isinstance(rows.observation, dict):
        size = rows.observation.shape[1]
        warnings.warn(
            f"'{name}': observations ({', '.join(parts)}) are flattened to {size} numbers.",
            stacklevel=2,
        )
    return rows, [
        "'dones' are read as the environment's own ends, other ends of demonstrations as truncated"
    ]


def _inside(name: str, group: Mapping[str, Any], key: str, hint: str = "") -> Any:
    if key not in group:
        raise ValueError(f"'{name}' has no '{key}'; it has: {text.listed(group)}.{hint}")
    return group[key]


def _joined(name: str, episodes: Sequence[tuple[dict[str, str], dict[str, Any], Any]]) -> Rows:
    """The rows of episodes: keys and arrays by field, and terminal rows [T]."""
    stored = jax.tree.leaves([_leaves(x) for _, arrays, _ in episodes for x in arrays.values()])
    total = sum(text.nbytes_of(array.shape, array.dtype.itemsize) for array in stored)
    text.require_memory(name, "all episodes", total)  # links may name one array many times
    first, *_ = episodes[0]
    columns: dict[str, list[Any]] = {field: [] for field in first}
    last = []
    for keys, arrays, done in episodes:
        for field, values in columns.items():
            if field not in arrays:
                raise ValueError(f"'{name}' lacks '{first[field]}' in other episodes.")
            values.append(READERS[field](arrays[field], name, keys[field]))
            for part in jax.tree.leaves(values[-1]):
                schema.require_length(name, keys[field], len(part), keys["reward"], len(done))
        last.append(np.arange(len(done)) == len(done) - 1)
    for field, values in columns.items():
        kinds = {str(jax.tree.map(lambda x: (x.dtype, x.shape[1:]), value)) for value in values}
        if len(kinds) > 1:
            raise ValueError(f"'{name}': '{first[field]}' has another type or shape elsewhere.")
    terminated = np.concatenate([done for *_, done in episodes])
    return Rows(
        name,
        dict.fromkeys(("terminated", "truncated"), first["reward"]) | first,
        terminated=terminated,
        truncated=np.concatenate(last) & ~terminated,
        **{field: jax.tree.map(lambda *x: np.concatenate(x), *x) for field, x in columns.items()},
    )


def _leaves(array: Any) -> list[Any]:
    inside = array.values() if hasattr(array, "keys") else [array]
    return [x for x in inside if hasattr(x, "dtype")]


def _observed(array: Any, name: str, key: str) -> Any:
    """Observations: of a group the vectors side by side or, with pictures, each part."""
    if not hasattr(array, "keys"):
        return schema.observed(array, name, key)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = {x: schema.observed(array[x], name, f"{key}/{x}") for x in sorted(array)}
    if not parts:
        raise schema.is_group(name, key, parts)
    sizes = {part.shape[:-1] for part in parts.values()}
    return parts if len(sizes) > 1 else np.concatenate(list(parts.values()), axis=1)


KEYS = {"observation": "observations", "action": "actions", "reward": "rewards"}
READERS: dict[str, Callable[[Any, str, str], Any]] = {
    "observation": _observed,
    "action": schema.actions,
    "reward": lambda array, name, key: schema.column(array, name, key, np.float32),
    "next_observation": _observed,
}


def _imitation(name: str, file: Mapping[str, Any]) -> tuple[Rows, list[str]]:
    if "rews" not in file:
        raise ValueError(
            f"'{name}' has no 'rews': trajectories without rewards are not read. Save them "
            "with rewards."
        )
    keys = {
        "observation": "obs",
        "action": "acts",
        "reward": "rews",
        "terminated": "terminal",
        "truncated": "indices",
    }
    action = schema.actions(file["acts"], name, "acts")
    reward = schema.column(file["rews"], name, "rews", np.float32)
    observation = schema.vectors(file["obs"], name, "obs")
    terminal = schema.marks(file["terminal"], name, "terminal")
    # NumPy stores an empty list as float64.
    splits = schema.stored(file["indices"]).reshape(-1)
    total = len(action)
    numeric = splits.dtype.kind in "iuf"
    starts = np.append(0, splits if numeric else []).astype(np.int64)
    ends = np.append(starts[1:], total)
    rising = numeric and (starts < ends).all() and (starts[1:] == splits).all()
    if not rising or len(terminal) != len(starts) or len(observation) != total + len(starts):
        raise ValueError(
            f"'{name}' has {total} 'acts', {len(observation)} 'obs', {len(terminal)} 'terminal' "
            f"and {len(splits)} 'indices'; with N trajectories there are N more 'obs' than 'acts', "
            "N 'terminal', and N - 1 rising 'indices'. The file was cut or assembled wrongly: make "
            "it again."
        )
    terminated, truncated = np.zeros(total, np.bool_), np.zeros(total, np.bool_)
    terminated[ends - 1], truncated[ends - 1] = terminal, ~terminal
    here = np.arange(total) + np.repeat(np.arange(len(starts)), ends - starts)
    types = {key: file[key].dtype.name for key in ("obs", "acts", "rews")}
    rows = Rows(
        name,
        keys,
        observation[here],
        action,
        reward,
        terminated,
        truncated,
        observation[here + 1],
        types=types,
    )
    return rows, [
        "'terminal' is read as the environment's own end: time limits were not recorded apart"
    ]
