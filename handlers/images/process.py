"""The program of one process that normalises images, one after the other.

It runs alone (`python -m handlers.images.process`) and is expendable: images come from
strangers, and what they cost is bounded from outside (`expendable`).

A question is `verdicts.ENCODED` or nothing, and the image; the answer is one of the words
there, with the JPEG if there is one.
"""

from __future__ import annotations

import binascii

from handlers.images import normalise
from handlers.images.verdicts import ENCODED, NORMALISED, TOO_MANY_PIXELS, UNREADABLE
from handlers.processes.expendable import Answer, main

NICENESS = 10
"""Whoever pops or posts meanwhile comes first, and so does a check of a reply."""


def answer(encoding: bytes, source: bytes) -> Answer:
    """The JPEG, or why there is none. Raise MemoryError."""
    try:
        if encoding == ENCODED:
            source = binascii.a2b_base64(source, strict_mode=True)
        return Answer(NORMALISED, normalise.normalise(source))
    except (normalise.Unreadable, binascii.Error):
        return Answer(UNREADABLE)
    except normalise.TooManyPixels:
        return Answer(TOO_MANY_PIXELS)


if __name__ == "__main__":
    main(answer, niceness=NICENESS)
