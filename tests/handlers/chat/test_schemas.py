"""How deep a schema nests, and what OpenAI wants of a strict one."""

from __future__ import annotations

import time
from typing import Any

import pytest

from handlers.chat import schemas
from handlers.errors import UnsupportedChatParameter
from tests.handlers.chat.bodies import function, raw, read, refused_at, schema_format
from tests.spec import spec

OPEN = {"type": "object"}
CLOSED = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


def closed(**properties: Any) -> dict[str, Any]:
    """A strict object schema of these properties."""
    return CLOSED | {"properties": properties, "required": list(properties)}


def nested(levels: int, keyword: str) -> dict[str, Any]:
    """A schema that nests so many levels below its root, each by this keyword."""
    schema: dict[str, Any] = {}
    for _ in range(levels):
        if keyword in {"properties", "$defs", "patternProperties"}:
            schema = {"type": "object", keyword: {keyword: schema}}
        elif keyword == "anyOf":
            schema = {keyword: [{}, schema]}
        else:
            schema = {keyword: schema}
    return schema


@spec("Tools", 6)
@pytest.mark.parametrize("strict", [True, False, None])
@pytest.mark.parametrize(
    "keyword", ["properties", "$defs", "patternProperties", "items", "anyOf", "not", "x-unknown"]
)
def test_schemas_nest_ten_levels_below_their_root_strict_or_not(
    keyword: str, strict: bool | None
) -> None:
    def tool(levels: int) -> list[Any]:
        return [function("f"), function("g", parameters=nested(levels, keyword), strict=strict)]

    def form(levels: int) -> dict[str, Any]:
        return schema_format(nested(levels, keyword), strict=strict)

    if not strict:
        read(tools=tool(10), response_format=form(10))
    for changed, path in (
        ({"tools": tool(11)}, "tools[1].function.parameters"),
        ({"response_format": form(11)}, "response_format.json_schema.schema"),
    ):
        told, sentence = refused_at(UnsupportedChatParameter, raw(**changed))
        assert told == path
        assert sentence.startswith(f"{path}: at most 10 levels")


def test_a_property_by_the_name_of_a_keyword_is_a_property() -> None:
    assert not schemas.nests_too_deep(nested(10, "properties"))
    assert schemas.nests_too_deep(nested(11, "properties"))


def test_what_hides_in_a_default_nests_too() -> None:
    deep = nested(10, "x")

    assert not schemas.nests_too_deep({"default": nested(9, "x")})
    assert schemas.nests_too_deep({"default": [[deep]]})
    assert schemas.nests_too_deep({"properties": {"a": {"enum": [deep]}}})


def test_the_walks_do_not_recurse() -> None:
    schema: dict[str, Any] = CLOSED
    for _ in range(100_000):
        schema = closed(a=schema)

    assert schemas.nests_too_deep(schema)


def test_a_wide_schema_costs_what_it_is_long() -> None:
    schema = closed(**{f"p{n}": closed(a={"type": "string"}) for n in range(2000)})
    started = time.process_time()

    assert schemas.strict_fault(schema) is None
    assert not schemas.nests_too_deep(schema)
    assert time.process_time() - started < 0.5


@spec("Tools", 9)
def test_a_strict_format_is_held_to_openais_form_in_its_words() -> None:
    """C-031."""
    schema = closed(e={"type": "object", "properties": {}, "required": []})

    read(response_format=schema_format(schema))
    read(response_format=schema_format(schema, strict=False))
    assert refused_at(
        UnsupportedChatParameter, raw(response_format=schema_format(schema, strict=True))
    ) == (
        "response_format.json_schema.schema",
        "Invalid schema for response_format 'J': In context=('properties', 'e'), "
        "'additionalProperties' is required to be supplied and to be false.",
    )


@spec("Tools", 10)
def test_a_strict_function_is_held_to_the_same_form_by_its_own_path() -> None:
    def tools(**more: Any) -> list[Any]:
        return [function("other"), function("get_weather", **more)]

    read(tools=tools(parameters=OPEN))
    read(tools=tools(parameters=OPEN, strict=False))
    read(tools=tools(parameters=OPEN, strict=None))
    read(tools=tools(parameters=CLOSED, strict=True))
    read(tools=tools(strict=True))
    read(tools=tools(parameters=None, strict=True))
    assert refused_at(UnsupportedChatParameter, raw(tools=tools(parameters=OPEN, strict=True))) == (
        "tools[1].function.parameters",
        "Invalid schema for function 'get_weather': In context=(), 'additionalProperties' is "
        "required to be supplied and to be false.",
    )


ADDITIONAL = "'additionalProperties' is required to be supplied and to be false."


@spec("Tools", 9)
@pytest.mark.parametrize(
    ("place", "context"),
    [
        ({"properties": {"a": OPEN}, "required": ["a"]}, "('properties', 'a')"),
        ({"items": OPEN}, "('items',)"),
        ({"items": [{}, OPEN]}, "('items', '1')"),
        ({"prefixItems": [OPEN]}, "('prefixItems', '0')"),
        ({"$defs": {"D": OPEN}}, "('$defs', 'D')"),
        ({"definitions": {"D": {"items": OPEN}}}, "('definitions', 'D', 'items')"),
        ({"anyOf": [CLOSED, OPEN]}, "('anyOf', '1')"),
        ({"oneOf": [OPEN]}, "('oneOf', '0')"),
        ({"allOf": [OPEN]}, "('allOf', '0')"),
        ({"not": OPEN}, "('not',)"),
        ({"if": OPEN}, "('if',)"),
        ({"then": OPEN}, "('then',)"),
        ({"else": OPEN}, "('else',)"),
        ({"contains": OPEN}, "('contains',)"),
        ({"patternProperties": {"^a": OPEN}}, "('patternProperties', '^a')"),
        ({"propertyNames": OPEN}, "('propertyNames',)"),
        ({"dependentSchemas": {"a": OPEN}}, "('dependentSchemas', 'a')"),
        ({"unevaluatedProperties": OPEN}, "('unevaluatedProperties',)"),
    ],
)
def test_every_subschema_of_a_strict_schema_is_held_to_it(
    place: dict[str, Any], context: str
) -> None:
    assert schemas.strict_fault(CLOSED | place) == f"In context={context}, {ADDITIONAL}"


@spec("Tools", 9)
def test_a_schema_of_additional_properties_is_one_too() -> None:
    schema = {"type": "array", "additionalProperties": OPEN}

    assert schemas.strict_fault(schema) == f"In context=('additionalProperties',), {ADDITIONAL}"


@spec("Tools", 9)
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": ["null", "object"]},
        {"properties": {}},
        CLOSED | {"additionalProperties": True},
        CLOSED | {"additionalProperties": {}},
        CLOSED | {"additionalProperties": 0},
        CLOSED | {"additionalProperties": None},
    ],
)
def test_an_object_schema_closes_itself(schema: dict[str, Any]) -> None:
    assert schemas.strict_fault(schema) == f"In context=(), {ADDITIONAL}"


@spec("Tools", 9)
@pytest.mark.parametrize("required", [..., [], ["a"], "ab", None, [["b"], {}, 1, "a"]])
def test_an_object_schema_requires_each_of_its_properties(required: Any) -> None:
    schema = closed(a={}, b={}) | {"required": required}
    if required is ...:
        del schema["required"]

    missing = "b" if isinstance(required, list) and "a" in required else "a"
    assert schemas.strict_fault(schema) == (
        "In context=(), 'required' is required to be supplied and to be an array including every "
        f"key in properties. Missing '{missing}'."
    )


@spec("Tools", 9)
@pytest.mark.parametrize(
    "schema",
    [
        CLOSED,
        closed(a={"type": "integer", "minimum": 1}, b={"type": ["string", "null"]}),
        {"type": "string"},
        {},
        {"default": OPEN, "enum": [OPEN], "const": OPEN, "examples": [OPEN], "x-unknown": OPEN},
        {"items": True, "properties": 5, "type": "object", "additionalProperties": False},
        {"anyOf": OPEN, "$defs": [OPEN]},
        closed(properties=closed(items={"type": "string"})),
    ],
)
def test_other_keywords_and_values_are_left_alone(schema: dict[str, Any]) -> None:
    assert schemas.strict_fault(schema) is None


def test_the_first_fault_in_the_schemas_order_is_told() -> None:
    schema = closed(a={"items": OPEN}, b=OPEN)

    assert str(schemas.strict_fault(schema)).startswith("In context=('properties', 'a', 'items'),")


def test_long_names_are_cut() -> None:
    long = "n" * 10_000
    body = raw(response_format=schema_format(closed(**{long: OPEN}), strict=True, name=long))

    assert len(refused_at(UnsupportedChatParameter, body)[1]) < 400
