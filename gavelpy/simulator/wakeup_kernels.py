"""What each wake-up of the core does with its tables, in numba: books time, and serves the queue of jobs.

The mechanism does the same in numpy (`booking.settle`, `selection.serve`), which is the oracle of the tests: results
are equal to the last bit. The kernels take a second to compile and a fiftieth of a second to load, after numba itself,
so a simulation hands them to its core only where numba is loaded already, for the policy's kernels, or where there are
many jobs and wake-ups. The scheduler computes allocations in another process, and stays without numba.
"""

from __future__ import annotations

import math

import numpy as np

from gavelpy.mechanism import placement, problem_columns
from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.jobs import OPEN, JobTable
from gavelpy.mechanism.problem_columns import ProblemColumns
from gavelpy.model.arrays import PAIRWISE, Bools, Floats, Ints
from gavelpy.policies import queue_kernels as queue_kernels  # loaded for all queues of jobs
from gavelpy.simulator.serving_kernels import ALL, most_urgent, serve
from gavelpy.solve.compiled import njit

_DOMAINS_MAX = 64  # the compiled step passes over all GPUs for each


class WakeupKernels:
    """The compiled twins, for `JobTable.kernels`. Queues are in arrays that are kept: new ones would take longer."""

    def __init__(self) -> None:
        self._jobs, self._types = np.empty((2, 0), dtype=np.int64)
        self._merits = np.empty((3, 0))

    def settle(self, jobs: JobTable, elapsed_s: float, fade: float, now_s: float, lag_max_s: float) -> None:
        """As `booking.settle`, without claims."""
        columns = jobs.target, jobs.owed_s, jobs.received_s, jobs.since_s, jobs.attained_gpu_s
        leases = jobs.lease, jobs.lease_type, jobs.gpus
        _settle(jobs.lists.timed, *leases, *columns, elapsed_s, fade, now_s, lag_max_s)

    def serve(
        self, jobs: Ints, types: Ints, merit: tuple[Floats, Floats, Floats], gpus: Ints, free: Ints
    ) -> tuple[Ints, Ints]:
        """As `selection.serve`."""
        found: tuple[Ints, Ints] = serve(jobs, types, *merit, gpus, free, *most_urgent(merit[0], free))
        return found

    def fill(
        self, jobs: JobTable, usable: Ints, free: Ints, move_lag_s: float, round_s: float, new_weight: float
    ) -> tuple[Ints, Ints]:
        """As `selection.select` without `fill_leftover`, of all jobs without a lease, in the standard rules."""
        sizes = jobs.lease, jobs.gpus, jobs.rate, usable, free
        times = jobs.target, jobs.owed_s, jobs.received_s, jobs.attained_gpu_s
        timed = jobs.lists.timed
        if len(self._jobs) < len(timed) * len(free):
            self._jobs, self._types = np.empty((2, 2 * len(timed) * len(free)), dtype=np.int64)
            self._merits = np.empty((3, len(self._jobs)))
        queue = self._jobs, self._types, self._merits
        found: tuple[Ints, Ints] = _fill(*queue, timed, *sizes, *times, move_lag_s, round_s / 2, new_weight)
        return found

    def place(self, pool: GpuPool, free: Bools, domains: Ints, gpus: Ints) -> tuple[Ints, Ints]:
        """As `placement.place`."""
        if not pool.in_order or not len(domains) or domains.max() >= _DOMAINS_MAX:
            return placement.place(pool, free, domains, gpus)
        offsets = np.concatenate([[0], np.cumsum(gpus)])
        flat = np.empty(offsets[-1], dtype=np.int64)
        is_done = _place(free, pool.node_of, pool.domain_of, domains, gpus, offsets, flat)
        assert is_done, placement.TOO_MANY
        return offsets, flat

    def columns_of(self, jobs: JobTable, rows: Ints, usable: Bools, now_s: float) -> ProblemColumns:
        """As `problem_columns.columns_of`."""
        if jobs.sizes:
            return problem_columns.columns_of(jobs, rows, usable, now_s)
        steps = jobs.steps_total, jobs.steps_done
        times = jobs.submitted_s, jobs.begin_at_s, jobs.deadline_at_s, jobs.worked_s, jobs.began_s
        others = jobs.weight, jobs.isolated_s, jobs.attained_gpu_s
        numbers = jobs.gpus, jobs.entity, jobs.lease_type, jobs.job_type, jobs.owner
        rate, floats, ints = _columns(rows, usable, now_s, jobs.rate, *steps, *times, *others, *numbers)
        return ProblemColumns(rate, ints[0], *floats, *ints[1:])

    def book_isolated(self, jobs: JobTable, rows: Ints, counts: Ints) -> None:
        """As `problem_columns.book_isolated`; numpy adds eight and more types in another order."""
        if jobs.sizes or len(counts) >= PAIRWISE:
            problem_columns.book_isolated(jobs, rows, counts)
            return
        isolated = jobs.isolated_s, jobs.isolated_steps, jobs.isolated_rate
        _book_isolated(rows, counts, jobs.rate, jobs.steps_done, jobs.gpus, *isolated)

    def progressed(self, jobs: JobTable, rows: Ints, leases: Ints, steps_done: Floats, now_s: float) -> None:
        """As `reports.running` of reported progress, of each job once."""
        steps = jobs.steps_done, jobs.steps_saved, jobs.steps_total
        _progressed(rows, leases, steps_done, now_s, jobs.lease, jobs.total_by, jobs.worked_s, *steps)


@njit(cache=True, nogil=True)
def _progressed(  # type: ignore[no-untyped-def]
    rows, leases, reported, now_s, lease, total_by, worked_s, steps_done, steps_saved, steps_total
):
    for k in range(len(rows)):
        row, steps = rows[k], reported[k]
        if lease[row] != leases[k]:
            continue
        if total_by[row] == OPEN:
            steps_total[row] = max(steps_total[row], 2 * steps)
        steps_done[row] = min(max(steps, steps_saved[row]), steps_total[row])
        if worked_s[row] < 0:
            worked_s[row] = now_s


@njit(cache=True, nogil=True)
def _columns(  # type: ignore[no-untyped-def]
    rows, usable, now_s, rate, steps_total, steps_done, submitted_s, begin_at_s, deadline_at_s, worked_s, began_s,
    weight, isolated_s, attained_gpu_s, gpus, entity, lease_type, job_type, owner,
):  # fmt: skip
    K, T = usable.shape
    rates, floats, ints = np.zeros((K, T)), np.empty((9, K)), np.empty((5, K), dtype=np.int64)
    for k in range(K):
        row = rows[k]
        for t in range(T):
            if usable[k, t]:
                rates[k, t] = rate[row, t]
        floats[0, k], floats[1, k] = gpus[row], weight[row]
        floats[2, k] = max(steps_total[row] - steps_done[row], steps_total[row] * 1e-12)
        floats[3, k] = steps_total[row]
        floats[4, k] = now_s - max(submitted_s[row], begin_at_s[row])
        floats[5, k], floats[6, k] = isolated_s[row], deadline_at_s[row] - now_s
        floats[7, k], floats[8, k] = attained_gpu_s[row], max(worked_s[row] - began_s[row], 0.0)
        ints[0, k], ints[1, k], ints[2, k] = gpus[row], entity[row], lease_type[row]
        ints[3, k], ints[4, k] = job_type[row], owner[row]
    return rates, floats, ints


@njit(cache=True, nogil=True)
def _book_isolated(  # type: ignore[no-untyped-def]
    rows, counts, rate, steps_done, gpus, isolated_s, isolated_steps, isolated_rate
):  # fmt: skip
    T, jobs = len(counts), len(rows)
    for row in rows:
        before = isolated_rate[row]
        if before > 0:
            isolated_s[row] += max((steps_done[row] - isolated_steps[row]) / before, 0.0)
        isolated_steps[row] = steps_done[row]
        total = 0.0
        for t in range(T):
            total += counts[t] / (jobs * gpus[row])
        total, speed = max(total, 1.0), 0.0
        for t in range(T):
            if not math.isnan(rate[row, t]):
                speed += counts[t] / (jobs * gpus[row]) / total * rate[row, t]
        isolated_rate[row] = speed


@njit(cache=True, nogil=True)
def _settle(  # type: ignore[no-untyped-def]
    timed, lease, lease_type, gpus, target, owed_s, received_s, since_s, attained_gpu_s, elapsed_s, fade, now_s,
    lag_max_s,
):  # fmt: skip
    T = target.shape[1]
    for row in timed:
        if fade != 1.0:
            for t in range(T):
                owed_s[row, t] *= fade
                received_s[row, t] *= fade
        if lease[row] >= 0 and since_s[row] >= 0.0:
            time_s = now_s - since_s[row]
            attained_gpu_s[row] += time_s * gpus[row]
            received_s[row, lease_type[row]] += time_s
            since_s[row] = now_s
        for t in range(T):
            owed, received = owed_s[row, t] + target[row, t] * elapsed_s, received_s[row, t]
            owed_s[row, t] = max(owed, received - lag_max_s)
            received_s[row, t] = max(received, owed - lag_max_s)


@njit(cache=True, nogil=True)
def _fill(  # type: ignore[no-untyped-def]
    jobs,
    types,
    merits,
    timed,
    lease,
    gpus,
    rate,
    usable,
    free,
    target,
    owed_s,
    received_s,
    attained_gpu_s,
    move_lag_s,
    prior_s,
    new_weight,
):
    T, count, most = len(free), 0, free.max()
    for row in timed:
        if lease[row] >= 0 or gpus[row] > most:
            continue
        before = count
        for t in range(T):
            if gpus[row] <= free[t] and target[row, t] > 0.0:
                jobs[count], types[count] = row, t
                count += 1
        if count > before and not _runs(row, gpus, rate, usable):
            count = before
    jobs, types = jobs[:count], types[:count]
    urgency, lag, share = merits[0, :count], merits[1, :count], merits[2, :count]
    for k in range(count):
        row, t = jobs[k], types[k]
        owed, received, share[k] = owed_s[row, t], received_s[row, t], target[row, t]
        lag[k] = owed - received
        if move_lag_s > 0.0:
            urgency[k] = lag[k] / move_lag_s + (new_weight if attained_gpu_s[row] == 0.0 else 0.0)
        else:
            urgency[k] = (owed + share[k] * prior_s) / (received + prior_s)
    return serve(jobs, types, urgency, lag, share, gpus, free, jobs[:0], ALL)


@njit(cache=True, nogil=True)
def _runs(row, gpus, rate, usable):  # type: ignore[no-untyped-def]
    for t in range(len(usable)):  # noqa: SIM110 not in numba
        if rate[row, t] > 0.0 and gpus[row] <= usable[t]:
            return True
    return False


@njit(cache=True, nogil=True)
def _place(free, node_of, domain_of, domains, gpus, offsets, flat):  # type: ignore[no-untyped-def]
    """Sets the GPUs of all jobs; false if they are too few. The GPUs of a node have consecutive numbers."""
    K, G, most = len(domains), len(free), gpus.max()
    nodes = node_of[-1] + 1 if G else 0
    first = np.full(nodes, G)
    for g in range(G - 1, -1, -1):
        first[node_of[g]] = g
    key = np.empty(K, dtype=np.int64)
    for k in range(K):
        key[k] = (domains[k] * most + most - gpus[k]) * K + k  # large gangs first
    order = np.argsort(key)
    room, following, begin = np.empty(nodes, dtype=np.int64), np.empty(nodes, dtype=np.int64), 0
    while begin < K:
        domain, end = domains[order[begin]], begin
        while end < K and domains[order[end]] == domain:
            end += 1
        room[:], following[:] = 0, first
        for g in range(G):
            room[node_of[g]] += free[g] and domain_of[g] == domain
        while begin < end and gpus[order[begin]] > 1:
            at, missing = offsets[order[begin]], gpus[order[begin]]
            while missing > 0:
                node = _best_node(room, missing)
                count = min(room[node], missing)
                if count == 0:
                    return False
                following[node] = _take(free, domain_of, domain, following[node], count, flat, at)
                room[node], at, missing = room[node] - count, at + count, missing - count
            begin += 1
        begin = _singles(free, domain_of, domain, room, following, order, begin, end, offsets, flat)
        if begin < end:
            return False
    return True


@njit(cache=True, nogil=True)
def _best_node(room, missing):  # type: ignore[no-untyped-def]
    """The node with the fewest free GPUs that suffice, else with the most; the first of equals."""
    best = 0
    for node in range(1, len(room)):
        here, most = room[node], room[best]
        if here > most if most < missing else missing <= here < most:
            best = node
    return best


@njit(cache=True, nogil=True)
def _take(free, domain_of, domain, g, count, flat, at):  # type: ignore[no-untyped-def]
    """Gives out so many free GPUs of a domain from number `g` on; returns the number after them."""
    while count > 0:
        if free[g] and domain_of[g] == domain:
            flat[at] = g
            at, count = at + 1, count - 1
        g += 1
    return g


@njit(cache=True, nogil=True)
def _singles(free, domain_of, domain, room, following, order, begin, end, offsets, flat):  # type: ignore[no-untyped-def]
    """Gives one GPU to each job from `begin` on, on nodes with the fewest free GPUs first; returns who is next."""
    fullest = room.max() if len(room) else 0
    for count in range(1, fullest + 1):
        for node in range(len(room)):
            if room[node] != count:
                continue
            g = following[node]
            for _ in range(count):
                if begin == end:
                    return begin
                g = _take(free, domain_of, domain, g, 1, flat, offsets[order[begin]])
                begin += 1
    return begin
