"""Images from a client's data URLs to a worker's pixels, through the real processes and the store,
by every transport."""

from __future__ import annotations

import base64
import contextlib
import io
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from PIL import Image, ImageChops, ImageOps, ImageStat

from tests.e2e.conftest import Pool, only_plain
from tests.e2e.harness import CHAT, MODEL, POP, SUBMIT, declaration, eventually, reply, status_of
from tests.e2e.wire import Http
from tests.handlers.images.imagery import photo, saved
from tests.spec import spec
from tests.worker.conftest import Stub

pytestmark = [pytest.mark.e2e, only_plain]

Declared = dict[str, Any]


def _sent() -> list[tuple[bytes, Image.Image]]:
    """Files as a client has them, each with what a worker has to see."""
    sideways = photo(400, 240)
    exif = Image.Exif()
    exif[0x0112] = 6  # its right side is up
    glass = photo(300, 200)
    glass.putalpha(Image.linear_gradient("L").resize(glass.size))
    flat = Image.alpha_composite(Image.new("RGBA", glass.size, "white"), glass)
    large = photo(2600, 1300)
    return [
        (saved(sideways, "JPEG", quality=95, exif=exif), sideways.rotate(-90, expand=True)),
        (saved(glass, "PNG"), flat.convert("RGB")),
        (saved(large, "JPEG", quality=95), large.resize((2048, 1024), Image.Resampling.LANCZOS)),
        (saved(ImageOps.invert(sideways), "WEBP", quality=95), ImageOps.invert(sideways)),
    ]


SENT = _sent()


def _messages() -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "text", "text": "Compare."}]
    for file, _ in SENT:
        url = "data:image/png;base64," + base64.b64encode(file).decode()
        parts.append({"type": "image_url", "image_url": {"url": url, "detail": "high"}})
    return [{"role": "system", "content": "See."}, {"role": "user", "content": parts}]


def _sees(name: str, *transports: str) -> Declared:
    declared = declaration(name)
    features = [*declared["chat_features"], "vision"]
    return declared | {"chat_features": features, "image_transports": list(transports)}


async def _queued(http: Http) -> str:
    body = {"model": MODEL, "messages": _messages(), "max_tokens": 64}

    async def accepted() -> str | None:
        answer = await http.call("POST", CHAT, body)
        return answer.body["id"] if answer.status == 202 else None

    found: list[str] = []

    async def once() -> bool:
        if (request_id := await accepted()) is not None:
            found.append(request_id)
        return bool(found)

    await eventually(once, 60, "a request with images to be accepted")
    return found[0]


def _urls(messages: list[dict[str, Any]]) -> list[str]:
    parts = messages[-1]["content"][1:]
    assert [part["image_url"]["detail"] for part in parts] == ["high"] * len(SENT)
    return [part["image_url"]["url"] for part in parts]


def _decoded(url: str) -> bytes:
    head, _, text = url.partition(",")
    assert head == "data:image/jpeg;base64"
    return base64.b64decode(text, validate=True)


def _seen(files: list[bytes]) -> None:
    """Each is a JPEG of the image that was sent in its place, within what JPEG loses."""
    assert len(files) == len(SENT)
    for file, (_, expected) in zip(files, SENT, strict=True):
        image = Image.open(io.BytesIO(file))
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", expected.size)
        assert not image.getexif()
        off = ImageStat.Stat(ImageChops.difference(image, expected))
        assert max(off.mean) < 2
        assert max(most for _, most in off.extrema) < 40


async def _done(client: Http, worker: Http, request_id: str, job: dict[str, Any]) -> None:
    answer = await worker.call("POST", SUBMIT, reply(job["id"], "it"))
    assert answer.status == 200, answer
    status = (await client.call("GET", status_of(request_id), wait=5)).body
    assert (status["done"], len(status["generations"])) == (True, 1)


async def _popped(worker: Http, declared: Declared) -> dict[str, Any]:
    answer = await worker.call("POST", POP, declared, wait=10)
    assert answer.status == 200, answer
    assert answer.body["id"], answer
    return dict(answer.body)


@contextlib.contextmanager
def _offloading(pool: Pool, **settings: str) -> Iterator[str]:
    given: dict[str, Any] = settings | {
        "HORDE_CHAT_MESSAGES_OFFLOAD_ENABLED": "true",
        "HORDE_CHAT_MESSAGES_OFFLOAD_BYTES": "1024",
    }
    with pool.up.web("offloading-web", **given) as (url, _):
        yield url


@spec("Images", 15, 23)
async def test_a_worker_that_fetches_sees_what_was_sent(pool: Pool) -> None:
    async with (
        Http(pool.up.url, pool.client) as client,
        Http(pool.up.url, pool.owner) as worker,
        httpx.AsyncClient() as http,
    ):
        sees = _sees("fetches", "url")
        await worker.call("POST", POP, sees)
        request_id = await _queued(client)

        job = await _popped(worker, sees)

        answers = [await http.get(url) for url in _urls(job["payload"]["messages"])]
        _seen([answer.content for answer in answers])
        await _done(client, worker, request_id, job)


@spec("Images", 24)
async def test_a_worker_that_does_not_fetch_sees_the_same(pool: Pool) -> None:
    async with Http(pool.up.url, pool.client) as client, Http(pool.up.url, pool.owner) as worker:
        sees = _sees("does not fetch", "base64")
        await worker.call("POST", POP, sees)
        request_id = await _queued(client)

        job = await _popped(worker, sees)

        _seen([_decoded(url) for url in _urls(job["payload"]["messages"])])
        await _done(client, worker, request_id, job)


@spec("Messages offload", 4, 6, 10)
@pytest.mark.parametrize("gzip", ["true", pytest.param("false", marks=pytest.mark.soak)])
async def test_a_worker_that_fetches_messages_sees_the_same(pool: Pool, gzip: str) -> None:
    with _offloading(pool, HORDE_CHAT_MESSAGES_OFFLOAD_GZIP=gzip) as url:
        async with (
            Http(url, pool.client) as client,
            Http(pool.up.url, pool.owner) as worker,
            httpx.AsyncClient() as http,
        ):
            sees = _sees("fetches messages", "base64", "messages_url")
            await worker.call("POST", POP, sees)
            request_id = await _queued(client)

            job = await _popped(worker, sees)

            assert "messages" not in job["payload"]
            answer = await http.get(job["payload"]["messages_url"])
            assert answer.headers.get("content-encoding") == ("gzip" if gzip == "true" else None)
            _seen([_decoded(each) for each in _urls(answer.json())])
            await _done(client, worker, request_id, job)


async def test_the_reference_worker_shows_its_backend_the_images(pool: Pool) -> None:
    backend = Stub()
    said = {"choices": [{"delta": {"content": "Nice."}, "finish_reason": "stop"}]}
    stream = f"data: {json.dumps(said)}\n\ndata: [DONE]\n\n".encode()
    backend.standing = {
        "models": (200, {"data": [{"id": MODEL}]}),
        "completions": (200, stream, {"Content-Type": "text/event-stream"}),
    }
    await backend.start()
    arguments = ("--api-key", pool.owner, "--name", "seeing", "--model", MODEL, "--vision")
    program = pool.up.beside("worker", "worker", *arguments, "--backend", f"{backend.url}/v1")
    async with Http(pool.up.url, pool.client) as client:
        request_id = await _queued(client)

        status = (await client.call("GET", status_of(request_id), wait=10)).body

        assert [each["message"]["content"] for each in status["generations"]] == ["Nice."]
        (asked,) = backend.bodies("completions")
        _seen([_decoded(url) for url in _urls(asked["messages"])])
    assert program.end() == 0, program.tail()
    await backend.stop()
