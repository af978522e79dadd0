"""The background thread of a training loop: reads the lease ten times a second, reports progress twice a second.

It also proposes barriers for this rank as soon as another rank has, because the loop may be waiting inside a collective
operation. It does not report after the lease and its grace are over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.lease_files import LeaseTerms, Progress, clock_s, read_lease, write_progress

POLL_S: Final = 0.1
REPORT_S: Final = 0.5
CLOSE_S: Final = 2.0  # a thread that hangs longer, on a dead disk, is abandoned
_logger = logging.getLogger(__name__)


class LeaseWatch:
    """Keeps `lease` up to date and writes what `progress` returns. Calls `on_poll` at each reading."""

    def __init__(
        self,
        directory: Path,
        local_rank: int,
        grace_s: float,
        progress: Callable[[], Progress],
        on_poll: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._local_rank = local_rank
        self._grace_s = grace_s
        self._progress = progress
        self._on_poll = on_poll
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._reported_s = 0.0
        self._last_error = ""
        lease = read_lease(directory)
        if lease is None:
            raise RemoteViolation(f"{directory}, which GAVEL_LEASE_DIR names, must contain a lease")
        self.lease: LeaseTerms = lease
        self._thread = threading.Thread(target=self._run, name="gavel-lease", daemon=True)

    def start(self) -> None:
        """Writes the first report and starts the thread."""
        self.report()
        self._thread.start()

    def over_s(self) -> float:
        """When lease and grace are over; later results do not count."""
        return self.lease.until_clock_s + self._grace_s

    def report(self) -> None:
        """Writes the progress of the loop, unless the lease is over."""
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
                self._poll()
            except (OSError, RemoteViolation) as error:
                self._log_once(str(error))

    def _poll(self) -> None:
        lease = read_lease(self._directory)
        if lease is not None and lease.version >= self.lease.version:
            self.lease = lease
        self._on_poll()
        if clock_s() - self._reported_s >= REPORT_S:
            self.report()

    def _log_once(self, error: str) -> None:
        if error != self._last_error:
            self._last_error = error
            _logger.warning("lease directory: %s", error)
