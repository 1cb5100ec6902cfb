"""A server for a fold of the log beside the live state: of ours alone, and gone with us."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from handlers.log import Log
from hordechat.datadir import free_port
from hordechat.embedded import valkey
from hordechat.process import running
from lua.link import Link

ANSWER_SECONDS = 60.0
"""That a batch of a fold may take."""


@contextmanager
def server(what: str) -> Iterator[str]:
    """The URL of an empty Valkey, which is stopped on the way out. Raise valkey.NotInstalled.

    what  it is for: named in the folder of its files
    """
    valkey.binary()
    with tempfile.TemporaryDirectory(prefix=f"hordechat-{what}-") as folder:
        service = valkey.service(Path(folder) / "scratch", free_port(), fsync="no")
        with running(service, Path(folder) / "scratch.log"):
            yield service.url


@asynccontextmanager
async def beside(log: Log, what: str) -> AsyncIterator[Log]:
    """An empty log with the same partitions on such a server, beside other tasks. Raise
    valkey.NotInstalled, StartFailed."""
    with ExitStack() as stack:
        starting = asyncio.ensure_future(asyncio.to_thread(stack.enter_context, server(what)))
        try:
            scratch = on(await asyncio.shield(starting), log)
            try:
                yield scratch
            finally:
                await scratch.close()
        finally:
            await asyncio.wait({starting})  # who was cancelled meanwhile leaves no server behind
            await asyncio.to_thread(stack.close)


def on(url: str, log: Log) -> Log:
    """A log with the partitions of another one, which keeps issued order."""
    link = Link(url, connections=1, timeout=ANSWER_SECONDS)
    return Log(link, log.keys, test=log.test)
