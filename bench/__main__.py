"""`python -m bench [--rounds N] [--seconds S] [--json FILE]`: measure, print ratios, write JSON.

Every round measures everything once, so that a slow spell of the machine falls on all figures
alike. Absolute figures swing on shared machines; judge the ratios.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from bench import history, images, queued, report, spot, validation
from bench.rig import BenchFailed, Generator, Result, Target, ceilings, facts, folder, service

WARM_UP = 1.0
REST = 2.0
CONNECTIONS = 16
PAIRS = 8
LANES = 4
AHEAD = 200
"""Real requests of the queue that is all in reach: more than are popped before others come."""
WAITING = 2000
SETTLE = 5.0
"""Seconds in which so many pops arrive, and what their workers declared is projected."""
POSTS = 900  # of a generation; the service allows 1000
SHOWING = 2
"""Clients that show images, one request after the other: as many as a web process has processes for
them."""
SEEN_POPS = 100.0  # a second


class Round:
    """Measurements that are taken once each, one after the other.

    One that fails is repeated, and told in `repeated`.
    """

    def __init__(self, generator: Generator, seconds: float, repeated: list[str]) -> None:
        self.found: dict[str, Result] = {}
        self._generator = generator
        self._seconds = seconds
        self._repeated = repeated

    def take(self, name: str, target: Target, **task: Any) -> Result:
        """Measure one thing; raise BenchFailed."""
        report.note(name)
        whole = {"warm_up": WARM_UP, "seconds": self._seconds, **task}
        try:
            self.found[name] = self._generator.perform(target, whole)
        except BenchFailed as error:
            report.note(f"{name}: {error}; once more")
            self._repeated.append(f"{name}: {error}")
            time.sleep(REST)
            try:
                self.found[name] = self._generator.perform(target, whole)
            except BenchFailed as again:
                raise BenchFailed(f"{name}: {again}") from again
        return self.found[name]

    def of_jobs(self, targets: tuple[Target, Target, Target]) -> None:
        """What one request of each kind costs, beside the ceilings, and a whole job."""
        hello, store, horde = targets
        take, seconds = self.take, self._seconds
        take("hello", hello, kind="closed", request="hello", connections=CONNECTIONS)
        for name, size in (
            ("validate 2 KiB", validation.SMALL),
            ("validate 1 MiB", validation.LARGE),
        ):
            report.note(name)
            self.found[name] = validation.run(size, seconds)
        for name in spot.KINDS:
            report.note(name)
            self.found[name] = spot.run(name, seconds)
        report.note("images")
        self.found |= images.run(seconds)
        store_ = take("store", store, kind="closed", request="store", connections=CONNECTIONS)
        rate = len(store_.times) / seconds
        take("store, a tenth", store, kind="paced", rate=rate / 10, connections=CONNECTIONS)
        take("idle pop", horde, kind="closed", request="pop", connections=CONNECTIONS)
        leases = int(1.5 * rate * (seconds + WARM_UP) / POSTS) + 2 * CONNECTIONS
        take(
            "progress post",
            horde,
            kind="progress",
            connections=CONNECTIONS,
            leases=leases,
            posts=POSTS,
        )
        saturated = take("job, saturated", horde, kind="cycle", clients=PAIRS, workers=PAIRS)
        tenth = len(saturated.times) / seconds / 10
        take("job, a tenth", horde, kind="cycle", clients=PAIRS, workers=PAIRS, rate=tenth)

    def of_history(self, log: Path) -> None:
        """What it costs to fold a log anew."""
        report.note("rebuilds")
        self.found |= history.run(log)

    def of_queues(self, horde: Target) -> None:
        """Pops in long queues, and pops that wait."""
        for kind in queued.KINDS:
            self.take(
                f"pop, {kind}",
                horde,
                kind="reach",
                model=kind,
                lanes=LANES,
                length=queued.LENGTH,
                limit=queued.LIMIT,
                ahead=AHEAD if kind == queued.NEAR else 0,
            )
        self.take(report.WAITING, horde, kind="waiting", workers=WAITING, settle=SETTLE)

    def of_images(self, horde: Target) -> None:
        """Pops while requests of twenty images stream in and out, and while none does."""
        for name, clients in ((report.UNSHOWN, 0), (report.SHOWN, SHOWING)):
            self.take(
                name,
                horde,
                kind="shown",
                clients=clients,
                rate=SEEN_POPS,
                connections=CONNECTIONS,
            )


@click.command()
@click.option("--rounds", type=click.IntRange(1, 50), default=3, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.5, 60), default=3.0, show_default=True)
@click.option(
    "--queue",
    type=click.IntRange(100, 1_000_000),
    default=50_000,
    show_default=True,
    help="Requests in each long queue.",
)
@click.option(
    "--json",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("build/bench.json"),
    show_default=True,
)
def main(rounds: int, seconds: float, queue: int, file: Path) -> None:
    """Measure the service beside two ceilings of the same stack."""
    cores = sorted(os.sched_getaffinity(0))
    core = cores[-1] if len(cores) > 1 else None
    told: dict[str, Any] = facts() | {
        "rounds": rounds,
        "seconds": seconds,
        "queue": queue,
        "pinned": f"load generator on core {core}; no server is pinned",
    }
    results: dict[str, list[Result]] = defaultdict(list)
    repeated: list[str] = []
    started = time.monotonic()

    def each(what: Callable[[Round], None], generator: Generator) -> None:
        for number in range(rounds):
            report.note(f"round {number + 1} of {rounds}", heading=True)
            one = Round(generator, seconds, repeated)
            what(one)
            for name, result in one.found.items():
                results[name].append(result)

    try:
        with folder() as where, contextlib.closing(Generator(core)) as generator:
            with ceilings(where) as (hello, store), service(where / "jobs") as horde:
                each(lambda one: one.of_jobs((hello, store, horde)), generator)
            report.note(f"a log of {history.EVENTS:,} events", heading=True)
            history.make(where / "log")
            each(lambda one: one.of_history(where / "log"), generator)
            with service(where / "images") as horde:
                each(lambda one: one.of_images(horde), generator)
            # A service of its own: what one kind of load leaves would weigh on the other.
            with service(where / "queues") as horde:
                report.note(f"{len(queued.KINDS)} queues of {queue:,}", heading=True)
                queued.fill(horde.database_url, queue)
                each(lambda one: one.of_queues(horde), generator)
    except BenchFailed as error:
        sys.exit(f"bench: {error}")
    summary = report.summarise(results)
    told["repeated"] = repeated
    told["took_seconds"] = round(time.monotonic() - started, 1)
    report.show(summary, told)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(told | summary, indent=2) + "\n")
    report.note(f"written to {file}", heading=True)


if __name__ == "__main__":
    main()
