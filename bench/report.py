"""From measurements to figures, ratios and a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench import history, images, queued, spot
from bench.rig import Result

CYCLE_ROLES = (
    *("web", "valkey", "postgres", "projector_status", "projector_eligibility"),
    *("projector_statistics", "projector_accounts", "settler", "janitor"),
)
"""Whose CPU is the cost of a job. `up` (it passes log lines on) is shown beside it."""

UNSHOWN, SHOWN = "pop, no images", "pop, images stream in"
WAITING = "waiting pops"
"""Its load does nothing: there is no operation that its CPU could be told of."""

_MOST_CPU = 110.0
_MOST_READ = 1.5
_AIM_CPU = 60.0
_LEAST_PROGRESS = 0.6
_MOST_ONE_ACCOUNT = 1.25
_MOST_HAND_OVER = 8.0
_MOST_OUT_OF_REACH = 3.0
_MOST_TOO_LONG = 10.0
_MOST_WAITING_CORE = 0.05
_MOST_IMAGE = 1.1
_MOST_REBUILD = 7.0
_MOST_STATE = 16.0
_AIM_REBUILD = 30_000  # events a second of one core, of all processes together
_MOST_SHOWN = 8.0
_AIM_SHOWN = 3.0
_PLAIN_WIDTH = 150  # of output that goes to no terminal
_console = Console(highlight=False)
if not _console.is_terminal:
    _console.width = _PLAIN_WIDTH


def note(text: str, *, heading: bool = False) -> None:
    """Show how far the run is."""
    _console.print(text if heading else f"  {text}", style="bold" if heading else "dim")


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie; 0 without any."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _line(results: Sequence[Result]) -> dict[str, Any]:
    """The figures of one measurement: medians of rounds for rates and CPU, all times together."""
    times = [each for result in results for each in result.times]
    roles = sorted({role for result in results for role in result.cpu})
    cost = {
        role: statistics.median(
            result.cpu.get(role, 0.0) / max(1, len(result.times)) for result in results
        )
        for role in roles
    }
    totals = [
        sum(result.cpu.get(role, 0.0) for role in CYCLE_ROLES) / max(1, len(result.times))
        for result in results
    ]
    return {
        "operations": len(times),
        "per_second": statistics.median(len(result.times) / result.seconds for result in results),
        "p50_ms": percentile(times, 0.5) * 1000,
        "p99_ms": percentile(times, 0.99) * 1000,
        "cpu_us": statistics.median(totals) * 1e6,
        "cpu_us_rounds": [each * 1e6 for each in totals],
        "cpu_us_by_role": {role: seconds * 1e6 for role, seconds in cost.items()},
    }


def _ratio(results: Mapping[str, Sequence[Result]], name: str) -> list[float]:
    """CPU of each operation over the same round's hello."""

    def cost(result: Result) -> float:
        return sum(result.cpu.get(role, 0.0) for role in CYCLE_ROLES) / max(1, len(result.times))

    return [
        cost(one) / cost(hello) for one, hello in zip(results[name], results["hello"], strict=True)
    ]


def summarise(results: Mapping[str, Sequence[Result]]) -> dict[str, Any]:
    """Every figure, every ratio and every target."""
    lines = {name: _line(each) for name, each in results.items() if name != WAITING}
    ratios = {name: statistics.median(_ratio(results, name)) for name in lines}
    light = results["job, a tenth"]
    accepted = [each for result in light for each in result.more["since_accepted"]]
    sent = [each for result in light for each in result.more["since_sent"]]
    hand_over = {
        "jobs": len(accepted),
        "accepted_p50_ms": percentile(accepted, 0.5) * 1000,
        "accepted_p99_ms": percentile(accepted, 0.99) * 1000,
        "sent_p50_ms": percentile(sent, 0.5) * 1000,
        "sent_p99_ms": percentile(sent, 0.99) * 1000,
    }
    post = lines["store, a tenth"]["p50_ms"]
    progress = statistics.median(
        (len(one.times) / one.seconds) / (len(store.times) / store.seconds)
        for one, store in zip(results["progress post"], results["store"], strict=True)
    )
    small, large = (
        [sum(one.cpu.values()) / len(one.times) / one.more["bytes"] for one in results[name]]
        for name in ("validate 2 KiB", "validate 1 MiB")
    )
    linear = statistics.median(one / other for one, other in zip(large, small, strict=True))
    one_account = statistics.median(
        (one.cpu["valkey"] / len(one.times)) / (many.cpu["valkey"] / len(many.times))
        for one, many in zip(results[spot.ONE], results[spot.MANY], strict=True)
    )
    pooled, alone = (
        [one.cpu["web"] / one.more["megapixels"] for one in results[name]]
        for name in (images.POOL, images.PLAIN)
    )
    image = statistics.median(one / other for one, other in zip(pooled, alone, strict=True))
    decoding = [sum(one.cpu.values()) for one in results[history.DECODED]]
    folding = {
        kind: statistics.median(
            sum(one.cpu.values()) / plain
            for one, plain in zip(results[kind], decoding, strict=True)
        )
        for kind in history.KINDS
    }
    near = lines[f"pop, {queued.NEAR}"]["p99_ms"]
    reach = {
        kind: lines[f"pop, {kind}"]["p99_ms"] / near for kind in queued.KINDS if kind != queued.NEAR
    }
    shown = lines[SHOWN]["p99_ms"] / lines[UNSHOWN]["p99_ms"]
    waiting = results[WAITING]
    idle = statistics.median(one.cpu["web"] / one.seconds for one in waiting)
    targets = [
        _target(
            "validation of a body of 2 KiB: CPU, × hello", ratios["validate 2 KiB"], most=_MOST_READ
        ),
        _target("validation: CPU for a byte of 1 MiB, × for a byte of 2 KiB", linear, most=1.0),
        _target(
            f"job, saturated, accounting included: CPU, × hello (aim {_AIM_CPU:g})",
            ratios["job, saturated"],
            most=_MOST_CPU,
        ),
        _target("progress post: ops/s, × store", progress, least=_LEAST_PROGRESS),
        _target(
            "admissions of one account: Valkey's CPU, × that of as many of a thousand",
            one_account,
            most=_MOST_ONE_ACCOUNT,
        ),
        _target(
            "images: CPU for a megapixel, × plain Pillow of the same steps", image, most=_MOST_IMAGE
        ),
        *(
            _target(
                f"{kind}: CPU of all processes for an event, × decoding it",
                folding[kind],
                most=_MOST_STATE if kind == history.STATE else _MOST_REBUILD,
            )
            for kind in history.KINDS
            if kind != history.DECODED
        ),
        _target(
            "submit accepted → a worker has it: p50, × one store POST at a tenth",
            hand_over["accepted_p50_ms"] / post,
            most=_MOST_HAND_OVER,
        ),
        *(
            _target(
                f"pop of the one within reach, the others not by {kind}: p99, × all in reach",
                ratio,
                most=_MOST_TOO_LONG if kind == "length" else _MOST_OUT_OF_REACH,
            )
            for kind, ratio in reach.items()
        ),
        _target(
            f"pop while requests of 20 images stream in: p99, × without them (aim {_AIM_SHOWN:g})",
            shown,
            most=_MOST_SHOWN,
        ),
        _target("waiting pops: cores of the web process", idle, most=_MOST_WAITING_CORE),
        _target(
            "waiting pops: most that one new job went to",
            max(one.more["got"] for one in waiting),
            most=1,
            least=1,
        ),
    ]
    return {
        "figures": lines,
        "cpu_over_hello": ratios,
        "cpu_over_hello_rounds": {name: _ratio(results, name) for name in lines},
        "image_cpu_ms_per_megapixel": {
            name: 1000 * statistics.median(each)
            for name, each in ((images.POOL, pooled), (images.PLAIN, alone))
        },
        "events_per_core_second": {
            kind: statistics.median(len(one.times) / sum(one.cpu.values()) for one in results[kind])
            for kind in history.KINDS
        },
        "aim_events_per_core_second": _AIM_REBUILD,
        "hand_over": hand_over,
        "hand_over_sent_over_store_p50": hand_over["sent_p50_ms"] / post,
        "aim_cpu_over_hello": _AIM_CPU,
        "shown": {
            name: sum(one.more[name] for one in results[SHOWN])
            for name in ("accepted", "refused", "served")
        },
        "waiting_cores": {
            role: statistics.median(one.cpu.get(role, 0.0) / one.seconds for one in waiting)
            for role in CYCLE_ROLES
        },
        "empty_pops": {
            kind: sum(one.more["empty"] for one in results[f"pop, {kind}"]) for kind in queued.KINDS
        },
        "targets": targets,
    }


def _target(
    name: str, value: float, *, most: float | None = None, least: float | None = None
) -> dict[str, Any]:
    met = (most is None or value <= most) and (least is None or value >= least)
    return {"name": name, "value": value, "most": most, "least": least, "met": met}


def show(summary: Mapping[str, Any], told: Mapping[str, Any]) -> None:
    """Print the tables."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("measurement", "ops/s", "p50 ms", "p99 ms", "CPU µs/op", "× hello", "by role"):
        table.add_column(title, justify="left" if title in ("measurement", "by role") else "right")
    for name, line in summary["figures"].items():
        roles = line["cpu_us_by_role"]
        table.add_row(
            name,
            f"{line['per_second']:,.1f}",
            f"{line['p50_ms']:.2f}",
            f"{line['p99_ms']:.2f}",
            f"{line['cpu_us']:,.0f}",
            f"{summary['cpu_over_hello'][name]:.1f}",
            ", ".join(f"{role} {us:,.0f}" for role, us in roles.items() if us >= 1),
        )
    _console.print(table)
    over = summary["hand_over"]
    _console.print(
        f"submit accepted → a waiting worker has it: p50 {over['accepted_p50_ms']:.1f} ms, "
        f"p99 {over['accepted_p99_ms']:.1f} ms; since the submit was sent: "
        f"p50 {over['sent_p50_ms']:.1f} ms, p99 {over['sent_p99_ms']:.1f} ms ({over['jobs']} jobs)"
    )
    megapixel = summary["image_cpu_ms_per_megapixel"]
    _console.print(
        "images: CPU for a megapixel: "
        + ", ".join(f"{name} {cost:.1f} ms" for name, cost in megapixel.items())
    )
    folded = "; ".join(
        f"{kind}: {pace:,.0f}" for kind, pace in summary["events_per_core_second"].items()
    )
    _console.print(
        f"events for each second of a core, all processes together: {folded} "
        f"(aim of a rebuild: {summary['aim_events_per_core_second']:,})"
    )
    streamed = ", ".join(f"{name} {count}" for name, count in summary["shown"].items())
    _console.print(f"requests of 20 images: {streamed}")
    each = summary["figures"][spot.ANONYMOUS]["cpu_us_by_role"]["valkey"]
    _console.print(
        "admissions of one account are bounded by the scripts of one Valkey, that of its "
        f"partition: {each:,.0f} µs for each anonymous one, at most {1e6 / each:,.0f} a second. "
        "More partitions are more room for other accounts only."
    )
    cores = ", ".join(
        f"{role} {share:.1%}" for role, share in summary["waiting_cores"].items() if share >= 0.001
    )
    _console.print(f"waiting pops: of a core, {cores}")
    empty = ", ".join(f"{kind} {count}" for kind, count in summary["empty_pops"].items())
    _console.print(f"pops before the read model showed their job: {empty}")
    verdicts = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("target", "measured", "wanted", ""):
        verdicts.add_column(title)
    for each in summary["targets"]:
        wanted = f"≤ {each['most']:g}" if each["most"] is not None else f"≥ {each['least']:g}"
        verdict = "[green]met[/]" if each["met"] else "[red]missed[/]"
        verdicts.add_row(each["name"], f"{each['value']:.2f}", wanted, verdict)
    _console.print(verdicts)
    for each in told["repeated"]:
        _console.print(f"repeated: {each}", style="yellow")
    _console.print(
        f"{told['cpu']}, {told['cores']} cores, Python {told['python']}; {told['pinned']}; "
        f"{told['rounds']} rounds of {told['seconds']:g} s; CPU is that of "
        f"{', '.join(CYCLE_ROLES)}.",
        style="dim",
    )
