"""How many requests a second are admitted of one account, of the anonymous one, whose jobs are
counted for each model, and of many accounts: what one Valkey's scripts bound.

No web server: `admit` runs as commands run it, over one link with many calls in flight, each with a
tax. An account is in one partition, so this is what one account gets however many partitions there
are; many accounts get it once for each partition that has a server of its own.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
import uuid
from itertools import cycle
from pathlib import Path

import msgspec
import uvloop

from bench import cpu
from bench.rig import Result
from events.base import KUDOS
from events.keys import Keys
from handlers.accounts import ANONYMOUS_KEY, Account, Accounts, open_account, open_anonymous
from handlers.admission import admit
from handlers.chat.pricing import tax
from handlers.limits import Limits
from handlers.log import Log
from hordechat.datadir import free_port
from hordechat.embedded import valkey
from hordechat.process import running
from lua.link import connect

ANONYMOUS, ONE, MANY = KINDS = (
    "admission, anonymous",
    "admission, one account",
    "admission, many accounts",
)
_ACCOUNTS = 1000
_IN_FLIGHT = 64
_UNLIMITED = Limits(concurrency=10**9, anonymous_concurrency=10**9)
_SECRET = "bench" * 8


async def _accounts(log: Log, name: str) -> list[Account]:
    """Those who pay."""
    if name == ANONYMOUS:
        await open_anonymous(log)
        keys = [ANONYMOUS_KEY]
    else:
        count = 1 if name == ONE else _ACCOUNTS
        opened = [open_account(log, _SECRET, "payer", kudos=10**6 * KUDOS) for _ in range(count)]
        keys = [key for _, key in await asyncio.gather(*opened)]
    accounts = Accounts(log, _SECRET)
    return [await accounts.find(key) for key in keys]


async def measure(url: str, pid: int, name: str, seconds: float) -> tuple[list[float], float]:
    """Times of the admissions of `seconds`, and the CPU seconds of Valkey."""
    log = Log(await connect(url, timeout=10), Keys(1))
    times: list[float] = []
    try:
        await log.begin()
        turn = cycle(await _accounts(log, name))
        begin = time.monotonic()
        before = cpu.read({"valkey": pid})

        async def drive() -> None:
            while (started := time.monotonic()) < begin + seconds:
                await admit(
                    log,
                    _UNLIMITED,
                    next(turn),
                    str(uuid.uuid4()),
                    1,
                    models=("bench",),
                    tax=tax(),
                )
                times.append(time.monotonic() - started)

        await asyncio.gather(*(drive() for _ in range(_IN_FLIGHT)))
        used = cpu.between(before, cpu.read({"valkey": pid}))
    finally:
        await log.close()
    return times, used["valkey"]


def run(name: str, seconds: float) -> Result:
    """`measure` in a process of its own, on a Valkey of its own."""
    command = [sys.executable, "-P", "-m", "bench.spot", name, str(seconds)]
    root = Path(__file__).parent.parent
    told = subprocess.run(
        command, cwd=root, env={"PYTHONPATH": str(root)}, check=True, capture_output=True
    )
    times, used = msgspec.json.decode(told.stdout)
    return Result(seconds, times, {"valkey": used}, {})


def main(name: str, seconds: float) -> None:
    """Measure one of them; print times and CPU seconds as JSON."""
    with tempfile.TemporaryDirectory(prefix="hordechat-bench-") as folder:
        service = valkey.service(Path(folder) / "valkey", free_port(), socket=True)
        with running(service, Path(folder) / "valkey.log") as server:
            found = uvloop.run(measure(service.url, server.pid, name, seconds))
    print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
