"""What is told of one operation: a route's responder, what it takes, and all that it may answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from api.description.examples import Examples
from api.errors import JSON
from handlers.errors import (
    BadRequest,
    InvalidAPIKey,
    OutOfMemory,
    Rebuilding,
    RedisUnavailable,
    Refused,
    RequestTimeout,
    RequestTooLarge,
    TooManyRequests,
)

Refusals = tuple[type[Refused], ...]

LIMITED: Refusals = (TooManyRequests,)
"""Of every route but those of health."""
BODY: Refusals = (BadRequest, RequestTimeout, RequestTooLarge)
"""Of a route that reads a body."""
KEY: Refusals = (BadRequest, InvalidAPIKey, RedisUnavailable)
"""Of a route that asks who is calling."""
COMMAND: Refusals = (RedisUnavailable, Rebuilding, OutOfMemory)
"""Of a route that appends to the log."""


class Link(msgspec.Struct, frozen=True):
    """What may be done next: its `id` names what the linked operation is asked about."""

    name: str
    responder: Callable[..., Any]
    """Of the linked operation."""
    body: Mapping[str, Any] = {}
    """An example of what it is sent beside the id."""


class Answer(msgspec.Struct, frozen=True):
    """One answer that is no refusal."""

    says: str
    body: Any = None
    """The type that is encoded; None for what is no JSON."""
    content_types: tuple[str, ...] = (JSON,)
    headers: tuple[str, ...] = ()
    """Names in `document.HEADERS`."""
    links: tuple[Link, ...] = ()


class NotFound(msgspec.Struct, frozen=True):
    """There is nothing of that name: what the router says of any unknown path."""

    message: str
    rc: Literal["NotFound"] = "NotFound"


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one route."""

    path: str
    """As the router has it."""
    responder: Callable[..., Any]
    """`on_get` and so on: its name tells the method, its docstring what the operation does."""
    tag: str
    key: bool = False
    """It needs the `apikey` header."""
    may_have_key: bool = False
    """It tells more to some who send it."""
    query: Mapping[str, Mapping[str, Any]] = {}
    """Parameters of the URL's query, none of them required: schemas by name."""
    headers: tuple[str, ...] = ()
    """Names in `document.PARAMETERS`: further headers that it reads."""
    body: Any = None
    """The type that its body is decoded into."""
    examples: Examples = {}
    """Of its body."""
    answers: Mapping[int, Answer]
    """By status."""
    refusals: Refusals = ()
    """In groups joined by `+`: the same one may come twice."""

    @property
    def shown_path(self) -> str:
        """As the document has it: without the router's converters."""
        return self.path.replace(":path}", "}")

    @property
    def name(self) -> str:
        """The `operationId`."""
        return name_of(self.responder)

    @property
    def method(self) -> str:
        """In lower case, as the document has it."""
        return self.responder.__name__.removeprefix("on_")


def name_of(responder: Callable[..., Any]) -> str:
    """How links speak of an operation."""
    return responder.__qualname__.replace(".on_", "_")
