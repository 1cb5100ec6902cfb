"""Whatever happens in whatever order, the service does what a plain model of its rules does."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from events.keys import EPHEMERAL
from handlers.log import Log
from handlers.rebuild import rebuild_state
from handlers.replay import keys_of
from handlers.store import Place
from handlers.verify import verify
from tests.handlers.invariants import check_settled
from tests.handlers.player import Player
from tests.handlers.pool import Pool
from tests.handlers.stores import Troubled

SHORT = 600
MET = (
    "AbortedGen",
    "AdmissionLost",
    "ChatImageStorageUnavailable",
    "ChatJobAborted",
    "ChatProgressCapReached",
    "ChatProgressNotStreaming",
    "ChatProgressOutOfSequence",
    "DuplicateGen",
    "FaultWhenKudosReceiving",
    "FaultWhenKudosSending",
    "Forbidden",
    "IdempotencyKeyConflict",
    "InvalidAPIKey",
    "InvalidJobID",
    "InvalidTargetUsername",
    "KudosTransferFromAnon",
    "KudosTransferNotEnough",
    "KudosTransferToAnon",
    "KudosTransferToSelf",
    "KudosUpfront",
    "NotModerator",
    "OperationKeyConflict",
    "RequestNotFound",
    "SettlerBehind",
    "SharedKeyEmpty",
    "SharedKeyExpired",
    "SharedKeyInsufficientKudos",
    "TooFastKudosTransfers",
    "TooManyPrompts",
    "WorkerNotFound",
    "abandoned",
    "cancelled",
    "decoys",
    "deleted",
    "dropped too many",
    "exhausted",
    "expired",
    "given",
    "given again",
    "given before",
    "held off",
    "lapsed",
    "lifted",
    "promoted",
    "sent by base64",
    "sent by messages_url",
    "sent by url",
    "too many workers",
    "uptime",
)
"""What a long run comes across, or it shows little."""


@pytest.fixture
async def player(pool: Pool, place: Place, request: pytest.FixtureRequest) -> AsyncIterator[Player]:
    one = pool.log.keys.partitions == 1
    url = request.getfixturevalue("redis_url" if one else "cluster_url")
    seed = int(request.config.getoption("randomly_seed", 1) or 1)
    store = Troubled(place)
    made = await Player.at(pool, store, seed, url)
    yield made
    await made.watch.close()
    store.close()


async def _state(pool: Pool) -> dict[str, object]:
    return {
        key: value
        for key, value in (await pool.snapshot()).items()
        if not any(part in key for part in EPHEMERAL)
    }


@pytest.mark.parametrize("commands", [SHORT, pytest.param(20_000, marks=pytest.mark.soak)])
async def test_every_command_does_what_the_model_does_and_every_request_comes_to_its_end(
    player: Player, scratch: Log, commands: int
) -> None:
    """After each command all that is stored is compared with the model, and so are the TTLs of all
    keys (tests/handlers/watch.py); each object in the store is accounted for, and those of requests
    are there. In between, hot state is the fold of the log, and nothing else.
    """
    pool = player.pool
    await player.play(commands)

    assert await verify(pool.log, scratch) == []
    before = await _state(pool)
    folded = await rebuild_state(pool.log)
    assert sum(each.folded for each in folded) == len(await pool.events())
    assert not any(each.lost or each.forgotten for each in folded)
    assert await _state(pool) == before

    await player.play(commands // 20)
    await player.end()

    for partition in pool.log.keys.all():
        left = await keys_of(pool.log, partition, "state")
        for ended in ("horde:request:", "horde:generation:", "horde:claim:", "horde:due:"):
            assert not [key for key in left if ended in key]
    assert await player.store.keys() == []
    await check_settled(pool)
    for id_ in player.model.bank.accounts:
        account = await pool.hash(pool.log.keys.account(id_))
        assert account.get("held", "0") == "0"
        assert not [name for name in account if name.startswith(("admission:", "held:", "scope:"))]
    assert commands <= SHORT or {what for what in MET if not player.met[what]} == set()
