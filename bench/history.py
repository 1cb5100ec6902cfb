"""What it costs to fold a log anew: into each read model, and into hot state.

The log is one that a crowd made on the real handlers (bench/crowd.py). It is folded as `rebuild`
does it, on a Valkey and a Postgres of its own; the cost of an event is the CPU of all of them.
Beside it, in the same process: what it costs to do no more than decode every event.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import structlog
import uvloop

from archive.segments import Raw
from bench import cpu
from bench.crowd import LIMITS, Crowd
from bench.rig import Result
from events import codec
from events.base import START
from events.keys import Keys
from handlers.log import Log
from handlers.replay import PAGE, Entry, fold, read_log
from handlers.settle import Settler
from hordechat.datadir import free_port
from hordechat.embedded import postgres, valkey
from hordechat.process import running
from lua.link import Link
from projections.migrate import migrate
from projections.models import PROJECTIONS
from projections.rebuild import rebuild

EVENTS = 40_000
DECODED, STATE = "decode the log", "fold, state"
MODELS = {name: f"rebuild, {name}" for name in PROJECTIONS}
KINDS = (DECODED, *MODELS.values(), STATE)

_KEYS = Keys(1)
_decode = msgspec.msgpack.Decoder(list[tuple[bytes, list[bytes]]]).decode
_Cost = tuple[float, dict[str, float]]
"""Seconds, and CPU seconds by role."""


async def _lived(url: str) -> list[Raw]:
    """The log of a crowd whose effects are settled."""
    log = Log(Link(url, timeout=20), _KEYS, test=True)
    try:
        crowd, settler, reached = Crowd(log), Settler(log, LIMITS, 0), START
        entries: list[Raw] = []
        await crowd.arrive()
        await settler.start()

        async def enough() -> bool:
            nonlocal reached
            async for page in read_log(log, 0, reached):
                await settler.settle([entry.recorded for entry in page])
                entries.extend(Raw(str(each.position).encode(), fields) for each, fields in page)
                reached = page[-1].recorded.position
            return len(entries) >= EVENTS

        await crowd.live(enough)
        return entries
    finally:
        await log.close()


async def _fill(url: str, entries: Sequence[Raw]) -> None:
    """Write a log as it was."""
    link = Link(url, connections=1, timeout=60)
    key = _KEYS.events(0)
    for first in range(0, len(entries), PAGE):
        some = entries[first : first + PAGE]
        await asyncio.gather(*(link.call("XADD", key, id_, *fields) for id_, fields in some))
    await link.close()


async def _into_state(url: str, entries: Sequence[Raw]) -> None:
    log = Log(Link(url, connections=1, timeout=60), _KEYS)
    await log.scripts.preload("replay_event")
    for first in range(0, len(entries), PAGE):
        page = entries[first : first + PAGE]
        await fold(log, [Entry(codec.decode(0, *each), each.fields) for each in page])
    await log.close()


def _decoded(entries: Sequence[Raw]) -> None:
    for first in range(0, len(entries), PAGE):
        _ = [codec.decode(0, *each) for each in entries[first : first + PAGE]]


def _measure(entries: Sequence[Raw]) -> dict[str, _Cost]:
    """Each of KINDS once."""
    found: dict[str, _Cost] = {}
    with tempfile.TemporaryDirectory(prefix="hordechat-bench-") as name:
        folder = Path(name)
        redis = valkey.service(folder / "valkey", free_port(), socket=True)
        database = postgres.service(folder / "postgres", free_port(), password="bench")  # noqa: S106 - of a server that goes with us
        with (
            running(redis, folder / "valkey.log") as first,
            running(database, folder / "postgres.log") as second,
        ):
            roots = {"valkey": first.pid, "postgres": second.pid}

            def take(kind: str, role: str, work: Callable[[], object]) -> None:
                before, began, own = cpu.read(roots), time.monotonic(), time.process_time()
                work()
                used = {role: time.process_time() - own}
                seconds = time.monotonic() - began
                found[kind] = seconds, used | cpu.between(before, cpu.read(roots))

            def again(model: str) -> None:
                rebuild(model, redis_url=redis.url, database_url=database.url, partitions=1)

            migrate(database.url)
            uvloop.run(_fill(redis.url, entries))
            _decoded(entries)  # the first time costs more
            take(DECODED, "web", lambda: _decoded(entries))
            for model, kind in MODELS.items():
                again(model)  # the first time, all of history is announced
                take(kind, f"projector_{model}", partial(again, model))
            take(STATE, "web", lambda: uvloop.run(_into_state(redis.url, entries)))
    return found


def make(file: Path) -> None:
    """Write a log of EVENTS events, or some more, into a file."""
    _in_a_process("make", file)


def run(file: Path) -> dict[str, Result]:
    """Measure on the log of a file: a result for each of KINDS."""
    told = msgspec.json.decode(_in_a_process("measure", file))
    events = told["events"]
    return {
        kind: Result(seconds, [seconds / events] * events, used, {})
        for kind, (seconds, used) in told["found"].items()
    }


def _in_a_process(what: str, file: Path) -> bytes:
    root = Path(__file__).parent.parent
    return subprocess.run(
        [sys.executable, "-P", "-m", "bench.history", what, str(file)],
        cwd=root,
        env={"PYTHONPATH": str(root)},
        check=True,
        capture_output=True,
    ).stdout


def main(what: str, file: Path) -> None:
    """Make a log, or measure on one and print what was found as JSON."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    if what == "make":
        with tempfile.TemporaryDirectory(prefix="hordechat-bench-") as name:
            service = valkey.service(Path(name) / "valkey", free_port(), fsync="no", socket=True)
            with running(service, Path(name) / "valkey.log"):
                file.write_bytes(msgspec.msgpack.encode(uvloop.run(_lived(service.url))))
        return
    entries = [Raw(*each) for each in _decode(file.read_bytes())]
    told = {"events": len(entries), "found": _measure(entries)}
    print(msgspec.json.encode(told).decode())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
