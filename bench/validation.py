"""What it costs to tell what a chat body means: read, screened for size, mapped to what is stored.

No server and no network: the pure rules of a submission, one after the other as the route runs
them, in a process of their own. A body of 2 KiB is a typical one; one of 1 MiB shows whether the
cost stays linear up to the limit on text.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.rig import Result
from handlers.chat import context, pricing, request, submission
from handlers.reference import SHIPPED, Reference, parse

SMALL = 2 * 2**10
LARGE = 2**20
_BOUND = context.Bound(max_length=2048, max_context_length=1_048_576)
_FIXED = 300
"""Bytes of a body beside its text, about."""


def body(size: int) -> bytes:
    """A conversation of about so many bytes, in turns of a few hundred characters."""
    turn = "Tell me more about the history of the lighthouse at the end of the pier. " * 4
    texts = [turn] * max(1, (size - _FIXED) // (len(turn) + 40))
    roles = ("user", "assistant")
    # As many messages as a request may have hold at most this much each.
    merged = max(1, -(-len(texts) // 900))
    told = [" ".join(texts[at : at + merged]) for at in range(0, len(texts), merged)]
    messages = [{"role": "system", "content": "You answer in one paragraph."}]
    messages += [{"role": roles[at % 2], "content": text} for at, text in enumerate(told)]
    content: dict[str, Any] = {
        "model": "bench",
        "messages": messages,
        "max_tokens": 512,
        "temperature": 0.7,
        "top_p": 0.95,
        "stop": ["\n\nUser:"],
        "stream": True,
        "horde": {"slow_workers": True, "context_fit": "truncate_oldest"},
    }
    return msgspec.json.encode(content)


def validate(raw: bytes, reference: Reference) -> object:
    """Everything between the bytes and the log that needs nobody else."""
    asked = request.read(raw)
    fitted = context.fit(asked, _BOUND)
    request.check_params(asked, fitted.max_context_length)
    size = pricing.Tariff(reference).quoted_size(asked.models)
    kudos = pricing.quote(fitted.max_length, fitted.max_context_length, size=size)
    return submission.new_request(asked, fitted, kudos=kudos, client_agent=b"bench:1:bench")


def measure(size: int, seconds: float) -> tuple[int, float, int]:
    """How many bodies were validated within `seconds` of CPU, the CPU seconds, and their bytes."""
    raw, reference = body(size), Reference(lambda: models)
    models = parse(SHIPPED.read_bytes())
    for _ in range(3):
        validate(raw, reference)
    count, started = 0, time.process_time()
    while (used := time.process_time() - started) < seconds or not count:
        validate(raw, reference)
        count += 1
    return count, used, len(raw)


def run(size: int, seconds: float) -> Result:
    """`measure` in a process of its own."""
    command = [sys.executable, "-P", "-m", "bench.validation", str(size), str(seconds)]
    root = Path(__file__).parent.parent
    told = subprocess.run(
        command, cwd=root, env={"PYTHONPATH": str(root)}, check=True, capture_output=True
    )
    count, used, length = msgspec.json.decode(told.stdout)
    return Result(used, [used / count] * count, {"web": used}, {"bytes": length})


if __name__ == "__main__":
    print(msgspec.json.encode(measure(int(sys.argv[1]), float(sys.argv[2]))).decode())
