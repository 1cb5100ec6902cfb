"""What a job names by URL: its images, or its messages, brought into the payload.

Backends get data URLs: most of them fetch nothing themselves.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx

from worker.backends import JobFailed, Payload

TRANSPORTS = ("base64", "messages_url", "url")
"""All that a pool can hand over images and large messages by; this module makes them one."""
MOST_BYTES = 36 * 2**20
"""Of what is fetched for one job, decoded: no request is larger."""
SECONDS = 30.0
"""For all of it. The lease runs meanwhile, and messages are there for two minutes only."""
_AT_ONCE = 4
_STEP_SECONDS = 10.0


class Fetcher:
    """Fetches with a bound in bytes and in time. No redirect is followed: a signed URL has none."""

    def __init__(self, *, seconds: float = SECONDS, most: int = MOST_BYTES) -> None:
        self._seconds = seconds
        self._most = most
        self._http = httpx.AsyncClient(
            headers={"Accept-Encoding": "gzip"}, follow_redirects=False, timeout=_STEP_SECONDS
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def whole(self, payload: Payload) -> Payload:
        """A chat job's payload with nothing left to fetch. Raise JobFailed, without a reason that
        the pool knows: it has none for this."""
        try:
            async with asyncio.timeout(self._seconds):
                return await self._whole(payload)
        except TimeoutError:
            raise JobFailed(
                f"Its images or messages did not come within {self._seconds:g} s", None
            ) from None
        except httpx.HTTPError as error:  # its text may hold a signed URL
            raise JobFailed(
                f"Its images or messages cannot be fetched: {type(error).__name__}", None
            ) from error

    async def _whole(self, payload: Payload) -> Payload:
        budget = _Budget(self._most)
        if "messages_url" in payload:
            rest = {name: value for name, value in payload.items() if name != "messages_url"}
            payload = rest | {"messages": _read(await self._get(payload["messages_url"], budget))}
        wanted = [part for part in _pictures(payload) if not part["url"].startswith("data:")]
        turns = asyncio.Semaphore(_AT_ONCE)

        async def bring(part: dict[str, Any]) -> None:
            async with turns:
                part["url"] = _data_url(await self._get(part["url"], budget))

        bringing = [asyncio.ensure_future(bring(part)) for part in wanted]
        try:
            await asyncio.gather(*bringing)
        finally:
            for each in bringing:
                each.cancel()
        return payload

    async def _get(self, url: str, budget: _Budget) -> bytes:
        """What is there, decoded."""
        parts: list[bytes] = []
        async with self._http.stream("GET", url) as answer:
            if answer.status_code != httpx.codes.OK:
                raise JobFailed(
                    f"Its images or messages: {answer.url.host} answered {answer.status_code}", None
                )
            async for part in answer.aiter_bytes():
                budget.take(len(part))
                parts.append(part)
        return b"".join(parts)


class _Budget:
    """What may still come for one job, in bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most

    def take(self, size: int) -> None:
        """So much came; raise JobFailed where it is too much."""
        self._left -= size
        if self._left < 0:
            raise JobFailed(f"Its images or messages are more than {self._most} bytes", None)


def _read(body: bytes) -> list[Any]:
    try:
        messages = json.loads(body)
    except ValueError as error:
        raise JobFailed("Its messages are no JSON", None) from error
    if not isinstance(messages, list):
        raise JobFailed("Its messages are no array", None)
    return messages


def _pictures(payload: Payload) -> Iterator[dict[str, Any]]:
    """What the image parts of the messages hold."""
    for message in payload.get("messages") or ():
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if part.get("type") == "image_url":
                yield part["image_url"]


def _data_url(jpeg: bytes) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()
