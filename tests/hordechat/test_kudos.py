"""`hordechat kudos` on a real log."""

from __future__ import annotations

import asyncio
import json

from click.testing import CliRunner, Result

from events.keys import Keys
from handlers.limits import Limits
from handlers.log import Log
from hordechat.cli import main
from lua.link import Link
from tests.handlers.pool import Pool
from tests.spec import spec


def _grant(redis_url: str, *args: str) -> Result:
    servers = {"REDIS_URL": redis_url, "DATABASE_URL": "postgresql://unused", "HORDE_SECRET": "x"}
    return CliRunner().invoke(main, ["kudos", "grant", *args], env=servers)


@spec("Accounts", 12)
def test_an_operator_gives_and_takes_kudos(redis_url: str) -> None:
    async def user_id() -> int:
        pool = await Pool.opened(Log(Link(redis_url, timeout=20), Keys(1)), Limits())
        await pool.log.close()
        return pool.client.id

    number = asyncio.run(user_id())
    told = {"id": number, "username": f"client#{number}"}

    given = _grant(redis_url, f"client#{number}", "2.5", "--id", "a")
    repeated = _grant(redis_url, str(number), "2.5", "--id", "a")
    taken = _grant(redis_url, str(number), "-1000")

    assert given.exit_code == 0, given.output
    assert json.loads(given.stdout) == {**told, "granted": 2.5, "kudos": 102.5}
    assert json.loads(repeated.stdout) == {**told, "granted": 0, "kudos": 102.5}
    assert json.loads(taken.stdout) == {**told, "granted": -1000, "kudos": 25}


def test_an_account_that_is_none_is_told_in_a_sentence(begun_url: str) -> None:
    result = _grant(begun_url, "nobody#99", "1")

    assert result.exit_code == 1
    assert result.stderr.strip().endswith("There is no such account.")
