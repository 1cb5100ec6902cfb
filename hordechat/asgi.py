"""The ASGI app of a web process: it opens its parts when the server starts it, and closes them.

`hordechat.server` runs it under gunicorn. Any ASGI server can, if it leaves proxies' headers to us:
`uvicorn --no-proxy-headers --factory hordechat.asgi:create`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Any

import structlog
from redis.exceptions import RedisError

from api.app import create_app, create_starting_app
from api.disconnect import App, Receive, Scope, Send
from api.wait import Drain
from handlers.errors import RedisUnavailable
from handlers.log import Log
from hordechat import settings as settings_module
from hordechat import wiring
from hordechat.opening import Forgotten, WrongPartitions, open_log
from hordechat.settings import Settings
from lua.link import Unavailable

logger = structlog.get_logger()

_RETRY_SECONDS = 0.5


class Service:
    """One web process. Its `drain` ends every wait; `on_fatal` is called where it cannot serve."""

    def __init__(self, settings: Settings) -> None:
        self.drain = Drain()
        self.on_fatal: Callable[[], object] = lambda: None
        self._settings = settings
        self._starting = create_starting_app(wiring.node(settings))
        self._app: App | None = None
        self._life: asyncio.Task[None] | None = None
        self._ends = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or live through the server's life."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await (self._app or self._starting)(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()  # lifespan.startup
        opened = asyncio.Event()
        self._life = asyncio.create_task(self._live(opened))
        # With the servers up, nobody ever meets the starting app.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await opened.wait()
        await send({"type": "lifespan.startup.complete"})
        await receive()  # lifespan.shutdown
        self.drain.start()
        self._ends.set()
        await asyncio.gather(self._life, return_exceptions=True)
        await send({"type": "lifespan.shutdown.complete"})

    async def _live(self, opened: asyncio.Event) -> None:
        try:
            log = await self._open()
            if log is None:
                return
            parts = wiring.build(self._settings, log, self.drain)
            async with wiring.running(parts):
                self._app = create_app(parts)
                opened.set()
                await self._ends.wait()
        except Exception:  # whatever it is, this process serves no more
            logger.exception("cannot_serve")
            self._app = None
            self.on_fatal()
        finally:
            opened.set()

    async def _open(self) -> Log | None:
        """The log, once Redis answers and has what it held; None where the process ends before."""
        away = forgotten = False
        while not self._ends.is_set():
            try:
                return await open_log(self._settings)
            except WrongPartitions:
                raise
            except Forgotten as error:  # until it is rebuilt, every route answers 503
                if not forgotten:
                    logger.error("redis_forgot", reason=str(error))  # noqa: TRY400 - its sentence is all
                forgotten = True
            except (RedisUnavailable, Unavailable, RedisError, OSError) as error:
                if not away:
                    logger.warning("waits_for_redis", reason=str(error))
                away = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_SECONDS):
                    await self._ends.wait()
        return None


def create() -> Any:
    """The app, from the environment."""
    return Service(settings_module.load(os.environ))
