"""Reads back what the instruments counted, through the SDK.

A process takes one provider for good, and it counts from then on: so a test asks for what was added
since it began.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    HistogramDataPoint,
    InMemoryMetricReader,
    NumberDataPoint,
)

Point = tuple[str, frozenset[tuple[str, object]]]


@cache
def _reader() -> InMemoryMetricReader:
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    return reader


def counted() -> Counter[Point]:
    """Every counter's value by name and attributes. `counted() - before` is what was added."""
    data = _reader().get_metrics_data()
    found: Counter[Point] = Counter()
    if data is None:
        return found
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    if not isinstance(point, NumberDataPoint):  # of a histogram
                        continue
                    name = (metric.name, frozenset((point.attributes or {}).items()))
                    found[name] = int(point.value)
    return found


def recorded(name: str) -> Counter[Point]:
    """How many values of the histogram of that name were recorded, by attributes."""
    return Counter({each: point.count for each, point in _histogram(name).items()})


def total(name: str) -> float:
    """What all values that it recorded come to."""
    return sum(point.sum for point in _histogram(name).values())


def _histogram(name: str) -> dict[Point, HistogramDataPoint]:
    data = _reader().get_metrics_data()
    return {
        (name, frozenset((point.attributes or {}).items())): point
        for resource in (() if data is None else data.resource_metrics)
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
        if isinstance(point, HistogramDataPoint)
    }


def point(name: str, **attributes: object) -> Point:
    """How `counted` keys one point; attributes without their `horde.` in front."""
    return name, frozenset((f"horde.{key}", value) for key, value in attributes.items())
