"""A file of the operator's that is read again when it changes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from handlers import files
from handlers.files import Unreadable, Watched
from tests.logged import logged


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def number(raw: bytes) -> int:
    try:
        return int(raw)
    except ValueError:
        raise Unreadable("not a number") from None


def at_once(work: Callable[[], None]) -> None:
    work()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "number"
    path.write_text("1")
    return path


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watched(path: Path, clock: Clock) -> Watched[int]:
    return Watched(path, number, clock=clock, start=at_once)


def later(watched: Watched[int], clock: Clock) -> int:
    """What the file says a second on: the call that looks at it reads it, with `at_once`."""
    clock.now += 1
    return watched.current()


def test_a_changed_file_is_read_again(path: Path, watched: Watched[int], clock: Clock) -> None:
    assert watched.current() == 1

    path.write_text("23")

    assert later(watched, clock) == 23


def test_a_file_is_looked_at_once_a_second_at_most(
    path: Path, watched: Watched[int], clock: Clock
) -> None:
    path.write_text("23")
    clock.now += 0.9

    assert watched.current() == 1

    clock.now += 0.1

    assert watched.current() == 23


def test_an_unchanged_file_is_not_read_again(path: Path, clock: Clock) -> None:
    read: list[bytes] = []
    watched = Watched(path, read.append, clock=clock, start=at_once)

    for _ in range(3):
        clock.now += 1
        watched.current()

    assert read == [b"1"]


def test_a_file_put_in_its_place_is_read_though_time_and_size_are_the_same(
    path: Path, watched: Watched[int], clock: Clock
) -> None:
    stat = path.stat()
    other = path.with_name("other")
    other.write_text("2")
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    other.replace(path)

    assert later(watched, clock) == 2


def test_a_bad_file_leaves_the_last_good_value_and_is_told_once(
    path: Path, watched: Watched[int], clock: Clock
) -> None:
    path.write_text("two")

    with logged(files.logger) as lines:
        values = [later(watched, clock) for _ in range(3)]

    assert values == [1, 1, 1]
    (line,) = lines
    assert (line["event"], line["reason"]) == ("file_not_taken", f"{path}: not a number")

    path.write_text("3")

    assert later(watched, clock) == 3


@pytest.mark.parametrize(
    ("put", "reason"),
    [
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
        (Path.mkdir, "Is a directory"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (lambda path: path.write_bytes(b"1" * (files.MOST_BYTES + 1)), "is larger than"),
        (lambda path: path.write_bytes(b"[" * 100_000), "nests too deep"),
    ],
    ids=["fifo", "endless", "directory", "loop", "large", "deep"],
)
def test_what_is_no_file_of_ours_is_not_taken_and_the_next_one_is(
    path: Path, clock: Clock, put: Callable[[Path], object], reason: str
) -> None:
    watched = Watched(path, msgspec.json.decode, clock=clock, start=at_once)
    path.rename(path.with_name("good"))
    put(path)

    with logged(files.logger) as lines:
        assert later(watched, clock) == 1
    path.with_name("better").write_text("5")
    if path.is_dir():
        path.rmdir()
    path.with_name("better").replace(path)

    (line,) = lines
    assert line["event"] == "file_not_taken"
    assert str(line["reason"]).startswith(f"{path}: {reason}")
    assert later(watched, clock) == 5


def test_a_file_that_goes_away_leaves_its_value_until_it_is_back(
    path: Path, watched: Watched[int], clock: Clock
) -> None:
    path.unlink()

    with logged(files.logger) as lines:
        values = [later(watched, clock) for _ in range(2)]

    assert values == [1, 1]
    assert [line["event"] for line in lines] == ["file_not_taken"]

    path.write_text("4")

    assert later(watched, clock) == 4


def test_a_file_that_cannot_be_read_at_first_is_named(path: Path, clock: Clock) -> None:
    missing = path.with_name("missing")
    with pytest.raises(Unreadable, match=f"^{missing}: No such file or directory$"):
        Watched(missing, number)

    path.write_text("one")
    with pytest.raises(Unreadable, match=f"^{path}: not a number$"):
        Watched(path, number)


def test_nobody_waits_for_a_slow_read(path: Path, clock: Clock) -> None:
    """By default it is read in a thread of its own, one at a time."""
    may_go_on, read = threading.Event(), []

    def slow(raw: bytes) -> int:
        if read:
            may_go_on.wait(10)
        read.append(threading.current_thread())
        return int(raw)

    watched = Watched(path, slow, clock=clock)
    path.write_text("23")

    values = [later(watched, clock) for _ in range(3)]

    assert values == [1, 1, 1]
    (reader,) = [each for each in threading.enumerate() if each.name == "watched-file"]
    may_go_on.set()
    reader.join()
    assert (watched.current(), len(read)) == (23, 2)
