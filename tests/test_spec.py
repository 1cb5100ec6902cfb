"""Every item of the specification has a test, every mark an item, and the page tells both."""

from __future__ import annotations

from tests.spec import PAGE, marked, page, places


def test_every_item_is_shown_by_a_test() -> None:
    assert [place for place in places() if place not in marked()] == []


def test_every_mark_names_an_item() -> None:
    assert [place for place in marked() if place not in set(places())] == []


def test_the_page_is_what_the_marks_say() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"
