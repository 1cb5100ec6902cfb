"""What a client is willing to wait, and who is woken."""

from __future__ import annotations

import asyncio

import falcon.testing
import pytest

from api import wait


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 0),
        ("wait=10", 10),
        ("Wait = 10", 10),
        ('wait="10"', 10),
        ("respond-async, wait=10", 10),
        ("wait=10; foo=bar, respond-async", 10),
        ("wait=600", 60),
        ("wait=0", 0),
        ("wait=-1", 0),
        ("wait=1.5", 0),
        ("wait=ten", 0),
        ("wait", 0),
        ("wait=", 0),
        ("wait=99999999999999999999", 0),
        ("await=10", 0),
        ("x=wait=10", 0),
        ("", 0),
    ],
)
def test_a_preference_is_read_and_what_is_none_is_ignored(header: str | None, seconds: int) -> None:
    headers = {} if header is None else {"prefer": header}

    assert wait.preferred(falcon.testing.create_asgi_req(headers=headers), 60) == seconds


async def test_whoever_watches_hears_of_its_request_alone() -> None:
    watches = wait.Watches(wait.Drain())
    with watches.watch("a") as one, watches.watch("a") as two, watches.watch("b") as other:
        watches.changed(["a", "c"])

        assert await one.next(1)
        assert await two.next(1)
        assert not await other.next(0.01)
        assert not await one.next(0.01)
    assert not watches._waiting


async def test_news_between_two_waits_is_not_lost() -> None:
    watches = wait.Watches(wait.Drain())
    with watches.watch("a") as watch:
        watches.changed(["a"])
        await asyncio.sleep(0)

        assert await watch.next(0)


async def test_a_drain_ends_every_wait_now_and_later() -> None:
    drain = wait.Drain()
    watches = wait.Watches(drain)
    with watches.watch("a") as watch:
        waiting = asyncio.create_task(watch.next(30))
        await asyncio.sleep(0)
        drain.start()
        async with asyncio.timeout(20):
            assert await waiting
            assert await watch.next(30)
