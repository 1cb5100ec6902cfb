"""A process that answers questions ends without a word when whoever asks is killed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from handlers.processes.expendable import HEAD

ECHO = """
from handlers.processes.expendable import Answer, main
main(lambda first, second: Answer("said", second), niceness=0)
"""


@pytest.mark.parametrize(
    "asked",
    [
        b"",
        HEAD.pack(0, 5)[:3],
        HEAD.pack(0, 5),
        HEAD.pack(0, 5) + b"hello",
    ],
    ids=["nothing", "half a head", "no question", "a whole question"],
)
def test_whoever_asks_is_gone(asked: bytes) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ECHO, str(2**30), "5"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    ready = process.stdout.read(HEAD.size)

    process.stdin.write(asked)
    process.stdout.close()
    process.stdin.close()

    assert process.stderr.read() == b""
    process.wait(30)
    process.stderr.close()
    assert HEAD.unpack(ready) == (0, 0)
