"""Replacement filters of the operator, applied to what flagged users send and to what is sent to
models that are not safe for work (text_path_reference.md 10; spec, Flattened prompt).

The operator's replacements are the whole rule. Text is not normalised first, as it was where
filters had to see through spaced-out letters in image prompts: in a conversation that would break
code, lists and every language that is not English.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import regex
import structlog

from handlers.chat import request
from handlers.chat.body import Message, TextPart
from handlers.errors import CorruptPrompt
from handlers.files import Unreadable, Watched
from handlers.reference import Reference

logger = structlog.get_logger()

Sent = TypeVar("Sent")

SECONDS = 1.0
"""All filters together may take this long on one request. A hundred filters over the most messages
that a request may have take half of it."""
MAX_GROWTH = 1_048_576
"""Characters that filters may add to one request: replacements may be longer than what they
replace, and a chain of them multiplies."""
QUICK_SECONDS = 0.05
"""What nearly every request needs less than. Who needs more goes on in a line of its own, so that
those who send what takes long wait for each other only."""
_QUICK_THREADS = 2

SLOW = "This prompt cannot be moderated in time. Send less text, or split it into more messages."
GROWN = "This prompt grows too long in moderation. Send less text."


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A filter as the file has it."""

    regex: str
    replacement: str
    description: str = ""


class Filter(NamedTuple):
    """One rule: what matches is replaced, wherever it stands and whatever its case."""

    pattern: regex.Pattern[str]
    replacement: str
    """What stands there instead. Groups are written as in Python: `\\1`, `\\g<name>`."""
    description: str


Filters = tuple[Filter, ...]


def parse(raw: bytes) -> Filters:
    """Read the file's bytes: a JSON list of `{"regex", "replacement", "description"?}`.

    Raise Unreadable, which names the entry at fault by its index.
    """
    try:
        entries = msgspec.json.decode(raw, type=list[msgspec.Raw])
    except msgspec.DecodeError as error:
        raise Unreadable(f"expected a JSON list of filters: {error}") from None
    return tuple(_filter(index, entry) for index, entry in enumerate(entries))


def _filter(index: int, raw: msgspec.Raw) -> Filter:
    try:
        entry = msgspec.json.decode(raw, type=_Entry)
    except msgspec.DecodeError as error:
        raise Unreadable(f"filter {index}: {error}") from None
    if "\0" in entry.replacement:
        raise Unreadable(f"filter {index}: replacement: holds U+0000, which no prompt may hold")
    try:
        pattern = regex.compile(entry.regex, regex.IGNORECASE)
        # An alternative that matches nothing at all: it shows the replacement put in once.
        regex.compile(f"|{entry.regex}", regex.IGNORECASE).sub(entry.replacement, "", count=1)
    except (regex.error, IndexError, ValueError, RecursionError) as error:
        raise Unreadable(f"filter {index}: {error}") from None
    if pattern.search("") is not None:
        raise Unreadable(
            f"filter {index}: regex: matches the empty text, so it would match everywhere"
        )
    return Filter(pattern, entry.replacement, entry.description)


def applies(models: Iterable[str], reference: Reference, *, flagged: bool) -> bool:
    """Whether filters apply to what a user sends to these models."""
    return flagged or any(map(reference.nsfw, models))


def rewrite(texts: Sequence[str], filters: Filters, *, seconds: float = SECONDS) -> list[str]:
    """Each text with every filter applied, in the order of the file.

    Raise OutOfTime past `seconds`; CorruptPrompt where the texts grow by more than MAX_GROWTH.
    """
    allowance = _Allowance(time.monotonic() + seconds, MAX_GROWTH)
    return [allowance.rewrite(text, filters) for text in texts]


class OutOfTime(Exception):
    """The filters would take longer than they may."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.filter = index


class _TooLong(Exception):
    """A replacement adds more than there is room for."""


class _Allowance:
    """What moderation of one request may still cost: until when, and by how many characters."""

    def __init__(self, ends: float, room: int) -> None:
        self._ends = ends
        self._room = room

    def rewrite(self, text: str, filters: Filters) -> str:
        """One text with every filter applied; raise OutOfTime, CorruptPrompt."""
        for index, rule in enumerate(filters):
            try:
                text = self._apply(rule, text)
            except TimeoutError:
                raise OutOfTime(index) from None
            except _TooLong:
                logger.warning("filter_grows_too_much", filter=index)
                raise CorruptPrompt(GROWN) from None
        return text

    def _apply(self, rule: Filter, text: str) -> str:
        expands = "\\" in rule.replacement

        def put(match: regex.Match[str]) -> str:
            new: str = match.expand(rule.replacement) if expands else rule.replacement
            self._room -= len(new) - (match.end() - match.start())
            if self._room < 0:  # now, before the whole is built
                raise _TooLong
            return new

        seconds = max(self._ends - time.monotonic(), 0)
        rewritten: str = rule.pattern.sub(put, text, timeout=seconds)
        return rewritten


def rewrite_messages(
    messages: list[Message], filters: Filters, seconds: float = SECONDS
) -> list[Message]:
    """The conversation with every text rewritten: of all roles, strings and text parts.

    A text of which nothing is left is an empty string. What is JSON stays as it is: calls, their
    arguments, definitions, formats. The same list where no text changed. Raise OutOfTime,
    CorruptPrompt.
    """
    texts = list(request.texts(messages))
    rewritten = rewrite(texts, filters, seconds=seconds)
    if rewritten == texts:
        return messages
    rest = iter(rewritten)
    return [_with_texts(message, rest) for message in messages]


def _with_texts(message: Message, texts: Iterator[str]) -> Message:
    """The message with its texts replaced by the next ones, in the order of `request.texts`."""
    content = message.content
    if content is None:
        return message
    if isinstance(content, str):
        return msgspec.structs.replace(message, content=next(texts))
    parts = [TextPart(next(texts)) if isinstance(part, TextPart) else part for part in content]
    return msgspec.structs.replace(message, content=parts)


def rewrite_prompt(prompt: str, filters: Filters, seconds: float = SECONDS) -> str:
    """A text request's prompt, rewritten. Raise OutOfTime; CorruptPrompt, also where nothing is
    left of it."""
    (rewritten,) = rewrite([prompt], filters, seconds=seconds)
    if rewritten != prompt and not rewritten.strip():
        raise CorruptPrompt
    return rewritten


class Moderation:
    """What users send, rewritten where it has to be; in threads, off the event loop.

    Matching text releases the interpreter, so a slow filter delays the loop by nothing, and of
    other requests only those that are slow, too.
    """

    def __init__(
        self,
        reference: Reference,
        filters: Callable[[], Filters],
        *,
        quick: float = QUICK_SECONDS,
        seconds: float = SECONDS,
    ) -> None:
        """`filters` gives those in force now; asked on each call. `quick`: seconds after which a
        request goes on in the line of the slow, where it has `seconds`."""
        self._reference = reference
        self._filters = filters
        self._quick_seconds = quick
        self._seconds = seconds
        self._quick = ThreadPoolExecutor(_QUICK_THREADS, thread_name_prefix="moderation")
        self._patient = ThreadPoolExecutor(1, thread_name_prefix="slow-moderation")

    async def messages(
        self, messages: list[Message], models: Iterable[str], *, flagged: bool
    ) -> list[Message]:
        """As `rewrite_messages`, where filters apply."""
        return await self._run(rewrite_messages, messages, models, flagged)

    async def prompt(self, prompt: str, models: Iterable[str], *, flagged: bool) -> str:
        """As `rewrite_prompt`, where filters apply."""
        return await self._run(rewrite_prompt, prompt, models, flagged)

    async def _run(
        self,
        work: Callable[[Sent, Filters, float], Sent],
        sent: Sent,
        models: Iterable[str],
        flagged: bool,
    ) -> Sent:
        filters = self._filters()
        if not filters or not applies(models, self._reference, flagged=flagged):
            return sent
        run = asyncio.get_running_loop().run_in_executor
        try:
            return await run(self._quick, work, sent, filters, self._quick_seconds)
        except OutOfTime:
            pass
        try:
            return await run(self._patient, work, sent, filters, self._seconds)
        except OutOfTime as slow:
            logger.warning("filter_too_slow", filter=slow.filter)
            raise CorruptPrompt(SLOW) from None


def opened(path: str) -> Callable[[], Filters]:
    """The filters in a file, read again when it changes; none where `path` is empty. Raise
    Unreadable."""
    return Watched(Path(path), parse).current if path else tuple
