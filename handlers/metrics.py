"""The instruments that the specification names, through the OpenTelemetry API.

They count whatever provider a process sets, also one set after this module was imported, and cost
next to nothing where none is set. Attributes are few and fixed: never a text, a model or an id.
"""

from __future__ import annotations

from typing import Literal

from opentelemetry import metrics

Outcome = Literal["grown", "truncated", "refused"]

ShadowOutcome = Literal["completed", "faulted", "aborted"]

Requester = Literal["anonymous", "registered", "shared_key"]

Admittance = Literal["free", "funded", "refused", "downgraded"]

BUCKETS = ((512, "<=512"), (1024, "513-1024"), (2048, "1025-2048"), (4096, "2049-4096"))
ABOVE_BUCKETS = ">4096"
"""Sizes in tokens, by the most that belongs to each (spec, Job lease)."""

_meter = metrics.get_meter("hordechat")
_max_length_lowered = _meter.create_counter(
    "horde.chat.max_length_lowered",
    unit="{request}",
    description="Requests whose max_length was lowered to what online workers declare",
)
_worker_faults = _meter.create_counter(
    "horde.chat.worker_faults",
    unit="{submit}",
    description="Faulted chat submits, by the reason that the worker sent",
)
_empty_generations = _meter.create_counter(
    "horde.text.empty_generations",
    unit="{generation}",
    description="Stored replies without text and without tool calls",
)
_lease_renewals = _meter.create_counter(
    "horde.text.lease_renewals",
    unit="{post}",
    description="Posts that extended a lease, and posts that found it at its cap",
)
_stale_aborts = _meter.create_counter(
    "horde.text.stale_aborts",
    unit="{job}",
    description="Jobs aborted because their lease lapsed",
)
_lease_capacity_limited = _meter.create_counter(
    "horde.pop.lease_capacity_limited",
    unit="{pop}",
    description="Pops of chat workers whose measured speed caps what they are offered",
)
_shadow_assignments = _meter.create_counter(
    "horde.text.gate_shadow.assignments",
    unit="{job}",
    description="Legacy text jobs assigned over their worker's capacity",
)
_shadow_outcomes = _meter.create_counter(
    "horde.text.gate_shadow.outcomes",
    unit="{job}",
    description="How legacy text jobs over their worker's capacity ended",
)
_shadow_seconds = _meter.create_histogram(
    "horde.text.gate_shadow.service_seconds",
    unit="s",
    description="From the pop to the submit of legacy text jobs over their worker's capacity",
)
_context_fit = _meter.create_counter(
    "horde.text.context_fit",
    unit="{request}",
    description="Requests whose context grew, whose oldest turns were dropped, or that did not fit",
)

_free_allowance_decisions = _meter.create_counter(
    "horde.text.free_allowance.decisions",
    unit="{request}",
    description="Requests by what their free output allowance came to",
)
_estimated_wait_seconds = _meter.create_histogram(
    "horde.text.free_allowance.estimated_wait_seconds",
    unit="s",
    description="The wait that a request's free output allowance was sized by",
)
_queue_wait_seconds = _meter.create_histogram(
    "horde.text.queue_wait_seconds",
    unit="s",
    description="From a request's creation to each of its assignments",
)


def size_bucket(tokens: int) -> str:
    """The label of a length."""
    return next((label for most, label in BUCKETS if tokens <= most), ABOVE_BUCKETS)


def max_length_lowered(requested: int, declared: int, *, dry_run: bool) -> None:
    """Count a request that asked for more tokens than online workers declare."""
    _max_length_lowered.add(
        1,
        {
            "horde.requested_bucket": size_bucket(requested),
            "horde.declared_bucket": size_bucket(declared),
            "horde.dry_run": dry_run,
        },
    )


def worker_fault(reason: str, *, trusted: bool) -> None:
    """Count a fault that a worker of a chat job submitted.

    `reason`: a word of events/faults.py, `unknown` or `none`; never the text that was sent.
    """
    _worker_faults.add(1, {"horde.reason": reason, "horde.worker_trusted": trusted})


def empty_generation(model: str) -> None:
    """Count a reply that has nothing in it.

    Who runs such a model may want to look at its template: so it is counted by the model.
    """
    _empty_generations.add(1, {"horde.model": model})


def lease_renewal(outcome: str, *, trusted: bool) -> None:
    """Count a post that extended its job's lease (`granted`), or found it at its cap (`at_cap`)."""
    _lease_renewals.add(1, {"horde.outcome": outcome, "horde.worker_trusted": trusted})


def stale_abort(*, trusted: bool, chat: bool) -> None:
    """Count a job whose lease lapsed."""
    _stale_aborts.add(1, {"horde.worker_trusted": trusted, "horde.chat": chat})


def lease_capacity_limited() -> None:
    """Count a pop of a chat worker that is offered less than the length that it declares, because
    of its measured speed."""
    _lease_capacity_limited.add(1, {"horde.gentype": "text"})


def gate_shadow_assignment(max_length: int, *, trusted: bool) -> None:
    """Count a legacy text job that is longer than what its worker finishes in the lease."""
    _shadow_assignments.add(1, _shadowed(max_length, trusted))


def gate_shadow_outcome(
    max_length: int, outcome: ShadowOutcome, *, trusted: bool, seconds: float | None = None
) -> None:
    """Count how such a job ended; with the seconds that it took, where it was completed."""
    _shadow_outcomes.add(1, _shadowed(max_length, trusted) | {"horde.outcome": outcome})
    if seconds is not None:
        _shadow_seconds.record(seconds, _shadowed(max_length, trusted))


def _shadowed(max_length: int, trusted: bool) -> dict[str, str | bool]:
    return {"horde.worker_trusted": trusted, "horde.size_bucket": size_bucket(max_length)}


def context_fit(outcome: Outcome, mode: str) -> None:
    """Count a request that sizing changed or refused. `mode`: the `context_fit` that it asked for.

    Most requests fit as they are: those are not counted.
    """
    _context_fit.add(1, {"horde.outcome": outcome, "horde.mode": mode})


def requester(*, anonymous: bool, shared_key: bool) -> Requester:
    """Who asks, as the attributes tell it."""
    if shared_key:
        return "shared_key"
    return "anonymous" if anonymous else "registered"


def free_allowance(
    outcome: Admittance, requester: Requester, *, requested: int, allowance: int, chat: bool
) -> None:
    """Count a request that was created, or refused for kudos, by what was free for it.

    requested  tokens that it asked for, before any downgrade
    """
    _free_allowance_decisions.add(
        1,
        {
            "horde.requester": requester,
            "horde.outcome": outcome,
            "horde.requested_bucket": size_bucket(requested),
            "horde.allowance_bucket": size_bucket(allowance),
            "horde.chat": chat,
        },
    )


def estimated_wait(seconds: float, requester: Requester, *, chat: bool) -> None:
    """Record the wait that an allowance was sized by."""
    _estimated_wait_seconds.record(seconds, {"horde.chat": chat, "horde.requester": requester})


def queue_wait(seconds: float, requester: Requester, max_length: int, *, chat: bool) -> None:
    """Record how long a job's request had existed when a worker took it; never of a decoy."""
    _queue_wait_seconds.record(
        seconds,
        {
            "horde.requester": requester,
            "horde.chat": chat,
            "horde.requested_bucket": size_bucket(max_length),
        },
    )
