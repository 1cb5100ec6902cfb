"""A checkpoint moves from where it was read, or not at all."""

from __future__ import annotations

import pytest

from events.base import START, Position
from projections import checkpoint
from projections.checkpoint import Checkpoint, CheckpointMoved
from projections.session import Session
from projections.status import STATUS


def test_it_begins_at_the_start_of_the_log(connected: Session):
    assert checkpoint.read(connected, "status", 0) == (START, START)
    checkpoint.ensure(connected, "status", 0)
    checkpoint.ensure(connected, "status", 0)
    assert checkpoint.read(connected, "status", 0) == (START, START)


def test_only_the_position_that_was_read_moves(connected: Session):
    checkpoint.ensure(connected, "status", 0)
    there = Checkpoint(Position(5, 10), Position(5, 9))
    checkpoint.move(connected, "status", 0, START, there)

    for before in (START, Position(5, 9), Position(4, 10)):
        with pytest.raises(CheckpointMoved):
            checkpoint.move(connected, "status", 0, before, Checkpoint(Position(9, 0), START))

    assert checkpoint.read(connected, "status", 0) == there


def test_partitions_and_projections_have_their_own(connected: Session):
    checkpoint.ensure(connected, "status", 0)
    checkpoint.ensure(connected, "status", 1)
    checkpoint.move(connected, "status", 1, START, Checkpoint(Position(5, 0), START))

    assert checkpoint.read(connected, "status", 0).position == START
    assert checkpoint.read(connected, "eligibility", 1).position == START


def test_a_reset_from_elsewhere_than_the_reader_stood_changes_nothing(connected: Session):
    checkpoint.ensure(connected, "status", 0)
    checkpoint.move(connected, "status", 0, START, Checkpoint(Position(5, 0), START))

    with pytest.raises(CheckpointMoved):
        checkpoint.reset(connected, "status", 0, STATUS.tables, Position(4, 0))

    assert checkpoint.read(connected, "status", 0).position == Position(5, 0)
