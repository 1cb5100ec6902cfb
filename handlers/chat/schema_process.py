"""The program of one checking process: it tells whether a document conforms, once a question.

It runs alone (`python -m handlers.chat.schema_process`) and is expendable: schemas and documents
come from strangers, and what they cost is bounded from outside.

A question is the schema's bytes and the document's (`expendable`); a schema of no bytes asks for a
JSON object only. The answer is a verdict.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from typing import Any

from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, validator_for
from jsonschema_specifications import REGISTRY
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

from handlers.chat.verdicts import (
    CONFORMS,
    EXHAUSTED,
    MISMATCH,
    NO_JSON,
    SHOWN,
    UNCOMPILABLE,
    UNDECIDED,
    Verdict,
    judge_object,
    loads,
)
from handlers.processes.expendable import Answer, main

NICENESS = 5
"""Whoever pops or posts meanwhile comes first."""
RECURSION = 4000
"""Python's own limit holds about 150 levels of a document under a recursive schema."""
KEPT = 32
KEPT_BYTES = 32 * 1024
"""Schemas up to so many bytes that stay compiled. To compile one takes about 0.1 ms for each of its
subschemas, many times as long as to hold a reply to it; replies to one client's requests are
mostly held to the same one."""
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def judge(schema: bytes, document: bytes) -> Verdict:
    """The verdict on one document, JSON as Python reads it but for NaN and Infinity; `schema` is
    empty where any object will do. Never raises."""
    if not schema:
        return judge_object(document)
    try:
        return _judge(schema, document)
    except (RecursionError, MemoryError):
        return Verdict(EXHAUSTED)


def _judge(schema: bytes, document: bytes) -> Verdict:
    try:
        found = loads(document)
    except ValueError as error:
        return Verdict(NO_JSON, str(error)[:SHOWN])
    try:
        validator = _small(schema) if len(schema) <= KEPT_BYTES else _compiled(schema)
    except (RecursionError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - the schema is a stranger's: what fails is its fault
        return Verdict(UNCOMPILABLE, _told(error))
    try:
        broken = next(validator.iter_errors(found), None)
    except (RecursionError, MemoryError):
        raise
    except (SchemaError, Unresolvable, re.error) as error:
        return Verdict(UNCOMPILABLE, _told(error))
    except Exception as error:  # noqa: BLE001 - OverflowError of a huge number, and their like
        return Verdict(UNDECIDED, _told(error))
    if broken is None:
        return Verdict(CONFORMS)
    return Verdict(MISMATCH, f"{_printed(broken.json_path)}: {_printed(broken.message)}")


def _compiled(spelled: bytes) -> Validator:
    """The validator of the draft that `$schema` names, 2020-12 otherwise; formats are not asserted.

    References resolve inside the schema only, all of them, also those that no document would reach.
    """
    schema = json.loads(spelled)
    if not isinstance(schema.get("$schema", ""), str):
        raise TypeError("$schema is not a string")
    kind = validator_for(schema, default=Draft202012Validator)
    if kind is Draft202012Validator:
        for error in _latest().iter_errors(schema):
            raise SchemaError.create_from(error)
    else:
        kind.check_schema(schema)
    specification = specification_with(kind.ID_OF(kind.META_SCHEMA))
    root = specification.create_resource(schema)
    registry: Registry[Any] = Registry()  # it has nothing, and retrieves nothing
    left = [(registry.resolver_with_root(root), root)]
    while left:
        resolver, place = left.pop()
        if isinstance(place.contents, dict):
            for keyword in _REFERENCES:
                if keyword in place.contents:
                    resolver.lookup(place.contents[keyword])
        left += ((resolver.in_subresource(each), each) for each in place.subresources())
    return kind(schema, registry=registry)


_small = functools.lru_cache(KEPT)(_compiled)


@functools.cache
def _latest() -> Validator:
    """Holds schemas to Draft 2020-12 as the library's `check_schema` does, six times as fast.

    The draft's own schema is spread over eight documents that refer to each other dynamically.
    Where nobody extends them, they are one document that refers to itself.
    """
    whole: dict[str, Any] = Draft202012Validator.META_SCHEMA
    root = REGISTRY[whole["$id"]]
    resolver = REGISTRY.resolver_with_root(root)
    parts = [whole, *(resolver.lookup(each["$ref"]).contents for each in whole["allOf"])]
    flat = {
        keyword: {name: each for part in parts for name, each in part.get(keyword, {}).items()}
        for keyword in ("properties", "$defs")
    } | {"type": whole["type"]}
    spelled = json.dumps(flat).replace('"$dynamicRef": "#meta"', '"$ref": "#"')
    return Draft202012Validator(
        json.loads(re.sub('"meta/[a-z-]+#', '"#', spelled)),
        registry=Registry(),
        format_checker=Draft202012Validator.FORMAT_CHECKER,
    )


def _told(error: Exception) -> str:
    message = error.message if isinstance(error, SchemaError) else str(error)
    return _printed(message or type(error).__name__)


def _printed(text: str) -> str:
    """A beginning of it that every encoder takes: JSON may spell half of a surrogate pair."""
    return text[:SHOWN].encode(errors="replace").decode()


def answer(schema: bytes, document: bytes) -> Answer:
    """The verdict, as it is sent."""
    word, detail = judge(schema, document)
    return Answer(word, detail.encode())


if __name__ == "__main__":
    sys.setrecursionlimit(RECURSION)
    main(answer, niceness=NICENESS)
