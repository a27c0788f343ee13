"""What is recorded of any spaces is what the environment showed, also after a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

from rljax import datasets, envs
from rljax.agent import EnvSpec, difference
from rljax.buffers.storage import frames
from rljax.cli import data
from rljax.learning.drivers.driver import TRAIN, environment_seeds
from rljax.runs.policies import collect
from tests.buffers.storage import test_successors
from tests.environments import every_space

pytestmark = pytest.mark.filterwarnings("ignore:.*observes a Dict")
STEPS, ENVS, SEED = 90, 3, 4
PAIRS = [("picture", "one"), ("dictionary", "several"), ("picture", "masked"), ("small", "binary")]
PAIRS += [("dictionary", "continuous"), ("vector", "several"), ("vector", "masked")]


def recorded(shows: str, takes: str) -> datasets.OfflineDataset:
    hosted, generator = (
        envs.make_hosted(every_space.name(shows, takes), ENVS),
        np.random.default_rng(SEED),
    )
    try:
        choose = lambda observation, step: collect.random_actions(  # noqa: E731
            generator, hosted.spec, observation
        )
        transitions, bounds = collect.roll_out(hosted, choose, STEPS, SEED), hosted.action_bounds
    finally:
        hosted.close()
    known: Any = {"num_actions": hosted.spec.action_size} if hosted.spec.discrete else {}
    known = {"choices": list(hosted.spec.choices)} if hosted.spec.choices else known
    dataset = datasets.OfflineDataset("made", transitions, hosted.spec.name, None, bounds, known)
    assert difference(dataset.spec, hosted.spec) is None
    return dataset


def plain(
    shows: str, takes: str, seed: int, actions: np.ndarray
) -> list[tuple[Any, Any, float, bool, bool]]:
    """Each row (observation, successor, reward, terminated, truncated) of the environment."""
    environment: Any = gymnasium.make("Panels-v0", shows=shows, takes=takes)
    observation, info = environment.reset(seed=seed)
    rows = []
    for action in actions:
        own = {"continuous": 2 * action, "one": int(action) + 1 if takes == "one" else 0}.get(
            takes, action
        )
        own = own.astype(np.int8) if takes == "binary" else int(own) if takes == "masked" else own
        before = seen(observation, info)
        observation, reward, terminated, truncated, info = environment.step(own)
        rows.append((before, seen(observation, info), reward, terminated, truncated))
        if terminated or truncated:
            observation, info = environment.reset()
    return rows


def seen(observation: Any, info: dict[str, Any]) -> Any:
    if isinstance(observation, dict):
        observation = {
            "camera/left": observation["camera"]["left"],
            "vector": observation["vector"],
        }
    if "action_mask" in info:
        return {"action_mask": info["action_mask"] != 0, "observation": observation}
    return observation


def assert_rows(found: Any, expected: list[Any]) -> None:
    """Columns [N, ...] are these rows, of the same dtypes."""
    arrays = jax.tree.map(np.asarray, found, is_leaf=frames.is_frames)
    jax.tree.map(
        np.testing.assert_array_equal, arrays, jax.tree.map(lambda *rows: np.stack(rows), *expected)
    )
    jax.tree.map(
        lambda x, row: np.testing.assert_equal(x.dtype, np.asarray(row).dtype), arrays, expected[0]
    )


@pytest.mark.parametrize(("shows", "takes"), PAIRS)
def test_what_is_recorded_is_what_happened(tmp_path: Path, shows: str, takes: str) -> None:
    made = recorded(shows, takes)
    actions, each = np.asarray(made.transitions.action), STEPS // ENVS
    seeds = environment_seeds(SEED, TRAIN, number=ENVS)
    rows = [
        plain(shows, takes, seed, actions[each * i : each * (i + 1)])
        for i, seed in enumerate(seeds)
    ]
    before, after, reward, terminated, truncated = zip(
        *(row for part in rows for row in part), strict=True
    )
    ended = np.array(truncated) | (np.arange(1, STEPS + 1) % each == 0)
    files = [datasets.write(made, tmp_path / name) for name in ("made.npz", "made.hdf5")]
    for dataset in (made, *(datasets.load(str(path)) for path in files)):
        t = dataset.transitions
        assert_rows(t.observation, list(before))
        assert_rows(t.next_observation, list(after))
        np.testing.assert_array_equal(t.reward, np.float32(reward))
        np.testing.assert_array_equal(t.terminated, terminated)
        np.testing.assert_array_equal(dataset.last, ended | np.array(terminated))
        np.testing.assert_allclose(t.action, actions, atol=1e-6 if takes == "continuous" else 0)
        assert t.action.dtype == made.transitions.action.dtype
        assert difference(dataset.spec, made.spec) is None
        assert dataset.env == every_space.name(shows, takes)
        assert not [finding for finding in datasets.check(dataset) if finding.severity == "error"]


@pytest.mark.parametrize("shows", ["picture", "dictionary"])
def test_pictures_are_stored_once(shows: str) -> None:
    dataset = recorded(shows, "one")
    picture = dataset.transitions.observation
    picture = picture["camera/left"] if shows == "dictionary" else picture
    assert len(picture.pictures) == STEPS + len(dataset.episode_starts)
    assert dataset.nbytes < 1.2 * picture.pictures.nbytes + 100 * STEPS


@pytest.mark.slow
@pytest.mark.parametrize("stack", [1, 3])
def test_a_replay_of_pictures(stack: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, successors and stacks are the history's; no frame is there twice."""
    monkeypatch.setattr(test_successors.successors, "LARGE", 1)
    monkeypatch.setattr(frames, "LARGE", 1)
    ring, history, _ = test_successors.played(2, 60, 6, stack, 77)
    for steps in (1_000, 31):
        assert_recorded(ring, history, stack, steps)


def assert_recorded(ring: Any, history: list[Any], stack: int, steps: int) -> None:
    """So many transitions of a ring are those of the history."""
    found = collect.of_ring(ring.of_learner(1), 2, steps)
    held = int(ring.successors.usable[1]) // 2
    rows = [
        history[len(history) - held + t][1][env]
        for env in range(2)
        for t in range(min(held, -(-steps // 2)))
    ]
    rows = rows[:steps]
    assert len(found.reward) == len(rows)
    for name in ("action", "reward", "terminated"):
        np.testing.assert_array_equal(getattr(found, name), [row[name] for row in rows])
    assert_rows(found.observation, [row["observation"] for row in rows])
    assert_rows(found.next_observation, [row["next_observation"] for row in rows])
    pictures = found.observation.pictures
    assert pictures is found.next_observation.pictures
    assert (
        len(pictures)
        <= len(rows) + sum(row["terminated"] or row["truncated"] for row in rows) + 2 * stack
    )
    assert len({picture.tobytes() for picture in pictures}) == len(pictures)


def test_masks_hold_while_actions_are_random() -> None:
    t = recorded("picture", "masked").transitions
    mask = np.asarray(t.observation["action_mask"])
    assert mask[np.arange(STEPS), t.action].all()
    assert not mask.all()


@pytest.mark.slow
def test_stacks_of_atari_are_stored_frame_by_frame() -> None:
    pytest.importorskip("ale_py")
    steps, generator, actions = 200, np.random.default_rng(0), []
    hosted, again = (envs.make_hosted("atari/Breakout", 2) for _ in range(2))

    def choose(observation: Any, step: np.ndarray) -> np.ndarray:
        del step
        actions.append(collect.random_actions(generator, hosted.spec, observation))
        return actions[-1]

    found = collect.roll_out(hosted, choose, steps, SEED)
    observation = again.reset(environment_seeds(SEED, TRAIN, number=2))
    for time, action in enumerate(actions):
        step = again.step(action)
        for env in range(2):
            row = env * steps // 2 + time
            np.testing.assert_array_equal(found.observation[row], observation[env])
            np.testing.assert_array_equal(found.next_observation[row], step.next_observation[env])
        observation = step.observation
    ends = int((np.asarray(found.terminated) | np.asarray(found.truncated)).sum())
    assert len(found.observation.pictures) <= steps + ends + 2, "one frame a row"
    hosted.close()
    again.close()


def test_commands_on_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, best = tmp_path / "made.npz", tmp_path / "best.hdf5"
    datasets.write(recorded("dictionary", "several"), path)
    data.main(["info", str(path), "--output", str(tmp_path / "info.png")])
    shown = capsys.readouterr().out
    assert (
        "a dictionary of camera/left uint8[20, 20, 3], vector float32[3], actions of 3 x 2 choices"
        in shown
    )
    data.main(["check", str(path)])
    data.main(["convert", str(path), str(best), "--top", "0.5"])
    data.main(["join", str(tmp_path / "both.npz"), str(path), str(best)])
    both, kept = datasets.load(str(tmp_path / "both.npz")), datasets.load(str(best))
    assert 0 < kept.num < STEPS
    assert both.num == STEPS + kept.num
    assert both.choices == (3, 2)
    with pytest.raises(ValueError, match=r"shows a dictionary of .*: corrupt its rewards"):
        data.main(["corrupt", str(path), str(tmp_path / "bad.npz"), "--what", "observation"])
    data.main(["corrupt", str(path), str(tmp_path / "bad.npz"), "--what", "reward"])
    after = datasets.load(str(tmp_path / "bad.npz")).transitions
    assert_rows(after.observation, rows_of(arrays(both), range(STEPS)))


def arrays(dataset: datasets.OfflineDataset) -> Any:
    return frames.each(np.asarray, dataset.transitions.observation)


def rows_of(tree: Any, rows: Any) -> list[Any]:
    return [jax.tree.map(lambda x, row=row: x[row], tree) for row in rows]


def test_more_than_fits_is_refused_before_anything_is_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collect.hardware, "available_memory", lambda: 10**8)
    spec = EnvSpec("x", (84, 84, 4), 4, discrete=True, observation_dtype="uint8", stack=4)
    collect._require_room(spec, 5_000)
    with pytest.raises(
        ValueError,
        match=r"the run needs 1\.4 GB on this machine, 0\.1 GB are there\. Lower --steps\.",
    ):
        collect._require_room(spec, 100_000)
