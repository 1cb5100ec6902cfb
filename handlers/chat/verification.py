"""Whether a reply of the right shape may stand: its request's rules (spec, Reply verification).

They cover what the reply alone proves and what OpenAI never returns, against the client's own tools
and format, not the narrowed copy that the worker got; no declaration of the worker is believed. All
rules are pure but one: what has to be parsed or matched in length goes to a `SchemaPool`.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

import msgspec
from msgspec import Raw

from handlers.chat import verdicts
from handlers.chat.reply import Given, ToolCall
from handlers.chat.schema_pool import SchemaPool
from handlers.errors import ChatSubmitInvalid, ChatSubmitNonconformant
from handlers.log import Log
from handlers.processes.killable import NOBODY

MAX_DOCUMENT_BYTES = 2**20
"""Of a content that has a format to hold to. The longest output allowed has a quarter of it."""
MAX_INLINE_BYTES = 64 * 1024
"""Of a content that is parsed on the spot, where being a JSON object is all that is asked."""

_SHOWN = 80


class _Named(msgspec.Struct, frozen=True):
    name: str


class _Tool(msgspec.Struct, frozen=True):
    """A tool, or the tool_choice that names one."""

    function: _Named


class _JsonSchema(msgspec.Struct, frozen=True):
    schema: Raw
    strict: bool | None = None


class _Format(msgspec.Struct, frozen=True):
    type: str
    json_schema: _JsonSchema | None = None


class _Extras(msgspec.Struct, frozen=True):
    """What of the stored `extras` replies are held to."""

    tools: list[_Tool] = []
    tool_choice: str | _Tool | None = None
    parallel_tool_calls: bool | None = None
    response_format: _Format | None = None


class Rules(NamedTuple):
    """What a request asks of its replies."""

    tools: frozenset[str]
    choice: str
    """`none`, `auto` or `required`; with `forced` it says nothing."""
    forced: str | None
    """The function that the request's tool_choice names."""
    single_call: bool
    json_object: bool
    """The content has to be a JSON object."""
    schema: bytes
    """The content has to match it, JSON; empty: there is none, or it is not strict."""
    strict: bool
    """The conformance mode."""


class Judged(NamedTuple):
    """A reply that keeps every rule but perhaps its format."""

    given: Given
    dropped_tool_calls: int
    document: str | None
    """The content, where it has a format to hold to."""


_extras = msgspec.json.Decoder(_Extras)


async def rules_of(log: Log, request_id: str) -> Rules:
    """What this request asks of its replies; raise RedisUnavailable."""
    extras, conformance = await log.read(
        "HMGET", log.keys.content(request_id), "extras", "conformance"
    )
    return rules(extras, conformance)


def rules(extras: bytes | None, conformance: bytes | None) -> Rules:
    """From what content keeps of the request: the client's tools and format, JSON, and the mode;
    requests are strict unless that says otherwise."""
    kept = _extras.decode(extras) if extras else _Extras()
    choice, wanted = kept.tool_choice, kept.response_format
    spelled = wanted.json_schema if wanted else None
    schema = bytes(spelled.schema) if spelled and spelled.strict is True else b""
    return Rules(
        tools=frozenset(tool.function.name for tool in kept.tools),
        choice=choice if isinstance(choice, str) else "auto",
        forced=choice.function.name if isinstance(choice, _Tool) else None,
        single_call=kept.parallel_tool_calls is False,
        json_object=wanted is not None and not schema,
        schema=schema,
        strict=conformance != b"best_effort",
    )


async def verify(
    given: Given, wanted: Rules, pool: SchemaPool, parties: Set[int] = NOBODY
) -> Judged:
    """The reply as it may be stored. `parties`: who asked for it and who sent it.

    Raise ChatSubmitInvalid, ChatSubmitNonconformant, ChatVerificationUnavailable.
    """
    judged = judge(given, wanted)
    if judged.document is not None:
        await _check_format(judged.document, wanted, pool, parties)
    return judged


def judge(given: Given, wanted: Rules) -> Judged:
    """All rules but the response format; a second call where one was asked for is dropped first.

    Raise ChatSubmitInvalid, ChatSubmitNonconformant.
    """
    calls = given.message.tool_calls or []
    kept = calls[:1] if wanted.strict and wanted.single_call else calls
    _check_calls(kept, wanted.tools)
    if wanted.strict:
        _check_choice(kept, wanted)
    content = given.message.content or ""
    has_format = wanted.strict and (wanted.json_object or bool(wanted.schema))
    exempt = not content and bool(kept)
    finish = given.finish_reason
    if finish == "tool_calls" and wanted.forced is not None:
        # As OpenAI ends such a choice. The worker was told only that a call is required.
        finish = "stop"
    if len(kept) < len(calls):
        given = given._replace(
            message=msgspec.structs.replace(given.message, tool_calls=list(kept))
        )
    return Judged(
        given._replace(finish_reason=finish),
        dropped_tool_calls=len(calls) - len(kept),
        document=content if has_format and not exempt else None,
    )


def _check_calls(calls: Sequence[ToolCall], tools: frozenset[str]) -> None:
    seen = set()
    for at, call in enumerate(calls):
        if call.function.name not in tools:
            raise ChatSubmitInvalid(
                f"message.tool_calls[{at}]: the request has no tool "
                f"{call.function.name[:_SHOWN]!r}."
            )
        if call.id in seen:
            raise ChatSubmitInvalid(
                f"message.tool_calls[{at}]: the id {call.id[:_SHOWN]!r} is repeated."
            )
        seen.add(call.id)


def _check_choice(calls: Sequence[ToolCall], wanted: Rules) -> None:
    if wanted.forced is not None:
        if not calls:
            raise ChatSubmitNonconformant(
                f"The request's tool_choice asks for a call of {wanted.forced!r}."
            )
        if any(call.function.name != wanted.forced for call in calls):
            raise ChatSubmitNonconformant(
                f"The request's tool_choice allows calls of {wanted.forced!r} only."
            )
    elif wanted.choice == "none" and calls:
        raise ChatSubmitNonconformant("The request's tool_choice is none: no call may be made.")
    elif wanted.choice == "required" and not calls:
        raise ChatSubmitNonconformant("The request's tool_choice is required: a call is missing.")


async def _check_format(content: str, wanted: Rules, pool: SchemaPool, parties: Set[int]) -> None:
    document = content.encode()
    if len(document) > MAX_DOCUMENT_BYTES:
        raise ChatSubmitNonconformant(
            f"A content with a response_format may have at most {MAX_DOCUMENT_BYTES} bytes."
        )
    if wanted.schema or len(document) > MAX_INLINE_BYTES:
        verdict = await pool.check(wanted.schema, document, parties)
    else:
        verdict = verdicts.judge_object(document)
    if verdict.word != verdicts.CONFORMS:
        raise ChatSubmitNonconformant(_sentence(verdict))


def _sentence(verdict: verdicts.Verdict) -> str:
    match verdict.word:
        case verdicts.NO_JSON:
            return f"The content is not JSON, as response_format asks: {verdict.detail}"
        case verdicts.NO_OBJECT:
            return "The content is not a JSON object, as response_format asks."
        case verdicts.MISMATCH:
            return f"The content does not match the request's schema: {verdict.detail}"
        case verdicts.UNCOMPILABLE:
            return (
                "The request's schema cannot be compiled, so no reply can be shown to match it: "
                f"{verdict.detail}"
            )
        case verdicts.UNDECIDED:
            return f"The content cannot be shown to match the request's schema: {verdict.detail}"
        case _:  # OVERDUE, EXHAUSTED
            return (
                "The content cannot be shown to match the response_format within the time and "
                "memory that a check may take."
            )
