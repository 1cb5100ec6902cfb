"""The description of the API, and a page that renders it, from files that an installed package has.

The page loads nothing from elsewhere, and runs no script but ours and the package's.
"""

from __future__ import annotations

import functools
from pathlib import Path

import falcon.asgi
from swagger_ui_bundle import swagger_ui_path

from api.errors import JSON

CSS = "text/css; charset=utf-8"
HTML = "text/html; charset=utf-8"
PNG = "image/png"
SCRIPT = "text/javascript; charset=utf-8"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The renderer draws its icons from data URLs. More it does not need, tried with all unfolded."""

PACKAGED = {
    "swagger-ui.css": CSS,
    "swagger-ui-bundle.js": SCRIPT,
    "favicon-32x32.png": PNG,
}
"""The package's files that the page uses; it has others, which nobody gets."""

PAGE = b"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>hordechat API</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="icon" type="image/png" href="docs/favicon-32x32.png">
</head>
<body>
<div id="page"><noscript>This page needs JavaScript. The document that it shows is
<a href="v2/openapi.json">v2/openapi.json</a>.</noscript></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/page.js"></script>
</body>
</html>
"""

START = b"""\
SwaggerUIBundle({url: "v2/openapi.json", dom_id: "#page", deepLinking: true, validatorUrl: null});
"""

_WEEK = "public, max-age=604800"
_SOON = "no-cache"


class OpenApi:
    """`GET /v2/openapi.json`."""

    def __init__(self, document: bytes) -> None:
        self._document = document

    async def on_get(self, _req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """This document."""
        _send(resp, JSON, self._document, _SOON)


class Docs:
    """`GET /docs`."""

    async def on_get(self, _req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """A page that shows this document, and tries what it describes."""
        resp.set_header("content-security-policy", POLICY)
        _send(resp, HTML, PAGE, _SOON)


class DocsFile:
    """`GET /docs/{name}`."""

    async def on_get(
        self, _req: falcon.asgi.Request, resp: falcon.asgi.Response, name: str
    ) -> None:
        """A file of that page."""
        if name == "page.js":
            _send(resp, SCRIPT, START, _SOON)
        elif name in PACKAGED:
            _send(resp, PACKAGED[name], _packaged(name), _WEEK)
        else:
            raise falcon.HTTPNotFound


def _send(resp: falcon.asgi.Response, content_type: str, data: bytes, kept: str) -> None:
    resp.content_type = content_type
    resp.set_header("cache-control", kept)
    resp.set_header("x-content-type-options", "nosniff")
    resp.data = data


@functools.cache
def _packaged(name: str) -> bytes:
    """Read once: a process sends the same bytes ever after. Names are those of `PACKAGED`."""
    return Path(swagger_ui_path, name).read_bytes()
