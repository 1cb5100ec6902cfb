"""`python -m bench [--rounds N] [--seconds S] [--json FILE]`: measure, print ratios, write JSON.

Every round measures everything once, so that a slow spell of the machine falls on all figures
alike. Absolute figures swing on shared machines; judge the ratios.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import click

from bench import report, validation
from bench.rig import BenchFailed, Generator, Result, Target, ceilings, facts, folder, service

WARM_UP = 1.0
REST = 2.0
CONNECTIONS = 16
PAIRS = 8
RATE = 20.0
POSTS = 900  # of a generation; the service allows 1000


def measure(
    generator: Generator,
    targets: tuple[Target, Target, Target],
    seconds: float,
    repeated: list[str],
) -> dict[str, Result]:
    """One round: every measurement once. One that fails is repeated, and told in `repeated`."""
    hello, store, horde = targets
    found: dict[str, Result] = {}

    def take(name: str, target: Target, **task: Any) -> Result:
        report.note(name)
        whole = {"warm_up": WARM_UP, "seconds": seconds, **task}
        try:
            found[name] = generator.perform(target, whole)
        except BenchFailed as error:
            report.note(f"{name}: {error}; once more")
            repeated.append(f"{name}: {error}")
            time.sleep(REST)
            try:
                found[name] = generator.perform(target, whole)
            except BenchFailed as again:
                raise BenchFailed(f"{name}: {again}") from again
        return found[name]

    take("hello", hello, kind="closed", request="hello", connections=CONNECTIONS)
    for name, size in (("validate 2 KiB", validation.SMALL), ("validate 1 MiB", validation.LARGE)):
        report.note(name)
        found[name] = validation.run(size, seconds)
    saturated = take("store", store, kind="closed", request="store", connections=CONNECTIONS)
    rate = len(saturated.times) / seconds
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
    take("job, saturated", horde, kind="cycle", clients=PAIRS, workers=PAIRS)
    take("job, light", horde, kind="cycle", clients=PAIRS, workers=PAIRS, rate=RATE)
    return found


@click.command()
@click.option("--rounds", type=click.IntRange(1, 50), default=3, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.5, 60), default=3.0, show_default=True)
@click.option(
    "--json",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("build/bench.json"),
    show_default=True,
)
def main(rounds: int, seconds: float, file: Path) -> None:
    """Measure the service beside two ceilings of the same stack."""
    cores = sorted(os.sched_getaffinity(0))
    core = cores[-1] if len(cores) > 1 else None
    told: dict[str, Any] = facts() | {
        "rounds": rounds,
        "seconds": seconds,
        "pinned": f"load generator on core {core}; no server is pinned",
    }
    results: dict[str, list[Result]] = defaultdict(list)
    repeated: list[str] = []
    started = time.monotonic()
    try:
        with folder() as where, ceilings(where) as (hello, store), service(where) as horde:
            generator = Generator(core)
            try:
                for number in range(rounds):
                    report.note(f"round {number + 1} of {rounds}", heading=True)
                    found = measure(generator, (hello, store, horde), seconds, repeated)
                    for name, result in found.items():
                        results[name].append(result)
            finally:
                generator.close()
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
