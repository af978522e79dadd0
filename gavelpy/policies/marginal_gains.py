"""Whole GPUs to jobs by marginal gain: the fewest for each job in turn, then more to the job that gains most by them.

Shared by the policies that grow jobs greedily: `slaq` and `optimus`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import ruled
from gavelpy.policies.in_order import places
from gavelpy.policies.places import PlacesAlone

NONE = -1


class LonePlaces:
    """The places (a configuration of one job, and a GPU type with enough for it) of all jobs, K of them."""

    def __init__(self, problem: AllocationProblem) -> None:
        self.row, self.job, self.gpu_type, self.rate = PlacesAlone.of(problem)
        self.gpus: Floats = problem.gpus_occupied[self.row]
        self.demand: Ints = problem.demand[self.row]  # (K, R) thousandths
        whole = problem.capacity.sum(axis=0)
        self.part: Floats = (self.demand / np.where(whole > 0, whole, 1)).max(axis=1, initial=0.0)  # dominant share
        held, gpus = problem.gpu_type_held, np.where(problem.gpus_held > 0, problem.gpus_held, problem.gpus_asked)
        self.is_held: Bools = (held[self.job] == self.gpu_type) & (gpus[self.job] == self.gpus)
        self.problem = problem

    def start_s(self) -> Floats:
        """What a start in each place costs its job, (K,): its last one, or nothing in the place that it holds."""
        return np.where(self.is_held, 0.0, self.problem.restart_s[self.job])

    def smallest(self) -> Ints:
        """The place of each job with the fewest GPUs, then the highest rate, (J,); -1 = it can run nowhere."""
        found = np.full(self.problem.job_count, NONE)
        order = np.lexsort((-self.rate, self.gpus, self.job))
        jobs, first = np.unique(self.job[order], return_index=True)
        found[jobs] = order[first]
        return found


def by_marginal_gain(at: LonePlaces, value: Floats, order: Iterable[int]) -> Ints:
    """The place of each job, (J,), -1 = none, for what each place is worth to its job, `value` (K,).

    First the jobs take, in this order, their fewest GPUs that are free, in the place of the highest value. Then, while
    a job can move to a place of a higher value, the move with the highest gain per dominant share of the resources
    that it adds is made; a move that adds none comes before all others. Ties: the first place.
    """
    free, found = at.problem.capacity.copy(), np.full(at.problem.job_count, NONE)
    of_job = np.split(np.argsort(at.job, kind="stable"), np.cumsum(np.bincount(at.job, minlength=len(found)))[:-1])
    for job in order:
        own = of_job[job]
        own = own[(at.demand[own] <= free[at.gpu_type[own]]).all(axis=1)]
        if len(own):
            best = int(own[np.lexsort((-value[own], at.gpus[own]))[0]])
            found[job] = best
            free[at.gpu_type[best]] -= at.demand[best]
    _grow(at, value, found, free, of_job)
    return found


def _grow(at: LonePlaces, value: Floats, found: Ints, free: Ints, of_job: list[Ints]) -> None:
    """Makes moves by marginal gain until none is left."""
    score, back = np.full(len(at.job), -np.inf), np.zeros_like(at.demand)

    def rate_moves(job: int) -> None:
        """The gain of each move of a job from where it is, and what it gives back if it stays on its type."""
        own, now = of_job[job], int(found[job])
        gain, added = value[own] - value[now], at.part[own] - at.part[now]
        per_part = np.where(added > 0, gain / np.where(added > 0, added, 1.0), np.inf)
        score[own] = np.where(gain > 0, per_part, -np.inf)
        back[own] = np.where((at.gpu_type[own] == at.gpu_type[now])[:, None], at.demand[now], 0)

    for job in np.flatnonzero(found >= 0).tolist():
        rate_moves(job)
    while True:
        fits: Bools = np.asarray((at.demand <= free[at.gpu_type] + back).all(axis=1))
        best = int(np.argmax(np.where(fits, score, -np.inf))) if len(score) else NONE
        if best == NONE or not fits[best] or score[best] == -np.inf:
            return
        job = int(at.job[best])
        free[at.gpu_type[found[job]]] += at.demand[found[job]]
        free[at.gpu_type[best]] -= at.demand[best]
        found[job] = best
        rate_moves(job)


def named_answer(at: LonePlaces, found: Ints, order: Iterable[int], objective: float) -> Allocation:
    """Shares of 0 and 1: the chosen places, the largest first, then the places of the jobs that wait, in this order."""
    problem, share = at.problem, np.zeros(at.problem.fits.shape)
    taken = found[found >= 0]
    share[at.row[taken], at.gpu_type[taken]] = 1.0
    taken = taken[np.lexsort((at.job[taken], -at.gpus[taken]))]
    named = np.column_stack([at.row[taken], at.gpu_type[taken]])
    waiting = np.array([job for job in order if found[job] < 0], dtype=np.int64)
    next_round = np.concatenate([named, places(problem, waiting, share)]).astype(np.int64)
    return replace(ruled(problem, share, objective), next_round=next_round)
