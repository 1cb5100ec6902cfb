"""What every projection must have."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from events.base import Event, Position, Recorded
from events.types import EVENTS
from projections.models import PROJECTIONS
from projections.projection import Projection
from projections.session import Session
from tests.events.test_codec import stored
from tests.projections.histories import random_story


@pytest.mark.parametrize("projection", PROJECTIONS.values(), ids=lambda each: each.name)
def test_each_of_its_tables_says_which_partition_wrote_a_row(
    projection: Projection, connected: Session
):
    """A rebuild of one partition deletes by this column."""
    having = connected.execute(
        "SELECT table_name FROM information_schema.columns"
        " WHERE column_name = 'partition' AND is_nullable = 'NO'"
    ).fetchall()

    assert set(projection.tables) <= {table for (table,) in having}


@pytest.mark.parametrize("projection", PROJECTIONS.values(), ids=lambda each: each.name)
def test_its_function_takes_an_empty_document(projection: Projection, connected: Session):
    found = connected.execute(
        "SELECT pg_get_function_arguments(oid) FROM pg_proc WHERE proname = %s",
        (projection.write,),
    ).fetchall()

    assert found == [("changes jsonb",)]
    assert projection.fold([]) == {}


@pytest.mark.parametrize("projection", PROJECTIONS.values(), ids=lambda each: each.name)
def test_it_declares_the_events_that_it_folds(projection: Projection):
    """Entries of other events are not taken apart for it."""
    changing = {kind for kind in EVENTS if any(_tells(projection, each) for each in stored(kind))}

    assert projection.folds == changing


def _tells(projection: Projection, event: Event) -> bool:
    batch = [Recorded(0, Position(5, 0), event)]
    return bool(projection.fold(batch) or _said(projection, batch))


def _said(projection: Projection, batch: Sequence[Recorded]) -> object:
    return projection.signals and projection.signals(batch, _Unquoted())


class _Unquoted:
    """A log of which no content is left."""

    def fault_reasons(self, request_ids: Sequence[str]) -> list[None]:
        return [None] * len(request_ids)


@pytest.mark.parametrize("projection", PROJECTIONS.values(), ids=lambda each: each.name)
@pytest.mark.parametrize("seed", range(3))
def test_what_it_does_not_fold_may_be_left_out(projection: Projection, seed: int):
    batch = [Recorded(0, *each) for each in random_story(seed, 300).events]
    folded = [each for each in batch if type(each.event) in projection.folds]

    assert projection.fold(folded) == projection.fold(batch)
    assert _said(projection, folded) == _said(projection, batch)
