"""Whether a run has stalled: all leases are preempted before their first step.

`Stall` counts leases that are stopped while no job gains a step. Jobs take turns: if each had ten turns without a step,
further turns change nothing.
"""

from __future__ import annotations

import numpy as np

from gavelpy.journal.history import History
from gavelpy.mechanism.events import Event, LeaseEnded, Outcome, ProgressReported
from gavelpy.model.arrays import Ints
from gavelpy.simulator.settings import SimulationSettings

TURNS_MAX = 10  # of each job, without a step by any job
LEASES_MIN = 100
OF_JOB = "preempted before its first step, each time; no job gains a step any more"
_NAMED_MAX = 3


class Stall:
    """Observer of the events of one run."""

    def __init__(self, jobs: int) -> None:
        self.steps = np.zeros(jobs)  # (J,) most steps reported
        self.lost_turns = np.zeros(jobs, dtype=np.int64)  # (J,) since any job gained a step
        self.lost = 0  # their sum
        self.since_s = 0.0  # of the last step that was reported

    def __call__(self, event: Event, now_s: float) -> None:
        """Counts an event."""
        if not isinstance(event, ProgressReported | LeaseEnded):
            return
        if np.count_nonzero(event.steps_done > self.steps[event.jobs]):
            self.steps[event.jobs] = np.maximum(event.steps_done, self.steps[event.jobs])
            if self.lost:
                self.lost_turns[:] = self.lost = 0
            self.since_s = now_s
        elif isinstance(event, LeaseEnded) and event.outcome is Outcome.STOPPED:
            self.lost_turns[event.jobs] += 1
            self.lost += len(event.jobs)

    def is_reached(self, living: int) -> bool:
        """Whether the run has stalled; `living` jobs have arrived and are not finished."""
        return self.lost >= max(LEASES_MIN, TURNS_MAX * living)

    def reason(self, history: History, settings: SimulationSettings) -> str:
        """Why the run stalled, with which jobs, and which settings avoid it."""
        mechanism, costs = settings.mechanism, settings.costs
        rows = np.flatnonzero(self.lost_turns)
        start_s = costs.restart_s + costs.migration_s
        return (
            f"ended at {history.now_s:,.0f} s: no job has gained a step since {self.since_s:,.0f} s, in "
            f"{self.lost:,} leases of {self._named(history, rows)}; a start takes up to {start_s:g} s, and with "
            f"round_s {mechanism.round_s:g}, lease_min_s {mechanism.lease_min_s:g} and start_max_s "
            f"{mechanism.start_max_s:g} jobs are preempted before their first step; set one of them higher"
        )

    def _named(self, history: History, rows: Ints) -> str:
        specs = [history.specs[row] for row in rows[:_NAMED_MAX].tolist()]
        steps = self.steps[rows[:_NAMED_MAX]].tolist()
        named = [f"{job.id} ({done:g} of {job.steps_total:g} steps)" for job, done in zip(specs, steps, strict=True)]
        more = len(rows) - len(named)
        return ", ".join(named) + (f" and {more:,} more" if more else "")
