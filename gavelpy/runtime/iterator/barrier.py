"""Barriers: the ranks of a gang agree on a step to stop or to save, through files that all of them can read.

Each rank proposes a step that it has not passed yet, when it needs the barrier or when it sees another proposal. The
agreed step is the largest proposal. No rank passes its own proposal before it has seen all of them, so no rank has
passed the agreed step. A background thread writes proposals, so a rank that waits inside a collective operation for
another rank proposes as well.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gavelpy.errors import LeaseExpired
from gavelpy.runtime.iterator.timing import LEAD_STEPS
from gavelpy.runtime.lease_files import clock_s
from gavelpy.runtime.whole_files import read_text_whole, write_text_whole

NEVER: Final = 1 << 62
POLL_S: Final = 0.005
_NAME: Final = re.compile(r"rank-(\d{1,9})")


class Agreement:
    """The proposals of `world` ranks for one step, as files in a directory."""

    def __init__(self, directory: Path, rank: int, world: int) -> None:
        self._directory = directory
        self._rank = rank
        self._world = world
        self._lock = threading.Lock()
        self._own: int | None = None
        self._agreed: int | None = None

    def own(self) -> int | None:
        """This rank's proposal; None if it has made none."""
        return self._own

    def is_called(self) -> bool:
        """Whether any rank has proposed a step."""
        return self._own is not None or bool(self.proposals())

    def propose(self, step: int) -> None:
        """Commits this rank to wait at this step for the others; only its first proposal counts."""
        with self._lock:
            if self._own is not None:
                return
            self._directory.mkdir(parents=True, exist_ok=True)
            self._own = step
            write_text_whole(self._directory / f"rank-{self._rank}", str(step))

    def agreed(self) -> int | None:
        """The agreed step; None while a proposal is missing."""
        if self._agreed is None:
            proposals = self.proposals()
            self._agreed = max(proposals.values()) if len(proposals) == self._world else None
        return self._agreed

    def missing(self) -> tuple[int, ...]:
        """Ranks that have not proposed."""
        return tuple(sorted(set(range(self._world)) - set(self.proposals())))

    def proposals(self) -> dict[int, int]:
        """Proposed steps by rank."""
        if not self._directory.is_dir():
            return {}
        found = ((_NAME.fullmatch(entry.name), entry) for entry in self._directory.iterdir())
        texts = ((int(match[1]), read_text_whole(entry) or "") for match, entry in found if match)
        return {rank: int(text) for rank, text in texts if rank < self._world and text.isdecimal()}


class Gate:
    """A step that the loop must not pass without a look; NEVER = none."""

    def __init__(self) -> None:
        self.at = NEVER


NO_GATE: Final = Gate()


class Barrier(Gate):
    """One agreement from the view of a rank's loop. `steps` returns the loop's step count.

    The loop must call `wait` at step `at`: this rank's proposal at first, then the agreed step. `at` is set before the
    proposal is published.
    """

    def __init__(self, directory: Path, rank: int, world: int, steps: Callable[[], int]) -> None:
        super().__init__()
        self._agreement = Agreement(directory, rank, world)
        self._steps = steps
        self._name = directory.name.lstrip(".")
        self._lock = threading.Lock()

    def own(self) -> int | None:
        """This rank's proposal; None if it has made none."""
        return self._agreement.own()

    def propose(self) -> None:
        """Proposes the current step. Call it from the loop, between two steps."""
        with self._lock:
            if self._agreement.own() is None:
                self.at = self._steps()
                self._agreement.propose(self.at)

    def follow(self) -> None:
        """Proposes a step ahead of the loop if another rank has proposed one. Call it from the background thread."""
        if self._agreement.own() is None and self._agreement.is_called():
            self.propose_ahead()

    def propose_ahead(self) -> None:
        """Proposes a step ahead of the loop. Call it from the background thread."""
        with self._lock:
            if self._agreement.own() is not None:
                return
            self.at = self._steps() + LEAD_STEPS
            while self._steps() >= self.at:  # the loop may have passed it before it was set
                self.at = self._steps() + LEAD_STEPS
            self._agreement.propose(self.at)

    def wait(self, deadline_s: float) -> int | None:
        """The agreed step, waiting for it at this rank's proposal; None before that, or without proposals.

        Raises LeaseExpired if other ranks have not proposed by the deadline.
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
                    f"no {self._name} was agreed on before the lease was over; ranks without a proposal: {missing}"
                )
            time.sleep(POLL_S)
        with self._lock:
            self.at = agreed
        return agreed
