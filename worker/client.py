"""The pool's worker routes over HTTP, and what each answer means for the job."""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from worker.backends import Delta, Reply

log = logging.getLogger("worker")

AGENT = "hordechat-worker:1:hordechat"
_POP_SLACK = 15.0
_TIMEOUT = 10.0
_LONGEST_RETRY_AFTER = 10.0


class Refused(Exception):
    """The pool does not take this worker: its key, name or declaration is wrong."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job that this worker holds."""

    id: str
    model: str
    ttl: float  # seconds
    payload: Mapping[str, Any]
    chat: bool
    """Whether it is a chat job; otherwise a text job."""

    @property
    def streams(self) -> bool:
        """Whether progress posts are wanted."""
        return bool(self.payload.get("stream_progress"))


class Posted(enum.Enum):
    """What a progress post's answer asks for."""

    ACCEPTED = "go on"
    STOP_POSTING = "stop posting, still submit"
    CANCELLED = "stop generating, do not submit"


class Submitted(enum.Enum):
    """What became of a reply."""

    STORED = "stored"
    LOST = "not wanted any more"
    REFUSED = "refused"


class Backoff:
    """Pauses that grow: `first` seconds, doubled up to `longest`; each a little random."""

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def reset(self) -> None:
        """Begin again at `first`."""
        self._next = self._first

    async def pause(self, answer: httpx.Response | None = None) -> None:
        """Wait; as long as the answer's Retry-After asks, if it names seconds."""
        seconds = self._next * random.uniform(0.5, 1.0)  # noqa: S311  spreads retries, guards nothing
        self._next = min(self._next * 2, self._longest)
        asked = answer.headers.get("retry-after", "") if answer is not None else ""
        if asked.isdecimal():
            seconds = max(seconds, min(float(asked), _LONGEST_RETRY_AFTER))
        await asyncio.sleep(seconds)


class Client:
    """One worker's view of the pool. Every call repeats itself until it has a definite answer."""

    def __init__(
        self, url: str, api_key: str, declaration: Mapping[str, Any], backoff: tuple[float, float]
    ) -> None:
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/"),
            headers={"apikey": api_key, "Client-Agent": AGENT},
            timeout=_TIMEOUT,
        )
        self._declaration = declaration
        self._backoff = backoff

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def pop(self, wait: int) -> Job | None:
        """Ask once for a job, waiting up to `wait` seconds for one; None where there is none.

        Raise Refused, or Away where the pool cannot be asked now.
        """
        try:
            answer = await self._http.post(
                "/v2/generate/text/pop",
                json=self._declaration,
                headers={"Prefer": f"wait={wait}"},
                timeout=httpx.Timeout(_TIMEOUT, read=wait + _POP_SLACK),
            )
        except httpx.TransportError as error:
            raise Away(f"{self._http.base_url} does not answer: {error!r}") from error
        body = _body(answer)
        if answer.status_code != httpx.codes.OK:
            rc = body.get("rc")
            if rc and answer.status_code < 500 and rc not in _PASSING:  # noqa: PLR2004  server errors pass
                raise Refused(f"{rc}: {body.get('message')}")
            raise Away(
                f"pop was answered {answer.status_code} {rc or ''}: {body.get('message')}", answer
            )
        if not body.get("id"):
            return None
        payload = body.get("payload")
        return Job(
            id=str(body["id"]),
            model=str(body.get("model")),
            ttl=float(body.get("ttl") or 150),
            payload=payload if isinstance(payload, dict) else {},
            chat=body.get("chat") is True,
        )

    async def post(self, job: Job, seq: int, delta: Delta) -> Posted:
        """Post one delta, the same one again until it is answered."""
        fields = {"content": delta.content}
        if delta.reasoning:
            fields["reasoning_content"] = delta.reasoning
        backoff = Backoff(*self._backoff)
        while True:
            answer = await self._send("progress", {"id": job.id, "seq": seq, "delta": fields})
            if answer is not None and not _passes(answer):
                return self._posted(job, answer)
            await backoff.pause(answer)

    @staticmethod
    def _posted(job: Job, answer: httpx.Response) -> Posted:
        body = _body(answer)
        if answer.status_code == httpx.codes.OK:
            return Posted.CANCELLED if body.get("cancelled") else Posted.ACCEPTED
        rc = body.get("rc")
        if rc == "ChatJobAborted":
            return Posted.CANCELLED
        log.info("job %s: no more progress posts (%s %s)", job.id, answer.status_code, rc)
        return Posted.STOP_POSTING

    async def submit(self, job: Job, reply: Reply) -> Submitted:
        """Hand in the reply, again until it is answered: the job's id lets it count once only."""
        said = _chat_reply(job, reply) if job.chat else {"generation": reply.content or ""}
        answer = await self._insist({"id": job.id, "state": "ok", **said})
        body = _body(answer)
        rc = body.get("rc")
        if answer.status_code == httpx.codes.OK:
            log.info("job %s: earned %s kudos", job.id, body.get("reward"))
            return Submitted.STORED
        if rc == "DuplicateGen":
            return Submitted.STORED
        log.warning("job %s: %s %s: %s", job.id, answer.status_code, rc, body.get("message"))
        return Submitted.LOST if rc in _GONE else Submitted.REFUSED

    async def fault(self, job: Job, reason: str | None) -> None:
        """Give the job up, so that another worker gets it now and not when the lease ends."""
        body = {"id": job.id, "state": "faulted"}
        if not job.chat:
            body["generation"] = "faulted"  # the pool wants one on faults too
        else:
            body["model_id"] = job.model
            if reason:
                body["fault_reason"] = reason
        answer = await self._insist(body)
        if answer.status_code != httpx.codes.OK:
            log.info(
                "job %s: its fault was answered %s %s",
                job.id,
                answer.status_code,
                _body(answer).get("rc"),
            )

    async def _insist(self, body: Mapping[str, Any]) -> httpx.Response:
        backoff = Backoff(*self._backoff)
        while True:
            answer = await self._send("submit", body)
            if answer is not None and not _passes(answer):
                return answer
            log.info("job %s: submit got no answer (%s), trying again", body["id"], _status(answer))
            await backoff.pause(answer)

    async def _send(self, route: str, body: Mapping[str, Any]) -> httpx.Response | None:
        try:
            return await self._http.post(f"/v2/generate/text/{route}", json=body)
        except httpx.TransportError:
            return None


def _chat_reply(job: Job, reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.tool_calls:
        message["tool_calls"] = list(reply.tool_calls)
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    reported = {
        "native_finish_reason": reply.native_finish_reason,
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "reasoning_tokens": reply.reasoning_tokens,
    }
    return {
        "model_id": job.model,
        "message": message,
        "finish_reason": reply.finish_reason,
        **{name: value for name, value in reported.items() if value is not None},
    }


class Away(Exception):
    """The pool cannot be asked right now. `answer` is what it said, if anything."""

    def __init__(self, message: str, answer: httpx.Response | None = None) -> None:
        super().__init__(message)
        self.answer = answer


_PASSING = frozenset({"WorkerMaintenance", "RequestTimeout", "TooManyRequests"})
"""Return codes below 500 after which a later pop may well be served."""
_GONE = frozenset({"AbortedGen", "InvalidJobID", "WrongCredentials", "InvalidAPIKey"})
"""Return codes of a submit after which a fault would be refused as well."""


def _passes(answer: httpx.Response) -> bool:
    """Whether the same call may be answered otherwise in a moment."""
    return answer.status_code >= 500 or answer.status_code in (408, 429)  # noqa: PLR2004  classes of statuses


def _status(answer: httpx.Response | None) -> str:
    return "no connection" if answer is None else str(answer.status_code)


def _body(answer: httpx.Response) -> dict[str, Any]:
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
