"""Runs every benchmark and prints its lines; results worth keeping go to RESULTS.md with date and machine."""

from __future__ import annotations

import argparse

from benchmarks import allocation, imports, simulation

BENCHMARKS = {
    "imports": imports.run,
    "allocation": allocation.run,
    "simulation": simulation.run,
    "scale": simulation.run_scale,
}

MINUTES_LONG = "scale"


def main() -> None:
    """`python -m benchmarks [NAME ...]`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    told = f"which: {', '.join(BENCHMARKS)} (default: all but {MINUTES_LONG})"
    parser.add_argument("names", nargs="*", metavar="NAME", help=told)
    names = parser.parse_args().names or [name for name in BENCHMARKS if name != MINUTES_LONG]
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"NAME must be one of {', '.join(BENCHMARKS)}, got {unknown[0]!r}")
    for name in names:
        print(f"\n{name}\n{'=' * len(name)}")
        BENCHMARKS[name]()


if __name__ == "__main__":
    main()
