"""The modes of the service over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.api.site import Site, opened

MODES = "/v2/status/modes"


@pytest.fixture
async def site(redis_url: str, migrated_url: str) -> AsyncIterator[Site]:
    """Of which the client is an operator, and so is, by mistake, everybody."""
    admins = "nobody#99, client#1,Anonymous#0"
    async with opened(redis_url, migrated_url, admins=admins) as made:
        assert (await made.parts.accounts.find(made.client_key)).username == "client#1"
        yield made


async def put(site: Site, key: str | None, body: Any) -> tuple[int, Any]:
    headers = {} if key is None else {"apikey": key}
    answer = await site.http.put(MODES, json=body, headers=headers)
    return answer.status_code, answer.json()


async def test_an_operator_switches_maintenance_on_and_off(site: Site) -> None:
    shown = {"maintenance_mode": False, "invite_only_mode": False}
    assert (await site.http.get(MODES)).json() == shown

    assert await put(site, site.client_key, {"maintenance": True}) == (
        200,
        shown | {"maintenance_mode": True},
    )
    assert (await site.http.get(MODES)).json()["maintenance_mode"] is True
    assert (await site.submit()).json()["rc"] == "MaintenanceMode"

    assert await put(site, site.client_key, {"maintenance": False}) == (200, shown)
    assert (await site.http.get(MODES)).json() == shown
    assert (await site.submit()).status_code == 202


async def test_maintenance_cancels_what_waits(site: Site) -> None:
    request_id = await site.queued()

    await put(site, site.client_key, {"maintenance": True})
    await site.project()

    status = (await site.status(request_id)).json()
    assert (status["done"], status["waiting"], status["generations"]) == (True, 0, [])


async def test_nobody_else_changes_anything(site: Site) -> None:
    before = await site.log_length()
    table = [
        (site.owner_key, {"maintenance": True}, 403, "NotAdmin"),
        (site.anonymous, {"maintenance": True}, 403, "NotAdmin"),
        ("nobody's", {"maintenance": True}, 401, "InvalidAPIKey"),
        (None, {"maintenance": True}, 400, "BadRequest"),
        (site.client_key, {"maintenance": "yes"}, 400, "BadRequest"),
        (site.client_key, [], 400, "BadRequest"),
        (site.client_key, {}, 400, "NoHordeModSelected"),
        (site.client_key, {"maintenance": None}, 400, "NoHordeModSelected"),
        (site.client_key, {"invite_only": True, "raid": True}, 400, "NoHordeModSelected"),
    ]

    for key, body, status, rc in table:
        got, answer = await put(site, key, body)
        assert (got, answer["rc"]) == (status, rc), body

    assert await site.log_length() == before
    assert (await site.http.get(MODES)).json()["maintenance_mode"] is False
