"""The steps at which all ranks of a gang do something together: checkpoints of all ranks, and the stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gavelpy.errors import LeaseExpired
from gavelpy.runtime.iterator.agreement import Agreement
from gavelpy.runtime.iterator.plan import LEAD_STEPS
from gavelpy.runtime.lease_files import clock_s

NEVER: Final = 1 << 62
POLL_S: Final = 0.005


class Meeting:
    """One agreement as a rank's loop sees it: `steps` is its count, which only the loop raises.

    `barrier` is the step at which the loop must look: its own proposal at first, then the step agreed on. It stands
    before the proposal is told to anybody.
    """

    def __init__(self, directory: Path, rank: int, world: int, steps: Callable[[], int]) -> None:
        self._agreement = Agreement(directory, rank, world)
        self._steps = steps
        self._what = directory.name.lstrip(".")
        self._lock = threading.Lock()
        self.barrier = NEVER

    def own(self) -> int | None:
        """What this rank has proposed; None where it has not."""
        return self._agreement.own()

    def call(self) -> None:
        """The loop, between two steps, wants to meet: it goes no further alone."""
        with self._lock:
            if self._agreement.own() is None:
                self.barrier = self._steps()
                self._agreement.propose(self.barrier)

    def answer(self) -> None:
        """The thread beside the loop: proposes a step ahead of the loop, if somebody has called."""
        if self._agreement.own() is None and self._agreement.is_called():
            self.call_ahead()

    def call_ahead(self) -> None:
        """The thread beside the loop wants to meet, or was asked to."""
        with self._lock:
            if self._agreement.own() is not None:
                return
            self.barrier = self._steps() + LEAD_STEPS
            while self._steps() >= self.barrier:  # the loop may have gone past it before it stood
                self.barrier = self._steps() + LEAD_STEPS
            self._agreement.propose(self.barrier)

    def settle(self, deadline_s: float) -> int | None:
        """The step of the meeting, None where none is called or the loop is free to go on; waits where it is not.

        Raises LeaseExpired where other ranks have not proposed by the deadline.
        """
        own = self._agreement.own()
        if own is None:
            return None
        while (agreed := self._agreement.agreed()) is None:
            if self._steps() < own:
                return None
            if clock_s() >= deadline_s:
                missing = ", ".join(map(str, self._agreement.missing()))
                raise LeaseExpired(
                    f"no {self._what} was agreed on before the lease was over; ranks that said nothing: {missing}"
                )
            time.sleep(POLL_S)
        with self._lock:
            self.barrier = agreed
        return agreed
