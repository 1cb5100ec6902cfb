"""A server for a fold of the log beside the live state: of ours alone, and gone with us."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hordechat.datadir import free_port
from hordechat.embedded import valkey
from hordechat.process import running


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
