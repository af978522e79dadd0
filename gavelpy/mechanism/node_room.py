"""Chooses nodes for jobs while a plan selects them, where CPU cores or memory run out before the GPUs of a node.

Theory of operation. Counts of GPUs are not enough there: two nodes with 8 free cores each have no place for a job that
needs 16. `NodeRoom` therefore gives each job that a plan selects GPUs on nodes that have all that it needs, in the
order in which the plan selects them. So a job is selected if and only if there is a place next to those before it, the
most urgent job has the whole cluster to choose from, and smaller jobs cannot starve it.

A job is placed
1. where the plan placed it before, in an earlier step (`NodeLimits.placed`), so that the steps agree;
2. else on the GPUs of its own lease;
3. else on GPUs that no running job may keep, on as few nodes as possible, the last one with the least room to spare;
4. else so that running jobs which the plan has not selected must leave their GPUs, or nodes.

In the end `keepers` looks for a plan with the same jobs and fewer moves: all running jobs stay, and the others get what
is left, the largest first. If not all fit so, the places are those of the selection.

For one job the places are exact: it fits if and only if the GPUs that nodes have for it add up to its size. For several
jobs, packing them in the best way is a hard problem (vector bin packing), and the order decides. A job that does not
fit next to others waits for a later round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.node_resources import NodeLimits, within
from gavelpy.mechanism.placement import nodes_to_avoid
from gavelpy.model.arrays import Bools, Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.node_sets import NodeSets, Room
    from gavelpy.mechanism.taking import Chosen


AnyRoom: TypeAlias = "Room | NodeRoom"


class NodeRoom:
    """What a plan may still take of these GPUs, and of the other resources of their nodes.

    `may_keep`: running jobs that may keep their GPUs, so that others come to them last.
    """

    def __init__(
        self, jobs: JobTable, pool: GpuPool, sets: NodeSets, limits: NodeLimits, open_gpus: Bools, may_keep: Ints
    ) -> None:
        self._jobs, self._pool, self._sets, self._limits = jobs, pool, sets, limits
        self._left: Bools = open_gpus.copy()  # (G,) GPUs that are not taken
        self._vacant: Bools = open_gpus.copy()  # (G,) and that no running job may keep
        self._amounts = limits.left(pool, open_gpus)  # (M, 2) that are not taken
        self._spare = self._amounts.copy()  # (M, 2) and that no running job may keep
        self._domain_of = pool.domain_of
        self._holds: dict[int, Ints] = {}  # GPUs of running jobs that may keep them
        self._holders: Ints = np.full((len(pool.job), 2), -1)  # these jobs by GPU; two where they are co-located
        self._full: dict[tuple[int, ...], int] = {}  # by domain, set and need: fewest GPUs that did not fit
        self._kinds: list[tuple[int, int]] = []
        self._kind_of: dict[tuple[int, int], int] = {}
        self._found: tuple[int, int, int, Ints] | None = None  # the last place: domain, kind, GPUs
        self.placed: dict[int, Ints] = {}
        is_mine = jobs.marks(may_keep)
        for row in jobs.leased[is_mine[jobs.leased]].tolist():
            held = jobs.gpus_held(row)
            held = held[open_gpus[held]]
            if len(held):
                self._holds[row] = held
                self._holders[held, int(self._vacant[held[0]])] = row
                self._vacant[held] = False
                self._change(self._spare, held, -limits.needs[row])

    def kind(self, job: int, partner: int = -1) -> int:
        """A number for a job, or a pair."""
        key = (min(job, partner), max(job, partner)) if partner >= 0 else (job, partner)
        if key not in self._kind_of:
            self._kind_of[key] = len(self._kinds)
            self._kinds.append(key)
        return self._kind_of[key]

    def fits(self, domain: int, kind: int, need: int, behind: tuple[int, int] | None = None) -> bool:
        """Whether that many more GPUs can be taken. `behind`: a kind and a number that others may not reduce."""
        if behind is None:
            return self._place(domain, kind, need) is not None
        left, amounts = self._left.copy(), self._amounts.copy()
        other = self._place(domain, *behind)
        if other is not None:
            self._left[other] = False
            self._change(self._amounts, other, -self._need(behind[0]))
        found = self._search(domain, kind, need, self._left, self._amounts)
        self._left, self._amounts = left, amounts
        self._found = None if found is None else (domain, kind, need, found)
        return found is not None

    def take(self, domain: int, kind: int, need: int) -> bool:
        """Takes that many GPUs, or none; returns whether it did."""
        gpus = self._place(domain, kind, need)
        if gpus is None:
            return False
        self.take_these(kind, gpus)
        return True

    def take_these(self, kind: int, gpus: Ints) -> None:
        """Takes these GPUs, which must be possible."""
        self._found = None
        members = [row for row in self._kinds[kind] if row >= 0]
        for row in members:
            self._resolve(row)
        for row in np.unique(self._holders[gpus]).tolist():
            self._resolve(row)
        self._left[gpus] = self._vacant[gpus] = False
        need = self._need(kind)
        self._change(self._amounts, gpus, -need)
        self._change(self._spare, gpus, -need)
        for row in members:
            self.placed[row] = gpus

    def hold(self, domain: int, kind: int, need: int) -> None:
        """Takes as many of these GPUs as there are."""
        while need and not self.take(domain, kind, need):
            need -= 1

    def can_take(self, kind: int, gpus: Ints) -> bool:
        """Whether these GPUs, and what they need of their nodes, are not taken."""
        return bool(self._left[gpus].all()) and self._has(self._amounts, kind, gpus)

    def _place(self, domain: int, kind: int, need: int) -> Ints | None:
        """The best place for a job or pair; None = there is none."""
        if self._found is not None and self._found[:3] == (domain, kind, need):
            return self._found[3]
        found = self._known_place(domain, kind, need)
        if found is None:
            found = self._search(domain, kind, need, self._vacant, self._spare)
        if found is None:
            key = (domain, *self._like(kind))
            if need >= self._full.get(key, need + 1):
                return None
            found = self._search(domain, kind, need, self._left, self._amounts)
            if found is None:
                self._full[key] = need
        self._found = None if found is None else (domain, kind, need, found)
        return found

    def _known_place(self, domain: int, kind: int, need: int) -> Ints | None:
        """The GPUs that the plan gave it before, or those of its lease, if they can be taken."""
        job, partner = self._kinds[kind]
        jobs = self._jobs
        held = [jobs.gpus_held(row) for row in (job, partner) if row >= 0 and jobs.lease[row] >= 0]
        for gpus in [self._limits.placed[job], *held] if job in self._limits.placed else held:
            is_here = len(gpus) == need and bool((self._domain_of[gpus] == domain).all())
            if is_here and self._may_use(kind)[gpus].all() and self.can_take(kind, gpus):
                return gpus
        return None

    def _search(self, domain: int, kind: int, need: int, gpus: Bools, amounts: Ints) -> Ints | None:
        """The best of these GPUs for a job or pair, where nodes have these amounts left; None = they do not suffice."""
        may_use = gpus & self._may_use(kind) & (self._domain_of == domain)
        avoid = nodes_to_avoid(self._jobs, self._kinds[kind][0]) if need == 1 else []
        node_of, wanted = self._pool.node_of, self._need(kind)
        for shunned in (avoid, avoid[-1:], []) if avoid else ([],):
            open_gpus = may_use & ~np.isin(node_of, shunned) if shunned else may_use
            room = within(np.bincount(node_of[open_gpus], minlength=len(amounts)), amounts, wanted)
            if room.sum() >= need:
                return self._on_fewest(np.flatnonzero(open_gpus), room, need)
        return None

    def _on_fewest(self, gpus: Ints, room: Ints, need: int) -> Ints:
        """That many of these GPUs on the fewest nodes, of which each has room (M,) for some; vacant GPUs first."""
        node_of, room = self._pool.node_of, room.copy()
        taken = []
        while need:
            enough = np.where(room >= need, room, len(self._pool.job) + 1)
            node = int(enough.argmin()) if (room >= need).any() else int(room.argmax())
            here = gpus[node_of[gpus] == node]
            here = here[np.argsort(~self._vacant[here], kind="stable")]
            taken.append(here[: min(need, int(room[node]))])
            need, room[node] = need - len(taken[-1]), 0
        return np.concatenate(taken)

    def _resolve(self, row: int) -> None:
        """Others need not spare the GPUs of a running job any longer."""
        held = self._holds.pop(row, None)
        if held is None:
            return
        self._change(self._spare, held, self._limits.needs[row])
        here = self._holders[held]
        here[here == row] = -1
        self._holders[held] = here
        self._vacant[held] = self._left[held] & (here < 0).all(axis=1)

    def _may_use(self, kind: int) -> Bools:
        job, partner = self._kinds[kind]
        return self._sets.common(job, partner)

    def _need(self, kind: int) -> Ints:
        """What a job or pair needs with each GPU, (2,)."""
        return np.asarray(self._limits.needs[[row for row in self._kinds[kind] if row >= 0]].sum(axis=0))

    def _like(self, kind: int) -> tuple[int, ...]:
        """Equal for jobs that find the same places."""
        sets = sorted(int(self._sets.of_job[row]) for row in self._kinds[kind] if row >= 0)
        return (*self._need(kind).tolist(), *sets)

    def _has(self, amounts: Ints, kind: int, gpus: Ints) -> bool:
        need, counts = self._need(kind), np.bincount(self._pool.node_of[gpus], minlength=len(amounts))
        return bool((counts[:, None] * need <= amounts)[counts > 0][:, need > 0].all())

    def _change(self, amounts: Ints, gpus: Ints, need: Ints) -> None:
        np.add.at(amounts, self._pool.node_of[gpus], need)


def node_room_for(jobs: JobTable, pool: GpuPool, sets: NodeSets, open_gpus: Bools, taken: Chosen) -> NodeRoom | None:
    """The room that is left when these jobs take theirs; None if they do not fit.

    Their places become those of the plan, and so do those of what is taken later.
    """
    assert sets.limits is not None, "only limits of nodes need this"
    room = NodeRoom(jobs, pool, sets, sets.limits, open_gpus, jobs.leased)
    for job, domain, partner, size in units(taken):
        if not room.take(domain, room.kind(job, partner), size):
            return None
    sets.limits.placed |= room.placed
    room.placed = sets.limits.placed
    return room


Unit = tuple[int, int, int, int]  # a job, the domain of its GPUs, its partner, how many GPUs


def units(chosen: Chosen) -> list[Unit]:
    """Jobs and pairs in order; a pair takes its GPUs once."""
    rows = zip(*(column.tolist() for column in chosen), strict=True)
    return [(job, domain, partner, size) for job, domain, partner, size in rows if partner < 0 or job < partner]


def node_keepers(
    jobs: JobTable, pool: GpuPool, sets: NodeSets, open_gpus: Bools, chosen: Chosen, same: Ints, firm: Ints
) -> Ints:
    """As `node_sets.keepers`; the GPUs of the others are `NodeLimits.granted` then."""
    limits = sets.limits
    assert limits is not None, "only limits of nodes need this"
    is_same, is_firm = jobs.marks(same), jobs.marks(firm)
    order = units(chosen)
    stay = [unit for unit in order if is_same[unit[0]] or (unit[2] >= 0 and is_same[unit[2]])]
    held = {job: jobs.gpus_held(job if is_same[job] else partner) for job, _, partner, _ in stay}
    need = limits.needs.sum(axis=1)
    rest = [unit for unit in order if unit not in stay]
    rest.sort(key=lambda unit: (-unit[3], -int(need[unit[0]])))
    fixed = {job: gpus for job, gpus in held.items() if is_firm[job]}
    for first, then in ((stay, rest), ([unit for unit in order if unit[0] in fixed], order), ([], order)):
        found = _all_placed(jobs, pool, sets, open_gpus, first, then, held)
        if found is not None:
            break
    assert found is not None, "a plan has jobs that do not fit on their nodes"
    limits.granted = found
    return same[[np.array_equal(np.sort(found[row]), np.sort(jobs.gpus_held(row))) for row in same.tolist()]]


def _all_placed(
    jobs: JobTable,
    pool: GpuPool,
    sets: NodeSets,
    open_gpus: Bools,
    first: Sequence[Unit],
    then: Sequence[Unit],
    held: dict[int, Ints],
) -> dict[int, Ints] | None:
    """The GPUs of these jobs and pairs, the first on those of their leases; None if not all fit."""
    assert sets.limits is not None, "only limits of nodes need this"
    room = NodeRoom(jobs, pool, sets, sets.limits, open_gpus, np.array([], dtype=np.int64))
    for job, _, partner, _ in first:
        kind = room.kind(job, partner)
        if not room.can_take(kind, held[job]):
            return None
        room.take_these(kind, held[job])
    for job, domain, partner, size in then:
        if job not in room.placed and not room.take(domain, room.kind(job, partner), size):
            return None
    return room.placed
