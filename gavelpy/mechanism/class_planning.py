"""Plans rounds and free GPUs class by class, the highest priority class first.

A round: each class plans (see `planning`) on the GPUs that the classes above leave, without those that are kept from it
(see `priority_classes`). Lease protection applies between jobs of a class; a class with `respect_lease_min` also leaves
protected leases of lower classes alone. Where a job of a higher class waits that may not preempt a class, the class
gets no more GPUs than it holds, so GPUs that become free are not taken again before the higher class gets them. GPUs
that are guaranteed to a team (see `team_plan`) go to its jobs, whatever their class.

Within a round: free GPUs go to waiting jobs of the highest class first. A job that still waits takes back leases of
lower classes at once, if enough of them can be preempted: of the lowest class first, then the leases that began last,
which lose the least work.

While a reservation for users is in force, each part of the cluster (see `windows`) is planned alone.
"""

from __future__ import annotations

import numpy as np

from gavelpy.mechanism import non_preemptible, reservations
from gavelpy.mechanism.consolidation import Tried, planned
from gavelpy.mechanism.domains import can_run
from gavelpy.mechanism.eligibility import NOT_HELD
from gavelpy.mechanism.events import NO_INTS
from gavelpy.mechanism.leases import leases_on
from gavelpy.mechanism.named_round import has_turn
from gavelpy.mechanism.planning import Planner, joined, taken
from gavelpy.mechanism.priority_classes import held_by_class, is_ranked, ranking
from gavelpy.mechanism.protection import note_slow, protected_leases
from gavelpy.mechanism.taking import NONE_CHOSEN, Chosen
from gavelpy.mechanism.windows import OUTSIDE
from gavelpy.model.arrays import Bools, Ints


def round(planner: Planner, rows: Ints, capacity: Ints) -> tuple[Chosen, bool]:
    """As `_with_held`, but gangs wait for GPUs that are close together: see `consolidation`."""
    if not planner.settings.consolidate_s:
        return _with_held(planner, rows, capacity)
    jobs, is_by_urgency = planner.leases.jobs, [True]

    def plan(rows: Ints) -> Tried:
        chosen, is_by_urgency[0] = _with_held(planner, rows, capacity)
        stays = jobs.marks(np.union1d(planner.staying(chosen), planner.fixed))
        return Tried(chosen, chosen.among(~stays[chosen.jobs]), jobs.leased[~stays[jobs.leased]])

    return planned(planner, rows, plan).chosen, is_by_urgency[0]


def _with_held(planner: Planner, rows: Ints, capacity: Ints) -> tuple[Chosen, bool]:
    """Jobs among `rows` that run in the coming round, and whether they were chosen by urgency alone.

    `capacity` (L,): GPUs of each domain that may be allocated. A held job gets no other GPUs than those of its lease:
    it leaves a plan that would move it, and keeps its lease if no other job gets its GPUs.
    """
    jobs = planner.leases.jobs
    if not jobs.any_gated or not (jobs.hold[jobs.leased] != NOT_HELD).any():
        return _by_part(planner, rows, capacity)
    reservations_before = jobs.held_type[: jobs.count].copy()
    chosen, is_by_urgency = _by_part(planner, rows, capacity)
    left: list[Ints] = []
    while len(moving := _moving_though_held(planner, chosen, rows)):
        left.append(moving)
        rows = rows[~jobs.marks(moving)[rows]]
        reservations.restore(jobs, reservations_before)
        chosen, is_by_urgency = _by_part(planner, rows, capacity)
    for row in np.concatenate(left).tolist() if left else ():
        chosen = _with_one_more(planner, chosen, row, capacity)
    return chosen, is_by_urgency


def _moving_though_held(planner: Planner, chosen: Chosen, rows: Ints) -> Ints:
    """Held jobs among `rows` that this plan would give other GPUs than those of their leases."""
    jobs = planner.leases.jobs
    is_moving = (jobs.hold[chosen.jobs] != NOT_HELD) & ~jobs.marks(planner.staying(chosen))[chosen.jobs]
    return np.intersect1d(chosen.jobs[is_moving], rows)


def _with_one_more(planner: Planner, chosen: Chosen, row: int, capacity: Ints) -> Chosen:
    """The plan in which this job also keeps its lease, where no other job gets its GPUs; else as given."""
    leases, jobs, pool = planner.leases, planner.leases.jobs, planner.leases.pool
    one = np.array([row])
    if jobs.partner[row] >= 0 or jobs.marks(chosen.jobs)[row]:
        return chosen
    more = joined(chosen, Chosen(one, pool.domain_of[jobs.gpu_first[one]], np.array([-1]), jobs.gpus[one]))
    fits = bool((taken(leases, more) <= capacity).all()) and planner.can_have(more, leases.open_gpus(planner.fixed))
    if fits and planner.settings.limits_teams:
        teams = planner.wanting(np.append(chosen.jobs, row), planner.fixed).teams
        assert teams is not None, "there are limits"
        room = teams.room(capacity - taken(leases, chosen), chosen)
        fits = room.allows(int(jobs.lease_type[row]), int(jobs.gpus[row]), row)
    return more if fits and row in planner.staying(more) else chosen


def _by_part(planner: Planner, rows: Ints, capacity: Ints) -> tuple[Chosen, bool]:
    """As `round`, but a held job may get other GPUs."""
    pool, planner = planner.leases.pool, planner.wanting(rows, planner.fixed)
    if not pool.is_divided:
        return _round(planner, rows, capacity)
    open_gpus = planner.leases.open_gpus(planner.fixed)
    chosen, is_by_urgency = NONE_CHOSEN, True
    for part in sorted({*pool.node_part, OUTSIDE}):
        one = planner.of_part(part, chosen)
        picked, is_plain = _round(one, one.among(rows), pool.domain_counts(one.own_gpus(open_gpus)))
        chosen, is_by_urgency = joined(chosen, picked), is_by_urgency and is_plain
    return chosen, is_by_urgency


def _round(planner: Planner, rows: Ints, capacity: Ints) -> tuple[Chosen, bool]:
    """As `round`, of one part of the cluster."""
    if not is_ranked(planner.settings):
        return planner.round(rows, capacity)
    jobs = planner.leases.jobs
    left, chosen, is_by_urgency = capacity.copy(), NONE_CHOSEN, True
    queue = _ClassQueue(planner, rows)
    for rank in queue.ranks:
        mine = rows[jobs.rank[rows] == rank]
        members = planner.among(np.flatnonzero(jobs.rank[: jobs.count] == rank))
        free = np.maximum(left - queue.kept(rank), 0)
        own = planner.below(chosen, queue.kept_jobs(rank))
        free = np.where(queue.is_blocked(rank), np.minimum(free, queue.held[rank] + _guaranteed(own)), free)
        picked, is_plain = own.within(mine, free, members)
        left -= taken(planner.leases, picked)
        chosen, is_by_urgency = joined(chosen, picked), is_by_urgency and is_plain
        queue.waiting(rank, picked.jobs, rows[:0])
    planner.book(chosen)
    return chosen, is_by_urgency


def filled(planner: Planner, rows: Ints) -> tuple[Chosen, Ints]:
    """As `_filled_parts`, but gangs wait for GPUs that are close together: see `consolidation`."""
    if not planner.settings.consolidate_s:
        return _filled_parts(planner, rows)

    def plan(rows: Ints) -> Tried:
        chosen, leaving = _filled_parts(planner, rows)
        return Tried(chosen, chosen, leaving)

    found = planned(planner, rows, plan)
    return found.chosen, found.leaving


def _filled_parts(planner: Planner, rows: Ints) -> tuple[Chosen, Ints]:
    """Waiting jobs that get GPUs within a round, and the jobs of lower classes that lose theirs for it.

    `rows` are all jobs that can run. A job that loses its GPUs may get others in the same plan.
    """
    jobs, pool = planner.leases.jobs, planner.leases.pool
    planner = planner.wanting(rows[jobs.lease[rows] < 0], jobs.leased)
    if not pool.is_divided:
        return _filled(planner, rows)
    chosen, leaving = NONE_CHOSEN, NO_INTS
    for part in sorted({*pool.node_part, OUTSIDE}):
        one = planner.of_part(part, chosen)
        picked, gone = _filled(one, one.among(rows))
        chosen, leaving = joined(chosen, picked), np.union1d(leaving, gone)
    return chosen, leaving


def _filled(planner: Planner, rows: Ints) -> tuple[Chosen, Ints]:
    """As `filled`, of one part of the cluster."""
    waiting = rows[planner.leases.jobs.lease[rows] < 0]
    if not is_ranked(planner.settings):
        return planner.filled(waiting), rows[:0]
    leases, jobs, pool = planner.leases, planner.leases.jobs, planner.leases.pool
    free_gpus = planner.free_gpus
    left, chosen, leaving = pool.domain_counts(free_gpus), NONE_CHOSEN, rows[:0]
    queue = _ClassQueue(planner, _preemptible(planner))
    for rank in queue.ranks:
        may_move = np.intersect1d(leaving, rows)
        waiting = np.union1d(waiting, may_move[jobs.hold[may_move] == NOT_HELD])
        mine, is_open = waiting[jobs.rank[waiting] == rank], ~queue.is_blocked(rank)
        own = planner.below(chosen, NO_INTS)
        picked = own.fill(mine, np.where(is_open, left, np.minimum(left, _guaranteed(own))), free_gpus)
        left -= taken(leases, picked)
        rest = mine[~jobs.marks(picked.jobs)[mine]]
        victims = queue.victims(rank, leaving)
        room = _by_domain(planner, victims)
        if len(rest) and room.any():
            open_gpus = free_gpus | _gpus_of(planner, victims)
            more = own.select(rest, np.where(is_open, left + room, 0), open_gpus, before=picked)
            gone = _enough(planner, victims, taken(leases, more) - left)
            if planner.sets is not None:
                gone = _enough_on_nodes(planner, victims, free_gpus, joined(joined(chosen, picked), more))
                free_gpus = free_gpus | _gpus_of(planner, gone)
            left += _by_domain(planner, gone) - taken(leases, more)
            picked, leaving = joined(picked, more), np.concatenate([leaving, gone])
        chosen = joined(chosen, picked)
        queue.waiting(rank, picked.jobs, leaving)
    stays = jobs.marks(np.intersect1d(leases.staying(chosen), leaving))  # another job leaves in their place
    stays &= planner.sets is None  # with node sets, each leaves for a job that needs its nodes
    chosen = chosen.among(~stays[chosen.jobs])
    planner.book(chosen)
    return chosen, np.unique(leaving[~stays[leaving]])


def _guaranteed(planner: Planner) -> Ints:
    """GPUs of the type of each domain that are guaranteed to teams whose jobs in the plan can use them, (L,)."""
    domain_type = planner.leases.pool.domain_type
    return np.zeros_like(domain_type) if planner.teams is None else planner.teams.guaranteed()[domain_type]


class _ClassQueue:
    """The classes with unfinished jobs, the highest first, and where their jobs wait while a plan is made."""

    def __init__(self, planner: Planner, rows: Ints) -> None:
        """`rows`: jobs whose leases may be taken back by a class that preempts theirs, waiting ones included."""
        leases, jobs, pool = planner.leases, planner.leases.jobs, planner.leases.pool
        self._planner, self._order = planner, ranking(planner.settings.priorities)
        self.ranks: list[int] = np.unique(jobs.rank[jobs.active]).tolist()
        self.leased = rows[jobs.lease[rows] >= 0]
        self.held = held_by_class(jobs, pool, planner.settings, _gpus_of(planner, self.leased))  # (C, L)
        self._protected = self.leased[:0]
        if planner.settings.lease_min_s and any(one.respect_lease_min for one in self._order.classes):
            note_slow(leases, planner.settings, planner.now_s, planner.exempt.jobs)
            protected = protected_leases(leases, planner.settings, planner.now_s, planner.exempt.jobs).jobs
            self._protected = planner.among(protected)
        self._wanted = np.zeros((len(self._order.classes), len(pool.gpu_types)), dtype=np.bool_)  # (C, T)

    def kept(self, rank: int) -> Ints:
        """GPUs of each domain that this class may not take back from lower ones, (L,)."""
        kept = self._order.is_kept[rank].astype(np.int64) @ self.held
        if not self._order.classes[rank].respect_lease_min or not len(self._protected):
            return np.asarray(kept)
        jobs, may_preempt = self._planner.leases.jobs, self._order.may_preempt[rank]
        rows = self._protected[may_preempt[jobs.rank[self._protected]]]
        return np.asarray(kept + _by_domain(self._planner, rows))

    def kept_jobs(self, rank: int) -> Ints:
        """The jobs whose GPUs `kept` counts; serials, ascending."""
        jobs, order = self._planner.leases.jobs, self._order
        is_kept = order.is_kept[rank][jobs.rank[self.leased]]
        if order.classes[rank].respect_lease_min:
            is_kept |= order.may_preempt[rank][jobs.rank[self.leased]] & jobs.marks(self._protected)[self.leased]
        return np.asarray(self.leased[is_kept])

    def is_blocked(self, rank: int) -> Bools:
        """Domains of GPUs that a job of a higher class waits for which may not take them back from this one, (L,)."""
        waits = np.flatnonzero(~self._order.may_preempt[:rank, rank])
        wanted: Bools = np.asarray(self._wanted[waits].any(axis=0))
        return wanted[self._planner.leases.pool.domain_type]

    def victims(self, rank: int, leaving: Ints) -> Ints:
        """Jobs that this class may preempt and that are not leaving yet, in the order in which it does."""
        jobs, order = self._planner.leases.jobs, self._order
        rows = self.leased[order.may_preempt[rank][jobs.rank[self.leased]] & ~jobs.marks(leaving)[self.leased]]
        if order.classes[rank].respect_lease_min:
            rows = rows[~jobs.marks(self._protected)[rows]]
        return np.asarray(rows[np.lexsort((-rows, -jobs.began_s[rows], -jobs.rank[rows]))])

    def waiting(self, rank: int, chosen: Ints, leaving: Ints) -> None:
        """Notes the GPU types that jobs of this class wait for after its part of the plan.

        `leaving`: jobs that lose their GPUs unless they are among `chosen`.
        """
        planner, jobs, pool = self._planner, self._planner.leases.jobs, self._planner.leases.pool
        waits = (jobs.lease[jobs.active] < 0) | jobs.marks(leaving)[jobs.active]
        rows = jobs.active[waits & (jobs.rank[jobs.active] == rank)]
        rows = planner.among(rows[~jobs.marks(chosen)[rows]])
        rows = planner.settings.rules.candidates(jobs, rows)
        rows = rows[non_preemptible.may_begin(jobs, rows, planner.now_s)]
        rows = rows[has_turn(jobs, planner.settings, planner.named, rows).any(axis=1)]  # others do not wait for GPUs
        if pool.any_unreachable:
            rows = rows[~jobs.marks(leases_on(jobs, pool, pool.unreachable))[rows]]
        runs = can_run(jobs, pool, rows)
        if planner.closing is not None and planner.sets is not None:
            for k in np.flatnonzero(planner.closing.any_barred[rows]).tolist():
                runs[k] &= pool.type_counts(pool.usable & planner.sets.of(rows[k])) >= jobs.gpus[rows[k]]
        self._wanted[rank] = runs.any(axis=0)


def _preemptible(planner: Planner) -> Ints:
    """Leased jobs that a higher class may preempt within a round."""
    leases, jobs, pool = planner.leases, planner.leases.jobs, planner.leases.pool
    fixed = np.concatenate([leases.pinned, planner.exempt.jobs])
    rows = jobs.leased[~jobs.marks(fixed)[jobs.leased]]
    rows = rows[~non_preemptible.is_finishing(jobs, rows)]
    return planner.among(rows[~jobs.marks(pool.jobs_holding(~pool.usable))[rows]])


def _gpus_of(planner: Planner, rows: Ints) -> Bools:
    """Usable GPUs under leases of these jobs, (G,)."""
    pool = planner.leases.pool
    return np.asarray(pool.usable & np.isin(pool.job, rows))


def _by_domain(planner: Planner, rows: Ints) -> Ints:
    """GPUs of each domain that become free if these jobs leave, (L,)."""
    return planner.leases.pool.domain_counts(_gpus_of(planner, rows))


def _enough(planner: Planner, victims: Ints, missing: Ints) -> Ints:
    """The first of these jobs whose leases have the missing GPUs of each domain (L,), without superfluous ones."""
    jobs, gone = planner.leases.jobs, victims[:0]
    missing = missing.copy()
    sizes = {row: _by_domain(planner, np.array([row])) for row in victims.tolist()} if (missing > 0).any() else {}
    for row, size in sizes.items():
        if ((missing > 0) & (size > 0)).any():
            gone, missing = np.append(gone, row), missing - size
    for row in gone.tolist():  # a later, larger lease may suffice alone
        if (missing + sizes[row] <= np.maximum(missing, 0)).all():
            gone, missing = gone[gone != row], missing + sizes[row]
    return jobs.with_partners(gone)


def _enough_on_nodes(planner: Planner, victims: Ints, free: Bools, chosen: Chosen) -> Ints:
    """Those of these jobs that must leave so that the chosen ones fit on their nodes and the free GPUs (G,)."""
    jobs, gone = planner.leases.jobs, victims
    for row in reversed(victims.tolist()):  # spare those first that come last
        fewer = gone[~jobs.marks(jobs.with_partners(np.array([row])))[gone]]
        if planner.can_have(chosen, free | _gpus_of(planner, fewer)):
            gone = fewer
    return jobs.with_partners(gone)
