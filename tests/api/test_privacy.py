"""What is kept of a person, where, and what an account's deletion takes: docs/privacy.md.

One person does all that one can do here, each thing with a word of its own. Then all that is stored
is searched for these words: as the person leaves it, once the account is deleted, and once what was
under way is over.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, MutableMapping
from typing import Any, Literal

import httpx
import psycopg
import pytest
from psycopg import sql

from handlers.accounts import digest_of, open_account
from handlers.janitor import Janitor
from handlers.log import Log
from handlers.profiles import Profile, set_profile
from handlers.replay import keys_of
from hordechat.process import Service
from tests.api.site import BODY, POP, SECRET, Site, opened
from tests.handlers.shelf import archive_in, put_away, stream_of
from tests.logged import logged

ADDRESS = "198.51.100.77"
OPERATION = "7d1fbe0a-93a8-4c1e-8d3e-5a4b6c7d8e9f"
WORDS = {
    "name": "Marked-Name",
    "contact": "marked-contact@mail.test",
    "comment": "marked-comment",
    "shared name": "Marked-Shared",
    "worker": "Marked-Worker",
    "info": "marked-info",
    "maintenance": "marked-maintenance",
    "message": "marked-message",
    "prompt": "marked-prompt",
    "reply": "marked-reply",
    "progress": "marked-progress",
    "address": ADDRESS,
    "operation": OPERATION,
    "agent": "marked-agent",
}
LOG, STATE, REDIS, POSTGRES = "log", "state", "beside", "postgres"
"""Where: the log and its archive, hot state, other keys of Redis, read models."""

Found = dict[str, set[str]]


def _kept(before: set[str], deleted: set[str], over: set[str]) -> Found:
    return {"as it is left": before, "deleted": deleted, "over": over}


WHERE: dict[str, Found] = {
    "name": _kept({LOG, STATE, REDIS, POSTGRES}, {LOG}, {LOG}),
    "contact": _kept({REDIS}, set(), set()),
    "comment": _kept({REDIS}, set(), set()),
    "shared name": _kept({LOG, STATE}, {LOG}, {LOG}),
    "worker": _kept({LOG, STATE, POSTGRES}, {LOG, POSTGRES}, {LOG}),
    "info": _kept({LOG, POSTGRES}, {LOG}, {LOG}),
    "maintenance": _kept({LOG, STATE, POSTGRES}, {LOG}, {LOG}),
    "message": _kept({REDIS}, set(), set()),
    "prompt": _kept({REDIS}, {REDIS}, set()),
    "reply": _kept({REDIS}, {REDIS}, set()),
    "progress": _kept({REDIS}, {REDIS}, {REDIS}),  # ends by itself, as a test below shows
    "address": _kept({REDIS}, set(), set()),
    "operation": _kept({LOG, STATE}, {LOG, STATE}, {LOG}),
    "agent": _kept({LOG, POSTGRES}, {LOG}, {LOG}),
    "key": _kept(set(), set(), set()),
    "key's HMAC": _kept({LOG, STATE}, {LOG}, {LOG}),
    "shared key": _kept({LOG, STATE, POSTGRES}, {LOG, STATE, POSTGRES}, {LOG, POSTGRES}),
}
"""Once the account is deleted a shared key is none any more: its id is a number like others."""


class Person:
    """Somebody who submits, serves, and says more than needed."""

    def __init__(
        self, site: Site, http: httpx.AsyncClient, key: str, user_id: int, database_url: str
    ) -> None:
        self.site, self.http, self.key, self.user_id = site, http, key, user_id
        self.database_url = database_url
        self.words = dict(WORDS)

    async def call(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        sent = {"apikey": self.key} | headers
        answer = await self.http.request(method, path, json=body, headers=sent)
        assert answer.is_success, answer.text
        return answer.json()

    async def live(self) -> None:
        """Leave every word."""
        site, words, call = self.site, self.words, self.call
        words["key"] = self.key
        await call("PUT", f"/v2/users/{self.user_id}", {"contact": words["contact"]})
        await set_profile(site.parts.log, self.user_id, Profile(None, words["comment"]))
        shared = await call("PUT", "/v2/sharedkeys", {"name": words["shared name"]})
        words["shared key"] = shared["id"]
        pop = {"name": words["worker"], "bridge_agent": f"{words['agent']}:1:x"}
        await self.pop(pop)
        worker = f"/v2/workers/{await self.worker_id()}"
        await call("PUT", worker, {"info": words["info"]})
        told = {"worker_id": worker.rsplit("/", 1)[1], "message": words["message"]}
        await call("POST", "/v2/workers/messages", told)
        await site.project()
        for shared_key in ("", words["shared key"]):
            await self.submit(shared_key)
            await site.project()
            job = await self.pop(pop)
            await self.post(job["id"])
        await self.submit("", horde={"operation_key": words["operation"]})
        paused = {"maintenance": True, "maintenance_msg": words["maintenance"]}
        await call("PUT", worker, paused)
        await site.settle()
        await site.project()

    async def submit(self, shared_key: str, **more: object) -> None:
        message = {"role": "user", "content": self.words["prompt"]}
        body = BODY | {"messages": [message], "stream": True, "max_tokens": 100} | more
        headers = {"apikey": shared_key} if shared_key else {}
        await self.call("POST", "/v2/generate/chat/async", body, **headers)

    async def pop(self, changed: dict[str, object]) -> Any:
        return await self.call("POST", "/v2/generate/text/pop", POP | changed)

    async def post(self, generation_id: str) -> None:
        delta = {"id": generation_id, "seq": 1, "delta": {"content": self.words["progress"]}}
        await self.call("POST", "/v2/generate/text/progress", delta)
        message = {"role": "assistant", "content": self.words["reply"]}
        reply = {"id": generation_id, "message": message, "finish_reason": "stop"}
        await self.call("POST", "/v2/generate/text/submit", reply | {"model_id": "test/model"})

    async def leave(self) -> None:
        """Delete the account."""
        await self.call("DELETE", f"/v2/users/{self.user_id}")
        await self.site.settle()
        await self.site.project()

    async def pass_a_day(self) -> None:
        """Let all that is under way come to its end."""
        parts = self.site.parts
        await parts.log.read("HINCRBY", parts.log.keys.control(0), "clock_ms", 86_400_000)
        await Janitor(parts.log, parts.limits, 0).sweep()
        await self.site.settle()
        await self.site.project()

    async def worker_id(self) -> str:
        await self.site.project()
        return str((await self.call("GET", f"/v2/users/{self.user_id}"))["worker_ids"][0])


@pytest.fixture
async def person(
    redis_url: str, migrated_url: str, lines: list[MutableMapping[str, Any]]
) -> AsyncIterator[Person]:
    async with opened(redis_url, migrated_url, served=False) as site:
        user_id, key = await open_account(site.parts.log, SECRET, WORDS["name"], kudos=10**9)
        transport = httpx.ASGITransport(app=site.app, client=(ADDRESS, 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            yield Person(site, http, key, user_id, migrated_url)


@pytest.fixture
def lines() -> Iterator[list[MutableMapping[str, Any]]]:
    """All that is logged."""
    ours = ("handlers", "api", "projections", "hordechat", "lua", "archive")
    modules = [m for name, m in sys.modules.items() if name.split(".")[0] in ours]
    with logged(*(m.logger for m in modules if hasattr(m, "logger"))) as told:
        yield told


async def whereabouts(person: Person) -> Found:
    """Where each word is stored, and the HMAC of the API key."""
    log, found = person.site.parts.log, {LOG: "", STATE: "", REDIS: "", POSTGRES: ""}
    found[LOG] = repr([each.fields for each in await stream_of(log, 0)])
    for where, kinds in ((STATE, ("state",)), (REDIS, ("ephemeral", "durable"))):
        for key in await keys_of(log, 0, *kinds):
            if key != log.keys.events(0):
                found[where] += f"{key} {await value_of(log, key)!r}\n"
    found[POSTGRES] = rows_of(person.database_url)
    words = person.words | {"key's HMAC": digest_of(SECRET, person.key)}
    return {
        what: {where for where, text in found.items() if word in text}
        for what, word in words.items()
    }


async def value_of(log: Log, key: str) -> Any:
    match (await log.read("TYPE", key)).decode():
        case "hash":
            return await log.read("HGETALL", key)
        case "zset":
            return await log.read("ZRANGE", key, 0, -1)
        case "set":
            return await log.read("SMEMBERS", key)
        case "list":
            return await log.read("LRANGE", key, 0, -1)
        case "stream":
            return await log.read("XRANGE", key, "-", "+")
        case _:
            return await log.read("GET", key)


def rows_of(database_url: str) -> str:
    with psycopg.connect(database_url) as connection:
        tables = connection.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r'"
            " AND relnamespace = 'public'::regnamespace"
        ).fetchall()
        queries = [sql.SQL("SELECT t::text FROM {} t").format(sql.Identifier(t)) for (t,) in tables]
        return "\n".join(row for query in queries for (row,) in connection.execute(query))


@pytest.mark.parametrize("moment", ["as it is left", "deleted", "over"])
async def test_words_are_where_the_page_says(
    person: Person, moment: Literal["as it is left", "deleted", "over"]
) -> None:
    await person.live()
    if moment != "as it is left":
        await person.leave()
    if moment == "over":
        await person.pass_a_day()

    found = await whereabouts(person)

    assert found == {what: kept[moment] for what, kept in WHERE.items()}


async def test_what_stays_beside_the_log_ends_by_itself(person: Person) -> None:
    await person.live()
    await person.leave()
    await person.pass_a_day()
    log = person.site.parts.log

    left = [
        key
        for key in await keys_of(log, 0, "ephemeral", "durable")
        if WORDS["progress"] in repr(await value_of(log, key))
    ]

    ends = [await log.read("TTL", key) for key in left if key != log.keys.events(0)]
    assert len(ends) == 2
    assert all(0 < seconds <= 86_400 for seconds in ends)


async def test_the_archive_holds_of_a_person_what_the_log_holds(
    person: Person, s3_server: Service
) -> None:
    await person.live()
    await person.leave()
    log, archive = person.site.parts.log, archive_in(s3_server, 1)
    await put_away(archive, log, 0)

    archived = repr([each.fields for page in archive.read(0) for each in page])

    words = person.words
    held = {what for what, word in words.items() if word in archived}
    assert held == {what for what in words if LOG in WHERE[what]["deleted"]}


async def test_no_word_is_logged(person: Person, lines: list[MutableMapping[str, Any]]) -> None:
    await person.live()
    await person.leave()
    await person.pass_a_day()

    told = repr(lines)

    assert "account_deleted" in told
    assert [what for what, word in person.words.items() if word in told] == []


async def test_only_what_is_its_own_goes_with_an_account(person: Person) -> None:
    site = person.site
    await person.live()
    answer = await site.pop(name="others")
    assert answer.is_success
    await person.leave()

    workers = [
        (await site.parts.log.read("HGET", key, "name")).decode()
        for key in await keys_of(site.parts.log, 0, "state")
        if ":worker:" in key
    ]

    assert workers == ["others"]
