"""Priority classes of jobs: their order, which may preempt which, and the GPUs that a class cannot take back.

The operator names a few classes. A class with a larger value comes first: its jobs are chosen before those of lower
classes, and the policy divides among the jobs of a class what the classes above it leave. A class takes back GPUs only
from the lower classes that its `preempts` names. The leases of other lower classes are *kept*: their GPUs are not in
the class's part of the policy's problem, nor in the GPUs that a plan may give it. While a job of a higher class waits
for GPUs that are kept from it, the lower classes there may replace their jobs by each other as before, but hold no more
GPUs than they do: each GPU that becomes free goes to the higher class (see `class_planning`).

Jobs without a class have the class `normal`, which always exists. Without configuration all jobs have it, and nothing
in this module changes a decision. A job whose class is not configured any more counts as `normal`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.mechanism import sizes
from gavelpy.mechanism.commands import Tier
from gavelpy.mechanism.domains import can_run, max_gang
from gavelpy.mechanism.gpus import NONE, GpuPool
from gavelpy.mechanism.jobs import JobTable
from gavelpy.model.arrays import Bools, Ints
from gavelpy.model.job import JobSpec

if TYPE_CHECKING:
    from gavelpy.mechanism.settings import MechanismSettings

NORMAL = "normal"
VALUE_MAX = 1_000_000_000
CLASSES_MAX = 32
NONE_KEPT: Ints = np.zeros((0, 0), dtype=np.int64)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class PriorityClass:
    """A class of jobs. Values of classes differ; the largest comes first."""

    name: str
    value: int = 0
    preempts: tuple[str, ...] = ()  # lower classes whose leases it may take back
    owners: tuple[str, ...] = ()  # who may submit jobs of this class; empty = all
    respect_lease_min: bool = False  # a lease that `lease_min_s` protects is not taken back by this class either

    def is_open_to(self, owner: str) -> bool:
        """Whether this owner may submit jobs of the class."""
        return not self.owners or owner in self.owners


@dataclass(frozen=True, eq=False)
class Ranking:
    """The classes in order, the highest first; a job's rank is the position of its class."""

    classes: tuple[PriorityClass, ...]  # C
    may_preempt: Bools  # (C, C) whether the row's class takes back leases of the column's
    is_kept: Bools  # (C, C) whether the column's class is lower, and the row's may not take back its leases

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(one.name for one in self.classes)

    def rank(self, name: str) -> int:
        """The position of a class; that of `normal` if it is empty or not configured."""
        names = self.names
        return names.index(name if name in names else NORMAL)


@lru_cache(maxsize=64)
def ranking(classes: tuple[PriorityClass, ...]) -> Ranking:
    """The order of these classes and of `normal`; they must be valid."""
    ordered = _ordered(classes)
    may_preempt = np.array([[lower.name in one.preempts for lower in ordered] for one in ordered], dtype=np.bool_)
    is_lower = np.triu(np.ones_like(may_preempt), 1)
    return Ranking(ordered, may_preempt & is_lower, is_lower & ~may_preempt)


def _ordered(classes: Sequence[PriorityClass]) -> tuple[PriorityClass, ...]:
    found = list(classes)
    if all(one.name != NORMAL for one in found):
        found.append(PriorityClass(NORMAL))
    return tuple(sorted(found, key=lambda one: -one.value))


def check_classes(classes: Sequence[PriorityClass]) -> None:
    """Raises InvalidInput, which names class and field, unless these classes have an order and preempt lower ones."""
    if len(classes) > CLASSES_MAX:
        raise InvalidInput(f"priorities must be at most {CLASSES_MAX} classes, got {len(classes)}")
    by_value: dict[int, str] = {}
    by_name: dict[str, PriorityClass] = {}
    for one in _ordered(classes):
        where = f"priorities.{one.name}"
        if not _NAME.fullmatch(one.name):
            allowed = "named by 1 to 63 letters, digits, '.', '_' and '-'"
            raise InvalidInput(f"priorities must be {allowed}, got {one.name[:80]!r}")
        if one.name in by_name:
            raise InvalidInput(f"priorities must have each name once, got {one.name!r} twice")
        if not -VALUE_MAX <= one.value <= VALUE_MAX:
            raise InvalidInput(f"{where}.value must be in [-{VALUE_MAX}, {VALUE_MAX}], got {one.value}")
        if one.value in by_value:
            raise InvalidInput(f"{where}.value must differ from that of {by_value[one.value]!r}, got {one.value}")
        if not all(owner and owner.isprintable() for owner in one.owners):
            raise InvalidInput(f"{where}.owners must be names of users, got {list(one.owners)!r}")
        by_value[one.value], by_name[one.name] = one.name, one
    for one in by_name.values():
        lower = [other.name for other in by_name.values() if other.value < one.value]
        if wrong := [name for name in one.preempts if name not in lower]:
            allowed = f"lower classes ({', '.join(lower)})" if lower else "empty, as no class is lower"
            raise InvalidInput(f"priorities.{one.name}.preempts must be {allowed}, got {wrong[0]!r}")


def check_known(specs: Iterable[JobSpec], settings: MechanismSettings, owner: str | None = None) -> None:
    """Raises InvalidInput for a job of a class that does not exist or, if an owner is given, is not open to them."""
    for name in sorted({spec.priority for spec in specs}):
        check_class(name, settings, owner)


def check_class(name: str, settings: MechanismSettings, owner: str | None = None) -> None:
    """Raises InvalidInput for a class (empty = the default) that does not exist or is not open to an owner."""
    classes = ranking(settings.priorities).classes
    allowed = [one.name for one in classes if owner is None or one.is_open_to(owner)]
    if (name or NORMAL) not in allowed:
        who = "" if owner is None else f", which {owner!r} may use"
        of = f"one of {', '.join(allowed)}{who}" if allowed else f"given: no class is open to {owner!r}"
        raise InvalidInput(f"priority must be {of}, got {name or NORMAL!r}")


def is_ranked(settings: MechanismSettings) -> bool:
    """Whether there are several classes."""
    return bool(settings.priorities) and len(ranking(settings.priorities).classes) > 1


def rank_jobs(jobs: JobTable, settings: MechanismSettings, first: int = 0) -> None:
    """Sets the ranks of all jobs from this serial on."""
    if not settings.priorities:
        jobs.rank[first : jobs.count] = 0
        return
    order = ranking(settings.priorities)
    known = {name: order.rank(name) for name in {spec.priority for spec in jobs.specs[first:]}}
    jobs.rank[first : jobs.count] = [known[spec.priority] for spec in jobs.specs[first:]]


def class_of(jobs: JobTable, settings: MechanismSettings, row: int) -> str:
    """Name of the class that a job counts as."""
    return ranking(settings.priorities).names[int(jobs.rank[row])]


def in_words(jobs: JobTable, settings: MechanismSettings, row: int) -> str:
    """`job 7 of class high`."""
    return f"job {jobs.ids.serial(row)} of class {class_of(jobs, settings, row)}"


def held_by_class(jobs: JobTable, pool: GpuPool, settings: MechanismSettings, gpus: Bools) -> Ints:
    """How many of these GPUs (G,) are under leases of each class, by domain, (C, L)."""
    held = np.flatnonzero(gpus & (pool.job != NONE))
    counts = np.zeros((len(ranking(settings.priorities).classes), len(pool.domain_type)), dtype=np.int64)
    np.add.at(counts, (jobs.rank[pool.job[held]], pool.domain_of[held]), 1)
    return counts


def kept_gpus(jobs: JobTable, pool: GpuPool, settings: MechanismSettings, rank: int) -> Bools:
    """Whether each GPU is under a lease of a lower class that a class may not take back, (G,)."""
    held = pool.job != NONE
    return np.asarray(held & ranking(settings.priorities).is_kept[rank][jobs.rank[pool.job]])


def open_to(
    jobs: JobTable, pool: GpuPool, settings: MechanismSettings, rank: int, open_gpus: Bools | None
) -> Bools | None:
    """Those of `open_gpus` (G,; None: all usable ones) that no lease keeps from a class; None = all usable ones."""
    if not is_ranked(settings) or not ranking(settings.priorities).is_kept[rank].any():
        return open_gpus
    return np.asarray((pool.usable if open_gpus is None else open_gpus) & ~kept_gpus(jobs, pool, settings, rank))


def can_run_in_class(
    jobs: JobTable, pool: GpuPool, settings: MechanismSettings, rows: Ints, open_gpus: Bools | None
) -> Bools:
    """Whether each job could run on each type with those of `open_gpus` that are not kept from its class, (K, T)."""
    if not is_ranked(settings):
        return can_run(jobs, pool, rows, open_gpus)
    return sizes.fits(jobs, rows, max_gang_in_class(jobs, pool, settings, rows, open_gpus))


def max_gang_in_class(
    jobs: JobTable, pool: GpuPool, settings: MechanismSettings, rows: Ints, open_gpus: Bools | None
) -> Ints:
    """Largest gang that each job could run as on each type, without the GPUs that are kept from its class, (K, T)."""
    if not is_ranked(settings):
        return max_gang(jobs, pool, rows, open_gpus)
    most = np.zeros((len(rows), len(pool.gpu_types)), dtype=np.int64)
    for rank in np.unique(jobs.rank[rows]).tolist():
        mine = jobs.rank[rows] == rank
        most[mine] = max_gang(jobs, pool, rows[mine], open_to(jobs, pool, settings, rank, open_gpus))
    return most


def kept_counts(jobs: JobTable, pool: GpuPool, settings: MechanismSettings, open_gpus: Bools | None) -> Ints:
    """GPUs of each type that are kept from each class, (C, T); empty without classes."""
    if not is_ranked(settings):
        return NONE_KEPT
    is_kept = ranking(settings.priorities).is_kept.astype(np.int64)
    return np.asarray(is_kept @ _held_by_type(jobs, pool, settings, open_gpus))


def tiers(
    jobs: JobTable, pool: GpuPool, settings: MechanismSettings, rows: Ints, open_gpus: Bools | None
) -> tuple[Tier, ...]:
    """The classes of the jobs of a request, and of leases, the highest first; empty if there is one class only."""
    if not is_ranked(settings):
        return ()
    held, order = _held_by_type(jobs, pool, settings, open_gpus), ranking(settings.priorities)
    present = np.union1d(jobs.rank[rows], np.flatnonzero(held.any(axis=1))).tolist()
    if len(present) < 2:
        return ()
    return tuple(
        Tier(
            rows=np.flatnonzero(jobs.rank[rows] == rank),
            held=held[rank],
            preempts=tuple(k for k, other in enumerate(present) if order.may_preempt[rank, other]),
        )
        for rank in present
    )


def _held_by_type(jobs: JobTable, pool: GpuPool, settings: MechanismSettings, open_gpus: Bools | None) -> Ints:
    """GPUs of each type under leases of each class, (C, T)."""
    held = held_by_class(jobs, pool, settings, pool.usable if open_gpus is None else open_gpus)
    counts = np.zeros((len(held), len(pool.gpu_types)), dtype=np.int64)
    np.add.at(counts.T, pool.domain_type, held.T)
    return counts


def book_takers(jobs: JobTable, pool: GpuPool, leaving: Ints, gpus: Sequence[Ints]) -> None:
    """Books for jobs that lost their GPUs in a plan which job of a higher class got one of them."""
    for row, held in zip(leaving.tolist(), gpus, strict=True):
        holders = pool.job[held]
        takers = holders[(holders != NONE) & (jobs.rank[holders] < jobs.rank[row])]
        if len(takers) and jobs.lease[row] < 0:
            jobs.taken_by[row] = takers[np.lexsort((takers, jobs.rank[takers]))[0]]
