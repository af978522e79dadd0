"""Takes free GPUs for a queue of jobs and claims in order, each job at most once; what fits on which nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gavelpy.mechanism.domains import NOT_THERE, Domains
from gavelpy.model.arrays import Bools, Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.node_room import AnyRoom

Selection = tuple[Ints, Ints]  # jobs (K,), the domains of their GPUs (K,)


class Chosen(NamedTuple):
    """Jobs that run; of a pair, both."""

    jobs: Ints  # (K,)
    domains: Ints  # (K,) of their GPUs
    partner: Ints  # (K,) the co-located job, -1 = none
    gpus: Ints  # (K,) how many it gets

    def among(self, wanted: Bools) -> Chosen:
        """Those of these jobs that are wanted (K,)."""
        return Chosen(self.jobs[wanted], self.domains[wanted], self.partner[wanted], self.gpus[wanted])


class Reserved(NamedTuple):
    """GPUs that a job may take only if it can be preempted, or if they are reserved for the job itself."""

    gpus: Ints  # (L,) how many are reserved in each domain
    gang: Ints  # (L,) serial of the job that they are reserved for, -1 = none
    barred: Bools  # (N,) jobs that are not preempted once they run


def chosen_of(entries: Sequence[tuple[int, int, int, int]]) -> Chosen:
    """These (job, domain, partner, GPUs)."""
    return Chosen(*np.array(entries, dtype=np.int64).reshape(-1, 4).T)


NONE_CHOSEN = chosen_of(())


class Left:
    """Free GPUs of each domain while a plan processes its queue."""

    def __init__(self, free: Ints, domains: Domains | None, reserved: Reserved | None) -> None:
        self.free: list[int] = free.tolist()
        self._domains, self._reserved = domains, reserved
        self._room = None if domains is None else domains.room
        self._teams = None if domains is None else domains.teams
        self._unreserved = self.free
        if reserved is not None:
            self._gpus: list[int] = reserved.gpus.tolist()
            self._gang: list[int] = reserved.gang.tolist()
            self._unreserved = [count - kept for count, kept in zip(self.free, self._gpus, strict=True)]

    def find(self, slot: int, need: int, job: int, partner: int = -1) -> int:
        """The domain with enough GPUs for a job or pair, or NOT_THERE. `slot`: see `Domains.slots`."""
        if slot == NOT_THERE or not self._may_have(slot, need, job, partner):
            return NOT_THERE
        if self._room is not None:
            return self._find_in(self._room, slot, need, job, partner)
        free, key = self._open_to(need, job, partner)
        domain = slot if self._domains is None else self._domains.resolve(slot, need, free, key)
        return domain if domain != NOT_THERE and need <= free[domain] else NOT_THERE

    def take(self, domain: int, need: int, job: int, partner: int = -1) -> None:
        """Subtracts the GPUs of a job or pair from the free ones."""
        self.free[domain] -= need
        if self._teams is not None and self._domains is not None:
            self._teams.take(self._domains.kind(domain), need, job, partner)
        if self._room is not None:
            fits = self._room.take(domain, self._room.kind(job, partner), need)
            assert fits, f"job {job} does not fit on its nodes"
        if self._reserved is not None:
            self._unreserved[domain] -= need

    def _may_have(self, slot: int, need: int, job: int, partner: int) -> bool:
        """Whether the teams of these jobs may have so many more GPUs of the slot's type."""
        domains, teams = self._domains, self._teams
        return domains is None or teams is None or teams.allows(domains.kind(slot), need, job, partner)

    def _find_in(self, room: AnyRoom, slot: int, need: int, job: int, partner: int) -> int:
        """As `find`, with the nodes that jobs may use. GPUs reserved for a gang are those that it may use."""
        assert self._domains is not None, "room is part of the domains"
        kind, is_barred = room.kind(job, partner), self._is_barred(job, partner)
        for domain in self._domains.of_slot(slot):
            waits = is_barred and self._gang[domain] >= 0 and not self._may_pass(domain, need, job, partner)
            behind = (room.kind(self._gang[domain]), self._gpus[domain]) if waits else None
            if need <= self.free[domain] and room.fits(domain, kind, need, behind):
                return domain
        return NOT_THERE

    def _is_barred(self, job: int, partner: int) -> bool:
        """Whether these jobs may not take reserved GPUs."""
        reserved = self._reserved
        return reserved is not None and bool(reserved.barred[job] or (partner >= 0 and reserved.barred[partner]))

    def _may_pass(self, domain: int, need: int, job: int, partner: int) -> bool:
        """Whether these jobs may take GPUs reserved for a gang: one of them is the gang, or its team is owed them."""
        gang, domains, teams = self._gang[domain], self._domains, self._teams
        if gang in (job, partner) or domains is None or teams is None:
            return gang in (job, partner)
        return partner < 0 and teams.owes(domains.kind(domain), need, job, gang)

    def _open_to(self, need: int, job: int, partner: int) -> tuple[list[int], int]:
        """GPUs of each domain that these jobs may use, and a key for jobs with the same answer."""
        if not self._is_barred(job, partner):
            return self.free, -2
        held = [domain for domain, gang in enumerate(self._gang) if gang >= 0]
        own = [domain for domain in held if self._may_pass(domain, need, job, partner)]
        if not own:
            return self._unreserved, -1
        return [self.free[k] if k in own else count for k, count in enumerate(self._unreserved)], job


def take_claims(
    first: Ints,
    second: Ints,
    slots: Ints,
    gpus: Ints,
    free: Ints,
    domains: Domains | None,
    reserved: Reserved | None,
) -> Chosen:
    """As `take`, for claims of `gpus` (K,) of single jobs (second is ALONE) and of pairs."""
    left = Left(free, domains, reserved)
    total = sum(left.free)
    taken: set[int] = set()
    chosen: list[tuple[int, int, int, int]] = []
    queue = zip(first.tolist(), second.tolist(), gpus.tolist(), slots.tolist(), strict=True)
    for job, partner, need, slot in queue:
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
        chosen.append((job, domain, partner, need))
        if partner >= 0:
            taken.add(partner)
            chosen.append((partner, domain, job, need))
    free[:] = left.free
    return chosen_of(chosen)


def take(
    pairs: Ints, slots: Ints, gpus: Ints, free: Ints, domains: Domains | None, reserved: Reserved | None
) -> Selection:
    """Takes GPUs for the jobs of a queue in order, each job at most once; updates `free`."""
    if domains is None and reserved is None:
        return take_plain(pairs, slots, gpus[pairs], free)
    left = Left(free, domains, reserved)
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


def take_plain(pairs: Ints, slots: Ints, needs: Ints, free: Ints) -> Selection:
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
