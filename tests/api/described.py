"""Holds every answer that a test meets to the OpenAPI document that the service serves.

So the document cannot leave out a status, an `rc` or a member that any test has seen, nor give a
body another shape.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import msgspec

from api.description.operations import OPERATIONS, described

Json = dict[str, Any]

_ANYWHERE = {(404, "NotFound"), (405, "MethodNotAllowed"), (500, "InternalServerError")}
"""What the document tells once, of all paths; and a bug, which a test may make on purpose."""


_WHOLE = {each.shown_path for each in OPERATIONS if each.path != each.shown_path}
"""Paths whose last parameter may hold slashes."""


@functools.cache
def document() -> Json:
    """The document, as clients read it."""
    read: Json = msgspec.json.decode(described())
    return read


def operations() -> Iterator[tuple[str, str, Json]]:
    """Every method (in lower case), path and operation."""
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


async def check(response: httpx.Response) -> None:
    """An event hook of httpx's client: fail for an answer that the document does not tell of."""
    await response.aread()
    request = response.request
    if request.method == "OPTIONS":
        return
    problem = undescribed(
        request.method, request.url.path, response.status_code, response.content, response.headers
    )
    assert problem is None, (
        f"{request.method} {request.url.path} answered {response.status_code} "
        f"{response.text[:500]!r}: {problem}. Say so in api/description/operations.py."
    )


def undescribed(
    method: str, path: str, status: int, body: bytes, headers: httpx.Headers
) -> str | None:
    """What the document does not tell of this answer; None where it tells all."""
    content_type = headers.get("content-type", "").partition(";")[0]
    told = msgspec.json.decode(body) if content_type == "application/json" else None
    if status >= 400 and isinstance(told, dict) and (status, told.get("rc")) in _ANYWHERE:
        return None
    template = template_of(path)
    operation = document()["paths"].get(template, {}).get(method.lower())
    if operation is None:
        return "no such operation is described"
    if str(status) not in operation["responses"]:
        return "this status is not described"
    validators = _validators(template, method.lower(), status)
    if content_type not in validators:
        return f"{content_type or 'no content type'} is not described"
    if told is not None:
        for error in validators[content_type].iter_errors(told):
            return f"{error.message} at {error.instance_path}"
    return None


def template_of(path: str) -> str:
    """The described path that this one is an instance of: one without parameters first."""
    paths = document()["paths"]
    if path in paths:
        return path
    for template in paths:
        segment = ".+" if template in _WHOLE else "[^/]+"
        if re.fullmatch(re.sub(r"\{\w+\}", segment, template), path):
            return str(template)
    return path


@functools.cache
def _validators(template: str, method: str, status: int) -> dict[str, Any]:
    """By content type: what the body has to be."""
    response = document()["paths"][template][method]["responses"][str(status)]
    if "$ref" in response:
        response = document()["components"]["responses"][response["$ref"].rpartition("/")[2]]
    components = {**document()["components"], "schemas": _closed()}
    return {
        content_type: jsonschema_rs.Draft202012Validator(
            {"components": components, **media["schema"]}
        )
        for content_type, media in response["content"].items()
    }


@functools.cache
def _closed() -> Json:
    """The schemas without room for what they do not name. Refusals are told of in parts."""
    return {
        name: schema
        if name == "Refusal" or "properties" not in schema
        else {"additionalProperties": False, **schema}
        for name, schema in document()["components"]["schemas"].items()
    }
