"""`hordechat user` on a real log."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from handlers.accounts import Accounts
from handlers.errors import InvalidAPIKey
from handlers.limits import Limits
from handlers.log import Log
from handlers.replay import keys_of
from hordechat import commands, settings
from hordechat.cli import main
from hordechat.opening import open_log
from projections.rebuild import rebuild
from tests.handlers.pool import Pool
from tests.spec import spec

SECRET = "x"


@pytest.fixture
def environ(begun_url: str, migrated_url: str) -> dict[str, str]:
    """What names an empty log, and tables without rows."""
    named = {"REDIS_URL": begun_url, "DATABASE_URL": migrated_url}
    return {**named, "HORDE_SECRET": SECRET}


def _user(environ: dict[str, str], *args: str) -> Result:
    return CliRunner().invoke(main, ["user", *args], env=environ)


def _told(environ: dict[str, str], *args: str) -> Any:
    result = _user(environ, *args)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def _owner_of(environ: dict[str, str], api_key: str) -> int | None:
    """The account of a key, if it is anybody's."""

    async def find() -> int | None:
        log: Log = await open_log(settings.load(environ))
        try:
            return (await Accounts(log, SECRET).find(api_key)).id
        except InvalidAPIKey:
            return None
        finally:
            await log.close()

    return asyncio.run(find())


@spec("Accounts", 12)
def test_an_operator_opens_shows_changes_and_deletes_accounts(environ: dict[str, str]) -> None:
    commands._with_log(settings.load(environ), commands.open_anonymous)
    made = _told(
        environ, "create", "anna", "--kudos", "50.5", "--role", "service", "--kind",
        "pseudonymous", "--concurrency", "0",
    )  # fmt: skip
    other = _told(environ, "create", "ben", "--trusted")
    number = str(made["id"])

    listed = _told(environ, "list")

    assert {each["username"] for each in listed} == {
        "Anonymous#0", made["username"], other["username"],
    }  # fmt: skip
    assert [each["id"] for each in listed] == sorted(each["id"] for each in listed)
    shown = _told(environ, "show", made["username"])
    assert (shown.pop("created"), shown) == (
        next(each["created"] for each in listed if each["id"] == made["id"]),
        {
            "id": made["id"],
            "username": made["username"],
            "kind": "pseudonymous",
            "roles": ["service"],
            "kudos": 50.5,
            "concurrency": 0,
            "escrow": 0,
            "worker_invited": 0,
            "public_workers": False,
            "monthly_kudos": 0,
            "usage_multiplier": 1,
            "suspicious": 0,
            "proxy_passkey": False,
            "shared_keys": [],
            "contact": "",
            "admin_comment": "",
        },
    )

    changed = _told(
        environ, "set", number, "--name", "ann", "--grant", "moderator", "--revoke", "service",
        "--concurrency", "9", "--usage-multiplier", "0.5", "--admin-comment", "fine",
        "--public-workers",
    )  # fmt: skip
    assert (changed["username"], changed["roles"]) == (f"ann#{number}", ["moderator", "trusted"])
    assert (changed["concurrency"], changed["usage_multiplier"]) == (9, 0.5)
    assert (changed["admin_comment"], changed["public_workers"]) == ("fine", True)
    assert _told(environ, "set", number, "--admin-comment", "")["admin_comment"] == ""

    fresh = _told(environ, "reset-key", number)["api_key"]
    assert _owner_of(environ, fresh) == made["id"]
    assert _owner_of(environ, made["api_key"]) is None

    assert _told(environ, "delete", number, "--yes") == {
        "deleted_id": made["id"],
        "deleted_name": f"ann#{number}",
    }
    assert _owner_of(environ, fresh) is None
    assert len(_told(environ, "list")) == 2


def test_a_deleted_account_takes_its_workers_along(environ: dict[str, str]) -> None:
    async def serve(log: Log) -> int:
        pool = await Pool.opened(log, Limits())
        await pool.worker("hers")
        return pool.owner.id

    async def workers(log: Log) -> list[str]:
        return [key for key in await keys_of(log, 0, "state") if ":worker:" in key]

    with_log, given = commands._with_log, settings.load(environ)
    owner = with_log(given, serve)
    rebuild("eligibility", redis_url=given.redis_url, database_url=given.database_url, partitions=1)
    assert len(with_log(given, workers)) == 1

    _told(environ, "delete", str(owner), "--yes")

    assert with_log(given, workers) == []


def test_an_account_that_is_none_is_told_in_a_sentence(environ: dict[str, str]) -> None:
    for args in (("show",), ("set", "--grant", "vpn"), ("reset-key",), ("delete", "--yes")):
        result = _user(environ, *args, "99")

        assert result.exit_code == 1
        assert result.stderr.strip().endswith("There is no such account.")
