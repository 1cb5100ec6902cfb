"""The instruments that the specification names, through the OpenTelemetry API.

They count whatever provider a process sets, also one set after this module was imported, and cost
next to nothing where none is set. Attributes are few and fixed: never a text, a model or an id.
"""

from __future__ import annotations

from typing import Literal

from opentelemetry import metrics

Outcome = Literal["grown", "truncated", "refused"]

BUCKETS = ((512, "<=512"), (1024, "513-1024"), (2048, "1025-2048"), (4096, "2049-4096"))
ABOVE_BUCKETS = ">4096"
"""Sizes in tokens, by the most that belongs to each (spec, Job lease)."""

_meter = metrics.get_meter("hordechat")
_max_length_lowered = _meter.create_counter(
    "horde.chat.max_length_lowered",
    unit="{request}",
    description="Requests whose max_length was lowered to what online workers declare",
)
_context_fit = _meter.create_counter(
    "horde.text.context_fit",
    unit="{request}",
    description="Requests whose context grew, whose oldest turns were dropped, or that did not fit",
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


def context_fit(outcome: Outcome, mode: str) -> None:
    """Count a request that sizing changed or refused. `mode`: the `context_fit` that it asked for.

    Most requests fit as they are: those are not counted.
    """
    _context_fit.add(1, {"horde.outcome": outcome, "horde.mode": mode})
