"""Exempts jobs from preemption: those that would lose all their work, and those that did their last step.

Theory of operation. A program that never saves a checkpoint starts from scratch under each lease, so stopping it for
the sake of a better share destroys work, and again in the next round. With `keep_unsaved` a job is preempted only if it
is known to resume: its owner submitted it as preemptible, its program registered a LeaseIterator (a declaration that it
saves when its lease ends), or a checkpoint of it is on record. If a lease is stopped and no checkpoint follows, the
declaration becomes void; from then on only a checkpoint counts.

A job that has reported its last step only has to write its last checkpoint, clean up and exit. Preempting it would turn
a finished job into an unfinished one. It is exempt until `finish_grace_s` after the report; if it has not exited by the
end of the round in which that time ends, its lease is revoked like any other. Nodes report an exit after that as
finished. Only a report of the job counts, never an estimate by time. If the lease fails or is lost, the job resumes
from its last checkpoint.

A job that its owner submitted with `no_preempt` is exempt from its start to its end, whatever it saves and whether or
not `keep_unsaved` is on.

Exempt jobs keep their GPUs: their leases are extended until they end. Plans exclude these GPUs, and so does the
capacity that the policy divides; the jobs are not part of its problem. The core books a share of all of their time on
their GPU type, so when a job becomes preemptible, it is owed exactly what it received. Gangs that wait for these GPUs
have reservations: see `reservations`.

The exemption is from preemption only. Cancelling a job, draining its node by force and losing the node end the lease.
A lease on an unreachable node is not extended, as the order could not reach the node, but it is not revoked either: if
the node returns before the lease ends, the job continues. A lease that was granted on a node that has become unhealthy
may have started there, and the report of it be on its way: the shell withdraws it, which only the node can decide. The
lease ends if the node has started none of its processes, and continues otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gavelpy.mechanism import booking, eligibility, priority_classes
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.leases import LeaseBook, leases_on
from gavelpy.mechanism.lifecycle import JobState, Resumes
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Bools, Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.core import SchedulerCore

NEVER_SAVED = "never saved: not preemptible until its first checkpoint"


class NonPreemptible(NamedTuple):
    """The jobs that no plan may preempt, and the GPUs left to others."""

    jobs: Ints  # (K,) ascending
    open_gpus: Bools | None  # (G,) usable and held by none of them; None = there are no such jobs

    def renumbered(self, new: Ints) -> NonPreemptible:
        """With the new row of each job."""
        return self._replace(jobs=new[self.jobs]) if len(self.jobs) else self


ALL_PREEMPTIBLE = NonPreemptible(np.zeros(0, dtype=np.int64), None)


def is_preemptible(jobs: JobTable, rows: Ints) -> Bools:
    """Whether these jobs may be preempted under `keep_unsaved`, (K,)."""
    resumes = (jobs.resumes[rows] >= Resumes.DECLARED) | (jobs.saved_lease[rows] >= 0)
    return np.asarray(resumes & (jobs.resumes[rows] != Resumes.REFUSED))


def is_barred(jobs: JobTable, settings: MechanismSettings, rows: Ints) -> Bools:
    """Whether these jobs would not be preempted once they run, (K,)."""
    return ~is_preemptible(jobs, rows) if settings.keep_unsaved else np.asarray(jobs.resumes[rows] == Resumes.REFUSED)


def loses_all(jobs: JobTable, row: int) -> bool:
    """Whether a job is not known to resume if its lease is stopped, whatever its owner allows."""
    return bool(jobs.resumes[row] < Resumes.DECLARED and jobs.saved_lease[row] < 0)


def declared(jobs: JobTable, rows: Ints) -> None:
    """Books that the programs of these jobs declared to save a checkpoint when their lease ends."""
    jobs.resumes[rows[jobs.resumes[rows] == Resumes.UNKNOWN]] = Resumes.DECLARED


def stopped(jobs: JobTable, rows: Ints) -> None:
    """Voids the declarations of jobs that have no checkpoint after their lease was stopped."""
    jobs.resumes[rows[(jobs.resumes[rows] == Resumes.DECLARED) & (jobs.saved_lease[rows] < 0)]] = Resumes.VOID


def in_words(jobs: JobTable, settings: MechanismSettings, row: int) -> tuple[bool, str]:
    """Whether a job may be preempted, and why."""
    if jobs.resumes[row] == Resumes.REFUSED:
        return False, "not preemptible: submitted so by its owner"
    if not settings.keep_unsaved:
        return True, "preemptible: keep_unsaved is off"
    if jobs.saved_lease[row] >= 0:
        return True, f"preemptible: has saved {jobs.steps_saved[row]:.0f} steps"
    match Resumes(int(jobs.resumes[row])):
        case Resumes.REFUSED:
            return False, "not preemptible: submitted so by its owner"
        case Resumes.BY_OWNER:
            return True, "preemptible: submitted so by its owner"
        case Resumes.DECLARED:
            return True, "preemptible: its LeaseIterator saves when a lease ends"
        case Resumes.VOID:
            return False, "not preemptible until its first checkpoint: its LeaseIterator left none when a lease ended"
        case Resumes.UNKNOWN:
            return False, NEVER_SAVED


def exempt(leases: LeaseBook, settings: MechanismSettings, now_s: float) -> NonPreemptible:
    """The jobs that no plan may preempt, finishing jobs included; if one of a pair is among them, both are.

    A granted lease counts once it may have started: not while older leases of its job or on its GPUs are stopping.
    """
    jobs, pool = leases.jobs, leases.pool
    if not settings.keep_unsaved and not settings.finish_grace_s and not jobs.any_refused:
        return ALL_PREEMPTIBLE
    rows = jobs.leased
    is_refused = jobs.resumes[rows] == Resumes.REFUSED
    is_done = is_exempt(jobs, rows, settings, now_s)
    if settings.keep_unsaved:
        rows = rows[is_done | ~(is_preemptible(jobs, rows) | is_finishing(jobs, rows))]
    else:
        rows = rows[is_done | (is_refused & ~is_finishing(jobs, rows))]
    promised = jobs.state[rows] == JobState.GRANTED
    if promised.any():
        rows = rows[~promised | ~_waits_for_older(jobs, rows, len(pool.job))]
    rows = jobs.with_partners(rows)
    if pool.any_forced:
        rows = rows[~jobs.marks(pool.jobs_holding(pool.forced))[rows]]
    if pool.any_reserved:
        rows = rows[~jobs.marks(pool.jobs_holding(pool.reserved))[rows]]
    return NonPreemptible(rows, leases.open_gpus(rows)) if len(rows) else ALL_PREEMPTIBLE


def keep(core: SchedulerCore) -> None:
    """Recomputes the jobs that no plan may preempt; a change makes the allocation out of date.

    So does a change of the GPUs that are kept from priority classes.
    """
    before, kept = core.exempt.jobs, core.kept
    core.exempt = exempt(core.leases, core.settings, core.woken_s)
    core.kept = priority_classes.kept_counts(core.jobs, core.pool, core.settings, core.exempt.open_gpus)
    if before is not core.exempt.jobs and not np.array_equal(before, core.exempt.jobs):
        core.settle()
        release(core.jobs, before)
        claim(core.jobs, core.exempt.jobs)
        core.question.renew()
        if core.is_in_round:
            core.unsettle()
    elif kept is not core.kept and not np.array_equal(kept, core.kept):
        core.question.renew()


def reachable(leases: LeaseBook, rows: Ints) -> Ints:
    """Those of these jobs that have no lease on an unreachable node."""
    jobs, pool = leases.jobs, leases.pool
    return rows[~jobs.marks(leases_on(jobs, pool, pool.unreachable))[rows]] if pool.any_unreachable else rows


def behind(leases: LeaseBook, rows: Ints, round_end_s: float) -> Ints:
    """Reachable jobs among these whose leases end before the round, because their nodes were unreachable earlier."""
    rows = reachable(leases, rows)
    return rows[(leases.jobs.lease[rows] >= 0) & (leases.jobs.until_s[rows] < round_end_s)]


def claim(jobs: JobTable, rows: Ints) -> None:
    """Sets the share of these leased jobs to all of their time on the GPU type where they run."""
    if not len(rows):
        return
    disclaim(jobs, rows)
    is_claimed = jobs.hold_claims(rows)
    plain, claimed = rows[~is_claimed], rows[is_claimed]
    jobs.target[plain, jobs.lease_type[plain]] = 1.0
    jobs.lists.time_passes(plain)
    if len(claimed):
        jobs.claims.target[jobs.claims.find(booking.lease_keys(jobs, claimed))] = 1.0


def release(jobs: JobTable, rows: Ints) -> None:
    """Removes the share of those of these jobs that have no lease any more; the policy decides their next one.

    A job that still has one, but no partner any more, keeps its time alone until then.
    """
    has_lease = jobs.lease[rows] >= 0
    disclaim(jobs, rows[~has_lease])
    if jobs.claims.count and len(rows := rows[has_lease & (jobs.partner[rows] < 0)]):
        claim(jobs, rows[~jobs.total("target")[rows].any(axis=1)])


def disclaim(jobs: JobTable, rows: Ints) -> None:
    """Removes the shares of these jobs."""
    jobs.target[rows] = 0.0
    jobs.claims.disclaim(rows)


def _waits_for_older(jobs: JobTable, rows: Ints, gpu_count: int) -> Bools:
    """Whether the leases of these jobs wait for an older lease to stop, (K,)."""
    ending: Bools = np.zeros(gpu_count, dtype=np.bool_)
    first = jobs.stopping_first[: jobs.count]
    ending[first[first >= 0]] = True
    for gpus in jobs.stopping_gangs.values():
        ending[gpus] = True
    waits = (jobs.stopping[rows] >= 0) | ending[jobs.gpu_first[rows]]
    for k in np.flatnonzero(~waits & (jobs.gpus[rows] > 1)).tolist():
        waits[k] = ending[jobs.gpus_held(int(rows[k]))].any()
    return np.asarray(waits)


def reported(jobs: JobTable, rows: Ints, now_s: float) -> None:
    """Books that these jobs reported their last step under their current leases; the first report counts."""
    rows = rows[jobs.done_lease[rows] != jobs.lease[rows]]
    jobs.any_gated = jobs.any_gated or bool(len(rows))
    jobs.done_lease[rows] = jobs.lease[rows]
    jobs.done_at_s[rows] = now_s


def is_finishing(jobs: JobTable, rows: Ints) -> Bools:
    """Whether these jobs did their last step under a lease that has not ended, (K,)."""
    lease = jobs.done_lease[rows]
    return np.asarray((lease >= 0) & ((lease == jobs.lease[rows]) | (lease == jobs.stopping[rows])))


def may_begin(jobs: JobTable, rows: Ints, now_s: float) -> Bools:
    """Whether these jobs may get leases: eligible, not finishing, and not in a pause, (K,)."""
    if not jobs.any_gated:
        return np.ones(len(rows), dtype=np.bool_)
    may = eligibility.is_pause_over(jobs, rows, now_s) & eligibility.is_eligible(jobs, rows, now_s)
    return np.asarray(may & ~is_finishing(jobs, rows))


def is_exempt(jobs: JobTable, rows: Ints, settings: MechanismSettings, now_s: float) -> Bools:
    """Whether these leased jobs are finishing and still within `finish_grace_s`, (K,)."""
    is_done = jobs.done_lease[rows] == jobs.lease[rows]
    return np.asarray(is_done & (now_s < jobs.done_at_s[rows] + settings.finish_grace_s))
