"""A server for a fold of the log beside the live state: of ours alone, and gone with us."""

import asyncio
import fcntl
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

from handlers.log import Log
from hordechat.datadir import free_port
from hordechat.embedded import valkey
from hordechat.process import running
from lua.link import Link

ANSWER_SECONDS = 60.0
"""That a batch of a fold may take."""

_LOCK = "lock"


@contextmanager
def server(what: str) -> Iterator[str]:
    """The URL of an empty Valkey, which is stopped on the way out. Raise valkey.NotInstalled.

    what  it is for: named in the folder of its files
    """
    valkey.binary()
    _sweep(what)
    with tempfile.TemporaryDirectory(prefix=f"hordechat-{what}-") as folder, _locked(Path(folder)):
        service = valkey.service(Path(folder) / "scratch", free_port(), fsync="no")
        with running(service, Path(folder) / "scratch.log"):
            yield service.url


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Mark a folder as in use for as long as we live. The mark shows only once it is locked."""
    with (folder / "new").open("w") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        (folder / "new").rename(folder / _LOCK)
        yield


def _sweep(what: str) -> None:
    """Delete the folders of those who were killed: state of the log is in them."""
    for mark in Path(tempfile.gettempdir()).glob(f"hordechat-{what}-*/{_LOCK}"):
        with suppress(OSError), mark.open() as found:  # locked, or gone, or somebody else's
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(mark.parent)


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
