"""The whole API over real servers, as short calls of a client and a worker."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from api.app import Parts, create_app
from api.patience import PATIENCE, Patience
from events.keys import Keys
from handlers.accounts import ANONYMOUS_KEY, open_account, open_anonymous
from handlers.fetch.fetcher import Fetcher
from handlers.log import Log as HandledLog
from handlers.replay import keys_of, read_log
from handlers.settle import Settler
from hordechat import wiring
from hordechat.opening import open_log
from hordechat.settings import Settings
from projections import log, session
from projections.accounts import ACCOUNTS
from projections.eligibility import ELIGIBILITY
from projections.follow import SETTLER
from projections.log import Log
from projections.projection import Projected
from projections.projector import Projector, channel
from projections.statistics import STATISTICS
from projections.status import STATUS
from tests.api import described

MODEL = "test/model"
SECRET = "a secret of the tests"
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
POP: dict[str, Any] = {
    "name": "w",
    "models": [MODEL],
    "chat_jobs": True,
    "model_id": MODEL,
    "chat_features": ["prompt_overflow_refused"],
    "chat_limits": {"max_context_length": 8192, "max_length": 2048},
}
LENIENT = Patience(*[20.0] * len(Patience._fields))
"""For sites whose read models and settler follow by themselves: on a busy machine they may take
their time. Where nothing follows, whoever is told so would wait for all of it."""
ANSWERED: dict[str, Any] = {"redis_timeout_seconds": 20.0, "database_timeout_seconds": 20.0}
"""Servers that are there answer, on a busy machine too."""
UNLIMITED: dict[str, Any] = {
    "rate_limits_enabled": False,
    "workers_per_user": 100_000,
    "worker_details_cache_seconds": 0,
    "models_cache_seconds": 0,
    "statistics_cache_seconds": 0,
}
"""Settings of a site whose tests neither wait nor are held back."""
MESSAGE = {"role": "assistant", "content": "hello"}


class Projecting:
    """All projections of every partition, stepped by hand."""

    def __init__(self, redis_url: str, database_url: str, partitions: int) -> None:
        self._stack = contextlib.ExitStack()
        self._stepping = threading.Lock()
        client = self._stack.enter_context(log.connect(redis_url))
        keys = Keys(partitions)
        self._steps = []
        for projection in (STATUS, ELIGIBILITY, STATISTICS, ACCOUNTS):
            for partition in keys.all():
                connected = self._stack.enter_context(session.connect(database_url, "test"))
                projector = Projector(projection, Log(client, keys, partition), connected)
                projector.resume()
                self._steps.append(projector)

    def step(self) -> None:
        """Catch up with the log. One at a time: what was cancelled may still be at it."""
        with self._stepping:
            for projector in self._steps:
                while projector.step():
                    pass
                if projector.unwritten:
                    projector.rest()

    def close(self) -> None:
        """Let go."""
        self._stack.close()


@dataclass
class Site:
    """An app, its parts, and who calls it."""

    app: Any
    parts: Parts
    http: httpx.AsyncClient
    client_key: str
    owner_key: str
    projecting: Projecting
    anonymous: str = ANONYMOUS_KEY
    follows: bool = False
    """Whether the read models follow by themselves just now."""

    async def project(self) -> None:
        """Let the read models catch up with the log, and the process hear of it."""
        await asyncio.to_thread(self.projecting.step)
        for partition in self.parts.log.keys.all():
            head = await self.parts.log.head(partition)
            for name in ("status", "eligibility"):
                assert await self.parts.follower.reached(name, partition, head, 60.0)

    async def settle(self) -> None:
        """Let the settler carry over all that the logs hold, and the process hear of it."""
        log_ = self.parts.log
        stream = HandledLog(log_.redis, log_.keys)  # the store that has the archive may be away
        for _ in log_.keys.all():  # what it appends may have effects elsewhere
            for partition in log_.keys.all():
                settler = Settler(log_, self.parts.limits, partition)
                async for page in read_log(stream, partition, await settler.start()):
                    await settler.settle([entry.recorded for entry in page])
        for partition in log_.keys.all():
            head = await log_.head(partition)
            said = msgspec.json.encode(Projected(position=str(head)))
            while not await self.parts.follower.reached(SETTLER, partition, head, 0.1):
                await log_.read("PUBLISH", channel(SETTLER, partition), said)

    @contextlib.asynccontextmanager
    async def projected(self) -> AsyncIterator[None]:
        """Read models that follow by themselves."""

        async def follow() -> None:
            while True:
                await asyncio.to_thread(self.projecting.step)
                await asyncio.sleep(0.002)

        following = asyncio.create_task(follow())
        self.follows = True
        try:
            yield
        finally:
            self.follows = False
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    # as the client

    async def submit(self, key: str | None = None, **changed: Any) -> httpx.Response:
        """Queue a request."""
        body = BODY | changed
        return await self.post("/v2/generate/chat/async", body, key or self.client_key)

    async def queued(self, **changed: Any) -> str:
        """Queue a request that is accepted; return its id."""
        answer = await self.submit(**changed)
        if answer.status_code == 503 and answer.json()["rc"] == "ReadModelBehind":
            await self.project()  # on a busy machine, what it knew was too old
            answer = await self.submit(**changed)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    async def status(self, request_id: str, wait: int | None = None) -> httpx.Response:
        """Its status."""
        return await self.read(f"/v2/generate/chat/status/{request_id}", wait)

    async def read(self, path: str, wait: int | None = None) -> httpx.Response:
        """A status of either family; asked for again while a model that follows is behind: on a
        busy machine it may be for longer than a call waits."""
        headers = {} if wait is None else {"prefer": f"wait={wait}"}
        async with asyncio.timeout(60 + (wait or 0)):
            while True:
                answer = await self.http.get(path, headers=headers)
                behind = answer.status_code == 503 and answer.json()["rc"] == "ReadModelBehind"
                if not (behind and self.follows):
                    return answer

    async def cancel(self, request_id: str) -> httpx.Response:
        """Cancel it."""
        return await self.http.delete(f"/v2/generate/chat/status/{request_id}")

    # as the worker

    async def pop(
        self, key: str | None = None, wait: int | None = None, **changed: Any
    ) -> httpx.Response:
        """Ask for a job."""
        headers = {} if wait is None else {"prefer": f"wait={wait}"}
        path = "/v2/generate/text/pop"
        return await self.post(path, POP | changed, key or self.owner_key, headers)

    async def popped(self, **changed: Any) -> dict[str, Any]:
        """Ask for a job and get one."""
        answer = await self.pop(**changed)
        assert answer.status_code == 200, answer.text
        assert answer.json()["id"], answer.text
        return dict(answer.json())

    async def reply(
        self, generation_id: str, key: str | None = None, **changed: Any
    ) -> httpx.Response:
        """Submit a job's reply."""
        body = {
            "id": generation_id,
            "message": MESSAGE,
            "finish_reason": "stop",
            "model_id": MODEL,
        }
        given = {name: value for name, value in (body | changed).items() if value is not ...}
        return await self.post("/v2/generate/text/submit", given, key or self.owner_key)

    async def progress(
        self, generation_id: str, seq: int, content: str, key: str | None = None
    ) -> httpx.Response:
        """Post what was generated so far."""
        body = {"id": generation_id, "seq": seq, "delta": {"content": content}}
        return await self.post("/v2/generate/text/progress", body, key or self.owner_key)

    # as anyone

    async def post(
        self,
        path: str,
        body: Any,
        key: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Post JSON, or bytes as they are."""
        sent = dict(headers or {})
        if key is not None:
            sent["apikey"] = key
        if isinstance(body, bytes):
            return await self.http.post(path, content=body, headers=sent)
        return await self.http.post(path, json=body, headers=sent)

    async def state(self) -> dict[str, Any]:
        """All that is stored in Redis, but for rate limits: what a refusal must not touch."""
        found: dict[str, Any] = {}
        for partition in self.parts.log.keys.all():
            for key in await keys_of(self.parts.log, partition, "state", "ephemeral", "durable"):
                if "horde:limit:" not in key:
                    found[key] = await self.parts.log.read("DUMP", key)
        return found

    async def log_length(self) -> int:
        """How many events there are."""
        keys = self.parts.log.keys
        streams = [keys.events(partition) for partition in keys.all()]
        return sum([int(await self.parts.log.read("XLEN", stream)) for stream in streams])


@contextlib.asynccontextmanager
async def opened(
    redis_url: str,
    database_url: str,
    *,
    around: tuple[str, str] | None = None,
    served: bool = True,
    fetcher: Fetcher | None = None,
    patience: Patience = PATIENCE,
    **changed: Any,
) -> AsyncIterator[Site]:
    """A site over these servers, and unless not `served` a worker that showed itself once.

    `around` names where projections find the servers, if not there; `fetcher` fetches images in
    place of one that goes to public addresses. Whoever takes servers away says how long calls wait
    for them, if not as in life.
    """
    answered = ANSWERED if around is None else {}
    settings = Settings(
        redis_url=redis_url,
        database_url=database_url,
        secret=SECRET,
        test=True,
        **UNLIMITED | answered | changed,
    )
    log_ = await open_log(settings)
    await open_anonymous(log_)
    _, client_key = await open_account(log_, SECRET, "client", kudos=1_000_000_000)
    _, owner_key = await open_account(log_, SECRET, "owner")
    parts = wiring.build(settings, log_, fetcher=fetcher, patience=patience)
    app = create_app(parts)
    with contextlib.closing(
        Projecting(*(around or (redis_url, database_url)), settings.partitions)
    ) as projecting:
        async with wiring.running(parts):
            transport = httpx.ASGITransport(app=app)
            hooks = {"response": [described.check]}
            async with httpx.AsyncClient(
                transport=transport, base_url="http://test", event_hooks=hooks
            ) as http:
                site = Site(app, parts, http, client_key, owner_key, projecting)
                if served:
                    await site.pop()
                await site.project()
                yield site
