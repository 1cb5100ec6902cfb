"""What reports say of accounts."""

from __future__ import annotations

import pytest

from events.base import KUDOS
from projections import accounts, workers
from projections.accounts import AccountRow
from projections.database import Database
from projections.session import Session
from tests.projections.conftest import Given
from tests.projections.histories import Story, uuid
from tests.spec import spec


async def shown(database: Database, user_id: int = 1) -> AccountRow:
    row = await accounts.account(database, user_id)
    assert row is not None
    return row


@pytest.fixture
def story() -> Story:
    made = Story()
    made.open_account(1, 100 * KUDOS)
    made.open_account(2)
    return made


async def test_a_balance_is_the_sum_of_what_moved(story: Story, given: Given, database: Database):
    request = story.admit(tax=KUDOS)
    story.charge(18 * KUDOS, 5 * KUDOS)
    story.refund(request, refunded=KUDOS)
    story.grant(-30 * KUDOS)
    story.grant(7 * KUDOS, cause="recurring")
    story.transfer(4 * KUDOS, 1, 2)
    story.transfer(1 * KUDOS, 2, 1)
    story.reward(10 * KUDOS, trusted=False)
    story.reward(3 * KUDOS, cause="uptime", trusted=False)
    story.promote(8 * KUDOS)
    story.lift(2 * KUDOS)
    given(story)

    row = await shown(database)

    assert (row.kudos, row.escrow) == (66 * KUDOS, 0)
    assert row.accumulated == (-1 - 23 + 1 + 5 + 8 + 2) * KUDOS
    assert row.admin == (100 - 30) * KUDOS
    assert (row.recurring, row.gifted, row.received) == (7 * KUDOS, -4 * KUDOS, 1 * KUDOS)
    assert row.roles == {"trusted"}


async def test_half_of_what_an_owner_earns_waits_and_all_that_is_for_uptime(
    story: Story, given: Given, database: Database
):
    story.reward(10 * KUDOS, trusted=False)
    story.reward(3 * KUDOS, cause="uptime", trusted=False)
    given(story)

    row = await shown(database)

    assert (row.kudos, row.escrow) == (105 * KUDOS, 8 * KUDOS)


async def test_history_tells_the_balance_behind_each_line_the_newest_first(
    story: Story, given: Given, database: Database
):
    story.charge(18 * KUDOS, 5 * KUDOS)
    story.transfer(4 * KUDOS, 1, 2)
    given(story)

    lines = await accounts.history(database, 1, 10)
    newest = await accounts.history(database, 1, 1)

    assert [(line.cause, line.amount // KUDOS, line.balance // KUDOS) for line in lines] == [
        ("transfer", -4, 73),
        ("generation", -5, 77),
        ("generation", -18, 82),
        ("opened", 100, 100),
    ]
    assert lines[0].counterparty == 2
    assert lines[1].burn == KUDOS
    assert newest == lines[:1]


@spec("Kudos", 26)
async def test_a_deleted_account_keeps_its_ledger_and_nothing_of_its_person(
    story: Story, given: Given, database: Database
):
    story.change_account(1, ("moderator", "trusted"), of=("moderator", "trusted"))
    story.delete_account(1)
    story.charge(5 * KUDOS)
    given(story)

    row = await shown(database)

    assert (row.name, row.roles, row.deleted_ms) == ("", frozenset(), story.events[-2][0].ms)
    assert row.kudos == 95 * KUDOS
    assert len(await accounts.history(database, 1, 10)) == 2
    assert [each.user_id for each in await accounts.page(database, 1, "kudos")] == [2]


@pytest.mark.parametrize("known", [False, True], ids=["with its opening", "known before"])
async def test_suspicious_replies_are_counted_from_where_a_moderator_says(
    story: Story, given: Given, database: Database, known: bool
):
    if known:  # then its row is changed, and added to
        given(story)
    story.reward(1, suspicious=4)
    story.change_account(1, suspicious=1)
    story.reward(1, suspicious=2)
    given(story)

    assert (await shown(database)).suspicious == 3


async def test_accounts_are_listed_by_their_kudos_or_their_age(given: Given, database: Database):
    story = Story()
    for user_id in range(27):
        story.open_account(user_id, (user_id % 3) * KUDOS)
    given(story)

    oldest = [each.user_id for each in await accounts.page(database, 2, "age")]
    richest = [each.user_id for each in await accounts.page(database, 1, "kudos")]

    assert oldest == [25, 26]
    assert richest == [*range(2, 27, 3), *range(1, 27, 3), *range(0, 21, 3)]
    assert await accounts.page(database, 3, "age") == []


@spec("Kudos", 13)
async def test_work_counts_by_what_was_asked_for_and_once_for_each_generation(
    story: Story, given: Given, database: Database
):
    story.check_in(1)
    request = story.submit(jobs=2)
    story.admit()
    for _ in range(2):
        story.reply(request, story.assign(request), characters=1)
    given(story)

    row = await shown(database)

    assert (row.requests, row.usage_tokens) == (2, 200)
    assert (row.fulfillments, row.contribution_tokens) == (2, 200)  # of worker 1, its own


@spec("Kudos", 13)
async def test_a_cancelled_generation_counts_where_it_was_paid_for(
    story: Story, given: Given, database: Database
):
    for rate in ("", "0:0.01~"):
        request = story.submit()
        story.assign(request)
        story.cancel(request, settle=True, rate=rate)
    given(story)

    row = await shown(database)

    assert (row.requests, row.fulfillments) == (1, 1)


@spec("Kudos", 14)
async def test_a_multiplier_scales_what_was_used_alone(
    story: Story, given: Given, database: Database
):
    request = story.submit()
    story.reply(request, story.assign(request))
    story.change_account(1, usage_multiplier=2500)
    given(story)

    row = await shown(database)

    assert (row.usage_tokens, row.contribution_tokens) == (250, 100)


@spec("Kudos", 15)
async def test_a_worker_is_told_with_all_that_was_paid_for_it(
    story: Story, given: Given, database: Database
):
    id_ = story.check_in(1)
    story.reward(10 * KUDOS, 4 * KUDOS, trusted=False)
    story.reward(3 * KUDOS, cause="uptime")
    given(story)

    row = await workers.by_id(database, id_)

    assert row is not None
    assert (row.generated, row.uptime_kudos) == (14 * KUDOS, 3 * KUDOS)


async def test_an_account_has_its_workers_and_its_requests(
    story: Story, given: Given, database: Database
):
    story.check_in(2, user_id=1)
    story.check_in(1, user_id=1)
    story.check_in(3, user_id=2)
    asked = [story.submit(), story.submit(chat=False)]
    story.submit(user_id=2)
    story.submit(user_id=0)
    story.expire(story.submit())
    given(story)

    assert await accounts.worker_ids(database, 1) == [uuid(2, 0xF000), uuid(1, 0xF000)]
    assert await accounts.request_ids(database, 1) == asked
    assert await accounts.request_ids(database, 0) == []
    assert (await shown(database)).workers == 2


async def test_events_of_before_there_were_kudos_move_nothing(
    given: Given, database: Database, connected: Session
):
    story = Story()
    story.open_account(1)
    story.admit(tax=0)
    request = story.submit()
    story.reply(request, story.assign(request))
    given(story)

    assert (await shown(database)).kudos == 0
    assert connected.execute("SELECT count(*) FROM ledger").fetchone() == (0,)
