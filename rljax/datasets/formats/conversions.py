"""How other formats become a .npz file."""

from __future__ import annotations

from pathlib import Path

PICKLES = (".pkl", ".pickle", ".p", ".pt", ".pth", ".joblib")
TABLES = {".csv": ",", ".tsv": r"\t"}
SAVE = "with np.savez: observations, actions, rewards, terminals, timeouts."

TABLE = """\
'{name}' is a table, which is not read. Write its columns, one row for each step, in Python:
    import numpy as np
    t = np.genfromtxt({path!r}, delimiter='{delimiter}', names=True)
    np.savez({new!r},
        observations=np.stack([t['x'], t['y']], axis=1),  # before the action
        actions=np.stack([t['u']], axis=1), rewards=t['reward'],
        terminals=t['terminal'],  # 1 where the environment itself ended the episode
        timeouts=t['timeout'])  # 1 where anything else did\
"""
PICKLE = """\
'{name}' is a pickle. Pickles are not loaded, because that runs whatever code they contain. If you \
trust its source, write its arrays; for a list of episodes, in Python:
    import numpy as np
    episodes = np.load({path!r}, allow_pickle=True)
    keys = 'observations', 'actions', 'rewards', 'terminals', 'next_observations'
    np.savez({new!r}, **{{key: np.concatenate([e[key] for e in episodes]) for key in keys}},
        episode_lengths=[len(e['rewards']) for e in episodes])\
"""
PARQUET = """\
'{name}' is in Parquet, which is not read. Read it with pandas.read_parquet, and write the columns \
"""
LEROBOT = """\
'{name}' is LeRobot's, which is not read. Read its data/*/*.parquet with pandas.read_parquet, and \
write the columns with np.savez: observation.state as observations, action as actions, next.reward \
as rewards, next.success as terminals, and as timeouts 1 in the last row of each episode_index.\
"""
RLDS = """\
'{name}' is in RLDS, which is not read. Read it with tensorflow_datasets' builder_from_directory, \
and write all steps but those with is_last, whose action is none, with np.savez: observation, that \
of the step behind it as next_observations, action, reward; and where that step has is_last, its \
is_terminal as terminals, else 1 as timeouts.\
"""
OTHER = "'{name}' is in a format that is not read. Write its arrays "
ARRAY = "'{name}' holds one array. Write all arrays of a data set to one file "
MINARI = "'{name}' is a folder of Minari's: name it minari/NAME, NAME below $MINARI_DATASETS_PATH."


def advice(path: Path) -> str | None:
    """How to convert `path`; None for unknown folders, and where there is nothing."""
    if not path.exists():
        return None
    text = _text(path)
    return text and text.format(
        name=path.name,
        path=str(path),
        new=path.with_suffix(".npz").name,
        delimiter=TABLES.get(path.suffix.lower()),
    )


def _text(path: Path) -> str | None:
    suffix = path.suffix.lower()
    if path.is_dir():
        if (path / "meta" / "info.json").is_file():
            return LEROBOT
        if (path / "data" / "main_data.hdf5").is_file():
            return MINARI
        return RLDS if (path / "features.json").is_file() else None
    if suffix in TABLES:
        return TABLE
    if suffix in PICKLES:
        return PICKLE
    if ".tfrecord" in path.name:
        return RLDS
    return {".parquet": PARQUET, ".npy": ARRAY}.get(suffix, OTHER) + SAVE
