"""A backend that asks an OpenAI-compatible server.

Always as a stream, so that a cancelled job stops at once.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx

from worker.backends import Delta, JobFailed, Payload, Reply
from worker.backends.prompt import fitting, is_text

_SAME = (
    "messages",
    "temperature",
    "top_p",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "reasoning_effort",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
)
"""Keys that a chat job and a chat completion spell alike."""
_SAME_FOR_TEXT = ("temperature", "top_p")
"""The same of a text job and a completion."""
_NEUTRAL: tuple[tuple[str, float, tuple[str, ...]], ...] = (
    ("top_k", 0, ("top_k",)),
    ("min_p", 0, ("min_p",)),
    ("rep_pen", 1, ("repetition_penalty", "repeat_penalty")),
)
"""Samplers that OpenAI has no key for: sent in its imitators' spelling, where not neutral."""
_FINISH = {"stop", "length", "content_filter", "tool_calls"}
_OVERFLOW = ("context_length", "context length", "context size", "context window", "n_ctx")
_QUIET_SECONDS = 600.0


class OpenAI:
    """Bridges to `url` (`http://…/v1`), which has to serve `model`.

    `features` is what its operator vouches for: by default what OpenAI's contract makes every such
    server do. Give fewer for one that does less, such as a server that cuts a prompt which is too
    long instead of refusing it.
    """

    post_seconds = 1.0

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key: str | None = None,
        features: tuple[str, ...] = (
            "frequency_penalty",
            "presence_penalty",
            "prompt_overflow_refused",
            "seed",
        ),
        max_context_length: int = 8_192,
        max_length: int = 1_024,
    ) -> None:
        self.features = features
        self.max_context_length = max_context_length
        self.max_length = max_length
        self._model = model
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/") + "/",
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(_QUIET_SECONDS, connect=10.0),
        )

    async def open(self) -> None:
        """Ask which models there are; take over the context length where the server tells it."""
        try:
            answer = await self._http.get("models", timeout=10.0)
            answer.raise_for_status()
            offered = {each["id"]: each for each in answer.json()["data"]}
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise JobFailed(f"{self._http.base_url}models does not answer: {error!r}") from error
        if self._model not in offered:
            raise JobFailed(f"The backend does not serve {self._model!r}, but {sorted(offered)}")
        length = offered[self._model].get("max_model_len")
        if isinstance(length, int):
            self.max_context_length = length
            self.max_length = min(self.max_length, length)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def generate(self, payload: Payload) -> AsyncGenerator[Delta | Reply, None]:
        """Answer a job: the server's chunks as they come, then the whole."""
        gathered = _Gathered()
        if is_text(payload):
            prompt = fitting(payload, self.max_context_length)
            route, body = "completions", completion_body(payload, prompt, self._model)
        else:
            route, body = "chat/completions", request_body(payload, self._model)
        try:
            async with self._http.stream("POST", route, json=body) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise _failure(
                        answer.status_code, (await answer.aread()).decode(errors="replace")
                    )
                async for line in answer.aiter_lines():
                    if not line.startswith("data:"):
                        continue
                    data = line[5:].strip()
                    if data == "[DONE]":
                        break
                    delta = gathered.add(json.loads(data))
                    if delta.content or delta.reasoning:
                        yield delta
        except httpx.HTTPError as error:
            raise JobFailed(f"The backend broke off: {error!r}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise JobFailed(f"The backend sent what is no completion: {error!r}") from error
        yield gathered.reply()


def request_body(payload: Payload, model: str) -> dict[str, Any]:
    """The chat completion request that a chat job's payload asks for."""
    return _asked(payload, model, _SAME)


def completion_body(payload: Payload, prompt: str, model: str) -> dict[str, Any]:
    """The completion request that a text job asks for, with as much of its prompt as fits.

    Samplers that the client left out are left to the server.
    """
    return _asked(payload, model, _SAME_FOR_TEXT) | {"prompt": prompt}


def _asked(payload: Payload, model: str, same: tuple[str, ...]) -> dict[str, Any]:
    body: dict[str, Any] = {name: payload[name] for name in same if name in payload}
    body |= {
        "model": model,
        "max_tokens": payload["max_length"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if payload.get("stop_sequence"):
        body["stop"] = payload["stop_sequence"]
    for name, neutral, theirs in _NEUTRAL:
        if payload.get(name, neutral) != neutral:
            body |= dict.fromkeys(theirs, payload[name])
    return body


def _failure(status: int, text: str) -> JobFailed:
    overflow = status == httpx.codes.BAD_REQUEST and any(word in text.lower() for word in _OVERFLOW)
    return JobFailed(
        f"The backend answered {status}: {text[:200]}",
        "prompt_overflow" if overflow else "generation_error",
    )


def whole(text: str) -> str:
    """The text with surrogate pairs joined (a chunk may cut one) and lone halves replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class _Gathered:
    """The chunks of one completion, put together."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._finish: str | None = None
        self._usage: Mapping[str, Any] = {}

    def add(self, chunk: Mapping[str, Any]) -> Delta:
        """Take in a chunk; return the text in it."""
        if chunk.get("error"):
            raise JobFailed(f"The backend failed: {str(chunk['error'])[:200]}")
        self._usage = chunk.get("usage") or self._usage
        if not chunk.get("choices"):
            return Delta()
        choice = chunk["choices"][0]
        self._finish = choice.get("finish_reason") or self._finish
        delta = choice.get("delta") or {}
        content = delta.get("content") or choice.get("text") or ""
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        self._content.append(content)
        self._reasoning.append(reasoning)
        for part in delta.get("tool_calls") or ():
            self._add_call(part)
        return Delta(whole(content), whole(reasoning))

    def _add_call(self, part: Mapping[str, Any]) -> None:
        index = part.get("index", len(self._calls))
        call = self._calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        function = part.get("function") or {}
        call["id"] = part.get("id") or call["id"]
        call["name"] += function.get("name") or ""
        call["arguments"] += function.get("arguments") or ""

    def reply(self) -> Reply:
        """The whole answer; raise JobFailed where the stream ended early."""
        if self._finish is None:
            raise JobFailed("The backend ended its stream before the reply was complete")
        calls = tuple(
            {
                "id": call["id"] or f"call_{index}",
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for index, call in sorted(self._calls.items())
        )
        content = whole("".join(self._content))
        details = self._usage.get("completion_tokens_details") or {}
        finish = self._finish if self._finish in _FINISH else "stop"
        if finish == "tool_calls" and not calls:
            finish = "stop"
        return Reply(
            content=None if calls and not content else content,
            finish_reason=finish,
            reasoning=whole("".join(self._reasoning)),
            tool_calls=calls,
            native_finish_reason=self._finish[:32],
            prompt_tokens=self._usage.get("prompt_tokens"),
            completion_tokens=self._usage.get("completion_tokens"),
            reasoning_tokens=details.get("reasoning_tokens"),
        )
