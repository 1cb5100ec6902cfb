"""Processes and servers killed while images are uploaded, handed out and deleted: each object stays
accounted for, and none is left when every request is over."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from events import types
from events.keys import Due
from handlers.accounted import Tally, check
from handlers.log import Log
from handlers.replay import read_log
from handlers.store import Store
from tests.e2e.conftest import Pool
from tests.e2e.gallery import asking, doomed, picture, seeing, store_at
from tests.e2e.harness import CHAT, POP, SUBMIT, eventually, family, pause, reply, status_of
from tests.e2e.wire import Answer, Http, NoAnswer
from tests.spec import spec

pytestmark = pytest.mark.e2e

LIFE = 1300  # seconds: longer than a request lives, and the mark of one that never came
DUE: tuple[Due, ...] = ("admission", "request")
CLIENTS = 6
TRANSPORTS = (("url",), ("base64",), ("base64", "messages_url"))
URLS = [picture(n, side=120) for n in range(3)]


@dataclass
class Seen:
    """What clients and workers were told."""

    told: Counter[str] = field(default_factory=Counter)
    odd: list[str] = field(default_factory=list)

    def note(self, what: str, answer: Answer, *right: int) -> None:
        """Whether somebody may be told this."""
        self.told[f"{what} {answer.status}"] += 1
        unseen = answer.rc in ("UnknownChatModel", "NoEligibleWorker")  # after a leap of the clock
        if answer.status not in right and not (answer.status == 503 and answer.rc) and not unseen:
            self.odd.append(f"{what}: {answer.status} {answer.body}")


async def _submit(url: str, key: str, n: int, seen: Seen, enough: asyncio.Event) -> None:
    """One request after the other, of one to three images; a part of them is cancelled, and of half
    the client repeats what got no answer."""
    async with Http(url, key) as http:
        while not enough.is_set():
            seen.told["asked"] += 1
            at = seen.told["asked"]
            body = asking(f"client {n} asks {at}", *URLS[: 1 + at % 3])
            if at % 2:
                body["horde"] = {"operation_key": str(uuid.uuid4())}
            for _ in range(8):
                try:
                    answer = await http.call("POST", CHAT, body)
                    seen.note("submit", answer, 200, 202)
                    if answer.status == 202 and at % 5 == 0:
                        cancelled = await http.call("DELETE", status_of(answer.body["id"]))
                        seen.note("cancel", cancelled, 200, 404)
                except NoAnswer:
                    seen.told["no answer"] += 1
                    await pause(0.2)
                    continue
                if answer.status != 503:
                    break
                await pause(0.3)


async def _work(url: str, key: str, n: int, seen: Seen, enough: asyncio.Event) -> None:
    """One job after the other."""
    async with Http(url, key) as http:
        while not enough.is_set():
            try:
                popped = await http.call("POST", POP, seeing(f"worker {n}", *TRANSPORTS[n]), wait=1)
                seen.note("pop", popped, 200)
                if popped.status == 200 and popped.body["id"]:
                    answer = await http.call("POST", SUBMIT, reply(popped.body["id"], "it"))
                    seen.note("reply", answer, 200, 400, 404)
            except NoAnswer:
                seen.told["no answer"] += 1
                await pause(0.2)


class Trouble:
    """What happens to a service."""

    def __init__(self, pool: Pool, log: Log) -> None:
        self._pool = pool
        self._log = log

    async def web_worker(self) -> None:
        """It is in the middle of something."""
        web = self._pool.up.pid("web")
        child = family(web)[1]
        self._pool.killed.add(child)
        os.kill(child, signal.SIGKILL)
        await eventually(lambda: child not in family(web), 60, "a web worker's end")

    async def valkey(self) -> None:
        self._pool.redis.kill()
        self._pool.redis.start()

    async def store(self) -> None:
        self._pool.s3.kill()
        self._pool.s3.start()

    async def janitor(self) -> None:
        """All requests are over, and it is deleting."""
        await self._deleting()
        pid = self._pool.up.pid("janitor")
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: self._pool.up.pid("janitor") != pid, 60, "another janitor")

    async def store_while_deleting(self) -> None:
        await self._deleting()
        await self.store()

    async def store_hangs(self) -> None:
        """For longer than uploads wait for it."""
        self._pool.s3.pause()
        await asyncio.sleep(6)  # the trouble itself
        self._pool.s3.resume()

    async def _deleting(self) -> None:
        await self._pool.pass_time(LIFE)
        await eventually(lambda: doomed(self._log), 60, "something to delete")


Happens = Callable[[Trouble], Awaitable[None]]
SHORT: tuple[Happens, ...] = (
    Trouble.web_worker,
    Trouble.store,
    Trouble.janitor,
    Trouble.valkey,
)
LONG = (*SHORT, Trouble.store_hangs, Trouble.store_while_deleting)


@spec("Images", 29)
@pytest.mark.parametrize(
    "troubles",
    [
        pytest.param(SHORT, id="each once"),
        pytest.param(LONG * 6, id="each six times", marks=pytest.mark.soak),
    ],
)
async def test_objects_are_accounted_for_whatever_is_killed(
    pool: Pool, troubles: tuple[Happens, ...]
) -> None:
    seen, enough, store = Seen(), asyncio.Event(), store_at(pool.up)
    url = pool.up.url
    at_work = [
        *(asyncio.ensure_future(_work(url, pool.owner, n, seen, enough)) for n in range(3)),
        *(
            asyncio.ensure_future(_submit(url, pool.client, n, seen, enough))
            for n in range(CLIENTS)
        ),
    ]

    async def more(replies: int) -> None:
        want = seen.told["reply 200"] + replies
        await eventually(lambda: seen.told["reply 200"] >= want, 60, f"replies: {seen.told}")

    async with pool.log() as log:
        try:
            await more(3)
            for happens in troubles:
                await happens(Trouble(pool, log))
                await more(3)
            enough.set()
            await asyncio.gather(*at_work)
        finally:
            enough.set()
            await asyncio.gather(*at_work, return_exceptions=True)
        assert seen.odd == []
        await _accounted(log, store)
        await _over(pool, log)
        assert await store.keys() == []
        await _told(log, seen)
    store.close()


async def _over(pool: Pool, log: Log) -> None:
    """Everything comes to its end."""

    async def over() -> bool:
        due = [
            await log.read("ZCOUNT", log.keys.due(at, what), "-inf", await log.now_ms(at))
            for at in log.keys.all()
            for what in DUE
        ]
        return not any(due) and not await doomed(log)

    for _ in range(3):  # admissions and requests, the marks that they leave, and stragglers
        await pool.pass_time(LIFE)
        await eventually(over, 60, "a pass of the janitors")


async def _told(log: Log, seen: Seen) -> None:
    """Whether the objects were of every kind, and went every way."""
    events = [
        entry.recorded.event
        for partition in log.keys.all()
        async for page in read_log(log, partition)
        for entry in page
    ]
    kept = Counter(type(each).__name__ for each in events if getattr(each, "images", 0))
    print(f"told: {dict(seen.told)}; with images: {dict(kept)}")
    assert any(isinstance(each, types.Submitted) and each.offloaded for each in events)
    ways = {each.image_transport for each in events if isinstance(each, types.Assigned)}
    assert ways >= {"url", "base64", "messages_url"}


async def _accounted(log: Log, store: Store) -> None:
    tally = Tally()
    assert [found async for found in check(log, store, tally)] == []
