"""The bucket as its store answers: page by page, and over connections that end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from archive.archive import Archive
from archive.bucket import Bucket, Place
from archive.s3 import Access
from archive.segments import Raw


@pytest.mark.parametrize("size", [1, 2, 4, 9])
def test_names_are_told_page_by_page_each_once(archive: Archive, place: Place, size: int) -> None:
    archive.add(0, 1, [Raw(b"1-0", [b"type", b"t"])])
    for n in range(4):
        archive.bucket.put(f"some/{n}", b"")
    bucket = Bucket(place, page=size)

    assert list(bucket.names("some/")) == ["some/0", "some/1", "some/2", "some/3"]
    assert list(bucket.names("some/", after="some/1")) == ["some/2", "some/3"]
    assert list(bucket.names("none/")) == []


@pytest.fixture
def closing() -> Iterator[int]:
    """The port of a store that answers once on each connection and hangs up at the next call."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody")
                        connection.recv(65536)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_a_connection_that_the_store_closed_is_no_answer(closing: int) -> None:
    place = Place(f"http://127.0.0.1:{closing}", Access("a", "s", "us-east-1"), "archive")
    bucket = Bucket(place)

    assert [bucket.get("log/1") for _ in range(3)] == [b"body"] * 3
