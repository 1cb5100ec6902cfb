"""Images come from where their URLs were checked to lead, and from hostile origins nothing worse
than a refusal."""

from __future__ import annotations

import asyncio
import gzip
import io
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpcore
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from handlers.errors import (
    Refused,
    SourceImageSizeExceeded,
    SourceImageUrlInvalid,
    SourceImageUrlRefused,
)
from handlers.fetch import fetcher as fetch
from handlers.fetch.dial import AT_ONCE_BYTES, STEPS, Steps
from handlers.fetch.fetcher import HEAD_BYTES, PIECES, PIECES_AT_ONCE, Fetcher
from tests.logged import logged
from tests.origin import PUBLIC, Hosts, Internet, Origin, ok, origin, redirect
from tests.spec import spec

CERTIFICATES = Path(__file__).parents[2] / "certificates"
MIB = 2**20
MOST = 5 * MIB
WEB = frozenset({80, 443})
IMAGE = b"\x89PNG" + bytes(range(256))
URL = "http://images.example/a.png"


PATIENT = Steps(resolve=60, connect=60, read=60)


class World:
    """A fetcher on an internet of its own, with an origin at PUBLIC that images.example and
    other.example name."""

    def __init__(self, served: Origin) -> None:
        self.origin = served
        self.hosts = Hosts({"images.example": [[PUBLIC]], "other.example": [[PUBLIC]]})
        self.internet = Internet({(PUBLIC, 80): served.port})
        self.seconds = 60.0  # the machine may be busy
        self.steps = PATIENT
        self.authorities: ssl.SSLContext | None = None

    async def fetch(self, url: str = URL, *, most: int = MOST) -> bytes:
        fetcher = Fetcher(
            seconds=self.seconds,
            ports=WEB,
            resolve=self.hosts.resolve,
            network=self.internet,
            ssl_context=self.authorities,
            steps=self.steps,
        )
        try:
            return await fetcher.fetch(url, most=most)
        finally:
            await fetcher.close()

    def answer(self, answer: bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]) -> None:
        self.origin.answers["/a.png"] = answer


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """With an image at URL."""
    async with origin({"/a.png": ok(IMAGE)}) as served:
        yield World(served)
        await _closed(served)


async def _closed(served: Origin) -> None:
    """Wait until the origin noticed that nobody is connected; fail where somebody stays."""
    async with asyncio.timeout(20):
        while served.open:
            await asyncio.sleep(0)


# What is asked


@spec("Images", 10, 11)
async def test_an_image_is_fetched_from_the_checked_address_with_the_host_of_its_url(
    world: World,
) -> None:
    assert await world.fetch("http://Images.Example./a.png#part") == IMAGE

    assert world.hosts.asked == ["images.example"]
    assert world.internet.connected == [(PUBLIC, 80)]
    assert world.origin.heads == [
        "GET /a.png HTTP/1.1\r\n"
        "Host: images.example\r\n"
        "User-Agent: hordechat/0.1.0\r\n"
        "Accept: */*\r\n"
        "Accept-Encoding: identity\r\n"
        "Connection: close\r\n\r\n"
    ]


async def test_a_port_that_is_not_the_schemes_stands_in_the_host_header(world: World) -> None:
    world.internet.routes[PUBLIC, 443] = world.origin.port

    assert await world.fetch("http://images.example:443/a.png") == IMAGE

    assert "\r\nHost: images.example:443\r\n" in world.origin.heads[0]


async def test_an_address_in_a_url_is_not_resolved(world: World) -> None:
    world.internet.routes["2606:4700::1111", 80] = world.origin.port

    assert await world.fetch(f"http://{PUBLIC}/a.png") == IMAGE
    assert await world.fetch("http://[2606:4700::1111]/a.png") == IMAGE
    assert await world.fetch(f"http://[::ffff:{PUBLIC}]/a.png") == IMAGE

    assert world.hosts.asked == []
    assert world.internet.connected == [(PUBLIC, 80), ("2606:4700::1111", 80), (PUBLIC, 80)]
    assert "\r\nHost: [2606:4700::1111]\r\n" in world.origin.heads[1]


async def test_no_proxy_of_the_environment_is_used(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    assert await world.fetch() == IMAGE

    assert world.internet.connected == [(PUBLIC, 80)]


# Where nothing is sent to


DENIED = [
    "http://127.0.0.1{port}/a.png",
    "http://127.0.0.1.{port}/a.png",
    "http://127。0。0。1{port}/a.png",
    "http://2130706433{port}/a.png",
    "http://0x7f.1{port}/a.png",
    "http://0177.0.0.1{port}/a.png",
    "http://127.1{port}/a.png",
    "http://0{port}/a.png",
    "http://0.0.0.0{port}/a.png",
    "http://[::1]{port}/a.png",
    "http://[::]{port}/a.png",
    "http://[::ffff:127.0.0.1]{port}/a.png",
    "http://[::ffff:7f00:1]{port}/a.png",
    "http://[0:0:0:0:0:ffff:7f00:1]{port}/a.png",
    "http://[::ffff:169.254.169.254]{port}/a.png",
    "http://[::ffff:a9fe:a9fe]{port}/",
    "http://[::127.0.0.1]{port}/a.png",
    "http://[2002:7f00:1::]{port}/a.png",
    "http://[64:ff9b::7f00:1]{port}/a.png",
    "http://[fe80::1%25lo]{port}/a.png",
    "http://100.64.0.1{port}/a.png",
    "http://169.254.169.254{port}/latest/meta-data/",
    "http://localhost{port}/a.png",
    "http://LOCALHOST.{port}/a.png",
    "http://a.localhost{port}/a.png",
    "http://user@127.0.0.1{port}/a.png",
    "http://images.example\\@127.0.0.1{port}/a.png",
]


@spec("Images", 10, 14)
async def test_no_packet_reaches_a_denied_address_however_it_is_spelled() -> None:
    """With the real resolver and real sockets, and a canary that listens where all of it leads."""
    async with origin({"/a.png": ok(IMAGE)}) as canary, origin({}) as other:
        fetcher = Fetcher(seconds=60, ports=frozenset({canary.port}), steps=PATIENT)
        for url in DENIED:
            with pytest.raises(SourceImageUrlRefused):
                await fetcher.fetch(url.format(port=f":{canary.port}"), most=MOST)
        await fetcher.close()

        assert canary.connections == 0

        # It does listen, and a fetcher that is told so gets there.
        told = Fetcher(
            seconds=60,
            steps=PATIENT,
            ports=frozenset({canary.port, other.port}),
            open_to=frozenset({("127.0.0.1", canary.port)}),
        )
        assert await told.fetch(f"http://127.0.0.1:{canary.port}/a.png", most=MOST) == IMAGE
        for beside in (f"127.0.0.2:{canary.port}", f"127.0.0.1:{other.port}"):
            with pytest.raises(SourceImageUrlRefused):
                await told.fetch(f"http://{beside}/a.png", most=MOST)
        await told.close()
        assert other.connections == 0


@spec("Images", 10)
@pytest.mark.parametrize(
    "addresses",
    [
        ["10.0.0.1"],
        [PUBLIC, "10.0.0.1"],
        ["10.0.0.1", PUBLIC],
        [PUBLIC, "::ffff:127.0.0.1"],
        [PUBLIC, "fe80::1%eth0"],
        [*["2606:4700::1111"] * 50, "127.0.0.1"],
        [PUBLIC, "nonsense"],
        [],
    ],
)
async def test_one_denied_address_of_a_name_refuses_it(world: World, addresses: list[str]) -> None:
    world.hosts.names["images.example"] = [addresses]

    with pytest.raises(SourceImageUrlRefused) as refused:
        await world.fetch()

    assert world.internet.connected == []
    assert refused.value.message == "images are fetched from hosts of the public internet only."


@spec("Images", 10)
async def test_a_name_that_answers_differently_the_second_time_is_not_asked_a_second_time(
    world: World,
) -> None:
    world.hosts.names["images.example"] = [[PUBLIC], ["127.0.0.1"]]

    assert await world.fetch() == IMAGE

    assert world.hosts.asked == ["images.example"]
    assert world.internet.connected == [(PUBLIC, 80)]


@spec("Images", 10, 12)
async def test_a_redirect_to_the_same_host_is_resolved_and_checked_anew(world: World) -> None:
    world.hosts.names["images.example"] = [[PUBLIC], ["127.0.0.1"]]
    world.answer(redirect("/b.png"))
    world.origin.answers["/b.png"] = ok(IMAGE)

    with pytest.raises(SourceImageUrlRefused):
        await world.fetch()

    assert world.hosts.asked == ["images.example"] * 2
    assert world.internet.connected == [(PUBLIC, 80)]


async def test_addresses_are_tried_in_turn_each_with_its_share_of_the_time(world: World) -> None:
    world.hosts.names["images.example"] = [["2606:4700::1", "2606:4700::2", PUBLIC]]
    world.steps = Steps(connect=600)

    assert await world.fetch() == IMAGE

    assert world.internet.connected == [
        ("2606:4700::1", 80),
        ("2606:4700::2", 80),
        (PUBLIC, 80),
    ]
    connects = [given for step, given in world.internet.patience if step == "connect"]
    assert connects == pytest.approx([600 / 3, 600 / 2, 600], abs=40)


async def test_no_more_than_four_addresses_are_tried(world: World) -> None:
    world.hosts.names["images.example"] = [[f"2606:4700::{n}" for n in range(1, 9)] + [PUBLIC]]

    with pytest.raises(SourceImageUrlInvalid):
        await world.fetch()

    assert len(world.internet.connected) == 4


async def test_names_that_cannot_be_resolved_are_invalid(world: World) -> None:
    async def fails(host: str, port: int) -> list[str]:
        raise OSError("no name server answers")

    fetcher = Fetcher(seconds=1, ports=WEB, resolve=fails, network=world.internet)

    with pytest.raises(SourceImageUrlInvalid) as invalid:
        await fetcher.fetch(URL, most=MOST)

    assert invalid.value.message == "the image could not be fetched."
    assert world.internet.connected == []


# Redirects


@spec("Images", 12)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_of_every_kind_are_followed(world: World, status: int) -> None:
    world.answer(redirect("http://other.example/b.png?x=1#part", status))
    world.origin.answers["/b.png?x=1"] = ok(IMAGE)

    assert await world.fetch() == IMAGE

    assert world.hosts.asked == ["images.example", "other.example"]
    assert "\r\nHost: other.example\r\n" in world.origin.heads[1]
    assert "eferer" not in world.origin.heads[1]


@spec("Images", 12)
async def test_three_redirects_are_followed_and_a_fourth_is_not(world: World) -> None:
    for n in range(1, 5):
        world.origin.answers[f"/{n}"] = redirect(f"/{n - 1}")
    world.origin.answers["/0"] = ok(IMAGE)

    assert await world.fetch("http://images.example/3") == IMAGE
    assert world.origin.connections == 4
    with pytest.raises(SourceImageUrlInvalid, match="redirects more than 3 times"):
        await world.fetch("http://images.example/4")
    assert world.origin.connections == 8


@spec("Images", 12)
@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/",
        "http://[::ffff:169.254.169.254]/a.png",
        "http://127.1/",
        "http://localhost/",
        "http://inside.example/",
        "//10.0.0.1/",
        "file:///etc/passwd",
        "ftp://images.example/a.png",
        "http://images.example:22/",
        "http://user@images.example/",
        "http://images.example/a b",
        "/\xe9",
        "/" + "x" * 9000,
    ],
)
async def test_a_redirect_leads_to_nothing_that_a_url_may_not(world: World, location: str) -> None:
    world.hosts.names["localhost"] = [["127.0.0.1"]]
    world.hosts.names["inside.example"] = [["192.168.1.1"]]
    world.origin.answers["/a.png"] = (
        b"HTTP/1.1 302 Found\r\nLocation: " + location.encode("latin-1") + b"\r\n\r\n"
    )

    with pytest.raises(SourceImageUrlRefused):
        await world.fetch()

    assert world.internet.connected == [(PUBLIC, 80)]


@pytest.mark.parametrize("answer", [redirect(None), ok(b"", "Location: /", "Location: /b")])
async def test_a_redirect_that_does_not_say_where_to_is_invalid(
    world: World, answer: bytes
) -> None:
    world.answer(answer.replace(b"200 OK", b"302 Found"))

    with pytest.raises(SourceImageUrlInvalid):
        await world.fetch()

    assert world.origin.connections == 1


async def test_the_body_of_a_redirect_is_not_waited_for(world: World) -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: /b.png\r\nContent-Length: 9999\r\n\r\n")
        await asyncio.sleep(60)

    world.answer(endless)
    world.origin.answers["/b.png"] = ok(IMAGE)

    assert await world.fetch() == IMAGE


async def test_a_redirect_may_be_written_in_utf_8(world: World) -> None:
    world.answer("HTTP/1.1 302 Found\r\nLocation: /é.png\r\n\r\n".encode())
    world.origin.answers["/%C3%A9.png"] = ok(IMAGE)

    assert await world.fetch() == IMAGE


# TLS


@pytest.fixture
def authorities() -> ssl.SSLContext:
    """Those of tests/certificates: images.example and other.example have one."""
    return ssl.create_default_context(cafile=CERTIFICATES / "authority.pem")


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "origin.pem")
    return context


@pytest.fixture
async def secure(authorities: ssl.SSLContext) -> AsyncIterator[World]:
    """A world whose origin speaks TLS at 443."""
    async with origin({"/a.png": ok(IMAGE)}, _server_context()) as served:
        world = World(served)
        world.internet.routes[PUBLIC, 443] = served.port
        world.authorities = authorities
        yield world
        await _closed(served)


@spec("Images", 11)
async def test_over_https_the_urls_host_is_the_server_name(secure: World) -> None:
    secure.hosts.names["images.example"] = [[PUBLIC], ["127.0.0.1"]]

    assert await secure.fetch("https://images.example./a.png") == IMAGE

    assert secure.origin.names == ["images.example"]
    assert "\r\nHost: images.example\r\n" in secure.origin.heads[0]
    assert secure.internet.connected == [(PUBLIC, 443)]
    assert secure.hosts.asked == ["images.example"]


@spec("Images", 11)
@pytest.mark.parametrize("host", ["third.example", PUBLIC])
async def test_a_certificate_of_another_host_is_not_taken(secure: World, host: str) -> None:
    secure.hosts.names["third.example"] = [[PUBLIC]]

    with pytest.raises(SourceImageUrlInvalid):
        await secure.fetch(f"https://{host}/a.png")

    assert not any(secure.origin.heads)


async def test_a_certificate_of_no_known_authority_is_not_taken(secure: World) -> None:
    secure.authorities = None

    with pytest.raises(SourceImageUrlInvalid):
        await secure.fetch("https://images.example/a.png")

    assert not any(secure.origin.heads)


async def test_https_may_redirect_to_http_and_back(secure: World, world: World) -> None:
    secure.internet.routes[PUBLIC, 80] = world.origin.port
    secure.answer(redirect("http://other.example/a.png"))
    world.answer(redirect("https://other.example/b.png"))
    secure.origin.answers["/b.png"] = ok(IMAGE)

    assert await secure.fetch("https://images.example/a.png") == IMAGE

    assert secure.internet.connected == [(PUBLIC, 443), (PUBLIC, 80), (PUBLIC, 443)]


@asynccontextmanager
async def _at_443(
    world: World, speaks: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> AsyncIterator[asyncio.Event]:
    """Something else than an origin listens there; set once a connection to it has ended."""
    ended = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await speaks(reader, writer)
            await reader.read()
        writer.close()
        ended.set()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    world.internet.routes[PUBLIC, 443] = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(20):
        yield ended
        await ended.wait()
    server.close()
    await server.wait_closed()


async def test_a_port_without_tls_is_invalid_over_https(world: World) -> None:
    async def plain(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ok(IMAGE))

    async with _at_443(world, plain):
        with pytest.raises(SourceImageUrlInvalid):
            await world.fetch("https://images.example/a.png")


async def test_what_is_no_tls_after_the_handshake_is_invalid(
    world: World, authorities: ssl.SSLContext
) -> None:
    async def stops_speaking_it(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = _server_context().wrap_bio(incoming, outgoing, server_side=True)
        shaken = False
        while not shaken:
            try:
                tls.do_handshake()
                shaken = True
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
        writer.write(outgoing.read() + b"this is no record of TLS")

    world.authorities = authorities
    async with _at_443(world, stops_speaking_it):
        with pytest.raises(SourceImageUrlInvalid):
            await world.fetch("https://images.example/a.png")


# What is taken for an answer


@spec("Images", 14)
@pytest.mark.parametrize(
    "status", ["201 Created", "204 None", "206 Partial", "300 Many", "304 Same", "404 No", "500 Oh"]
)
async def test_any_other_answer_than_200_is_invalid(world: World, status: str) -> None:
    world.answer(ok(b"" if status[:3] in {"204", "304"} else IMAGE, status=status))

    with pytest.raises(SourceImageUrlInvalid) as invalid:
        await world.fetch()

    assert invalid.value.message == "the URL does not answer with status 200."


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00" * 100,
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 101 Switch\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2 * HEAD_BYTES + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: x\r\n" * HEAD_BYTES + b"\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * (HEAD_BYTES // 20) + ok(IMAGE),
    ],
    ids=range(15),
)
async def test_what_is_no_whole_answer_is_invalid(world: World, answer: bytes) -> None:
    world.answer(answer)

    with pytest.raises(SourceImageUrlInvalid):
        await world.fetch()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\n" + IMAGE,
        b"HTTP/1.0 200 OK\r\n\r\n" + IMAGE,
        b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + ok(IMAGE),
        ok(IMAGE, "Content-Encoding: identity"),
        ok(IMAGE, "Content-Encoding: "),
        ok(IMAGE, "Set-Cookie: a=b"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"".join(b"1\r\n%c\r\n" % byte for byte in IMAGE)
        + b"0\r\n\r\n",
    ],
    ids=range(7),
)
async def test_bodies_are_framed_in_any_way(world: World, answer: bytes) -> None:
    world.answer(answer)

    assert await world.fetch() == IMAGE


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "br", "deflate", "identity, gzip", "x"])
async def test_an_encoded_body_is_not_decoded_and_not_read(world: World, coding: str) -> None:
    bomb = gzip.compress(bytes(8 * MIB), compresslevel=1) if coding == "gzip" else b"x"
    world.answer(ok(bomb, f"Content-Encoding: {coding}"))

    with pytest.raises(SourceImageUrlInvalid, match="encoded"):
        await world.fetch()


async def test_a_gzip_bomb_that_does_not_call_itself_one_stays_as_it_is(world: World) -> None:
    bomb = gzip.compress(bytes(MIB))
    world.answer(ok(bomb))

    assert await world.fetch() == bomb


# How much is read


@spec("Images", 2)
@pytest.mark.parametrize("framing", ["length", "close", "chunks"])
async def test_a_body_of_exactly_the_most_is_taken_and_one_byte_more_is_not(
    world: World, framing: str
) -> None:
    def framed(body: bytes) -> bytes:
        if framing == "length":
            return ok(body)
        if framing == "close":
            return b"HTTP/1.1 200 OK\r\n\r\n" + body
        chunk = b"%x\r\n%b\r\n" % (len(body), body)
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n"

    world.answer(framed(bytes(MOST)))
    assert await world.fetch() == bytes(MOST)
    world.answer(framed(bytes(MOST + 1)))
    with pytest.raises(SourceImageSizeExceeded, match="larger than 5242880 bytes"):
        await world.fetch()


async def test_a_declared_size_beyond_the_most_is_refused_before_any_of_it_is_read(
    world: World,
) -> None:
    async def declares(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n")
        await asyncio.sleep(60)

    world.answer(declares)

    with pytest.raises(SourceImageSizeExceeded):
        await world.fetch(most=100)


async def test_a_body_longer_than_declared_is_cut_where_it_was_declared_to_end(
    world: World,
) -> None:
    world.answer(ok(IMAGE + bytes(6 * MIB), f"Content-Length: {len(IMAGE)}"))

    assert await world.fetch() == IMAGE


async def test_an_endless_body_is_read_no_further_than_the_most(world: World) -> None:
    sent = 0

    async def endless(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(bytes(64 * 1024))
            await writer.drain()
            sent += 64 * 1024

    world.answer(endless)

    with pytest.raises(SourceImageSizeExceeded):
        await world.fetch(most=MIB)

    assert sent < 16 * MIB  # what sockets hold


async def test_a_body_in_tiny_pieces_is_given_up_and_keeps_nobody_waiting(world: World) -> None:
    world.answer(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * (PIECES + 1)
    )
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    beside = asyncio.create_task(others())
    with pytest.raises(SourceImageUrlInvalid, match="too many pieces"):
        await world.fetch()
    beside.cancel()

    assert turns > PIECES / PIECES_AT_ONCE


async def test_what_is_said_about_chunks_counts_too(world: World) -> None:
    world.answer(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        + (b"1;" + b"x" * 1000 + b"\r\nx\r\n") * 60
        + b"0\r\n\r\n"
    )

    with pytest.raises(SourceImageUrlInvalid):
        await world.fetch(most=1000)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_little_is_read_at_once_so_that_others_have_their_turn(
    world: World, secure: World, scheme: str
) -> None:
    chosen = secure if scheme == "https" else world
    chosen.answer(ok(bytes(MIB)))

    assert await chosen.fetch(f"{scheme}://images.example/a.png") == bytes(MIB)

    assert chosen.internet.largest_read == AT_ONCE_BYTES


# How long it may take


async def _silent(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


def drip(
    start: bytes, piece: bytes, every: float
) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    """Something sent at once, and then piece after piece."""

    async def dripping(writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while True:
            await asyncio.sleep(every)
            writer.write(piece)
            await writer.drain()

    return dripping


DRIPS = {
    "silence": _silent,
    "status": drip(b"", b"H", 0.03),
    "headers": drip(b"HTTP/1.1 200 OK\r\n", b"X: x\r\n", 0.03),
    "one header": drip(b"HTTP/1.1 200 OK\r\nX: ", b"x", 0.03),
    "interim answers": drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.03),
    "body": drip(b"HTTP/1.1 200 OK\r\nContent-Length: 4194304\r\n\r\n", b"x", 0.03),
    "chunks": drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", 0.03),
    "a chunk's size": drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x", 0.03),
}


@pytest.mark.parametrize("way", DRIPS)
async def test_an_answer_that_drips_ends_with_the_time_for_an_image(world: World, way: str) -> None:
    world.seconds = 0.12
    world.answer(DRIPS[way])

    with pytest.raises(SourceImageUrlInvalid, match=r"did not arrive within 0\.12 seconds"):
        await world.fetch()


async def test_redirects_share_the_time_for_an_image(world: World) -> None:
    async def slow(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        writer.write(redirect("/a.png"))

    world.seconds = 0.12
    world.answer(slow)

    with pytest.raises(SourceImageUrlInvalid, match="did not arrive"):
        await world.fetch()


@spec("Images", 13)
async def test_connecting_and_each_read_have_two_seconds(secure: World) -> None:
    secure.steps = Steps(resolve=500, connect=600, read=700)
    assert await secure.fetch("https://images.example/a.png") == IMAGE

    assert Steps(resolve=2, connect=2, read=2) == STEPS
    given = {(step, round(seconds or 0, -2)) for step, seconds in secure.internet.patience}
    assert given == {("connect", 600), ("handshake", 600), ("read", 700)}


BRIEF = Steps(resolve=0.05, connect=0.05, read=0.05)


@spec("Images", 13)
@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nx"])
async def test_a_read_that_takes_too_long_is_invalid(world: World, start: bytes) -> None:
    world.steps = BRIEF
    world.answer(drip(start, b"", 60))

    with pytest.raises(SourceImageUrlInvalid, match="could not be fetched"):
        await world.fetch()


async def test_a_name_that_takes_too_long_is_invalid(world: World) -> None:
    async def never(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    fetcher = Fetcher(seconds=5, ports=WEB, resolve=never, network=world.internet, steps=BRIEF)

    with pytest.raises(SourceImageUrlInvalid, match="could not be fetched"):
        await fetcher.fetch(URL, most=MOST)


async def _mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


@spec("Images", 13)
async def test_a_handshake_that_takes_too_long_is_invalid(world: World) -> None:
    world.steps = Steps(connect=3)  # enough to be connected: both have as long
    async with _at_443(world, _mute):
        with pytest.raises(SourceImageUrlInvalid, match="could not be fetched"):
            await world.fetch("https://images.example/a.png")


async def test_a_caller_that_goes_during_a_handshake_ends_the_connection(world: World) -> None:
    begun = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read(1)
        begun.set()

    async with _at_443(world, mute):
        fetching = asyncio.create_task(world.fetch("https://images.example/a.png"))
        await begun.wait()
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching


@pytest.mark.parametrize("way", ["silence", "headers", "body"])
async def test_a_caller_that_has_no_more_time_ends_the_connection(world: World, way: str) -> None:
    world.answer(DRIPS[way])
    fetching = asyncio.create_task(world.fetch())
    async with asyncio.timeout(20):
        while not any(world.origin.heads):
            await asyncio.sleep(0)
    await asyncio.wait([fetching], timeout=0.1)  # it is in the middle of the answer

    fetching.cancel()

    with pytest.raises(asyncio.CancelledError):
        await fetching
    await _closed(world.origin)
    assert world.origin.connections == 1


async def test_a_caller_that_goes_while_a_name_is_resolved_leaves_nothing(world: World) -> None:
    started = asyncio.Event()

    async def never(host: str, port: int) -> list[str]:
        started.set()
        await asyncio.Event().wait()
        return []

    fetcher = Fetcher(seconds=60, ports=WEB, resolve=never, network=world.internet)
    fetching = asyncio.create_task(fetcher.fetch(URL, most=MOST))
    await started.wait()
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching

    assert world.internet.connected == []


async def test_twenty_slow_origins_do_not_delay_another_fetch(world: World) -> None:
    world.origin.answers["/slow"] = DRIPS["body"]
    slow = [asyncio.create_task(world.fetch("http://images.example/slow")) for _ in range(20)]
    async with asyncio.timeout(20):
        while world.origin.open < 20:
            await asyncio.sleep(0)

    assert await world.fetch() == IMAGE

    assert not any(task.done() for task in slow)
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


# What is told


@pytest.mark.parametrize(
    ("url", "answer"),
    [
        ("http://images.example/a.png?key=secret", ok(b"", status="404 No")),
        ("http://inside.example/a.png?key=secret", b""),
        ("http://images.example/a.png?key=secret", redirect("http://inside.example/?key=secret")),
        ("http://images.example/a.png?key=secret", b"a.png, secret\r\n\r\n"),
        ("http://images.example:22/?key=secret", b""),
    ],
)
async def test_neither_the_client_nor_the_log_is_told_more_than_the_host(
    world: World, url: str, answer: bytes
) -> None:
    world.hosts.names["inside.example"] = [["192.168.7.7"]]
    world.origin.answers["/a.png?key=secret"] = answer

    with logged(fetch.logger) as lines, pytest.raises(Refused) as refused:
        await world.fetch(url)

    (line,) = lines
    assert line["event"] == "image_not_fetched"
    assert line["host"] in {"images.example", "inside.example", ""}
    for told in (refused.value.message, str(line)):
        assert "secret" not in told
        assert "a.png" not in told
        assert "192.168" not in told
    assert "404" not in refused.value.message


async def test_no_thread_of_the_loops_own_is_taken(world: World) -> None:
    """Whoever else needs one would wait behind strangers' name servers and hosts."""

    class Spent(ThreadPoolExecutor):
        def submit(self, *_: Any, **__: Any) -> Any:
            pytest.fail("a thread was taken")

    asyncio.get_running_loop().set_default_executor(Spent())
    fetcher = Fetcher(
        seconds=60,
        steps=PATIENT,
        ports=frozenset({world.origin.port}),
        open_to={(address, world.origin.port) for address in ("127.0.0.1", "::1")},
    )

    for host in ("localhost", "127.0.0.1"):
        assert await fetcher.fetch(f"http://{host}:{world.origin.port}/a.png", most=MOST) == IMAGE
    await fetcher.close()


class Spoken(httpcore.AsyncNetworkBackend, httpcore.AsyncNetworkStream):
    """A network on which everybody says the same, and hears nothing."""

    def __init__(self, said: bytes) -> None:
        self._said = io.BytesIO(said)

    async def connect_tcp(self, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        return self

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._said.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None: ...

    async def aclose(self) -> None: ...


PARTS = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 302 Found\r\n",
        b"HTTP/1.1 101 Switch\r\n",
        b"HTTP/1.0 200\r\n",
        b"\r\n",
        b"\n",
        b" ",
        b":",
        b"Location: ",
        b"http://images.example/",
        b"Content-Length: ",
        b"Content-Encoding: ",
        b"identity",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: ",
        b"keep-alive",
        b"5\r\n",
        b"0\r\n\r\n",
        b"hello",
        b"99999999999999999999",
        b"\xff\x00",
    ]
)


@settings(deadline=None)  # the machine may be busy
@given(said=st.lists(PARTS | st.binary(max_size=4), max_size=14).map(b"".join))
@example(said=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello0\r\n\r\n")
@example(said=b"HTTP/1.1 302 Found\r\nLocation: http://images.example/\xff\x00\r\n\r\n")
def test_whatever_an_origin_says_is_an_image_or_refused(said: bytes) -> None:
    async def fetched() -> bytes:
        fetcher = Fetcher(
            seconds=5,
            ports=WEB,
            resolve=Hosts({"images.example": [[PUBLIC]]}).resolve,
            network=Spoken(said),
        )
        with suppress(SourceImageUrlInvalid, SourceImageUrlRefused, SourceImageSizeExceeded):
            return await fetcher.fetch(URL, most=100)
        return b""

    assert len(asyncio.run(fetched())) <= 100


async def test_addresses_are_reached_by_sockets_unless_a_network_is_given(world: World) -> None:
    """The one piece that the other tests replace."""
    fetcher = Fetcher(
        seconds=60,
        steps=PATIENT,
        ports=frozenset({world.origin.port}),
        resolve=Hosts({"images.example": [["127.0.0.1"]]}).resolve,
        open_to=frozenset({("127.0.0.1", world.origin.port)}),
        network=httpcore.AnyIOBackend(),
    )

    url = f"http://images.example:{world.origin.port}/a.png"
    assert await fetcher.fetch(url, most=MOST) == IMAGE
