"""Node sets: the nodes that each job may use, and whether jobs fit on their nodes together.

Theory of operation. The owner of a job can choose the nodes that it may run on (`nodes`) and those that it may not
(`exclude`). A reservation for users divides the cluster while it is in force: its jobs may use its nodes only, and all
other jobs the other nodes (see `windows`). `node_sets` turns that into sets of GPUs: one for each distinct choice in
each part, and set 0, all GPUs, for all other jobs. While no unfinished job has a choice, and no reservation for users
is in force, there are no sets, and plans count GPUs by domain only.

A job that needs a feature, such as a container image, may not use nodes with an agent that is too old for it: such an
agent would ignore the field and run the job without it. A job that already has a lease there keeps it.

With sets, counts are not enough: a job that may use n1 or n2 and one that may use n2 or n3 compete for n2 only if n1
and n3 are full. GPUs of a domain that belong to the same sets are a *group*; `Room` has the number of free GPUs in each
group, and how many of them the jobs of each set take. A job fits if and only if the GPUs taken by others can be moved
between groups of their own sets until enough are free in its groups: an augmenting path of a maximum flow from sets to
groups. Gangs may be split over nodes, so this is exact, and its cost depends on the numbers of sets and groups, not on
those of jobs and GPUs.

So a plan knows that all its jobs fit before it chooses their GPUs. Running jobs then keep theirs, as far as the others
still fit (`keepers`); a job that must leave its GPUs to one with fewer nodes moves to others in the same plan. New jobs
get GPUs one after another, each so that the rest still fits (`Room.pin`).

Source: L. R. Ford and D. R. Fulkerson, Maximal flow through a network (1956).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.node_resources import NodeLimits
from gavelpy.mechanism.node_room import AnyRoom, node_keepers, node_room_for
from gavelpy.model.arrays import Bools, Ints
from gavelpy.model.job import JobSpec

if TYPE_CHECKING:
    from gavelpy.mechanism.taking import Chosen

ALL_GPUS = 0
_OUTSIDE = -1
_Change = tuple[int, int, int]  # a kind, or _OUTSIDE for free GPUs; a group; how many were added


class NodeSets:
    """The sets of GPUs that jobs may use."""

    def __init__(self, of_job: Ints, gpus: Bools) -> None:
        self.of_job = of_job  # (N,) row of each job's set
        self.gpus = gpus  # (S, G); row ALL_GPUS is true everywhere
        self.limits: NodeLimits | None = None  # where other resources of nodes than GPUs limit jobs; see node_room

    @classmethod
    def unlimited(cls, job_count: int, gpu_count: int) -> NodeSets:
        """All jobs may use all GPUs."""
        return cls(np.zeros(job_count, dtype=np.int64), np.ones((1, gpu_count), dtype=np.bool_))

    def of(self, row: int) -> Bools:
        """The GPUs that a job may use, (G,)."""
        found: Bools = self.gpus[self.of_job[row]]
        return found

    def common(self, row: int, partner: int) -> Bools:
        """The GPUs that a job and its partner (-1 = none) may both use, (G,)."""
        return self.of(row) & self.of(partner) if partner >= 0 else self.of(row)

    def contain(self, gpus: Ints, row: int, partner: int) -> bool:
        """Whether a job and its partner (-1 = none) may use all these GPUs."""
        return bool(self.common(row, partner)[gpus].all())

    def without(self, rows: Bools, gpus: Bools) -> NodeSets:
        """These sets, where jobs in `rows` (N,) may not use `gpus` (G,) either."""
        keys, of_job = np.unique(np.where(rows, self.of_job, self.of_job + len(self.gpus)), return_inverse=True)
        S = len(self.gpus)
        found = [self.gpus[key] & ~gpus if key < S else self.gpus[key - S] for key in keys.tolist()]
        return NodeSets(*_distinct(of_job + 1, np.array([self.gpus[ALL_GPUS], *found])))


def node_sets(jobs: JobTable, pool: GpuPool) -> NodeSets | None:
    """The sets that unfinished jobs may use now; None if they are not limited."""
    is_divided = pool.is_divided or any(jobs.part[row] < 0 <= jobs.lease[row] for row in jobs.booked)
    needing = jobs.featured if pool.any_lacking else {}
    if not jobs.limited and not is_divided and not needing:
        return None
    known: dict[object, int] = {}
    masks: list[Bools] = [np.ones(len(pool.node_ids), dtype=np.bool_)]
    of_job = np.zeros(jobs.count, dtype=np.int64)
    if is_divided:
        parts, rows = np.unique(jobs.part[: jobs.count], return_inverse=True)
        masks += [np.array(pool.node_part) == part for part in parts.tolist()]
        of_job = rows.ravel() + 1
    lacking_of = cache(lambda needed: _rows_lacking(pool, needed))  # few jobs differ in what they need
    for row in sorted({*jobs.limited, *needing}):
        spec = jobs.specs[row]
        lacking = lacking_of(needing.get(row, ()))
        if lacking and jobs.lease[row] >= 0:  # it stays where it already runs
            held = pool.node_of[jobs.gpus_held(row)].tolist()
            lacking = tuple(node for node in lacking if node not in held)
        if not (spec.nodes or spec.exclude or lacking):
            continue
        key = (spec.nodes, spec.exclude, lacking, int(of_job[row]))
        if key not in known:
            known[key] = len(masks)
            masks.append(_mask(pool, spec.nodes, spec.exclude, lacking) & masks[of_job[row]])
        of_job[row] = known[key]
    if len(masks) == 1:
        return None
    return NodeSets(*_distinct(of_job, np.array(masks)[:, pool.node_of]))


def nodes_lacking(pool: GpuPool, spec: JobSpec) -> tuple[int, ...]:
    """Rows of the nodes with agents that lack a feature that a job needs."""
    return _rows_lacking(pool, spec.features)


def _rows_lacking(pool: GpuPool, needed: tuple[str, ...]) -> tuple[int, ...]:
    features = frozenset(needed)
    if not features:
        return ()
    return tuple(row for row, lacks in enumerate(pool.node_lacks) if not features.isdisjoint(lacks))


def _mask(pool: GpuPool, nodes: tuple[str, ...], exclude: tuple[str, ...], lacking: tuple[int, ...]) -> Bools:
    """Whether each node is among `nodes` (empty = all are) and not in `exclude` or `lacking`."""
    named, excluded = frozenset(nodes), frozenset(exclude)
    mask = np.array([(not named or node in named) and node not in excluded for node in pool.node_ids], dtype=np.bool_)
    mask[list(lacking)] = False
    return mask


def _distinct(of_job: Ints, gpus: Bools) -> tuple[Ints, Bools]:
    """The same sets, each once, in order of first appearance."""
    rows: dict[bytes, int] = {}
    first: list[int] = []
    row_of = np.empty(len(gpus), dtype=np.int64)
    for index, one in enumerate(gpus):
        row_of[index] = row = rows.setdefault(one.tobytes(), len(rows))
        if row == len(first):
            first.append(index)
    return row_of[of_job], gpus[first]


class Room:
    """Free GPUs of a plan by group, and how many of them the jobs of each kind take.

    A *kind* is the set of a job, or what the sets of a pair have in common.
    """

    def __init__(self, pool: GpuPool, sets: NodeSets, open_gpus: Bools) -> None:
        rows = np.flatnonzero(open_gpus)
        keys = np.vstack([pool.domain_of[rows], sets.gpus[:, rows]])
        groups, of_row = np.unique(keys, axis=1, return_inverse=True)
        self.group_of: Ints = np.full(len(pool.job), _OUTSIDE)  # (G,)
        self.group_of[rows] = of_row.ravel()
        self._sets = sets
        self._domain: list[int] = groups[0].tolist()
        self._member = groups[1:].astype(np.bool_)  # (S, H)
        self._free: list[int] = np.bincount(of_row.ravel(), minlength=groups.shape[1]).tolist()
        self._kinds: dict[tuple[int, int], int] = {}
        self._groups: list[dict[int, list[int]]] = []  # by kind: the groups of each domain
        self._used: list[dict[int, int]] = []  # by kind: GPUs taken of each group
        self._full: dict[tuple[int, int], int] = {}  # by domain and kind: fewest GPUs that did not fit; no more do
        self._changes: list[_Change] = []  # since the last call began

    def kind(self, job: int, partner: int = -1) -> int:
        """The kind of a job, or of a pair."""
        one = int(self._sets.of_job[job])
        other = int(self._sets.of_job[partner]) if partner >= 0 else one
        key = (min(one, other), max(one, other))
        if key not in self._kinds:
            by_domain: dict[int, list[int]] = {}
            for group in np.flatnonzero(self._member[one] & self._member[other]).tolist():
                by_domain.setdefault(self._domain[group], []).append(group)
            self._kinds[key] = len(self._groups)
            self._groups.append(by_domain)
            self._used.append({})
        return self._kinds[key]

    def fits(self, domain: int, kind: int, need: int, behind: tuple[int, int] | None = None) -> bool:
        """Whether that many more GPUs can be taken. `behind`: a kind and a number that others may not reduce."""
        if need >= self._full.get((domain, kind), math.inf):
            return False
        self._changes = []
        if behind is not None:
            self._add(domain, *behind)
        found = self._add(domain, kind, need) == need
        self._undo()
        if not found and behind is None:
            self._full[domain, kind] = need
        return found

    def take(self, domain: int, kind: int, need: int) -> bool:
        """Takes that many GPUs, or none; returns whether it did."""
        self._changes = []
        if self._add(domain, kind, need) == need:
            return True
        self._undo()
        return False

    def hold(self, domain: int, kind: int, need: int) -> None:
        """Takes as many of these GPUs as there are."""
        self._changes = []
        self._add(domain, kind, need)

    def counts(self, gpus: Ints) -> dict[int, int]:
        """How many of these GPUs are in each group."""
        groups, counts = np.unique(self.group_of[gpus], return_counts=True)
        return dict(zip(groups.tolist(), counts.tolist(), strict=True))

    def pin(self, domain: int, kind: int, counts: Mapping[int, int]) -> bool:
        """Fixes the groups of a job that has taken as many GPUs; false, and no change, if others would not fit."""
        if not counts.keys() <= set(self._groups[kind].get(domain, ())):
            return False
        self._changes = []
        for group, count in counts.items():
            already = min(self._used[kind].get(group, 0), count)
            self._use(kind, group, -already)
            if not all(self._swapped(domain, kind, group) for _ in range(count - already)):
                self._undo()
                return False
        return True

    def quota(self, domain: int, kind: int, need: int) -> dict[int, int]:
        """Groups in which a job that has taken that many GPUs can always be fixed."""
        found: dict[int, int] = {}
        for group in self._groups[kind][domain]:
            if count := min(self._used[kind].get(group, 0), need - sum(found.values())):
                found[group] = count
        return found

    def _swapped(self, domain: int, kind: int, group: int) -> bool:
        """Fixes one GPU of a group for this kind, which gives up one elsewhere; false if the others do not fit then."""
        source = next(one for one, used in self._used[kind].items() if used and one != group)
        self._use(kind, source, -1)
        self._use(_OUTSIDE, source, 1)
        if self._free[group]:
            self._use(_OUTSIDE, group, -1)
            return True
        other = next((one for one, used in enumerate(self._used) if used.get(group)), None)
        if other is None:
            return False
        self._use(other, group, -1)
        return self._add(domain, other, 1) == 1

    def _add(self, domain: int, kind: int, need: int) -> int:
        """Takes up to that many GPUs; returns how many."""
        missing = need
        while missing:
            path = self._path(domain, kind)
            if not path:
                break
            end = path[0][0]
            count = min([missing, self._free[end], *(self._used[k][start] for _, k, start in path if start >= 0)])
            self._use(_OUTSIDE, end, -count)
            for group, mover, start in path:
                self._use(mover, group, count)
                if start >= 0:
                    self._use(mover, start, -count)
            missing -= count
        return need - missing

    def _path(self, domain: int, kind: int) -> list[tuple[int, int, int]]:
        """Moves (to a group, of a kind, from a group or _OUTSIDE), the one to free GPUs first; empty = there are none.

        After them one of the groups of `kind` has room.
        """
        queue = list(self._groups[kind].get(domain, ()))
        for group in queue:
            if self._free[group]:
                return [(group, kind, _OUTSIDE)]
        came = dict.fromkeys(queue, (kind, _OUTSIDE))
        others = [other for other in range(len(self._used)) if other != kind]  # all their groups are reached at once
        for group in queue:
            for other in [other for other in others if self._used[other].get(group)]:
                others.remove(other)
                for further in self._groups[other].get(domain, ()):
                    if further not in came:
                        came[further] = (other, group)
                        queue.append(further)
                        if self._free[further]:
                            return _way(came, further)
        return []

    def _use(self, kind: int, group: int, count: int) -> None:
        if kind == _OUTSIDE:
            self._free[group] += count
        else:
            self._used[kind][group] = self._used[kind].get(group, 0) + count
        self._changes.append((kind, group, count))

    def _undo(self) -> None:
        changes, self._changes = self._changes, []
        for kind, group, count in changes:
            self._use(kind, group, -count)
        self._changes = []


def _way(came: Mapping[int, tuple[int, int]], end: int) -> list[tuple[int, int, int]]:
    """The moves that lead to this group, the last one first."""
    moves, at = [], end
    while at != _OUTSIDE:
        moves.append((at, *came[at]))
        at = came[at][1]
    return moves


def room_for(jobs: JobTable, pool: GpuPool, sets: NodeSets, open_gpus: Bools, taken: Chosen) -> AnyRoom | None:
    """The room that is left of these GPUs (G,) when these jobs take theirs; None if they do not fit."""
    if sets.limits is not None:
        return node_room_for(jobs, pool, sets, open_gpus, taken)
    return _room_for(pool, sets, open_gpus, taken)


def _room_for(pool: GpuPool, sets: NodeSets, open_gpus: Bools, taken: Chosen) -> Room | None:
    room = Room(pool, sets, open_gpus)
    for job, domain, partner, gpus in zip(*(column.tolist() for column in taken), strict=True):
        if partner < job and partner >= 0:  # a pair takes its GPUs once
            continue
        if not room.take(domain, room.kind(job, partner), gpus):
            return None
    return room


def keepers(
    jobs: JobTable, pool: GpuPool, sets: NodeSets, open_gpus: Bools, chosen: Chosen, same: Ints, firm: Ints
) -> Ints:
    """Those of the jobs `same` (K,) that keep their GPUs while all chosen jobs get some; serials, ascending.

    Jobs of `firm` keep theirs if that is possible at all. `open_gpus` (G,): all that chosen jobs may use.
    """
    if sets.limits is not None:
        return node_keepers(jobs, pool, sets, open_gpus, chosen, same, firm)
    is_same, is_firm = jobs.marks(same), jobs.marks(firm)
    units = _units(chosen, is_same)
    fixed = [unit for unit in units if unit.keeper >= 0 and is_firm[unit.keeper]]
    taken = np.zeros(len(pool.job), dtype=np.bool_)
    for unit in fixed:
        taken[jobs.gpus_held(unit.keeper)] = True
    is_fixed = jobs.marks(np.array([unit.job for unit in fixed], dtype=np.int64))
    is_open = ~is_fixed[np.where((chosen.partner >= 0) & (chosen.partner < chosen.jobs), chosen.partner, chosen.jobs)]
    others = type(chosen)(*(column[is_open] for column in chosen))
    room = _room_for(pool, sets, open_gpus & ~taken, others)
    if room is None:  # jobs of other priority classes need some of these GPUs
        units.sort(key=lambda unit: unit not in fixed)
        fixed, room = [], _room_for(pool, sets, open_gpus, chosen)
    assert room is not None, "a plan has jobs that do not fit on their nodes"
    kept = list(fixed)
    for unit in units:
        if unit.keeper < 0 or unit in fixed:
            continue
        if room.pin(unit.domain, room.kind(unit.job, unit.partner), room.counts(jobs.gpus_held(unit.keeper))):
            kept.append(unit)
    stays = jobs.marks(np.array([row for unit in kept for row in (unit.job, unit.partner) if row >= 0], dtype=np.int64))
    return same[stays[same]]


class _Unit(NamedTuple):
    """A chosen job or pair."""

    job: int  # of a pair the smaller serial
    partner: int
    domain: int
    keeper: int  # the job whose GPUs it keeps if it stays, or -1


def _units(chosen: Chosen, is_same: Bools) -> list[_Unit]:
    found = []
    for job, domain, partner, _ in zip(*(column.tolist() for column in chosen), strict=True):
        if partner < 0 or job < partner:
            keeper = next((row for row in (job, partner) if row >= 0 and is_same[row]), -1)
            found.append(_Unit(job, partner, domain, keeper))
    return sorted(found)
