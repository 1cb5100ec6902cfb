"""What the status tables and their queries say of a story."""

from __future__ import annotations

import asyncio
import json

import pytest

from events.base import START, Position
from events.keys import Keys
from events.types import Adjustment
from projections.database import Database
from projections.session import Session
from projections.status import StatusLoader, StatusRow, load
from tests.projections.conftest import Given
from tests.projections.histories import Story, uuid
from tests.spec import spec


async def read(database: Database, keys: Keys, request_id: str) -> StatusRow:
    found = (await load(database, keys, [request_id]))[request_id]
    assert found.row is not None
    return found.row


def counts(row: StatusRow) -> dict[str, int]:
    names = ("waiting", "processing", "finished", "restarted")
    return {name: getattr(row, name) for name in names if getattr(row, name)}


async def test_a_request_is_counted_through_its_life(given: Given, database: Database, keys: Keys):
    story = Story()
    request = story.submit(jobs=2)
    given(story)
    assert counts(await read(database, keys, request)) == {"waiting": 2}

    first = story.assign(request)
    given(story)
    assert counts(await read(database, keys, request)) == {"waiting": 1, "processing": 1}

    story.fault(request, first)
    given(story)
    assert counts(await read(database, keys, request)) == {"waiting": 2, "restarted": 1}

    second, third = story.assign(request), story.assign(request)
    story.reply(request, second)
    given(story)
    row = await read(database, keys, request)
    assert counts(row) == {"processing": 1, "finished": 1, "restarted": 1}
    assert not row.done

    story.reply(request, third)
    given(story)
    row = await read(database, keys, request)
    assert counts(row) == {"finished": 2, "restarted": 1}
    assert row.done
    assert not row.faulted


async def test_a_job_given_back_leaves_no_trace(given: Given, database: Database, keys: Keys):
    story = Story()
    request = story.submit()
    story.give_back(request, story.assign(request))

    given(story)

    assert counts(await read(database, keys, request)) == {"waiting": 1}


async def test_too_many_faults_fault_the_request(given: Given, database: Database, keys: Keys):
    story = Story()
    request = story.submit(jobs=3)
    for _ in range(3):
        story.fault(request, story.assign(request))

    given(story)

    row = await read(database, keys, request)
    assert row.faulted
    assert row.done
    assert counts(row) == {"restarted": 3}
    assert {generation.job_ttl for generation in row.generations} == {175}  # as it was in the end


@spec("Kudos", 27)
async def test_what_a_request_was_charged_is_its_tax_its_replies_and_what_a_cancel_settled(
    given: Given, database: Database, keys: Keys
):
    story = Story()
    request = story.submit(jobs=4, tax=10_000)
    story.reply(request, story.assign(request), charge=184_200)
    story.give_back(request, story.assign(request))
    story.fault(request, story.assign(request))
    story.assign(request)
    story.cancel(request, settle=True, rate="0.5:0.01~")  # 20 tokens: 0.7 kudos, and its burn

    given(story)

    row = await read(database, keys, request)
    assert [each.charge for each in row.generations] == [184_200, 0, 17_000]
    assert row.charged == 10_000 + 184_200 + 17_000


@spec("Pricing", 1, 13)
async def test_a_stored_chat_reply_is_charged_by_its_output(
    given: Given, database: Database, keys: Keys
):
    story = Story()
    request = story.submit(jobs=2)
    story.reply(request, story.assign(request))
    story.assign(request)
    story.cancel(request, settle=True, rate="0.5:0.01~")
    text = story.submit(chat=False)
    story.reply(text, story.assign(text), finish_reason="")

    given(story)

    chat = await read(database, keys, request)
    assert [
        (each.charge_basis, each.finish_reason, each.settled_character_count)
        for each in chat.generations
    ] == [("output_estimate", "stop", None), (None, None, 1)]
    (generation,) = (await read(database, keys, text)).generations
    assert generation.charge_basis is None


async def test_why_a_job_failed_is_kept_by_its_codes(given: Given, database: Database, keys: Keys):
    story = Story()
    request = story.submit()
    first = story.assign(request)
    story.refuse(request, first, "ChatSubmitInvalid")
    story.refuse(request, first)
    given(story)
    row = await read(database, keys, request)
    assert (row.fault_rc, row.fault_code) == ("ChatSubmitNonconformant", None)

    story.fault(request, first, reason="reply_refused")
    given(story)
    assert (await read(database, keys, request)).fault_rc == "ChatSubmitNonconformant"

    story.fault(request, story.assign(request), reason="generation_error")
    given(story)
    row = await read(database, keys, request)
    assert (row.fault_rc, row.fault_code) == ("ChatWorkerFault", "generation_error")
    assert not row.faulted


async def test_a_cancel_keeps_jobs_in_flight(given: Given, database: Database, keys: Keys):
    story = Story()
    request = story.submit(jobs=2)
    generation = story.assign(request)
    story.cancel(request)
    given(story)
    row = await read(database, keys, request)
    assert row.cancelled
    assert not row.done
    assert counts(row) == {"processing": 1}

    story.reply(request, generation)
    given(story)
    row = await read(database, keys, request)
    assert row.done
    assert counts(row) == {"finished": 1}


async def test_a_cancel_of_a_streamed_request_settles_its_jobs(
    given: Given, database: Database, keys: Keys
):
    story = Story()
    request = story.submit(jobs=2)
    story.assign(request)
    story.assign(request)
    story.cancel(request, settle=True)

    given(story)

    row = await read(database, keys, request)
    assert row.done
    assert [(gen.cancelled, gen.settled_character_count) for gen in row.generations] == [
        (True, 1),
        (True, 2),
    ]


async def test_a_reply_is_told_with_its_worker_and_usage(
    given: Given, database: Database, keys: Keys
):
    story = Story()
    request = story.submit()
    generation = story.assign(request, worker=7)
    story.progress(request, generation)
    story.ms += 1500
    story.reply(request, generation, completion_tokens=12, native_finish_reason="eos")

    given(story)

    row = await read(database, keys, request)
    told = row.generations[0]
    assert (told.id, told.worker_id, told.worker_name, told.model) == (
        generation,
        uuid(7, 0xF000),
        "worker 7",
        "alpha",
    )
    assert (told.state, told.result_state, told.finish_reason) == ("finished", "ok", "stop")
    assert (told.completion_tokens, told.prompt_tokens) == (12, None)
    assert told.native_finish_reason == "eos"
    assert told.job_ttl == 200
    assert row.queue_wait_seconds(told) == 0.001


async def test_the_expiry_is_counted_again_from_each_assignment_and_reply(
    given: Given, database: Database, keys: Keys
):
    story = Story()
    request = story.submit(ttl=60)
    story.ms += 5000
    generation = story.assign(request)
    given(story)
    assert (await read(database, keys, request)).expires_ms == story.ms + 60_000

    story.ms += 5000
    story.reply(request, generation)
    given(story)
    assert (await read(database, keys, request)).expires_ms == story.ms + 60_000


async def test_generations_come_in_the_order_of_their_assignment(
    given: Given, database: Database, keys: Keys
):
    story = Story()
    request = story.submit(jobs=12)
    made = []
    for _ in range(12):
        made.append(story.assign(request))
        story.ms -= 1  # all in one millisecond

    given(story)

    assert [gen.id for gen in (await read(database, keys, request)).generations] == made


async def test_an_expired_request_is_gone_and_its_checkpoint_says_so(
    given: Given, database: Database, keys: Keys
):
    story = Story()
    request = story.submit()
    story.assign(request)
    story.expire(request)

    given(story)

    found = (await load(database, keys, [request]))[request]
    assert found.row is None
    assert found.checkpoint == story.head


async def test_the_demand_comes_back_as_it_was_submitted(
    given: Given, database: Database, keys: Keys
):
    story = Story()
    request = story.submit(
        models=("alpha", "beta"),
        features=("tools", "vision"),
        conformance="best_effort",
        tools_temperature=0.5,
        images=1,
        only=(uuid(1),),
        ignore=(uuid(2),),
        trusted_workers=True,
        validated_backends=True,
        slow_workers=False,
    )

    given(story)

    row = await read(database, keys, request)
    assert row.demand == story.events[0][1].data


@spec("Images", 25)
@spec("Messages offload", 9)
def test_how_images_and_messages_travelled_is_kept(given: Given, connected: Session):
    """Inline without images is null."""
    story = Story()
    offloaded = story.submit(jobs=4, images=2, offloaded=True)
    plain = story.submit()
    told = {
        story.assign(offloaded, transport=transport): transport or None
        for transport in ("messages_url", "url", "base64", "")
    }
    told[story.assign(plain)] = None

    given(story)

    kept = connected.execute("SELECT id::text, chat_messages_offloaded FROM waiting_prompts")
    assert dict(kept.fetchall()) == {offloaded: True, plain: False}
    travelled = connected.execute("SELECT id::text, image_transport FROM processing_gens")
    assert dict(travelled.fetchall()) == told


async def test_what_was_changed_of_a_request_is_kept_in_order(
    given: Given, database: Database, keys: Keys
):
    lowered = Adjustment(before=4096, after=2048, reason="worker_max_length")
    trimmed = Adjustment(before=21000, after=7900, reason="truncate_oldest", dropped_messages=10)
    story = Story()
    changed = story.submit(context_adjustments=(lowered, trimmed))
    as_asked = story.submit()

    given(story)

    kept = (await read(database, keys, changed)).context_adjustments
    assert json.loads(kept or b"") == [
        {"from": 4096, "to": 2048, "reason": "worker_max_length"},
        {"from": 21000, "to": 7900, "reason": "truncate_oldest", "dropped_messages": 10},
    ]
    assert (await read(database, keys, as_asked)).context_adjustments is None


async def test_before_the_first_event_there_is_only_the_start(url: str, database: Database):
    found = await load(database, Keys(4), [uuid(1), uuid(2)])

    assert set(found.values()) == {(None, START)}


async def test_the_loader_asks_once_for_all_of_one_turn(
    given: Given, database: Database, keys: Keys
):
    story = Story()
    ids = [story.submit() for _ in range(5)]
    given(story)
    asked: list[int] = []

    class Counting(Database):
        async def fetch(self, query, parameters=()):
            asked.append(len(parameters[0]))
            return await database.fetch(query, parameters)

    loader = StatusLoader(Counting(""), keys)
    found = await asyncio.gather(*(loader.get(id_) for id_ in [*ids, ids[0].upper(), uuid(99)]))

    assert asked == [6]
    assert [read.row.id for read in found[:6] if read.row] == [*ids, ids[0]]
    assert found[6].row is None
    assert found[6].checkpoint == story.head


async def test_the_loader_refuses_what_is_no_id_without_failing_the_others(
    given: Given, database: Database, keys: Keys
):
    story = Story()
    request = story.submit()
    given(story)
    loader = StatusLoader(database, keys)

    good, bad = await asyncio.gather(
        loader.get(request), loader.get("no id"), return_exceptions=True
    )

    assert not isinstance(good, BaseException)
    assert isinstance(bad, ValueError)


async def test_the_loader_survives_a_caller_that_goes_away(
    given: Given, database: Database, keys: Keys
):
    story = Story()
    request = story.submit()
    given(story)
    loader = StatusLoader(database, keys)
    impatient = asyncio.create_task(loader.get(request))
    patient = asyncio.create_task(loader.get(request))
    await asyncio.sleep(0)
    impatient.cancel()

    assert (await patient).row is not None
    with pytest.raises(asyncio.CancelledError):
        await impatient


def test_columns_of_the_specification_hold_times_for_people(given: Given, connected: Session):
    story = Story(start_ms=1_700_000_000_000)
    story.submit(ttl=60)

    given(story)

    created, lasts = connected.execute(
        "SELECT extract(epoch FROM created), extract(epoch FROM expiry - created)"
        " FROM waiting_prompts"
    ).fetchone() or (0, 0)
    assert (float(created), float(lasts)) == (1_700_000_000.001, 60.0)
    assert Position(1, 10) > Position(1, 9)
