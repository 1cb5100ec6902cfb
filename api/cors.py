"""What stands on every answer of the native routes: who may read it in a browser, and which node
gave it (text_path_reference.md 1.1).

An ASGI wrapper, since errors, 404s and 429s need the headers as much. It answers preflights by
itself, for any path: they are neither limited nor authenticated, and the call that follows is told
what is wrong with its path.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from api.disconnect import App, Receive, Scope, Send

METHODS = "POST, GET, OPTIONS, PUT, DELETE, PATCH"
SENT = (
    "apikey, Client-Agent, X-Fields, X-Forwarded-For, Proxied-For, Proxy-Authorization, "
    "Content-Type, Prefer, Idempotency-Key"
)
READ = (
    "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, Retry-After, "
    "Preference-Applied, Horde-Node"
)
PREFLIGHT_SECONDS = 7200
"""How long a browser may keep the answer. None keeps it longer than a day, some only this long."""

_ASKS = b"access-control-request-method"


class Cors:
    """Puts the headers on every answer of `app`. `node`: `<host>:<port>:<version>`."""

    def __init__(self, app: App, *, node: str) -> None:
        self._app = app
        self._headers = [
            (b"access-control-allow-origin", b"*"),
            (b"access-control-allow-methods", METHODS.encode()),
            (b"access-control-allow-headers", SENT.encode()),
            (b"access-control-expose-headers", READ.encode()),
            (b"horde-node", node.encode("ascii", "replace")),
        ]
        self._preflight = {
            "type": "http.response.start",
            "status": 204,
            "headers": [
                *self._headers,
                (b"access-control-max-age", str(PREFLIGHT_SECONDS).encode()),
            ],
        }

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer a preflight; let `app` answer anything else.

        Neither this nor `headed` is a coroutine of its own: every message of every answer passes.
        """
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        if scope["method"] == "OPTIONS" and any(name == _ASKS for name, _ in scope["headers"]):
            return self._allow(send)
        headers = self._headers

        def headed(message: dict[str, Any]) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *headers]
            return send(message)

        return self._app(scope, receive, headed)

    async def _allow(self, send: Send) -> None:
        await send(self._preflight)
        await send({"type": "http.response.body", "body": b""})
