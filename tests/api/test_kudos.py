"""Giving kudos over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

from handlers.accounts import open_account
from tests.api.site import SECRET, Site
from tests.spec import spec

TRANSFER = "/v2/kudos/transfer"


async def give(
    site: Site, body: Any, key: str | None = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await site.post(TRANSFER, body, key or site.client_key, sent)
    return answer.status_code, answer.json()


async def test_kudos_are_given_and_arrive(any_site: Site) -> None:
    site = any_site
    owner = await site.parts.accounts.find(site.owner_key)

    told = await give(site, {"username": owner.username, "amount": 12.3456})

    assert told == (200, {"transferred": 12.3456})
    await site.settle()
    key = site.parts.log.keys.account(owner.id)
    assert await site.parts.log.read("HGET", key, "kudos") == b"373456"
    assert await give(site, {"username": f"anything#{owner.id}", "amount": 1}) == (
        200,
        {"transferred": 1.0},
    )


@spec("Kudos", 21)
async def test_a_lost_answer_may_be_asked_for_again(site: Site) -> None:
    body = {"username": "owner#2", "amount": 10}
    key = site.parts.log.keys.account(1)
    had = int(await site.parts.log.read("HGET", key, "kudos"))

    answers = await asyncio.gather(*(give(site, body, idempotency_key="k!") for _ in range(20)))

    assert answers == [(200, {"transferred": 10.0})] * 20
    events = await site.log_length()
    assert await give(site, body, idempotency_key="k!") == answers[0]
    other = await give(site, body | {"amount": 11}, idempotency_key="k!")
    assert (other[0], other[1]["rc"]) == (400, "IdempotencyKeyConflict")
    assert await site.log_length() == events
    assert int(await site.parts.log.read("HGET", key, "kudos")) == had - 100_000


@spec("Kudos", 19)
async def test_what_cannot_be_given_is_refused_and_changes_nothing(site: Site) -> None:
    before = await site.state()
    owner = "owner#2"
    table: list[tuple[Any, str | None, int, str]] = [
        ({"username": owner, "amount": 1}, "nobody's", 401, "InvalidAPIKey"),
        ({"username": owner, "amount": 1}, site.anonymous, 400, "KudosTransferFromAnon"),
        ({"username": "Anonymous#0", "amount": 1}, None, 400, "KudosTransferToAnon"),
        ({"username": "client#1", "amount": 1}, None, 400, "KudosTransferToSelf"),
        ({"username": "owner", "amount": 1}, None, 400, "InvalidTargetUsername"),
        ({"username": "owner#99", "amount": 1}, None, 400, "InvalidTargetUsername"),
        ({"username": owner, "amount": 0}, None, 400, "NegativeKudosTransfer"),
        ({"username": owner, "amount": -1}, None, 400, "NegativeKudosTransfer"),
        ({"username": owner, "amount": 1e15}, None, 400, "BadRequest"),
        ({"username": owner, "amount": 0.00001}, None, 400, "BadRequest"),
        ({"username": owner, "amount": "1"}, None, 400, "BadRequest"),
        ({"username": owner, "amount": True}, None, 400, "BadRequest"),
        ({"username": owner}, None, 400, "BadRequest"),
        ({"amount": 1}, None, 400, "BadRequest"),
        (b'{"username": "owner#2", "amount": NaN}', None, 400, "BadRequest"),
        (b'{"username": "owner#2", "amount": 1e999}', None, 400, "BadRequest"),
    ]
    for body, key, status, rc in table:
        got, answer = await give(site, body, key)
        assert (got, answer["rc"]) == (status, rc), body
    for sent in ("", "k" * 256, "a\tb"):
        got, answer = await give(site, {"username": owner, "amount": 1}, idempotency_key=sent)
        assert (got, set(answer["errors"])) == (400, {"Idempotency-Key"}), sent
    missing = await site.post(TRANSFER, {"username": owner, "amount": 1})
    assert (missing.status_code, set(missing.json()["errors"])) == (400, {"apikey"})

    assert await site.state() == before


async def test_what_there_is_is_told_once_it_is_settled(site: Site) -> None:
    _, poor = await open_account(site.parts.log, SECRET, "poor", kudos=1_000_000)
    body = {"username": "owner#2", "amount": 75.0001}
    got, answer = await give(site, body, poor)
    assert (got, answer["rc"]) == (503, "SettlerBehind")

    await site.settle()

    got, answer = await give(site, body, poor)
    assert (got, answer["rc"]) == (400, "KudosTransferNotEnough")
    assert "has 75 to give" in answer["message"]
