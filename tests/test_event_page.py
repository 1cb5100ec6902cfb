"""docs/events.md is what the code says."""

from __future__ import annotations

import pytest

from events.base import Event
from events.types import EVENTS
from hordechat.export import COLUMNS, ENVELOPE
from tests import event_page


def test_the_page_of_events_is_up_to_date() -> None:
    """`make docs` writes it."""
    text = event_page.PAGE.read_text()

    assert text == event_page.page(text), "run `make docs`"


def test_what_people_wrote_stays_in_front_of_the_events() -> None:
    former = f"prologue\n\n{event_page.MARK}old"

    told = event_page.page(former)

    assert told.startswith(f"prologue\n\n{event_page.MARK}\nIds are")
    assert told.count("prologue") == 1
    assert "old" not in told.splitlines()


@pytest.mark.parametrize("names", [ENVELOPE, COLUMNS], ids=["jsonl", "csv"])
def test_the_page_names_what_stands_in_front_of_the_fields(names: tuple[str, ...]) -> None:
    text = " ".join(event_page.PAGE.read_text().split())

    assert ", ".join(f"`{name}`" for name in names) in text


@pytest.mark.parametrize("kind", EVENTS, ids=event_page.word)
def test_every_event_says_who_appends_it_and_what_each_field_means(kind: type[Event]) -> None:
    assert event_page.scripts()[event_page.word(kind)]
    assert [each.name for each in event_page.fields(kind) if not each.meaning] == []


def test_the_lists_of_the_page_have_only_what_it_needs() -> None:
    structs = [
        kind
        for module in event_page.SECTIONS.values()
        for kind in (*event_page.events_of(module), *event_page.inners(module))
    ]
    fields = [each for kind in structs for each in event_page.fields(kind)]

    assert {kind for kind in structs if issubclass(kind, Event)} == set(EVENTS)
    assert set(event_page.MEANINGS) == {each.name for each in fields if not each.said}
    assert set(event_page.UNIT_OF) <= {each.name for each in fields}
