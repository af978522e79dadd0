"""Feasibility: whether a job can run on the cluster at all, on all its nodes and in or after all reservations."""

from __future__ import annotations

import numpy as np

from gavelpy.mechanism import node_resources, node_sets, windows
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.domains import max_gang
from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.lifecycle import NodeState
from gavelpy.model.arrays import Bools, Ints
from gavelpy.model.job import JobSpec


def cannot_run(core: SchedulerCore, rows: Ints) -> dict[int, str]:
    """Why jobs can run on no node of the cluster, drained and unreachable ones included, by serial.

    A rate that is still unknown may turn out to be positive.
    """
    jobs, pool = core.jobs, core.pool
    if not pool.gpu_types:
        return dict.fromkeys(rows.tolist(), "no node has joined the cluster yet")
    there = _most_ever(core, rows, pool.usable | may_come_back(pool))  # (K, T)
    is_usable = jobs.rate[rows] != 0  # (K, T) NaN, unknown, is
    is_stuck = ~(is_usable & (there >= jobs.gpus[rows, None])).any(axis=1)
    return {
        int(rows[k]): not_allowed(core, int(rows[k]))
        or why_not_there(core, int(rows[k]), jobs.rate[rows[k]] != 0, pool.usable | may_come_back(pool))
        or node_resources.why_too_small(jobs, pool, int(rows[k]), (pool.usable | may_come_back(pool)))
        or _why_never(core, int(rows[k]), is_usable[k], there[k])
        for k in np.flatnonzero(is_stuck)
    }


def _most_ever(core: SchedulerCore, rows: Ints, among: Bools) -> Ints:
    """Largest gang that each job could run as on each type with these GPUs (G,), in or after all reservations."""
    jobs, pool = core.jobs, core.pool
    most = max_gang(jobs, pool, rows, among)
    if not jobs.booked and not pool.is_divided:
        return most
    known: dict[object, Ints] = {}  # few jobs differ in the nodes that they may use
    for row in rows.tolist():
        if (key := _choice(core, row)) not in known:
            known[key] = _type_counts(core, row, among & ever(core, row))
    return np.array([known[_choice(core, row)] for row in rows.tolist()]).reshape(most.shape)


def _type_counts(core: SchedulerCore, row: int, gpus: Bools) -> Ints:
    """How many of these GPUs (G,) of each type a job can use together, (T,)."""
    jobs, pool = core.jobs, core.pool
    limits = node_resources.limits_of(jobs, pool) if row in jobs.needs else None
    if limits is None:
        return pool.type_counts(gpus)
    room = limits.usable(pool, gpus, limits.amounts, limits.needs[row])
    return np.bincount(pool.node_type, weights=room, minlength=len(pool.gpu_types)).astype(np.int64)


def _choice(core: SchedulerCore, row: int) -> object:
    """Equal for jobs that may use the same nodes."""
    spec, window = core.jobs.specs[row], windows.own(core, row)
    needed = spec.features if core.pool.any_lacking else ()
    needs = core.jobs.needs.get(row, ())
    return spec.nodes, spec.exclude, needed, needs, window.name if window is not None else ""


def ever(core: SchedulerCore, row: int) -> Bools:
    """The GPUs that a job may use while its reservation, or none, is in force, (G,)."""
    pool, spec, window = core.pool, core.jobs.specs[row], windows.own(core, row)
    lacking = node_sets.nodes_lacking(pool, spec)
    named = None if window is None else frozenset(window.node_ids)
    may = [spec.may_use(node) and (named is None or node in named) for node in pool.node_ids]
    allowed = np.array(may, dtype=np.bool_)
    allowed[list(lacking)] = False
    return np.asarray(allowed[pool.node_of])


def not_allowed(core: SchedulerCore, row: int) -> str:
    """That the cluster has none of the GPU types that a job's owner allows; empty = it has one."""
    spec, types = core.jobs.specs[row], core.pool.gpu_types
    if any(spec.may_run_on(name) for name in types):
        return ""
    return f"its constraint allows {listed(list(spec.gpu_types), 'or')}; the cluster has {listed(list(types))}"


def why_not_there(core: SchedulerCore, row: int, is_usable: Bools, among: Bools) -> str:
    """That other nodes than its owner allows have enough of these GPUs (G,) for a job; empty = it is not so."""
    jobs, pool = core.jobs, core.pool
    spec, gpus = jobs.specs[row], int(jobs.gpus[row])
    lacking = node_sets.nodes_lacking(pool, spec)
    if row not in jobs.limited and not lacking:
        return ""
    allowed = np.array([spec.may_use(node) for node in pool.node_ids], dtype=np.bool_)
    allowed[list(lacking)] = False
    may_use = allowed[pool.node_of]
    if not (is_usable & (pool.type_counts(among) >= gpus)).any():
        return ""
    size = "1 GPU" if gpus == 1 else f"{gpus} GPUs of one type"
    most = int(np.max(pool.type_counts(among & may_use)[is_usable], initial=0))
    if most >= gpus:
        return ""
    where = f"{most} there" if most else "none there"
    unknown = [node for node in spec.nodes if node not in pool.node_row]
    tail = f"; {listed(unknown)} {'has' if len(unknown) == 1 else 'have'} not joined" if unknown else ""
    why = "; ".join(filter(None, [f"{chosen_in_words(spec)}{tail}", lacking_in_words(pool, spec)]))
    return f"needs {size}, with {where}: {why}"


def chosen_in_words(spec: JobSpec) -> str:
    """The nodes that the owner of a job chose or excluded, as a clause; empty = neither."""
    parts = [f"runs on {listed(list(spec.nodes), 'or')} only"] if spec.nodes else []
    parts += [f"excluded from {listed(list(spec.exclude))}"] if spec.exclude else []
    return f"{' and '.join(parts)} by its owner" if parts else ""


def lacking_in_words(pool: GpuPool, spec: JobSpec) -> str:
    """The nodes with agents that are too old for a job, as a clause; empty = none."""
    rows = node_sets.nodes_lacking(pool, spec)
    if not rows:
        return ""
    lacks = [name for name in spec.features if name in pool.node_lacks[rows[0]]]
    more = f" ({len(rows) - 1} more nodes lack what it needs)" if len(rows) > 1 else ""
    where = f"node {pool.node_ids[rows[0]]} runs {pool.node_agent[rows[0]] or 'an older agent'}"
    return f"{where}, which has no {listed([f'--{name}' for name in lacks], 'or')}{more}"


def _why_never(core: SchedulerCore, row: int, is_usable: Bools, there: Ints) -> str:
    pool, gpus = core.pool, int(core.jobs.gpus[row])
    if not is_usable.any():
        return f"its throughput is zero on every GPU type of the cluster ({', '.join(pool.gpu_types)})"
    best = int(np.argmax(np.where(is_usable, there, -1)))
    size = "1 GPU" if gpus == 1 else f"{gpus} GPUs of one type"
    whose = "the cluster" if (window := windows.own(core, row)) is None else f"its reservation {window.name!r}"
    return f"it needs {size}; {whose} has at most {there[best]} {pool.gpu_types[best]} that it can use together"


def may_come_back(pool: GpuPool) -> Bools:
    """GPUs (G,) that are not usable now, on nodes that can return."""
    away: Bools = pool.present & ~pool.usable
    if away.any():
        is_lost = np.array([state is NodeState.LOST for state in pool.node_state], dtype=np.bool_)
        away = away & ~is_lost[pool.node_of]
    return away


def listed(found: list[str], last: str = "and") -> str:
    """Names in a sentence; many are counted."""
    shown = found if len(found) <= 4 else [*found[:3], f"{len(found) - 3} more"]
    return f" {last} ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)
