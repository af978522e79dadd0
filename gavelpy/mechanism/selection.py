"""Selects the jobs of the coming round and their GPU types: greedily by urgency, within the available GPUs.

If the policy co-locates jobs, pairs and single jobs are in one queue; a pair takes its GPUs once. Capacity is allocated
per checkpoint domain (see `domains`); without `domains`, the usual case, there is one domain per GPU type. If jobs may
use some nodes only, a job is chosen if it fits on its nodes together with all that were chosen before: see `node_sets`.

Source: greedy by priority, skipping jobs that do not fit (Gavel, OSDI '20, section 5, algorithm 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from gavelpy.mechanism.domains import NOT_THERE, Domains
from gavelpy.mechanism.jobs import JobTable
from gavelpy.model.arrays import Bools, Floats, Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.node_sets import Room
    from gavelpy.mechanism.settings import MechanismSettings

Selection = tuple[Ints, Ints]  # jobs (K,), the domains of their GPUs (K,)


class Chosen(NamedTuple):
    """Jobs that run; of a pair, both."""

    jobs: Ints  # (K,)
    domains: Ints  # (K,) of their GPUs
    partner: Ints  # (K,) the co-located job, -1 = none

    def among(self, wanted: Bools) -> Chosen:
        """Those of these jobs that are wanted (K,)."""
        return Chosen(self.jobs[wanted], self.domains[wanted], self.partner[wanted])


class Reserved(NamedTuple):
    """GPUs that a job may take only if it can be preempted, or if they are reserved for the job itself."""

    gpus: Ints  # (L,) how many are reserved in each domain
    gang: Ints  # (L,) serial of the job that they are reserved for, -1 = none
    barred: Bools  # (N,) jobs that are not preempted once they run


class WakeupSteps(Protocol):
    """Compiled steps of each wake-up, equal to the last bit, that a shell may set: the core imports no compiler."""

    def settle(self, jobs: JobTable, elapsed_s: float, fade: float, now_s: float, lag_max_s: float) -> None:
        """As `JobTable.settle`, without pairs."""

    def serve(
        self, jobs: Ints, types: Ints, merit: tuple[Floats, Floats, Floats], gpus: Ints, free: Ints
    ) -> tuple[Ints, Ints]:
        """As `serve`."""


NONE_CHOSEN = Chosen(*(np.zeros(0, dtype=np.int64) for _ in range(3)))


def alone(selection: Selection) -> Chosen:
    """These jobs without partners."""
    return Chosen(*selection, np.full(len(selection[0]), -1))


def select_global(
    jobs: JobTable,
    rows: Ints,
    free: Ints,
    settings: MechanismSettings,
    domains: Domains | None = None,
    reserved: Reserved | None = None,
) -> Selection:
    """One queue of all (job, type) with a share; with `fill_leftover`, other jobs then get the leftover GPUs.

    `rows` are the jobs that may be chosen, `free` (L,) the GPUs to allocate. Order: priority, owed minus received time,
    share, serial, type.
    """
    if len(rows) == 1 and domains is None and reserved is None:
        return _select_one(jobs, rows, free, settings)
    local, gpu_type = np.nonzero(jobs.target.take(rows, axis=0) > 0)
    left = free.copy()
    chosen: Selection = rows[:0], rows[:0]
    if len(local):
        pairs = rows[local]
        merits = merit(jobs, pairs, gpu_type, settings)
        if domains is None and reserved is None:
            chosen = (serve if jobs.kernels is None else jobs.kernels.serve)(pairs, gpu_type, merits, jobs.gpus, left)
        else:
            order = _by_merit(pairs, gpu_type, merits)
            slots = gpu_type if domains is None else domains.slots(rows)[local, gpu_type]
            chosen = take(pairs[order], slots[order], jobs.gpus, left, domains, reserved)
    if settings.fill_leftover and len(chosen[0]) < len(rows) and left.any():
        rest = rows[~jobs.marks(chosen[0])[rows]] if len(chosen[0]) else rows
        others = select_leftover(jobs, rest, left, domains, reserved, settings.move_lag_s)
        chosen = joined(chosen, others) if len(chosen[0]) else others
    return chosen


def serve(jobs: Ints, types: Ints, merit: tuple[Floats, Floats, Floats], gpus: Ints, free: Ints) -> Selection:
    """Takes free GPUs (T,) for a queue of jobs with types and merits, (K,) each, the most urgent first."""
    order = _by_merit(jobs, types, merit)
    return _take_plain(jobs[order], types[order], gpus[jobs[order]], free)


def _by_merit(jobs: Ints, types: Ints, merit: tuple[Floats, Floats, Floats]) -> Ints:
    urgency, lag, share = merit
    return np.lexsort((types, jobs, -share, -lag, -urgency))


def _select_one(jobs: JobTable, rows: Ints, free: Ints, settings: MechanismSettings) -> Selection:
    """As `select_global`, for a single job: the usual case within a round."""
    row = int(rows[0])
    need, room = int(jobs.gpus[row]), free.tolist()
    types = [k for k, share in enumerate(jobs.target[row].tolist()) if share > 0 and need <= room[k]]
    if len(types) > 1:
        kinds = np.array(types)
        urgency, lag, share = merit(jobs, rows.repeat(len(types)), kinds, settings)
        types = kinds[np.lexsort((kinds, -share, -lag, -urgency))].tolist()
    if not types and settings.fill_leftover:
        rate, held = jobs.rate[row].tolist(), int(jobs.lease_type[row]) if settings.move_lag_s else -1
        types = [k for k, speed in enumerate(rate) if speed > 0 and need <= room[k]]
        types.sort(key=lambda k: (-rate[k], k != held, k))
    return (rows, np.array(types[:1])) if types else (rows[:0], rows[:0])


def select_packed(
    jobs: JobTable,
    rows: Ints,
    free: Ints,
    settings: MechanismSettings,
    domains: Domains | None = None,
    reserved: Reserved | None = None,
) -> Chosen:
    """One queue of all (job, type) and (pair, type) with a share; then leftover GPUs, for single jobs.

    The order is that of `select_global`; of two equals, a single job comes before its pairs.
    """
    pairs, is_open = jobs.pairs, jobs.marks(rows)
    local, alone_type = np.nonzero(jobs.target[rows] > 0)
    both = np.flatnonzero((pairs.target > 0) & is_open[pairs.first] & is_open[pairs.second])
    first = np.concatenate([rows[local], pairs.first[both]])
    second = np.concatenate([np.full(len(local), -1), pairs.second[both]])
    gpu_type = np.concatenate([alone_type, pairs.gpu_type[both]])
    of_alone = merit(jobs, rows[local], alone_type, settings)
    of_pairs = _merit_of_pairs(jobs, both, settings)
    urgency, lag, share = (np.concatenate(parts) for parts in zip(of_alone, of_pairs, strict=True))
    order = np.lexsort((second, gpu_type, first, -share, -lag, -urgency))
    slots = gpu_type if domains is None else _common_slots(domains, first, second, gpu_type)
    left = free.copy()
    chosen = _take_packed(first[order], second[order], slots[order], jobs.gpus, left, domains, reserved)
    if not settings.fill_leftover:
        return chosen
    others = rows[~jobs.marks(chosen.jobs)[rows]]
    rest = alone(select_leftover(jobs, others, left, domains, reserved, settings.move_lag_s))
    return Chosen(*(np.concatenate(parts) for parts in zip(chosen, rest, strict=True)))


def select_leftover(
    jobs: JobTable,
    rows: Ints,
    free: Ints,
    domains: Domains | None = None,
    reserved: Reserved | None = None,
    move_lag_s: float = 0.0,
) -> Selection:
    """Allocates free GPUs to jobs that can use them: largest lag first, on the fastest type with enough GPUs.

    With `move_lag_s`, the lag of a running job counts for that much more, and its own type comes before types that are
    as fast.
    """
    if not free.any() or not len(rows):
        return rows[:0], rows[:0]
    runs = jobs.rate[rows] > 0
    usable = runs & (jobs.gpus[rows, None] <= free[None, :]) if domains is None else runs
    rows = rows[usable.any(axis=1)]
    if not len(rows):
        return rows, rows
    if len(rows) > 1:
        owed_s, received_s = jobs.total("owed_s"), jobs.total("received_s")
        lag = (owed_s[rows] - received_s[rows]).sum(axis=1) + move_lag_s * (jobs.lease[rows] >= 0)
        rows = rows[np.lexsort((rows, -lag))]
    left = _Left(free, domains, reserved)
    chosen_jobs: list[int] = []
    chosen_domains: list[int] = []
    by_speed = np.argsort(-jobs.rate[rows], axis=1, kind="stable")
    if move_lag_s:
        is_elsewhere = jobs.lease_type[rows, None] != np.arange(jobs.rate.shape[1])
        by_speed = np.lexsort((is_elsewhere, -jobs.rate[rows]), axis=1)
    slots = by_speed if domains is None else np.take_along_axis(domains.slots(rows), by_speed, axis=1)
    for job, gpus, types, places in zip(
        rows.tolist(), jobs.gpus[rows].tolist(), by_speed.tolist(), slots.tolist(), strict=True
    ):
        for gpu_type, slot in zip(types, places, strict=True):
            domain = left.find(slot, gpus, job)
            if domain != NOT_THERE and jobs.rate[job, gpu_type] > 0:
                left.take(domain, gpus, job)
                chosen_jobs.append(job)
                chosen_domains.append(domain)
                break
        if not any(left.free):
            break
    free[:] = left.free
    return np.array(chosen_jobs, dtype=np.int64), np.array(chosen_domains, dtype=np.int64)


def merit(jobs: JobTable, pairs: Ints, gpu_type: Ints, settings: MechanismSettings) -> tuple[Floats, Floats, Floats]:
    """Urgency, owed minus received time, and share of (job, type) pairs, (K,) each.

    With `move_lag_s`, a lease in force and a job that never ran count for 1 more, so a lease ends for another job only
    if that one's lag is larger by `move_lag_s`, or if that one never ran.
    """
    share = jobs.target[pairs, gpu_type]
    owed, received = jobs.owed_s[pairs, gpu_type], jobs.received_s[pairs, gpu_type]
    urgency = settings.rules.urgency(share, owed, received, settings)
    if settings.move_lag_s:
        holds = (jobs.lease[pairs] >= 0) & (jobs.lease_type[pairs] == gpu_type) & (jobs.partner[pairs] < 0)
        urgency = urgency + (holds | never_ran(jobs, pairs))
    return urgency, owed - received, share


def never_ran(jobs: JobTable, rows: Ints) -> Bools:
    """Whether these jobs have no lease and never had one that started, (K,)."""
    return np.asarray((jobs.lease[rows] < 0) & (jobs.attained_gpu_s[rows] == 0.0))


def _merit_of_pairs(jobs: JobTable, rows: Ints, settings: MechanismSettings) -> tuple[Floats, Floats, Floats]:
    pairs = jobs.pairs
    share, owed, received = pairs.target[rows], pairs.owed_s[rows], pairs.received_s[rows]
    urgency = settings.rules.urgency(share, owed, received, settings)
    if settings.move_lag_s:
        first, second = pairs.first[rows], pairs.second[rows]
        holds = (jobs.partner[first] == second) & (jobs.lease_type[first] == pairs.gpu_type[rows])
        urgency = urgency + (holds | never_ran(jobs, first) | never_ran(jobs, second))
    return urgency, owed - received, share


def _common_slots(domains: Domains, first: Ints, second: Ints, gpu_type: Ints) -> Ints:
    """Where both jobs may use GPUs of a type, (K,), as in `Domains.slots`; a single job (second < 0) decides alone."""
    one = domains.slots(first)[np.arange(len(first)), gpu_type]
    other = domains.slots(np.where(second >= 0, second, first))[np.arange(len(first)), gpu_type]
    anywhere = domains.count + gpu_type
    agreed = np.where(one == other, one, NOT_THERE)
    agreed = np.where((one == anywhere) & (other != NOT_THERE), other, agreed)
    return np.where((other == anywhere) & (one != NOT_THERE), one, agreed)


class _Left:
    """Free GPUs of each domain while a plan processes its queue."""

    def __init__(self, free: Ints, domains: Domains | None, reserved: Reserved | None) -> None:
        self.free: list[int] = free.tolist()
        self._domains, self._reserved = domains, reserved
        self._room = None if domains is None else domains.room
        self._unreserved = self.free
        if reserved is not None:
            self._gpus: list[int] = reserved.gpus.tolist()
            self._gang: list[int] = reserved.gang.tolist()
            self._unreserved = [count - kept for count, kept in zip(self.free, self._gpus, strict=True)]

    def find(self, slot: int, need: int, job: int, partner: int = -1) -> int:
        """The domain with enough GPUs for a job or pair, or NOT_THERE. `slot`: see `Domains.slots`."""
        if self._room is not None:
            return self._find_in(self._room, slot, need, job, partner)
        free, key = self._open_to(job, partner)
        domain = slot if self._domains is None else self._domains.resolve(slot, need, free, key)
        return domain if domain != NOT_THERE and need <= free[domain] else NOT_THERE

    def take(self, domain: int, need: int, job: int, partner: int = -1) -> None:
        """Subtracts the GPUs of a job or pair from the free ones."""
        self.free[domain] -= need
        if self._room is not None:
            fits = self._room.take(domain, self._room.kind(job, partner), need)
            assert fits, f"job {job} does not fit on its nodes"
        if self._reserved is not None:
            self._unreserved[domain] -= need

    def _find_in(self, room: Room, slot: int, need: int, job: int, partner: int) -> int:
        """As `find`, with the nodes that jobs may use. GPUs reserved for a gang are those that it may use."""
        assert self._domains is not None, "room is part of the domains"
        reserved, kind = self._reserved, room.kind(job, partner)
        is_barred = reserved is not None and (reserved.barred[job] or (partner >= 0 and reserved.barred[partner]))
        for domain in self._domains.of_slot(slot):
            gang = self._gang[domain] if is_barred else -1
            behind = (room.kind(gang), self._gpus[domain]) if gang >= 0 and gang not in (job, partner) else None
            if need <= self.free[domain] and room.fits(domain, kind, need, behind):
                return domain
        return NOT_THERE

    def _open_to(self, job: int, partner: int) -> tuple[list[int], int]:
        """GPUs of each domain that these jobs may use, and a key for jobs with the same answer."""
        reserved = self._reserved
        if reserved is None or not (reserved.barred[job] or (partner >= 0 and reserved.barred[partner])):
            return self.free, -2
        own = [domain for domain, gang in enumerate(self._gang) if gang >= 0 and gang in (job, partner)]
        if not own:
            return self._unreserved, -1
        return [self.free[k] if k in own else count for k, count in enumerate(self._unreserved)], job


def _take_packed(
    first: Ints,
    second: Ints,
    slots: Ints,
    gpus: Ints,
    free: Ints,
    domains: Domains | None,
    reserved: Reserved | None,
) -> Chosen:
    """As `take`, for single jobs (second is -1) and pairs."""
    left = _Left(free, domains, reserved)
    total = sum(left.free)
    taken: set[int] = set()
    chosen: list[tuple[int, int, int]] = []
    needed = gpus[first].tolist()
    for job, partner, need, slot in zip(first.tolist(), second.tolist(), needed, slots.tolist(), strict=True):
        if total == 0:
            break
        if job in taken or partner in taken:
            continue
        domain = left.find(slot, need, job, partner)
        if domain == NOT_THERE:
            continue
        left.take(domain, need, job, partner)
        total -= need
        taken.add(job)
        chosen.append((job, domain, partner))
        if partner >= 0:
            taken.add(partner)
            chosen.append((partner, domain, job))
    free[:] = left.free
    return Chosen(*np.array(chosen, dtype=np.int64).reshape(-1, 3).T)


def take(
    pairs: Ints, slots: Ints, gpus: Ints, free: Ints, domains: Domains | None, reserved: Reserved | None
) -> Selection:
    """Takes GPUs for the jobs of a queue in order, each job at most once; updates `free`."""
    if domains is None and reserved is None:
        return _take_plain(pairs, slots, gpus[pairs], free)
    left = _Left(free, domains, reserved)
    total = sum(left.free)
    taken: set[int] = set()
    chosen: list[int] = []
    needed = gpus[pairs].tolist()
    slot_of: list[int] = slots.tolist()
    for position, job in enumerate(pairs.tolist()):
        if total == 0:
            break
        if job in taken:
            continue
        need, domain = needed[position], slot_of[position]
        domain = slot_of[position] = left.find(domain, need, job)
        if domain == NOT_THERE:
            continue
        left.take(domain, need, job)
        total -= need
        taken.add(job)
        chosen.append(position)
    free[:] = left.free
    return pairs[chosen], np.array([slot_of[position] for position in chosen], dtype=np.int64)


def _take_plain(pairs: Ints, slots: Ints, needs: Ints, free: Ints) -> Selection:
    """As `take`, where domains are GPU types and all jobs may use all free GPUs. `needs` (K,): GPUs of each place."""
    if not len(pairs):
        return pairs, slots
    place, row = np.arange(len(pairs)), pairs - pairs.min()
    first_of = np.empty(int(row.max()) + 1, dtype=np.int64)
    first_of[row[::-1]] = place[::-1]  # of a job's places in the queue, the first is stored last
    first = first_of[row] == place
    found = slots[first]
    needed_in = np.bincount(found, weights=needs[first], minlength=len(free)).astype(np.int64)
    if (needed_in <= free).all():  # all jobs fit where they would be most urgently
        free -= needed_in
        return pairs[first], found
    left: list[int] = free.tolist()
    total = sum(left)
    taken: set[int] = set()
    chosen: list[int] = []
    for position, (job, domain, need) in enumerate(zip(pairs.tolist(), slots.tolist(), needs.tolist(), strict=True)):
        if need <= left[domain] and job not in taken:
            left[domain] -= need
            taken.add(job)
            chosen.append(position)
            total -= need
            if total == 0:
                break
    free[:] = left
    return pairs[chosen], slots[chosen]


def joined(first: Selection, second: Selection) -> Selection:
    """Both selections."""
    return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])
