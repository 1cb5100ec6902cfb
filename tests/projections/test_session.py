"""Advisory locks of a projector's session."""

from __future__ import annotations

from projections import session
from projections.session import Session
from tests.projections.conftest import eventually


def test_one_session_has_a_partition_until_it_ends(url: str, connected: Session):
    with session.connect(url, "other") as other:
        assert session.is_free(connected, "status", 3)
        assert session.try_lock(other, "status", 3)
        assert not session.try_lock(connected, "status", 3)
        assert not session.is_free(connected, "status", 3)
        assert session.try_lock(connected, "status", 4)
        assert session.try_lock(connected, "eligibility", 3)

    # The server ends a session in its own time.
    eventually(lambda: session.is_free(connected, "status", 3))
    assert session.try_lock(connected, "status", 3)
    session.unlock(connected, "status", 3)
    assert session.is_free(connected, "status", 3)


def test_several_may_ask_for_partitions(url: str, connected: Session):
    assert not session.is_asked(connected, "status")
    with session.connect(url, "one") as one, session.connect(url, "two") as two:
        session.ask(one, "status")
        session.ask(two, "status")
        assert session.is_asked(connected, "status")
        assert not session.is_asked(connected, "eligibility")
        session.ask_no_more(one, "status")
        assert session.is_asked(connected, "status")
    eventually(lambda: not session.is_asked(connected, "status"))
