"""The two ceilings: what the web stack and the event store do when they do nothing of ours.

`hello` answers a GET with a little JSON. `store` decodes a POST of 1 KB and runs one script of five
commands, an XADD among them, over the link that the service uses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import falcon
import falcon.asgi
import msgspec

from api.wait import Drain
from hordechat.server import BACKLOG, KEEP_ALIVE_SECONDS, Logger, Web, Worker
from hordechat.settings import Settings
from lua.link import Redis, connect

SCRIPT = """#!lua
local seen = tonumber(redis.call("HGET", KEYS[1], "seen") or "0")
redis.call("HINCRBY", KEYS[1], "seen", 1)
redis.call("HSET", KEYS[1], "state", "open", "id", ARGV[1])
redis.call("ZADD", KEYS[2], seen, ARGV[1])
return redis.call("XADD", KEYS[3], "MAXLEN", "~", 100000, "*",
  "type", "posted", "id", ARGV[1], "data", ARGV[2])
"""


class Posted(msgspec.Struct):
    """The body of a POST, much like a short chat request."""

    id: str
    model: str
    messages: list[dict[str, str]]
    max_tokens: int = 512
    temperature: float = 1.0


class Receipt(msgspec.Struct):
    """The answer to a POST."""

    id: str
    position: str


class Hello:
    """The least that a JSON route can do."""

    async def on_get(self, _req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Answer."""
        resp.data = b'{"hello":"world"}'
        resp.content_type = falcon.MEDIA_JSON


class Store:
    """One decode, one script, one encode."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._link: Redis
        self._sha = ""
        self._decode = msgspec.json.Decoder(Posted).decode
        self._encode = msgspec.json.Encoder().encode

    async def process_startup(self, _scope: dict[str, Any], _event: dict[str, Any]) -> None:
        """Connect and load the script."""
        self._link = await connect(self._url)
        self._sha = (await self._link.call("SCRIPT", "LOAD", SCRIPT)).decode()

    async def process_shutdown(self, _scope: dict[str, Any], _event: dict[str, Any]) -> None:
        """Disconnect."""
        await self._link.close()

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Take a body in."""
        body = self._decode(await req.bounded_stream.read())
        keys = (f"bench:{body.id}", "bench:due", "bench:events")
        data = self._encode(body.messages)
        position = await self._link.call("EVALSHA", self._sha, 3, *keys, body.id, data)
        resp.data = self._encode(Receipt(body.id, position.decode()))
        resp.content_type = falcon.MEDIA_JSON


def hello() -> falcon.asgi.App[Any, Any]:
    """Ceiling (a)."""
    app = falcon.asgi.App()
    app.add_route("/hello", Hello())
    return app


def store(redis_url: str) -> falcon.asgi.App[Any, Any]:
    """Ceiling (b)."""
    resource = Store(redis_url)
    app = falcon.asgi.App(middleware=cast(Any, [resource]))
    app.add_route("/store", resource)
    return app


class Bare:
    """What the service's own worker class runs: an app, and an event that begins its end."""

    def __init__(self, app: Any) -> None:
        self.drain = Drain()
        self.on_fatal: Callable[[], object] = lambda: None
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Hand it on; uvicorn asks nothing else."""
        await self._app(scope, receive, send)


class Ceiling(Web):
    """gunicorn as the service configures it, around a bare app."""

    def __init__(self, make: Callable[[], Any], port: int) -> None:
        self._make = make
        options = {
            "bind": f"127.0.0.1:{port}",
            "workers": 1,
            "worker_class": Worker,
            "logger_class": Logger,
            "backlog": BACKLOG,
            "keepalive": KEEP_ALIVE_SECONDS,
            "accesslog": None,
        }
        super().__init__(Settings(), options)

    def load(self) -> Any:
        """The app of one worker."""
        return Bare(self._make())


def main(name: str, port: str, redis_url: str = "") -> None:
    """Serve one of the two until SIGTERM."""
    Ceiling(hello if name == "hello" else lambda: store(redis_url), int(port)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
