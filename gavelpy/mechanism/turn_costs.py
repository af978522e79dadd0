"""The time that stops and starts cost each job, as measured, and what it means for moves and resizes.

A move, a resize among them, costs a job the time to save, to start on other GPUs and to load. `move_lag_s` is chosen
for jobs that lose `REFERENCE_S` by it. Shells measure what each job really loses (`TurnMeasured`). A job that loses
more keeps its lease for longer: if a job loses c at each move and moves when others lag by L, then moves cost c / L of
its time, and late delivery of shares costs in proportion to L. The sum is least at an L that grows as the square root
of c. So its lease counts sqrt(c / REFERENCE_S) times `move_lag_s`, `HOLD_MAX` times at most: lags count up to 2, either
way, so a job that waits still gets its turn. New jobs count as the lease that counts most, and do not wait for it.

A job that runs on leftover GPUs moves or grows to be faster. It then stays as long as a lag takes to build up, or until
its end. Over this time the steps after the move must be more than those without it.

Jobs that were not measured are planned by the settings alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gavelpy.model.arrays import Floats, Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.events import TurnMeasured
    from gavelpy.mechanism.jobs import JobTable

REFERENCE_S = 25.0  # a save of 5 s, a start of 15 s and a migration of 5 s: see docs/decisions/0039
HOLD_MAX = 3.0


def measured(jobs: JobTable, event: TurnMeasured) -> None:
    """Books the measured times of jobs with these leases; a later one counts as much as all before it."""
    counts = (jobs.lease[event.jobs] == event.leases) | (jobs.stopping[event.jobs] == event.leases)
    rows = event.jobs[counts]
    for column, found_s in ((jobs.restart_s, event.restart_s[counts]), (jobs.save_s, event.save_s[counts])):
        before_s = column[rows]
        column[rows] = np.where(found_s > 0, np.where(before_s > 0, 0.5 * (before_s + found_s), found_s), before_s)
    jobs.any_turn_measured |= is_any(jobs, rows)


def is_any(jobs: JobTable, rows: Ints | slice) -> bool:
    """Whether anything was measured of these jobs."""
    return bool((jobs.restart_s[rows] > 0).any() or (jobs.save_s[rows] > 0).any())


def turn_s(jobs: JobTable, rows: Ints) -> Floats:
    """The measured time that a stop and a start cost each job, (K,); 0 = not known."""
    restart_s, save_s = jobs.restart_s[rows], jobs.save_s[rows]
    return np.where(restart_s > 0, restart_s + save_s, 0.0)


def hold_weights(jobs: JobTable, rows: Ints) -> Floats:
    """What a lease of each job counts in the order of a round, in units of `move_lag_s`, (K,)."""
    return np.clip(np.sqrt(turn_s(jobs, rows) / REFERENCE_S), 1.0, HOLD_MAX)


def new_weight(jobs: JobTable) -> float:
    """What a job that never ran counts: as much as any lease in force."""
    return float(hold_weights(jobs, jobs.leased).max(initial=1.0)) if jobs.any_turn_measured else 1.0


def stay_gain(jobs: JobTable, row: int, rate: float, stay_s: float) -> float:
    """Factor by which a job must be faster elsewhere so that a move pays; infinite = no move does.

    `rate`: steps/s at best. `stay_s`: how long it would stay there, unless it ends before.
    """
    cost_s = float(turn_s(jobs, np.array([row]))[0])
    if rate > 0:
        stay_s = min(stay_s, float(jobs.steps_total[row] - jobs.steps_done[row]) / rate)
    return stay_s / (stay_s - cost_s) if stay_s > cost_s else np.inf


def rates_to_stay(jobs: JobTable, rows: Ints, stay_s: float) -> Floats:
    """Rates of these jobs, (K, T); on the type that a job holds, times `stay_gain`: what others must exceed."""
    rate = jobs.rate[rows]
    if not jobs.any_turn_measured:
        return rate
    for k in np.flatnonzero((jobs.lease[rows] >= 0) & (jobs.restart_s[rows] > 0)).tolist():
        held = int(jobs.lease_type[rows[k]])
        if rate[k, held] > 0:
            rate[k, held] *= stay_gain(jobs, int(rows[k]), float(np.nanmax(rate[k])), stay_s)
    return rate
