"""One lease of this node: its directory, what its shim and its job say there, and what is done to it.

    assignment.json    what the scheduler launched; written first of all, so that a directory without it is no lease
    (the other files)  see lease_files

A lease has ended when its end.json is there, its shim is gone and no process of it is left; not before are its GPUs
free. A shim that is gone without an end.json has its lease killed and ended as lost.
"""

from __future__ import annotations

import hmac
import logging
import signal
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from gavelpy.errors import RemoteViolation
from gavelpy.runtime import lease_files
from gavelpy.runtime.agent.leases.assignment import Assignment
from gavelpy.runtime.agent.leases.reconcile import LocalLease, LocalPhase
from gavelpy.runtime.lease_files import End, Launch, Lease, Outcome, Phase, Progress, ShimState
from gavelpy.runtime.shim import cgroups, processes, shim_argv
from gavelpy.runtime.shim.exit_status import estimated_steps, has_done_all

Said = TypeVar("Said")

logger = logging.getLogger(__name__)

ASSIGNMENT_FILE: Final = "assignment.json"
TOKEN_VARIABLE: Final = "GAVEL_JOB_TOKEN"
SHIM_APPEARS_S: Final = 2.0  # within this a shim that was started has written its shim.json
SHIM_DIES_S: Final = 1.0  # within this a shim that still works ends by itself once its job is gone
_PHASES: Final = {
    Phase.STARTING: LocalPhase.STARTING,
    Phase.RUNNING: LocalPhase.RUNNING,
    Phase.STOPPING: LocalPhase.STOPPING,
    Phase.ENDED: LocalPhase.STOPPING,
}


@dataclass(frozen=True)
class AssignmentRecord:
    """What assignment.json says."""

    lease: int
    job: int
    assignment: Assignment | None


@dataclass(frozen=True)
class LeaseProgress:
    """How far the job is."""

    steps_done: float = 0.0
    steps_saved: float = 0.0
    rate_steps_per_s: float = 0.0


@dataclass(eq=False)
class LeaseDirectory:
    """What the agent knows of one lease."""

    directory: Path
    lease: int
    job: int
    assignment: Assignment | None
    orders: Lease
    launch: Launch | None = None
    shim: ShimState | None = None
    end: End | None = None  # set once the lease has ended
    killed_clock_s: float = float("inf")
    is_starting: bool = False  # somebody prepares its start
    launched_clock_s: float = float("inf")  # when its shim was started
    destroyed_clock_s: float = float("inf")  # when its job was first killed from here
    port: ReservedPort | None = None
    has_lost_shim: bool = False
    progress: LeaseProgress = field(default_factory=LeaseProgress)
    count_saved: Callable[[LeaseDirectory], None] | None = None  # counts its whole checkpoints, and calls `finish`
    closing: End | None = None  # how it ended, while its whole checkpoints are counted
    _written_end: End | None = None  # of a shim that is gone
    _child: subprocess.Popen[bytes] | None = None
    _seen: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    _reports: dict[int, Progress] = field(default_factory=dict)

    @property
    def local(self) -> LocalLease:
        """As `reconcile` sees it."""
        return LocalLease(
            lease=self.lease,
            job=self.job,
            phase=self.phase,
            assignment=self.assignment,
            until_clock_s=self.orders.until_clock_s,
            stop=self.orders.stop,
            kill=self.orders.kill,
            killed_clock_s=self.killed_clock_s,
            steps_saved=self.orders.steps_saved,
            has_lost_shim=self.has_lost_shim,
        )

    @property
    def phase(self) -> LocalPhase:
        """Where it stands."""
        if self.end is not None:
            return LocalPhase.ENDED
        if self.closing is not None:
            return LocalPhase.STOPPING
        if self.launch is None and not self.is_starting:
            return LocalPhase.PREPARED
        phase = LocalPhase.STARTING if self.shim is None else _PHASES[self.shim.phase]
        is_ending = self.orders.stop or self.orders.kill
        return LocalPhase.STOPPING if is_ending and self.shim is not None else phase

    @property
    def is_estimated(self) -> bool:
        """Whether its job runs, or has run, without having reported anything: its steps are counted by time."""
        return self.launch is not None and not self._reports

    @property
    def saves_at_end(self) -> bool:
        """Whether a rank of its job has declared that it writes a checkpoint when its lease ends."""
        return any(report.saves_at_end for report in self._reports.values())

    @property
    def is_done(self) -> bool:
        """Whether its ranks here have all reported their last step."""
        return self.launch is not None and has_done_all(self.launch, list(self._reports.values()))

    @property
    def shim_process(self) -> int:
        """Process id of its living shim; 0 = none known."""
        if self.is_over or self.has_lost_shim or self._written_end is not None:
            return 0
        if self.shim is not None:
            return self.shim.process
        is_child_alive = self._child is not None and self._child.returncode is None
        return self._child.pid if self._child is not None and is_child_alive else 0

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs any more, though its checkpoints may not be counted yet."""
        return self.end is not None or self.closing is not None

    def has_token(self, token: str) -> bool:
        """Whether this is the token of its job."""
        known = self.launch.environment.get(TOKEN_VARIABLE, "") if self.launch else ""
        return bool(known) and hmac.compare_digest(known.encode(), token.encode())

    def observe(self, now_clock_s: float) -> None:
        """Reads what has changed in its directory, and sees whether its shim lives."""
        if self.is_over:
            self._reap()
            return
        if not self.directory.is_dir():
            self._recreate()
        if self.launch is None:
            return
        self._read_shim()
        self._read_progress()
        self._update_progress(now_clock_s)
        if self._is_shim_there(now_clock_s):
            return
        self._read_shim()  # its last words, and the job's, may be younger than the look above
        self._read_progress()
        self._written_end = self._read(lease_files.END_FILE, lease_files.read_end) or self._written_end
        if self._written_end is None:
            self.has_lost_shim = True
        elif processes.kill_lease(self._shim_state(), self.directory, self._cgroup):
            self._ended(self._written_end)

    def load_end(self) -> None:
        """Takes over an end of which nothing ran, or of an earlier agent."""
        end = self._read(lease_files.END_FILE, lease_files.read_end)
        if end is not None:
            self._ended(end)

    def amend(self, *, until_clock_s: float, stop: bool, kill: bool, steps_saved: float, now_clock_s: float) -> None:
        """New orders for the shim and the job."""
        self.killed_clock_s = min(self.killed_clock_s, now_clock_s) if kill else self.killed_clock_s
        new = replace(
            self.orders,
            version=self.orders.version + 1,
            until_clock_s=until_clock_s,
            stop=stop,
            kill=kill,
            steps_saved=steps_saved,
        )
        lease_files.write_lease(self.directory, new)
        self.orders = new

    def spawn(self, launch: Launch, now_clock_s: float) -> None:
        """Starts the shim; its launch is written before, so that an agent that dies here leaves word of it."""
        lease_files.write_launch(self.directory, launch)
        self.release_port()
        self._child = subprocess.Popen(
            shim_argv(self.directory),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
        )
        self.launched_clock_s = now_clock_s
        self.launch = launch
        self.is_starting = False

    def destroy(self, now_clock_s: float) -> None:
        """Kills what is left, and the shim, too, where it does not see that; ends the lease once nothing is left."""
        if self.is_over:
            return
        if not self.orders.kill:  # a shim that has not come far enough to be seen will not start anything now
            orders = self.orders
            self.amend(
                until_clock_s=orders.until_clock_s,
                stop=orders.stop,
                kill=True,
                steps_saved=orders.steps_saved,
                now_clock_s=now_clock_s,
            )
        if self.is_starting:
            return  # whoever prepares the start will see the order
        self.destroyed_clock_s = min(self.destroyed_clock_s, now_clock_s)
        if not processes.kill_lease(self._shim_state(), self.directory, self._cgroup):
            return
        if not self.has_lost_shim:
            shim = self.shim_process or find_shim_process(self.directory)
            if now_clock_s > self.destroyed_clock_s + SHIM_DIES_S and shim > 0:
                logger.warning("shim does not answer: killed", extra={"lease": self.lease, "job": self.job})
                processes.send(shim, signal.SIGKILL)
            return
        is_over = now_clock_s > self.orders.until_clock_s
        why = "its shim did not answer and was killed" if is_over else "its shim vanished"
        self.conclude(Outcome.FINISHED if is_over and self.is_done else Outcome.LOST, why, now_clock_s)

    def conclude(self, outcome: Outcome, detail: str, now_clock_s: float) -> None:
        """Ends a lease of which nothing runs; what it has saved counts."""
        saved = self.progress.steps_saved
        end = End(outcome, 0, saved, saved, detail, now_clock_s)
        lease_files.write_end(self.directory, end)
        self.is_starting = False
        self._ended(end)

    def release_port(self) -> None:
        """Lets the ranks bind the port where they meet."""
        if self.port is not None:
            self.port.release()
            self.port = None

    def write_assignment(self) -> None:
        """Writes assignment.json."""
        kept = AssignmentRecord(self.lease, self.job, self.assignment)
        lease_files.write_text_whole(self.directory / ASSIGNMENT_FILE, msgspec.json.encode(kept).decode())

    @property
    def checkpoint_directory(self) -> str:
        """Where its job writes checkpoints; empty where nothing was started."""
        return self.launch.environment.get(lease_files.CHECKPOINT_DIRECTORY_VARIABLE, "") if self.launch else ""

    def finish(self, steps_on_disk: float) -> None:
        """Its whole checkpoints are counted: one that its job did not live to report counts, too."""
        assert self.closing is not None, "a lease is finished once nothing of it runs"
        end, self.end, self.closing = self.closing, self.closing, None
        saved = max(end.steps_saved, steps_on_disk)
        self.progress = LeaseProgress(max(end.steps_done, saved), saved, self.progress.rate_steps_per_s)

    def _ended(self, end: End) -> None:
        """Takes the end over. The checkpoint directory may be on storage that hangs, so others look into it."""
        self.closing = end
        self.has_lost_shim = False
        self.release_port()
        if self._cgroup:
            cgroups.remove(self._cgroup)
        self._reap()
        if self.checkpoint_directory and self.count_saved is not None:
            self.count_saved(self)
        else:
            self.finish(0.0)

    def _recreate(self) -> None:
        """A job can remove its lease's directory; its shim and it are given their orders all the same."""
        self.directory.unlink(missing_ok=True)
        self.directory.mkdir(mode=0o700)
        self.write_assignment()
        if self.launch is not None:
            lease_files.write_launch(self.directory, self.launch)
        if self.shim is not None:
            lease_files.write_shim(self.directory, self.shim)
        lease_files.write_lease(self.directory, self.orders)
        logger.error("lease directory was removed: made anew", extra={"lease": self.lease, "job": self.job})

    def _reap(self) -> None:
        if self._child is not None and self._child.poll() is not None:
            self._child = None

    @property
    def child(self) -> int:
        """The process of the shim that this agent started and has not waited for; 0 = none."""
        return self._child.pid if self._child is not None else 0

    @property
    def _cgroup(self) -> str:
        """The control group of its job; empty = none. A job can write its lease's files, so the name is checked."""
        path = self.launch.cgroup if self.launch is not None else ""
        return path if cgroups.is_group_of(path, self.lease) else ""

    def _shim_state(self) -> ShimState:
        """The shim's word, or a stand-in that finds its processes by their environment alone."""
        return self.shim or ShimState(-1, 0, processes.boot_id(), Phase.STARTING)

    def _is_shim_there(self, now_clock_s: float) -> bool:
        is_child_alive = self._child is not None and self._child.poll() is None
        if self.shim is not None:
            return is_child_alive or processes.is_shim_alive(self.shim)
        if is_child_alive or now_clock_s < self.launched_clock_s + SHIM_APPEARS_S:
            return is_child_alive or self._child is None  # a child that has died will not appear any more
        return find_shim_process(self.directory) > 0

    def _read_shim(self) -> None:
        self.shim = self._read(lease_files.SHIM_FILE, lease_files.read_shim) or self.shim

    def _read_progress(self) -> None:
        for rank in range(self.assignment.local_ranks if self.assignment else 0):
            name = lease_files.progress_file(rank)
            found = self._read(name, partial(lease_files.read_progress, local_rank=rank))
            if found is not None:
                self._reports[rank] = found

    def _read(self, name: str, read: Callable[[Path], Said | None]) -> Said | None:
        """The content of a file if it has changed since it was last read; a damaged one is logged and ignored."""
        try:
            status = (self.directory / name).lstat()
        except FileNotFoundError:
            return None
        seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        if self._seen.get(name) == seen:
            return None
        self._seen[name] = seen
        try:
            return read(self.directory)
        except RemoteViolation as violation:
            logger.warning("file of a lease ignored: %s", violation, extra={"lease": self.lease, "job": self.job})
            return None

    def _update_progress(self, now_clock_s: float) -> None:
        assert self.launch is not None, "asked of what was launched"
        began = self.launch.steps_done
        if self._reports:
            reports = self._reports.values()
            is_whole = len(self._reports) == self.launch.local_ranks
            self.progress = LeaseProgress(
                min(report.steps_done for report in reports) if is_whole else began,
                max(began, *(report.steps_saved for report in reports)),
                min(report.rate_steps_per_s for report in reports) if is_whole else 0.0,
            )
        elif self.shim is not None and self.shim.phase is not Phase.STARTING:
            ran_s = max(0.0, now_clock_s - self.shim.started_clock_s)
            self.progress = LeaseProgress(estimated_steps(self.launch, ran_s), began)


def find_shim_process(directory: Path) -> int:
    """The process that was started with this lease directory as an argument, as its shim is; 0 = none."""
    wanted = str(directory).encode()
    found = (facts.process for facts in processes.all_processes() if wanted in _arguments(facts.process))
    return next(found, 0)


def _arguments(process: int) -> list[bytes]:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


class ReservedPort:
    """A port that is bound and not listened on; `release` it just before its user starts."""

    def __init__(self, preferred: int = 0) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.bind(("", preferred))
        except OSError:
            self._socket.bind(("", 0))  # somebody has taken it meanwhile
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Lets others bind it."""
        self._socket.close()
