"""The prompt of a text job, within the context that the job runs under."""

from __future__ import annotations

from worker.backends import Payload

CHARACTERS_PER_TOKEN = 4


def is_text(payload: Payload) -> bool:
    """Whether it is a text job's: it carries a prompt where a chat job has messages."""
    return "prompt" in payload


def fitting(payload: Payload, max_context_length: int) -> str:
    """The prompt, without as much of its front as leaves the reply room in the context.

    The context is the job's, or the backend's where that is less. By an estimate of four characters
    a token: a backend that counts more may still refuse.
    """
    context = min(int(payload["max_context_length"]), max_context_length)
    room = max(0, context - int(payload["max_length"])) * CHARACTERS_PER_TOKEN
    prompt = str(payload["prompt"])
    return prompt[max(0, len(prompt) - room) :]
