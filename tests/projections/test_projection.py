"""What every projection must have."""

from __future__ import annotations

import pytest

from projections.models import PROJECTIONS
from projections.projection import Projection
from projections.session import Session


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
