"""One partition's log as its readers see it, on one server or a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException, RedisError
from redis.retry import Retry

from events import codec
from events.base import START, Position, Recorded
from events.keys import Keys
from projections.checkpoint import HistoryLost

Client = redis.Redis | RedisCluster

AWAY = (RedisError, RedisClusterException, OSError)
"""What a client raises while Redis is away, hangs, loads its data or moves a slot."""

_TIMEOUT = 2.0
"""Seconds for connecting, and for an answer beyond those that a read may block."""


@contextlib.contextmanager
def connect(redis_url: str, *, block_s: float = 0.0) -> Iterator[Client]:
    """A client whose reads may block so long.

    It retries nothing: its user backs off and connects anew.
    """
    options: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": block_s + _TIMEOUT,
        "socket_connect_timeout": _TIMEOUT,
        "retry": Retry(NoBackoff(), 0),
    }
    client: Client = redis.Redis.from_url(redis_url, single_connection_client=True, **options)
    try:
        info: Any = client.info("cluster")
        if info.get("cluster_enabled"):
            client.close()
            client = RedisCluster.from_url(redis_url, **options)
        yield client
    finally:
        client.close()


class Log:
    """The events of one partition, in order."""

    def __init__(self, client: Client, keys: Keys, partition: int) -> None:
        self.partition = partition
        self._client = client
        self._keys = keys
        self._key = keys.events(partition)

    def read(self, after: Position, *, count: int, block_ms: int | None = None) -> list[Recorded]:
        """The next events; with `block_ms`, wait so long for the first. Raise UnknownType."""
        blocking = () if block_ms is None else ("BLOCK", block_ms)
        command = ("XREAD", "COUNT", count, *blocking, "STREAMS", self._key, str(after))
        (answer,) = self._send([command])
        return self._decode(answer[0][1] if answer else [])

    def between(self, after: Position, until: Position, *, count: int) -> list[Recorded]:
        """Events past `after`, up to and with `until`."""
        answer: Any = self._client.xrange(self._key, f"({after}", str(until), count=count)
        return self._decode(answer)

    def head(self) -> Position:
        """The position of the last event."""
        answer: Any = self._client.xrevrange(self._key, count=1)
        return Position.parse(answer[0][0]) if answer else START

    def holds(self, position: Position) -> bool:
        """Whether a reader that stands at `position` can go on from there.

        False where the log lost its tail (a Redis that came back without its last second, or
        empty): it no longer holds that event, but stands from its first, so everything can be
        folded anew. Raise HistoryLost where the log was trimmed past the position: what lies
        between is not there.
        """
        if position != START and self._client.xrange(self._key, str(position), str(position)):
            return True
        if self._trimmed():
            raise HistoryLost(f"{self._key} does not hold {position}, nor its own beginning")
        return position == START

    def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """Send pub/sub messages, in order.

        Every node of a cluster passes them on to all subscribers.
        """
        self._send([("PUBLISH", channel, message) for channel, message in messages])

    def fault_reasons(self, request_ids: Sequence[str]) -> list[str | None]:
        """What was told of the last refused reply to each of these requests; None where that is
        gone."""
        reasons: list[Any] = [
            self._client.hget(self._keys.content(id_), "fault_reason") for id_ in request_ids
        ]
        return [None if reason is None else reason.decode() for reason in reasons]

    def _send(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run commands; on the client's own connection, if it has one, in one round trip.

        Half of a projector's work was redis-py's way from a command to a connection and back.
        """
        connection: Any = getattr(self._client, "connection", None)
        if connection is None:  # a cluster's client finds the node
            run: Any = self._client.execute_command
            return [run(*command) for command in commands]
        try:
            connection.send_packed_command(connection.pack_commands(commands), check_health=False)
            return [connection.read_response() for _ in commands]
        except BaseException:
            connection.disconnect()  # what is still to come on it answers nothing that is asked
            raise

    def _trimmed(self) -> bool:
        """Whether entries were ever removed: the server counts those it was given."""
        try:
            info: Any = self._client.xinfo_stream(self._key)
        except redis.ResponseError:  # no such key: nothing was ever written, or all of it is gone
            return False
        return bool(info.get("entries-added", info["length"]) != info["length"])

    def _decode(self, entries: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> list[Recorded]:
        partition = self.partition
        return [codec.decode(partition, position, fields) for position, fields in entries]
