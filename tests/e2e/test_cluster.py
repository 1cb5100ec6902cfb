"""Four partitions on a cluster of three primaries, one with replicas: every flow, processes that
share the partitions and take over from one that dies, and nodes that are killed under load.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from events import types
from events.base import KUDOS, Event
from handlers.account_changes import Change, change_account
from handlers.modes import set_modes
from hordechat.opening import limits_of
from hordechat.settings import Settings
from tests.cluster import Cluster, Node
from tests.e2e.conftest import PARTITIONS, Pool, Server, serving_pool
from tests.e2e.gallery import asking, picture
from tests.e2e.harness import (
    CHAT,
    MODEL,
    POP,
    SUBMIT,
    Book,
    Client,
    Worker,
    chat,
    declaration,
    eventually,
    known,
    reply,
    serving,
    status_of,
    until,
    working,
)
from tests.e2e.paying import Crowd, await_paid, nothing_held
from tests.e2e.rebuilt import TABLES, caught_up, differences, live_and_rebuilt
from tests.e2e.wire import Answer, Http

pytestmark = pytest.mark.e2e

SHARED = ("projector status", "settler", "janitor", "archiver")
"""Each by two processes, of which each has its share of the partitions."""
ALONE = ("projector eligibility", "projector statistics", "projector accounts")
"""The same where there is time."""


def procfile(shared: Sequence[str], alone: Sequence[str]) -> str:
    """Two processes of the former, one of the latter."""
    lines = ["release: hordechat migrate", "web: hordechat web"]
    for what in shared:
        name = what.replace(" ", "_")
        lines += (f"{name}_{which}: hordechat {what} --take 2" for which in "ab")
    lines += (f"{what.replace(' ', '_')}: hordechat {what}" for what in alone)
    return "\n".join(lines) + "\n"


TAKEOVER_SECONDS = 30.0
SLOWEST_SECONDS = 8.0
GAP_SECONDS = 30.0
HITS = ("kill", "pause")
HANGS = 40
SILENCES = {"submit", "status", "cancel", "pop", "progress", "reply"}
"""What the book counts calls as that got no answer at all."""
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TEXT = "/v2/generate/text/async"


class Site(NamedTuple):
    """The service, the cluster that it runs on, and how often its nodes are hit."""

    pool: Pool
    nodes: Cluster
    rounds: int


@pytest.fixture(scope="module", params=["once", pytest.param("often", marks=pytest.mark.soak)])
def clustered(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    e2e_postgres: Server,
) -> Iterator[Site]:
    """A running service. A primary that took over wants a replica, too, before it takes writes."""
    often = request.param == "often"
    folder = tmp_path_factory.mktemp(f"e2e-nodes-{request.param}")
    nodes = Cluster(folder / "nodes", replicas=(2, 2, 2) if often else (2, 0, 0))
    processes = procfile((*SHARED, *ALONE), ()) if often else procfile(SHARED, ALONE)
    with serving_pool(folder, nodes, e2e_postgres, procfile=processes) as pool:
        yield Site(pool, nodes, 3 if often else 0)
        pool.up.cli("archive", "check")


@pytest.fixture
def pool(clustered: Site) -> Pool:
    """The service."""
    return clustered.pool


@pytest.fixture
def nodes(clustered: Site) -> Cluster:
    """The cluster."""
    return clustered.nodes


# every flow


class Desk:
    """A client and a worker that do one thing after the other."""

    def __init__(self, pool: Pool, name: str) -> None:
        self.client = Http(pool.up.url, pool.client)
        self.owner = Http(pool.up.url, pool.owner)
        self.offer = declaration(name) | {"prompt_jobs": True}
        self.offer["chat_features"] = [*self.offer["chat_features"], "tools", "vision"]
        self.offer["image_transports"] = ["base64"]

    async def seen(self) -> None:
        """Be seen, and have what waits for no good reason."""
        await self.owner.call("POST", POP, self.offer)

    async def queued(self, body: dict[str, Any], path: str = CHAT) -> str:
        """Submit until it is accepted: the worker was just seen."""
        answers: list[Answer] = []

        async def accepted() -> bool:
            answers.append(await self.client.call("POST", path, body))
            last = answers[-1]
            assert last.status == 202 or last.rc in ("NoEligibleWorker", "UnknownChatModel"), last
            return last.status == 202

        await eventually(accepted, 60, "acceptance")
        return answers[-1].body["id"]

    async def popped(self) -> dict[str, Any]:
        """The next job."""
        answer = await self.owner.call("POST", POP, self.offer, wait=10)
        assert answer.status == 200, answer
        assert answer.body["id"], answer
        return answer.body

    async def submitted(self, body: dict[str, Any]) -> None:
        """Hand in a reply."""
        answer = await self.owner.call("POST", SUBMIT, body)
        assert answer.status == 200, answer

    async def done(self, request_id: str, kind: str = "chat") -> list[dict[str, Any]]:
        """The generations of a request that is done."""
        path = status_of(request_id).replace("/chat/", f"/{kind}/")
        answer = await self.client.call("GET", path, wait=10)
        assert (answer.status, answer.body["done"]) == (200, True), answer
        return answer.body["generations"]


async def test_every_flow_goes_through_all_nodes(pool: Pool, nodes: Cluster) -> None:
    owners = {nodes.primary_of(pool.keys.events(each)).port for each in pool.keys.all()}
    assert len(owners) == 3
    desk = Desk(pool, "desk")
    await desk.seen()
    partitions: set[int] = set()

    def spread(request_id: str) -> str:
        partitions.add(pool.keys.of(request_id))
        return request_id

    for _ in range(3):
        answered = spread(await desk.queued(chat("plain")))
        await desk.submitted(reply((await desk.popped())["id"], "plain"))
        await desk.done(answered)

        called = spread(await desk.queued(chat("call it") | {"tools": TOOLS}))
        job = await desk.popped()
        said = {"role": "assistant", "content": None, "tool_calls": [CALL]}
        await desk.submitted(
            reply(job["id"], "") | {"message": said, "finish_reason": "tool_calls"}
        )
        (told,) = await desk.done(called)
        assert told["message"]["tool_calls"] == [CALL]

        twice = {"prompt": "Once", "models": [MODEL], "params": {"n": 2}}
        written = spread(await desk.queued(twice, TEXT))
        for text in ("there was", "upon a time"):
            await desk.submitted({"id": (await desk.popped())["id"], "generation": text})
        told = await desk.done(written, "text")
        assert {each["text"] for each in told} == {"there was", "upon a time"}

        shown = spread(await desk.queued(asking("see", picture(1), picture(2))))
        job = await desk.popped()
        assert len(job["payload"]["messages"][-1]["content"]) == 3
        await desk.submitted(reply(job["id"], "see"))
        await desk.done(shown)
    assert len(partitions) > 2

    book = Book()
    crowd = await Crowd.of(pool.up, pool.owner, book, f"crowd {time.monotonic()}", workers=8)
    await crowd.run(lambda: len(book.ended) + len(book.cancelled) >= 60)
    events = await await_paid(pool.up.run()["database_url"], pool.events)
    book.check()
    happened = {type(event) for event in events}
    assert happened >= {types.Cancelled, types.Faulted, types.Received, types.Charged}
    async with pool.log() as log:
        await eventually(lambda: nothing_held(log), 60, "no hold any more")

    await _time_passes(pool, desk)


async def _time_passes(pool: Pool, desk: Desk) -> None:
    """A lease lapses, a request expires, a month begins, and maintenance ends what waits."""
    lapsing = await desk.queued(chat("lapse"))
    held = await desk.popped()
    await pool.pass_time(151)
    other = Desk(pool, "another desk")
    again = await other.popped()
    assert again["id"] != held["id"]
    await other.submitted(reply(again["id"], "lapse"))
    await desk.done(lapsing)
    expiring = await desk.queued(chat("expire"))
    async with pool.log() as log:
        opened = [e for e in await pool.events() if isinstance(e, types.AccountOpened)]
        user = next(event.user_id for event in opened if event.name == "client")
        given = await _given(pool)
        await change_account(log, user, Change(monthly_kudos=5 * KUDOS))
        for months in (1, 2):  # at once, and a month later
            await eventually(lambda: _so_many(pool, given + months), 60, "kudos of the month")  # noqa: B023
            await pool.pass_time(32 * 86_400 * (months == 1))
        await eventually(lambda: _ended(pool, types.Expired, expiring), 60, "its expiry")
        await change_account(log, user, Change(monthly_kudos=0))
        await known(pool.up.url, pool.owner, pool.client)
        waiting = await desk.queued(chat("maintenance"))
        await set_modes(log, limits_of(Settings()), maintenance=True)
        try:
            refused = await desk.client.call("POST", CHAT, chat("now"))
            assert (refused.status, refused.rc) == (400, "MaintenanceMode"), refused
            assert await _ended(pool, types.Cancelled, waiting)
        finally:
            await set_modes(log, limits_of(Settings()), maintenance=False)
    await serving(pool.up.url, pool.client, pool.keys, 60)


async def _ended(pool: Pool, how: type[types.Expired | types.Cancelled], request_id: str) -> bool:
    found = [event for event in await pool.events() if isinstance(event, how)]
    return request_id in {event.request_id for event in found}


async def _given(pool: Pool) -> int:
    return sum(isinstance(event, types.Granted) for event in await pool.events())


async def _so_many(pool: Pool, given: int) -> bool:
    return await _given(pool) == given


# whoever dies


async def test_others_take_over_from_processes_that_die(pool: Pool) -> None:
    """A projector, a settler, a janitor and an archiver at once; what they did is done once."""
    await known(pool.up.url, pool.owner, pool.client)
    book, load = Book(), Load(pool, f"over {time.monotonic()}")
    async with load.running(book):
        await eventually(lambda: len(book.ended) > 10, 60, "replies")
        killed = time.monotonic()
        for name in ("projector_status_a", "settler_a", "janitor_a", "archiver_a"):
            os.kill(pool.up.pid(name), signal.SIGKILL)
        await eventually(
            lambda: _moved_since(pool, killed, book), 60, "requests of every partition"
        )
        took = time.monotonic() - killed
    events = await await_paid(pool.up.run()["database_url"], pool.events)
    settled = time.monotonic() - killed
    print(f"every partition shown {took:.1f} s after the kill, and settled {settled:.1f} s")
    assert took < TAKEOVER_SECONDS
    load.check(book, events)


def _moved_since(pool: Pool, since: float, book: Book) -> bool:
    """Whether a request that was accepted after `since` has ended in each partition."""
    ended = {
        pool.keys.of(request_id)
        for request_id in book.ended
        if book.accepted_at[book.accepted[request_id]] > since
    }
    return len(ended) == PARTITIONS


async def _payers(pool: Pool, name: str) -> list[str]:
    """The key of an account in each partition."""
    found: dict[int, str] = {}
    while len(found) < PARTITIONS:
        ((user_id, key),) = await pool.up.accounts(f"payer {name}")
        found[pool.keys.of_account(user_id)] = key
    return [found[partition] for partition in pool.keys.all()]


class Load:
    """Clients and workers who never pause."""

    def __init__(self, pool: Pool, name: str, size: int = 6) -> None:
        self._pool = pool
        self._name = name
        self._size = size
        self._clients: list[Client] = []
        self._workers: list[Worker] = []

    @contextlib.asynccontextmanager
    async def running(self, book: Book) -> AsyncIterator[None]:
        """Under load; at the end, every request is followed to its own."""
        up, names = self._pool.up, [f"{self._name} {n}" for n in range(self._size)]
        # What somebody submits needs the partition of their account, too.
        payers = await _payers(self._pool, self._name)
        self._clients = [
            Client(up.url, payers[n % PARTITIONS], book, name) for n, name in enumerate(names)
        ]
        self._workers = [Worker(up.url, self._pool.owner, book, name, wait=2) for name in names]
        enough = asyncio.Event()
        async with working(self._workers):
            runs = [
                asyncio.ensure_future(each.run(enough.is_set, stream=n % 2 == 0))
                for n, each in enumerate(self._clients)
            ]
            try:
                yield
            finally:
                enough.set()
                await asyncio.gather(*runs)

    def longest_gap(self, partition: int, book: Book, since: float) -> float:
        """The longest that one who pays from an account of this partition waited for a request of
        its own to be accepted."""
        texts = [f"{self._name} {n} " for n in range(partition, self._size, PARTITIONS)]
        gaps = []
        for mine in texts:
            times = [at for text, at in book.accepted_at.items() if text.startswith(mine)]
            times = [since, *(at for at in sorted(times) if at > since), time.monotonic()]
            gaps += [after - before for before, after in itertools.pairwise(times)]
        return max(gaps)

    def slowest(self) -> float:
        """Seconds of the slowest answer beyond what was to be waited."""
        return max(each.slowest for each in (*self._clients, *self._workers))

    def check(self, book: Book, events: list[Event]) -> None:
        """What was acknowledged is there, once."""
        for each in self._clients:
            each.close()
        book.check()
        replies = Counter(e.generation_id for e in events if isinstance(e, types.SubmittedReply))
        assert set(replies.values()) == {1}
        assert {job.generation_id for job in book.stored()} <= set(replies)
        submitted = {e.request_id for e in events if isinstance(e, types.Submitted)}
        assert set(book.accepted) <= submitted
        assert not book.unanswered.keys() & SILENCES, book.unanswered


async def _fails_over(
    pool: Pool, nodes: Cluster, partition: int, book: Book, load: Load, hit: Callable[[], None]
) -> None:
    """The primary of a partition is hit: another takes its place, and all goes on by itself."""
    started, accepted = time.monotonic(), set(book.accepted)
    hit()
    await asyncio.to_thread(until, nodes.serves, 60, "another primary")
    promoted = time.monotonic()
    meanwhile = len(set(book.accepted) - accepted)
    await eventually(lambda: _moved_since(pool, promoted, book), 60, "every partition")
    gap = load.longest_gap(partition, book, started)
    print(
        f"another primary after {promoted - started:.1f} s, {meanwhile} requests accepted until "
        f"then; all partitions serve after {time.monotonic() - started:.1f} s; payers of this one "
        f"waited {gap:.1f} s; slowest answer {load.slowest():.2f} s; {dict(book.unanswered)}"
    )
    assert gap < GAP_SECONDS
    assert load.slowest() < SLOWEST_SECONDS
    if partition == 3:  # modes are in partition 0, and workers' owner and names elsewhere
        assert meanwhile > 0


def _refused(book: Book) -> int:
    """Calls of all kinds that Redis gave no answer to."""
    return sum(count for call, count in book.unanswered.items() if "503" in call)


async def test_a_primary_that_is_killed_under_load_costs_seconds(
    pool: Pool, nodes: Cluster, clustered: Site
) -> None:
    """It comes back as a replica of the one that took its place. (The long form: every primary in
    turn is killed, and made to hang.)"""
    await known(pool.up.url, pool.owner, pool.client)
    book, load = Book(), Load(pool, f"node {time.monotonic()}")
    hits = [(3, "kill")]
    hits += [(n, how) for _ in range(clustered.rounds) for n in (0, 1, 3) for how in HITS]
    async with load.running(book):
        for partition, how in hits:
            ended = len(book.ended)
            await eventually(lambda: len(book.ended) > ended + 10, 60, "replies")  # noqa: B023
            lost = nodes.primary_of(pool.keys.events(partition))
            refused = _refused(book)
            await _fails_over(pool, nodes, partition, book, load, getattr(lost, how))
            assert _refused(book) > refused
            lost.start() if how == "kill" else lost.resume()
            await asyncio.to_thread(until, lambda: _joined(nodes, lost), 60, "a replica")  # noqa: B023
    await _all_is_kept(pool, book, load)


async def _all_is_kept(pool: Pool, book: Book, load: Load) -> None:
    """What was acknowledged is there, and paid for, once; the read models are those of the log."""
    events = await await_paid(pool.up.run()["database_url"], pool.events)
    load.check(book, events)
    await eventually(lambda: caught_up(pool), 60, "the read models")
    for name in TABLES:
        live, rebuilt = await asyncio.to_thread(live_and_rebuilt, pool, name)
        assert differences(live, rebuilt) == []


@pytest.mark.soak
async def test_a_primary_that_hangs_for_any_time_costs_nothing_that_was_acknowledged(
    pool: Pool, nodes: Cluster
) -> None:
    """Long enough to lose its place, too short for that, and in between."""
    await known(pool.up.url, pool.owner, pool.client)
    book, load = Book(), Load(pool, f"hangs {time.monotonic()}")
    dice = random.Random(41)
    async with load.running(book):
        for _ in range(HANGS):
            ended, hung = len(book.ended), nodes.primary_of(f"{{{dice.randrange(PARTITIONS)}}}")
            hung.pause()
            await asyncio.sleep(dice.uniform(0.4, 3.0))
            hung.resume()
            await asyncio.to_thread(until, nodes.serves, 60, "every partition")
            await asyncio.to_thread(until, lambda: _replicated(nodes), 60, "every replica")
            await eventually(lambda: len(book.ended) > ended + 10, 60, "replies")  # noqa: B023
    print(f"{len(book.accepted)} accepted; {dict(book.unanswered)}")
    await _all_is_kept(pool, book, load)


@pytest.mark.soak
async def test_state_and_a_model_are_made_anew_over_all_nodes(pool: Pool) -> None:
    """The former with the service refused meanwhile, the latter with nobody noticing."""
    await known(pool.up.url, pool.owner, pool.client)
    assert (
        len((await asyncio.to_thread(pool.up.cli, "rebuild", "state")).splitlines()) >= PARTITIONS
    )
    await asyncio.to_thread(pool.up.cli, "rebuild", "status", "--beside")
    await serving(pool.up.url, pool.client, pool.keys, 60)


def _joined(nodes: Cluster, node: Node) -> bool:
    """Whether it is a replica that has what its primary has."""
    info = node.ask("INFO", "replication")
    return bool(info) and info["role"] == "slave" and info["master_link_status"] == "up"


def _replicated(nodes: Cluster) -> bool:
    """Whether every node is a primary, or a replica that has what its primary has."""
    return all(node.role() == "master" or _joined(nodes, node) for node in nodes.nodes)


@pytest.mark.soak
async def test_without_replicas_nothing_is_accepted_and_what_was_is_read(
    pool: Pool, nodes: Cluster
) -> None:
    await known(pool.up.url, pool.owner, pool.client)
    name = f"lone {time.monotonic()}"
    key = (await _payers(pool, name))[3]
    replicas = nodes.replicas_of(nodes.primary_of(pool.keys.events(3)))
    async with Http(pool.up.url, key) as client:
        queued = await client.call("POST", CHAT, chat(name))
        assert queued.status == 202, queued
        for node in replicas:
            node.kill()

        refused = await client.call("POST", CHAT, chat(name))
        read = await client.call("GET", status_of(queued.body["id"]))

        assert (refused.status, refused.rc) == (503, "RedisUnavailable"), refused
        assert refused.headers["retry-after"]
        assert max(refused.seconds, read.seconds) < SLOWEST_SECONDS
        assert (read.status, read.body["waiting"]) == (200, 1), read
        for node in replicas:
            node.start()
        await asyncio.to_thread(until, nodes.serves, 60, "replicas")
        assert (await client.call("DELETE", status_of(queued.body["id"]))).status == 200
    await serving(pool.up.url, pool.client, pool.keys, 60)
