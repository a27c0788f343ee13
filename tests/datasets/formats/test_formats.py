"""Hostile and damaged data files: none runs code, opens another file or fills the memory,
and each has one error.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import struct
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rljax import datasets
from rljax.datasets import formats
from rljax.datasets.publishers import minari
from rljax.system import hardware
from tests.datasets.files import arrays, hdf5, npz, without

WHOLE = arrays([5, 4, 6], "tot")
MARKS = {"terminals": WHOLE["terminals"], "timeouts": WHOLE["timeouts"]}
SEEN: list[str] = []  # what happened that no reader may do, while `watched` is active
WATCHING = [False]
FORBIDDEN = ("pickle.find_class", "os.system", "subprocess.Popen", "socket.connect")


def hook(event: str, arguments: Any) -> None:
    """Note events that run code, and files that are opened by name."""
    if WATCHING[0] and (event in FORBIDDEN or (event == "open" and "secret" in str(arguments[0]))):
        SEEN.append(f"{event} {arguments[0]!r:.80}")


sys.addaudithook(hook)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Within this, nothing that is forbidden may happen. Modules are imported before."""
    SEEN.clear()
    WATCHING[0] = True
    try:
        yield
    finally:
        WATCHING[0] = False
    assert not SEEN


def read(path: Path) -> str:
    """The error with which all readers that accept the file refuse it; "" if they read it."""
    message = ""
    with watched(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if path.is_dir():
                dataset = minari.read(path)
            else:
                datasets.environment(str(path))
                datasets.identity(str(path))
                dataset = datasets.load(str(path))
            datasets.check(dataset)
            datasets.describe(dataset)
        except ValueError as error:
            message = str(error) or "an error without words"
    assert len(message) < 2_000
    return message


class Canary:
    """A pickle that runs code."""

    def __reduce__(self) -> Any:
        return (os.mkdir, ("canary",))


def archive_of(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def header(shape: str, dtype: str = "'<f4'", rest: bytes = b"") -> bytes:
    """An array whose header says anything."""
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + rest


def members(**changed: bytes) -> dict[str, bytes]:
    return {name: npy(value) for name, value in WHOLE.items()} | changed


def described(**facts: Any) -> dict[str, Any]:
    """Our own layout, with other facts."""
    text = json.dumps(
        {"format": "rljax dataset 1", "name": "a", "env": None, "reference": None} | facts
    )
    return WHOLE | {"metadata": np.array(text)}


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


ARCHIVES: dict[str, Callable[[Path], Any]] = {
    "an object": lambda p: npz(p, WHOLE | {"rewards": np.array([Canary()] * 15)}),
    "an object as metadata": lambda p: archive_of(
        p, members(metadata=npy(np.array(Canary(), object)), rewards=b"")
    ),
    "a pickle": lambda p: p.write_bytes(pickle.dumps(Canary())),
    "a pickle as an array": lambda p: archive_of(p, members(rewards=pickle.dumps(Canary()))),
    "an object by its header": lambda p: archive_of(
        p, members(rewards=header("(15,)", "'|O'", pickle.dumps(Canary())))
    ),
    "code as a header": lambda p: archive_of(
        p, members(rewards=header("__import__('os').mkdir('canary')"))
    ),
    "a deep header": lambda p: archive_of(p, members(rewards=header("(" * 3000 + ")" * 3000))),
    "a negative shape": lambda p: archive_of(p, members(rewards=header("(-5,)"))),
    "a shape of text": lambda p: archive_of(p, members(rewards=header("('a',)"))),
    "a million million rows": lambda p: archive_of(p, members(rewards=header("(10**12,)"))),
    "a million million rows in digits": lambda p: archive_of(
        p, members(rewards=header("(1000000000000,)"))
    ),
    "a shape beyond 64 bits": lambda p: archive_of(p, members(rewards=header(f"({10**30},)"))),
    "a file of no bytes": lambda p: p.write_bytes(b""),
    "a text": lambda p: p.write_bytes(b"hello"),
    "a single array": lambda p: p.write_bytes(npy(np.zeros(3))),
    "no arrays": lambda p: archive_of(p, {}),
    "paths as names": lambda p: archive_of(
        p, {f"../../{name}": x for name, x in members().items()}
    ),
    "escapes as names": lambda p: archive_of(
        p, {f"\x1b[2J{name}": x for name, x in members().items()}
    ),
    "a Git LFS pointer": lambda p: p.write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:4\nsize 3\n"
    ),
    "a git-annex pointer": lambda p: p.write_text("/annex/objects/SHA256E-s3--4d7a.npz\n"),
    "a web page": lambda p: p.write_text("<!DOCTYPE html><html><body>404</body></html>"),
    "text as rewards": lambda p: npz(p, WHOLE | {"rewards": np.array(["1"] * 15)}),
    "times as rewards": lambda p: npz(p, WHOLE | {"rewards": np.zeros(15, "M8[s]")}),
    "records as rewards": lambda p: npz(p, WHOLE | {"rewards": np.zeros(15, [("a", "f4")])}),
    "complex rewards": lambda p: npz(p, WHOLE | {"rewards": np.zeros(15, np.complex64)}),
    "a scalar": lambda p: npz(p, WHOLE | {"rewards": np.float32(1)}),
    "no rows": lambda p: npz(p, {name: value[:0] for name, value in WHOLE.items()}),
    "other lengths": lambda p: npz(p, WHOLE | {"terminals": np.zeros(3, bool)}),
    "marks of two axes": lambda p: npz(p, WHOLE | {"terminals": np.zeros((15, 2), bool)}),
    "marks of 7": lambda p: npz(p, WHOLE | {"terminals": np.full(15, 7)}),
    "marks of -1": lambda p: npz(p, WHOLE | {"timeouts": np.full(15, -1)}),
    "actions beyond int32": lambda p: npz(p, WHOLE | {"actions": np.full(15, 2**40)}),
    "lengths below 0": lambda p: npz(
        p, without(WHOLE, *MARKS) | {"episode_lengths": np.array([-1, 16])}
    ),
    "lengths of text": lambda p: npz(
        p, without(WHOLE, *MARKS) | {"episode_lengths": np.array(["a"])}
    ),
    "starts of one row more": lambda p: npz(
        p, without(WHOLE, *MARKS) | {"episode_starts": np.zeros(16)}
    ),
    "deep metadata": lambda p: npz(p, WHOLE | {"metadata": np.array(deep(100_000))}),
    "long metadata": lambda p: npz(p, WHOLE | {"metadata": np.array(" " * (1 << 24) + "{}")}),
    "no environment": lambda p: npz(p, described(env={"a": 1})),
    "one reference": lambda p: npz(p, described(reference=[1])),
    "equal references": lambda p: npz(p, described(reference=[1, 1])),
    "references of text": lambda p: npz(p, described(reference="ab")),
    "corruptions of text": lambda p: npz(p, described(corruptions=["x"])),
    "a corruption": lambda p: npz(p, described(corruptions="x")),
    "bounds of text": lambda p: npz(p, described(action_bounds="ab")),
    "bounds of three": lambda p: npz(p, described(action_bounds=[[-1] * 3, [1] * 3])),
    "huge bounds": lambda p: npz(p, described(action_bounds=[-(10**400), 10**400])),
    "ragged bounds": lambda p: npz(p, described(action_bounds=[[[1], [1, 2]], 3])),
    "a limit below 0": lambda p: npz(p, described(max_episode_steps=-1)),
    "a limit of text": lambda p: npz(p, described(max_episode_steps="many")),
    "too few actions": lambda p: npz(p, described(num_actions=1) | {"actions": np.arange(15)}),
    "complete as text": lambda p: npz(p, described(complete="no")),
    "bounds as texts": lambda p: npz(p, described(action_bounds=["-1", "1"])),
    "a recorded limit of text": lambda p: npz(p, described(recorded_max_episode_steps="many")),
    "metadata cut in the middle": lambda p: npz(
        p, WHOLE | {"metadata": np.array('{"format": "rljax dataset 1", ')}
    ),
    "metadata with a key twice": lambda p: npz(
        p,
        WHOLE
        | {"metadata": np.array('{"format": "rljax dataset 1", "env": "A-v0", "env": "B-v0"}')},
    ),
    "an array twice": lambda p: twice(p),
    "wider successors": lambda p: npz(p, WHOLE | {"next_observations": np.zeros((15, 4))}),
    "both ends as text": lambda p: npz(p, described(both_ends="many")),
    "a later format": lambda p: npz(p, described(format="rljax dataset 2\x1b[2J")),
    "imitation: indices that fall": lambda p: npz(p, imitation() | {"indices": np.array([9, 5])}),
    "imitation: indices below 0": lambda p: npz(p, imitation() | {"indices": np.array([-1, 5])}),
    "imitation: too many indices": lambda p: npz(p, imitation() | {"indices": np.arange(1, 9)}),
    "imitation: too few observations": lambda p: npz(p, imitation() | {"obs": np.zeros((15, 3))}),
    "imitation: marks of 3": lambda p: npz(p, imitation() | {"terminal": np.array([3, 0, 0])}),
    "imitation: indices of text": lambda p: npz(p, imitation() | {"indices": np.array(["a", "b"])}),
    "side file that is a list": lambda p: beside(p, "[]"),
    "side file that is deep": lambda p: beside(p, deep(100_000)),
    "side file with a length of text": lambda p: beside(p, '{"bytes": "many"}'),
    "side file of an unknown recording": lambda p: beside(p, '{"recorded": {"id": "../evil"}}'),
    "side file of a recording in a list": lambda p: beside(
        p, '{"recorded": ["cube-single-play-v0"]}'
    ),
    "side file of a recording of other data": lambda p: beside(
        p, '{"recorded": {"id": "cube-single-play-singletask-v0"}}'
    ),
}


def imitation() -> dict[str, Any]:
    """Three trajectories of 5, 4 and 6 steps in the layout of the imitation library,
    with objects as infos.
    """
    generator = np.random.default_rng(0)
    return {
        "obs": generator.normal(size=(18, 3)).astype(np.float32),
        "acts": generator.uniform(-1, 1, (15, 2)),
        "rews": np.arange(15.0),
        "infos": np.array([Canary()] * 15),
        "terminal": np.array([True, False, True]),
        "indices": np.array([5, 9]),
    }


def twice(path: Path) -> None:
    npz(path, WHOLE)
    with zipfile.ZipFile(path) as archive:
        content = archive.read("rewards.npy")
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("rewards.npy", content)


def beside(path: Path, text: str) -> None:
    npz(path, WHOLE)
    path.with_name(path.name + ".json").write_text(text)


@pytest.mark.parametrize("kind", ARCHIVES)
def test_a_hostile_archive_has_one_error(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.npz"
    ARCHIVES[kind](path)
    message = read(path)
    assert message
    assert all(c.isprintable() for c in message)
    assert not Path("canary").exists()


def with_links(path: Path, change: Callable[[h5py.File], Any]) -> None:
    """A file without rewards, which `change` adds in its own way.

    Beside it lies a file with all arrays.
    """
    hdf5(path.with_name("secret.h5"), WHOLE)
    (path.with_name("secret.raw")).write_bytes(WHOLE["rewards"].tobytes())
    with h5py.File(path, "w") as file:
        for name, value in without(WHOLE, "rewards").items():
            file[name] = value
        change(file)


def external(file: h5py.File) -> None:
    file["rewards"] = h5py.ExternalLink("secret.h5", "/rewards")


def through_a_group(file: h5py.File) -> None:
    file["group"] = h5py.ExternalLink("secret.h5", "/")
    file["rewards"] = h5py.SoftLink("/group/rewards")


def in_a_cycle(file: h5py.File) -> None:
    file["rewards"], file["again"] = h5py.SoftLink("/again"), h5py.SoftLink("/rewards")


def stored_outside(file: h5py.File) -> None:
    file.create_dataset("rewards", (15,), "f4", external=[("secret.raw", 0, 60)])


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((15,), "f4")
    layout[:] = h5py.VirtualSource("secret.h5", "rewards", (15,))
    file.create_virtual_dataset("rewards", layout)


def by_plugin(file: h5py.File) -> None:
    """The filter's name is changed in the bytes: h5py writes with those that it has."""
    file.create_dataset("rewards", data=WHOLE["rewards"], chunks=(15,), compression="lzf")


def claimed(*shape: int, **options: Any) -> Callable[[h5py.File], Any]:
    return lambda file: file.create_dataset("rewards", shape, "f4", **options)


def grouped(file: h5py.File) -> None:
    file["rewards/inside"] = WHOLE["rewards"]


def linked_metadata(file: h5py.File) -> None:
    file["rewards"] = WHOLE["rewards"]
    file["metadata"] = h5py.ExternalLink("secret.h5", "/observations")


LINKS: dict[str, tuple[Callable[[h5py.File], Any], str]] = {
    "external link": (external, "'rewards' is a link to another file"),
    "soft link through an external one": (through_a_group, "'group' is a link to another file"),
    "links in a cycle": (in_a_cycle, "is a chain of links"),
    "external storage": (stored_outside, "'rewards' is stored in other files"),
    "virtual dataset": (virtual, "'rewards' is a virtual dataset"),
    "external metadata": (linked_metadata, "'metadata' is a link to another file"),
    "a million million rows": (
        claimed(10**12),
        "'rewards' is 4,000.0 GB by the file's own account",
    ),
    "compressed rows": (
        claimed(10**12, chunks=(1 << 20,), compression="gzip"),
        "'rewards' is 4,000.0 GB",
    ),
    "a group": (grouped, "'rewards' is a group"),
    "text": (
        lambda file: file.create_dataset("rewards", data=["a"] * 15),
        "'rewards' is of type object",
    ),
    "references": (
        lambda file: file.create_dataset("rewards", (15,), h5py.ref_dtype),
        "'rewards' is of type object",
    ),
    "a null": (
        lambda file: file.create_dataset("rewards", data=h5py.Empty("f4")),
        "'rewards' has shape",
    ),
}


@pytest.mark.parametrize("kind", LINKS)
def test_a_hostile_hdf5_file_has_one_error(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    change, message = LINKS[kind]
    with_links(Path("a.hdf5"), change)
    assert message in read(Path("a.hdf5"))


def test_a_filter_that_is_a_plugin_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.hdf5"
    with_links(path, by_plugin)
    monkeypatch.setattr("rljax.datasets.formats.hdf5.FILTERS", {1, 2, 3})
    assert "'rewards' is compressed by filter 32000, which is a plugin" in read(path)


def test_links_within_a_file_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"

    def inside(file: h5py.File) -> None:
        file["group/rewards"] = WHOLE["rewards"]
        file["rewards"] = h5py.SoftLink("/group/rewards")

    with_links(path, inside)
    np.testing.assert_array_equal(datasets.load(str(path)).transitions.reward, WHOLE["rewards"])


def minari_folder(
    path: Path, change: Callable[[h5py.File], Any] = lambda file: None, **facts: Any
) -> Path:
    """A Minari data set of two episodes."""
    (path / "data").mkdir(parents=True)
    with h5py.File(path / "data" / "main_data.hdf5", "w") as file:
        for index in range(2):
            group = file.create_group(f"episode_{index}")
            group["observations"], group["actions"] = (
                np.zeros((4, 2), np.float32),
                np.zeros((3, 1), np.float32),
            )
            group["rewards"] = np.arange(3.0)
            group["terminations"], group["truncations"] = (
                np.zeros(3, bool),
                np.array([False, False, True]),
            )
        change(file)
    spaces = {
        "action_space": json.dumps({"type": "Box", "low": [-1.0], "high": [1.0], "shape": [1]})
    }
    (path / "data" / "metadata.json").write_text(json.dumps(spaces | facts))
    return path


def replaced(key: str, value: Any) -> Callable[[h5py.File], Any]:
    def change(file: h5py.File) -> None:
        del file[key]
        if value is not None:
            file[key] = value

    return change


def looped(file: h5py.File) -> None:
    del file["episode_0/observations"]
    file["episode_0/observations/again"] = h5py.SoftLink("/episode_0/observations")


MINARI: dict[str, dict[str, Any]] = {
    "marks of 7": {"change": replaced("episode_1/terminations", np.full(3, 7))},
    "no rewards in the second": {"change": replaced("episode_1/rewards", None)},
    "other widths in the second": {
        "change": replaced("episode_1/observations", np.zeros((4, 5), np.float32))
    },
    "an episode that is an array": {"change": replaced("episode_1", np.zeros(3))},
    "no episode": {"change": lambda file: [file.pop(key) for key in list(file)]},
    "an external link": {
        "change": replaced("episode_0/rewards", h5py.ExternalLink("secret.h5", "/a"))
    },
    "groups without an end": {"change": looped},
    "text as rewards": {"change": replaced("episode_0/rewards", ["a"] * 3)},
    "a scalar as rewards": {"change": replaced("episode_0/rewards", 3.0)},
    "an action space of a number": {"action_space": 3},
    "an action space of broken JSON": {"action_space": "{"},
    "a deep action space": {"action_space": deep(100_000)},
    "a Box without bounds": {"action_space": {"type": "Box"}},
    "an endless Box": {"action_space": {"type": "Box", "low": [-1e999], "high": [1e999]}},
    "a specification of a list": {"env_spec": [1]},
    "references of text": {"ref_min_score": "a", "ref_max_score": "b"},
    "equal references": {"ref_min_score": 1.0, "ref_max_score": 1.0},
    "a limit of text": {"env_spec": {"id": "Hopper-v5", "max_episode_steps": "many"}},
}


@pytest.mark.parametrize("kind", MINARI)
def test_a_hostile_minari_folder_has_one_error(kind: str, tmp_path: Path) -> None:
    assert read(minari_folder(tmp_path / "a", **MINARI[kind]))


def test_the_minari_folder_itself_is_read(tmp_path: Path) -> None:
    assert read(minari_folder(tmp_path / "a")) == ""


def damaged(content: bytes, seed: int) -> bytes:
    """Some bytes flipped, or the end cut off."""
    generator = np.random.default_rng(seed)
    if seed % 3 == 0:
        return content[: int(generator.integers(len(content)))]
    changed = bytearray(content)
    for place in generator.integers(len(content), size=1 + seed % 7):
        changed[place] ^= 1 << int(generator.integers(8))
    return bytes(changed)


@pytest.mark.parametrize("name", ["a.npz", "a.hdf5"])
def test_damage_anywhere_has_one_error_or_none(name: str, tmp_path: Path) -> None:
    whole = datasets.write(
        datasets.load(str(npz(tmp_path / "raw.npz", WHOLE))), tmp_path / name
    ).read_bytes()
    messages = []
    for seed in range(60):
        path = tmp_path / f"{seed}-{name}"
        path.write_bytes(damaged(whole, seed))
        messages.append(read(path))
    assert sum(map(bool, messages)) > 20


def test_damaged_metadata_have_one_error_or_none(tmp_path: Path) -> None:
    path = minari_folder(
        tmp_path / "a", env_spec=json.dumps({"id": "Hopper-v5", "max_episode_steps": 3})
    )
    note = path / "data" / "metadata.json"
    whole = note.read_bytes()
    for seed in range(40):
        note.write_bytes(damaged(whole, seed))
        read(path)


@pytest.mark.parametrize("name", ["a.npz", "a.hdf5"])
def test_an_array_larger_than_the_memory_is_not_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = WHOLE | {"observations": np.zeros((15, 300_000), np.float32)}
    path = (hdf5 if name.endswith("5") else npz)(tmp_path / name, values)
    monkeypatch.setattr(hardware, "available_memory", lambda: 30_000_000)
    assert "'observations' is 0.0 GB by the file's own account" in read(path)


def test_a_link_of_git_annex_to_nothing_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.symlink_to(".git/annex/objects/aa/bb/a.npz")
    with (
        pytest.raises(
            ValueError,
            match=r"there is no file .* It is a link of git-annex .*: git annex get a.npz",
        ),
        formats.opened(path),
    ):
        pass


def test_rollouts_of_the_imitation_library_are_read(tmp_path: Path) -> None:
    values = imitation()
    dataset = datasets.load(str(npz(tmp_path / "final.npz", values)))
    transitions: Any = dataset.transitions
    rows = [*range(5), *range(6, 10), *range(11, 17)]
    np.testing.assert_array_equal(transitions.observation, values["obs"][rows])
    np.testing.assert_array_equal(
        transitions.next_observation, values["obs"][[row + 1 for row in rows]]
    )
    np.testing.assert_array_equal(np.flatnonzero(transitions.terminated), [4, 14])
    np.testing.assert_array_equal(np.flatnonzero(transitions.truncated), [8])
    assert dataset.lengths().tolist() == [5, 4, 6]
    single = values | {
        "obs": values["obs"][:16],
        "terminal": np.array([True]),
        "indices": np.array([]),
    }
    assert datasets.load(str(npz(tmp_path / "single.npz", single))).lengths().tolist() == [15]
