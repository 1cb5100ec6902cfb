"""The server that a reader has to connect with: the only one, or the node of a cluster that serves
its log."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from lua.topology import Slots, slot_of, urls

_TIMEOUT = 2.0
"""Seconds for connecting, and for an answer beyond those that a read may block."""
_ASK_TIMEOUT = 0.5
"""Seconds for a node's answer to who serves what: another may be asked."""


class Nodes:
    """The servers behind a URL: those that it names and, of a cluster, all that these told of."""

    def __init__(self, redis_url: str) -> None:
        self._named = tuple(urls(redis_url))
        self._told: tuple[str, ...] = ()

    @contextlib.contextmanager
    def connect(self, key: str | None = None, *, block_s: float = 0.0) -> Iterator[redis.Redis]:
        """A client with one connection, to the node that serves `key` (to any, for None), whose
        reads may block so long.

        It retries nothing and goes to no other node: where that is needed its user backs off and
        connects anew.
        """
        client = _client(self._of(key), block_s + _TIMEOUT, _TIMEOUT)
        try:
            yield client
        finally:
            client.close()

    def _of(self, key: str | None) -> str:
        """The URL of the server to connect with. Raise RedisError, OSError."""
        # Each time in another order, or a node with stale news would be believed for ever.
        told = random.sample(self._told, len(self._told))
        failure: Exception | None = None
        for url in dict.fromkeys((*told, *self._named)):
            try:
                slots = _slots(url)
            except (RedisError, OSError) as error:
                failure = failure or error
                continue
            if slots is None:
                return url
            owner = slots.owner(slot_of(key)) if key is not None else url
            if owner is not None:
                self._told = slots.nodes
                return owner
        raise failure or redis.ConnectionError(f"no node serves {key}")


def _slots(url: str) -> Slots | None:
    """What one server says of its cluster; None where it is of none."""
    client: Any = _client(url, _ASK_TIMEOUT, _ASK_TIMEOUT)
    try:
        answer = client.execute_command("CLUSTER", "SLOTS")
    except ResponseError as error:
        if "cluster support disabled" not in str(error):
            raise
        return None
    finally:
        client.close()
    return Slots.parse(url, answer)


def _client(url: str, timeout: float, connect_timeout: float) -> redis.Redis:
    return redis.Redis.from_url(
        url,
        protocol=2,
        single_connection_client=True,
        socket_timeout=timeout,
        socket_connect_timeout=connect_timeout,
        retry=Retry(NoBackoff(), 0),
    )
