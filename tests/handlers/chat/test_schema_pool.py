"""Checks of hostile schemas and documents are bounded, and nobody else notices them."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from handlers.chat import schema_pool, schema_process, verdicts
from handlers.chat.schema_pool import SchemaPool
from handlers.errors import ChatVerificationUnavailable

SECONDS = 1.0
ENDLESS = ({"properties": {"p": {"pattern": "^(a+)+$"}}}, '{"p":"' + "a" * 34 + '!"}')
NEST = {"properties": {"n": {"$ref": "#"}}}
DYNAMIC = {"$dynamicAnchor": "n", "properties": {"n": {"$dynamicRef": "#n"}}}
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
GOOD, BAD, BROKEN = verdicts.CONFORMS, verdicts.MISMATCH, verdicts.UNCOMPILABLE
ODD: list[tuple[Any, str, str]] = [
    *(
        ({"$schema": draft, "properties": {"a": {"type": "integer"}}}, document, found)
        for draft in (
            "http://json-schema.org/draft-03/schema#",
            "http://json-schema.org/draft-04/schema#",
            "http://json-schema.org/draft-06/schema",
            "http://json-schema.org/draft-07/schema#",
            DRAFT_2019,
            "https://json-schema.org/draft/2020-12/schema",
            "urn:of-nobody",
            "",
        )
        for document, found in (('{"a":1}', GOOD), ('{"a":"1"}', BAD))
    ),
    (DYNAMIC, '{"n":' * 300 + "1" + "}" * 300, GOOD),
    ({"$dynamicRef": "http://127.0.0.1:9/x#n"}, "{}", BROKEN),
    ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, "{}", BROKEN),
    ({"$ref": "http://[::1"}, "{}", BROKEN),
    ({"$ref": ["#"]}, "{}", BROKEN),
    ({"$id": 5}, "{}", BROKEN),
    ({"properties": {"a": True, "b": False}}, '{"a":1}', GOOD),
    ({"properties": {"a": True, "b": False}}, '{"b":1}', BAD),
    ({"$ref": "#x", "$defs": {"y": {"$anchor": "x", "type": "object"}}}, "[]", BAD),
    ({"multipleOf": 1e308}, "1e308", GOOD),
    ({"multipleOf": 1e-308}, "1e308", BAD),
    ({"multipleOf": 0}, "1", BROKEN),
    ({"multipleOf": 10**4200}, "1" + "0" * 4250, GOOD),
    ({"multipleOf": 0.1}, "1" + "0" * 4250, verdicts.UNDECIDED),
    ({"maximum": 1.5}, "1" + "0" * 4250, BAD),
    ({"maximum": 1.5}, "1" + "0" * 5000, verdicts.NO_JSON),
    ({"type": "object"}, '{"a":"x","a":1}', GOOD),
    ({"properties": {"a": {"type": "integer"}}}, '{"a":1,"a":"x"}', BAD),  # the last one counts
    ({"format": "email"}, '"nobody"', GOOD),
    ({"format": 5}, '"nobody"', BROKEN),
    ({"pattern": "\\p{L}"}, '"x"', BROKEN),
    ({"pattern": "a{99999999999}"}, '"x"', BROKEN),
    ({"pattern": "[[a]"}, '"a"', GOOD),
    ({"const": "x"}, '"\\ud83d"', BAD),
    ({"minLength": -1}, '"a"', BROKEN),
    ({"dependentRequired": {"a": "x"}}, "{}", BROKEN),
    ({"unevaluatedProperties": False, "allOf": [{"properties": {"a": True}}] * 99}, '{"b":1}', BAD),
]
"""Schemas and documents that are strange, and quickly judged."""


@pytest.fixture
async def pool() -> AsyncIterator[SchemaPool]:
    """One process, whose checks may take as long as a busy machine makes them."""
    opened = SchemaPool(seconds=60, processes=1)
    yield opened
    await opened.close()


@pytest.fixture
async def hasty() -> AsyncIterator[SchemaPool]:
    """One process, whose checks may take SECONDS of CPU, however long that is."""
    opened = SchemaPool(seconds=SECONDS, processes=1, patience=60)
    yield opened
    await opened.close()


async def word(pool: SchemaPool, schema: Any, document: str) -> str:
    verdict = await pool.check(json.dumps(schema).encode(), document.encode())
    return verdict.word


@pytest.mark.parametrize(
    ("schema", "document"),
    [
        ENDLESS,
        ({"uniqueItems": True}, json.dumps([{"a": n} for n in range(40_000)])),
        ({"type": "array"}, "[" * 500_000),
        ({"$ref": "#"}, "{}"),
        ({"$dynamicAnchor": "n", "$dynamicRef": "#n"}, "{}"),
        ({"$schema": DRAFT_2019, "$recursiveAnchor": True, "$recursiveRef": "#"}, "{}"),
        (NEST, '{"n":' * 2000 + "{}" + "}" * 2000),
        ({"type": "array"}, "[" + "[[]]," * 6_000_000 + "1]"),
        (
            {
                "$ref": "#/$defs/0",
                "$defs": {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}] * 9} for n in range(9)}
                | {"9": False},
            },
            "{}",
        ),
    ],
    ids=[
        "pattern",
        "unique",
        "brackets",
        "loop",
        "dynamic loop",
        "recursive loop",
        "deep",
        "memory",
        "references",
    ],
)
async def test_what_costs_too_much_comes_to_an_end(
    hasty: SchemaPool, schema: Any, document: str
) -> None:
    await word(hasty, {}, "{}")  # the process is there

    assert await word(hasty, schema, document) in (verdicts.OVERDUE, verdicts.EXHAUSTED)

    assert await word(hasty, {"type": "object"}, "{}") == verdicts.CONFORMS


async def test_what_is_strange_gets_its_verdict(pool: SchemaPool) -> None:
    for schema, document, found in ODD:
        assert await word(pool, schema, document) == found, (schema, document[:80])


def test_a_schema_is_compiled_once_for_all_replies_that_are_held_to_it() -> None:
    schema = json.dumps({"title": "of this test", "properties": {"n": {"type": "integer"}}})
    before = schema_process._small.cache_info()

    judged = [
        schema_process.judge(schema.encode(), document).word
        for document in (b'{"n":1}', b'{"n":""}', b"{", b'{"n":2}')
    ]

    assert judged == [GOOD, BAD, verdicts.NO_JSON, GOOD]
    after = schema_process._small.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 2)


def test_schemas_are_held_to_the_latest_draft_as_the_library_holds_them_to_it() -> None:
    """Each keyword with values that it may and may not have, at the root and below it."""
    values = (
        True, None, 5, -1, 1.5, "x", "(", "#", "a b", "string", [], ["x"], ["x", "x"], [5], [{}],
        ["string"], {}, {"x": {}}, {"x": 5}, {"x": ["y"]}, {"(": {}}, {"x": {"type": 5}},
    )  # fmt: skip
    keywords = schema_process._latest().schema["properties"]
    assert len(keywords) > 55

    for keyword in [*keywords, "unknown"]:
        for value in values:
            deep = {"properties": {"a": {"allOf": [{"not": {keyword: value}}]}}}
            for schema in ({keyword: value}, *([deep] if value in (5, "x") else [])):
                try:
                    Draft202012Validator.check_schema(schema)
                except SchemaError:
                    fits = False
                else:
                    fits = True
                assert schema_process._latest().is_valid(schema) is fits, schema


async def test_a_document_may_nest_deep_under_a_recursive_schema(pool: SchemaPool) -> None:
    assert await word(pool, NEST, '{"n":' * 300 + "{}" + "}" * 300) == verdicts.CONFORMS


async def test_the_event_loop_goes_on_meanwhile(pool: SchemaPool) -> None:
    """It would have no turn before the check was given up."""
    check = asyncio.create_task(word(pool, *ENDLESS))

    for _ in range(20):
        await asyncio.sleep(0.01)

    assert not check.done()
    check.cancel()
    await asyncio.wait([check])


async def test_who_finds_no_process_in_time_is_told_to_come_again() -> None:
    pool = SchemaPool(seconds=0.3, processes=1)
    await word(pool, {}, "{}")
    checks = [asyncio.create_task(word(pool, *ENDLESS)) for _ in range(5)]

    found = await asyncio.gather(*checks, return_exceptions=True)
    await pool.close()

    assert found[0] == verdicts.OVERDUE
    assert any(isinstance(each, ChatVerificationUnavailable) for each in found)


async def test_a_queue_is_not_endless(pool: SchemaPool) -> None:
    checks = [asyncio.create_task(word(pool, {}, "{}")) for _ in range(schema_pool.WAITING + 1)]
    await asyncio.sleep(0)

    with pytest.raises(ChatVerificationUnavailable):
        await word(pool, {}, "{}")

    assert await asyncio.gather(*checks) == [verdicts.CONFORMS] * len(checks)


async def test_a_caller_that_goes_away_takes_its_check_along(pool: SchemaPool) -> None:
    await word(pool, {}, "{}")
    check = asyncio.create_task(word(pool, *ENDLESS))
    await asyncio.wait([check], timeout=0.1)

    check.cancel()

    with pytest.raises(asyncio.CancelledError):
        await check
    assert await word(pool, {"type": "object"}, "[]") == verdicts.MISMATCH


async def test_a_process_that_was_killed_is_replaced(pool: SchemaPool) -> None:
    await word(pool, {}, "{}")
    (process,) = pool._processes._idle
    process.kill()
    await process.wait()

    assert await word(pool, {}, "{}") == verdicts.CONFORMS


async def test_a_process_knows_nothing_of_our_environment(pool: SchemaPool) -> None:
    await word(pool, {}, "{}")
    (process,) = pool._processes._idle
    with open(f"/proc/{process.pid}/environ", "rb") as environ:
        names = {each.partition(b"=")[0] for each in environ.read().split(b"\0") if each}

    assert names == {b"PYTHONPATH"}


async def test_no_reference_opens_a_connection(pool: SchemaPool) -> None:
    """C-039."""
    met: list[bool] = []
    server = await asyncio.start_server(lambda *_: met.append(True), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    found = await word(pool, {"$ref": f"http://127.0.0.1:{port}/x.json"}, "{}")

    server.close()
    assert (found, met) == (verdicts.UNCOMPILABLE, [])


OWNER = """
import asyncio, sys
from handlers.chat.schema_pool import SchemaPool

async def main():
    pool = SchemaPool(seconds=3, processes=2)
    await asyncio.gather(pool.check(b"{}", b"{}"), pool.check(b"{}", b"{}"))
    busy = asyncio.create_task(pool.check(sys.argv[1].encode(), sys.argv[2].encode()))
    await asyncio.wait([busy], timeout=0.1)  # one checks, one is idle
    print(flush=True)
    await busy

asyncio.run(main())
"""


async def test_the_processes_of_an_owner_that_was_killed_end_by_themselves() -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, json.dumps(ENDLESS[0]), ENDLESS[1], stdout=PIPE
    )
    assert owner.stdout is not None
    assert await owner.stdout.readline()
    children = Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split()
    assert len(children) == 2

    owner.kill()

    await owner.wait()
    async with asyncio.timeout(60):
        while any(map(_runs, children)):
            await asyncio.sleep(0.02)


def _runs(pid: str) -> bool:
    """Whether there is such a process, and not only its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_checks_of_one_account_do_not_keep_another_s_from_coming() -> None:
    pool = SchemaPool(seconds=3, processes=1)
    await word(pool, {}, "{}")
    schema, document = json.dumps(ENDLESS[0]).encode(), ENDLESS[1].encode()
    many = [asyncio.create_task(pool.check(schema, document, frozenset({1}))) for _ in range(16)]
    await asyncio.sleep(0)

    verdict = await pool.check(b"{}", b"{}", frozenset({2}))

    assert verdict.word == verdicts.CONFORMS
    for each in many:
        each.cancel()
    told = await asyncio.gather(*many, return_exceptions=True)
    assert [type(each) for each in told].count(verdicts.Verdict) == 1
    assert [type(each) for each in told].count(ChatVerificationUnavailable) == 7
    await pool.close()
