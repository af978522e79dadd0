"""The thread beside a training loop: reads the lease ten times a second and reports progress twice a second.

It also proposes the step at which this rank can meet the others, as soon as anybody wants to meet, because the loop
itself may wait inside a collective operation just then. It never reports once the lease is surely over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.lease_files import Lease, Progress, clock_s, read_lease, write_progress

POLL_S: Final = 0.1
REPORT_S: Final = 0.5
CLOSE_S: Final = 2.0  # a thread that hangs on a dead disk longer than this is left behind
_logger = logging.getLogger(__name__)


class Watch:
    """Keeps `lease` as it is, and tells the shim what `progress` says. `beside` runs at each look."""

    def __init__(
        self,
        directory: Path,
        local_rank: int,
        grace_s: float,
        progress: Callable[[], Progress],
        beside: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._local_rank = local_rank
        self._grace_s = grace_s
        self._progress = progress
        self._beside = beside
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._reported_s = 0.0
        self._complaint = ""
        lease = read_lease(directory)
        if lease is None:
            raise RemoteViolation(f"{directory} must hold the lease that GAVEL_LEASE_DIR promises")
        self.lease: Lease = lease
        self._thread = threading.Thread(target=self._run, name="gavel-lease", daemon=True)

    def start(self) -> None:
        """Reports for the first time and goes on in the background."""
        self.report()
        self._thread.start()

    def over_s(self) -> float:
        """From when on nothing that this job does counts."""
        return self.lease.until_clock_s + self._grace_s

    def report(self) -> None:
        """Writes what the loop has done, unless the lease is over."""
        with self._lock:
            if clock_s() < self.over_s():
                write_progress(self._directory, self._local_rank, self._progress())
                self._reported_s = clock_s()

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(timeout=CLOSE_S)

    def _run(self) -> None:
        while not self._closed.wait(POLL_S):
            try:
                self._look()
            except (OSError, RemoteViolation) as error:
                self._complain(str(error))

    def _look(self) -> None:
        lease = read_lease(self._directory)
        if lease is not None and lease.version >= self.lease.version:
            self.lease = lease
        self._beside()
        if clock_s() - self._reported_s >= REPORT_S:
            self.report()

    def _complain(self, complaint: str) -> None:
        """Once for each kind of trouble: what is damaged or full now may be whole at the next look."""
        if complaint != self._complaint:
            self._complaint = complaint
            _logger.warning("lease directory: %s", complaint)
