"""Bodies of chat requests, valid but for what a test changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from handlers.chat import request
from handlers.chat.body import ChatRequest
from handlers.errors import Refused

USER = {"role": "user", "content": "x"}


def raw(**changed: Any) -> bytes:
    """The smallest valid body, changed. A change to Ellipsis leaves the key out."""
    body = {"model": "m", "messages": [USER]} | changed
    return json.dumps({key: value for key, value in body.items() if value is not ...}).encode()


def with_text(text: str) -> bytes:
    """The smallest valid body with something put in as it is."""
    return b'{"model":"m","messages":[{"role":"user","content":"x"}]' + text.encode() + b"}"


def read(**changed: Any) -> ChatRequest:
    """What the smallest valid body means, changed."""
    return request.read(raw(**changed))


def function(name: str, **more: Any) -> dict[str, Any]:
    """A tool definition."""
    return {"type": "function", "function": {"name": name} | more}


def choice(name: str) -> dict[str, Any]:
    """A tool choice that forces this function."""
    return {"type": "function", "function": {"name": name}}


def schema_format(schema: Any, **more: Any) -> dict[str, Any]:
    """A response format of this schema."""
    return {"type": "json_schema", "json_schema": {"name": "J", "schema": schema} | more}


def call(id_: str, name: str = "f", arguments: str = "{}") -> dict[str, Any]:
    """A call of the history."""
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def called(*ids: str) -> dict[str, Any]:
    """An assistant message with these calls."""
    return {"role": "assistant", "tool_calls": [call(id_) for id_ in ids]}


def answer(id_: str, content: Any = "18") -> dict[str, Any]:
    """A tool message."""
    return {"role": "tool", "tool_call_id": id_, "content": content}


def image(url: str = "https://x.test/a.png", **more: Any) -> dict[str, Any]:
    """An image part."""
    return {"type": "image_url", "image_url": {"url": url} | more}


def shows(*parts: Any) -> dict[str, Any]:
    """A user message of these parts."""
    return {"role": "user", "content": list(parts)}


def refusal(kind: type[Refused], body: bytes) -> Refused:
    """How the body is refused, as exactly this kind."""
    with pytest.raises(kind) as refused:
        request.read(body)
    assert type(refused.value) is kind
    return refused.value


def refused_at(kind: type[Refused], body: bytes) -> tuple[str, str]:
    """The path and the sentence that the body is refused with, as exactly this kind."""
    refused = refusal(kind, body)
    ((path, _),) = refused.extra["errors"].items()
    return path, refused.message
