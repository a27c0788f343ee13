"""Hostile files have one error; none runs code, opens another file or fills the memory."""

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
from tests.datasets.files import arrays, hdf5, load, npz, without

WHOLE = arrays([5, 4, 6], "tot")
SEEN: list[str] = []  # what no reader may do, while `watched`
WATCHING = [False]
FORBIDDEN = ("pickle.find_class", "os.system", "subprocess.Popen", "socket.connect")


def hook(event: str, arguments: Any) -> None:
    if WATCHING[0] and (event in FORBIDDEN or (event == "open" and "secret" in str(arguments[0]))):
        SEEN.append(f"{event} {arguments[0]!r:.80}")


sys.addaudithook(hook)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Nothing that is forbidden may happen; modules are imported before."""
    SEEN.clear()
    WATCHING[0] = True
    try:
        yield
    finally:
        WATCHING[0] = False
    assert not SEEN


def read(path: Path) -> str:
    """The error of all readers that accept the file; "" if they read it."""
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
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + rest


def members(**changed: bytes) -> dict[str, bytes]:
    return {name: npy(value) for name, value in WHOLE.items()} | changed


def described(**facts: Any) -> dict[str, Any]:
    ours = {"format": "rljax dataset 1", "name": "a", "env": None, "reference": None}
    return metadata(json.dumps(ours | facts))


def metadata(text: str) -> dict[str, Any]:
    return {"metadata": np.array(text)}


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


CONTENTS = {
    "a pickle": pickle.dumps(Canary()),
    "a Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:4\nsize 3\n",
    "a git-annex pointer": b"/annex/objects/SHA256E-s3--4d7a.npz\n",
    "a web page": b"<!DOCTYPE html><html><body>404</body></html>",
}
REWARDS = {  # bytes in the place of their array
    "a pickle as an array": pickle.dumps(Canary()),
    "an object by its header": header("(15,)", "'|O'", pickle.dumps(Canary())),
    "code as a header": header("__import__('os').mkdir('canary')"),
    "a deep header": header("(" * 3000 + ")" * 3000),
    "a negative shape": header("(-5,)"),
    "a shape of text": header("('a',)"),
    "a million million rows": header("(1000000000000,)"),
    "a shape beyond 64 bits": header(f"({10**30},)"),
}
CHANGES: dict[str, dict[str, Any]] = {
    "an object": {"rewards": np.array([Canary()] * 15)},
    "times as rewards": {"rewards": np.zeros(15, "M8[s]")},
    "records as rewards": {"rewards": np.zeros(15, [("a", "f4")])},
    "no rows": {name: value[:0] for name, value in WHOLE.items()},
    "marks of two axes": {"terminals": np.zeros((15, 2), bool)},
    "wider successors": {"next_observations": np.zeros((15, 4))},
    "no environment": described(env={"a": 1}),
    "bounds of text": described(action_bounds="ab"),
    "bounds of three": described(action_bounds=[[-1] * 3, [1] * 3]),
    "huge bounds": described(action_bounds=[-(10**400), 10**400]),
    "ragged bounds": described(action_bounds=[[[1], [1, 2]], 3]),
    "bounds as texts": described(action_bounds=["-1", "1"]),
    "complete as text": described(complete="no"),
    "a later format": described(format="rljax dataset 2\x1b[2J"),
    "deep metadata": metadata(deep(100_000)),
    "metadata cut in the middle": metadata('{"format": "rljax dataset 1", '),
    "metadata with a key twice": metadata(
        '{"format": "rljax dataset 1", "env": "A-v0", "env": "B-v0"}'
    ),
}
IMITATION: dict[str, dict[str, Any]] = {
    "indices that fall": {"indices": np.array([9, 5])},
    "indices below 0": {"indices": np.array([-1, 5])},
    "too many indices": {"indices": np.arange(1, 9)},
    "too few observations": {"obs": np.zeros((15, 3))},
    "marks of 3": {"terminal": np.array([3, 0, 0])},
    "indices of text": {"indices": np.array(["a", "b"])},
}
SIDE_FILES = {
    "a list": "[]",
    "deep": deep(100_000),
    "a length of text": '{"bytes": "many"}',
    "an unknown recording": '{"recorded": {"id": "../evil"}}',
    "a recording in a list": '{"recorded": ["cube-single-play-v0"]}',
    "a recording of other data": '{"recorded": {"id": "cube-single-play-singletask-v0"}}',
}


def imitation() -> dict[str, Any]:
    """Trajectories of 5, 4 and 6 steps, with objects as infos."""
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


def entries(content: bytes) -> tuple[int, int, int]:
    """Where the last two entries of an archive's list begin, and where the list ends."""
    last = content.rindex(b"PK\x01\x02")
    return content.rindex(b"PK\x01\x02", 0, last), last, content.rindex(b"PK\x05\x06")


def swallowed(path: Path) -> None:
    """The last array is the comment of the one before it."""
    npz(path, WHOLE)
    content = bytearray(path.read_bytes())
    first, last, end = entries(content)
    content[first + 32 : first + 34] = (end - last).to_bytes(2, "little")
    path.write_bytes(content)


def renamed(path: Path) -> None:
    """The list has another name for an array than the array itself."""
    npz(path, WHOLE)
    content = bytearray(path.read_bytes())
    _, last, _ = entries(content)
    content[last + 46] ^= 1
    path.write_bytes(content)


def beside(path: Path, text: str) -> None:
    npz(path, WHOLE)
    path.with_name(path.name + ".json").write_text(text)


ARCHIVES: dict[str, Callable[[Path], Any]] = {
    "an object as metadata": lambda p: archive_of(
        p, members(metadata=npy(np.array(Canary(), object)), rewards=b"")
    ),
    "no arrays": lambda p: archive_of(p, {}),
    "paths as names": lambda p: archive_of(p, {f"../../{k}": x for k, x in members().items()}),
    "escapes as names": lambda p: archive_of(p, {f"\x1b[2J{k}": x for k, x in members().items()}),
    "starts of one row more": lambda p: npz(
        p, without(WHOLE, "terminals", "timeouts") | {"episode_starts": np.zeros(16)}
    ),
    "long metadata": lambda p: npz(p, WHOLE | metadata(" " * (1 << 24) + "{}")),
    "an array twice": twice,
    "an array as a comment": swallowed,
    "an array with two names": renamed,
    **{kind: lambda p, x=x: p.write_bytes(x) for kind, x in CONTENTS.items()},
    **{kind: lambda p, x=x: archive_of(p, members(rewards=x)) for kind, x in REWARDS.items()},
    **{kind: lambda p, x=x: npz(p, WHOLE | x) for kind, x in CHANGES.items()},
    **{
        f"imitation: {kind}": lambda p, x=x: npz(p, imitation() | x)
        for kind, x in IMITATION.items()
    },
    **{f"side file: {kind}": lambda p, x=x: beside(p, x) for kind, x in SIDE_FILES.items()},
}


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
    """Beside a file with all arrays."""
    hdf5(path.with_name("secret.h5"), WHOLE)
    path.with_name("secret.raw").write_bytes(WHOLE["rewards"].tobytes())
    hdf5(path, without(WHOLE, "rewards"))
    with h5py.File(path, "a") as file:
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
    """Under another name: h5py writes with the filters that it has."""
    file.create_dataset("rewards", data=WHOLE["rewards"], chunks=(15,), compression="lzf")


def as_rewards(**options: Any) -> Callable[[h5py.File], Any]:
    return lambda file: file.create_dataset("rewards", **options)


def claimed(rows: int, **options: Any) -> Callable[[h5py.File], Any]:
    return as_rewards(**{"shape": (rows,), "dtype": "f4"} | options)


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
    "text": (as_rewards(data=["a"] * 15), "'rewards' is of type object"),
    "references": (claimed(15, dtype=h5py.ref_dtype), "'rewards' is of type object"),
    "a null": (as_rewards(data=h5py.Empty("f4")), "'rewards' has shape"),
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
    """Two episodes."""
    (path / "data").mkdir(parents=True)
    episode = {
        "observations": np.zeros((4, 2), np.float32),
        "actions": np.zeros((3, 1), np.float32),
        "rewards": np.arange(3.0),
        "terminations": np.zeros(3, bool),
        "truncations": np.array([False, False, True]),
    }
    main = path / "data" / "main_data.hdf5"
    hdf5(main, {f"episode_{i}/{key}": x for i in range(2) for key, x in episode.items()})
    with h5py.File(main, "a") as file:
        change(file)
    space = json.dumps({"type": "Box", "low": [-1.0], "high": [1.0], "shape": [1]})
    facts = {"action_space": space} | facts
    (path / "data" / "metadata.json").write_text(json.dumps(facts))
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
    "an action space of a number": {"action_space": 3},
    "an action space of broken JSON": {"action_space": "{"},
    "a deep action space": {"action_space": deep(100_000)},
    "an endless Box": {"action_space": {"type": "Box", "low": [-1e999], "high": [1e999]}},
    "a specification of a list": {"env_spec": [1]},
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
    data = datasets.load(str(npz(tmp_path / "raw.npz", WHOLE)))
    whole = datasets.write(data, tmp_path / name).read_bytes()
    messages = []
    for seed in range(60):
        path = tmp_path / f"{seed}-{name}"
        path.write_bytes(damaged(whole, seed))
        messages.append(read(path))
    assert sum(map(bool, messages)) > 20


def test_damaged_metadata_have_one_error_or_none(tmp_path: Path) -> None:
    spec = json.dumps({"id": "Hopper-v5", "max_episode_steps": 3})
    path = minari_folder(tmp_path / "a", env_spec=spec)
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
    message = r"there is no file .* It is a link of git-annex .*: git annex get a.npz"
    with pytest.raises(ValueError, match=message), formats.opened(path):
        pass


def test_rollouts_of_the_imitation_library_are_read(tmp_path: Path) -> None:
    values = imitation()
    dataset = load(tmp_path, values)
    transitions = dataset.transitions
    rows = np.array([*range(5), *range(6, 10), *range(11, 17)])
    np.testing.assert_array_equal(transitions.observation, values["obs"][rows])
    np.testing.assert_array_equal(transitions.next_observation, values["obs"][rows + 1])
    np.testing.assert_array_equal(np.flatnonzero(transitions.terminated), [4, 14])
    np.testing.assert_array_equal(np.flatnonzero(transitions.truncated), [8])
    assert dataset.lengths().tolist() == [5, 4, 6]
    single = {"obs": values["obs"][:16], "terminal": np.array([True]), "indices": np.array([])}
    assert load(tmp_path, values | single).lengths().tolist() == [15]
