"""Which jobs compete for GPUs: those that can run and are eligible, within the limits of their owners.

*Limits of a user.* `jobs_running_a_user_max` and `gpus_a_user_max` bound what the jobs of one owner have at once. The
jobs of an owner compete in this order: those with leases, those of higher priority classes, those that ran before, then
in order of submission. The first that exceeds a limit waits, and so do all after it, so that small jobs cannot starve a
gang. Jobs that cannot run now (they are too large, held or in a pause) and gangs that exceed the limit alone do not
take part, and keep nothing from others. A job that has a lease keeps it when a limit is lowered; it is not replaced. A
job with several sizes counts with its largest one.

*Quotas of teams* hold in the plan itself (see `team_plan`); here, jobs that need more GPUs than a quota do not compete.

*Long queues.* Where only jobs with shares get GPUs, plans look at no others. With `in_order`, the policy serves jobs in
order of submission, and none after one for which too few GPUs are left. Then a request has the jobs up to the first
that surely stops the queue: the others change no answer. A job that is submitted after it waits, without a new request.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.mechanism import non_preemptible, priority_classes, sizes, team_plan
from gavelpy.mechanism.domains import can_run
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.named_round import is_named
from gavelpy.mechanism.settings import MechanismSettings, Rules
from gavelpy.model.arrays import Bools, Ints
from gavelpy.model.job import JobSpec

if TYPE_CHECKING:
    from gavelpy.mechanism.core import SchedulerCore

FIRST_ASKED = 64  # jobs that a request looks at first, next to twice as many as have leases


def asked(core: SchedulerCore) -> Ints:
    """The jobs of the next request for an allocation; serials, ascending.

    A job that could run on every type stops a queue, or takes GPUs. So a queue has stopped where such jobs together
    need more GPUs than there are.
    """
    active = core.jobs.active
    core.question.has_stopped = False
    if not _may_shorten(core):
        return active[runnable(core, active)]
    counts, size = core.pool.counts, 2 * len(core.jobs.leased) + FIRST_ASKED
    there = np.flatnonzero(counts > 0)
    while size < len(active):
        rows = active[:size]
        is_able = runnable(core, rows)
        takes_any = is_able & can_run(core.jobs, core.pool, rows)[:, there].all(axis=1)
        needed = np.cumsum(np.where(takes_any, core.jobs.gpus[rows], 0))
        end = int(np.searchsorted(needed, counts.sum(), side="right"))  # the first job beyond all GPUs
        if end < size:
            core.question.has_stopped = True
            return np.asarray(rows[: end + 1][is_able[: end + 1]])
        size *= 4
    return active[runnable(core, active)]


def _may_shorten(core: SchedulerCore) -> bool:
    """Whether a request may leave out jobs that the policy, a queue, does not reach."""
    jobs, pool, settings = core.jobs, core.pool, core.settings
    is_limited = settings.limits_users or settings.priorities or settings.teams or settings.packing
    is_special = jobs.sizes or jobs.needs or pool.is_divided or len(core.exempt.jobs)
    return settings.in_order and not (is_limited or is_special) and settings.rules == Rules()


def is_behind(core: SchedulerCore) -> bool:
    """Whether a job that is submitted now is behind where the queue of the last request stops, so it changes nothing.

    Any other change since then has made the request out of date.
    """
    question = core.question
    is_current = question.has_stopped and not question.stale
    return is_current and not core.settings.fill_leftover and _may_shorten(core)


def was_behind(core: SchedulerCore, row: int) -> bool:
    """Whether a job may have been left out of the last request, because it was behind where a queue stops."""
    is_old = bool(core.jobs.submitted_s[row] <= core.question.asked_s)
    return (is_old and _may_shorten(core)) or is_behind(core)


def with_turn(core: SchedulerCore) -> Ints:
    """The active jobs to which a plan may give GPUs if they can run; serials, ascending."""
    jobs, settings = core.jobs, core.settings
    is_by_share = not (settings.fill_leftover or jobs.claims.count or is_named(core.question.next_round))
    is_special = settings.priorities or settings.teams or settings.consolidate_s or settings.keep_unsaved
    if not is_by_share or is_special or settings.rules != Rules():
        return jobs.active
    shared = jobs.lists.shared
    return np.union1d(shared, jobs.active[jobs.held_type[jobs.active] >= 0]) if jobs.any_held else shared


def is_by_type(core: SchedulerCore) -> bool:
    """Whether plans depend on GPU types only: no co-location, sizes, classes, teams, node sets, nor other rules."""
    jobs, pool, settings = core.jobs, core.pool, core.settings
    is_special = settings.packing or settings.priorities or settings.teams or settings.consolidate_s
    is_divided = pool.is_divided or pool.any_unreachable or pool.any_reserved or not pool.shares_checkpoints
    is_limited = jobs.sizes or jobs.needs or jobs.any_limited or jobs.any_held or jobs.claims.count
    is_plain = settings.rules == Rules() and not is_named(core.question.next_round)
    return is_plain and not (is_special or is_divided or is_limited)


def competing(core: SchedulerCore) -> Ints:
    """The jobs that the plan of a round may choose; serials, ascending."""
    rows = with_turn(core)
    return rows[runnable(core, rows)]


def runnable(core: SchedulerCore, rows: Ints) -> Bools:
    """Whether a plan may choose these jobs, (K,)."""
    if not core.settings.limits_users:
        return _is_able(core, rows)
    jobs, active = core.jobs, core.jobs.active
    within = jobs.marks(within_limits(jobs, active[_is_able(core, active)], core.settings))
    return np.asarray(within[rows])


def _is_able(core: SchedulerCore, rows: Ints) -> Bools:
    """Whether each job has a positive rate on a type with enough GPUs, is eligible, and is not pinned, (K,)."""
    jobs, pool, open_gpus = core.jobs, core.pool, core.exempt.open_gpus
    if core.settings.priorities:
        fits = priority_classes.can_run_in_class(jobs, pool, core.settings, rows, open_gpus)
    else:
        fits = can_run(jobs, pool, rows, open_gpus)
    if core.settings.limits_teams:
        fits = fits & team_plan.may_hold(jobs, pool, core.settings, rows)
    is_able: Bools = reduce(np.logical_or, fits.T, np.zeros(len(rows), dtype=np.bool_))  # faster than `any`
    if len(fixed := core.fixed):
        is_able &= ~np.isin(rows, fixed)
    return is_able & non_preemptible.may_begin(jobs, rows, core.now_s) if jobs.any_gated else is_able


def within_limits(jobs: JobTable, able: Ints, settings: MechanismSettings) -> Ints:
    """Those of these jobs that their owners' limits let compete; serials, ascending.

    `able`: all jobs that could run. Leases count whether or not their jobs are among them.
    """
    jobs_max, gpus_max = settings.jobs_running_a_user_max, settings.gpus_a_user_max
    rows = np.union1d(able, jobs.leased)
    if gpus_max:
        rows = rows[(sizes.largest(jobs, rows) <= gpus_max) | (jobs.lease[rows] >= 0)]
    has_run, is_leased, owner = jobs.attained_gpu_s[rows] > 0, jobs.lease[rows] >= 0, jobs.owner[rows]
    order = np.lexsort((rows, ~has_run, jobs.rank[rows], ~is_leased, owner))
    rows, owner = rows[order], owner[order]
    _, first, counts = np.unique(owner, return_index=True, return_counts=True)
    may = np.ones(len(rows), dtype=np.bool_)
    if jobs_max:
        may &= np.arange(len(rows)) - np.repeat(first, counts) < jobs_max
    if gpus_max:
        gpus = sizes.largest(jobs, rows)  # of several sizes, a plan may choose any
        used = np.cumsum(gpus)
        before = used[first] - gpus[first]
        may &= used - np.repeat(before, counts) <= gpus_max
    may |= jobs.lease[rows] >= 0
    return np.intersect1d(rows[may], able)


def check_sizes(specs: Sequence[JobSpec], settings: MechanismSettings) -> None:
    """Raises InvalidInput for a gang of more GPUs than one user may have at once."""
    for spec in specs if settings.gpus_a_user_max else ():
        if (most := max(spec.gpus, *spec.sizes, 0)) > settings.gpus_a_user_max:
            raise InvalidInput(
                f"gpus must be at most {settings.gpus_a_user_max} here (gpus_a_user_max in the scheduler's "
                f"[mechanism]), got {most}"
            )


def limit_in_words(jobs: JobTable, row: int, settings: MechanismSettings) -> str:
    """Why a job that is beyond its owner's limits waits."""
    owner, gpus = jobs.specs[row].owner, int(sizes.largest(jobs, np.array([row]))[0])
    user = f"user {owner!r}" if owner else "a user"
    if settings.gpus_a_user_max and gpus > settings.gpus_a_user_max:
        return f"needs {gpus} GPUs; {user} may have {settings.gpus_a_user_max} at once (gpus_a_user_max)"
    limits = []
    if settings.jobs_running_a_user_max:
        limits.append(f"run {settings.jobs_running_a_user_max} jobs (jobs_running_a_user_max)")
    if settings.gpus_a_user_max:
        limits.append(f"have {settings.gpus_a_user_max} GPUs (gpus_a_user_max)")
    return f"{user} may {' and '.join(limits)} at once; other jobs of this user come first"
