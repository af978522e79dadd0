"""The lease of this process: what the environment variables of its job contain, and a thread that watches the lease.

The background thread reads the lease ten times a second and reports progress twice a second. It also proposes barriers
for this rank as soon as another rank has, because the loop may be waiting inside a collective operation. It does not
report after the lease and its grace are over.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gavelpy.errors import InvalidInput, RemoteViolation
from gavelpy.runtime.lease_files import (
    CHECKPOINT_DIRECTORY_VARIABLE,
    LEASE_DIRECTORY_VARIABLE,
    RESUME_DIRECTORY_VARIABLE,
    LeaseTerms,
    Progress,
    clock_s,
    newest_checkpoint,
    read_launch,
    read_lease,
    write_progress,
)

_CUDA_CONTEXT_GIB: Final = 0.75  # of a process, which torch does not count: 0.61 to 0.75 on an H200 with CUDA 13
_GIB: Final = 1 << 30


def peak_gpu_gib() -> float:
    """The most memory of one GPU that this process has used, by torch's count; 0 without torch, or if it used none."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)  # this package loads no torch
    is_initialized = getattr(cuda, "is_initialized", None)
    if cuda is None or is_initialized is None or not is_initialized():
        return 0.0
    reserved = max((cuda.max_memory_reserved(device) for device in range(cuda.device_count())), default=0)
    return reserved / _GIB + _CUDA_CONTEXT_GIB if reserved else 0.0


@dataclass(frozen=True)
class JobContext:
    """The environment of a process of a job. Outside a lease `lease_directory` is None."""

    lease_directory: Path | None = None
    checkpoint_directory: Path | None = None
    resume_directory: Path | None = None
    rank: int = 0
    local_rank: int = 0
    world: int = 1
    steps_total: int = 0  # 0 = not given
    checkpoint_every_s: float = 0.0  # 0 = only at the end of a lease
    mtbf_s: float = 0.0  # mean time between failures of the nodes; 0 = not known
    grace_s: float = 0.0  # after the end of the lease
    restarts: int = 0  # of the ranks by torchrun under this lease

    def checkpoint_to_resume(self, directory: Path | None) -> Path | None:
        """The checkpoint to resume from; None = start from scratch.

        A process that was started again under the same lease resumes from what that lease has saved. Ranks of a gang
        look there only if all of them were started again: a rank that starts late must not find a newer checkpoint.
        """
        may_look = self.lease_directory is None or self.world == 1 or self.restarts > 0
        own = newest_checkpoint(directory) if directory and may_look else None
        return own or self.resume_directory

    def cadence(self, checkpoint_every_s: float | None) -> tuple[float, float]:
        """Seconds between checkpoints (0 = not stated), and the mean time between failures, for a loop's option."""
        if checkpoint_every_s is not None:
            return checkpoint_every_s, 0.0
        return self.checkpoint_every_s, self.mtbf_s

    def check_options(self, steps_total: int | None, save_on: str, checkpoint_every_s: float | None) -> None:
        """Raises InvalidInput for options of a loop that are wrong, or impossible here."""
        if steps_total is not None and steps_total < 1:
            raise InvalidInput(f"steps_total must be 1 or more, got {steps_total!r}")
        if checkpoint_every_s is not None and not checkpoint_every_s >= 0:
            raise InvalidInput(f"checkpoint_every_s must be 0 or more, got {checkpoint_every_s!r}")
        if save_on not in ("first", "all"):
            raise InvalidInput(f"save_on must be 'first' or 'all', got {save_on!r}")
        if save_on == "all" and self.world > 1 and self.lease_directory is None and checkpoint_every_s:
            raise InvalidInput(
                "checkpoint_every_s must be 0 outside a lease with save_on='all', because the ranks cannot agree on a "
                f"step there, got {checkpoint_every_s!r}"
            )


def read_context(environment: Mapping[str, str]) -> JobContext:
    """Reads the environment; raises InvalidInput, which names the wrong variable."""
    lease = _path(environment, LEASE_DIRECTORY_VARIABLE)
    launch = read_launch(lease) if lease else None
    world = _whole(environment, "WORLD_SIZE", 1, 1)
    done = _number(environment, "GAVEL_STEPS_DONE") if lease else 0.0
    if done > 0 and not environment.get(RESUME_DIRECTORY_VARIABLE):
        raise InvalidInput(
            f"GAVEL_STEPS_DONE must be 0 without {RESUME_DIRECTORY_VARIABLE}, got {done:g}: these steps were "
            "estimated from time, as the script had reported none, and there is no checkpoint to resume from"
        )
    return JobContext(
        lease_directory=lease,
        checkpoint_directory=_path(environment, CHECKPOINT_DIRECTORY_VARIABLE),
        resume_directory=_path(environment, RESUME_DIRECTORY_VARIABLE),
        rank=_whole(environment, "RANK", 0, 0, world - 1),
        local_rank=_whole(environment, "LOCAL_RANK", 0, 0),
        world=world,
        steps_total=math.ceil(_number(environment, "GAVEL_STEPS_TOTAL")),
        checkpoint_every_s=_number(environment, "GAVEL_CHECKPOINT_EVERY_S"),
        mtbf_s=_number(environment, "GAVEL_MTBF_S") if lease else 0.0,
        grace_s=launch.grace_s if launch else 0.0,
        restarts=_whole(environment, "TORCHELASTIC_RESTART_COUNT", 0, 0) if lease else 0,
    )


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    text = environment.get(name, "")
    return Path(text) if text else None


def _whole(environment: Mapping[str, str], name: str, default: int, least: int, most: int = 1 << 31) -> int:
    text = environment.get(name, "") or str(default)
    if not text.isdecimal() or not least <= int(text) <= most:
        raise InvalidInput(f"{name} must be a whole number in [{least}, {most}], got {text!r}")
    return int(text)


def _number(environment: Mapping[str, str], name: str) -> float:
    text = environment.get(name, "") or "0"
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise InvalidInput(f"{name} must be a number, 0 or more, got {text!r}")
    return value


POLL_S: Final = 0.1
REPORT_S: Final = 0.5
CLOSE_S: Final = 2.0  # a thread that hangs longer, on a dead disk, is abandoned
_logger = logging.getLogger(__name__)


class LeaseWatch:
    """Keeps `lease` up to date and writes what `progress` returns. Calls `on_poll` at each reading."""

    def __init__(self, context: JobContext, progress: Callable[[], Progress], on_poll: Callable[[], None]) -> None:
        directory = context.lease_directory
        assert directory is not None, "the process must have a lease"
        self._directory = directory
        self._local_rank = context.local_rank
        self._grace_s = context.grace_s
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
