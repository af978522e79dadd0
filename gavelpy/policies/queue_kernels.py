"""The queue of jobs that take whole GPUs, in numba: as `queue.take_gpus_alone`, to the last bit.

A policy uses it where another module has loaded it, as simulations of many events do: numba takes a third of a second.
"""

from __future__ import annotations

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.compiled import njit


def take_gpus_alone(problem: AllocationProblem, order: Ints, *, blocks: bool) -> Floats:
    """Shares 0 or 1, (C, T), of a problem in which configuration c is job c alone."""
    gpus, rates = (problem.demand[:, 0], problem.capacity[:, 0]), problem.member_rate_steps_per_s
    share: Floats = _take(order, rates, *gpus, problem.gpu_type_held, blocks)
    return share


@njit(cache=True, nogil=True)
def _take(order, rates, demand, capacity, held, blocks):  # type: ignore[no-untyped-def]
    T = len(capacity)
    share = np.zeros(rates.shape)
    jobs, least_behind = np.empty(len(order), dtype=np.int64), np.empty(len(order), dtype=np.int64)
    count, least = 0, np.int64(0)
    for place in range(len(order) - 1, -1, -1):  # the jobs that can run, the last one first
        job = order[place]
        for t in range(T):
            if rates[job, t] > 0 and capacity[t] > 0:
                least = demand[job] if count == 0 else min(least, demand[job])
                jobs[count], least_behind[count] = job, least  # of a job and all later ones
                count += 1
                break
    left = capacity.copy()
    for place in range(count - 1, -1, -1):
        job, most_left = jobs[place], left.max()
        if most_left < least_behind[place] or (blocks and most_left < demand[job]):
            break
        best, best_rate = -1, 0.0
        for t in range(T):
            rate = rates[job, t]
            if rate < best_rate or rate <= 0 or demand[job] > left[t]:
                continue
            is_better = rate > best_rate
            if not is_better and (t == held[job]) != (best == held[job]):
                is_better = t == held[job]
            elif not is_better:
                is_better = left[t] > left[best]
            if is_better:
                best, best_rate = t, rate
        if best >= 0:
            share[job, best] = 1.0
            left[best] -= demand[job]
    return share
