"""What a JSON schema of a request has to be: not too deep, and of OpenAI's form where it is strict.

Whether it is a schema at all is not asked (spec, Reply verification). Every walk here keeps its own
stack: a schema cannot exhaust Python's. Both are linear in the schema's size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from handlers.chat import documents

MAX_NESTING = 10

_NAMED = frozenset(
    {
        "properties",
        "patternProperties",
        "$defs",
        "definitions",
        "dependentSchemas",
        "dependencies",
    }
)
"""Keywords whose object is no schema: its members are, under names of the author's."""
_LISTED = frozenset({"anyOf", "oneOf", "allOf", "prefixItems", "items"})
_SINGLE = frozenset(
    {
        "items",
        "additionalItems",
        "unevaluatedItems",
        "contains",
        "additionalProperties",
        "unevaluatedProperties",
        "propertyNames",
        "not",
        "if",
        "then",
        "else",
        "contentSchema",
    }
)

_Context = tuple[str, ...]


def nests_too_deep(schema: dict[str, Any]) -> bool:
    """Whether the schema has more than MAX_NESTING levels below its root.

    An object is one level below the object that holds it, whatever keyword holds it and however
    many arrays stand between; an object that only names subschemas (`properties`) is no level of
    its own. So ten object properties within each other are ten levels, and the values of `default`
    or of a keyword that nobody knows cannot hide deeper ones.
    """
    stack: list[tuple[Any, int, bool]] = [(schema, 0, False)]
    while stack:
        holder, level, only_names = stack.pop()
        if level > MAX_NESTING:
            return True
        members = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, value in members:
            if isinstance(value, list):
                stack.append((value, level, False))
            elif isinstance(value, dict):
                names = key in _NAMED and isinstance(holder, dict) and not only_names
                stack.append((value, level if names else level + 1, names))
    return False


def strict_fault(schema: dict[str, Any]) -> str | None:
    """Where a strict schema breaks OpenAI's form, in OpenAI's words; the first place, in its order.

    Every object schema, the root and every subschema, sets `additionalProperties` to false and
    requires each of its properties. A schema is an object schema when its `type` is or lists
    `object`, or when it has `properties`.
    """
    stack: list[tuple[dict[str, Any], _Context]] = [(schema, ())]
    while stack:
        place, context = stack.pop()
        fault = _object_fault(place)
        if fault is not None:
            return f"In context={context!r}, {fault}"
        stack.extend(reversed(list(_subschemas(place, context))))
    return None


def _object_fault(schema: dict[str, Any]) -> str | None:
    if not _is_object_schema(schema):
        return None
    if schema.get("additionalProperties") is not False:
        return "'additionalProperties' is required to be supplied and to be false."
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return None
    names = required if isinstance(required, list) else []
    listed = {name for name in names if isinstance(name, str)}
    missing = next((name for name in properties if name not in listed), None)
    if missing is None:
        return None
    return (
        "'required' is required to be supplied and to be an array including every key in "
        f"properties. Missing {documents.shown(missing)!r}."
    )


def _is_object_schema(schema: dict[str, Any]) -> bool:
    kind = schema.get("type")
    listed = isinstance(kind, list) and "object" in kind
    return kind == "object" or listed or "properties" in schema


def _subschemas(
    schema: dict[str, Any], context: _Context
) -> Iterator[tuple[dict[str, Any], _Context]]:
    """The schemas right below one, with their contexts. What is none (`default`) is passed over."""
    for keyword, value in schema.items():
        if isinstance(value, dict):
            if keyword in _NAMED:
                for name, named in value.items():
                    if isinstance(named, dict):
                        yield named, (*context, keyword, documents.shown(name))
            elif keyword in _SINGLE:
                yield value, (*context, keyword)
        elif isinstance(value, list) and keyword in _LISTED:
            for index, listed in enumerate(value):
                if isinstance(listed, dict):
                    yield listed, (*context, keyword, str(index))
