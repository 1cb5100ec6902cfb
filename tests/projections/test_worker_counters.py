"""What the rows of workers say of jobs that failed."""

from __future__ import annotations

from projections.session import Session
from tests.projections.conftest import Given
from tests.projections.histories import Story, uuid


def test_jobs_that_failed_are_counted_by_why(given: Given, connected: Session) -> None:
    story = Story()
    story.check_in()
    story.abort()
    story.nonconform()
    given(story)
    story.nonconform()
    story.abort(maintenance_msg="Too many.")
    story.nonconform()
    given(story)

    rows = connected.execute(
        "SELECT id::text, aborted_jobs, uncompleted_jobs, nonconformant_replies, maintenance,"
        " maintenance_msg FROM workers"
    ).fetchall()

    assert rows == [(uuid(1, 0xF000), 2, 2, 3, True, "Too many.")]
