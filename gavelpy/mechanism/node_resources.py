"""CPU cores and memory of nodes: what jobs need with each GPU, what nodes have, and what leases leave of it.

Amounts are whole thousandths, so that sums are exact. A job needs so much with each of its GPUs, on the node of that
GPU; one that declares nothing needs nothing. A node that reports no amount of a resource limits no job by it.

If every job needs at most as much per GPU as each node has for each of its GPUs, the GPUs of a node are full before
anything else is. Then plans count GPUs only (`limits_of` is None), as where no job declares anything. Otherwise the
policy's problem has a row for each resource and type (`rows_of`), and plans choose the nodes of each job while they
select it: see `node_room`.

A lease that is being stopped counts no more, like its GPUs: the agent starts a new lease when those that are ending
leave enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gavelpy.mechanism import sizes
from gavelpy.mechanism.gpus import NONE, GpuPool
from gavelpy.model.arrays import Bools, Ints
from gavelpy.model.configurations import THOUSANDTHS
from gavelpy.model.job import JobSpec, NodeId

if TYPE_CHECKING:
    from gavelpy.mechanism.jobs import JobTable

RESOURCES = ("cpus", "memory_gib")
NO_NEEDS = (0, 0)
_FEW = 8  # jobs whose needs are looked up one by one
NOT_KNOWN = 2**60  # of a node that reports nothing: more than all jobs can need


def needs_of(spec: JobSpec) -> tuple[int, int] | None:
    """What a job needs with each GPU; None if it declares nothing."""
    if not (spec.cpus_per_gpu or spec.memory_gib_per_gpu):
        return None
    return amounts_of(spec.cpus_per_gpu, spec.memory_gib_per_gpu)


def amounts_of(cpus: float, memory_gib: float) -> tuple[int, int]:
    """Amounts in thousandths."""
    return round(cpus * THOUSANDTHS), round(memory_gib * THOUSANDTHS)


def set_amounts(pool: GpuPool, node_id: NodeId, cpus: float, memory_gib: float) -> None:
    """Sets what a node has; 0 = not known."""
    pool.node_amounts[pool.node_row[node_id]] = amounts_of(cpus, memory_gib)
    pool.any_amounts = any(amounts != NO_NEEDS for amounts in pool.node_amounts)


class NodeLimits:
    """What jobs need and nodes have, and the GPUs that a plan gives to its jobs so far."""

    def __init__(self, jobs: JobTable, amounts: Ints) -> None:
        self._jobs = jobs
        self.amounts = amounts  # (M, 2) of each node
        self.placed: dict[int, Ints] = {}  # GPUs of jobs that the plan has selected
        self.granted: dict[int, Ints] = {}  # of those that get new leases

    @cached_property
    def needs(self) -> Ints:
        """What each job needs with each GPU, (N, 2)."""
        return all_needs(self._jobs)

    def needs_of(self, rows: Ints) -> Ints:
        """The same of these jobs, (K, 2); cheap for a few."""
        if len(rows) > _FEW:
            return np.asarray(self.needs[rows])
        return np.array([self._jobs.needs.get(row, NO_NEEDS) for row in rows.tolist()], dtype=np.int64).reshape(-1, 2)

    def used(self, pool: GpuPool, gpus: Bools) -> Ints:
        """What the leases on these GPUs (G,) use of each node, (M, 2)."""
        held, holders = pool.holdings(gpus)
        found = np.zeros_like(self.amounts)
        if len(held):
            np.add.at(found, pool.node_of[held], self.needs[holders])
        return found

    def left(self, pool: GpuPool, open_gpus: Bools) -> Ints:
        """What each node has for leases on these GPUs (G,), without what leases on its others use, (M, 2)."""
        return np.asarray(np.maximum(self.amounts - self.used(pool, ~open_gpus), 0))

    def usable(self, pool: GpuPool, gpus: Bools, left: Ints, need: Ints) -> Ints:
        """How many of these GPUs (G,) of each node a job with this need (2,) can use together, (M,)."""
        return within(np.bincount(pool.node_of[gpus], minlength=len(left)), left, need)


def within(counts: Ints, left: Ints, need: Ints) -> Ints:
    """How many of so many GPUs of each node (M,) a job with this need (2,) can use, by what the nodes have left."""
    for r in np.flatnonzero(need).tolist():
        counts = np.minimum(counts, np.maximum(left[:, r], 0) // need[r])
    return counts


def all_needs(jobs: JobTable) -> Ints:
    """What each job needs with each GPU, (N, 2)."""
    needs = np.zeros((jobs.count, len(RESOURCES)), dtype=np.int64)
    if jobs.needs:
        needs[list(jobs.needs)] = list(jobs.needs.values())
    return needs


def limits_of(jobs: JobTable, pool: GpuPool) -> NodeLimits | None:
    """What nodes have and jobs need; None if GPUs are always full first."""
    if not jobs.needs or not pool.any_amounts:
        return None
    amounts = np.array(pool.node_amounts, dtype=np.int64)
    amounts[amounts == 0] = NOT_KNOWN
    most = np.array(list(set(jobs.needs.values()))).max(axis=0) * (2 if (jobs.claims.second >= 0).any() else 1)
    counts = np.bincount(pool.node_of[pool.present], minlength=len(amounts))
    if (counts[:, None] * most <= amounts).all():
        return None
    return NodeLimits(jobs, amounts)


def node_domains(pool: GpuPool) -> Ints:
    """The checkpoint domain of each node, (M,)."""
    found = np.zeros(len(pool.node_ids), dtype=np.int64)
    found[pool.node_of] = pool.domain_of
    return found


class ResourceRows(NamedTuple):
    """The resources of a problem next to GPUs, R - 1 of them."""

    names: tuple[str, ...]
    capacity: Ints  # (T, R - 1) thousandths
    demand: Ints  # (J, R - 1)


def rows_of(jobs: JobTable, pool: GpuPool, rows: Ints, open_gpus: Bools | None) -> ResourceRows | None:
    """The resources that these jobs declare, for a problem of these GPUs (G,; None = all usable); None if they do not.

    A node that reports nothing has enough for the job that needs most on each of its GPUs.
    """
    if not jobs.needs or not pool.any_amounts or not any(row in jobs.needs for row in rows.tolist()):
        return None
    needs = all_needs(jobs)
    columns = np.flatnonzero(needs[rows].any(axis=0))
    return ResourceRows(
        tuple(RESOURCES[r] for r in columns.tolist()),
        capacity_of(jobs, pool, rows, pool.usable if open_gpus is None else open_gpus)[:, columns],
        (needs[rows] * sizes.requested(jobs, rows)[0][:, None])[:, columns],
    )


def capacity_of(jobs: JobTable, pool: GpuPool, rows: Ints, gpus: Bools) -> Ints:
    """What the nodes of these GPUs (G,) have of each resource for leases on them, by type, (T, 2)."""
    needs = all_needs(jobs)
    amounts = np.array(pool.node_amounts, dtype=np.int64)
    counts = np.bincount(pool.node_of[gpus], minlength=len(amounts))
    held, holders = pool.holdings(~gpus)
    np.add.at(amounts, pool.node_of[held], np.where(amounts[pool.node_of[held]] > 0, -needs[holders], 0))
    known = np.array(pool.node_amounts, dtype=np.int64) > 0
    enough = counts[:, None] * needs[rows].max(axis=0, initial=0) * 2  # also for pairs
    amounts = np.where(known, np.maximum(amounts, 0), enough)
    found = np.zeros((len(pool.gpu_types), len(RESOURCES)), dtype=np.int64)
    is_open = counts > 0
    np.add.at(found, np.array(pool.node_type, dtype=np.int64)[is_open], amounts[is_open])
    return found


def free_amounts(jobs: JobTable, pool: GpuPool) -> Ints:
    """What leases leave of each node, (M, 2), in thousandths; meaningless where a node reports nothing."""
    amounts = np.array(pool.node_amounts, dtype=np.int64).reshape(-1, len(RESOURCES))
    held, holders = pool.holdings(pool.job != NONE)
    np.subtract.at(amounts, pool.node_of[held], all_needs(jobs)[holders])
    return amounts


def strained(jobs: JobTable, pool: GpuPool) -> set[int]:
    """Rows of the nodes where leases use more than the node has, as it has reported less since they began."""
    if not jobs.needs or not pool.any_amounts:
        return set()
    is_known = np.array(pool.node_amounts, dtype=np.int64) > 0
    return set(np.flatnonzero((is_known & (free_amounts(jobs, pool) < 0)).any(axis=1)).tolist())


def in_words(need: Sequence[int] | Ints, many: str = " per GPU") -> str:
    """An amount of each resource, as "16 CPU cores and 64 GiB of memory per GPU", without those of 0."""
    cores, gib = (amount / THOUSANDTHS for amount in need)
    parts = [f"{cores:g} CPU core{'' if cores == 1 else 's'}"] if cores else []
    parts += [f"{gib:g} GiB of memory"] if gib else []
    return f"{' and '.join(parts)}{many}" if parts else "nothing"


def why_too_small(jobs: JobTable, pool: GpuPool, row: int, gpus: Bools) -> str:
    """That the nodes with these GPUs (G,) have enough GPUs for a job, but too little else; empty = it is not so."""
    if row not in jobs.needs or (limits := limits_of(jobs, pool)) is None:
        return ""
    size, need = int(jobs.gpus[row]), limits.needs[row]
    gpus = gpus & (jobs.rate[row, pool.type_of] != 0)
    room = limits.usable(pool, gpus, limits.amounts, need)
    types, counts = np.array(pool.node_type, dtype=np.int64), pool.type_counts(gpus)
    most = np.bincount(types, weights=room, minlength=len(counts)).astype(np.int64)
    if (most >= size).any() or not (counts >= size).any():
        return ""
    asks = f"needs {in_words(need)}" + (f" on {size} GPUs of one type" if size > 1 else "")
    names = " or ".join(name for name, count in zip(pool.gpu_types, counts.tolist(), strict=True) if count >= size)
    if most.any():
        return f"{asks}; {names} nodes have that for {most[counts >= size].max()} GPUs"
    known = limits.amounts[np.unique(pool.node_of[gpus])]
    largest = np.where((known >= need).all(axis=0), 0, np.where(need > 0, known, 0).max(axis=0))
    short = np.where((known >= need).any(axis=0), 0, largest)
    has = f"more than {in_words(short, '')}" if short.any() else "both" if (need > 0).all() else "as much"
    return f"{asks}; no {names} node has {has} for jobs"


def why_no_room(jobs: JobTable, pool: GpuPool, row: int, gpus: Bools) -> str:
    """That these free GPUs (G,) suffice for a waiting job, but not what their nodes have left; empty = it is not so."""
    if row not in jobs.needs or (limits := limits_of(jobs, pool)) is None:
        return ""
    size, need = int(jobs.gpus[row]), limits.needs[row]
    gpus = gpus & (jobs.rate[row, pool.type_of] > 0)
    left = limits.left(pool, gpus)
    room = limits.usable(pool, gpus, left, need)
    counts, domains = pool.domain_counts(gpus), node_domains(pool)
    most = np.bincount(domains, weights=room, minlength=len(counts))
    if (most >= size).any() or not (counts >= size).any():
        return ""
    nodes = np.unique(pool.node_of[gpus])
    free = ", ".join(f"{pool.node_ids[node]} has {_in_words(left[node], need)} left" for node in nodes[:3].tolist())
    more = f" and {len(nodes) - 3} more nodes too little" if len(nodes) > 3 else ""
    asks = f"{size} GPUs" if size > 1 else "1 GPU"
    return f"waits for {in_words(need)}: {asks} would be free, but {free}{more}"


def _in_words(left: Ints, need: Ints) -> str:
    """What is left of each resource that is needed, as "0 CPU cores", without what a node does not report."""
    cores, gib = (amount / THOUSANDTHS for amount in left.tolist())
    parts = [f"{cores:g} CPU core{'' if cores == 1 else 's'}"] if need[0] > 0 and left[0] <= NOT_KNOWN // 2 else []
    parts += [f"{gib:g} GiB of memory"] if need[1] > 0 and left[1] <= NOT_KNOWN // 2 else []
    return " and ".join(parts)
