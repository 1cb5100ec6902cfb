"""Golden files are history: none is ever changed, and all that this build makes of an event it
makes of every one of them."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

from psycopg import sql

from events import codec
from events.keys import Keys
from handlers.log import Log
from handlers.replay import Entry, replay
from lua.link import Link
from projections import changes, session
from projections.models import PROJECTIONS

GOLDEN = Path(__file__).parent / "golden"
SUMS = GOLDEN / "SHA256SUMS"
GIT = ("git", "-c", "safe.directory=*")  # whoever owns the checkout
PATHS = sorted(GOLDEN.glob("*.json"))


def entry(path: Path) -> Entry:
    stored: dict[str, Any] = json.loads(path.read_text())
    fields = [each.encode() for each in stored["fields"]]
    return Entry(codec.decode(0, stored["position"].encode(), fields), fields)


def test_a_golden_file_is_what_it_was_when_it_came() -> None:
    """A new one gets its line: `cd tests/events/golden && sha256sum NAME >> SHA256SUMS`."""
    listed = dict(reversed(line.split("  ")) for line in SUMS.read_text().splitlines())

    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in PATHS} == listed


def test_no_line_of_that_list_was_ever_taken_away_or_changed() -> None:
    """By the history of the checkout; without one, nobody can say so."""
    told = subprocess.run(
        [*GIT, "log", "--format=", "-p", "--no-renames", "--", SUMS.name],
        cwd=GOLDEN,
        capture_output=True,
        text=True,
        check=False,
    )

    assert told.returncode == 0, told.stderr
    changes = told.stdout.splitlines()
    assert any(line.startswith("+") for line in changes), "no history"
    taken = [line for line in changes if line.startswith("-")]
    assert [line for line in taken if not line.startswith("---")] == []


def test_every_golden_event_goes_into_every_read_model(migrated_url: str) -> None:
    with session.connect(migrated_url, "test") as connected:
        for path in PATHS:
            for projection in PROJECTIONS.values():
                document = projection.fold([entry(path).recorded])
                with connected.transaction(force_rollback=True):
                    connected.execute(
                        sql.SQL("SELECT {}(%s::jsonb)").format(sql.Identifier(projection.write)),
                        (changes.encode(document),),
                    )


BEFORE = ("account-opened", "shared-key-opened", "checked-in", "admitted", "submitted", "assigned")
"""What has to have happened before any of the others can."""


async def test_every_golden_event_folds_into_hot_state(redis_url: str) -> None:
    log = Log(Link(redis_url), Keys(1), test=True)  # which refuses keys that `touched` left out
    try:
        for path in PATHS:
            await log.read("FLUSHDB")
            for word in BEFORE:
                await replay(log, entry(GOLDEN / f"{word}.1.json"))
            await replay(log, entry(path))
    finally:
        await log.close()
