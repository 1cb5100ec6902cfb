"""The server that a reader has to connect with: the only one, or the node of a cluster that serves
its log."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from lua.topology import SILENCE, SUPERSEDED, Slots, slot_of, urls

_TIMEOUT = 2.0
"""Seconds for connecting, and for an answer beyond those that a read may block."""
_ASK_TIMEOUT = 0.5
"""Seconds for a node's answer to who serves what: another may be asked."""


class Client(redis.Redis):
    """A client of one server, on one connection. It retries nothing.

    Of a cluster's node it doubts what comes after a silence, until `believe` found that the node
    still has its place (lua/link.py says why).
    """

    still_serves: Callable[[], bool] | None = None
    """Whether other nodes say so."""
    _heard = float("-inf")
    _doubted = False

    def execute_command(self, *command: Any, **options: Any) -> Any:
        """The answer to one command, believed. Raise RedisError, OSError."""
        run: Any = super().execute_command
        answer = run(*command, **options)
        self.hear()
        self.believe()
        return answer

    def hear(self) -> None:
        """Something was answered."""
        now = time.monotonic()
        self._doubted = self._doubted or now - self._heard > SILENCE
        self._heard = now

    def believe(self) -> None:
        """Raise RedisError where another node may have this one's place."""
        if self._doubted and self.still_serves is not None and not self.still_serves():
            raise redis.ConnectionError(SUPERSEDED)
        self._doubted = False


class Nodes:
    """The servers behind a URL: those that it names and, of a cluster, all that these told of."""

    def __init__(self, redis_url: str) -> None:
        self._named = tuple(urls(redis_url))
        self._told: tuple[str, ...] = ()
        self._primaries: tuple[str, ...] = ()

    @contextlib.contextmanager
    def connect(self, key: str | None = None, *, block_s: float = 0.0) -> Iterator[Client]:
        """A client with one connection, to the node that serves `key` (to any, for None), whose
        reads may block so long.

        It retries nothing and goes to no other node: where that is needed its user backs off and
        connects anew.
        """
        url = self._of(key)
        client = _client(url, block_s + _TIMEOUT, _TIMEOUT)
        if key is not None and self._primaries:
            client.still_serves = lambda: self._still_serves(url, key)
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
                self._told, self._primaries = slots.nodes, slots.primaries
                return owner
        raise failure or redis.ConnectionError(f"no node serves {key}")

    def _still_serves(self, url: str, key: str) -> bool:
        """Whether other nodes say that this one serves the key. (None is needed where there is no
        other.)"""
        others = [node for node in self._primaries if node != url]
        others = others or [node for node in self._told if node != url]
        said: list[bool] = []
        for node in others:
            with contextlib.suppress(RedisError, OSError):
                slots = _slots(node)
                said.append(slots is not None and slots.owner(slot_of(key)) == url)
        return all(said) and bool(said or not others)


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


def _client(url: str, timeout: float, connect_timeout: float) -> Client:
    client = Client.from_url(
        url,
        protocol=2,
        single_connection_client=True,
        socket_timeout=timeout,
        socket_connect_timeout=connect_timeout,
        retry=Retry(NoBackoff(), 0),
    )
    return cast(Client, client)
