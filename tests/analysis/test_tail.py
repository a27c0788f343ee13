import pytest

from rljax.analysis.tail import Tail


def test_a_tail_is_read_once_and_in_whole_lines(tmp_path):
    path = tmp_path / "lines"
    tail = Tail(path)
    assert tail.look() == []
    path.write_bytes(b"one\ntwo\nthr")
    assert tail.look() == [b"one", b"two"]
    assert tail.look() == []
    with path.open("ab") as file:
        file.write(b"ee\nfour\n")
    assert tail.look() == [b"three", b"four"]
    path.write_bytes(b"one\nnew\n")  # cut by a resumed run, and written on
    assert tail.look() == [b"one", b"new"]


@pytest.mark.parametrize(
    ("backlog", "expected"), [(100, [b"first", b"second", b"third"]), (9, [b"third"]), (3, [])]
)
def test_a_tail_begins_near_the_end(tmp_path, backlog, expected):
    path = tmp_path / "lines"
    path.write_bytes(b"first\nsecond\nthird\n")
    tail = Tail(path, backlog)
    assert tail.look() == expected
    with path.open("ab") as file:
        file.write(b"fourth\n")
    assert tail.look() == [b"fourth"]
