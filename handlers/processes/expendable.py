"""The inside of a process that may be killed at any moment: it answers one question at a time.

What it works on comes from strangers, and what that costs is bounded from outside. `killable` is
the other side, which starts it, asks it and kills it.

A question is `HEAD`, then its two parts. An answer is the same: a word, and what goes with it. The
first answer is empty: it says that the process is ready.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from typing import IO, NamedTuple

HEAD = struct.Struct("!II")
"""The lengths, in bytes, of the two parts that follow."""

EXHAUSTED = "exhausted"
"""It took too much memory: the process ends behind this answer."""


class Answer(NamedTuple):
    """What a process found."""

    word: str
    body: bytes = b""


Judge = Callable[[bytes, bytes], Answer]
"""From the two parts of a question to its answer. It never raises but for a lack of memory."""


def main(judge: Judge, *, niceness: int) -> None:
    """Be such a process: it is told the bytes of address space and the seconds of CPU for a
    question that it may have, and asked on its standard streams."""
    memory, seconds = int(sys.argv[1]), float(sys.argv[2])
    confine(memory, niceness)
    serve(judge, sys.stdin.buffer, sys.stdout.buffer, seconds)


def confine(memory: int, niceness: int) -> None:
    """Give up what such a process does not need. `memory`: bytes of address space."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with its parent, whose calls go on
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # that was killed: nobody reads an answer
    os.nice(niceness)  # whoever pops or posts meanwhile comes first
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def serve(judge: Judge, questions: IO[bytes], answers: IO[bytes], seconds: float) -> None:
    """Answer until there are no more questions. One that takes more than so many seconds of CPU
    ends the process, whether or not anybody still waits for it."""
    _say(answers, Answer(""))
    while len(head := questions.read(HEAD.size)) == HEAD.size:
        first, second = HEAD.unpack(head)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            answer = judge(questions.read(first), questions.read(second))
        except MemoryError:
            answer = Answer(EXHAUSTED)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _say(answers, answer)
        if answer.word == EXHAUSTED:
            return


def _say(answers: IO[bytes], answer: Answer) -> None:
    word = answer.word.encode()
    answers.write(HEAD.pack(len(word), len(answer.body)) + word)
    answers.write(answer.body)
    answers.flush()
