"""Downloads from a local server: complete, resumed, cut, changed and refused."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax.datasets.publishers import download

CONTENT = np.random.default_rng(0).bytes(3_000_000)


class Server(http.server.ThreadingHTTPServer):
    """At most `cut` bytes per connection; records the requested ranges."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"/a.bin": CONTENT}
        self.cut: int | None = None
        self.ranges: list[str | None] = []
        self.with_ranges = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/a.bin"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Any

    def do_GET(self) -> None:
        content = self.server.files.get(self.path)
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        if content is None:
            self.send_error(404, "not here")
            return
        start = 0
        if wanted and self.server.with_ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(
            content[start : None if self.server.cut is None else start + self.server.cut]
        )
        self.close_connection = True

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(download.time, "sleep", lambda seconds: None)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def test_a_complete_file_has_a_side_file(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    path = download.fetch(
        server.url, tmp_path / "below" / "a.bin", progress=lambda *call: seen.append(call)
    )
    assert path.read_bytes() == CONTENT
    assert seen[-1] == ("a.bin", len(CONTENT), len(CONTENT))
    assert [call[1] for call in seen] == sorted(call[1] for call in seen)
    side = json.loads((tmp_path / "below" / "a.bin.json").read_text())
    assert side == {
        "url": server.url,
        "file": "a.bin",
        "bytes": len(CONTENT),
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
    }
    assert download.source(path) == server.url
    assert sorted(child.name for child in path.parent.iterdir()) == ["a.bin", "a.bin.json"]


def test_a_broken_connection_is_resumed(server: Server, tmp_path: Path) -> None:
    server.cut = 1_250_000
    assert download.fetch(server.url, tmp_path / "a.bin").read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1250000-", "bytes=2500000-"]


def test_a_part_of_an_earlier_attempt_is_continued(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(CONTENT[:1_000_000])
    assert download.fetch(server.url, tmp_path / "a.bin").read_bytes() == CONTENT
    assert server.ranges == ["bytes=1000000-"]


@pytest.mark.parametrize("part", [CONTENT, CONTENT + b"more"])
def test_a_part_that_is_whole_or_too_long(server: Server, tmp_path: Path, part: bytes) -> None:
    (tmp_path / "a.bin.part").write_bytes(part)
    assert download.fetch(server.url, tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_server_without_ranges_sends_all_again(server: Server, tmp_path: Path) -> None:
    server.with_ranges = False
    (tmp_path / "a.bin.part").write_bytes(b"x" * 1_000_000)
    assert download.fetch(server.url, tmp_path / "a.bin").read_bytes() == CONTENT


def test_connections_without_data_are_given_up_and_earlier_data_are_kept(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "a.bin.part").write_bytes(CONTENT[:500])
    server.cut = 0
    with pytest.raises(
        OSError, match=r"the connection ended after 500 of 3,000,000 bytes; 500 bytes are kept"
    ):
        download.fetch(server.url, tmp_path / "a.bin")
    assert len(server.ranges) == download.ATTEMPTS
    assert (tmp_path / "a.bin.part").read_bytes() == CONTENT[:500]
    assert not (tmp_path / "a.bin").exists()


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_checksums(server: Server, tmp_path: Path, kind: str) -> None:
    right = f"{kind}:{hashlib.new(kind, CONTENT).hexdigest()}"
    assert download.fetch(server.url, tmp_path / "a.bin", checksum=right).exists()
    with pytest.raises(
        ValueError, match=rf"has the {kind} checksum \w+, it should be 0000; it was removed"
    ):
        download.fetch(server.url, tmp_path / "b.bin", checksum=f"{kind}:0000")
    assert sorted(child.name for child in tmp_path.iterdir()) == ["a.bin", "a.bin.json"]


def test_find_downloads_once(server: Server, tmp_path: Path) -> None:
    path = download.find("d4rl", "a.bin", tmp_path, url=server.url)
    assert path == tmp_path / "d4rl" / "a.bin"
    server.files.clear()
    assert download.find("d4rl", "a.bin", tmp_path, url=server.url) == path


def test_a_missing_file_says_what_to_do(server: Server, tmp_path: Path) -> None:
    server.files.clear()
    with pytest.raises(
        ValueError,
        match=r"'a.bin' could not be downloaded from http://.*: the server answers 404 \(not "
        r"here\). Put it there by hand: http://.*/a.bin as .*d4rl/a.bin",
    ):
        download.find("d4rl", "a.bin", tmp_path, url=server.url)


def test_no_network_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download.time, "sleep", lambda seconds: None)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(
        ValueError, match=r"could not be downloaded from http://127.0.0.1:1/a.bin: no connection"
    ):
        download.find("d4rl", "a.bin", tmp_path, url="http://127.0.0.1:1/a.bin")
    with pytest.raises(ValueError, match=r"'a.bin' is not in .*, and no address of it is known"):
        download.find("d4rl", "a.bin", tmp_path)


def test_a_file_that_was_cut_since_is_noticed(server: Server, tmp_path: Path) -> None:
    path = download.find("d4rl", "a.bin", tmp_path, url=server.url)
    path.write_bytes(CONTENT[:1000])
    with pytest.raises(
        ValueError, match=r"'a.bin' has 1,000 bytes, it had 3,000,000 when it was downloaded"
    ):
        download.find("d4rl", "a.bin", tmp_path, url=server.url)


def test_paths_in_messages_are_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert download._short(tmp_path / "data" / "a") == "~/data/a"
    assert download.root() == tmp_path / ".rljax" / "data"
