"""A backend that says again what it was told: for trying a pool without a model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from worker.backends import Delta, JobFailed, Payload, Reply
from worker.backends.prompt import CHARACTERS_PER_TOKEN, fitting, is_text

PIECES = 12


@dataclass(frozen=True, slots=True)
class Echo:
    """Deterministic, so a seed is kept; counts a token for every four characters.

    A streamed reply comes in up to a dozen pieces, one each `pause` seconds; any other at once.
    """

    pause: float = 0.05
    features: tuple[str, ...] = ("prompt_overflow_refused", "seed")
    max_context_length: int = 32_768
    max_length: int = 4_096
    post_seconds: float = 0.0

    async def open(self) -> None:
        """Nothing to get ready."""

    async def close(self) -> None:
        """Nothing to let go of."""

    async def generate(self, payload: Payload) -> AsyncGenerator[Delta | Reply, None]:
        """Answer with the last user message, or the end of a text job's prompt, within the job's
        length and stop sequences."""
        budget = int(payload["max_length"])
        if is_text(payload):
            tail = fitting(payload, self.max_context_length)[-budget * CHARACTERS_PER_TOKEN :]
            text, reason = _cut(tail, payload.get("stop_sequence") or (), budget)
            yield Reply(content=text, finish_reason=reason)
            return
        messages = payload["messages"]
        prompt = sum(_tokens(text_of(message)) for message in messages)
        if prompt + budget > self.max_context_length:
            raise JobFailed(
                f"{prompt} + {budget} tokens exceed {self.max_context_length}",
                "prompt_overflow",
            )
        text, reason = _cut(_last_user(messages), payload.get("stop_sequence") or (), budget)
        if payload.get("stream_progress"):
            for piece in _pieces(text):
                yield Delta(piece)
                await asyncio.sleep(self.pause)
        yield Reply(
            content=text,
            finish_reason=reason,
            native_finish_reason=reason,
            prompt_tokens=prompt,
            completion_tokens=_tokens(text),
        )


def text_of(message: dict[str, Any]) -> str:
    """The text of a message, whose content is a string, a list of parts, or absent."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or () if part.get("type") == "text")


def _last_user(messages: Sequence[dict[str, Any]]) -> str:
    return next((text_of(each) for each in reversed(messages) if each["role"] == "user"), "")


def _tokens(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def _cut(text: str, stops: Sequence[str], budget: int) -> tuple[str, str]:
    """The text up to its first stop sequence or the budget, and why it ends there."""
    ends = [at for stop in stops if stop and (at := text.find(stop)) >= 0]
    stopped = text[: min(ends)] if ends else text
    allowed = stopped[: budget * CHARACTERS_PER_TOKEN]
    return allowed, "stop" if allowed == stopped else "length"


def _pieces(text: str) -> list[str]:
    """The text in whole words with the space behind them, a few words a piece."""
    words = re.findall(r"\s*\S+\s*", text) or ([text] if text else [])
    size = -(-len(words) // PIECES) or 1
    return ["".join(words[at : at + size]) for at in range(0, len(words), size)]
