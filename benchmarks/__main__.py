"""Runs every benchmark and prints its lines; record important results in RESULTS.md with date and machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence

from benchmarks import (
    allocation,
    archive,
    by_load,
    certainty,
    deaths,
    detector,
    estimator,
    failover,
    forecasts,
    growth,
    holdouts,
    imports,
    iterator,
    journal,
    live,
    load,
    recovery,
    replays,
    roads,
    simulation,
    sizes,
    slurm,
    starts,
    teams,
)
from benchmarks.gpu import phases as gpu

BENCHMARKS: Mapping[str, Callable[[], None]] = {
    "imports": imports.run,
    "roads": roads.run,
    "iterator": iterator.run,
    "allocation": allocation.run,
    "by_load": by_load.run,
    "live": live.run,
    "sizes": sizes.run,
    "simulation": simulation.run,
    "journal": journal.run,
    "archive": archive.run,
    "certainty": certainty.run,
    "estimator": estimator.run,
    "holdouts": holdouts.run,
    "growth": growth.run,
    "scale": simulation.run_scale,
    "waiting": simulation.run_waiting,
    "load": load.run,
    "recovery": recovery.run,
    "replays": replays.run,
    "failover": failover.run,
    "forecasts": forecasts.run,
    "gpu": gpu.run,
    "deaths": deaths.run,
    "detector": detector.run,
    "slurm": slurm.run,
    "starts": starts.run,
    "teams": teams.run,
}
WITH_OPTIONS: Mapping[str, Callable[[Sequence[str]], None]] = {
    "allocation": allocation.run,
    "by_load": by_load.run,
    "certainty": certainty.run,
    "deaths": deaths.run,
    "detector": detector.run,
    "estimator": estimator.run,
    "failover": failover.run,
    "forecasts": forecasts.run,
    "growth": growth.run,
    "gpu": gpu.run,
    "holdouts": holdouts.run,
    "live": live.run,
    "load": load.run,
    "replays": replays.run,
}
MINUTES_LONG = (
    "archive",
    "by_load",
    "certainty",
    "deaths",
    "detector",
    "estimator",
    "failover",
    "forecasts",
    "gpu",
    "holdouts",
    "growth",
    "scale",
    "load",
    "recovery",
    "replays",
    "sizes",
    "slurm",
    "starts",
    "waiting",
)


def main() -> None:
    """`python -m benchmarks [NAME ...]`, or `python -m benchmarks NAME OPTION ...` for one that takes options."""
    name, options = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if name in WITH_OPTIONS and options and options[0].startswith("-"):
        WITH_OPTIONS[name](options)
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    usage = f"which: {', '.join(BENCHMARKS)} (default: all but {' and '.join(MINUTES_LONG)}); "
    usage += f"{' and '.join(WITH_OPTIONS)} take options, too: see --help after the name"
    parser.add_argument("names", nargs="*", metavar="NAME", help=usage)
    names = parser.parse_args().names or [name for name in BENCHMARKS if name not in MINUTES_LONG]
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"NAME must be one of {', '.join(BENCHMARKS)}, got {unknown[0]!r}")
    for name in names:
        print(f"\n{name}\n{'=' * len(name)}")
        BENCHMARKS[name]()


if __name__ == "__main__":
    main()
