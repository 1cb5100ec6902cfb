"""Which context a request runs under, and what of its messages fits (spec, Context adjustments).

A prompt fits a context when its estimate and `max_length` together do not exceed it: workers
reserve room for the whole reply, and refuse what leaves none. All lengths are tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from typing import Literal, NamedTuple

from events.types import Adjustment
from handlers import metrics
from handlers.chat.body import (
    DEFAULT_MAX_CONTEXT_LENGTH,
    AssistantMessage,
    ChatRequest,
    DeveloperMessage,
    Message,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from handlers.chat.flatten import (
    count_images,
    estimate_tokens,
    flatten_message,
    flatten_tools,
    joined,
    tokens_of,
)
from handlers.errors import PromptExceedsContext
from handlers.text.payload import LEAST_LENGTH, MOST_CONTEXT

STEP = 1024
"""A context grows to a multiple of this, or to the bound."""

TextMode = Literal["ignore", "reject", "grow"]


class Bound(NamedTuple):
    """The largest limits that the online chat workers serving the models declare."""

    max_length: int
    max_context_length: int


class SizedPrompt(NamedTuple):
    """A text request that fits, or was not asked to."""

    max_context_length: int
    estimate: int
    adjustments: tuple[Adjustment, ...]


class Fitted(NamedTuple):
    """A chat request that fits."""

    messages: list[Message]
    """Those that are kept; the request's own list where all are."""
    prompt: str
    """They and the tools, flattened."""
    images: int
    """Image parts among them."""
    estimate: int
    max_length: int
    max_context_length: int
    adjustments: tuple[Adjustment, ...]
    context_fit: Literal["grow", "reject"]
    """What a dry run tells: the mode that sized the context, `grow` under `truncate_oldest`."""


def fit(request: ChatRequest, bound: Bound | None) -> Fitted:
    """Lower `max_length`, grow the context and drop the oldest turns, each only where needed.

    Without a `bound` nothing is lowered and nothing grows. Raise PromptExceedsContext. What was
    changed or refused is counted, in dry runs too; but for that, arguments alone decide.
    """
    max_length = request.max_length
    lowered = None if bound is None else lower_max_length(max_length, bound.max_length)
    if lowered is not None:
        max_length = lowered.after
        metrics.max_length_lowered(lowered.before, max_length, dry_run=request.horde.dry_run)
    requested = request.horde.max_context_length or DEFAULT_MAX_CONTEXT_LENGTH
    most = 0 if bound is None else min(bound.max_context_length, MOST_CONTEXT)
    mode = request.horde.context_fit
    whole = kept = _Conversation.of(request)
    with _refusal_counted(mode):
        if mode == "truncate_oldest" and whole.estimate + max_length > max(most, requested):
            context = max(most, requested)
            kept = whole.without_oldest(context - max_length)
            if kept.estimate + max_length > context:
                raise _exceeds(kept.estimate, max_length, context, "Even without its oldest turns")
        else:
            context = _size(whole.estimate, max_length, requested, most, grow=mode != "reject")
    changes = _grown(requested, context)
    if kept is not whole:
        trimmed = Adjustment(
            before=whole.estimate,
            after=kept.estimate,
            reason="truncate_oldest",
            dropped_messages=len(whole.messages) - len(kept.messages),
        )
        changes = (*changes, trimmed)
    _count_change(changes, mode)
    return Fitted(
        messages=kept.messages,
        prompt=kept.prompt,
        images=kept.images,
        estimate=kept.estimate,
        max_length=max_length,
        max_context_length=context,
        adjustments=changes if lowered is None else (lowered, *changes),
        context_fit="reject" if mode == "reject" else "grow",
    )


def fit_prompt(
    prompt: str, max_length: int, requested: int, most: int, mode: TextMode
) -> SizedPrompt:
    """Size the context of a text request.

    requested   the max_context_length that it asked for
    most        the largest one that an online worker serving the models declares; 0 without any

    Under `ignore` nothing is sized: the worker cuts the front of what does not fit. Raise
    PromptExceedsContext. Counted as in `fit`.
    """
    estimate = estimate_tokens(prompt)
    if mode == "ignore":
        return SizedPrompt(requested, estimate, ())
    with _refusal_counted(mode):
        most = min(most, MOST_CONTEXT)
        context = _size(estimate, max_length, requested, most, grow=mode == "grow")
    changes = _grown(requested, context)
    _count_change(changes, mode)
    return SizedPrompt(context, estimate, changes)


def lower_max_length(asked: int, declared: int) -> Adjustment | None:
    """The change that makes `asked` what online workers serve, if it has to be one.

    A declaration below the least that a request may ask for serves nobody and lowers nothing: the
    request waits for another worker.
    """
    if asked <= declared or declared < LEAST_LENGTH:
        return None
    return Adjustment(before=asked, after=declared, reason="worker_max_length")


def _size(estimate: int, max_length: int, requested: int, most: int, *, grow: bool) -> int:
    """The context that a prompt runs under; raise PromptExceedsContext."""
    needed = estimate + max_length
    if needed <= requested:
        return requested
    if grow and needed <= most:
        return min(-(-needed // STEP) * STEP, most)
    raise _exceeds(estimate, max_length, max(most, requested) if grow else requested)


def _exceeds(
    estimate: int, max_length: int, context: int, condition: str = ""
) -> PromptExceedsContext:
    subject = f"{condition} the prompt" if condition else "The prompt"
    return PromptExceedsContext(
        f"{subject} is estimated at {estimate} tokens: with a max_length of {max_length} it does "
        f"not fit a context of {context}."
    )


def _grown(requested: int, context: int) -> tuple[Adjustment, ...]:
    if context == requested:
        return ()
    return (Adjustment(before=requested, after=context, reason="grow"),)


@contextmanager
def _refusal_counted(mode: str) -> Iterator[None]:
    try:
        yield
    except PromptExceedsContext:
        metrics.context_fit("refused", mode)
        raise


def _count_change(changes: Sequence[Adjustment], mode: str) -> None:
    """Count a request once: one that grew and was trimmed is a trimmed one."""
    if changes:
        trimmed = changes[-1].reason == "truncate_oldest"
        metrics.context_fit("truncated" if trimmed else "grown", mode)


class _Conversation(NamedTuple):
    """Messages, whole and flattened one by one, so that dropping some flattens nothing again."""

    messages: list[Message]
    texts: list[str]
    tools: str | None
    images: int
    prompt: str
    estimate: int

    @classmethod
    def of(cls, request: ChatRequest) -> _Conversation:
        texts = [flatten_message(message) for message in request.messages]
        tools = flatten_tools(request.extras.tools)
        return cls._joined(request.messages, texts, tools, request.images)

    @classmethod
    def _joined(
        cls, messages: list[Message], texts: list[str], tools: str | None, images: int
    ) -> _Conversation:
        prompt = joined(texts, tools)
        return cls(messages, texts, tools, images, prompt, estimate_tokens(prompt, images))

    def without_oldest(self, room: int) -> _Conversation:
        """Without its oldest turns: as few as let the rest fit `room` tokens, or all that may."""
        keep = [True] * len(self.messages)
        characters, images = len(self.prompt), self.images
        for turn in _droppable(self.messages):
            for index in turn:
                keep[index] = False
                characters -= len(self.texts[index]) + 1  # and its newline
                images -= count_images(self.messages[index])
            if tokens_of(characters, images) <= room:
                break
        messages, texts = compress(self.messages, keep), compress(self.texts, keep)
        return self._joined(list(messages), list(texts), self.tools, images)


def _droppable(messages: Sequence[Message]) -> list[range]:
    """Turns that may go, oldest first: those before the latest user message.

    Where no user said anything, all but the latest: a job without messages is none.
    """
    turns = list(_turns(messages))
    for index in reversed(range(len(messages))):
        if isinstance(messages[index], UserMessage):
            return [turn for turn in turns if turn.stop <= index]
    return turns[:-1]


def _turns(messages: Sequence[Message]) -> Iterator[range]:
    """Turns as ranges of indexes: all messages but instructions, which are never dropped.

    A turn is a user message with the assistant message right after it, and with an assistant
    message the tool messages that answer its calls. So a question, the calls that it led to and
    their results go together: calls without results, or the reverse, are no valid history. Any
    other message is a turn by itself.
    """
    start, end = 0, len(messages)
    while start < end:
        after = start + 1
        if isinstance(messages[start], SystemMessage | DeveloperMessage):
            start = after
            continue
        if isinstance(messages[start], UserMessage) and _is(messages, after, AssistantMessage):
            after += 1
        while _is(messages, after, ToolMessage):  # they stand nowhere but behind their calls
            after += 1
        yield range(start, after)
        start = after


def _is(messages: Sequence[Message], index: int, kind: type[Message]) -> bool:
    return index < len(messages) and isinstance(messages[index], kind)
