"""The server that a reader has to connect with: the only one, or the node of a cluster that serves
its log."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any, NamedTuple, cast

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from lua.topology import SUPERSEDED, Heard, Slots, slot_of, urls, witnesses

_TIMEOUT = 2.0
"""Seconds for connecting, and for an answer beyond those that a read may block."""


class Waits(NamedTuple):
    """Seconds for which nodes are waited for."""

    ask: float = 0.5  # for one's answer to who serves what: another may be asked
    grace: float = 0.1  # for the others' once enough have answered


WAITS = Waits()


class Client(redis.Redis):
    """A client of one server, on one connection. It retries nothing.

    Of a cluster's node it doubts what comes after a silence, until `believe` found that the node
    still has its place (lua/link.py says why).
    """

    still_serves: Callable[[], bool] | None = None
    """Whether other nodes say so."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._heard = Heard()
        self._believed = 0

    def execute_command(self, *command: Any, **options: Any) -> Any:
        """The answer to one command, believed. Raise RedisError, OSError."""
        run: Any = super().execute_command
        try:
            answer = run(*command, **options)
        except ResponseError:
            self.hear()
            self.believe()
            raise
        self.hear()
        self.believe()
        return answer

    def hear(self) -> None:
        """Something was answered."""
        self._heard.hear(time.monotonic())

    def believe(self) -> None:
        """Raise RedisError where another node may have this one's place."""
        silences = self._heard.silences
        if self._believed != silences and self.still_serves is not None:
            if not self.still_serves():
                raise redis.ConnectionError(SUPERSEDED)
            self._believed = silences


class Nodes:
    """The servers behind a URL: those that it names and, of a cluster, all that these told of."""

    def __init__(self, redis_url: str, waits: Waits = WAITS) -> None:
        self._named = tuple(urls(redis_url))
        self._waits = waits
        self._slots: Slots | None = None

    @contextlib.contextmanager
    def connect(self, key: str | None = None, *, block_s: float = 0.0) -> Iterator[Client]:
        """A client with one connection, to the node that serves `key` (to any, for None), whose
        reads may block so long.

        It retries nothing and goes to no other node: where that is needed its user backs off and
        connects anew.
        """
        url = self._of(key)
        client = _client(url, block_s + _TIMEOUT, _TIMEOUT)
        if key is not None and self._slots is not None:
            client.still_serves = lambda: self._still_serves(url, key)
        try:
            yield client
        finally:
            client.close()

    def _of(self, key: str | None) -> str:
        """The URL of the server to connect with. Raise RedisError, OSError."""
        # Each time in another order, or a node with stale news would be believed for ever.
        told = list(self._slots.nodes) if self._slots is not None else []
        random.shuffle(told)
        failure: Exception | None = None
        candidates = [*dict.fromkeys((*told, *self._named))]
        # Where there is no other to ask, a server that is only slow is waited for.
        seconds = self._waits.ask if len(candidates) > 1 else _TIMEOUT
        for url in candidates:
            try:
                slots = _slots(url, seconds)
            except (RedisError, OSError) as error:
                failure = failure or error
                continue
            if slots is None:
                return url
            owner = slots.owner(slot_of(key)) if key is not None else url
            if owner is not None:
                self._slots = slots
                return owner
        raise failure or redis.ConnectionError(f"no node serves {key}")

    def _still_serves(self, url: str, key: str) -> bool:
        """Whether the other primaries say that this one serves the key: as many as it takes, and
        none of them otherwise. (None has to where there is no other.)"""
        primaries = self._slots.primaries if self._slots is not None else ()
        others = [node for node in primaries if node != url]
        if not others:
            return True
        enough = witnesses(len(others))
        threads = ThreadPoolExecutor(len(others), "asks others")
        pending = {threads.submit(_said, node, self._waits.ask) for node in others}
        threads.shutdown(wait=False)
        told: list[Slots] = []
        patience = self._waits.ask
        while pending:
            done, pending = wait(pending, patience, FIRST_COMPLETED)
            if not done:
                break
            told += filter(None, (each.result() for each in done))
            if len(told) >= enough:
                patience = self._waits.grace
        if told:
            self._slots = told[-1]
        return len(told) >= enough and all(slots.owner(slot_of(key)) == url for slots in told)


def _said(url: str, seconds: float) -> Slots | None:
    """What a server says of its cluster in time; None where it does not."""
    try:
        return _slots(url, seconds)
    except (RedisError, OSError):
        return None


def _slots(url: str, seconds: float) -> Slots | None:
    """What one server says of its cluster in time; None where it is of none."""
    client: Any = _client(url, seconds, seconds)
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
