"""The OpenAPI 3.1 document: operations in, JSON out.

Schemas are msgspec's own of the structs that decode and encode; statuses are those of `api.errors`;
sentences are docstrings. What is written here is only what none of these can say.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

import msgspec

from api.description.operation import Answer, Link, Operation, name_of
from api.errors import JSON, STATUSES
from handlers.errors import ChatProgressOutOfSequence, NoEligibleWorker, Refused

Json = dict[str, Any]
Held = Mapping[tuple[type[msgspec.Struct], str], tuple[Any, ...]]
"""By struct and field: what stands in a field that is kept as raw JSON, one of these types."""

INTRODUCTION = """\
A job broker for chat models. Clients queue requests, workers pull jobs, stream and submit replies.

**Refusals.** Every answer of 400 and above is `{"message": …, "rc": …}`. Go by `rc`: it is stable,
the message is for people. Where a document was refused, `errors` names the paths and the reasons.
Besides what each operation lists, a path that is none of these is 404 `NotFound`, and a method that
a path does not have is 405 `MethodNotAllowed`. A 503 changed nothing, or is undone: send the same
again after `Retry-After`.

**Keys.** `apikey` is the key of an account; `0000000000` is the anonymous one.

**Limits.** All routes but those of health are limited, by address or by key; the headers
`X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` tell how far.

**Browsers.** Any origin may call; every path answers preflights. `Horde-Node` names who answered.
"""

PARAMETERS: Mapping[str, Json] = {
    "Client-Agent": {
        "description": "Who calls, as `name:version:contact`. Stored with the request.",
        "schema": {"type": "string", "default": "unknown:0:unknown"},
    },
    "Idempotency-Key": {
        "description": "A name for this operation, 1 to 255 characters that can be printed: sent"
        " again with it, it is done once.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    },
    "Prefer": {
        "description": "`wait=N` holds the answer back until there is something to tell, for up to"
        " N seconds (RFC 7240). What is not understood is ignored.",
        "schema": {"type": "string"},
        "example": "wait=5",
    },
    "Proxied-For": {
        "description": "The address that a service calls for. Counts beside a known passkey only.",
        "schema": {"type": "string"},
    },
    "Proxy-Authorization": {
        "description": "The passkey of a service that calls for others.",
        "schema": {"type": "string"},
    },
}

HEADERS: Mapping[str, Json] = {
    "Retry-After": {
        "description": "Seconds after which to ask again, where time helps.",
        "schema": {"type": "string", "pattern": "^[0-9]+$"},
    },
    "Preference-Applied": {
        "description": "The `wait` that was honoured.",
        "schema": {"type": "string", "pattern": "^wait=[0-9]+$"},
    },
}

REFUSAL: Json = {
    "type": "object",
    "description": "Why nothing was done.",
    "properties": {
        "message": {"type": "string", "description": "For people."},
        "rc": {"type": "string", "description": "For programs."},
        "errors": {
            "type": "object",
            "description": "Reasons by path, where a document or a header was refused.",
            "additionalProperties": {"type": "string"},
        },
    },
    "required": ["message", "rc"],
}

BESIDE: Mapping[type[Refused], Json] = {
    ChatProgressOutOfSequence: {
        "expected_seq": {"type": "integer", "description": "The `seq` of the next post."}
    },
    NoEligibleWorker: {
        "impossible_reason": {
            "type": "object",
            "description": "What no online worker that serves the model declares, where that is "
            "the cause: as a status tells it.",
            "properties": {
                "kind": {"const": "declaration_gap"},
                "missing_declarations": {"type": "array", "items": {"type": "string"}},
                "exceeded_limits": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["kind", "missing_declarations", "exceeded_limits"],
        }
    },
}
"""What a refusal has beside its message and code."""

_REF = "#/components/{kind}/{name}"
_SOURCE = re.compile(r" \((?:spec\b[^()]*|(?:text_path_reference\.md )?\d+(?:\.\d+)+)\)")
"""Where a docstring says which part of the specification it follows: of no use to who calls."""


def document(operations: Sequence[Operation], held: Held) -> Json:
    """The document of these operations."""
    schemas = _Schemas(operations, held)
    shared: Json = {}
    paths: defaultdict[str, Json] = defaultdict(dict)
    for each in operations:
        paths[each.shown_path][each.method] = _operation(each, schemas, shared)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "hordechat",
            "version": version("hordechat"),
            "description": INTRODUCTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": tag} for tag in dict.fromkeys(each.tag for each in operations)],
        "paths": paths,
        "components": {
            "schemas": {"Refusal": REFUSAL, **schemas.components},
            "responses": shared,
            "parameters": {
                name: {"name": name, "in": "header", **told} for name, told in PARAMETERS.items()
            },
            "headers": dict(HEADERS),
            "securitySchemes": {
                "apikey": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "apikey",
                    "description": "The key of an account.",
                }
            },
        },
    }


def _operation(each: Operation, schemas: _Schemas, shared: Json) -> Json:
    summary, _, description = _paragraphs(each.responder.__doc__).partition("\n\n")
    told: Json = {
        "operationId": each.name,
        "tags": [each.tag],
        "summary": summary.replace("`", ""),  # which is plain text, unlike a description
    }
    if description:
        told["description"] = description
    parameters = [_in_path(name) for name in _named_in(each.shown_path)]
    parameters += [
        {"name": name, "in": "query", "schema": dict(each.query[name])} for name in each.query
    ]
    parameters += [_ref("parameters", name) for name in each.headers]
    if parameters:
        told["parameters"] = parameters
    if each.body is not None:
        content = _content(schemas.of(each.body))
        if each.examples:
            content["application/json"]["examples"] = {
                name: {"value": body} for name, body in each.examples.items()
            }
        told["requestBody"] = {"required": True, "content": content}
    told["responses"] = {
        str(status): response
        for status, response in sorted(
            [(status, _answer(answer, schemas)) for status, answer in each.answers.items()]
            + _refusals(each.refusals, shared)
        )
    }
    if each.key:
        told["security"] = [{"apikey": []}]
    elif each.may_have_key:
        told["security"] = [{}, {"apikey": []}]
    return told


def _named_in(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def _in_path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _answer(answer: Answer, schemas: _Schemas) -> Json:
    told: Json = {"description": answer.says}
    if answer.headers:
        told["headers"] = {name: _ref("headers", name) for name in answer.headers}
    schema = {"type": "string"} if answer.body is None else schemas.of(answer.body)
    told["content"] = _content(schema, *answer.content_types)
    if answer.links:
        told["links"] = {link.name: _link(link) for link in answer.links}
    return told


def _link(link: Link) -> Json:
    """By the answer's id: it goes into the path, or into the body."""
    given = "$response.body#/id"
    told: Json = {"operationId": name_of(link.responder)}
    if link.responder.__name__ == "on_post":
        return {**told, "requestBody": {**link.body, "id": given}}
    return {**told, "parameters": {"request_id": given}}


def _refusals(kinds: Iterable[type[Refused]], shared: Json) -> list[tuple[int, Json]]:
    """One response a status. A refusal that is alone under its status is the same everywhere, so it
    is written once."""
    by_status: defaultdict[int, dict[str, type[Refused]]] = defaultdict(dict)
    for kind in kinds:
        by_status[STATUSES[kind]][kind.__name__] = kind
    told = []
    for status, named in by_status.items():
        response = _refusal(status, [named[rc] for rc in sorted(named)])
        if len(named) == 1:
            (rc,) = named
            shared[rc] = response
            response = _ref("responses", rc)
        told.append((status, response))
    return told


def _refusal(status: int, kinds: Sequence[type[Refused]]) -> Json:
    says = [f"`{kind.__name__}`: {kind().message}" for kind in kinds]
    beside = {name: told for kind in kinds for name, told in BESIDE.get(kind, {}).items()}
    told: Json = {
        "description": "\n".join(f"- {each}" for each in says) if says[1:] else says[0],
        "content": _content(
            {
                "allOf": [_ref("schemas", "Refusal")],
                "properties": {"rc": {"enum": [kind.__name__ for kind in kinds]}, **beside},
            }
        ),
    }
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        told["headers"] = {"Retry-After": _ref("headers", "Retry-After")}
    return told


def _paragraphs(doc: str | None) -> str:
    """A docstring, each of its paragraphs on one line, without its sources."""
    doc = _SOURCE.sub("", doc or "")
    return "\n\n".join(" ".join(each.split()) for each in doc.split("\n\n")).strip()


def _content(schema: Json, *content_types: str) -> Json:
    """A body of one of these types; their parameters are no part of the contract."""
    return {each.partition(";")[0]: {"schema": schema} for each in content_types or (JSON,)}


def _ref(kind: str, name: str) -> Json:
    return {"$ref": _REF.format(kind=kind, name=name)}


class _Schemas:
    """The schema of every type that the operations name, and of what those consist of."""

    def __init__(self, operations: Sequence[Operation], held: Held) -> None:
        bodies = [each.body for each in operations]
        answered = [answer.body for each in operations for answer in each.answers.values()]
        types = [kind for kind in (*bodies, *answered) if kind is not None]
        types += [kind for kinds in held.values() for kind in kinds]
        types += [struct for struct, _ in held]
        template = _REF.format(kind="schemas", name="{name}")
        made, components = msgspec.json.schema_components(types, ref_template=template)
        self._short = _short_names(components)
        self._of: dict[Any, Json] = {
            kind: self._told(schema) for kind, schema in zip(types, made, strict=True)
        }
        self.components = {
            self._short[name]: self._told(schema) for name, schema in components.items()
        }
        for (struct, field), kinds in held.items():
            name = self.of(struct)["$ref"].rpartition("/")[2]
            schemas = [self.of(kind) for kind in kinds]
            self.components[name]["properties"][field] = (
                {"anyOf": schemas} if schemas[1:] else schemas[0]
            )

    def of(self, kind: Any) -> Json:
        """The schema of a type: for a struct, where it stands."""
        return self._of[kind]

    def _told(self, node: Any) -> Any:
        """As the document has it: by short names, and without Python's dialect of patterns."""
        if isinstance(node, list):
            return [self._told(each) for each in node]
        if not isinstance(node, dict):
            return node
        told = {key: self._told(value) for key, value in node.items()}
        if isinstance(told.get("title"), str):
            del told["title"]  # a struct's name: its schema stands under that
        if isinstance(ref := told.get("$ref"), str):
            head, _, name = ref.rpartition("/")
            told["$ref"] = f"{head}/{self._short[name]}"
        if isinstance(pattern := told.get("pattern"), str):
            told["pattern"] = pattern.replace(r"\Z", "$")  # ECMA-262 knows no \Z, and its $ is one
        if isinstance(doc := told.get("description"), str):
            told["description"] = _paragraphs(doc)
        return told


def _short_names(names: Iterable[str]) -> dict[str, str]:
    """Structs of one name in two modules keep the last part of the module's."""
    return {name: ".".join(name.rstrip("_").split(".")[-2:]) for name in names}
