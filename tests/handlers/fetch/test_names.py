"""Names are resolved in the loop: by files, by name servers, and not for longer than one waits."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from handlers.fetch.names import Names

A, AAAA = 1, 28
NO_SUCH_NAME, FAILED = 3, 2


class NameServer(asyncio.DatagramProtocol):
    """Answers with what it holds: the addresses of a name, a code, or nothing at all (None)."""

    def __init__(self, holds: dict[str, list[str] | int | None]) -> None:
        self.holds = holds
        self.asked: list[str] = []
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        labels, at = [], 12
        while data[at]:
            labels.append(data[at + 1 : at + 1 + data[at]].decode())
            at += data[at] + 1
        name, kind = ".".join(labels), int.from_bytes(data[at + 1 : at + 3])
        self.asked.append(name)
        held = self.holds.get(name.lower(), NO_SUCH_NAME)
        if held is None:
            return
        found = [] if isinstance(held, int) else [ip_address(each).packed for each in held]
        found = [each for each in found if len(each) == (4 if kind == A else 16)]
        code = held if isinstance(held, int) else 0
        question = data[12 : at + 5]
        counts = b"\0\1" + len(found).to_bytes(2) + bytes(4)
        records = b"".join(
            b"\xc0\x0c" + kind.to_bytes(2) + b"\0\1" + bytes(4) + len(each).to_bytes(2) + each
            for each in found
        )
        self.transport.sendto(
            data[:2] + (0x8180 | code).to_bytes(2) + counts + question + records, addr
        )


@asynccontextmanager
async def asking(holds: dict[str, list[str] | int | None]) -> AsyncIterator[Names]:
    """Names that ask a name server on loopback."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: NameServer(holds), local_addr=("127.0.0.1", 0)
    )
    names = Names([f"127.0.0.1:{transport.get_extra_info('sockname')[1]}"])
    try:
        yield names
    finally:
        await names.close()
        transport.close()


async def test_a_name_has_its_addresses_of_both_kinds_private_ones_too() -> None:
    holds = ["93.184.216.34", "10.0.0.1", "2606:4700::1111", "fd00::1", "::ffff:127.0.0.1"]
    async with asking({"a.example": [*holds]}) as names:
        found = await names.resolve("a.example", 443)

    assert {ip_address(each) for each in found} == {ip_address(each) for each in holds}


async def test_a_name_that_is_not_there_has_no_address() -> None:
    async with asking({"none.example": NO_SUCH_NAME, "empty.example": []}) as names:
        assert await names.resolve("none.example", 80) == []
        assert await names.resolve("empty.example", 80) == []


async def test_a_name_server_that_fails_is_told_apart_from_one_that_knows_no_such_name() -> None:
    async with asking({"a.example": FAILED}) as names:
        with pytest.raises(OSError, match="could not be resolved"):
            await names.resolve("a.example", 80)


async def test_no_domain_of_ours_is_appended_to_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALDOMAIN", "inside.example")
    async with asking({"db.inside.example": ["10.0.0.1"]}) as names:
        assert await names.resolve("db", 80) == []


async def test_names_of_the_hosts_file_need_no_name_server() -> None:
    lines = [line.partition("#")[0].split() for line in Path("/etc/hosts").read_text().splitlines()]
    listed = {line[1]: line[0] for line in reversed(lines) if len(line) > 1}
    async with asking({}) as names:
        for name, address in listed.items():
            assert ip_address(address) in {ip_address(a) for a in await names.resolve(name, 80)}
        assert set(await names.resolve("localhost", 80)) <= {"127.0.0.1", "::1"}


async def test_a_silent_name_server_holds_up_neither_other_names_nor_a_thread_each() -> None:
    silent = {f"{n}.silent.example": None for n in range(50)}
    async with asking({"a.example": ["93.184.216.34"], **silent}) as names:
        await names.resolve("a.example", 80)
        threads = threading.active_count()
        waiting = [asyncio.create_task(names.resolve(name, 80)) for name in silent]

        async with asyncio.timeout(20):
            assert await names.resolve("a.example", 443) == ["93.184.216.34"]

        assert not any(task.done() for task in waiting)
        assert threading.active_count() == threads
        for task in waiting:
            task.cancel()
        assert all(
            isinstance(each, asyncio.CancelledError)
            for each in await asyncio.gather(*waiting, return_exceptions=True)
        )


async def test_closing_ends_what_is_being_resolved() -> None:
    async with asking({"silent.example": None}) as names:
        waiting = asyncio.create_task(names.resolve("silent.example", 80))
        await asyncio.sleep(0)
        await names.close()

        with pytest.raises(OSError, match="cancelled"):
            await waiting


@pytest.mark.parametrize(
    "host", ["a" * 64 + ".example", "a..example", "é.example", "a b.example", "\0", ".", "-"]
)
async def test_names_that_no_server_can_be_asked_for_are_no_fault_of_ours(host: str) -> None:
    found: Sequence[str] = []
    async with asking({host.lower(): NO_SUCH_NAME}) as names:
        with suppress(OSError):
            found = await names.resolve(host, 80)
    assert found == []


@pytest.mark.parametrize("end", ["await names.close()", "pass"])
async def test_an_interpreter_that_resolved_ends_without_a_word(end: str) -> None:
    """Closed or not, and with a name still being resolved."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        program = f"""
import asyncio
from handlers.fetch.names import Names
async def main():
    names = Names(["127.0.0.1:{silent.getsockname()[1]}"])
    await names.resolve("localhost", 80)
    asyncio.ensure_future(names.resolve("silent.example", 80))
    await asyncio.sleep(0)
    {end}
asyncio.run(main())
"""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-W",
            "error",
            "-c",
            program,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said, _ = await process.communicate()

    assert (process.returncode, said) == (0, b"")
