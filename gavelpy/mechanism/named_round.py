"""The next round as a policy names it: which jobs run on which GPU type and on how many GPUs, in order.

An answer may name the configurations of the next round outright (`Allocation.next_round`). A plan then takes these in
their order, each that fits next to those before it, and no others: shares only state what jobs are owed, and leftover
GPUs stay free. A job that is named several times gets the first place that fits. All other rules hold: jobs that are
not preempted and protected leases keep their GPUs, and quotas of teams are kept. The core calls such a policy again at
the end of each round; until it has answered, the last answer counts, also for GPUs that become free within the round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.claims import ALONE, ClaimKeys
from gavelpy.mechanism.events import NO_INTS, AllocationSolved
from gavelpy.mechanism.selection import common_slots
from gavelpy.mechanism.taking import Chosen, Reserved, take_claims
from gavelpy.model.arrays import Bools, Ints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gavelpy.mechanism.core import SchedulerCore
    from gavelpy.mechanism.domains import Domains
    from gavelpy.mechanism.jobs import JobTable
    from gavelpy.mechanism.settings import MechanismSettings
    from gavelpy.model.allocation import Allocation
    from gavelpy.model.problem import AllocationProblem

COLUMNS = 4  # job, co-located job or -1, GPU type, GPUs


def is_named(named: Ints) -> bool:
    """Whether these rows (N, 4) name a round; an empty array of one axis: the answer in force names none."""
    return named.ndim > 1


def select(
    jobs: JobTable, named: Ints, rows: Ints, free: Ints, domains: Domains | None, reserved: Reserved | None
) -> Chosen:
    """The named configurations of jobs among `rows` that get GPUs of `free` (L,), in their order."""
    is_open = np.append(jobs.marks(rows), True)  # the last place: no second job
    queue = named[is_open[named[:, 0]] & is_open[named[:, 1]] & _run(jobs, named)]
    first, second, gpu_type, gpus = queue.T
    slots = gpu_type if domains is None else common_slots(domains, first, second, gpu_type)
    return take_claims(first, second, slots, gpus, free.copy(), domains, reserved)


def _run(jobs: JobTable, named: Ints) -> Bools:
    """Whether all jobs of each named configuration still have a rate there, (N,)."""
    first, second, gpu_type, gpus = named.T
    runs = jobs.rate[first, gpu_type] > 0
    runs &= (second < 0) | (jobs.rate[second, gpu_type] > 0)
    for k in np.flatnonzero(jobs.smallest[first] > 0).tolist():
        runs[k] = jobs.sizes[int(first[k])].at(int(gpus[k]))[gpu_type[k]] > 0
    return np.asarray(runs)


def has_turn(jobs: JobTable, settings: MechanismSettings, named: Ints, rows: Ints) -> Bools:
    """The types of which the answer in force lets plans give GPUs to these jobs, (K, T)."""
    shape = (len(rows), jobs.rate.shape[1])
    if is_named(named):
        found = np.zeros((jobs.count + 1, shape[1]), dtype=np.bool_)  # the last place: no second job
        found[named[:, 0], named[:, 2]] = found[named[:, 1], named[:, 2]] = True
        return np.asarray(found[rows])
    return np.ones(shape, dtype=np.bool_) if settings.fill_leftover else np.asarray(jobs.total("target")[rows] > 0)


def of_answer(problem: AllocationProblem, jobs: Ints, allocation: Allocation) -> tuple[Ints, dict[int, str]]:
    """The round that an answer names, with serials, and by row of the problem why jobs cannot run as named.

    `problem` has the rates as they are, `jobs` (J,) the serials of its rows.
    """
    if allocation.next_round is None:
        return NO_INTS, {}
    row, gpu_type = allocation.next_round.T
    place = np.searchsorted(problem.member_configuration, row)
    first, is_pair = problem.member_job[place], problem.member_count[row] > 1
    second = problem.member_job[np.where(is_pair, place + 1, place)]
    fits = problem.fits[row, gpu_type] & problem.is_whole[row, gpu_type]
    gpus = np.rint(problem.gpus_occupied[row]).astype(np.int64)
    named = np.column_stack([jobs[first], np.where(is_pair, jobs[second], ALONE), gpu_type, gpus])
    possible = set(first[fits].tolist()) | set(second[fits].tolist())
    refused: dict[int, str] = {}
    for k in np.flatnonzero(~fits).tolist():
        where = f"it is named for the next round on {gpus[k]} {problem.gpu_types[gpu_type[k]]}, where it cannot run"
        refused |= {row: where for row in (int(first[k]), int(second[k])) if row not in possible}
    return named[fits], refused


def pairs_of(named: Ints, is_alive: Bools) -> ClaimKeys:
    """What the named pairs of living jobs claim, with or without a share."""
    rows = named if is_named(named) else named.reshape(0, COLUMNS)
    rows = rows[(rows[:, 1] >= 0) & is_alive[rows[:, 0]] & is_alive[rows[:, 1]]]
    return ClaimKeys(rows[:, 0], rows[:, 1], rows[:, 3], rows[:, 2])


def renamed(named: Ints, new: Ints) -> Ints:
    """With the new row of each job (the last of `new` is -1), without those that have left."""
    found = named.copy()
    found[:, :2] = new[named[:, :2]]
    return found[(found[:, 0] >= 0) & ((found[:, 1] >= 0) | (named[:, 1] < 0))]


def joined(answers: Sequence[AllocationSolved]) -> Ints:
    """The rounds that the answers for parts of the jobs name, the first part first. Raises InvalidInput."""
    own = [one.next_round for one in answers]
    if not any(map(is_named, own)):
        return NO_INTS
    if not all(map(is_named, own)):
        raise InvalidInput("a policy must name the next round of all priority classes and reservations, or of none")
    return np.concatenate(own)


def check(core: SchedulerCore, event: AllocationSolved) -> None:
    """Raises InvalidInput if an event names what cannot be a configuration."""
    named, jobs = event.next_round, core.jobs
    if not is_named(named):
        if len(named):
            raise InvalidInput(f"next_round must have shape (N, {COLUMNS}), got {named.shape}")
        return
    if named.shape[1] != COLUMNS:
        raise InvalidInput(f"next_round must have shape (N, {COLUMNS}), got {named.shape}")
    first, second, gpu_type, gpus = named.T
    limits = (("jobs", first, 0, jobs.count), ("co-located jobs", second, ALONE, jobs.count))
    for name, column, low, end in (*limits, ("types", gpu_type, 0, len(core.pool.gpu_types))):
        if len(wrong := column[(column < low) | (column >= end)]):
            raise InvalidInput(f"{name} of next_round must be in [{low}, {end}), got {wrong[0]}")
    for row, other, need in zip(first.tolist(), second.tolist(), gpus.tolist(), strict=True):
        allowed = jobs.sizes[row].gpus.tolist() if row in jobs.sizes else [int(jobs.gpus[row])]
        if need not in allowed:
            job = jobs.specs[row].id
            raise InvalidInput(f"GPUs of {job!r} in next_round must be of {', '.join(map(str, allowed))}, got {need}")
        if other >= 0 and (other == row or row in jobs.sizes or other in jobs.sizes or jobs.gpus[other] != need):
            raise InvalidInput(f"a pair of next_round must be two jobs of equal size, got {row} and {other}")


def place_in_words(core: SchedulerCore, row: int) -> str:
    """That a job which has no GPUs in the round was named for it; empty = it was not."""
    named = core.question.next_round
    types = named[(named[:, 0] == row) | (named[:, 1] == row), 2]
    if not len(types):
        return ""
    where = " or ".join(core.pool.gpu_types[t] for t in dict.fromkeys(types.tolist()))
    return f"the policy names it for this round on {where}, after jobs that have the GPUs"
