"""The queue of FIFO and shortest job first: jobs take whole GPUs in order; then waiting jobs are co-located."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from functools import reduce

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem

PACKING_THRESHOLD = 1.5  # the original Gavel's
COMPILED = "gavelpy.policies.queue_kernels"


def whole_shares(
    problem: AllocationProblem, order: Ints, *, blocks: bool, packing_threshold: float = PACKING_THRESHOLD
) -> Floats:
    """Shares 0 or 1, (C, T): the jobs in `order` (rows) take the fastest type that has enough GPUs left.

    So it must have enough of each other resource. Of several sizes, a job takes the fastest that is possible now.
    Ties: the type that the job holds now, then the one with most GPUs left, then type order. A job for which no type
    has enough GPUs left stops the queue if `blocks`; otherwise it is skipped. Jobs that cannot run, and jobs for which
    enough GPUs are left only of types where they cannot run, are always skipped.

    If the problem has configurations of several jobs, waiting jobs are then co-located with running ones, in the same
    order (see `_CoLocation`). A job that stopped the queue stops it here, too, unless it finds a partner.
    """
    if problem.is_plain:
        return _kernel(problem, order, blocks=blocks)
    share: Floats = np.zeros(problem.fits.shape)
    skipped, queue = _take_gpus(problem, order, share, blocks=blocks)
    if problem.member_count.max(initial=0) > 1 and len(skipped) + len(queue):
        co_location = _CoLocation(problem, share, packing_threshold)
        for job in skipped:
            co_location.add(job)
        for job in queue:
            if not co_location.add(job) and blocks:
                break
    return share


def jobs_running(problem: AllocationProblem, share: Floats) -> float:
    """How many jobs these shares of 0 and 1 let run: the objective of certificates."""
    return float(share.sum() if problem.runs_alone else (problem.member_count @ share).sum())


def check_packing_threshold(packing_threshold: float) -> None:
    """Raises InvalidInput for a threshold below 1, which would accept jobs that gain nothing."""
    if not (math.isfinite(packing_threshold) and packing_threshold >= 1):
        raise InvalidInput(f"packing_threshold must be finite and >= 1, got {packing_threshold!r}")


def _kernel(problem: AllocationProblem, order: Ints, *, blocks: bool) -> Floats:
    """The shares of jobs alone, in numba if that is loaded: see `queue_kernels`."""
    if COMPILED not in sys.modules:
        return take_gpus_alone(problem, order, blocks=blocks)
    from gavelpy.policies import queue_kernels

    return queue_kernels.take_gpus_alone(problem, order, blocks=blocks)


def take_gpus_alone(problem: AllocationProblem, order: Ints, *, blocks: bool) -> Floats:
    """The shares of jobs, as `_take_gpus` sets them, if configuration c is job c alone."""
    share: Floats = np.zeros(problem.fits.shape)
    jobs = order[problem.can_run[order]]
    served, used = _first_choices(problem, jobs, share)
    jobs = jobs[served:]
    needed_by = problem.demand[jobs, 0]
    least_behind = np.minimum.accumulate(needed_by[::-1])[::-1].tolist()  # of a job and all later ones
    rates_of, held_by = problem.member_rate_steps_per_s[jobs].tolist(), problem.gpu_type_held[jobs].tolist()
    left = (problem.capacity[:, 0] - used).tolist()
    for job, needed, least, rates, held in zip(
        jobs.tolist(), needed_by.tolist(), least_behind, rates_of, held_by, strict=True
    ):
        most_left = max(left)
        if most_left < least or (blocks and most_left < needed):
            break
        best, best_rate = -1, 0.0
        for gpu_type, rate in enumerate(rates):
            if rate < best_rate or rate <= 0 or needed > left[gpu_type]:
                continue
            if rate > best_rate or (gpu_type == held, left[gpu_type]) > (best == held, left[best]):
                best, best_rate = gpu_type, rate
        if best >= 0:
            share[job, best] = 1.0
            left[best] -= needed
    return share


def _first_choices(problem: AllocationProblem, jobs: Ints, share: Floats) -> tuple[int, Ints]:
    """Sets the `share` of the first of these jobs that get their fastest type; how many they are, and their GPUs (T,).

    A job ends them if too few GPUs of its fastest type are left, or if several types are the fastest and it holds none.
    """
    rates = problem.member_rate_steps_per_s.take(jobs, axis=0)
    needed, held = problem.demand[jobs, 0], problem.gpu_type_held[jobs]
    row, none = np.arange(len(jobs)), np.zeros(len(jobs), dtype=np.int64)
    is_fastest = rates == reduce(np.maximum, rates.T, none)[:, None]  # faster than `max` and `count_nonzero` of rows
    keeps = (held >= 0) & is_fastest[row, held]
    choice = np.where(keeps, held, is_fastest.argmax(axis=1))
    taken = np.zeros(rates.shape, dtype=np.int64)
    taken[row, choice] = needed
    taken = taken.cumsum(axis=0)
    is_served = taken[row, choice] <= problem.capacity[choice, 0]
    is_served &= keeps | (reduce(np.add, is_fastest.T, none) == 1)
    count = len(jobs) if is_served.all() else int(is_served.argmin())
    share[jobs[:count], choice[:count]] = 1.0
    return count, taken[count - 1] if count else np.zeros(rates.shape[1], dtype=np.int64)


def _take_gpus(problem: AllocationProblem, order: Ints, share: Floats, *, blocks: bool) -> tuple[list[int], list[int]]:
    """Sets the `share` of jobs that run alone, and returns the skipped jobs and those left in the queue."""
    choices = _LoneChoices(problem)
    jobs = order[problem.can_run[order]]
    least_behind = np.minimum.accumulate(choices.least_demand[jobs][::-1])[::-1]  # of a job and all later ones
    left, others = problem.capacity[:, 0].tolist(), problem.capacity[:, 1:].copy()
    skipped: list[int] = []
    for place, (job, least) in enumerate(zip(jobs.tolist(), least_behind.tolist(), strict=True)):
        most_left = max(left)
        if most_left < least or (blocks and most_left < choices.least_demand[job]):
            return skipped, jobs[place:].tolist()  # too few GPUs for any waiting job, or for the one that blocks
        fitting = [choice for choice in choices.of(job) if choice[-1] <= left[choice[1]]]
        if others.size:
            fitting = [choice for choice in fitting if (problem.demand[choice[2], 1:] <= others[choice[1]]).all()]
        if fitting:
            held = int(problem.gpu_type_held[job])
            _, gpu_type, configuration, demand = max(fitting, key=lambda c: (c[0], c[1] == held, left[c[1]]))
            share[configuration, gpu_type] = 1.0
            left[gpu_type] -= demand
            others[gpu_type] -= problem.demand[configuration, 1:]
        elif blocks and others.size and not choices.has_room(job, _without_teams(problem, left, others)):
            return skipped, jobs[place:].tolist()  # it waits for another resource
        else:
            skipped.append(job)
    return skipped, []


def _without_teams(problem: AllocationProblem, left: list[int], others: Ints) -> Ints:
    """What is left of each resource, (T, R), where limits of teams do not count: they stop no job of other teams."""
    room = np.column_stack([left, others])
    room[:, room.shape[1] - problem.team_rows :] = np.iinfo(np.int64).max
    return room


class _LoneChoices:
    """The configurations and types on which each job can run alone."""

    def __init__(self, problem: AllocationProblem) -> None:
        self._problem = problem
        lone = np.flatnonzero(problem.member_count[problem.member_configuration] == 1)
        self._members = lone[np.argsort(problem.member_job[lone], kind="stable")]  # grouped by job
        self._first = np.searchsorted(problem.member_job[self._members], np.arange(problem.job_count + 1)).tolist()
        demand = problem.demand[problem.member_configuration[lone], 0]
        self.least_demand = np.full(problem.job_count, np.iinfo(np.int64).max)  # (J,) thousandths of a GPU
        np.minimum.at(self.least_demand, problem.member_job[lone], demand)

    def has_room(self, job: int, left: Ints) -> bool:
        """Whether some type has enough left, (T, R), for one of the job's configurations, also where it cannot run."""
        members = self._members[self._first[job] : self._first[job + 1]]
        demand = self._problem.demand[self._problem.member_configuration[members]]
        return bool((demand[:, None, :] <= left).all(axis=2).any())

    def of(self, job: int) -> Iterator[tuple[float, int, int, int]]:
        """(rate, GPU type, configuration, demand in thousandths) of each option, in type order."""
        p = self._problem
        for member in self._members[self._first[job] : self._first[job + 1]].tolist():
            configuration = int(p.member_configuration[member])
            demand = int(p.demand[configuration, 0])
            for gpu_type, rate in enumerate(p.member_rate_steps_per_s[member].tolist()):
                if rate > 0:
                    yield rate, gpu_type, configuration, demand


class _CoLocation:
    """Co-locates waiting jobs with running ones, one at a time, each where it gains most.

    The value of co-located jobs is the sum of their rates, each relative to that job alone on the type; it is 0 if one
    of them makes no progress. A job is added if this sum rises by more than `threshold` - 1. Ties: the first
    configuration in the problem.
    """

    def __init__(self, problem: AllocationProblem, share: Floats, threshold: float) -> None:
        self._share, self._threshold = share, threshold
        self._value = co_location_value(problem)
        self._demand = problem.demand[:, 0]
        self._others = problem.demand[:, 1:]
        used = share.T.astype(np.int64) @ self._others if self._others.size else 0
        self._others_left = problem.capacity[:, 1:] - used  # (T, R - 1)
        self._members = [tuple(sorted(members)) for members in problem.configuration_members()]
        several = np.flatnonzero(problem.member_count[problem.member_configuration] > 1)
        self._memberships = several[np.argsort(problem.member_job[several], kind="stable")]  # grouped by job
        self._first = np.searchsorted(problem.member_job[self._memberships], np.arange(problem.job_count + 1)).tolist()
        self._configuration = problem.member_configuration
        running, gpu_types = np.nonzero(share)
        pairs = zip(running.tolist(), gpu_types.tolist(), strict=True)
        self._running = {self._members[c]: (c, t) for c, t in pairs}  # configuration and type by running jobs

    def add(self, job: int) -> bool:
        """Co-locates the job with a running one if it gains enough; returns whether it did."""
        best_gain, best = self._threshold - 1.0, None
        for configuration in self._configurations_of(job):
            others = tuple(member for member in self._members[configuration] if member != job)
            if others not in self._running:
                continue
            now, gpu_type = self._running[others]
            gain = self._value[configuration, gpu_type] - self._value[now, gpu_type]
            more = self._others[configuration] - self._others[now]
            if (
                gain > best_gain
                and self._demand[configuration] <= self._demand[now]
                and (more <= self._others_left[gpu_type]).all()
            ):
                best_gain, best = gain, (others, now, configuration, gpu_type)
        if best is None:
            return False
        others, now, configuration, gpu_type = best
        del self._running[others]
        self._others_left[gpu_type] -= self._others[configuration] - self._others[now]
        self._running[self._members[configuration]] = (configuration, gpu_type)
        self._share[now, gpu_type], self._share[configuration, gpu_type] = 0.0, 1.0
        return True

    def _configurations_of(self, job: int) -> list[int]:
        rows = self._memberships[self._first[job] : self._first[job + 1]]
        found: list[int] = self._configuration[rows].tolist()
        return found


def co_location_value(problem: AllocationProblem) -> Floats:
    """Sum of the members' rates in each configuration, each relative to that job alone on the type, (C, T).

    0 if a member makes no progress. A job alone has 1, or less in a configuration that is not its best.
    """
    rates = problem.member_rate_steps_per_s
    alone = problem.rate_alone_steps_per_s[problem.member_job]
    relative = np.divide(rates, alone, out=np.zeros_like(rates), where=alone > 0)
    total: Floats = np.zeros(problem.fits.shape)
    np.add.at(total, problem.member_configuration, relative)
    is_stopped = np.zeros(total.shape, dtype=np.bool_)
    np.logical_or.at(is_stopped, problem.member_configuration, rates <= 0)
    return np.where(is_stopped, 0.0, total)
