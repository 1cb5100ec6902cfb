"""What answers a job. A backend is an async iterator of deltas that ends with the whole reply."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Payload = Mapping[str, Any]
"""A job's payload as the pop gave it: `messages` of a chat job, or the `prompt` of a text job."""


class JobFailed(Exception):
    """The backend cannot answer this job. `reason`: one that the pool knows, or None."""

    def __init__(self, message: str, reason: str | None = "generation_error") -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Delta:
    """What was generated since the last one."""

    content: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The whole answer. Counts that the backend did not report stay None."""

    content: str | None
    finish_reason: str
    reasoning: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    native_finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None


class Backend(Protocol):
    """Answers chat and text jobs, and says what it can be asked."""

    @property
    def features(self) -> tuple[str, ...]:
        """Capabilities and guarantees that it keeps for chat, in the pool's vocabulary."""

    @property
    def max_context_length(self) -> int:
        """Tokens of prompt and reply together."""

    @property
    def max_length(self) -> int:
        """Tokens of a reply."""

    @property
    def post_seconds(self) -> float:
        """Least time between two progress posts of a job."""

    async def open(self) -> None:
        """Get ready, before the first job; raise JobFailed where it cannot serve at all."""

    def generate(self, payload: Payload) -> AsyncGenerator[Delta | Reply, None]:
        """Answer a job: deltas, then one Reply; raise JobFailed. Closing it stops."""

    async def close(self) -> None:
        """Let go of what it holds."""


def choose(backend: str, model: str) -> Backend:
    """`echo`, or the base URL (`http://…/v1`) of an OpenAI-compatible server with `model`."""
    from worker.backends.echo import Echo
    from worker.backends.openai import OpenAI

    if backend == "echo":
        return Echo()
    if backend.startswith(("http://", "https://")):
        return OpenAI(backend, model)
    raise ValueError(f"{backend!r} is neither `echo` nor a URL")
