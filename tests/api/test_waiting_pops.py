"""Many pops that wait at one process, on real servers: what they cost, and who gets a job."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from api.matcher import Bounds, Finds
from handlers.accounts import open_account
from tests.api.site import SECRET, Site

POPS = 100
SUBMITTING = 2
"""Scripts that a submission runs: `admit` and `submit`. A try to take its job is one more."""


class Asked:
    """Counts the queries of a site's matcher."""

    def __init__(self, site: Site) -> None:
        self.queries: Counter[str] = Counter()
        finds = site.parts.matcher.finds
        site.parts.matcher.finds = Finds(
            *(self._counted(name, find) for name, find in finds._asdict().items())
        )

    def _counted(self, name: str, find: Any) -> Any:
        def counting(*args: Any, **kwargs: Any) -> Any:
            self.queries[name] += 1
            return find(*args, **kwargs)

        return counting


async def scripts_run(site: Site) -> int:
    """How many scripts the server has run so far, whoever asked for them."""
    told = (await site.parts.log.read("INFO", "commandstats")).decode()
    line = next(line for line in told.splitlines() if line.startswith("cmdstat_evalsha:"))
    return int(line.split("calls=")[1].split(",")[0])


async def in_line(site: Site, count: int) -> None:
    """Wait until so many pops wait."""
    async with asyncio.timeout(20):
        while sum(len(shelf._waiting) for shelf in site.parts.matcher._shelves.values()) != count:
            await asyncio.sleep(0.005)


@pytest.fixture
async def waiting(site: Site) -> Any:
    """Pops of as many workers, in line."""
    pops = [asyncio.create_task(site.pop(name=f"w{n}", wait=60)) for n in range(POPS)]
    await in_line(site, POPS)
    await site.project()
    yield pops
    site.parts.drain.start()
    answers = await asyncio.gather(*pops)
    assert {answer.status_code for answer in answers} == {200}


async def test_a_new_job_is_tried_once_and_goes_to_one_of_them(
    site: Site, waiting: list[asyncio.Task[Any]]
) -> None:
    got: set[str] = set()
    log, follower = site.parts.log, site.parts.follower
    async with site.projected():
        for number in range(1, 6):
            before = await scripts_run(site)
            request_id = await site.queued()
            async with asyncio.timeout(20):
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            waiting[:] = [pop for pop in waiting if pop not in done]
            ids = [each.result().json()["id"] for each in done]
            assert len(ids) == 1, f"{request_id} went to several"
            # What says that it is taken wakes nobody.
            assert await follower.reached("eligibility", 0, await log.head(0), 60)
            await in_line(site, POPS - number)
            assert await scripts_run(site) - before == SUBMITTING + 1
            got.update(ids)
    assert len(got) == 5


async def test_while_no_job_comes_they_look_together_and_ask_nothing_else(
    site: Site, waiting: list[asyncio.Task[Any]]
) -> None:
    loop = asyncio.get_running_loop()
    asked, scripts = Asked(site), await scripts_run(site)
    started = loop.time()

    async with asyncio.timeout(20):
        while asked.queries["best"] < 3:
            await asyncio.sleep(0.005)

    looks = asked.queries["best"]
    assert asked.queries == {"best": looks}
    assert loop.time() - started >= (looks - 1) * Bounds().empty - 0.1
    assert not any(pop.done() for pop in waiting)
    assert await scripts_run(site) == scripts


@pytest.mark.parametrize(
    ("method", "body"),
    [("PUT", {"maintenance": True}), ("PUT", {"paused": True}), ("DELETE", None)],
    ids=["maintenance", "paused", "deleted"],
)
async def test_a_worker_that_is_changed_while_it_waits_gets_nothing_by_that_pop(
    any_site: Site, method: str, body: dict[str, bool] | None
) -> None:
    site = any_site
    await site.pop()
    await site.project()
    (id_,) = [worker["id"] for worker in (await site.http.get("/v2/workers")).json()]
    _, moderator = await open_account(site.parts.log, SECRET, "moderator", moderator=True)
    another = asyncio.create_task(site.pop(name="another", wait=60))
    pop = asyncio.create_task(site.pop(wait=60))
    await in_line(site, 2)

    async with site.projected(), asyncio.timeout(20):
        headers = {"apikey": moderator}
        path = f"/v2/workers/{id_}"
        changed = await site.http.request(method, path, json=body, headers=headers)
        answer = await pop
        await site.queued()
        job = (await another).json()

    assert changed.status_code == 200
    assert (answer.status_code, answer.json()["id"]) == (200, None)
    assert job["id"] is not None
