"""One arrival or departure at a time: CPU time of `LiveMaxMin` and of HiGHS with a warm basis, in one process.

python -m benchmarks live                                         loads of 0.1, 3 and 8 types
python -m benchmarks live --types 3 --loads 0.1,0.33,0.6          see benchmarks/by_load.py for what a load is
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from benchmarks.peers import formulation_of
from benchmarks.problems import Mix, draw
from benchmarks.warm import WarmHighs
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import equal_share_rate
from gavelpy.policies.max_min_fairness import MaxMinFairness
from gavelpy.solve.live import LiveMaxMin

CHANGES = 40
SIZES = (512, 2048, 8192, 131_072)
TYPES = (3, 8)
PEER_JOBS_MAX = 8192  # for more, HiGHS's first solve takes minutes


def run(arguments: Sequence[str] = ()) -> None:
    """Prints a line for each number of types, size and load."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks live", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--types", default=",".join(map(str, TYPES)), help="numbers of GPU types (default: %(default)s)"
    )
    parser.add_argument("--jobs", default=",".join(map(str, SIZES)), help="numbers of jobs (default: %(default)s)")
    parser.add_argument("--loads", default="0.1", help="GPUs per job and type, of three (default: %(default)s)")
    options = parser.parse_args(arguments)
    print(
        f"{'jobs':>7} {'types':>5} {'load':>5} {'live':>9} {'p90':>9} {'gap':>8} {'HiGHS, warm':>12} {'ratio':>6}  by"
    )
    for types in map(int, options.types.split(",")):
        for jobs in map(int, options.jobs.split(",")):
            for load in map(float, options.loads.split(",")):
                _line(jobs, types, load)


def _line(jobs: int, types: int, load: float) -> None:
    drawn = draw(jobs, types, Mix.DISTINCT, load=load, seed=1, spare=CHANGES)
    pool, changes = drawn.problem(), drawn.changes(jobs, CHANGES)
    scale = pool.gpus_asked / (pool.weight * equal_share_rate(pool))
    live = LiveMaxMin(pool.gpu_types, pool.gpu_counts)
    for row in changes[0].tolist():
        _add(live, pool, row, float(scale[row]))
    live.solve()
    took_s, gaps, objective = [], [], 0.0
    for before, after in pairwise(changes):
        gone, come = np.setdiff1d(before, after).tolist(), np.setdiff1d(after, before).tolist()
        began_s = time.process_time()
        for row in gone:
            live.remove(pool.job_ids[row])
        for row in come:
            _add(live, pool, row, float(scale[row]))
        certificate = live.solve().certificate
        took_s.append(time.process_time() - began_s)
        gaps.append(certificate.gap)
        objective = certificate.objective
    ours_s = float(np.median(took_s))
    line = f"{jobs:>7,} {types:>5} {load:>5.2f} {ours_s * 1e3:>6.2f} ms {np.quantile(took_s, 0.9) * 1e3:>6.2f} ms"
    line += f" {max(gaps):>8.0e}" + _peer(pool, changes, jobs, ours_s, objective)
    print(f"{line}  {', '.join(f'{path} {n}' for path, n in live.solver.answers.items())}")
    sys.stdout.flush()


def _add(live: LiveMaxMin, pool: AllocationProblem, row: int, scale: float) -> None:
    rates = pool.member_rate_steps_per_s[row]
    live.add(pool.job_ids[row], rates, scale=scale, gpus=float(pool.gpus_asked[row]))


def _peer(pool: AllocationProblem, changes: list[np.ndarray], jobs: int, ours_s: float, objective: float) -> str:
    formulation = formulation_of(MaxMinFairness())
    if jobs > PEER_JOBS_MAX or formulation is None or formulation.warm is None:
        return f" {'-':>12} {'-':>6}"
    peer = WarmHighs(pool, formulation.warm, changes[0], 600.0)
    took_s, found = [], 0.0
    for present in changes[1:]:
        began_s = time.process_time()
        found = peer.best(present)
        took_s.append(time.process_time() - began_s)
    assert abs(found / objective - 1.0) < 1e-6, f"HiGHS found {found}, we {objective}"
    theirs_s = float(np.median(took_s))
    return f" {theirs_s * 1e3:>9.2f} ms {theirs_s / ours_s:>5.0f}x"
