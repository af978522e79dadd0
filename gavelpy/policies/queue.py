"""What FIFO and shortest job first have in common: jobs that take whole GPUs one after another, then share them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem

PACKING_THRESHOLD = 1.5  # the original Gavel's


def whole_shares(
    problem: AllocationProblem, order: Ints, *, blocks: bool, packing_threshold: float = PACKING_THRESHOLD
) -> Floats:
    """Shares 0 or 1, (C, T): the jobs of `order` (rows) each take the fastest type that has enough GPUs left.

    Equal rates: the type it holds now, then the one with most GPUs left, then type order. A job for which no type has
    enough GPUs left stops the queue when `blocks`, and is passed over otherwise. Always passed over: a job that can run
    nowhere, and one for which there are enough GPUs, but only of types where it cannot run.

    Then, where the problem has configurations of several jobs, those that wait join those that run, in the same order:
    see `_Sharing`. A job that stopped the queue stops it here too unless it finds somebody to join.
    """
    share: Floats = np.zeros(problem.fits.shape)
    passed_over, queue = _take_gpus(problem, order, share, blocks=blocks)
    if problem.member_count.max(initial=0) > 1 and len(passed_over) + len(queue):
        sharing = _Sharing(problem, share, packing_threshold)
        for job in passed_over:
            sharing.joins(job)
        for job in queue:
            if not sharing.joins(job) and blocks:
                break
    return share


def check_packing_threshold(packing_threshold: float) -> None:
    """Raises InvalidInput for a sum of relative rates that even jobs that gain nothing would pass."""
    if not (math.isfinite(packing_threshold) and packing_threshold >= 1):
        raise InvalidInput(f"packing_threshold must be finite and >= 1, got {packing_threshold!r}")


def _take_gpus(problem: AllocationProblem, order: Ints, share: Floats, *, blocks: bool) -> tuple[list[int], list[int]]:
    """Fills in the `share` of jobs that run by themselves; the jobs passed over, and those left in the queue."""
    choices = _LoneChoices(problem)
    jobs = order[problem.can_run[order]]
    least_behind = np.minimum.accumulate(choices.least_demand[jobs][::-1])[::-1]  # of a job and all behind it
    left = problem.capacity[:, 0].tolist()
    passed_over: list[int] = []
    for place, (job, least) in enumerate(zip(jobs.tolist(), least_behind.tolist(), strict=True)):
        most_left = max(left)
        if most_left < least or (blocks and most_left < choices.least_demand[job]):
            return passed_over, jobs[place:].tolist()  # no GPUs for anybody who waits, or for the one all wait for
        fitting = [choice for choice in choices.of(job) if choice[-1] <= left[choice[1]]]
        if fitting:
            held = int(problem.gpu_type_held[job])
            _, gpu_type, configuration, demand = max(fitting, key=lambda c: (c[0], c[1] == held, left[c[1]]))
            share[configuration, gpu_type] = 1.0
            left[gpu_type] -= demand
        else:
            passed_over.append(job)
    return passed_over, []


class _LoneChoices:
    """Where each job can run by itself."""

    def __init__(self, problem: AllocationProblem) -> None:
        self._problem = problem
        lone = np.flatnonzero(problem.member_count[problem.member_configuration] == 1)
        self._members = lone[np.argsort(problem.member_job[lone], kind="stable")]  # grouped by job
        self._first = np.searchsorted(problem.member_job[self._members], np.arange(problem.job_count + 1)).tolist()
        demand = problem.demand[problem.member_configuration[lone], 0]
        self.least_demand = np.full(problem.job_count, np.iinfo(np.int64).max)  # (J,) thousandths of a GPU
        np.minimum.at(self.least_demand, problem.member_job[lone], demand)

    def of(self, job: int) -> Iterator[tuple[float, int, int, int]]:
        """(rate, GPU type, configuration, demand in thousandths) of each way to run the job, in type order."""
        p = self._problem
        for member in self._members[self._first[job] : self._first[job + 1]].tolist():
            configuration = int(p.member_configuration[member])
            demand = int(p.demand[configuration, 0])
            for gpu_type, rate in enumerate(p.member_rate_steps_per_s[member].tolist()):
                if rate > 0:
                    yield rate, gpu_type, configuration, demand


class _Sharing:
    """Jobs that wait join those that run, one at a time and where the most is gained.

    What runs on a type together is worth the sum of its members' rates, each relative to that job alone there, and
    nothing when one of them stands still. A job joins when that sum rises from 1, or from what it was for those
    already together, by more than `threshold` - 1. Equal gains: the configuration that the problem names first.
    """

    def __init__(self, problem: AllocationProblem, share: Floats, threshold: float) -> None:
        self._share, self._threshold = share, threshold
        self._worth = worth_together(problem)
        self._demand = problem.demand[:, 0]
        self._members = [tuple(sorted(members)) for members in problem.configuration_members()]
        several = np.flatnonzero(problem.member_count[problem.member_configuration] > 1)
        self._memberships = several[np.argsort(problem.member_job[several], kind="stable")]  # grouped by job
        self._first = np.searchsorted(problem.member_job[self._memberships], np.arange(problem.job_count + 1)).tolist()
        self._configuration = problem.member_configuration
        running, gpu_types = np.nonzero(share)
        pairs = zip(running.tolist(), gpu_types.tolist(), strict=True)
        self._running = {self._members[c]: (c, t) for c, t in pairs}  # by who runs: the configuration and its type

    def joins(self, job: int) -> bool:
        """Whether the job found somebody to join; they then run together from here on."""
        best_gain, best = self._threshold - 1.0, None
        for configuration in self._configurations_of(job):
            others = tuple(member for member in self._members[configuration] if member != job)
            if others not in self._running:
                continue
            now, gpu_type = self._running[others]
            gain = self._worth[configuration, gpu_type] - self._worth[now, gpu_type]
            if gain > best_gain and self._demand[configuration] <= self._demand[now]:
                best_gain, best = gain, (others, now, configuration, gpu_type)
        if best is None:
            return False
        others, now, configuration, gpu_type = best
        del self._running[others]
        self._running[self._members[configuration]] = (configuration, gpu_type)
        self._share[now, gpu_type], self._share[configuration, gpu_type] = 0.0, 1.0
        return True

    def _configurations_of(self, job: int) -> list[int]:
        rows = self._memberships[self._first[job] : self._first[job + 1]]
        found: list[int] = self._configuration[rows].tolist()
        return found


def worth_together(problem: AllocationProblem) -> Floats:
    """Σ over the members of a configuration of their rates, relative to each alone on that type, (C, T).

    0 where a member stands still. A job alone is worth 1, or less in a configuration that is not its best.
    """
    rates = problem.member_rate_steps_per_s
    alone = problem.rate_alone_steps_per_s[problem.member_job]
    relative = np.divide(rates, alone, out=np.zeros_like(rates), where=alone > 0)
    total: Floats = np.zeros(problem.fits.shape)
    np.add.at(total, problem.member_configuration, relative)
    stands_still = np.zeros(total.shape, dtype=np.bool_)
    np.logical_or.at(stands_still, problem.member_configuration, rates <= 0)
    return np.where(stands_still, 0.0, total)
