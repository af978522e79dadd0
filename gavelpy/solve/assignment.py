"""The assignment of jobs to GPU types and queue positions with the least sum of completion times (for AlloX).

Equal machines run jobs one after another, k-th from the end: a job of p seconds adds k p to the sum of completion
times, once for itself and once for each of the k - 1 behind it (Horn 1973, Bruno et al. 1974). The machines of a type
are equal, so a column is a layer (type, k) with room for as many jobs as the type has machines: an LP of jobs x types x
layers with integral vertices, since its matrix is that of a bipartite graph. A job may delay those behind it by d p
instead of p: then it adds  p (1 + (k - 1) d).

Layers that no optimum uses are excluded. A job always fits in the first K layers of the types on which it can run, if
these have room for as many jobs as there are; an entry that costs more than the dearest of these is in no optimum. The
LP begins with the entries near the layer that a job would have in one queue for all types, and adds others while their
reduced cost is negative. With one type the queue itself is the optimum.

With few jobs, or few machines per type and therefore many layers, a column for each machine and position takes less
time than the LP: shortest augmenting paths (Jonker and Volgenant 1987) over a dense matrix. They have no tolerance, so
they are exact however different the times are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.arrays import Bools, Floats, Ints

_ROUNDING = 1e-9
_DENSE_MAX = 500_000  # entries of a matrix of jobs x machines x positions that is solved directly,
_DENSE_MACHINES_MAX = 8  # or, of each type on average, up to
_DENSE_MOST = 20_000_000  # entries
_NEAR = 1  # layers around the guess with which the LP begins,
_NEAR_PART = 0.1  # and this part of the guess
_AT_ONCE = 3  # entries added at once for each job and type


@dataclass(frozen=True, eq=False)
class Assignment:
    """The GPU type of each of N jobs."""

    gpu_type: Ints  # (N,)
    total_s: float  # sum of the completion times from now


@dataclass(frozen=True, eq=False)
class _Entries:
    """E entries: a job, a type and a layer of the type; L layers over all types."""

    job: Ints  # (E,)
    gpu_type: Ints  # (E,)
    ahead: Ints  # (E,) k - 1
    layer: Ints  # (E,) row in `room`
    cost: Floats  # (E,) in units of `unit_s`
    dearest: Floats  # (N,) cost of the dearest entry of each job
    room: Floats  # (L,) jobs
    unit_s: float


def least_completion_time(time_s: Floats, delay: Floats, machines: Ints) -> Assignment:
    """The type of each job, by the least sum of completion times.

    `time_s` (N, T) on type t, infinite if it cannot run there; each row is finite somewhere that `machines` (T,) > 0.
    `delay` (N, T) is the part of that time for which it delays each job behind it. Raises SolverFailed if HiGHS finds
    no optimum.
    """
    N, T = time_s.shape
    if not N:
        return Assignment(np.zeros(0, dtype=np.int64), 0.0)
    usable = np.isfinite(time_s) & (machines > 0)
    types = np.flatnonzero(usable.any(axis=0))
    if len(types) == 1:
        return _one_queue(time_s[:, types[0]], delay[:, types[0]], int(machines[types[0]]), int(types[0]))
    layers = _layers(time_s, delay, machines, usable)
    depth = layers.max(axis=0)
    columns = int(depth @ machines)
    if N * columns <= (_DENSE_MOST if columns <= _DENSE_MACHINES_MAX * depth.sum() else _DENSE_MAX):
        return _by_machines(time_s, delay, machines, layers)
    entries = _entries(time_s, delay, machines, layers)
    considered = _near_guess(entries, time_s, delay, machines)
    while True:
        chosen, reduced, cost = _optimum(entries, considered, T)
        cheaper = (reduced < -_ROUNDING * np.maximum(entries.cost, 1.0)) & ~considered
        if not cheaper.any():
            break
        considered[_least_of_each(reduced, cheaper, entries.job * T + entries.gpu_type)] = True
    assert len(chosen) == N, f"every job must have an entry: {len(chosen)} of {N} have"
    gpu_type = np.zeros(N, dtype=np.int64)
    gpu_type[entries.job[chosen]] = entries.gpu_type[chosen]
    return Assignment(gpu_type, cost * entries.unit_s)


def _one_queue(time_s: Floats, delay: Floats, machines: int, gpu_type: int) -> Assignment:
    """The optimum on one type: the job that delays others least runs first."""
    last_first = np.argsort(-time_s * delay, kind="stable")
    ahead = np.arange(len(time_s)) // machines
    total_s = time_s[last_first] @ (1.0 + ahead * delay[last_first])
    return Assignment(np.full(len(time_s), gpu_type), float(total_s))


def _by_machines(time_s: Floats, delay: Floats, machines: Ints, layers: Ints) -> Assignment:
    """The optimum over columns of one machine and one position each."""
    from scipy.optimize import linear_sum_assignment

    depth = layers.max(axis=0)
    gpu_type = np.repeat(np.arange(len(machines)), depth * machines)
    ahead = np.concatenate([np.repeat(np.arange(d), m) for d, m in zip(depth, machines, strict=True)])
    time = np.where(np.isfinite(time_s), time_s, 0.0)[:, gpu_type]
    cost_s = np.where(ahead < layers[:, gpu_type], time * (1.0 + ahead * delay[:, gpu_type]), np.inf)
    jobs, columns = linear_sum_assignment(cost_s)
    return Assignment(gpu_type[columns], float(cost_s[jobs, columns].sum()))


def _entries(time_s: Floats, delay: Floats, machines: Ints, layers: Ints) -> _Entries:
    job, gpu_type = np.nonzero(layers)
    count = layers[job, gpu_type]
    ahead = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    job, gpu_type = np.repeat(job, count), np.repeat(gpu_type, count)
    cost_s = time_s[job, gpu_type] * (1.0 + ahead * delay[job, gpu_type])
    unit_s = float(np.where(layers > 0, time_s, np.inf).min(axis=1).mean())  # the mean over the cheapest entries
    dearest = np.zeros(len(time_s))
    np.maximum.at(dearest, job, cost_s / unit_s)
    depth = layers.max(axis=0)
    layer = (np.cumsum(depth) - depth)[gpu_type] + ahead
    room = np.repeat(machines, depth).astype(np.float64)
    return _Entries(job, gpu_type, ahead, layer, cost_s / unit_s, dearest, room, unit_s)


def _layers(time_s: Floats, delay: Floats, machines: Ints, usable: Bools) -> Ints:
    """Number of layers of each type that an optimum may use for each job, (N, T); 0 = it cannot run there."""
    N = len(time_s)
    enough = np.ceil(N / (usable * machines).sum(axis=1))  # (N,) layers that have room for all jobs
    time = np.where(usable, time_s, 0.0)
    dearest = (time * (1.0 + (enough - 1.0)[:, None] * delay)).max(axis=1)
    deepest = np.divide(dearest[:, None], time, out=np.ones_like(time), where=time > 0)
    within = 1.0 + np.floor((deepest - 1.0) / delay * (1 + _ROUNDING) + _ROUNDING)
    full = np.ceil(N / np.maximum(machines, 1))
    return np.where(usable, np.minimum(within, full), 0.0).astype(np.int64)


def _near_guess(entries: _Entries, time_s: Floats, delay: Floats, machines: Ints) -> Bools:
    """Entries, (E,), near the layer that a job would have if all machines were of one type."""
    delayed_s = np.where(machines > 0, time_s * delay, np.inf).min(axis=1)
    guess = np.zeros(len(delayed_s))
    guess[np.argsort(-delayed_s, kind="stable")] = np.arange(len(delayed_s)) // machines.sum()
    near: Bools = np.abs(entries.ahead - guess[entries.job]) <= _NEAR + _NEAR_PART * guess[entries.job]
    return near


def _optimum(entries: _Entries, considered: Bools, gpu_types: int) -> tuple[Ints, Floats, float]:
    """The rows that are used, of those considered; the reduced cost of every entry (E,); and the cost.

    A job may also have no entry, at twice the cost of its dearest one and more than a solver's tolerance: so there is a
    solution whatever is considered, and in the last one every job has an entry, however short it is.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    rows, N = np.flatnonzero(considered), len(entries.dearest)
    E = len(rows)
    column = np.arange(E + N)
    job = np.concatenate([entries.job[rows], np.arange(N)])
    found = linprog(  # type: ignore[call-overload]  # its types know no sparse matrices
        np.concatenate([entries.cost[rows], 2.0 * entries.dearest + 1.0]),
        A_ub=csr_array((np.ones(E), (entries.layer[rows], column[:E])), shape=(len(entries.room), E + N)),
        b_ub=entries.room,
        A_eq=csr_array((np.ones(E + N), (job, column)), shape=(N, E + N)),
        b_eq=np.ones(N),
        method="highs-ds",  # simplex, for a vertex
    )
    if found.x is None:
        raise SolverFailed(found.message, jobs=N, gpu_types=gpu_types, detail="assignment to types and layers")
    reduced = entries.cost - found.eqlin.marginals[entries.job] - found.ineqlin.marginals[entries.layer]
    return rows[found.x[:E] > 0.5], reduced, float(found.fun)


def _least_of_each(values: Floats, among: Bools, group: Ints) -> Ints:
    """Rows of the least values in each group, of the rows that are `among`."""
    rows = np.flatnonzero(among)
    rows = rows[np.lexsort((values[rows], group[rows]))]
    place, sorted_groups = np.arange(len(rows)), group[rows]
    begins = np.append(True, sorted_groups[1:] != sorted_groups[:-1])
    first = np.maximum.accumulate(np.where(begins, place, 0))
    least: Ints = rows[place - first < _AT_ONCE]
    return least
