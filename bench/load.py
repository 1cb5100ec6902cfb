"""The load generator, a process of its own: reads tasks as JSON lines, answers each with lines.

`{"at": "begin"}` and `{"at": "end"}` bracket what counts, behind the warm-up, so that whoever reads
them can read CPU clocks; `{"at": "result", …}` follows. Pinned by the one who starts it.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any

import msgspec
import uvloop

from bench import gallery
from bench.wire import Answer, Closed, Connection, open_connection, request

_WAIT = {"Prefer": "wait=20"}
_LIMIT = 40.0


class Failed(Exception):
    """The service answered what a measurement cannot use."""


class Window:
    """What counts: the time between begin and end."""

    def __init__(self, warm_up: float, seconds: float) -> None:
        self.begin = monotonic() + warm_up
        self.end = self.begin + seconds
        self.times: list[float] = []
        self._announcer = asyncio.create_task(self._announce())

    async def _announce(self) -> None:
        await asyncio.sleep(self.begin - monotonic())
        say(at="begin")
        await asyncio.sleep(self.end - monotonic())
        say(at="end")

    def open(self) -> bool:
        """Whether load goes on."""
        return monotonic() < self.end

    def count(self, started: float) -> None:
        """An operation that ended now; it counts if it ended inside."""
        now = monotonic()
        if self.begin <= now < self.end:
            self.times.append(now - started)

    async def closed(self) -> None:
        """Wait until `end` was announced."""
        await self._announcer


def say(**told: Any) -> None:
    """Answer one line."""
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


class Rig:
    """The service, or a ceiling, at one address."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.host: str = task["host"]
        self.port: int = task["port"]
        self.window: Window
        self._connections: list[Connection] = []

    async def connect(self, count: int) -> list[Connection]:
        """Open connections; they are closed at the end."""
        opened = [await open_connection(self.host, self.port) for _ in range(count)]
        self._connections += opened
        return opened

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections:
            connection.close()

    def start(self) -> Window:
        """Begin the warm-up."""
        self.window = Window(self.task["warm_up"], self.task["seconds"])
        return self.window

    def body(self, path: str, key: str, content: object, headers: Mapping[str, str] = {}) -> bytes:
        """A POST to the service."""
        named = {"apikey": self.task[key], **headers}
        return request("POST", path, named, msgspec.json.encode(content))

    # what clients and workers send

    def submit(self, *, stream: bool = False, text: str = "x" * 700, length: int = 1024) -> bytes:
        """A chat request of about 1 KB, for `length` tokens at most."""
        content = {
            "model": self.task["model"],
            "messages": [{"role": "user", "content": text}],
            "max_tokens": length,
            "stream": stream,
        }
        return self.body("/v2/generate/chat/async", "client_key", content)

    def show(self) -> bytes:
        """A chat request of as many images as there may be."""
        content = {
            "model": self.task["model"],
            "messages": gallery.messages(),
            "max_tokens": 64,
            "horde": {"max_context_length": _ROOM},
        }
        return self.body("/v2/generate/chat/async", "client_key", content)

    def pop(
        self,
        number: int,
        headers: Mapping[str, str] = {},
        *,
        owner: str = "worker",
        limit: int = 1024,
        sees: bool = False,
    ) -> bytes:
        """The pop of one worker, which makes `limit` tokens at most; one that sees has its images
        read for it."""
        content = {
            "name": f"{owner}-{number}",
            "models": [self.task["model"]],
            "bridge_agent": "bench:1:bench",
            "chat_jobs": True,
            "prompt_jobs": False,
            "model_id": self.task["model"],
            "chat_limits": {"max_context_length": _ROOM if sees else 8192, "max_length": limit},
            "chat_features": ["prompt_overflow_refused", *(["vision"] if sees else [])],
            "image_transports": ["base64"] if sees else [],
        }
        return self.body("/v2/generate/text/pop", f"{owner}_key", content, headers)

    def reply(self, generation_id: str, *, owner: str = "worker") -> bytes:
        """A structured reply of about 1 KB."""
        content = {
            "id": generation_id,
            "model_id": self.task["model"],
            "message": {"role": "assistant", "content": "y" * 900},
            "finish_reason": "stop",
            "prompt_tokens": 200,
            "completion_tokens": 225,
        }
        return self.body("/v2/generate/text/submit", f"{owner}_key", content)

    def status(self, request_id: str) -> bytes:
        """A status call that waits for the end."""
        headers = {"apikey": self.task["client_key"], **_WAIT}
        return request("GET", f"/v2/generate/chat/status/{request_id}", headers)


def expect(answer: Answer, status: int) -> Any:
    """The decoded body; raise Failed for another status."""
    if answer.status != status:
        raise Failed(f"expected {status}, got {answer.status}: {answer.body[:300]!r}")
    return msgspec.json.decode(answer.body)


async def closed_loop(rig: Rig) -> dict[str, Any]:
    """The same request again and again on every connection."""
    connections = await rig.connect(rig.task["connections"])
    window = rig.start()
    make = {"hello": _hello, "store": _store, "pop": _idle_pop}[rig.task["request"]]

    async def drive(connection: Connection, number: int) -> None:
        send = make(rig, number)
        while window.open():
            started = monotonic()
            answer = await connection.send(send)
            if answer.status != 200:
                raise Failed(f"{answer.status}: {answer.body[:300]!r}")
            window.count(started)

    await asyncio.gather(*(drive(each, number) for number, each in enumerate(connections)))
    return {}


def _hello(_rig: Rig, _number: int) -> bytes:
    return request("GET", "/hello", {})


def _store(_rig: Rig, number: int) -> bytes:
    text = {"role": "user", "content": "x" * 900}
    content = {"id": f"{number:04}", "model": "bench", "messages": [text], "max_tokens": 512}
    return request("POST", "/store", {}, msgspec.json.encode(content))


def _idle_pop(rig: Rig, number: int) -> bytes:
    return rig.pop(number)


async def paced(rig: Rig) -> dict[str, Any]:
    """POSTs of the store at a fixed rate."""
    idle = await rig.connect(rig.task["connections"])
    send = _store(rig, 0)
    window = rig.start()

    async def one() -> None:
        connection = idle.pop() if idle else (await rig.connect(1))[0]
        started = monotonic()
        if (await connection.send(send)).status != 200:
            raise Failed("the store does not answer 200")
        window.count(started)
        idle.append(connection)

    await arrivals(rig, rig.task["rate"], one)
    return {}


async def arrivals(rig: Rig, rate: float, one: Callable[[], Awaitable[None]]) -> None:
    """Start `one` at random moments, `rate` times a second, until the window ends; await all."""
    tasks = []
    due = monotonic()
    while rig.window.open():
        due += random.expovariate(rate)
        await asyncio.sleep(max(0.0, due - monotonic()))
        tasks.append(asyncio.ensure_future(one()))
    await asyncio.gather(*tasks)


async def progress(rig: Rig) -> dict[str, Any]:
    """Progress posts: each connection on a job of its own, the next one when it is used up."""
    connections = await rig.connect(rig.task["connections"])
    jobs = await _take_jobs(rig, connections, rig.task["leases"])
    used: list[str] = []
    window = rig.start()

    async def drive(connection: Connection) -> None:
        while window.open():
            if not jobs:
                raise Failed("more posts than leases were prepared for")
            generation_id = jobs.pop()
            used.append(generation_id)
            for seq in range(1, rig.task["posts"] + 1):
                content = {"id": generation_id, "seq": seq, "delta": {"content": f"{seq:07} "}}
                send = rig.body("/v2/generate/text/progress", "worker_key", content)
                started = monotonic()
                expect(await connection.send(send), 200)
                window.count(started)
                if not window.open():
                    return

    await asyncio.gather(*(drive(each) for each in connections))
    await window.closed()
    for generation_id in jobs + used:
        expect(await connections[0].send(rig.reply(generation_id)), 200)
    return {}


async def _take_jobs(rig: Rig, connections: list[Connection], count: int) -> list[str]:
    """Submit streamed requests and take their jobs; return the generation ids."""
    taken = []
    # The model is known only once a worker showed itself.
    await connections[0].send(rig.pop(0))
    for number in range(count):
        connection = connections[number % len(connections)]
        expect(await _submitted(rig, connection, rig.submit(stream=True)), 202)
        popped = expect(await connection.send(rig.pop(0, _WAIT)), 200)
        if not popped["id"]:
            raise Failed("a waiting pop did not get the job")
        taken.append(popped["id"])
    return taken


async def _submitted(rig: Rig, connection: Connection, send: bytes) -> Answer:
    """Submit; again while the read model does not know the workers yet."""
    until = monotonic() + 5
    while True:
        answer = await connection.send(send)
        if answer.status not in (403, 404) or monotonic() > until:
            return answer
        await asyncio.sleep(0.05)


class Jobs:
    """Clients and workers of the full cycle: submit, pop, reply, status."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.accepted: dict[str, float] = {}
        self.sent: dict[str, float] = {}
        self.popped: dict[str, float] = {}

    async def worker(self, connection: Connection, number: int) -> None:
        """Pop with a long poll and reply at once, until the connection is closed."""
        pop = self.rig.pop(number, _WAIT)
        try:
            while True:
                job = expect(await connection.send(pop), 200)
                if job["id"]:
                    self.popped[job["payload"]["messages"][0]["content"]] = monotonic()
                    expect(await connection.send(self.rig.reply(job["id"])), 200)
        except Closed:
            return

    async def job(self, connection: Connection, text: str) -> None:
        """Submit one request and wait for its reply."""
        rig = self.rig
        started = self.sent[text] = monotonic()
        answer = await connection.send(rig.submit(text=text))
        self.accepted[text] = monotonic()
        request_id = expect(answer, 202)["id"]
        while True:
            told = expect(await connection.send(rig.status(request_id)), 200)
            if told["done"]:
                break
        if len(told["generations"]) != 1:
            raise Failed(f"a done request has {len(told['generations'])} generations")
        rig.window.count(started)

    def handed_over(self) -> dict[str, Any]:
        """Seconds from a submit, sent and accepted, to the worker that has it."""
        inside = [
            text
            for text, at in self.popped.items()
            if self.rig.window.begin <= at < self.rig.window.end and text in self.accepted
        ]
        return {
            "since_sent": [self.popped[text] - self.sent[text] for text in inside],
            "since_accepted": [
                max(0.0, self.popped[text] - self.accepted[text]) for text in inside
            ],
        }


async def cycle(rig: Rig) -> dict[str, Any]:
    """Full jobs: each client the next one when it has its reply, or all at a rate."""
    clients = await rig.connect(rig.task["clients"])
    workers = await rig.connect(rig.task["workers"])
    jobs = Jobs(rig)
    serving = [
        asyncio.ensure_future(jobs.worker(each, number)) for number, each in enumerate(workers)
    ]
    await _submitted_one(rig, clients[0])
    window = rig.start()
    texts = (f"{n:08} ".ljust(700, "x") for n in range(10**8))

    async def drive(connection: Connection) -> None:
        while window.open():
            await jobs.job(connection, next(texts))

    async def one() -> None:
        connection = clients.pop() if clients else (await rig.connect(1))[0]
        await jobs.job(connection, next(texts))
        clients.append(connection)

    rate = rig.task.get("rate")
    driving = arrivals(rig, rate, one) if rate else asyncio.gather(*map(drive, clients))
    ended = asyncio.ensure_future(driving)
    await asyncio.wait([ended, *serving], return_when=asyncio.FIRST_COMPLETED)
    for task in serving:
        if task.done():
            task.result()
            raise Failed("a worker lost its connection")
    await ended
    for connection in workers:
        connection.close()
    await asyncio.gather(*serving)
    return jobs.handed_over()


async def _submitted_one(rig: Rig, connection: Connection) -> None:
    """Bring one job through before the clock runs."""
    request_id = expect(await _submitted(rig, connection, rig.submit(text="first")), 202)["id"]
    while not expect(await connection.send(rig.status(request_id)), 200)["done"]:
        pass


async def shown(rig: Rig) -> dict[str, Any]:
    """Pops at a fixed rate, of workers that see nothing, while `clients` show images, each one
    request after the other, and as many workers that see are handed them.

    Without a client the same of an idle service.
    """
    count = rig.task["clients"]
    idle, (first,) = await rig.connect(rig.task["connections"]), await rig.connect(1)
    clients, seers = await rig.connect(count), await rig.connect(count)
    show, pop, counts = rig.show(), rig.pop(0), {"accepted": 0, "refused": 0, "served": 0}
    expect(await first.send(rig.pop(100, sees=True)), 200)
    expect(await first.send(pop), 200)
    if count:
        expect(await _submitted(rig, first, show), 202)
    window = rig.start()

    async def client(connection: Connection) -> None:
        while window.open():
            accepted = (await connection.send(show)).status == 202
            counts["accepted" if accepted else "refused"] += 1
            if not accepted:
                await asyncio.sleep(_TOO_MUCH)

    async def seer(connection: Connection, number: int) -> None:
        while window.open():
            job = (await connection.send(rig.pop(100 + number, _SHORT, sees=True))).body
            if found := _ID.search(job, len(job) - _TAIL if len(job) > _TAIL else 0):
                expect(await connection.send(rig.reply(found[1].decode())), 200)
                counts["served"] += 1

    async def one() -> None:
        connection = idle.pop() if idle else (await rig.connect(1))[0]
        started = monotonic()
        expect(await connection.send(pop), 200)
        window.count(started)
        idle.append(connection)

    await asyncio.gather(
        arrivals(rig, rig.task["rate"], one),
        *map(client, clients),
        *(seer(each, number) for number, each in enumerate(seers)),
    )
    if count and not (counts["accepted"] and counts["served"]):
        raise Failed(f"images did not stream in, and out: {counts}")
    return counts


_ROOM = 16384
"""Tokens of context. Each image takes 512."""
_ID = re.compile(rb'"id":"([0-9a-f-]{36})"')
_TAIL = 2000
"""Bytes of a job behind its payload and more: to decode it all would hold up what is measured."""
_TOO_MUCH = 0.1
"""Seconds after which a client comes again that was refused."""
_SHORT = {"Prefer": "wait=1"}


async def reach(rig: Rig) -> dict[str, Any]:
    """Pops of a newcomer's workers in a long queue, each for a request that was just submitted.

    `ahead` are submitted before. What is timed is the pop; one that got nothing, because the read
    model does not show the request yet, is counted apart.
    """
    lanes, length, limit = (rig.task[name] for name in ("lanes", "length", "limit"))
    connections = await rig.connect(lanes)
    pops = [rig.pop(n, owner="newcomer", limit=limit) for n in range(lanes)]
    submit = rig.submit(length=length)
    for connection, pop in zip(connections, pops, strict=True):
        expect(await connection.send(pop), 200)  # the worker shows itself
    expect(await _submitted(rig, connections[0], submit), 202)
    for number in range(rig.task["ahead"]):
        expect(await connections[number % lanes].send(submit), 202)
    window = rig.start()
    empty = 0

    async def drive(connection: Connection, pop: bytes) -> None:
        nonlocal empty
        while window.open():
            expect(await connection.send(submit), 202)
            while True:
                await asyncio.sleep(_SHOWN)
                started = monotonic()
                job = expect(await connection.send(pop), 200)
                if job["id"]:
                    break
                empty += 1
            window.count(started)
            expect(await connection.send(rig.reply(job["id"], owner="newcomer")), 200)

    await asyncio.gather(*map(drive, connections, pops))
    return {"empty": empty}


_SHOWN = 0.03
"""Seconds in which the read model most often shows what was submitted."""


async def waiting(rig: Rig) -> dict[str, Any]:
    """Pops that wait for a job: what they cost while none comes, and who gets the one that does."""
    count = rig.task["workers"]
    numbers = iter(range(count))

    async def introduce(connection: Connection) -> None:
        for number in numbers:
            expect(await connection.send(rig.pop(number)), 200)

    await asyncio.gather(*map(introduce, await rig.connect(_AT_ONCE)))
    connections = await rig.connect(count)
    wait = {"Prefer": f"wait={_LONGEST}"}
    answers = [
        asyncio.ensure_future(each.send(rig.pop(number, wait)))
        for number, each in enumerate(connections)
    ]
    await asyncio.sleep(rig.task["settle"])
    window = rig.start()
    await window.closed()
    if early := [each for each in answers if each.done()]:
        raise Failed(f"{len(early)} pops did not wait: {early[0].result().body[:300]!r}")
    (client,) = await rig.connect(1)
    expect(await client.send(rig.submit()), 202)
    done, still = await asyncio.wait(answers, timeout=_SECOND_LOOK)
    for each in done:
        expect(await client.send(rig.reply(expect(each.result(), 200)["id"])), 200)
    for connection in connections:
        connection.close()
    await asyncio.gather(*still, return_exceptions=True)
    return {"got": len(done)}


_AT_ONCE = 64
"""New workers that show themselves at a time."""
_LONGEST = 60
"""Seconds that a pop may wait."""
_SECOND_LOOK = 2.5
"""Seconds in which waiting pops looked by themselves, too."""

_KINDS = {
    "closed": closed_loop,
    "paced": paced,
    "progress": progress,
    "cycle": cycle,
    "shown": shown,
    "reach": reach,
    "waiting": waiting,
}


async def perform(task: dict[str, Any]) -> None:
    """One task; its result, or why there is none."""
    rig = Rig(task)
    try:
        limit = task["warm_up"] + task.get("settle", 0) + task["seconds"] + _LIMIT
        async with asyncio.timeout(limit):
            more = await _KINDS[task["kind"]](rig)
            await rig.window.closed()
        say(at="result", seconds=task["seconds"], times=rig.window.times, **more)
    except TimeoutError:
        say(at="failed", why=f"not finished within {limit:g} s")
    except (Failed, Closed, OSError) as error:
        say(at="failed", why=f"{type(error).__name__} {error}")
    finally:
        rig.close()


def main() -> None:
    """Serve tasks until the input ends."""
    for line in sys.stdin:
        uvloop.run(perform(json.loads(line)))


if __name__ == "__main__":
    main()
