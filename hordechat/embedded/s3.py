"""The embedded S3 store: `nanio` with keys of our own."""

import http.client
import sys
from pathlib import Path

from hordechat.process import Command, Service, bare_environment

UPLOADS = ("*/.tmp.*", "*/.nanio-meta/*.tmp")
"""Files of uploads that the store was at when it was killed: the first it would list as objects,
and beside one of the others no object of that name could be stored."""


def service(directory: Path, port: int, *, access_key: str, secret_key: str) -> Service:
    """Describe an S3 store on loopback that keeps its buckets in `directory`."""

    def prepare() -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        for pattern in UPLOADS:
            for unfinished in directory.glob(pattern):
                unfinished.unlink(missing_ok=True)

    def probe() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return True  # any answer will do: without a signature it is a refusal

    # fmt: off
    flags = (
        "--host", "127.0.0.1", "--port", str(port), "--data-dir", str(directory),
        "--no-access-log", "--log-level", "warning",
    )
    # fmt: on
    return Service(
        command=Command(
            name="s3",
            argv=(sys.executable, "-P", "-m", "nanio", "serve", *flags),
            env=bare_environment()
            | {
                "NANIO_ACCESS_KEY": access_key,
                "NANIO_SECRET_KEY": secret_key,
            },
            cwd=Path("/"),
            stop_seconds=5.0,
        ),
        url=f"http://127.0.0.1:{port}",
        settings={"S3_ACCESS_KEY": access_key, "S3_SECRET_KEY": secret_key},
        prepare=prepare,
        probe=probe,
    )
