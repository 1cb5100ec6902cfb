"""Lines of the ledger, and their other sides."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from events.base import KUDOS, Event
from events.ledger import CLEARING, Movement, movements, other_side
from events.types import (
    AccountOpened,
    Admitted,
    Charged,
    Floored,
    Granted,
    Promoted,
    Received,
    Released,
    Rewarded,
    Settled,
    Transferred,
)

SOURCE: dict[str, Any] = {"source": 0, "source_position": "1-0"}
CHARGED = Charged(
    user_id=1, requests=("r", "s"), generations=("g", "h"), amounts=(19, 12), burn=10, **SOURCE
)


def rewarded(escrowed: int, **more: Any) -> Rewarded:
    return Rewarded(
        user_id=1,
        workers=("w", "x"),
        amounts=(9, 2),
        escrows=(4, 1),
        escrowed=escrowed,
        **more,
        **SOURCE,
    )


MOVED: list[tuple[Event, dict[str, int]]] = [
    (AccountOpened(user_id=1, name="a", key="", kudos=5), {"opened": -5}),
    (Granted(user_id=1, amount=-5, grant_id="g"), {"granted": 5}),
    (Granted(user_id=1, amount=5, grant_id="g", cause="recurring"), {"granted": -5}),
    (Admitted(user_id=1, request_id="r", jobs=1, tax=7), {"tax": 7}),
    (Released(user_id=1, request_id="r", refund=True, refunded=7, **SOURCE), {"tax": -7}),
    (CHARGED, {"generation": 11, "burn": 20}),
    (rewarded(0, generations=("g", "h")), {"generation": -11}),
    (rewarded(5, generations=("g", "h"), cause="cancelled"), {"generation": -11}),
    (rewarded(5, cause="uptime"), {"uptime": -11}),
    (Promoted(user_id=1, amount=3), {}),
    (Floored(user_id=1, amount=3), {"floor": -3}),
    (Transferred(user_id=1, recipient=2, amount=3, transfer_id="t"), {"transfer": 3}),
    (Received(user_id=2, sender=1, amount=3, transfer_id="t", **SOURCE), {"transfer": -3}),
    (Settled(**SOURCE), {}),
    (Admitted(user_id=1, request_id="r", jobs=1), {}),
]


@pytest.mark.parametrize(("event", "expected"), MOVED)
def test_both_sides_of_every_movement_make_zero(event: Event, expected: dict[str, int]) -> None:
    lines = movements(event)
    clearing: Counter[str] = Counter()
    for line in lines:
        clearing.update(other_side(line))

    assert {cause: amount for cause, amount in clearing.items() if amount} == expected
    assert sum(line.amount + line.escrow for line in lines) + sum(clearing.values()) == 0
    assert {line.cause for line in lines} <= CLEARING.keys()


def test_each_generation_is_a_line_with_its_burn() -> None:
    assert movements(CHARGED) == [
        Movement(1, "generation", -19, burn=10, request_id="r", generation_id="g"),
        Movement(1, "generation", -12, burn=10, request_id="s", generation_id="h"),
    ]


def test_what_waits_is_told_of_an_owner_that_is_not_trusted_alone() -> None:
    trusted, not_yet = (movements(rewarded(each, cause="uptime")) for each in (0, 5))

    assert [(line.amount, line.escrow) for line in trusted] == [(9, 0), (2, 0)]
    assert [(line.amount, line.escrow) for line in not_yet] == [(5, 4), (1, 1)]
    assert movements(Promoted(user_id=1, amount=KUDOS)) == [Movement(1, "promoted", KUDOS, -KUDOS)]
