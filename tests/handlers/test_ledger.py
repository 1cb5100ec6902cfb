"""The check of the books is silent while they are right, and says which entry is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import psycopg
import pytest

from events import codec, types
from events.base import KUDOS, Event
from handlers.ledger import Difference, Report, check
from handlers.settle import Settler
from hordechat.process import Service
from projections import accounts, session
from projections.accounts import ACCOUNTS
from projections.log import Log as Reader
from projections.log import connect
from projections.projector import step
from tests.handlers.driver import Driver
from tests.handlers.pool import Pool, request_of
from tests.handlers.shelf import archive_in, put_away
from tests.spec import spec


class Books:
    """A pool with its ledger in Postgres."""

    def __init__(self, pool: Pool, redis_url: str, database_url: str) -> None:
        self.pool = pool
        self._redis_url = redis_url
        self._database_url = database_url

    def project(self, *partitions: int) -> None:
        """Bring Postgres up to date."""
        keys = self.pool.log.keys
        with (
            session.connect(self._database_url, "test") as connected,
            connect(self._redis_url) as client,
        ):
            for partition in partitions or keys.all():
                while step(ACCOUNTS, Reader(client, keys, partition), connected):
                    pass

    async def check(self) -> Report:
        return await check(self.pool.log, partial(accounts.stored, self._database_url))

    async def found(self) -> set[str]:
        """What is not right, each as `key field`."""
        return {f"{each.key} {each.field}" for each in (await self.check()).differences}

    def write(self, statement: str) -> None:
        with psycopg.connect(self._database_url, autocommit=True) as connection:
            assert connection.execute(statement.encode()).rowcount == 1

    async def append(self, event: Event, partition: int) -> None:
        """An event that no command would write."""
        flat = codec.encode(event)
        for name in type(event).SCRIPT:
            flat += [name, str(getattr(event, name))]
        await self.pool.log.read("XADD", self.pool.log.keys.events(partition), "*", *flat)


@pytest.fixture
def books(pool: Pool, request: pytest.FixtureRequest, migrated_url: str) -> Books:
    one = pool.log.keys.partitions == 1
    url = request.getfixturevalue("redis_url" if one else "cluster_url")
    return Books(pool, url, migrated_url)


async def one_job(pool: Pool) -> str:
    """A request that was held for, served and paid for, and one that still holds."""
    receipt = await pool.submitted(request_of(hold=5 * KUDOS))
    job = await pool.assign(receipt.request_id)
    assert job is not None
    await pool.reply(job.generation_id)
    await pool.submitted(request_of(hold=7 * KUDOS))
    await pool.settle()
    return job.generation_id


@spec("Kudos", 25)
@pytest.mark.parametrize(
    "commands", [150, pytest.param(4000, marks=pytest.mark.soak, id="4000, long")]
)
async def test_after_random_commands_log_redis_and_postgres_agree(
    books: Books, commands: int, request: pytest.FixtureRequest
) -> None:
    """Postgres is behind in some partitions, and so is the settler: neither is a difference."""
    seed = int(request.config.getoption("randomly_seed", 1) or 1)
    await Driver(books.pool, seed).run(commands // 2)
    books.project()
    await Driver(books.pool, seed + 1).run(commands // 2)

    behind = await books.check()
    books.project(0)
    await books.pool.settle()
    settled = await books.check()

    assert (behind.differences, settled.differences) == ([], [])
    for totals in settled.totals:
        assert totals.balances == -sum(totals.clearing.values())


async def test_it_finds_nothing_wrong_while_commands_go_on(books: Books) -> None:
    pool, stop = books.pool, asyncio.Event()

    async def go_on() -> None:
        driver = Driver(pool, 7)
        while not stop.is_set():
            await driver.run(5)
            await asyncio.to_thread(books.project)  # or answers would come too late

    running = asyncio.create_task(go_on())
    found = [await books.found() for _ in range(3)]
    stop.set()
    await running

    assert found == [set()] * 3


async def test_the_books_are_checked_over_archive_and_stream(
    books: Books, s3_server: Service
) -> None:
    pool = books.pool
    await Driver(pool, 11).run(60)
    await pool.settle()
    books.project()
    whole = await books.check()
    pool.log.archive = archive = archive_in(s3_server, pool.log.keys.partitions)
    for partition in pool.log.keys.all():
        await put_away(archive, pool.log, partition, pieces=4)
        if end := archive.end(partition):
            key = pool.log.keys.events(partition)
            await pool.log.read("XTRIM", key, "MINID", "=", str(end.last))

    assert await books.check() == whole
    assert whole.differences == []
    await change(books, pool.log.keys.account(pool.client.id), "kudos")
    assert await books.found() == {f"account {pool.client.id} kudos"}


Tamper = Callable[[Books, int], Awaitable[object]]


async def change(books: Books, key: str, field: str, by: int = 1) -> None:
    await books.pool.log.read("HINCRBY", key, field, by)


async def less_clearing(books: Books, client: int) -> None:
    keys = books.pool.log.keys
    await change(books, keys.clearing(keys.of_account(client)), "tax", -1)


async def hold_admission(books: Books, client: int) -> None:
    log = books.pool.log
    key = log.keys.account(client)
    fields = await books.pool.hash(key)
    (name,) = [field for field in fields if field.startswith("admission:")]
    await log.read("HDEL", key, name)


async def lose_account(books: Books, client: int) -> None:
    await books.pool.log.read("UNLINK", books.pool.log.keys.account(client))


async def move_position(books: Books, client: int) -> None:
    key = books.pool.log.keys.account(client)
    await books.pool.log.read("HSET", key, "position", "5-5")


async def lower_floor(books: Books, client: int) -> None:
    key = books.pool.log.keys.account(client)
    await books.pool.log.read("HSET", key, "floor", 10**9)


def on(field: str) -> Tamper:
    async def tamper(books: Books, client: int) -> None:
        await change(books, books.pool.log.keys.account(client), field)

    return tamper


def sql(statement: str) -> Tamper:
    async def tamper(books: Books, client: int) -> None:
        at = books.pool.log.keys.of_account(client)
        books.write(statement.format(client=client, at=at))

    return tamper


TAMPERED: dict[str, tuple[Tamper, set[str]]] = {
    "a balance in Redis": (on("kudos"), {"account {client} kudos"}),
    "an escrow in Redis": (on("escrow"), {"account {client} escrow"}),
    "what is held in Redis": (on("held"), {"account {client} held"}),
    "a hold without its admission": (hold_admission, {"account {client} held"}),
    "a floor": (lower_floor, {"account {client} floor"}),
    "a clearing": (less_clearing, {"partition {at} clearing tax"}),
    "an account that is gone": (lose_account, {"account {client} account"}),
    "a position of no event": (move_position, {"account {client} position"}),
    "a balance in Postgres": (
        sql(
            "UPDATE accounts SET kudos = kudos + 1, admin = admin + 1 WHERE user_id = {client}",
        ),
        {"account {client} kudos"},
    ),
    "an escrow in Postgres": (
        sql("UPDATE accounts SET escrow = escrow + 1 WHERE user_id = {client}"),
        {"account {client} escrow"},
    ),
    "a row of an account": (
        sql("DELETE FROM accounts WHERE user_id = {client}"),
        {"account {client} account"},
    ),
    "a line of the ledger": (
        sql("DELETE FROM ledger WHERE user_id = {client} AND cause = 'generation'"),
        {
            "account {client} lines",
            "account {client} sum of lines",
            "partition {at} clearing generation",
            "partition {at} clearing burn",
        },
    ),
    "a line's cause": (
        sql("UPDATE ledger SET cause = 'tax' WHERE user_id = {client} AND cause = 'generation'"),
        {"partition {at} clearing generation", "partition {at} clearing tax"},
    ),
    "a checkpoint": (
        sql(
            "UPDATE checkpoints SET position_seq = 77 WHERE name = 'accounts' AND partition = {at}"
        ),
        {"partition {at} checkpoint position"},
    ),
}


@spec("Kudos", 25)
@pytest.mark.parametrize("log", ["one partition"], indirect=True)
@pytest.mark.parametrize("what", TAMPERED)
async def test_it_names_what_was_altered_by_hand(books: Books, what: str) -> None:
    tamper, expected = TAMPERED[what]
    await one_job(books.pool)
    books.project()
    client = books.pool.client.id
    names = {"client": client, "at": books.pool.log.keys.of_account(client)}
    assert await books.found() == set()

    await tamper(books, client)

    assert await books.found() == {each.format(**names) for each in expected}


async def test_a_generation_that_was_charged_or_rewarded_twice_is_found(books: Books) -> None:
    generation = await one_job(books.pool)
    pool = books.pool
    for entry in await pool.events():
        event = entry.recorded.event
        if isinstance(event, types.Charged | types.Rewarded):
            await books.append(event, entry.recorded.partition)

    found = await books.found()

    assert f"account {pool.client.id} charge {generation}" in found
    assert f"account {pool.owner.id} reward {generation}" in found
    assert f"account {pool.client.id} position" not in found


async def test_a_generation_that_the_settler_passed_without_a_charge_is_found(
    books: Books,
) -> None:
    pool = books.pool
    request = await pool.submit()
    job = await pool.assign(request)
    assert job is not None
    await pool.reply(job.generation_id)
    source = pool.log.keys.of(request)
    target = pool.log.keys.of_account(pool.client.id)
    assert await books.found() == set()
    await Settler(pool.log, pool.limits, target).start()
    head = str(await pool.log.head(source))

    await books.append(types.Settled(source=source, source_position=head), target)

    assert f"account {pool.client.id} charge {job.generation_id}" in await books.found()


def test_a_difference_is_one_line() -> None:
    found = Difference("account 5", "kudos", {"log": 10_000, "Redis": None, "Postgres": -1})

    assert str(found) == "account 5 kudos: log 10000, Redis –, Postgres -1"
