"""Ratios of CPU time to the fastest peer by load, cold and one change at a time; fails where a ratio has fallen.

    OPENBLAS_NUM_THREADS=1 python -m benchmarks by_load              all sizes, some ten minutes
    OPENBLAS_NUM_THREADS=1 python -m benchmarks by_load --guard      up to 2,048 jobs, against ratios.csv
    OPENBLAS_NUM_THREADS=1 python -m benchmarks by_load --record     all sizes, written to ratios.csv

*Load* is in GPUs per job and type, of three types: 0.1 is six times overloaded, at 0.33 the slowest job limits the
level, 0.6 has GPUs to spare. With "+pairs", every two jobs of equal gang size may be co-located. Peers are cvxpy with
ECOS and with Clarabel, from the model to the answer, and HiGHS on arrays; for one change HiGHS from its last basis, and
for a policy with the `Solver` of the call before ("kept") the same policy with a new one; "again" is the same problem
once more, the least that any change can cost. Contenders take turns in one process, and ratios are medians of CPU time,
so that other work on the machine changes both sides. The numba kernels are loaded first, as in a scheduler.
`make bench-guard` runs the second line.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.contest import CVXPY, PEERS
from benchmarks.engines import Cvxpy, Highs, PeerFailed
from benchmarks.peers import formulation_of
from benchmarks.problems import PAIRS, Case, Mix, draw
from benchmarks.warm import WarmHighs
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import equal_share_rate, policy_from
from gavelpy.solve.live import LiveMaxMin
from gavelpy.solve.solver import Solver

Contender = Callable[[AllocationProblem], object]
LOADS = (0.1, 0.33, 0.6)
COLD: Mapping[str, tuple[int, ...]] = {
    "max_min_fairness": (32, 128, 512, 2048, 8192),
    "min_cost": (128, 512, 2048),
    "max_sum_throughput": (128, 512, 2048),
    "min_makespan": (128, 512, 2048),
    "finish_time_fairness": (512, 2048, 8192),
    f"max_min_fairness{PAIRS}": (64, 128, 256),
}
KEPT, AGAIN, KEPT_JOBS = "kept ", "again ", 2048
KEPT_POLICIES = (
    "max_min_fairness",
    "min_makespan",
    "max_sum_throughput",
    "min_cost",
    "finish_time_fairness",
    "max_min_fairness_water_filling",
    "nash_welfare",
)
LIVE, LIVE_SIZES = "LiveMaxMin, one event", (512, 2048, 8192)
RECORDED = Path(__file__).with_name("ratios.csv")
GUARD_JOBS_MAX = 2048
LEAST = 2.0 / 3.0  # of the recorded ratio: below, the guard fails
RUNS, CHANGES = 5, 16
BUDGET_S = 12.0  # of CPU for all runs of a contender; the slowest peers get fewer
_STOP_S = 60.0


class Place(NamedTuple):
    """What is measured."""

    what: str
    jobs: int
    load: float


class Ratio(NamedTuple):
    """Median CPU seconds of ours and of the fastest peer."""

    ours_s: float
    theirs_s: float
    peer: str

    @property
    def ratio(self) -> float:
        """Above 1, ours is faster."""
        return self.theirs_s / self.ours_s


def run(arguments: Sequence[str] = ()) -> None:
    """Prints a line for each measurement; with --guard, exits with 1 if a ratio has fallen by a third."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks by_load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--guard", action="store_true", help=f"compare with {RECORDED.name}, up to {GUARD_JOBS_MAX} jobs"
    )
    parser.add_argument("--record", action="store_true", help=f"write {RECORDED.name}")
    parser.add_argument("--only", default="", metavar="TEXT", help="only what contains this; `--record` keeps the rest")
    options = parser.parse_args(arguments)
    importlib.import_module("gavelpy.solve.prices.numba_kernels")
    expected = recorded(RECORDED) if options.guard else {}
    found: dict[Place, Ratio] = {}
    fallen = []
    for place in places(GUARD_JOBS_MAX if options.guard else max(COLD["max_min_fairness"])):
        if options.only not in place.what:
            continue
        found[place] = measured(place)
        print(line(place, found[place], expected.get(place)), flush=True)
        if has_fallen(found[place].ratio, expected.get(place)) and has_fallen(
            measured(place).ratio,
            expected.get(place),  # again: a single bad one may be the machine's
        ):
            fallen.append(place)
    if options.record:
        kept = recorded(RECORDED) if options.only else {}
        write(RECORDED, kept | {place: ratio.ratio for place, ratio in found.items()})
    if fallen:
        raise SystemExit("\n".join(f"fallen by a third: {p.what}, {p.jobs} jobs, load {p.load:g}" for p in fallen))


def places(jobs_max: int) -> Iterator[Place]:
    """Everything that is measured, up to a size."""
    kept = {how + name: (KEPT_JOBS,) for how in (KEPT, AGAIN) for name in KEPT_POLICIES}
    for what, sizes in (*COLD.items(), *kept.items(), (LIVE, LIVE_SIZES)):
        for jobs in sizes:
            yield from (Place(what, jobs, load) for load in LOADS if jobs <= jobs_max)


def has_fallen(ratio: float, expected: float | None) -> bool:
    """Whether a ratio is a third below the recorded one. One without a record has not fallen."""
    return expected is not None and ratio < LEAST * expected


def line(place: Place, found: Ratio, expected: float | None) -> str:
    """The measurement, with the recorded ratio if there is one."""
    shown = f"{place.what:36} {place.jobs:>6,} {place.load:>5.2f} {found.ours_s * 1e3:>9.2f} ms "
    shown += f"{found.peer:>8} {found.theirs_s * 1e3:>9.1f} ms {found.ratio:>7.1f}"
    return shown if expected is None else f"{shown}  recorded {expected:.1f}"


def recorded(path: Path) -> dict[Place, float]:
    """The recorded ratios."""
    with path.open(newline="", encoding="utf-8") as file:
        return {
            Place(row["what"], int(row["jobs"]), float(row["load"])): float(row["ratio"])
            for row in csv.DictReader(file)
        }


def write(path: Path, found: Mapping[Place, float]) -> None:
    """Writes the ratios, in three digits."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("what", "jobs", "load", "ratio"))
        writer.writerows((*place, f"{ratio:.3g}") for place, ratio in found.items())


def measured(place: Place) -> Ratio:
    """Ours and the fastest peer, in turn."""
    if place.what.startswith((KEPT, AGAIN)):
        return _kept(place)
    return _live(place) if place.what == LIVE else _cold(place)


def _cold(place: Place) -> Ratio:
    policy = policy_from(place.what.removesuffix(PAIRS))
    formulation = formulation_of(policy)
    assert formulation is not None, place.what
    problem = Case(place.what, Mix.DISTINCT, 3, place.jobs, place.load, seed=0).problem()
    contenders: dict[str, Contender] = {"ours": policy.allocate}
    for peer in PEERS if formulation.is_linear else CVXPY:
        contenders[peer] = lambda given, peer=peer: formulation.solve(  # type: ignore[misc]
            given, Highs(_STOP_S) if peer == "highs" else Cvxpy(peer.upper(), _STOP_S)
        )
    return _fastest(_in_turn(contenders, problem))


def _in_turn(contenders: Mapping[str, Contender], problem: AllocationProblem) -> dict[str, float]:
    """Median CPU seconds of each contender; a first run is not counted. Peers that fail are left out.

    Each gets a copy of the problem, made and checked before its time begins: a problem caches derived values.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    failed: set[str] = set()
    for _ in range(RUNS + 1):
        for name, call in contenders.items():
            if name in failed or sum(times[name][1:]) > BUDGET_S:  # a first run may compile kernels
                continue
            given = replace(problem)
            began_s = time.process_time()
            try:
                call(given)
            except PeerFailed:
                failed.add(name)
                continue
            times[name].append(time.process_time() - began_s)
    return {name: statistics.median(took[1:] or took) for name, took in times.items() if name not in failed}


def _fastest(median_s: Mapping[str, float]) -> Ratio:
    peer = min((name for name in median_s if name != "ours"), key=lambda name: median_s[name])
    return Ratio(median_s["ours"], median_s[peer], peer)


def _kept(place: Place) -> Ratio:
    """One change answered with the solver of the call before, and with a new one, in turn; the bytes must agree.

    "again" measures the second answer to each problem.
    """
    policy, solver = policy_from(place.what.removeprefix(KEPT).removeprefix(AGAIN)), Solver()
    drawn = draw(place.jobs, 3, Mix.DISTINCT, load=place.load, seed=1, spare=CHANGES)
    problems = [drawn.problem(rows) for rows in drawn.changes(place.jobs, CHANGES)]
    warm_s, cold_s = [], []
    policy.allocate(problems[0], solver)
    for problem in problems[1:]:
        if place.what.startswith(AGAIN):
            policy.allocate(replace(problem), solver)
        began_s = time.process_time()
        warm = policy.allocate(problem, solver)
        warm_s.append(time.process_time() - began_s)
        again = replace(problem)
        began_s = time.process_time()
        cold = policy.allocate(again)
        cold_s.append(time.process_time() - began_s)
        assert warm.share.tobytes() == cold.share.tobytes(), f"{place}: a kept solver changed the answer"
    return Ratio(statistics.median(warm_s), statistics.median(cold_s), "new")


def _live(place: Place) -> Ratio:
    drawn = draw(place.jobs, 3, Mix.DISTINCT, load=place.load, seed=1, spare=CHANGES)
    pool, changes = drawn.problem(), drawn.changes(place.jobs, CHANGES)
    scale = pool.gpus_asked / (pool.weight * equal_share_rate(pool))
    live = LiveMaxMin(pool.gpu_types, pool.gpu_counts)
    for row in changes[0].tolist():
        _add(live, pool, row, float(scale[row]))
    live.solve()
    formulation = formulation_of(policy_from("max_min_fairness"))
    assert formulation is not None
    assert formulation.warm is not None
    peer = WarmHighs(pool, formulation.warm, changes[0], 600.0)
    ours_s, theirs_s = [], []
    for before, after in pairwise(changes):
        gone, come = np.setdiff1d(before, after).tolist(), np.setdiff1d(after, before).tolist()
        began_s = time.process_time()
        for row in gone:
            live.remove(pool.job_ids[row])
        for row in come:
            _add(live, pool, row, float(scale[row]))
        objective = live.solve().certificate.objective
        ours_s.append(time.process_time() - began_s)
        began_s = time.process_time()
        best = peer.best(after)
        theirs_s.append(time.process_time() - began_s)
        assert abs(best / objective - 1.0) < 1e-6, f"HiGHS found {best}, we {objective}"
    return Ratio(statistics.median(ours_s), statistics.median(theirs_s), "highs")


def _add(live: LiveMaxMin, pool: AllocationProblem, row: int, scale: float) -> None:
    rates = pool.member_rate_steps_per_s[row]
    live.add(pool.job_ids[row], rates, scale=scale, gpus=float(pool.gpus_asked[row]))
