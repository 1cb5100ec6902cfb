"""The instruments that the specification names, read back through the SDK."""

from __future__ import annotations

import pytest

from handlers import metrics
from tests.handlers.pool import Pool, request_of
from tests.instruments import counted, point, recorded, total
from tests.spec import spec


@pytest.mark.parametrize(
    ("tokens", "label"),
    [
        (1, "<=512"),
        (512, "<=512"),
        (513, "513-1024"),
        (1024, "513-1024"),
        (1025, "1025-2048"),
        (2048, "1025-2048"),
        (2049, "2049-4096"),
        (4096, "2049-4096"),
        (4097, ">4096"),
        (2**31, ">4096"),
    ],
)
def test_lengths_are_told_by_their_bucket(tokens: int, label: str) -> None:
    assert metrics.size_bucket(tokens) == label


@spec("Context adjustments", 6)
def test_a_lowered_request_is_counted_by_buckets_and_dry_run() -> None:
    before = counted()

    metrics.max_length_lowered(4096, 512, dry_run=False)
    metrics.max_length_lowered(5000, 512, dry_run=True)

    name = "horde.chat.max_length_lowered"
    assert counted() - before == {
        point(name, requested_bucket="2049-4096", declared_bucket="<=512", dry_run=False): 1,
        point(name, requested_bucket=">4096", declared_bucket="<=512", dry_run=True): 1,
    }


@spec("Context adjustments", 13)
def test_a_sized_request_is_counted_by_outcome_and_mode() -> None:
    before = counted()

    metrics.context_fit("truncated", "truncate_oldest")
    metrics.context_fit("truncated", "truncate_oldest")
    metrics.context_fit("refused", "reject")

    name = "horde.text.context_fit"
    assert counted() - before == {
        point(name, outcome="truncated", mode="truncate_oldest"): 2,
        point(name, outcome="refused", mode="reject"): 1,
    }


@spec("Free output allowance", 22)
def test_an_allowance_is_counted_by_requester_outcome_and_both_lengths() -> None:
    before = counted()

    metrics.free_allowance("free", "anonymous", requested=512, allowance=4096, chat=True)
    metrics.free_allowance("refused", "shared_key", requested=5000, allowance=513, chat=False)

    name = "horde.text.free_allowance.decisions"
    free = {"requested_bucket": "<=512", "allowance_bucket": "2049-4096"}
    refused = {"requested_bucket": ">4096", "allowance_bucket": "513-1024"}
    assert counted() - before == {
        point(name, requester="anonymous", outcome="free", chat=True, **free): 1,
        point(name, requester="shared_key", outcome="refused", chat=False, **refused): 1,
    }


@spec("Free output allowance", 23, 24)
def test_waits_are_recorded_by_requester() -> None:
    estimated = "horde.text.free_allowance.estimated_wait_seconds"
    queued = "horde.text.queue_wait_seconds"
    before = recorded(estimated) + recorded(queued)

    metrics.estimated_wait(61.5, "registered", chat=True)
    metrics.queue_wait(0.2, "registered", 513, chat=False)

    assert recorded(estimated) + recorded(queued) - before == {
        point(estimated, requester="registered", chat=True): 1,
        point(queued, requester="registered", requested_bucket="513-1024", chat=False): 1,
    }


@spec("Free output allowance", 24)
async def test_a_job_waited_from_its_request_s_creation_to_its_own_assignment(pool: Pool) -> None:
    queued, waited = "horde.text.queue_wait_seconds", []
    request_id = (await pool.submitted(request_of(jobs=2))).request_id

    for name in ("a", "b"):
        await pool.pass_time(700)
        before = total(queued)
        assert await pool.assign(request_id, name) is not None
        waited.append(round(total(queued) - before, -2))

    assert waited == [700, 1400]
