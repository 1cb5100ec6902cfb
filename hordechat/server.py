"""Serving HTTP: gunicorn's processes, each with uvicorn's loop, and how they end.

SIGTERM ends every wait at once, lets calls in flight finish, and closes what is open: the exit is
well inside gunicorn's grace, after which a worker would be killed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import sys
from types import FrameType
from typing import Any, ClassVar, cast

import gunicorn.app.base
import gunicorn.glogging
import structlog
import uvicorn
from gunicorn.arbiter import Arbiter
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn_worker import UvicornWorker

from hordechat import garbage
from hordechat.asgi import Service
from hordechat.settings import Settings

logger = structlog.get_logger()

BACKLOG = 2048
KEEP_ALIVE_SECONDS = 75
"""Above the 60 s for which proxies commonly keep idle connections: they close first."""
HEAD_BYTES = 65_536
HEAD_SECONDS = 30.0
UNREAD_SECONDS = 60.0
_KILL_MARGIN_SECONDS = 5
_PARENT_SECONDS = 0.5


class Protocol(HttpToolsProtocol):
    """uvicorn's, with the bounds that it lacks.

    * On the size and the time of a request's head, and of whatever comes without being part of a
      body: trailers, chunk extensions.
    * On the time until the first byte of an announced body: Falcon waits for that before it routes.
    * On the time that a client may leave an answer unread.

    Trailers are dropped: what a proxy says of a call, or strips off it, are headers. Nonsense is
    told only where nobody would take that for the answer to an earlier request.
    """

    _head_bytes: int | None = 0  # None: the head is complete
    _head_timer: asyncio.TimerHandle | None = None
    _barren_bytes = 0  # received since the last piece of a body, or the end of a message
    _body_due = False  # an announced body has not begun
    _ended = False  # a message did, in the data at hand
    _unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect a head."""
        super().connection_made(transport)
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing any more."""
        self._stop_timer()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head that does not end, or to nothing."""
        self._barren_bytes += len(data)
        self._ended = False
        super().data_received(data)
        if self._head_bytes is not None:
            # Where it began in the middle of the data nobody knows; there is more of it in the
            # next ones, or it is short.
            self._head_bytes += 0 if self._ended else len(data)
            if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("The request's head is too large.")
        elif self._barren_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.transport.abort()  # its answer may be under way: there is nothing to say
        # Most requests come whole, and cost no timer.
        if self._head_timer is None and (self._head_bytes or self._body_due):
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def on_message_begin(self) -> None:
        """Expect the rest of the head."""
        super().on_message_begin()
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer."""
        if self._head_bytes is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._head_bytes = None
        self._barren_bytes = 0
        self._body_due = True
        self._stop_timer()
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            self.send_400_response("This server speaks HTTP/1.1.")
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._come()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The whole request is there."""
        self._ended = True
        self._come()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, and end the connection."""
        latest = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        waits = latest is not None and not latest.more_body and not latest.response_complete
        if self.pipeline or waits:
            self.transport.close()
        else:
            super().send_400_response(msg)

    def pause_writing(self) -> None:
        """The client reads slower than we write."""
        super().pause_writing()
        self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """It caught up."""
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        super().resume_writing()

    def _come(self) -> None:
        self._barren_bytes = 0
        if self._body_due:
            self._body_due = False
            if self._head_timer is not None:
                self._stop_timer()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _late(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """uvicorn's, that tells the app at the signal, not after the last request has ended."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain, then to end.

        A signal handler: whatever runs is interrupted in the middle, so the loop does it later.
        """
        self._loop.call_soon_threadsafe(self._service.drain.start)
        super().handle_exit(sig, frame)


class Worker(UvicornWorker):  # type: ignore[misc]
    """A web process. It ends with its master, also where that was killed."""

    CONFIG_KWARGS: ClassVar[dict[str, Any]] = {
        "loop": "uvloop",
        "http": Protocol,
        "ws": "none",
        "lifespan": "on",
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,  # api.client reads them: it knows which proxies are believed
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Through the root logger, as JSON lines like everyone's.
        uvicorn_log = logging.getLogger("uvicorn.error")
        uvicorn_log.propagate = True
        uvicorn_log.setLevel(logging.WARNING)
        # Below gunicorn's own grace: past that it kills, and nothing would be closed.
        self.config.timeout_graceful_shutdown = max(
            1, self.cfg.graceful_timeout - _KILL_MARGIN_SECONDS
        )

    async def _serve(self) -> None:
        service: Service = self.wsgi
        self.config.app = service
        server = Server(self.config, service)
        service.on_fatal = lambda: server.handle_exit(signal.SIGTERM, None)
        garbage.settle()
        self._install_sigquit_handler()
        watch = asyncio.get_running_loop().create_task(self._end_with_parent(server))
        try:
            await server.serve(sockets=self.sockets)
        finally:
            watch.cancel()
        if not server.started:
            sys.exit(Arbiter.WORKER_BOOT_ERROR)

    async def _end_with_parent(self, server: Server) -> None:
        while os.getppid() == self.ppid:
            await asyncio.sleep(_PARENT_SECONDS)
        logger.warning("master_is_gone")
        server.handle_exit(signal.SIGTERM, None)


class Logger(gunicorn.glogging.Logger):  # type: ignore[misc]
    """gunicorn's records, through the root logger."""

    def setup(self, cfg: Any) -> None:
        """No handlers of its own."""
        self.cfg = cfg
        self.error_log.setLevel(logging.WARNING)
        self.error_log.propagate = True


class Web(gunicorn.app.base.BaseApplication):  # type: ignore[misc]
    """gunicorn, configured by us alone: no file, no arguments, no GUNICORN_CMD_ARGS."""

    def __init__(self, settings: Settings, options: dict[str, Any]) -> None:
        self._settings = settings
        self._options = options
        super().__init__()

    def load_config(self) -> None:
        """Take our options."""
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Service:
        """The app of one worker."""
        return Service(self._settings)


def serve(settings: Settings, *, host: str, port: int, workers: int) -> None:
    """Serve HTTP until SIGTERM or SIGINT."""
    bind = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    Web(
        settings,
        {
            "bind": bind,
            "workers": workers,
            "worker_class": Worker,
            "logger_class": Logger,
            "backlog": BACKLOG,
            "keepalive": KEEP_ALIVE_SECONDS,
            # A socket in the user's home, shared by all instances, that could stop any of them.
            "control_socket_disable": True,
            "graceful_timeout": math.ceil(settings.drain_seconds) + _KILL_MARGIN_SECONDS,
            "accesslog": None,
            "proc_name": "hordechat-web",
        },
    ).run()
