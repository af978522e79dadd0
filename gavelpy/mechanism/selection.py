"""Selects the jobs of the coming round, their GPU types and sizes: greedily by urgency, within the available GPUs.

Jobs alone, sizes and pairs are in one queue; a pair takes its GPUs once. Capacity is allocated per checkpoint domain
(see `domains`); without `domains`, the usual case, there is one domain per GPU type. If jobs may use some nodes only, a
job is chosen if it fits on its nodes together with all that were chosen before: see `node_sets`.

Source: greedy by priority, skipping jobs that do not fit (Gavel, OSDI '20, section 5, algorithm 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gavelpy.mechanism import sizes, turn_costs
from gavelpy.mechanism.claims import ALONE
from gavelpy.mechanism.domains import NOT_THERE, Domains
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.taking import (
    NONE_CHOSEN,
    Chosen,
    Left,
    Reserved,
    Selection,
    chosen_of,
    take,
    take_claims,
    take_plain,
)
from gavelpy.model.arrays import Bools, Floats, Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.gpus import GpuPool
    from gavelpy.mechanism.problem_columns import ProblemColumns
    from gavelpy.mechanism.settings import MechanismSettings


class WakeupSteps(Protocol):
    """Compiled steps of each wake-up, equal to the last bit, that a shell may set: the core imports no compiler."""

    def settle(self, jobs: JobTable, elapsed_s: float, fade: float, now_s: float, lag_max_s: float) -> None:
        """As `booking.settle`, without claims."""

    def serve(
        self, jobs: Ints, types: Ints, merit: tuple[Floats, Floats, Floats], gpus: Ints, free: Ints
    ) -> tuple[Ints, Ints]:
        """As `serve`."""

    def fill(
        self, jobs: JobTable, usable: Ints, free: Ints, move_lag_s: float, round_s: float, new_weight: float
    ) -> Selection:
        """As `select` without `fill_leftover`, of all jobs that wait and could run; updates `free` (T,).

        `usable` (T,): GPUs, free or not. `new_weight`: what a job that never ran counts for, in units of `move_lag_s`.
        """

    def place(self, pool: GpuPool, free: Bools, domains: Ints, gpus: Ints) -> tuple[Ints, Ints]:
        """As `placement.place`."""

    def columns_of(self, jobs: JobTable, rows: Ints, usable: Bools, now_s: float) -> ProblemColumns:
        """As `problem_columns.columns_of`."""

    def book_isolated(self, jobs: JobTable, rows: Ints, counts: Ints) -> None:
        """As `problem_columns.book_isolated`."""

    def progressed(self, jobs: JobTable, rows: Ints, leases: Ints, steps_done: Floats, now_s: float) -> None:
        """As `reports.running` of reported progress, of each job once."""


def alone(jobs: JobTable, selection: Selection) -> Chosen:
    """These jobs, which have one size, without partners."""
    return Chosen(*selection, np.full(len(selection[0]), ALONE), jobs.gpus[selection[0]])


def select(
    jobs: JobTable,
    rows: Ints,
    free: Ints,
    settings: MechanismSettings,
    domains: Domains | None = None,
    reserved: Reserved | None = None,
) -> Chosen:
    """One queue of all that has a share; with `fill_leftover`, other jobs then get the leftover GPUs, alone.

    `rows` are the jobs that may be chosen, `free` (L,) the GPUs to allocate. Order: priority, owed minus received time,
    share, serial, type; of equals, a job alone comes before its sizes, and these before its pairs.
    """
    claims = _open_claims(jobs, rows) if jobs.claims.count else rows[:0]
    is_plain = domains is None and reserved is None and not len(claims)
    if len(rows) == 1 and is_plain and not jobs.smallest[rows[0]]:
        return alone(jobs, _select_one(jobs, rows, free, settings))
    local, gpu_type = np.nonzero(jobs.target.take(rows, axis=0) > 0)
    left = free.copy()
    chosen = NONE_CHOSEN
    if len(claims):
        chosen = _serve_claims(jobs, (rows[local], gpu_type), claims, settings, left, domains, reserved)
    elif len(local):
        chosen = alone(jobs, _serve_alone(jobs, (rows[local], gpu_type), settings, left, domains, reserved))
    if settings.fill_leftover and len(chosen.jobs) < len(rows) and left.any():
        rest = rows[~jobs.marks(chosen.jobs)[rows]] if len(chosen.jobs) else rows
        others = select_leftover(jobs, rest, left, domains, reserved, settings.move_lag_s)
        chosen = Chosen(*map(np.concatenate, zip(chosen, others, strict=True))) if len(chosen.jobs) else others
    return chosen


def _open_claims(jobs: JobTable, rows: Ints) -> Ints:
    """The claims with a share of which all jobs are among `rows`."""
    claims, is_open = jobs.claims, jobs.marks(rows)
    is_open = np.append(is_open, True)  # of no second job
    return np.flatnonzero((claims.target > 0) & is_open[claims.first] & is_open[claims.second])


def _serve_alone(
    jobs: JobTable,
    queue: Selection,
    settings: MechanismSettings,
    left: Ints,
    domains: Domains | None,
    reserved: Reserved | None,
) -> Selection:
    """Serves jobs alone, each at most once; updates `left`."""
    merits = merit(jobs, *queue, settings)
    if domains is None and reserved is None:
        return (serve if jobs.kernels is None else jobs.kernels.serve)(*queue, merits, jobs.gpus, left)
    order = _by_merit(*queue, merits)
    rows, gpu_type = queue[0][order], queue[1][order]
    slots = gpu_type if domains is None else domains.slots(rows)[np.arange(len(rows)), gpu_type]
    return take(rows, slots, jobs.gpus, left, domains, reserved)


def serve(jobs: Ints, types: Ints, merit: tuple[Floats, Floats, Floats], gpus: Ints, free: Ints) -> Selection:
    """Takes free GPUs (T,) for a queue of jobs with types and merits, (K,) each, the most urgent first."""
    order = _by_merit(jobs, types, merit)
    return take_plain(jobs[order], types[order], gpus[jobs[order]], free)


def _by_merit(jobs: Ints, types: Ints, merit: tuple[Floats, Floats, Floats]) -> Ints:
    urgency, lag, share = merit
    return np.lexsort((types, jobs, -share, -lag, -urgency))


def _select_one(jobs: JobTable, rows: Ints, free: Ints, settings: MechanismSettings) -> Selection:
    """As `select`, for a single job of one size: the usual case within a round."""
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


def _serve_claims(
    jobs: JobTable,
    alone: Selection,
    claims: Ints,
    settings: MechanismSettings,
    left: Ints,
    domains: Domains | None,
    reserved: Reserved | None,
) -> Chosen:
    """As `_serve_alone`, with these rows of claims in the same queue."""
    table = jobs.claims
    first = np.concatenate([alone[0], table.first[claims]])
    second = np.concatenate([np.full(len(alone[0]), ALONE), table.second[claims]])
    gpu_type = np.concatenate([alone[1], table.gpu_type[claims]])
    gpus = np.concatenate([jobs.gpus[alone[0]], table.gpus[claims]])
    of_alone, of_claims = merit(jobs, *alone, settings), _merit_of_claims(jobs, claims, settings)
    urgency, lag, share = map(np.concatenate, zip(of_alone, of_claims, strict=True))
    order = np.lexsort((gpus, second, gpu_type, first, -share, -lag, -urgency))
    slots = gpu_type if domains is None else common_slots(domains, first, second, gpu_type)
    return take_claims(first[order], second[order], slots[order], gpus[order], left, domains, reserved)


def select_leftover(
    jobs: JobTable,
    rows: Ints,
    free: Ints,
    domains: Domains | None = None,
    reserved: Reserved | None = None,
    move_lag_s: float = 0.0,
) -> Chosen:
    """Allocates free GPUs to jobs that can use them: largest lag first, on the fastest type with enough GPUs.

    A job with several sizes gets the size and type on which it is fastest. With `move_lag_s`, the lag of a running job
    counts for that much more, and its own type and size come before those that are as fast.
    """
    if not free.any() or not len(rows):
        return NONE_CHOSEN
    usable = sizes.fits(jobs, rows, free) if domains is None else jobs.rate[rows] > 0
    rows = rows[usable.any(axis=1)]
    if not len(rows):
        return NONE_CHOSEN
    if len(rows) > 1:
        owed_s, received_s = jobs.total("owed_s"), jobs.total("received_s")
        lag = (owed_s[rows] - received_s[rows]).sum(axis=1) + move_lag_s * (jobs.lease[rows] >= 0)
        rows = rows[np.lexsort((rows, -lag))]
    left = Left(free, domains, reserved)
    chosen: list[tuple[int, int, int, int]] = []
    by_speed = np.argsort(-jobs.rate[rows], axis=1, kind="stable")
    if move_lag_s:
        is_elsewhere = jobs.lease_type[rows, None] != np.arange(jobs.rate.shape[1])
        by_speed = np.lexsort((is_elsewhere, -turn_costs.rates_to_stay(jobs, rows, move_lag_s)), axis=1)
    slots = by_speed if domains is None else np.take_along_axis(domains.slots(rows), by_speed, axis=1)
    for job, gpus, types, places in zip(
        rows.tolist(), jobs.gpus[rows].tolist(), by_speed.tolist(), slots.tolist(), strict=True
    ):
        options: Iterable[tuple[int, int, int]] = zip(types, places, repeat(gpus))  # repeats
        if job in jobs.sizes:
            options = _sizes_by_speed(jobs, job, dict(zip(types, places, strict=True)), move_lag_s)
        for gpu_type, slot, need in options:
            domain = left.find(slot, need, job)
            if domain != NOT_THERE and jobs.rate[job, gpu_type] > 0:
                left.take(domain, need, job)
                chosen.append((job, domain, ALONE, need))
                break
        if not any(left.free):
            break
    free[:] = left.free
    return chosen_of(chosen)


def _sizes_by_speed(
    jobs: JobTable, job: int, slots: Mapping[int, int], stay_s: float
) -> Iterator[tuple[int, int, int]]:
    """(type, slot, GPUs) of a job with several sizes, the fastest first.

    With `stay_s`, those of its lease come before others by which it would not gain within that time.
    """
    held = (int(jobs.lease_type[job]), int(jobs.gpus[job])) if stay_s else (-1, -1)
    gain, own = 1.0, jobs.sizes[job]
    if stay_s and jobs.lease[job] >= 0 and jobs.restart_s[job] > 0:
        gain = turn_costs.stay_gain(jobs, job, float(np.nanmax(own.rate)), stay_s)
    for gpu_type, gpus in own.by_speed(held, gain):
        yield gpu_type, slots[gpu_type], gpus


def merit(jobs: JobTable, pairs: Ints, gpu_type: Ints, settings: MechanismSettings) -> tuple[Floats, Floats, Floats]:
    """Urgency, owed minus received time, and share of (job, type) pairs, (K,) each.

    With `move_lag_s`, a lease in force and a job that never ran count for 1 more, so a lease ends for another job only
    if that one's lag is larger by `move_lag_s`, or if that one never ran. For jobs that start slowly: see `turn_costs`.
    """
    share = jobs.target[pairs, gpu_type]
    owed, received = jobs.owed_s[pairs, gpu_type], jobs.received_s[pairs, gpu_type]
    urgency = settings.rules.urgency(share, owed, received, settings)
    if settings.move_lag_s:
        holds = (jobs.lease[pairs] >= 0) & (jobs.lease_type[pairs] == gpu_type) & (jobs.partner[pairs] < 0)
        urgency = urgency + _standing(jobs, pairs, holds, never_ran(jobs, pairs))
    return urgency, owed - received, share


def _standing(jobs: JobTable, rows: Ints, holds: Bools, is_new: Bools) -> Floats:
    """What leases in force and jobs that never ran count for, (K,), in units of `move_lag_s`."""
    if not jobs.any_turn_measured:
        return np.asarray(holds | is_new, dtype=np.float64)
    weight: Floats = np.maximum(holds * turn_costs.hold_weights(jobs, rows), is_new * turn_costs.new_weight(jobs))
    return weight


def never_ran(jobs: JobTable, rows: Ints) -> Bools:
    """Whether these jobs have no lease and never had one that started, (K,)."""
    return np.asarray((jobs.lease[rows] < 0) & (jobs.attained_gpu_s[rows] == 0.0))


def _merit_of_claims(jobs: JobTable, rows: Ints, settings: MechanismSettings) -> tuple[Floats, Floats, Floats]:
    """As `merit`, of rows of claims. A job on another of its sizes is as far from it as on another type."""
    claims = jobs.claims
    share, owed, received = claims.target[rows], claims.owed_s[rows], claims.received_s[rows]
    urgency = settings.rules.urgency(share, owed, received, settings)
    if settings.move_lag_s:
        first, second = claims.first[rows], claims.second[rows]
        holds = (jobs.partner[first] == second) & (jobs.lease_type[first] == claims.gpu_type[rows])
        holds &= jobs.gpus[first] == claims.gpus[rows]
        is_new = never_ran(jobs, first) | ((second >= 0) & never_ran(jobs, second))
        urgency = urgency + _standing(jobs, first, holds, is_new)
    return urgency, owed - received, share


def common_slots(domains: Domains, first: Ints, second: Ints, gpu_type: Ints) -> Ints:
    """Where both jobs may use GPUs of a type, (K,), as in `Domains.slots`; a single job (second < 0) decides alone."""
    one = domains.slots(first)[np.arange(len(first)), gpu_type]
    other = domains.slots(np.where(second >= 0, second, first))[np.arange(len(first)), gpu_type]
    anywhere = domains.count + gpu_type
    agreed = np.where(one == other, one, NOT_THERE)
    agreed = np.where((one == anywhere) & (other != NOT_THERE), other, agreed)
    return np.where((other == anywhere) & (one != NOT_THERE), one, agreed)


def joined(first: Selection, second: Selection) -> Selection:
    """Both selections."""
    return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])
