"""What is served and how busy it is (spec, Chat model list; text_path_reference.md 8.2).

There are text models only: what the routes tell of images and of other work is none.

Decisions where the specification is open:

* A request that a worker is busy with counts for its model as one that waits does.
* A model that is asked for and served by nobody is listed if the reference knows it.
* Models come in the order of their names.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Literal

import falcon.asgi
import msgspec
from msgspec import UNSET, UnsetType

from api import query
from api.clock import Clock
from api.errors import JSON
from api.guard import MemoryGuard
from api.kept import Kept
from handlers.errors import BadRequest, UnknownChatModel
from handlers.reference import Reference
from projections import statistics, text_models
from projections.database import Database
from projections.statistics import Total
from projections.text_models import Chat, Load, Served

HIDDEN = "horde_special"
"""Names that hold this are not listed."""
STATES = ("all", "known", "custom")
TYPES = ("image", "text")
_MODEL_SECONDS = 1.0


class ShownModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served."""

    name: str
    type: Literal["text"] = "text"
    count: int
    """Threads of the workers that take text jobs with it."""
    performance: float
    """Tokens a second, of the last hour."""
    queued: int
    """Tokens that are waited for."""
    jobs: int
    eta: int
    """Seconds."""
    chat: Chat | UnsetType = UNSET
    """Where it was asked for: how the model is served for chat."""


class Performance(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is to do, and who does it."""

    queued_requests: int = 0
    queued_text_requests: int
    queued_tokens: int
    past_minute_tokens: int
    text_worker_count: int
    text_thread_count: int
    worker_count: int = 0
    thread_count: int = 0
    queued_megapixelsteps: float = 0.0
    past_minute_megapixelsteps: float = 0.0
    queued_forms: int = 0
    interrogator_count: int = 0
    interrogator_thread_count: int = 0


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """How the process that answers does."""

    message: Literal["OK", "OVERLOADED", "DOWN"]
    version: str
    queue: int
    """Queries that wait for a connection to the database."""
    threads: int
    active_count: int
    """What the process is busy with, or waits for."""
    db_connection: bool
    """Whether the database answered last."""


class Amount(msgspec.Struct, frozen=True):
    """Replies, and their tokens."""

    requests: int
    tokens: int


class TextTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What was generated, by window of time; a month is 30 days."""

    minute: Amount
    hour: Amount
    day: Amount
    month: Amount
    total: Amount


class TextModels(msgspec.Struct, frozen=True, kw_only=True):
    """Replies by window of time and model."""

    day: dict[str, int]
    month: dict[str, int]
    total: dict[str, int]


_encode = msgspec.json.Encoder().encode


class Census:
    """What is served and asked for, read once for all callers of a while."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        online_window: int,
        models_seconds: float,
        statistics_seconds: float,
    ) -> None:
        self._database = database
        self._clock = clock
        self._online_window = online_window
        self._models: Kept[None, dict[str, Served]] = Kept(models_seconds)
        self._model: Kept[None, dict[str, Served]] = Kept(min(models_seconds, _MODEL_SECONDS))
        self._load: Kept[None, tuple[Load, Total]] = Kept(models_seconds)
        self._totals: Kept[None, dict[str, Total]] = Kept(statistics_seconds)
        self._replies: Kept[None, dict[str, dict[str, int]]] = Kept(statistics_seconds)

    async def models(self) -> dict[str, Served]:
        """Every model. Raise DatabaseUnavailable, RedisUnavailable, as all of these."""
        return await self._models.get(None, self._read_models)

    async def model(self) -> dict[str, Served]:
        """The same, a second old at most."""
        return await self._model.get(None, self._read_models)

    async def load(self) -> tuple[Load, Total]:
        """What there is to do, and what was done in the last minute."""

        async def read() -> tuple[Load, Total]:
            now_ms = await self._clock.now_ms()
            load, totals = await asyncio.gather(
                text_models.load(self._database, now_ms=now_ms, since_ms=self._since(now_ms)),
                statistics.totals(self._database, now_ms=now_ms),
            )
            return load, totals["minute"]

        return await self._load.get(None, read)

    async def totals(self) -> dict[str, Total]:
        """What was generated, by window."""

        async def read() -> dict[str, Total]:
            return await statistics.totals(self._database, now_ms=await self._clock.now_ms())

        return await self._totals.get(None, read)

    async def replies(self) -> dict[str, dict[str, int]]:
        """Replies by window and model."""

        async def read() -> dict[str, dict[str, int]]:
            windows = TextModels.__struct_fields__
            now_ms = await self._clock.now_ms()
            return await statistics.replies_by_model(self._database, windows, now_ms=now_ms)

        return await self._replies.get(None, read)

    async def _read_models(self) -> dict[str, Served]:
        now_ms = await self._clock.now_ms()
        since_ms = self._since(now_ms)
        return await text_models.snapshot(self._database, now_ms=now_ms, since_ms=since_ms)

    def _since(self, now_ms: int) -> int:
        return now_ms - self._online_window * 1000


def _shown(model: Served, *, chat: bool) -> ShownModel:
    return ShownModel(
        name=model.name,
        count=model.threads,
        performance=round(model.speed, 1),
        queued=model.tokens,
        jobs=model.jobs,
        eta=model.eta,
        chat=model.chat if chat and model.chat is not None else UNSET,
    )


class ModelsRoute:
    """`GET /v2/status/models`."""

    def __init__(self, census: Census, reference: Reference) -> None:
        self._census = census
        self._reference = reference

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """List the models that are served; with `chat=true` those for chat, and how.

        `type` is image unless it says text, and there are no models of images.
        """
        kind = query.choice(req, "type", TYPES, "image")
        state = query.choice(req, "model_state", STATES, "all")
        least, most = query.number(req, "min_count"), query.number(req, "max_count")
        chat = query.flag(req, "chat")
        if chat and kind != "text":
            raise BadRequest("chat=true needs type=text.")
        found = (await self._census.models()).values() if kind == "text" else ()
        shown = [
            _shown(model, chat=chat)
            for model in found
            if (model.chat is not None or not chat)
            and self._listed(model, state)
            and (least is None or model.threads >= least)
            and (most is None or model.threads <= most)
        ]
        resp.content_type = JSON
        resp.data = _encode(shown)

    def _listed(self, model: Served, state: str) -> bool:
        known = self._reference.known(model.name)
        served = model.threads > 0 or model.chat is not None
        if HIDDEN in model.name or not (served or known):
            return False
        return state == "all" or known == (state == "known")


class ModelRoute:
    """`GET /v2/status/models/{model_name}`."""

    def __init__(self, census: Census, reference: Reference) -> None:
        self._census = census
        self._reference = reference

    async def on_get(
        self, _req: falcon.asgi.Request, resp: falcon.asgi.Response, model_name: str
    ) -> None:
        """Tell of one model that the reference knows, or that is special.

        A list of one: without anybody who serves it, it is empty.
        """
        if not self._reference.known(model_name) and HIDDEN not in model_name:
            raise UnknownChatModel
        model = (await self._census.model()).get(model_name)
        resp.content_type = JSON
        resp.data = _encode([] if model is None else [_shown(model, chat=False)])


class PerformanceRoute:
    """`GET /v2/status/performance`."""

    def __init__(self, census: Census) -> None:
        self._census = census

    async def on_get(self, _req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Tell how much there is to do, and how much was done in the last minute."""
        load, minute = await self._census.load()
        resp.content_type = JSON
        resp.data = _encode(
            Performance(
                queued_text_requests=load.jobs,
                queued_tokens=load.tokens,
                past_minute_tokens=minute.tokens,
                text_worker_count=load.workers,
                text_thread_count=load.threads,
            )
        )


class HeartbeatRoute:
    """`GET /v2/status/heartbeat`. Asks nobody: it tells what the process knows of itself."""

    def __init__(self, database: Database, guard: MemoryGuard, version: str) -> None:
        self._database = database
        self._guard = guard
        self._version = version

    async def on_get(self, _req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """200 always: how the process that answers does."""
        waiting, answers = self._database.waiting, self._database.answers
        message: Literal["OK", "OVERLOADED", "DOWN"] = "OK"
        if not answers:
            message = "DOWN"
        elif waiting or self._guard.full:
            message = "OVERLOADED"
        resp.content_type = JSON
        resp.data = _encode(
            Heartbeat(
                message=message,
                version=self._version,
                queue=waiting,
                threads=threading.active_count(),
                active_count=len(asyncio.all_tasks()),
                db_connection=answers,
            )
        )


class TotalsRoute:
    """`GET /v2/stats/text/totals`."""

    def __init__(self, census: Census) -> None:
        self._census = census

    async def on_get(self, _req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Tell how much was generated in the last minute, hour, day and month, and in all."""
        totals = await self._census.totals()
        resp.content_type = JSON
        resp.data = _encode(TextTotals(**{name: Amount(*total) for name, total in totals.items()}))


class TotalsByModel:
    """`GET /v2/stats/text/models`."""

    def __init__(self, census: Census) -> None:
        self._census = census

    async def on_get(self, _req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Tell how many replies each model gave in the last day and month, and in all."""
        replies = await self._census.replies()
        resp.content_type = JSON
        resp.data = _encode(TextModels(**replies))
