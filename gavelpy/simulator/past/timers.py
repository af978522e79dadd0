"""How late the timers of a recorded scheduler were: on a busy machine a round ends some tenths of a second late.

That decides who gets GPUs: a job that ends meanwhile is in the round, or its GPUs fall free for others.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from statistics import median

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import Event, SchedulerRestarted, WakeupDue

SAME_S = 0.05  # between the due times of one timer in a record and in its replay


class Timers:
    """Due times of the timers of a core, with the seconds from each to its WakeupDue."""

    def __init__(self) -> None:
        self.due_s = math.inf  # of the next WakeupDue
        self._late_s: list[tuple[float, float]] = []  # due time and seconds, sorted

    def see(self, core: SchedulerCore, event: Event, now_s: float) -> None:
        """Call it after the core has handled an event.

        Events that come while a WakeupDue is overdue do not move its due time. Pauses of the scheduler count for none.
        """
        if isinstance(event, WakeupDue) and self.due_s <= now_s:
            insort(self._late_s, (self.due_s, now_s - self.due_s))
            self.due_s = math.inf
        is_overdue = core.wakeup_s <= now_s
        if isinstance(event, SchedulerRestarted):
            self.due_s = max(core.wakeup_s, now_s)
        elif not is_overdue or self.due_s > now_s:
            self.due_s = core.wakeup_s

    @property
    def usual_s(self) -> float:
        """The median lateness; 0 without timers."""
        return median(late_s for _, late_s in self._late_s) if self._late_s else 0.0

    def late_s(self, due_s: float) -> float | None:
        """How late the timer was that was due at this time; None if none was."""
        k = bisect_left(self._late_s, (due_s, 0.0))
        near = self._late_s[max(k - 1, 0) : k + 1]
        at_s, late_s = min(near, key=lambda one: abs(one[0] - due_s), default=(math.inf, 0.0))
        return late_s if abs(at_s - due_s) <= SAME_S else None
