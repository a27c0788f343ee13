"""Files of other libraries whose arrays are not rows one below the other.

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

import numpy as np

from rljax.datasets.formats import schema, text
from rljax.datasets.formats.assembly import Rows

IMITATION = ("acts", "obs", "indices", "terminal")


def read(name: str, file: Mapping[str, Any]) -> tuple[Rows, list[str]] | None:
    """All rows of a file in one of these layouts, and notes on what had to be assumed; or None.

    `name` is the file's in messages. Raises `ValueError` for arrays that do not match.
    """
    if all(key in file for key in IMITATION):
        return _imitation(name, file)
    if "actions_0" in file and ("observations_0" in file or "observations_0_0" in file):
        return _d3rlpy(name, file)
    group = file.get("data")
    if isinstance(group, Mapping) and any(key.startswith("demo_") for key in group):
        return _robomimic(name, group)
    return None


def _d3rlpy(name: str, file: Mapping[str, Any]) -> tuple[Rows, list[str]]:
    for fact in ("columns", "num_episodes", "version"):
        file.get(fact)  # which the arrays tell, too
    number = 0
    while f"actions_{number}" in file:
        number += 1
    episodes = []
    for index in range(number):
        keys = {
            field: f"{key}_{index}"
            for field, key in (
                ("observation", "observations"),
                ("action", "actions"),
                ("reward", "rewards"),
            )
        }
        terminated = _inside(name, file, f"terminated_{index}")
        episode = {field: _inside(name, file, key) for field, key in keys.items()}
        last = np.arange(len(episode["reward"])) == len(episode["reward"]) - 1
        episodes.append((keys, episode, last & bool(np.all(schema.stored(terminated)))))
    return _joined(name, episodes), []


def _robomimic(name: str, group: Mapping[str, Any]) -> tuple[Rows, list[str]]:
    demos = sorted(
        (key for key in group if key.startswith("demo_")),
        key=lambda key: (len(key), key),  # by their numbers
    )
    episodes = []
    for demo in demos:
        place, inside = f"data/{demo}", group[demo]
        if "obs" not in inside:
            raise ValueError(
                f"'{name}' holds states of a simulator and no 'obs' in '{place}'. Write them with "
                "robomimic's dataset_states_to_obs.py."
            )
        keys = {"observation": "obs", "action": "actions", "reward": "rewards"}
        keys |= {"next_observation": "next_obs"} if "next_obs" in inside else {}
        episode = {field: _inside(name, inside, key) for field, key in keys.items()}
        done = schema.marks(_inside(name, inside, "dones"), name, f"{place}/dones")
        keys = {field: f"{place}/{key}" for field, key in keys.items()}
        episodes.append((keys, episode, done))
    rows = _joined(name, episodes)
    parts = sorted(group[demos[0]]["obs"])
    if not isinstance(rows.observation, dict) and len(parts) > 1:
        warnings.warn(
            f"'{name}': observations ({', '.join(parts)}) are flattened to "
            f"{rows.observation.shape[1]} numbers.",
            stacklevel=2,
        )
    return rows, [
        "'dones' are read as the environment's own ends, other ends of a demonstration as cut"
    ]


def _inside(name: str, group: Mapping[str, Any], key: str) -> Any:
    """An array or a group of an episode."""
    if key in group:
        return group[key]
    several = " Observations of several arrays are not read." if f"{key}_0" in group else ""
    raise ValueError(f"'{name}' has no '{key}'; it has: {text.listed(group)}.{several}")


Episode = tuple[Mapping[str, str], Mapping[str, Any], np.ndarray]  # keys, arrays, terminal rows


def _joined(name: str, episodes: Sequence[Episode]) -> Rows:
    """The rows of episodes. Each episode's last row is an end."""
    keys = dict(episodes[0][0])
    total = sum(_bytes(array) for _, episode, _ in episodes for array in episode.values())
    text.require_memory(name, "all episodes", total)
    columns: dict[str, list[Any]] = {}
    for places, episode, done in episodes:
        if places.keys() != keys.keys():
            raise ValueError(f"'{name}': episodes differ: {places['action']} has other arrays.")
        for field, array in episode.items():
            value = READERS.get(field, _observed)(array, name, places[field])
            for part in value.values() if isinstance(value, dict) else [value]:
                schema.require_length(name, places[field], len(part), places["reward"], len(done))
            columns.setdefault(field, []).append(value)
    lengths = [len(done) for *_, done in episodes]
    if not all(lengths):
        raise ValueError(f"'{name}': an episode has no rows. Record or download it again.")
    last = np.zeros(sum(lengths), np.bool_)
    last[np.cumsum(lengths) - 1] = True
    terminated = np.concatenate([done for *_, done in episodes])
    return Rows(
        name,
        {"terminated": keys["reward"], "truncated": keys["reward"]} | keys,
        terminated=terminated,
        truncated=last & ~terminated,
        **{field: _concatenated(name, keys[field], values) for field, values in columns.items()},
    )


def _observed(array: Any, name: str, key: str) -> Any:
    """Observations of an episode: of a group the vectors side by side, or, with pictures among
    them, each part.
    """
    if not hasattr(array, "keys"):
        return schema.observed(array, name, key)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of arrays that are flattened
        parts = {
            part: schema.observed(array[part], name, f"{key}/{part}") for part in sorted(array)
        }
    if not parts:
        raise schema.is_group(name, key, parts)
    if any(part.ndim > 2 for part in parts.values()) or len({*map(len, parts.values())}) > 1:
        return parts
    return np.concatenate(list(parts.values()), axis=1)


def _concatenated(name: str, key: str, values: list[Any]) -> Any:
    """One array, or dictionary of arrays, of those of all episodes."""
    kinds = {
        tuple((part, x.shape[1:], x.dtype) for part, x in value.items())
        if isinstance(value, dict)
        else (value.shape[1:], value.dtype)
        for value in values
    }
    if len(kinds) > 1:
        raise ValueError(
            f"'{name}': '{key}' has another type or shape in other episodes. Write episodes of "
            "one kind to a file."
        )
    if isinstance(values[0], dict):
        return {part: np.concatenate([value[part] for value in values]) for part in values[0]}
    return np.concatenate(values)


def _bytes(array: Any) -> int:
    """Bytes of an array, or of all arrays in a group."""
    if hasattr(array, "keys"):
        return sum(_bytes(array[part]) for part in array if not hasattr(array[part], "keys"))
    return text.nbytes_of(array.shape, array.dtype.itemsize)


def _rewards(array: Any, name: str, key: str) -> np.ndarray:
    return schema.column(array, name, key, np.float32)


READERS: dict[str, Callable[[Any, str, str], Any]] = {"action": schema.actions, "reward": _rewards}


def _imitation(name: str, file: Mapping[str, Any]) -> tuple[Rows, list[str]]:
    """The same for the imitation library's rollouts."""
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
    # A file of one trajectory has no numbers here, and NumPy stores nothing as float64.
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
