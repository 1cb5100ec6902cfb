"""Whether live hot state is what the log says: the log is folded into a scratch Redis and both are
compared.

It begins at the newest snapshot, which is a fold itself. It works beside running commands. An
aggregate is compared at the very position that it held when it was read: the fold stops there for a
moment. What has no position (due-sets, registries, fences) is compared by member at the log's end,
and again for a while where it differs, since it may just have moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple

from archive.archive import Archive
from events.base import START, Position
from handlers.log import Log, ResponseError
from handlers.replay import Entry, fold, keys_of, read_log, replay
from handlers.snapshots import put_newest

ROUNDS = 20
"""How often what differs is looked at again, while commands go on."""
READ_AT_ONCE = 500
PAUSE = 0.1  # seconds between rounds

Fields = dict[str, str]


class Difference(NamedTuple):
    """One field of one key that is not what the log says; None stands for absent."""

    key: str
    field: str
    live: str | None
    folded: str | None

    def __str__(self) -> str:
        return f"{self.key} {self.field}: live {self.live!r}, folded {self.folded!r}"


async def verify(
    live: Log, scratch: Log, *, rounds: int = ROUNDS, whole: bool = False
) -> list[Difference]:
    """Every difference between live state and the fold of its log: from the newest snapshot on, or
    of the `whole` log.

    `scratch` is empty and keeps issued order. Raise what `read_log` does.
    """
    await scratch.scripts.preload("replay_event")
    archive = None if whole else live.archive
    found: list[Difference] = []
    for partition in live.keys.all():
        found += await _Partition(live, scratch, archive, partition, rounds).compare()
    return found


class _Partition:
    def __init__(
        self, live: Log, scratch: Log, archive: Archive | None, partition: int, rounds: int
    ) -> None:
        """`archive`: whose snapshots are used."""
        self._live = live
        self._scratch = scratch
        self._archive = archive
        self._partition = partition
        self._rounds = rounds
        self._folded = START

    async def compare(self) -> list[Difference]:
        unknown = [
            Difference(key, "(key)", "of no known kind", None)
            for key in await keys_of(self._live, self._partition, "unknown")
        ]
        return unknown + await self._again(await self._at_their_positions())

    async def _at_their_positions(self) -> set[str]:
        """Compare each aggregate where it stands; return the keys that need another look."""
        state = await keys_of(self._live, self._partition, "state")
        wanted: dict[Position, list[tuple[str, Fields]]] = {}
        doubtful: set[str] = set()
        for first in range(0, len(state), READ_AT_ONCE):
            some = state[first : first + READ_AT_ONCE]
            hashes = await asyncio.gather(*(_hash(self._live, key) for key in some))
            for key, fields in zip(some, hashes, strict=True):
                try:
                    wanted.setdefault(Position.parse(fields["position"]), []).append((key, fields))
                except (KeyError, ValueError):
                    doubtful.add(key)
        base = await put_newest(self._archive, self._scratch, self._partition)
        self._folded = base.position
        # What did not change behind the snapshot is in it as it is: nothing is folded for these.
        early = [position for position in wanted if position <= base.position]
        doubtful |= await self._compare([each for at in early for each in wanted.pop(at)])
        async for page in read_log(self._live, self._partition, base.position):
            doubtful |= await self._fold_and_compare(page, wanted)
        for aggregates in wanted.values():  # a position that no event has
            doubtful.update(key for key, _ in aggregates)
        folded = set(await keys_of(self._scratch, self._partition, "state"))
        live = set(await keys_of(self._live, self._partition, "state"))
        return doubtful | (folded ^ live)

    async def _compare(self, aggregates: Sequence[tuple[str, Fields]]) -> set[str]:
        """Those that are not so in the snapshot."""
        differ: set[str] = set()
        for first in range(0, len(aggregates), READ_AT_ONCE):
            some = aggregates[first : first + READ_AT_ONCE]
            there = await asyncio.gather(*(_hash(self._scratch, key) for key, _ in some))
            differ |= {key for (key, was), now in zip(some, there, strict=True) if was != now}
        return differ

    async def _fold_and_compare(
        self, page: Sequence[Entry], wanted: dict[Position, list[tuple[str, Fields]]]
    ) -> set[str]:
        """Fold a page and read each aggregate right behind its event.

        All is issued at once and executed in order, so an aggregate is read where it stood.
        """
        folding: list[Awaitable[Any]] = []
        reading: list[Awaitable[Fields]] = []
        expected: list[tuple[str, Fields]] = []
        for entry in page:
            folding.append(asyncio.ensure_future(replay(self._scratch, entry)))
            for key, fields in wanted.pop(entry.recorded.position, ()):
                reading.append(asyncio.ensure_future(_hash(self._scratch, key)))
                expected.append((key, fields))
        await asyncio.gather(*folding)
        found = await asyncio.gather(*reading)
        self._folded = page[-1].recorded.position
        return {
            key for (key, fields), there in zip(expected, found, strict=True) if there != fields
        }

    async def _again(self, doubtful: set[str]) -> list[Difference]:
        """Look at doubtful keys until they agree, or differ at one and the same position, or time
        is up."""
        found: dict[str, list[Difference]] = {}
        for _ in range(self._rounds):
            for key in sorted(doubtful):
                live = await _read(self._live, key)
                await self._catch_up()
                folded = await _read(self._scratch, key)
                found[key] = _differences(key, live, folded)
                if not found[key]:
                    doubtful.discard(key)
            if not doubtful:
                break
            await asyncio.sleep(PAUSE)
        return [difference for key in sorted(doubtful) for difference in found[key]]

    async def _catch_up(self) -> None:
        async for page in read_log(self._live, self._partition, self._folded):
            await self._fold(page)

    async def _fold(self, entries: Sequence[Entry]) -> None:
        if entries:
            await fold(self._scratch, entries)
            self._folded = entries[-1].recorded.position


def _differences(key: str, live: Fields, folded: Fields) -> list[Difference]:
    return [
        Difference(key, field, live.get(field), folded.get(field))
        for field in sorted(live.keys() | folded.keys())
        if live.get(field) != folded.get(field)
    ]


async def _hash(log: Log, key: str) -> Fields:
    """A hash in one command; empty for a key that is none."""
    try:
        flat = await log.read("HGETALL", key)
    except ResponseError:
        return {}
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return {name.decode(): value.decode() for name, value in pairs}


async def _read(log: Log, key: str) -> Fields:
    """A key's whole value as fields, whatever its type; empty where it is absent."""
    fields: Fields
    match (await log.read("TYPE", key)).decode():
        case "hash":
            fields = await _hash(log, key)
        case "zset":
            flat = await log.read("ZRANGE", key, 0, -1, "WITHSCORES")
            pairs = zip(flat[::2], flat[1::2], strict=True)
            fields = {name.decode(): value.decode() for name, value in pairs}
        case "set":
            members = await log.read("SMEMBERS", key)
            fields = {member.decode(): "(member)" for member in members}
        case "list":
            lines = await log.read("LRANGE", key, 0, -1)
            fields = {f"[{index}]": line.decode() for index, line in enumerate(lines)}
        case "string":
            fields = {"(value)": (await log.read("GET", key) or b"").decode()}
        case "none":
            fields = {}
        case other:
            fields = {"(type)": other}
    return fields
