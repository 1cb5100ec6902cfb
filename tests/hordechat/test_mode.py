"""`hordechat mode` on a real log."""

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


def _mode(redis_url: str, *args: str) -> Result:
    servers = {"REDIS_URL": redis_url, "DATABASE_URL": "postgresql://unused", "HORDE_SECRET": "x"}
    return CliRunner().invoke(main, ["mode", *args], env=servers)


def test_maintenance_is_switched_and_shown_and_cancels_what_waits(redis_url: str) -> None:
    async def queue() -> str:
        pool = await Pool.opened(Log(Link(redis_url, timeout=20), Keys(1)), Limits())
        request_id = await pool.submit()
        await pool.log.close()
        return request_id

    request_id = asyncio.run(queue())
    assert json.loads(_mode(redis_url).stdout) == {"maintenance": False}

    result = _mode(redis_url, "maintenance", "on")

    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"maintenance": True}
    assert json.loads(_mode(redis_url).stdout) == {"maintenance": True}

    async def state() -> bytes:
        link = Link(redis_url, timeout=20)
        found: bytes = await link.call("HGET", Keys(1).request(request_id), "state")
        await link.close()
        return found

    assert asyncio.run(state()) == b"done"
    assert json.loads(_mode(redis_url, "maintenance", "off").stdout) == {"maintenance": False}
