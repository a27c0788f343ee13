"""Files of datasets, and their download.

A `.part` file continues an interrupted download (HTTP Range), and gets its name when complete.
`NAME.json` stores its length and SHA-256.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from rljax.datasets.formats import text
from rljax.datasets.formats.fingerprints import digest, fingerprint

Progress = Callable[[str, int, int | None], None]  # file name, bytes so far, bytes in all or None
BLOCK = 1 << 20  # bytes
ATTEMPTS = 3  # broken connections without data in a row


def root(folder: Path | None = None) -> Path:
    """The folder of datasets: `folder`, or else $RLJAX_DATA, or else ~/.rljax/data."""
    return Path(folder or os.environ.get("RLJAX_DATA") or Path.home() / ".rljax" / "data")


def find(
    family: str,
    file: str,
    folder: Path | None = None,
    others: Sequence[Path] = (),
    *,
    url: str | None = None,
    checksum: str | None = None,
    download: bool = True,
    progress: Progress | None = None,
) -> Path:
    """The path of `file`, a name or a path below the folder of its `family` ("d4rl", ...).

    `others` are folders of the family's own library.

    Raises `ValueError` for a missing file, or a changed length.
    """
    home = root(folder) / family
    for candidate in (home / file, root(folder) / file, *(Path(other) / file for other in others)):
        if candidate.is_file():
            _check_length(candidate)
            return candidate
    instruction = f"Put it there by hand: {url or file} as {_short(home / file)}"
    if url is None or not download:
        why = "no address of it is known" if url is None else "is not to be downloaded"
        raise ValueError(f"'{file}' is not in {_short(home)}, and {why}. {instruction}")
    try:
        return fetch(url, home / file, checksum=checksum, progress=progress)
    except OSError as error:
        raise ValueError(
            f"'{file}' could not be downloaded from {url}: {_reason(error)}. {instruction}"
        ) from error


def fetch(
    url: str, path: Path, *, checksum: str | None = None, progress: Progress | None = None
) -> Path:
    """Download `url` to `path`, continuing a `path.part` of an earlier attempt.

    Raises `OSError` for errors of the network or the server, and repeatedly broken connections; the
    data so far are kept. Raises `ValueError` and removes the file if its checksum is not `checksum`
    ("md5:..." or "sha256:...").
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    failures = 0
    with contextlib.ExitStack() as stack:
        progress = progress or stack.enter_context(_bar())
        while True:
            before = _length(part)
            try:
                _receive(url, part, path.name, progress)
                break
            except urllib.error.HTTPError:
                raise
            except (OSError, HTTPException) as error:
                received = _length(part)
                failures = failures + 1 if received <= before else 0
                if failures >= ATTEMPTS:
                    hint = f"; {received:,} bytes are kept, and the next attempt continues there"
                    raise OSError(f"{_reason(error)}{hint if received else ''}") from error
                time.sleep(min(0.2 * 2**failures, 5))
    entry = fingerprint(part)
    if checksum is not None:
        kind, _, expected = checksum.partition(":")
        actual = digest(part, kind)
        if actual != expected:
            part.unlink()
            raise ValueError(
                f"'{path.name}' from {url} has the {kind} checksum {actual}, it should be "
                f"{expected}; it was removed. Load it again; if that does not help, the server "
                "holds another file."
            )
    return place(part, path, {"url": url} | entry)


def place(whole: Path, path: Path, facts: dict[str, Any]) -> Path:
    """Rename the file `whole` to `path`, and write `facts` beside it, with its `fingerprint`."""
    _side(path).write_text(json.dumps(facts | {"file": path.name}, indent=1), encoding="utf-8")
    os.replace(whole, path)
    return path


def source(path: Path) -> str | None:
    """The address from which `path` was downloaded, if it is known."""
    return known(path).get("url")


def known(path: Path) -> dict[str, Any]:
    """The facts that `place` wrote beside `path`, or {}.

    Raises `ValueError` for another side file.
    """
    side = _side(path)
    if not side.is_file():
        return {}
    facts = text.read_json(side)
    recorded = facts.get("recorded") if isinstance(facts, dict) else None
    recorded = {"id": ""} if recorded is None else recorded
    if not (
        isinstance(facts, dict)
        and isinstance(facts.get("bytes", 0), int)
        and isinstance(facts.get("url", ""), str)
        and isinstance(recorded, dict)
        and isinstance(recorded.get("id"), str)
    ):
        raise ValueError(
            f"'{side.name}' does not describe the file beside it, as rljax writes it. Delete it."
        )
    return facts


def _receive(url: str, part: Path, name: str, progress: Progress) -> None:
    """Append the rest of `url` to `part`."""

    def requested(**headers: str) -> Any:
        request = urllib.request.Request(url, headers={"User-Agent": "rljax", **headers})
        return urllib.request.urlopen(request, timeout=60)

    have = _length(part)
    try:
        response = requested(Range=f"bytes={have}-") if have else requested()
    except urllib.error.HTTPError as error:
        if error.code == 416 and _total(error.headers.get("Content-Range")) == have:
            return
        if error.code != 416:
            raise
        part.unlink()  # of another file, or too long
        response = requested()
    with response:
        resumed = response.status == 206
        have = have if resumed and part.exists() else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if resumed else "wb") as file:
            while block := response.read(BLOCK):
                file.write(block)
                have += len(block)
                progress(name, have, total)
    if total is not None and have != total:
        raise OSError(f"the connection ended after {have:,} of {total:,} bytes")


def _total(content_range: str | None) -> int | None:
    total = (content_range or "").rpartition("/")[2]
    return int(total) if total.isdigit() else None


def _check_length(path: Path) -> None:
    expected, length = known(path).get("bytes"), _length(path)
    if expected is not None and expected != length:
        raise ValueError(
            f"'{path.name}' has {length:,} bytes, it had {expected:,} when it was downloaded. "
            "Delete it and load it again. If you replaced it on purpose, delete "
            f"'{_side(path).name}' beside it."
        )


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _side(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _reason(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} ({error.reason})"
    if isinstance(error, urllib.error.URLError):
        return f"no connection ({error.reason})"
    return str(error) or type(error).__name__


def _short(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home).as_posix()}" if path.is_relative_to(home) else str(path)


@contextlib.contextmanager
def _bar() -> Iterator[Progress]:
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal or shutil.get_terminal_size().columns < 40:
        yield lambda name, have, total: None
        return
    columns = (
        "{task.description}",
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    tasks: dict[str, Any] = {}
    with progress.Progress(*columns, console=console, transient=True) as bars:

        def show(name: str, have: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=have, total=total)

        yield show
