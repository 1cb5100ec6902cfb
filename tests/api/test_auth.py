"""The `apikey` header."""

from __future__ import annotations

import pytest
from falcon.testing import create_asgi_req

from api import auth
from handlers.accounts import Account
from handlers.errors import AnonForbiddenWorker, BadRequest, InvalidAPIKey, NotModerator
from tests.api.site import BODY, Site


class Known:
    """Accounts of which one is asked for."""

    def __init__(self, account: Account) -> None:
        self._account = account

    async def find(self, _key: str) -> Account:
        return self._account

    payer = find


def test_a_missing_header_is_named_like_any_other_parameter() -> None:
    with pytest.raises(BadRequest) as refused:
        auth.key(create_asgi_req())

    assert refused.value.extra == {
        "errors": {"apikey": "Missing required parameter in the HTTP headers"}
    }


def test_a_key_is_told_without_looking_its_account_up() -> None:
    assert auth.key(create_asgi_req(headers={"apikey": "whatever"})) == "whatever"
    assert auth.key(create_asgi_req(headers={"apikey": ""})) == ""


@pytest.mark.parametrize("key", ["", "k" * 257])
async def test_what_no_key_can_be_is_not_looked_up(key: str) -> None:
    req = create_asgi_req(headers={"apikey": key})
    for asked in (auth.account, auth.payer):
        with pytest.raises(InvalidAPIKey):
            await asked(req, None)
    assert await auth.caller(req, None) is None
    assert await auth.caller(create_asgi_req(), None) is None


async def test_roles_are_asked_for() -> None:
    req = create_asgi_req(headers={"apikey": "k"})
    anonymous = Known(Account(0, "Anonymous", False, False, ""))
    user = Known(Account(7, "anna", True, False, ""))
    moderator = Known(Account(8, "ben", True, True, ""))

    assert (await auth.worker_owner(req, user)).id == 7
    assert (await auth.moderator(req, moderator)).id == 8
    with pytest.raises(AnonForbiddenWorker):
        await auth.worker_owner(req, anonymous)
    with pytest.raises(NotModerator):
        await auth.moderator(req, user)


async def test_a_body_that_is_refused_hides_the_caller_s_fault(site: Site) -> None:
    path = "/v2/generate/chat/async"

    assert "apikey" not in (await site.post(path, {})).json()["errors"]
    assert (await site.post(path, BODY)).json()["errors"].keys() == {"apikey"}
