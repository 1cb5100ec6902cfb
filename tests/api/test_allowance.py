"""What is free, what needs kudos upfront, and what is said to those who lack them."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

import api.allowance
from events.base import KUDOS
from events.types import Submitted
from handlers.accounts import FLOORS, open_account
from handlers.replay import read_log
from handlers.shared_keys import Terms, open_shared_key
from hordechat.settling import settle
from lua.link import Tail
from tests.api.site import LENIENT, MODEL, SECRET, Site, opened
from tests.handlers.pool import request_of
from tests.instruments import Point, counted, point, recorded
from tests.logged import logged
from tests.spec import spec

CHAT, TEXT = "/v2/generate/chat/async", "/v2/generate/text/async"
TEXT_STATUS = "/v2/generate/text/status"
ABOVE = 1680
"""Tokens, for which 80 kudos are needed upfront: a model that nobody knows counts as of 1 billion
parameters."""
UPFRONT = 80 * KUDOS
DECISIONS = "horde.text.free_allowance.decisions"
ESTIMATED = "horde.text.free_allowance.estimated_wait_seconds"
QUEUED = "horde.text.queue_wait_seconds"
FAST: dict[str, Any] = {"text_job_lease_seconds": 600}
"""A worker without a measured speed is offered chat jobs of up to 5700 tokens."""
TIGHT: dict[str, Any] = FAST | {"text_free_output_ceiling": 512}
"""No more than the floor is free, however idle the workers are."""
WIDE: dict[str, Any] = {"max_length": 8192, "max_context_length": 8192}


@contextlib.asynccontextmanager
async def living(redis_url: str, migrated_url: str, **settings: Any) -> AsyncIterator[Site]:
    """A site with a worker of 10 tokens a second, whose read models and settler follow."""
    async with opened(redis_url, migrated_url, served=False, patience=LENIENT, **settings) as site:
        tail = Tail(redis_url)
        settling = asyncio.create_task(settle(site.parts.log, site.parts.limits, tail, 0))
        await site.pop(chat_limits=WIDE, **WIDE)
        await site.project()
        async with site.projected():
            yield site
        settling.cancel()
        await asyncio.gather(settling, return_exceptions=True)
        await tail.close()


@pytest.fixture
async def idle(redis_url: str, migrated_url: str) -> AsyncIterator[Site]:
    """Nothing waits, so the ceiling is free."""
    async with living(redis_url, migrated_url, **FAST) as site:
        yield site


@pytest.fixture
async def tight(redis_url: str, migrated_url: str) -> AsyncIterator[Site]:
    """Only the floor is free."""
    async with living(redis_url, migrated_url, **TIGHT) as site:
        yield site


async def account(site: Site, kudos: float = 0) -> tuple[int, str]:
    """An account with so many kudos to spend."""
    held = FLOORS["registered"] + round(kudos * KUDOS)
    return await open_account(site.parts.log, SECRET, "somebody", kudos=held)


async def shared(site: Site, key: str, **terms: Any) -> str:
    """A shared key of an account."""
    owner = await site.parts.accounts.find(key)
    return await open_shared_key(site.parts.log, owner, Terms(**terms))


def chat(length: int = ABOVE, **horde: Any) -> dict[str, Any]:
    """A chat request."""
    said = [{"role": "user", "content": "hi"}]
    return {"model": MODEL, "messages": said, "max_tokens": length, "horde": horde}


def text(length: int = ABOVE, **more: Any) -> dict[str, Any]:
    """A text request."""
    params = {"max_length": length, "max_context_length": 8192}
    return {"prompt": "hi", "models": [MODEL], "params": params} | more


async def submit(site: Site, body: dict[str, Any], key: str) -> httpx.Response:
    """Ask, again while the settler or a read model is behind: a busy machine makes them slow."""
    path = TEXT if "prompt" in body else CHAT
    while (answer := await site.post(path, body, key)).status_code == 503:
        pass
    return answer


async def refused(site: Site, body: dict[str, Any], key: str) -> tuple[str, str]:
    """The code and the message of a request that is refused for what it costs."""
    answer = await submit(site, body, key)
    assert answer.status_code == 403, answer.text
    return answer.json()["rc"], answer.json()["message"]


async def told_of(site: Site, user_id: int) -> dict[str, int]:
    """The numbers of an account."""
    names = ("kudos", "held", "waiting")
    log = site.parts.log
    values = await log.read("HMGET", log.keys.account(user_id), *names)
    return {name: int(value or 0) for name, value in zip(names, values, strict=True)}


async def request(site: Site, answer: httpx.Response) -> dict[str, str]:
    """Hot state of a request that was taken."""
    assert answer.status_code == 202, answer.text
    log = site.parts.log
    flat = await log.read("HGETALL", log.keys.request(answer.json()["id"]))
    return {k.decode(): v.decode() for k, v in zip(flat[::2], flat[1::2], strict=True)}


async def words(site: Site) -> Counter[str]:
    """How many events there are, by their words."""
    found: Counter[str] = Counter()
    async for page in read_log(site.parts.log, 0):
        found.update(str(type(e.recorded.event).__struct_config__.tag) for e in page)
    return found


async def priorities(site: Site) -> list[float]:
    """Of the requests, in kudos."""
    return [
        entry.recorded.event.priority / KUDOS
        async for page in read_log(site.parts.log, 0)
        for entry in page
        if isinstance(entry.recorded.event, Submitted)
    ]


async def decided(site: Site, before: Counter[Point]) -> Counter[Point]:
    """The decisions since then: those of requests within the floor are told behind their backs."""
    while site.parts.log._background:
        await asyncio.wait(site.parts.log._background)
    added = counted() - before
    return Counter({each: n for each, n in added.items() if each[0] == DECISIONS})


def decision(requester: str, outcome: str, asked: str, free: str, *, chat: bool) -> Point:
    """How one is counted."""
    return point(
        DECISIONS,
        requester=requester,
        outcome=outcome,
        requested_bucket=asked,
        allowance_bucket=free,
        chat=chat,
    )


# parallel submissions


@spec("Kudos", 8)
@spec("Free output allowance", 2)
@pytest.mark.parametrize("body", [chat(), text()], ids=["chat", "text"])
async def test_kudos_for_one_request_admit_one_of_ten(tight: Site, body: dict[str, Any]) -> None:
    """C-113."""
    user_id, key = await account(tight, 100)
    before = await told_of(tight, user_id)

    answers = await asyncio.gather(*(submit(tight, body, key) for _ in range(10)))

    assert Counter(answer.status_code for answer in answers) == {202: 1, 403: 9}
    for answer in answers:
        if answer.status_code == 403:
            assert answer.json()["rc"] == "KudosUpfront"
            assert "needs 80 kudos upfront" in answer.json()["message"]
            assert "up to 512 tokens" in answer.json()["message"]
    after = await told_of(tight, user_id)
    assert after == {"kudos": before["kudos"] - KUDOS, "held": UPFRONT, "waiting": 1}
    assert after["kudos"] - after["held"] >= FLOORS["registered"]


async def test_one_operation_sent_twenty_times_is_taxed_and_held_for_once(tight: Site) -> None:
    """C-111."""
    user_id, key = await account(tight, 100)
    before = await told_of(tight, user_id)
    body = chat(operation_key=str(uuid.uuid4()))

    answers = await asyncio.gather(*(submit(tight, body, key) for _ in range(20)))

    assert Counter(answer.status_code for answer in answers) == {202: 1, 200: 19}
    assert len({answer.json()["id"] for answer in answers}) == 1
    after = await told_of(tight, user_id)
    assert after == {"kudos": before["kudos"] - KUDOS, "held": UPFRONT, "waiting": 1}
    told = await words(tight)
    assert (told["admitted"], told["submitted"]) == (1, 1)


@spec("Kudos", 28)
async def test_a_reply_sent_again_is_paid_once_and_refused_stably(idle: Site) -> None:
    """C-117."""
    _, key = await account(idle, 100)
    assert (await submit(idle, chat(512), key)).status_code == 202
    await idle.project()
    job = await idle.popped(chat_limits=WIDE)

    answers = await asyncio.gather(*(idle.reply(job["id"]) for _ in range(2)))
    again = await idle.reply(job["id"])

    first, second = sorted(answers, key=lambda answer: answer.status_code)
    assert (first.status_code, second.status_code, again.status_code) == (200, 400, 400)
    assert second.json()["rc"] == again.json()["rc"] == "DuplicateGen"
    await idle.settle()
    told = await words(idle)
    assert (told["charged"], told["rewarded"], told["faulted"]) == (1, 1, 0)


# the allowance


@spec("Free output allowance", 1, 6, 7, 10, 15, 22, 23)
async def test_the_longer_the_queue_the_less_is_free(idle: Site) -> None:
    """One thread of 10 tokens a second, as every worker without a measured speed."""
    user_id, key = await account(idle)
    before, waits = counted(), recorded(ESTIMATED)

    answer = await submit(idle, text(4096), key)
    first = await request(idle, answer)
    assert await wait_time(idle, answer) == 410
    rc, message = await refused(idle, chat(600), key)

    assert rc == "KudosUpfront"
    assert "needs 28.57 kudos upfront; this account has 0 to spend" in message
    assert "up to 512 tokens" in message  # 409.6 s of queue
    assert first["max_length"] == "4096"
    assert (await told_of(idle, user_id))["held"] == 0
    assert await decided(idle, before) == {
        decision("registered", "free", "2049-4096", "2049-4096", chat=False): 1,
        decision("registered", "refused", "513-1024", "<=512", chat=True): 1,
    }
    assert recorded(ESTIMATED) - waits == {
        point(ESTIMATED, requester="registered", chat=False): 1,
        point(ESTIMATED, requester="registered", chat=True): 1,
    }


async def wait_time(site: Site, answer: httpx.Response) -> int:
    """Of a text request; it is in the queue that the process knows, from then on."""
    await site.project()
    status = await site.http.get(f"{TEXT_STATUS}/{answer.json()['id']}")
    assert status.json()["queue_position"] == 1
    return int(status.json()["wait_time"])


@spec("Free output allowance", 9, 15)
async def test_the_wait_is_that_of_the_status_without_the_own_output(idle: Site) -> None:
    """Of 1200 tokens that wait, at 10 a second: 120 seconds, for which 3200 are free."""
    _, key = await account(idle)
    ahead = await wait_time(idle, await submit(idle, text(1200), key))

    taken = await submit(idle, chat(3200), key)
    _, message = await refused(idle, chat(3201), key)

    assert ahead == 120
    assert taken.status_code == 202
    assert "up to 512 tokens" in message  # 440 s since the last one was taken


async def test_nothing_is_refused_for_a_queue_of_a_moment_ago(idle: Site) -> None:
    """What a process knows of the queue is up to a second old: enough to let in, not to refuse."""
    user_id, key = await account(idle)
    ahead = await submit(idle, text(4096), key)
    assert await wait_time(idle, ahead) == 410
    await idle.http.delete(f"{TEXT_STATUS}/{ahead.json()['id']}")
    await idle.project()

    taken = await submit(idle, chat(600), key)

    assert taken.status_code == 202
    assert (await told_of(idle, user_id))["held"] == 0


@spec("Free output allowance", 15)
async def test_what_a_request_asks_for_itself_is_not_ahead_of_it(idle: Site) -> None:
    """What is free under any load is measured behind the request's back: it may be queued then."""
    _, key = await account(idle)
    answer = await submit(idle, text(500), key)
    assert await wait_time(idle, answer) == 50
    payer, new = await idle.parts.accounts.find(key), request_of(max_length=500, models=(MODEL,))

    async def wait(request_id: str | None) -> float | None:
        while not (found := await idle.parts.allowances.measured(payer, new, request_id)):
            pass  # a busy machine measures too slowly
        return found.wait

    assert (await wait(answer.json()["id"]), await wait(None)) == (0, 50)


@spec("Free output allowance", 17)
async def test_fast_workers_alone_always_need_kudos_upfront(idle: Site) -> None:
    user_id, key = await account(idle)

    rc, message = await refused(idle, text(16, slow_workers=False), key)

    assert rc == "KudosUpfront"
    assert "refuses slow workers needs kudos upfront whatever its length" in message
    assert "with slow workers up to 4096 tokens" in message
    _, rich = await account(idle, 1)
    assert (await submit(idle, text(16, slow_workers=False), rich)).status_code == 202
    assert (await told_of(idle, user_id))["waiting"] == 0


@spec("Free output allowance", 18)
async def test_lists_of_workers_may_need_kudos_upfront(redis_url: str, migrated_url: str) -> None:
    async with living(redis_url, migrated_url, upfront_kudos_on_workerlist=True, **FAST) as site:
        _, key = await account(site)
        (worker,) = (await site.http.get("/v2/workers?type=text")).json()
        listed = text(100, workers=[worker["id"]], allow_downgrade=True)

        rc, message = await refused(site, listed, key)
        told = await refused(site, chat(100, only=[worker["id"]]), key)
        free = await submit(site, text(100), key)

        assert (rc, told[0], free.status_code) == ("KudosUpfront", "KudosUpfront", 202)
        assert "whatever its length; without a list up to 4096 tokens" in message


# nobody can serve it


@spec("Free output allowance", 4, 5, 21)
async def test_where_nobody_can_serve_it_that_is_said_instead_of_what_it_costs(
    tight: Site,
) -> None:
    _, key = await account(tight)
    _, rich = await account(tight, 1000)
    empty = await shared(tight, key, kudos=0)
    seed = chat() | {"seed": 7}
    both = chat(ABOVE, max_context_length=100_000) | {"seed": 7}
    before = counted()

    answer = await submit(tight, seed, key)

    assert (answer.status_code, answer.json()) == (
        403,
        {
            "message": "No online worker can serve this request: no online worker serving the "
            "model declares seed.",
            "rc": "NoEligibleWorker",
            "impossible_reason": {
                "kind": "declaration_gap",
                "missing_declarations": ["seed"],
                "exceeded_limits": [],
            },
        },
    )
    told = await submit(tight, both, key)
    assert told.json()["message"] == (
        "No online worker can serve this request: no online worker serving the model declares "
        "seed; the request exceeds the max_context_length limit of every online worker serving "
        "the model."
    )
    nobody = await submit(tight, text(models=["nobody/serves/it"]), key)
    assert nobody.json() == {
        "message": "No online worker can serve this request.",
        "rc": "NoEligibleWorker",
    }
    assert (await refused(tight, seed, empty))[0] == "NoEligibleWorker"
    # Covered by the hold, or within the floor, it waits for such a worker.
    assert (await submit(tight, seed, rich)).status_code == 202
    assert (await submit(tight, seed | {"max_tokens": 512}, key)).status_code == 202
    added = await decided(tight, before)
    assert {each: n for each, n in added.items() if ("horde.outcome", "refused") in each[1]} == {
        decision("registered", "refused", "1025-2048", "<=512", chat=True): 2,
        decision("registered", "refused", "1025-2048", "<=512", chat=False): 1,
        decision("shared_key", "refused", "1025-2048", "<=512", chat=True): 1,
    }


# downgrades and dry runs


@spec("Free output allowance", 3, 20, 25)
async def test_a_text_request_is_lowered_to_what_is_free(tight: Site) -> None:
    user_id, key = await account(tight)
    body = text(ABOVE, allow_downgrade=True)
    before = counted()

    with logged(api.allowance.logger) as lines:
        answer = await submit(tight, body, key)

    lowered = await request(tight, answer)
    same = await submit(tight, text(512, dry_run=True), key)
    assert answer.json()["kudos"] == same.json()["kudos"]
    assert lowered["max_length"] == "512"
    assert await told_of(tight, user_id) == {
        "kudos": FLOORS["registered"],  # the tax took it below, and it was lifted
        "held": 0,
        "waiting": 1,
    }
    path = f"/v2/generate/text/request/{answer.json()['id']}"
    stored = (await tight.http.get(path, headers={"apikey": key})).json()
    assert (stored["params"]["max_length"], stored["slow_workers"]) == (512, True)
    assert await decided(tight, before) == {
        decision("registered", "downgraded", "1025-2048", "<=512", chat=False): 1
    }
    (line,) = [each for each in lines if each["event"] == "downgraded"]
    assert line["request_id"] == answer.json()["id"]
    assert (line["max_length"], line["allowance"], line["slow_workers"]) == (ABOVE, 512, True)


@spec("Free output allowance", 3)
async def test_a_request_that_is_short_enough_is_lowered_to_slow_workers_alone(
    idle: Site,
) -> None:
    _, key = await account(idle)

    answer = await submit(idle, text(100, slow_workers=False, allow_downgrade=True), key)

    assert (await request(idle, answer))["max_length"] == "100"
    assert "warnings" not in answer.json()  # the worker that is online may take it now


async def test_who_covers_a_hold_is_not_lowered(tight: Site) -> None:
    user_id, key = await account(tight, 80)

    answer = await submit(tight, text(ABOVE, allow_downgrade=True), key)

    assert (await request(tight, answer))["max_length"] == str(ABOVE)
    assert (await told_of(tight, user_id))["held"] == UPFRONT


@spec("Free output allowance", 19, 25)
@pytest.mark.parametrize("body", [chat(dry_run=True), text(dry_run=True)], ids=["chat", "text"])
async def test_a_dry_run_is_quoted_whatever_there_is_to_spend(
    tight: Site, body: dict[str, Any]
) -> None:
    _, key = await account(tight)
    empty = await shared(tight, key, kudos=0)
    before, waits = counted(), recorded(ESTIMATED)

    answers = [await submit(tight, body, key), await submit(tight, body, empty)]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert await decided(tight, before) == {}
    assert recorded(ESTIMATED) == waits


# shared keys


@spec("Free output allowance", 26)
@pytest.mark.parametrize("ask", [chat, text], ids=["chat", "text"])
async def test_an_empty_shared_key_is_as_good_as_none(tight: Site, ask: Any) -> None:
    """C-115: what is free runs as the anonymous account's, behind all others'."""
    user_id, key = await account(tight, 1000)
    empty = await shared(tight, key, kudos=0)
    before = counted()

    free = await request(tight, await submit(tight, ask(512), empty))
    rc, message = await refused(tight, ask(513), empty)

    assert (free["user"], free["shared_key"]) == ("0", "")
    assert rc == "SharedKeyEmpty"
    assert "up to 512 tokens" in message
    assert (await told_of(tight, user_id))["waiting"] == 0
    is_chat = ask is chat
    assert await decided(tight, before) == {
        decision("shared_key", "free", "<=512", "<=512", chat=is_chat): 1,
        decision("shared_key", "refused", "513-1024", "<=512", chat=is_chat): 1,
    }
    assert await priorities(tight) == [-50]


@pytest.mark.parametrize("ask", [chat, text], ids=["chat", "text"])
async def test_of_requests_at_once_a_shared_key_pays_for_as_many_as_it_can(
    tight: Site, ask: Any
) -> None:
    """All of them found it with a budget of 1. The tax of the first one emptied it, and the others
    cost its owner whatever they came to: now they are as those with an empty key."""
    user_id, key = await account(tight, 1000)
    last = await shared(tight, key, kudos=1)

    answers = await asyncio.gather(*(submit(tight, ask(512), last) for _ in range(6)))
    taken = [await request(tight, answer) for answer in answers]

    assert Counter(each["user"] for each in taken) == {str(user_id): 1, "0": 5}
    assert (await told_of(tight, user_id))["waiting"] == 1
    assert Counter(await priorities(tight))[-50] == 5


@spec("Free output allowance", 26)
async def test_an_empty_shared_key_gets_what_idle_workers_give(idle: Site) -> None:
    _, key = await account(idle)

    answer = await submit(idle, chat(4096), await shared(idle, key, kudos=0))

    assert (await request(idle, answer))["user"] == "0"


async def test_an_empty_shared_key_of_another_partition_is_as_good_as_none(any_site: Site) -> None:
    for _ in range(4):
        _, key = await account(any_site)
        empty = await shared(any_site, key, kudos=0)
        answer = await any_site.post(CHAT, chat(512), empty)
        assert answer.status_code == 202, answer.text


@spec("Shared keys", 4, 6)
async def test_a_shared_key_spends_its_owner_s_kudos_up_to_its_budget(tight: Site) -> None:
    user_id, key = await account(tight, 1000)
    budget = await shared(tight, key, kudos=100)

    taken = await request(tight, await submit(tight, chat(), budget))
    rc, message = await refused(tight, chat(), budget)
    free = await submit(tight, chat(512), budget)
    lowered = await submit(tight, text(ABOVE, allow_downgrade=True), budget)

    assert await priorities(tight) == [1025, 1024, -50]  # what it had, less two taxes, and none
    assert (taken["user"], taken["shared_key"]) == (str(user_id), budget)
    assert rc == "SharedKeyInsufficientKudos"
    assert "up to 512 tokens" in message
    assert (await request(tight, free))["user"] == str(user_id)
    assert (await request(tight, lowered))["max_length"] == "512"
    assert (await told_of(tight, user_id))["held"] == UPFRONT


@spec("Shared keys", 7)
async def test_a_shared_key_caps_the_tokens_of_a_request(idle: Site) -> None:
    _, key = await account(idle)
    capped = await shared(idle, key, max_text_tokens=100)

    for ask in (chat, text):
        answers = [await submit(idle, ask(length), capped) for length in (100, 101)]
        assert [answer.status_code for answer in answers] == [202, 400]
        assert answers[1].json()["rc"] == "BadRequest"
        assert "100 is the most" in answers[1].json()["message"]


async def test_an_operation_stays_found_when_its_shared_key_is_emptied_or_filled(
    tight: Site,
) -> None:
    _, key = await account(tight, 1000)
    log = tight.parts.log
    for first, later in ((100, 0), (0, 100)):
        budget = await shared(tight, key, kudos=first)
        body = chat(512, operation_key=str(uuid.uuid4()))
        taken = await submit(tight, body, budget)
        await log.read("HSET", log.keys.shared_key(budget), "kudos", str(later * KUDOS))

        again = await submit(tight, body, budget)

        assert (taken.status_code, again.status_code) == (202, 200)
        assert again.json()["id"] == taken.json()["id"]


# assignments


@spec("Free output allowance", 24)
async def test_how_long_a_request_waited_is_recorded_when_a_worker_takes_it(idle: Site) -> None:
    _, key = await account(idle)
    waits = recorded(QUEUED)
    budget = await shared(idle, key, kudos=100)
    for body, whose in ((chat(512), idle.anonymous), (text(600), key), (chat(2048), budget)):
        assert (await submit(idle, body, whose)).status_code == 202
    await idle.project()

    for _ in range(3):
        await idle.popped(chat_limits=WIDE, **WIDE)

    assert recorded(QUEUED) - waits == {
        point(QUEUED, requester="anonymous", chat=True, requested_bucket="<=512"): 1,
        point(QUEUED, requester="registered", chat=False, requested_bucket="513-1024"): 1,
        point(QUEUED, requester="shared_key", chat=True, requested_bucket="1025-2048"): 1,
    }
