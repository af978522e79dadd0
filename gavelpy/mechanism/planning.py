"""Plans the jobs of a round, or of free GPUs within a round, and whether a round may last longer than `round_s`.

*Lease protection* (minimum run time). The round is planned by urgency alone first (see `selection`). If that preempts a
lease that is younger than `lease_min_s`, it is planned again around the protected leases: the jobs of the first plan
take what is left, in the same order; then running jobs, where they run; then all others. Gangs that lose GPUs to
protection get reservations: see `reservations`. For which leases are protected, see `protection`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from gavelpy.mechanism import named_round, reservations
from gavelpy.mechanism.claims import ClaimKeys
from gavelpy.mechanism.domains import Domains
from gavelpy.mechanism.gpus import NONE
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.leases import LeaseBook, leases_on
from gavelpy.mechanism.node_resources import limits_of
from gavelpy.mechanism.node_room import AnyRoom
from gavelpy.mechanism.node_sets import NodeSets, keepers, node_sets, room_for
from gavelpy.mechanism.non_preemptible import NonPreemptible
from gavelpy.mechanism.protection import note_slow, protected_leases
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.taking import NONE_CHOSEN, Chosen, Reserved
from gavelpy.mechanism.team_plan import TeamsOfPlan
from gavelpy.mechanism.windows import OUTSIDE, Closing
from gavelpy.model.arrays import Bools, Floats, Ints

ALL_TIME = 1 - 2.0**-20  # a share this large is all of a job's time


@dataclass(frozen=True, eq=False)
class Planner:
    """The tables and rules of one plan."""

    leases: LeaseBook
    settings: MechanismSettings
    exempt: NonPreemptible  # jobs that are not preempted
    type_order: Ints  # of the queues by type; empty = in the order of type numbers
    is_solved: bool  # the allocation in force is up to date
    now_s: float
    fixed: Ints  # jobs whose leases no plan ends
    closing: Closing | None = None  # what coming reservations of nodes close
    named: Ints = field(default_factory=lambda: NONE_CHOSEN.jobs)  # the round as the policy names it
    part: int = OUTSIDE  # of the cluster, if it is divided; see windows
    higher: Chosen = NONE_CHOSEN  # with node sets: the jobs of higher classes in this plan
    kept: Ints = field(default_factory=lambda: NONE_CHOSEN.jobs)  # with node sets: see `below`
    demand: Ints = field(default_factory=lambda: NONE_CHOSEN.jobs)  # with limits of teams: see `wanting`
    holding: Ints = field(default_factory=lambda: NONE_CHOSEN.jobs)
    elsewhere: Chosen = NONE_CHOSEN  # the same: jobs of higher classes and of other parts in this plan
    places: dict[int, Ints] = field(default_factory=dict)  # GPUs of all new leases, if jobs move: see defragmentation

    def round(self, rows: Ints, capacity: Ints) -> tuple[Chosen, bool]:
        """Jobs among `rows` that run in the coming round, and whether they were chosen by urgency alone.

        `capacity` (L,): GPUs of each domain that may be allocated.
        """
        members = self.members if self.leases.pool.is_divided else slice(self.leases.jobs.count)
        chosen, is_by_urgency = self.within(rows, capacity, members)
        self.book(chosen)
        return chosen, is_by_urgency

    def within(self, rows: Ints, capacity: Ints, members: Ints | slice) -> tuple[Chosen, bool]:
        """As `round`, of jobs of one priority class, whose serials are `members`."""
        jobs, leases = self.leases.jobs, self.leases
        wanted = chosen = self._by_urgency(rows, capacity)
        if self.settings.lease_min_s:
            note_slow(leases, self.settings, self.now_s, self.exempt.jobs)
            if not len((protected := self.protected).jobs):
                if jobs.any_held:
                    reservations.release(jobs, members)
                return wanted, True
            if not isinstance(members, slice):
                protected = _of(protected, leases, members)
            if (taken(leases, protected) > capacity).any():  # a higher class takes some of their GPUs
                protected = _unchanged(leases, self.select(protected.jobs, capacity))
            if self.sets is not None and len(self.higher.jobs):
                protected = self._next_to_higher(protected)
            if self.teams is not None:
                protected = self.teams.keeping(protected, capacity)
            chosen = self._around(protected, wanted, rows, capacity, members)
        elif jobs.any_held:
            reservations.release(jobs, members)
        return chosen, chosen is wanted

    def below(self, higher: Chosen, kept: Ints) -> Planner:
        """The planner of a lower class in the same plan, without the GPUs of `kept` jobs."""
        if self.sets is None and self.teams is None:
            return self
        found = replace(self, elsewhere=joined(self.elsewhere, higher))
        if self.sets is not None:
            found = replace(found, higher=higher, kept=kept)
        vars(found).update(sets=self.sets, reserved=self.reserved, protected=self.protected)
        return found

    def wanting(self, demand: Ints, holding: Ints) -> Planner:
        """The planner of a plan for all these jobs, while leases of `holding` jobs continue; matters with teams."""
        if not self.settings.limits_teams:
            return self
        found = replace(self, demand=demand, holding=holding)
        vars(found).update(sets=self.sets, reserved=self.reserved, protected=self.protected)
        return found

    def of_part(self, part: int, elsewhere: Chosen = NONE_CHOSEN) -> Planner:
        """The planner of the jobs and GPUs of one part of the cluster; `elsewhere`: the plan of others."""
        found = replace(self, part=part, elsewhere=elsewhere)
        vars(found).update(sets=self.sets, protected=self.protected)
        return found

    @cached_property
    def members(self) -> Ints:
        """The jobs of this part of the cluster; serials, ascending."""
        jobs = self.leases.jobs
        return np.flatnonzero(jobs.part[: jobs.count] == self.part)

    def among(self, rows: Ints) -> Ints:
        """Those of these jobs that are of this part of the cluster."""
        return rows[self.leases.jobs.part[rows] == self.part] if self.leases.pool.is_divided else rows

    def own_gpus(self, gpus: Bools) -> Bools:
        """Those of these GPUs (G,) that are of this part of the cluster."""
        pool = self.leases.pool
        return np.asarray(gpus & (pool.part_of == self.part)) if pool.is_divided else gpus

    @property
    def free_gpus(self) -> Bools:
        """The usable GPUs of this part without a lease, (G,)."""
        return self.own_gpus(self.leases.pool.usable & (self.leases.pool.job == NONE))

    def can_have(self, chosen: Chosen, gpus: Bools) -> bool:
        """Whether these GPUs (G,) suffice for these jobs on the nodes that they may use."""
        return self.sets is None or room_for(self.leases.jobs, self.leases.pool, self.sets, gpus, chosen) is not None

    def book(self, chosen: Chosen) -> None:
        """Marks gangs with reserved GPUs, and ends the reservations of jobs that run."""
        self.reserve()
        if self.leases.jobs.any_held:
            reservations.release(self.leases.jobs, chosen.jobs)

    def staying(self, chosen: Chosen) -> Ints:
        """The chosen jobs whose lease is extended in the coming round; serials, ascending.

        With node sets, some jobs must leave their GPUs to others that can run only there.
        """
        same = self.leases.staying(chosen)
        same = same[~np.isin(same, list(self.places))] if self.places else same
        if self.sets is None:
            return same
        everyone = joined(self.higher, chosen)
        jobs, pool = self.leases.jobs, self.leases.pool
        return keepers(jobs, pool, self.sets, self._open_gpus, everyone, same, self.protected.jobs)

    def filled(self, waiting: Ints) -> Chosen:
        """Waiting jobs that get free GPUs within a round."""
        pool, open_gpus = self.leases.pool, None
        if pool.shares_checkpoints and not pool.is_divided and self.sets is None:
            free = pool.free_counts
        else:
            open_gpus = self.free_gpus
            free = pool.domain_counts(open_gpus)
        chosen = self.fill(waiting, free, open_gpus)
        self.book(chosen)
        return chosen

    def fill(self, waiting: Ints, free: Ints, open_gpus: Bools | None) -> Chosen:
        """Jobs of one class among `waiting` that get these free GPUs (L,); with node sets, among `open_gpus`."""
        jobs = self.leases.jobs
        if not jobs.any_held or not (is_first := reservations.come_first(jobs, waiting)).any():
            return self.select(waiting, free, open_gpus)
        first = self.select(waiting[is_first], free, open_gpus)
        reservations.release(jobs, first.jobs)
        free = self._less_held(waiting[is_first], free - taken(self.leases, first))
        rest = waiting[~is_first]
        return joined(first, self.select(rest, free, open_gpus, before=first, held=waiting[is_first]))

    def _by_urgency(self, rows: Ints, free: Ints) -> Chosen:
        """Jobs among `rows` that get GPUs of `free` (L,) if no lease is protected, those with reservations first."""
        jobs = self.leases.jobs
        if not jobs.any_held:
            return self.select(rows, free)
        waiting = rows[jobs.lease[rows] < 0]
        passed = waiting[reservations.come_first(jobs, waiting)]
        if not len(passed):
            return self.select(rows, free)
        first = self.select(passed, free)
        rest = rows[~jobs.marks(first.jobs)[rows]]
        return joined(first, self.select(rest, free - taken(self.leases, first), before=first))

    def _around(self, protected: Chosen, wanted: Chosen, rows: Ints, capacity: Ints, members: Ints | slice) -> Chosen:
        """Jobs that run in the coming round: `wanted` itself if that ends no protected lease.

        `rows` are all jobs that may be chosen, `capacity` (L,) the GPUs that may be used.
        """
        leases, jobs = self.leases, self.leases.jobs
        is_first = jobs.held_type[wanted.jobs] != reservations.NOT_HELD
        if jobs.any_held:
            reservations.release(jobs, members)
        if jobs.marks(self.staying(wanted))[protected.jobs].all():
            return wanted
        open_gpus = None if self.sets is None else leases.open_gpus(np.union1d(self.fixed, protected.jobs))
        is_asked = ~(is_protected := jobs.marks(protected.jobs))[wanted.jobs]
        asked, is_first = wanted.jobs[is_asked], is_first[is_asked]
        free = capacity - taken(leases, protected)
        first = self.select(np.sort(asked[is_first]), free, open_gpus, beside=protected)
        free = free - taken(leases, first)
        more = self.select(np.sort(asked[~is_first]), free, open_gpus, before=first, beside=protected)
        first = joined(first, more)
        free = capacity - taken(leases, protected) - taken(leases, first)
        served = asked if self.teams is None else first.jobs  # what was kept for teams may be left
        rest = rows[~is_protected[rows] & ~jobs.marks(served)[rows]]
        is_chosen = jobs.marks(np.concatenate([protected.jobs, first.jobs]))
        if not reservations.hold(leases, wanted, is_chosen=is_chosen):
            return joined(protected, first, self.select(rest, free, open_gpus, before=first, beside=protected))
        again = self.select(rest[jobs.lease[rest] >= 0], free, open_gpus, before=first, beside=protected)
        again = _unchanged(leases, again)
        free = self._less_held(rows, free - taken(leases, again))
        rest = rest[~jobs.marks(again.jobs)[rest]]
        others = self.select(rest, free, open_gpus, before=joined(first, again), held=rows, beside=protected)
        return joined(protected, first, again, others)

    def reserve(self) -> None:
        """Marks gangs with reserved GPUs, so that they come first when they can start."""
        if self.settings.keep_unsaved and self.reserved is not None:
            reservations.mark(self.leases, self.settings, self.exempt, self.reserved, is_solved=self.is_solved)

    @cached_property
    def reserved(self) -> Reserved | None:
        """GPUs that only some jobs may take."""
        if not self.settings.keep_unsaved:
            return None  # no gang waits for jobs that are not preempted: see reservations.waiting_gangs
        gangs = reservations.waiting_gangs(self.leases, self.settings, self.exempt, self.now_s, self.is_solved)
        return reservations.reserved(self.leases, self.settings, self.exempt, self.among(gangs), self.sets)

    @cached_property
    def protected(self) -> Chosen:
        """The protected leases."""
        if not self.settings.lease_min_s:
            return NONE_CHOSEN
        return protected_leases(self.leases, self.settings, self.now_s, self.exempt.jobs)

    @cached_property
    def sets(self) -> NodeSets | None:
        """The GPUs that jobs may use; None = all may use all."""
        jobs, pool = self.leases.jobs, self.leases.pool
        sets = node_sets(jobs, pool) if jobs.any_limited or pool.limits_jobs else None
        limits = limits_of(jobs, pool) if jobs.needs else None
        if self.closing is not None or limits is not None:
            sets = sets or NodeSets.unlimited(jobs.count, len(pool.job))
            sets = sets if self.closing is None else self.closing.narrowed(sets)
            sets.limits = limits
        return sets

    @cached_property
    def _open_gpus(self) -> Bools:
        """The GPUs that the plan of a round may allocate, (G,)."""
        return self.leases.open_gpus(self.fixed)

    def _next_to_higher(self, protected: Chosen) -> Chosen:
        """Those of these leases that can stay where they are next to the jobs of higher classes."""
        leases, jobs = self.leases, self.leases.jobs
        kept: Ints = protected.jobs[:0]
        for row in protected.jobs.tolist():
            more = jobs.with_partners(np.append(kept, row))
            if self.can_have(self.higher, leases.open_gpus(np.union1d(self.fixed, more))):
                kept = more
        return _of(protected, leases, kept)

    def _less_held(self, rows: Ints, free: Ints) -> Ints:
        """As `reservations.less_held`; with node sets, `_room` has the GPUs that are reserved."""
        return free if self.sets is not None else reservations.less_held(self.leases, rows, free)

    def _room(self, open_gpus: Bools, before: Chosen, held: Ints) -> AnyRoom | None:
        """What is left of these GPUs after these jobs, and those held for gangs among `held`; None without sets."""
        if self.sets is None:
            return None
        jobs, pool = self.leases.jobs, self.leases.pool
        room = room_for(jobs, pool, self.sets, open_gpus, joined(self.higher, before))
        assert room is not None, "a plan has jobs that do not fit on their nodes"
        for row in self.kept[(jobs.partner[self.kept] < 0) | (jobs.partner[self.kept] > self.kept)].tolist():
            domain, kind = int(pool.domain_of[jobs.gpu_first[row]]), room.kind(row, int(jobs.partner[row]))
            room.hold(domain, kind, int(jobs.gpus[row]))
        for row in held[jobs.held_type[held] != reservations.NOT_HELD].tolist():
            for domain in np.flatnonzero(pool.domain_type == jobs.held_type[row]).tolist():
                room.hold(domain, room.kind(row), int(jobs.gpus[row]))
        return room

    def select(
        self,
        rows: Ints,
        free: Ints,
        open_gpus: Bools | None = None,
        *,
        before: Chosen = NONE_CHOSEN,
        held: Ints = NONE_CHOSEN.jobs,
        beside: Chosen = NONE_CHOSEN,
    ) -> Chosen:
        """Jobs of one priority class among `rows` for these free GPUs (L,).

        The other values matter only with node sets and limits of teams. `open_gpus` (G,): those that the plan may use;
        None: all in a round. `before`: the jobs that have some of them. `held`: jobs that may have GPUs reserved, as in
        `less_held`. `beside`: jobs of the class that have other GPUs.
        """
        jobs, pool, settings = self.leases.jobs, self.leases.pool, self.settings
        rows = settings.rules.candidates(jobs, rows)
        if pool.any_unreachable:
            rows = rows[~jobs.marks(leases_on(jobs, pool, pool.unreachable))[rows]]
        reserved = None if self.reserved is None else reservations.above(self.reserved, jobs, rows)
        room = None
        if self.sets is not None:
            room = self._room(self._open_gpus if open_gpus is None else open_gpus, before, held)
        queue = partial(settings.rules.select, jobs, settings=settings, type_order=self.type_order, reserved=reserved)
        if named_round.is_named(self.named):
            queue = partial(named_round.select, jobs, self.named, reserved=reserved)
        if self.teams is None:
            is_plain = pool.shares_checkpoints and room is None
            return queue(rows, free, domains=None if is_plain else Domains(jobs, pool, room))
        others = joined(before, beside)
        team_room = self.teams.room(free, others)
        chosen = queue(rows, free, domains=Domains(jobs, pool, room, team_room))
        for limits in self.teams.lent(rows, others):
            team_room.lend(limits)
            rest = rows[~jobs.marks(chosen.jobs)[rows]]
            left = free - taken(self.leases, chosen)
            chosen = joined(chosen, queue(rest, left, domains=Domains(jobs, pool, room, team_room)))
        return chosen

    @cached_property
    def teams(self) -> TeamsOfPlan | None:
        """What the plan leaves to each team; None = no team has limits."""
        return TeamsOfPlan(self) if self.settings.limits_teams else None


def is_settled(jobs: JobTable, settings: MechanismSettings, chosen: Chosen, fixed: Ints) -> bool:
    """Whether the following rounds would be equal to this one until something changes.

    Each chosen job has a share of 1 on its type and with its partner; waiting jobs have none. The leases of `fixed`
    jobs continue in any case.
    """
    if settings.settled_rounds_max == 1 or not settings.rules.may_merge_rounds:
        return False
    shared = jobs.active if jobs.claims.count else jobs.lists.shared
    waiting = shared[~jobs.marks(np.concatenate([chosen.jobs, fixed]))[shared]]
    return bool((_share(jobs, chosen) >= ALL_TIME).all() and not jobs.share[waiting].any())


def settled_length_s(settings: MechanismSettings, asked_s: float, now_s: float) -> float:
    """Length of a settled round: whole rounds, until the allocation requested at `asked_s` is too old."""
    if not settings.solve_at_least_every_s:
        return settings.settled_rounds_max * settings.round_s
    left_s = asked_s + settings.solve_at_least_every_s - now_s
    return settings.round_s * min(settings.settled_rounds_max, max(1, math.ceil(left_s / settings.round_s)))


def _share(jobs: JobTable, chosen: Chosen) -> Floats:
    """Share of each chosen job, as it was chosen, (K,)."""
    share = jobs.target[chosen.jobs, chosen.domains]
    claimed = (chosen.partner >= 0) | (jobs.smallest[chosen.jobs] > 0)
    if claimed.any():
        rows, types, partners, gpus = chosen.among(claimed)
        share[claimed] = jobs.claims.shares(ClaimKeys(rows, partners, gpus, types))
    return share


def taken(leases: LeaseBook, chosen: Chosen) -> Ints:
    """GPUs of each domain that these jobs take, (L,); a pair takes them once."""
    counts = np.zeros(len(leases.pool.domain_type), dtype=np.int64)
    counted = (chosen.partner < 0) | (chosen.partner > chosen.jobs)
    np.add.at(counts, chosen.domains[counted], chosen.gpus[counted])
    return counts


def _unchanged(leases: LeaseBook, chosen: Chosen) -> Chosen:
    """The chosen jobs whose leases continue with the same partner."""
    same = chosen.partner == leases.jobs.partner[chosen.jobs]
    return _of(chosen.among(same), leases, leases.staying(chosen))


def _of(chosen: Chosen, leases: LeaseBook, rows: Ints) -> Chosen:
    """The chosen jobs that are among `rows`."""
    return chosen.among(leases.jobs.marks(rows)[chosen.jobs])


def joined(*parts: Chosen) -> Chosen:
    """The jobs of all these parts."""
    return Chosen(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
