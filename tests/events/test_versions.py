"""What was stored in a former version is read as the newest one, whoever reads it and for ever.

No event of the product has changed its meaning yet, so the types here are made up.
"""

from __future__ import annotations

import msgspec
import pytest

from events import codec
from events.base import PASSED, Event, Former


class Sent(Event, frozen=True, kw_only=True, tag="sent"):
    """The third version: weights in grams, and who carries it."""

    VERSION = 3
    parcel_id: str
    grams: tuple[int, ...]
    carrier: str = ""


class SentInKilograms(Former, frozen=True, kw_only=True, tag="sent"):
    VERSION = 2
    parcel_id: str
    kilograms: tuple[int, ...]

    def newer(self) -> Sent:
        grams = tuple(1000 * each for each in self.kilograms)
        return Sent(parcel_id=self.parcel_id, grams=grams, carrier="post")


class Label(msgspec.Struct, frozen=True):
    kilograms: int


class SentWithOneLabel(Former, frozen=True, kw_only=True, tag="sent"):
    VERSION = 1
    parcel_id: str
    data: Label

    def newer(self) -> SentInKilograms:
        return SentInKilograms(parcel_id=self.parcel_id, kilograms=(self.data.kilograms,))


SHAPES = codec.shapes_of([Sent], [SentInKilograms, SentWithOneLabel])

STORED = {
    1: [b"type", b"sent", b"v", b"1", b"parcel_id", b"p", b"data", b'{"kilograms":2}'],
    2: [b"type", b"sent", b"v", b"2", b"parcel_id", b"p", b"kilograms", b"2,3"],
    3: [b"type", b"sent", b"v", b"3", b"parcel_id", b"p", b"grams", b"2500", b"carrier", b"c"],
}
TOLD = {
    1: Sent(parcel_id="p", grams=(2000,), carrier="post"),
    2: Sent(parcel_id="p", grams=(2000, 3000), carrier="post"),
    3: Sent(parcel_id="p", grams=(2500,), carrier="c"),
}


@pytest.mark.parametrize("version", STORED)
def test_every_version_is_told_in_the_newest(version: int):
    recorded = codec.decode(0, b"5-1", STORED[version], shapes=SHAPES)

    assert recorded.event == TOLD[version]
    assert str(recorded.position) == "5-1"


def test_versions_that_come_mixed_do_not_take_each_other_s_fields():
    for version in (1, 3, 2, 3, 1, 1, 2):
        assert codec.decode(0, b"5-1", STORED[version], shapes=SHAPES).event == TOLD[version]


@pytest.mark.parametrize("version", STORED)
def test_who_wants_the_event_gets_it_in_whatever_version(version: int):
    stored = STORED[version]

    assert codec.decode(0, b"5-1", stored, {Sent}, SHAPES).event == TOLD[version]
    assert codec.decode(0, b"5-1", stored, {Former}, SHAPES).event is PASSED


@pytest.mark.parametrize("version", [b"0", b"4", b"", b"1.0"])
def test_a_version_that_this_build_does_not_know_stops_the_reader(version: bytes):
    with pytest.raises(codec.UnknownType, match="5-1"):
        codec.decode(
            0, b"5-1", [b"type", b"sent", b"v", version, b"parcel_id", b"p"], shapes=SHAPES
        )


@pytest.mark.parametrize(
    ("events", "former"),
    [
        ([], [SentInKilograms]),
        ([Sent], [SentInKilograms, SentInKilograms]),
        ([SentInKilograms], [SentInKilograms]),
        ([SentWithOneLabel], [SentInKilograms]),
    ],
)
def test_a_former_version_has_a_newer_one_and_stands_there_once(
    events: list[type[Event]], former: list[type[Former]]
):
    with pytest.raises(ValueError, match="is no former version of sent"):
        codec.shapes_of(events, former)
