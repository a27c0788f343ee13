"""Minari's layout, written by hand and by its package."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from rljax import datasets
from rljax.agent import difference
from rljax.buffers.storage import frames
from rljax.envs.host.spaces import Spaces
from tests.datasets.files import arrays, findings, hdf5, load, same, without
from tests.environments import every_space
from tests.helpers import counting
from tests.runs.policies import test_collect_spaces

BOX = {"type": "Box", "dtype": "float32", "shape": [3], "low": [-1e9] * 3, "high": [1e9] * 3}
ACTIONS = {"type": "Box", "dtype": "float32", "shape": [2], "low": [-2.0, 0.0], "high": [2.0, 4.0]}
SPEC = {
    "id": "Hopper-v5",
    "entry_point": "gymnasium.envs.mujoco.hopper_v5:HopperEnv",
    "max_episode_steps": 1000,
}
MAZE = {
    "id": "PointMaze_Open-v3",
    "entry_point": "gymnasium_robotics.envs.maze.point_maze:PointMazeEnv",
}
MULTI = {"type": "MultiDiscrete", "nvec": [2, 2]}


def write(folder: Path, identity: str, episodes: list[dict[str, Any]], **metadata: Any) -> Path:
    home = folder / "minari" / identity
    (home / "data").mkdir(parents=True)
    described = {
        "dataset_id": identity,
        "env_spec": SPEC,
        "observation_space": BOX,
        "action_space": ACTIONS,
        "minari_version": "0.5.3",
        **metadata,
    }
    texts = {k: json.dumps(x) if isinstance(x, dict) else x for k, x in described.items()}
    (home / "data" / "metadata.json").write_text(json.dumps(texts))
    values = {
        f"episode_{index}/{key}": value
        for index, each in enumerate(episodes)
        for key, value in each.items()
    }
    hdf5(home / "data" / "main_data.hdf5", values)
    return home


def read(folder: Path, episodes: list[Any], name: str = "mine-v0", **metadata: Any) -> Any:
    """What is read of a dataset that is written first."""
    write(folder, name, episodes, **metadata)
    return datasets.load(f"minari/{name}", folder, download=False)


def episode(length: int, end: str = "t", seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    ends = np.arange(length) == length - 1
    return {
        "observations": rng.normal(size=(length + 1, 3)),
        "actions": rng.uniform([-2, 0], [2, 4], (length, 2)).astype(np.float32),
        "rewards": rng.normal(size=length),
        "terminations": ends & (end == "t"),
        "truncations": ends & (end == "o"),
        "infos/distance": np.zeros(length + 1),
    }


def test_every_row_is_kept_with_its_successor(tmp_path: Path) -> None:
    ends = [(4, "t"), (3, "o"), (12, "n")] * 4
    episodes = [episode(*each, seed) for seed, each in enumerate(ends)]
    references = {"ref_min_score": -20.0, "ref_max_score": 3000.0}
    dataset = read(tmp_path, episodes, "mujoco/hopper/medium-v0", **references)
    t = dataset.transitions

    def joined(key: str, rows: slice = slice(None)) -> np.ndarray:
        return np.concatenate([each[key][rows] for each in episodes])

    for rows, observation in ((slice(-1), t.observation), (slice(1, None), t.next_observation)):
        np.testing.assert_array_equal(observation, joined("observations", rows).astype(np.float32))
    np.testing.assert_array_equal(t.reward, joined("rewards").astype(np.float32))
    np.testing.assert_array_equal(t.terminated, joined("terminations"))
    np.testing.assert_allclose(t.action, joined("actions") / [2, 2] - [0, 1], atol=1e-6)
    assert dataset.lengths().tolist() == [4, 3, 12] * 4
    assert np.asarray(t.truncated).sum() == 8, "an episode without an end is cut"
    assert (dataset.env, dataset.reference) == ("Hopper-v5", (-20.0, 3000.0))
    assert dataset.max_episode_steps == 1000
    assert not findings(dataset, "error")


def test_dictionaries_are_flattened_as_gymnasium_does(tmp_path: Path) -> None:
    spaces = pytest.importorskip("gymnasium").spaces
    rng = np.random.default_rng(0)
    sizes = {"observation": 4, "desired_goal": 2, "achieved_goal": 2}
    parts = {key: rng.normal(size=(6, size)) for key, size in sizes.items()}
    box = {"type": "Box", "dtype": "float64", "low": [-9.0], "high": [9.0]}
    subspaces = {key: box | {"shape": [size]} for key, size in sizes.items()}
    space = {"type": "Dict", "subspaces": subspaces}
    values = {f"observations/{key}": value for key, value in parts.items()}
    values |= without(episode(5), "observations")
    message = r"observations \(achieved_goal, desired_goal, observation\) are flattened to 8"
    with pytest.warns(UserWarning, match=message):
        dataset = read(tmp_path, [values], observation_space=space, env_spec=MAZE)
    made = spaces.Dict({key: spaces.Box(-9, 9, (size,), np.float64) for key, size in sizes.items()})
    rows = [{key: value[row] for key, value in parts.items()} for row in range(6)]
    flat = np.array([spaces.flatten(made, row) for row in rows], np.float32)
    np.testing.assert_array_equal(dataset.transitions.observation, flat[:-1])
    np.testing.assert_array_equal(dataset.transitions.next_observation, flat[1:])
    assert (dataset.env, dataset.reference) == ("gymnasium_robotics:PointMaze_Open-v3", None)


def test_the_environment_is_known_without_reading_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "mujoco/hopper/medium-v0", [])
    write(tmp_path, "maze-v0", [], env_spec=MAZE)
    write(tmp_path, "mine-v0", [], env_spec=None)
    broken = write(tmp_path, "broken-v0", [])
    (broken / "data" / "metadata.json").write_text("{")
    monkeypatch.setenv("RLJAX_DATA", str(tmp_path))
    assert datasets.environment("minari/mujoco/hopper/medium-v0") == "Hopper-v5"
    assert datasets.environment("minari/maze-v0") == "gymnasium_robotics:PointMaze_Open-v3"
    for name in ("mine-v0", "broken-v0", "absent-v0", "mujoco/hopper/expert-v0"):
        assert datasets.environment(f"minari/{name}") is None, name
    monkeypatch.setenv("RLJAX_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    assert datasets.environment("minari/mujoco/hopper/medium-v0") == "Hopper-v5"


def test_the_environment_for_evaluation_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLJAX_DATA", str(tmp_path))
    recording = SPEC | {"kwargs": {"reset_noise_scale": 0.1}, "max_episode_steps": 1e6}
    evaluation = SPEC | {"kwargs": {"reset_noise_scale": 0.2}, "max_episode_steps": 300}
    write(tmp_path, "one-v0", [episode(500, "o")], env_spec=recording)
    specs = {"env_spec": recording, "eval_env_spec": evaluation}
    write(tmp_path, "two-v0", [episode(500, "o")], **specs)
    for name, scale, limit in (("minari/one-v0", 0.1, 1000), ("minari/two-v0", 0.2, 300)):
        dataset = datasets.load(name, tmp_path, download=False)
        assert dataset.env == datasets.environment(name)
        assert dataset.env == f'Hopper-v5?{{"reset_noise_scale": {scale}}}'
        assert dataset.max_episode_steps == limit
        assert "episodes_too_long" not in findings(dataset), "the recording had another limit"


def test_an_environment_that_cannot_be_made_is_not_guessed(tmp_path: Path) -> None:
    evil = {"id": "Evil-v0", "entry_point": "evil:Env"}
    dataset = read(tmp_path, [episode(5)], env_spec=evil)
    assert dataset.env is None
    assert "'Evil-v0' (evil:Env) is not registered" in dataset.provenance["no_environment"]


def test_data_of_a_hand_have_the_references_of_d4rl(tmp_path: Path) -> None:
    spec = {"id": "AdroitHandPen-v1", "entry_point": "gymnasium_robotics.a:B"}
    spec |= {"max_episode_steps": 200}
    human = read(tmp_path, [episode(5)], "D4RL/pen/human-v2", env_spec=spec)
    assert (human.reference, human.max_episode_steps) == ((96.262799, 3076.8331017826877), 100)
    references = {"ref_min_score": 0.0, "ref_max_score": 9.0}
    cloned = read(tmp_path, [episode(5)], "D4RL/pen/cloned-v2", env_spec=spec, **references)
    assert cloned.reference == (0.0, 9.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": None}, r"has no 'rewards' in episode_0; it has: actions, "),
        ({"observations": np.zeros((5, 3))}, r"has 5 rewards, 5 observations \(it must be 6\)"),
        ({"observations": np.zeros((6, 8, 8), np.uint8)}, r"'episode_0/observations' holds images"),
        ({"rewards": np.full(5, np.nan)}, r"'rewards' is nan in row 0"),
        ({"actions": np.full((5, 2), 9.0)}, r"'actions' is 9 in row 0, .* 0, outside \[-2, 2\]"),
    ],
)
def test_faults_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    values = episode(5) | change
    with pytest.raises(ValueError, match=message):
        read(tmp_path, [{key: x for key, x in values.items() if x is not None}])


@pytest.mark.parametrize(
    ("space", "actions", "message"),
    [
        (
            {"type": "Discrete", "n": 3, "start": -1},
            np.array([-1.0, 0, 1, 0, -1]),
            r"float64\[5\], and the action space",
        ),
        ({"type": "Discrete", "n": 3}, np.zeros((5, 2)), r"\[5, 2\], and the action space is Disc"),
        (MULTI, np.full((5, 2), 2), r"'choices' is \[2, 2\], it must be more than"),
        (MULTI, np.ones((5, 3), int), r"shape \(5, 3\), its space has 2 actions"),
        (MULTI | {"nvec": [2]}, np.zeros((5, 1)), "several discrete actions are integers"),
        (MULTI | {"nvec": [10**6]}, np.zeros((5, 1), int), "with at most 100,000 choices"),
        (
            {"type": "MultiDiscrete"},
            np.zeros((5, 1), int),
            "a MultiDiscrete space with whole numbers as 'nvec'",
        ),
        (
            {"type": "MultiBinary", "n": [10**9, 10**9]},
            np.ones((5, 2), np.int8),
            "a MultiBinary space with",
        ),
        (
            {"type": "Dict", "subspaces": {"a": ACTIONS}},
            np.ones((5, 2)),
            "rljax takes Box, Discrete, MultiDiscrete",
        ),
    ],
)
def test_actions_must_be_of_their_space(
    tmp_path: Path, space: Any, actions: np.ndarray, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read(tmp_path, [episode(5) | {"actions": actions}], action_space=space)


def described(space: Any) -> dict[str, Any]:
    kind = type(space).__name__
    if kind == "Dict":
        parts = {name: described(part) for name, part in space.spaces.items()}
        return {"type": kind, "subspaces": parts}
    if kind == "MultiBinary":
        return {"type": kind, "n": space.n}
    names = {"Box": ("shape", "low", "high"), "Discrete": ("n", "start")}
    facts = {x: getattr(space, x) for x in names.get(kind, ("nvec", "start"))}
    facts = {name: np.asarray(x).tolist() for name, x in facts.items()}
    return {"type": kind, "dtype": str(space.dtype), **facts}


def nested(tree: Any, key: str = "observations") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {key: tree}
    parts = [nested(part, f"{key}/{name}") for name, part in tree.items()]
    return {path: x for part in parts for path, x in part.items()}


PAIRS = [
    *(("dictionary", "several"), ("picture", "masked"), ("picture", "binary")),
    *(("vector", "masked"), ("dictionary", "continuous"), ("picture", "one")),
]


@pytest.mark.filterwarnings("ignore:.*(observes a|agents see)")
@pytest.mark.parametrize(("shows", "takes"), PAIRS)
def test_observations_and_actions_are_those_that_agents_see(
    tmp_path: Path, shows: str, takes: str
) -> None:
    """As the environment's adapter shows them."""
    environment = every_space.Panels(shows, takes)
    environment.action_space.seed(0)
    episodes, before, after, actions = [], [], [], []
    for seed in range(3):
        seen = [environment.reset(seed=seed)]
        acted = [environment.action_space.sample() for _ in range(4 + seed)]
        seen += [(step[0], step[4]) for step in map(environment.step, acted)]
        stacked = jax.tree.map(lambda *x: np.stack(x), *(observation for observation, _ in seen))
        values = nested(stacked) | {
            "actions": np.stack(acted),
            "rewards": np.zeros(len(acted)),
            "terminations": np.zeros(len(acted), bool),
            "truncations": np.arange(len(acted)) == len(acted) - 1,
        }
        if takes == "masked":
            values["infos/action_mask"] = np.stack([info["action_mask"] for _, info in seen])
        episodes.append(values)
        translated = [test_collect_spaces.seen(*pair) for pair in seen]
        before, after, actions = before + translated[:-1], after + translated[1:], actions + acted
    spaces = (environment.observation_space, environment.action_space)
    shown, taken = map(described, spaces)
    dataset = read(tmp_path, episodes, observation_space=shown, action_space=taken, env_spec=None)
    spec = Spaces(*spaces, "x", masked=takes == "masked").spec()
    assert difference(dataset.spec, spec) is None
    test_collect_spaces.assert_rows(dataset.transitions.observation, before)
    test_collect_spaces.assert_rows(dataset.transitions.next_observation, after)
    start, half = (1 if takes == "one" else 0), (2.0 if takes == "continuous" else 1)
    expected = (np.stack(actions) - start) / half
    np.testing.assert_allclose(dataset.transitions.action, expected, atol=1e-6)
    assert dataset.lengths().tolist() == [4, 5, 6]
    picture = [x for x in frames.columns(dataset.transitions.observation) if frames.is_frames(x)]
    once = [15 + 3] * (shows != "vector")
    assert [len(x.pictures) for x in picture] == once, "each picture is there once"


def test_spaces_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    box = {"type": "Box", "dtype": "uint8", "shape": [10**5, 10**5, 3], "low": 0, "high": 255}
    values = episode(5) | {"observations": np.zeros((6, 8, 8, 3), np.uint8)}
    message = "an observation has 30,000,000,000 numbers, at most 4,194,304 are read"
    with pytest.raises(ValueError, match=message):
        read(tmp_path, [values], observation_space=box)
    message = r"'episode_0/observations' holds .* promises \(6, 9, 9, 3\)"
    with pytest.raises(ValueError, match=message):
        read(tmp_path, [values], "other-v0", observation_space=box | {"shape": [9, 9, 3]})


@pytest.mark.filterwarnings("ignore:.*(observes a|agents see)")
@pytest.mark.parametrize(("shows", "takes"), PAIRS)
def test_any_spaces_are_written_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shows: str, takes: str
) -> None:
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    dataset = dataclasses.replace(test_collect_spaces.recorded(shows, takes), env=None)
    datasets.write_minari(dataset, "test/mine-v0")
    again = datasets.load("minari/test/mine-v0", download=False)
    assert difference(again.spec, dataset.spec) is None
    for name in ("observation", "next_observation"):
        jax.tree.map(
            np.testing.assert_array_equal,
            *(frames.each(np.asarray, getattr(one.transitions, name)) for one in (again, dataset)),
        )
    np.testing.assert_allclose(again.transitions.action, dataset.transitions.action, atol=1e-6)


def test_costs_in_infos_are_signals(tmp_path: Path) -> None:
    """With the reset's info first, and without."""
    costs = np.arange(6, dtype=np.float64)
    for name, lengths in {"first-v0": (0, 0), "mixed-v0": (0, 1)}.items():
        values = [
            episode(5) | {"infos/cost": costs[start:], "infos/x": np.ones(6)} for start in lengths
        ]
        extras = read(tmp_path, values, name).transitions.extras
        np.testing.assert_array_equal(extras["cost"], [1, 2, 3, 4, 5] * 2)
        assert set(extras) == {"cost"}
    some = [episode(5) | {"infos/cost": costs}, episode(5)]
    assert not read(tmp_path, some, "some-v0").transitions.extras
    message = "signal 'cost' of episode_0 has 3 rows, and there are 5 rewards"
    with pytest.raises(ValueError, match=message):
        read(tmp_path, [episode(5) | {"infos/cost": costs[:3]}], "short-v0")


def test_signals_are_written_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    bounds = (-np.ones(1, np.float32), np.ones(1, np.float32))
    recorded = dataclasses.replace(counting.recorded(), env=None, action_bounds=bounds)
    random = np.random.default_rng(0).random
    shapes = {"cost": (recorded.num,), "two": (recorded.num, 2)}
    extras = {name: random(shape, np.float32) for name, shape in shapes.items()}
    rows = recorded.transitions
    parts = [np.asarray(rows.observation)[1:], np.asarray(rows.next_observation)[-1:]]
    rows = rows.replace(extras=extras, next_observation=np.concatenate(parts))
    dataset = dataclasses.replace(recorded, transitions=rows)
    datasets.write_minari(dataset, "test/mine-v0")
    again = datasets.load("minari/test/mine-v0", download=False)
    assert again.spec.signals == dataset.spec.signals
    jax.tree.map(np.testing.assert_array_equal, dict(again.transitions.extras), extras)


def test_integers_of_a_box_are_no_choices(tmp_path: Path) -> None:
    space = {"type": "Box", "dtype": "int64", "shape": [1], "low": [0], "high": [4]}
    values = episode(5) | {"actions": np.array([[0], [4], [2], [1], [3]])}
    dataset = read(tmp_path, [values], action_space=space)
    np.testing.assert_array_equal(dataset.transitions.action[:, 0], [-1, 1, 0, -0.5, 0.5])


def test_incomplete_datasets_are_refused(tmp_path: Path) -> None:
    home = write(tmp_path, "mine-v0", [episode(500)])
    main = home / "data" / "main_data.hdf5"
    main.write_bytes(main.read_bytes()[:4000])
    message = r"'main_data.hdf5' \(4,000 bytes\) is not a whole HDF5 file"
    with pytest.raises(ValueError, match=message):
        datasets.load("minari/mine-v0", tmp_path, download=False)
    (home / "data" / "metadata.json").write_text("{")
    with pytest.raises(ValueError, match=r"'mine-v0/data/metadata.json' is not JSON"):
        datasets.load("minari/mine-v0", tmp_path, download=False)
    with pytest.raises(ValueError, match=r"has no episodes; it has: nothing"):
        read(tmp_path, [], "empty-v0")


def test_a_written_dataset_reads_back_as_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    dataset = load(tmp_path, arrays([7, 2, 5, 3], "toto", size=11, actions=3))
    changes = {"name": "a", "env": "Hopper-v5", "reference": (-20.0, 3000.0)}
    dataset = dataclasses.replace(dataset, **changes)
    folder = datasets.write_minari(dataset, "hopper/test-v0", author="nobody", algorithm_name="SAC")
    assert folder == tmp_path / "minari" / "hopper" / "test-v0"
    copy = datasets.load("minari/hopper/test-v0", tmp_path, download=False)
    same(copy, dataset)
    assert (copy.env, copy.reference) == ("Hopper-v5", (-20.0, 3000.0))
    assert copy.max_episode_steps == 1000
    assert copy.provenance["algorithm"] == "SAC"
    loaded = minari.load_dataset("hopper/test-v0")
    assert (loaded.total_steps, loaded.total_episodes) == (17, 4)
    np.testing.assert_array_equal(loaded[1].observations[:-1], dataset.transitions.observation[7:9])
    assert minari.get_normalized_score(loaded, np.array([3000.0]))[0] == pytest.approx(1)
    with pytest.raises(ValueError, match=r"there is a Minari dataset 'hopper/test-v0' already"):
        datasets.write_minari(dataset, "hopper/test-v0")


def test_successors_that_do_not_follow_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    values = arrays([7, 2], "to")
    values["next_observations"][3] += 1
    dataset = load(tmp_path, values)
    message = r"the successor of row 3 of .* is not the next row's observation \(1 rows\)"
    with pytest.raises(ValueError, match=message):
        datasets.write_minari(dataset, "mine-v0")


def test_without_the_package_writing_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "minari", None)
    dataset = load(tmp_path, arrays([7, 2], "to"))
    with pytest.raises(ValueError, match=r"needs its package: pip install 'minari\[hdf5,create\]'"):
        datasets.write_minari(dataset, "mine-v0")


@pytest.mark.parametrize(
    ("start", "stored"), [(-1, [-1, 0, 1]), (0, [0, 1, 2]), (10, [10, 12, 11])]
)
def test_discrete_actions_count_from_their_start(
    tmp_path: Path, start: int, stored: list[int]
) -> None:
    space = {"type": "Discrete", "dtype": "int64", "start": start, "n": 3}
    dataset = read(tmp_path, [episode(3) | {"actions": np.array(stored)}], action_space=space)
    assert dataset.transitions.action.dtype == np.int32
    assert np.asarray(dataset.transitions.action).tolist() == [action - start for action in stored]
    assert (dataset.discrete, dataset.action_size) == (True, 3)


def test_actions_without_bounds_are_read_with_those_that_are_given(tmp_path: Path) -> None:
    space = ACTIONS | {"low": [-np.inf] * 2, "high": [np.inf] * 2}
    message = r"'minari/endless-v0' have no bounds .*action_bounds=\(low, high\)"
    with pytest.raises(ValueError, match=message):
        read(tmp_path, [episode(5)], "endless-v0", action_space=space)
    dataset = datasets.load("minari/endless-v0", tmp_path, action_bounds=([-2, 0], [2, 4]))
    assert np.abs(dataset.transitions.action).max() <= 1
    write(tmp_path, "bounded-v0", [episode(5)])
    message = "action_bounds is for data without bounds; those of 'minari/bounded-v0'"
    with pytest.raises(ValueError, match=message):
        datasets.load("minari/bounded-v0", tmp_path, action_bounds=(-2, 2))


def test_the_package_makes_no_environment_that_a_file_chose() -> None:
    data = dataclasses.replace(counting.recorded(), name="a.npz", env="evil:Walk-v0")
    message = r"names the environment 'evil:Walk-v0', and Minari would import 'evil'"
    with pytest.raises(ValueError, match=message):
        datasets.write_minari(data, "t/evil-v0")
