"""Time of each policy at each size, cold and warm, against the same formulation in other solvers, in one process.

    python -m benchmarks allocation           some minutes: every policy, distinct jobs, 3 types, up to 8,192 jobs
    python -m benchmarks allocation --all     hours: every size, 3 and 8 types, both mixes, every peer, warm, memory
    python -m benchmarks allocation --policies max_min_fairness,min_makespan+pairs --jobs 32,512 --types 3,8 --warm

NAME+pairs is a policy on a problem in which every two jobs of equal gang size may be co-located. A time is a median; a
peer's time includes building the model. A contender that has exceeded --limit-s, or is forecast to exceed it by far, is
skipped at larger sizes. Rows are written to a CSV file as they are measured, and to a plot at the end.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks import plot
from benchmarks.contest import OURS, PEERS, Series, Terms
from benchmarks.problems import PAIRS, Case, Mix
from benchmarks.record import Measurement, recording
from gavelpy.errors import InvalidInput
from gavelpy.policies.base import policy_from, registered

T = TypeVar("T")
SIZES = (32, 128, 512, 2048, 8192, 32_768, 131_072, 1_048_576)
PACKED_SIZES = (32, 128, 256, 512)
PACKED = (f"max_min_fairness{PAIRS}",)  # in addition to the registered policies
OUT = Path("out/benchmarks/allocation.csv")
_LAYOUT = "{:36} {:8} {:>2} {:>9} {:4}  {:>10} {:9} {:>10} {:>8} {:>7}  {:>7} {:>7} {:>8}  {}"
_HEAD = ("policy", "mix", "m", "jobs", "", "ms", "solver", "solver ms", "times us", "apart", "gap", "violat.", "MB", "")


def run(arguments: Sequence[str] = ()) -> None:
    """Measures, prints a line per contender, and writes a CSV file and a plot."""
    options = _parsed(arguments)
    print(f"seed {options.seed}, load {options.load:g} GPUs per job and type of 3, limit {options.limit_s:g} s")
    print(_LAYOUT.format(*_HEAD))
    terms = Terms(tuple(options.peers), options.limit_s, options.warm, options.memory)
    interrupted = False
    with recording(options.out) as record:
        try:
            _load(terms)
            for policy, mix, types in itertools.product(options.policies, options.mix, options.types):
                sizes = options.jobs or (PACKED_SIZES if policy.endswith(PAIRS) else options.sizes)
                cases = [Case(policy, mix, types, n, options.load, options.seed) for n in sizes]
                _measure(Series(terms, policy_from(cases[0].policy_text)), cases, record.add)
        except KeyboardInterrupt:
            interrupted = True
    for path in (options.out, *plot.draw(options.out)):
        print(f"{'interrupted: ' * interrupted}measurements are in {path}", file=sys.stderr)
    if interrupted:
        raise SystemExit(130)


def _measure(series: Series, cases: Iterable[Case], keep: Callable[[Measurement], None]) -> None:
    for case in cases:
        ours_s: dict[str, float] = {}
        print(f"{case.policy}: {case.jobs:,} jobs, {case.types} types, {case.mix}", file=sys.stderr)
        for measured in series.measurements(case):
            keep(measured)
            if measured.contender == OURS:
                ours_s[measured.case.mode] = measured.median_s
            print(_line(measured, ours_s.get(measured.case.mode, math.nan)), flush=True)


def _load(terms: Terms) -> None:
    """Triggers every import on first use, so that no measurement includes it."""
    tiny = Case("max_min_fairness", Mix.DISTINCT, 3, 8, 0.1, 0)
    for _ in Series(terms, policy_from(tiny.policy)).measurements(tiny):
        pass


def _line(measured: Measurement, ours_s: float) -> str:
    m, case = measured, measured.case
    times = m.median_s / ours_s if m.contender != OURS else math.nan
    rest = (f"{times:8.1f}", f"{m.apart:7.0e}", f"{m.gap:7.0e}", f"{m.violation:7.0e}", f"{m.memory_mb:8.0f}")
    shown = [
        "" if "nan" in text else text for text in (f"{m.median_s * 1e3:10.2f}", f"{m.solver_s * 1e3:10.2f}", *rest)
    ]
    place = (case.policy, case.mix, case.types, f"{case.jobs:,}", case.mode)
    return _LAYOUT.format(*place, shown[0], m.contender, *shown[1:], " ".join((m.path, m.note)).strip()).rstrip()


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks allocation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    every = (*registered(), *PACKED)
    add = parser.add_argument
    add("--all", action="store_true", help="every size, mix, number of types and peer, warm, memory, a limit of 60 s")
    add("--policies", type=_list_of(_policy), help="separated by commas (default: every registered one)")
    add(
        "--jobs",
        type=_list_of(int),
        help=f"sizes (default: {SIZES[0]} to {SIZES[4]}, with pairs to {PACKED_SIZES[-1]})",
    )
    add("--types", type=_list_of(int), help="numbers of GPU types (default: 3)")
    add(
        "--mix",
        choices=[*Mix, "both"],
        help="all jobs distinct (the default), of few kinds as in Gavel's traces, or both",
    )
    add("--peers", type=_list_of(_peer), help=f"of {', '.join(PEERS)} (default: ecos); 'none' for none")
    add("--warm", action="store_true", help="also after an arrival or departure, the solver kept")
    add("--memory", action="store_true", help="also peak memory, of a process of its own")
    add("--limit-s", type=float, help="seconds after which a contender is skipped at larger sizes (default: 3)")
    add("--load", type=float, default=0.1, help="GPUs per job and type, of three (default: 0.1; 1 has some to spare)")
    add("--seed", type=int, default=0)
    add("--out", type=Path, default=OUT, help=f"CSV file (default: {OUT})")
    options = parser.parse_args(arguments)
    options.policies = options.policies or every
    options.jobs = sorted(options.jobs or ())
    options.sizes = SIZES if options.all else SIZES[:5]
    options.types = options.types or ([3, 8] if options.all else [3])
    mix = options.mix or ("both" if options.all else Mix.DISTINCT)
    options.mix = list(Mix) if mix == "both" else [Mix(mix)]
    peers = PEERS if options.all else ("ecos",)
    options.peers = [peer for peer in (options.peers or peers) if peer != "none"]
    options.limit_s = options.limit_s or (60.0 if options.all else 3.0)
    options.warm |= options.all
    options.memory |= options.all
    return options


def _list_of(one: Callable[[str], T]) -> Callable[[str], list[T]]:
    def many(text: str) -> list[T]:
        return [one(part) for part in text.split(",") if part]

    return many


def _policy(text: str) -> str:
    try:
        policy_from(text.removesuffix(PAIRS))
    except InvalidInput as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _peer(text: str) -> str:
    if text not in (*PEERS, "none"):
        raise argparse.ArgumentTypeError(f"peers must be of {', '.join(PEERS)}, got {text!r}")
    return text
