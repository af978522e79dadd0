"""One lease of this node: its directory, its shim, its progress and its end.

    assignment.json    what the scheduler launched; written first, so a directory without it is no lease
    (the other files)  see lease_files

A lease has ended when there is an end.json, its shim has exited and no process of it is left; only then are its GPUs
free. If the shim exits without an end.json, the lease is killed and ends as lost.
"""

from __future__ import annotations

import hmac
import logging
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from gavelpy.errors import RemoteViolation
from gavelpy.runtime import lease_files
from gavelpy.runtime.accounts import Account, account_fields
from gavelpy.runtime.agent.leases import job_directory
from gavelpy.runtime.agent.leases.orders import NodeAssignment
from gavelpy.runtime.agent.leases.reconcile import LocalLease, LocalPhase
from gavelpy.runtime.agent.leases.rendezvous_port import ReservedPort
from gavelpy.runtime.lease_files import End, Launch, LeaseOutcome, LeaseTerms, Progress, ShimPhase, ShimState
from gavelpy.runtime.metric_files import MetricFiles
from gavelpy.runtime.shim import cgroups, processes, shim_argv
from gavelpy.runtime.shim.termination import estimated_steps, has_done_all
from gavelpy.runtime.whole_files import write_text_whole

Record = TypeVar("Record")

logger = logging.getLogger(__name__)

ASSIGNMENT_FILE: Final = "assignment.json"
TOKEN_VARIABLE: Final = "GAVEL_JOB_TOKEN"
SHIM_APPEARS_S: Final = 2.0  # time for a started shim to write its shim.json
SHIM_DIES_S: Final = 1.0  # time for a working shim to exit after its job
_PHASES: Final = {
    ShimPhase.STARTING: LocalPhase.STARTING,
    ShimPhase.RUNNING: LocalPhase.RUNNING,
    ShimPhase.STOPPING: LocalPhase.STOPPING,
    ShimPhase.ENDED: LocalPhase.STOPPING,
}


@dataclass(frozen=True)
class AssignmentRecord:
    """The contents of assignment.json."""

    lease: int
    job: int
    assignment: NodeAssignment | None


@dataclass(frozen=True)
class LeaseProgress:
    """Steps done, saved and in all, the rate, and what goes wrong."""

    steps_done: float = 0.0
    steps_saved: float = 0.0
    rate_steps_per_s: float = 0.0
    steps_total: float = 0.0  # that its ranks announced; 0 = none has
    gpu_memory_gib: float = 0.0  # the most that a rank reported to have used of a GPU; 0 = none has
    save_error: str = ""  # why a rank's last checkpoint failed; empty = none has


@dataclass(eq=False)
class LeaseDirectory:
    """One lease, as the agent sees it."""

    directory: Path
    lease: int
    job: int
    assignment: NodeAssignment | None
    orders: LeaseTerms
    launch: Launch | None = None
    shim: ShimState | None = None
    end: End | None = None  # set once the lease has ended
    killed_clock_s: float = float("inf")
    is_starting: bool = False  # its start is being prepared
    is_withdrawn: bool = False  # that start is given up
    launched_clock_s: float = float("inf")  # when its shim was started
    destroyed_clock_s: float = float("inf")  # when its job was first killed from here
    port: ReservedPort | None = None
    has_lost_shim: bool = False
    progress: LeaseProgress = field(default_factory=LeaseProgress)
    count_saved: Callable[[LeaseDirectory], None] | None = None  # counts its whole checkpoints, and calls `finish`
    metrics: MetricFiles = field(default_factory=MetricFiles)
    gpu_memory_gib: float = 0.0  # the most that its processes were seen to use of a GPU
    closing: End | None = None  # how it ended, while its whole checkpoints are counted
    _written_end: End | None = None  # of a shim that is gone
    _child: subprocess.Popen[bytes] | None = None
    _seen: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    _reports: dict[int, Progress] = field(default_factory=dict)

    @property
    def local(self) -> LocalLease:
        """The lease as `reconcile` takes it."""
        return LocalLease(
            lease=self.lease, job=self.job, phase=self.phase,
            assignment=self.assignment,
            until_clock_s=self.orders.until_clock_s,
            stop=self.orders.stop,
            kill=self.orders.kill,
            killed_clock_s=self.killed_clock_s,
            steps_saved=self.orders.steps_saved,
            limit_clock_s=self.orders.limit_clock_s or float("inf"),
            has_lost_shim=self.has_lost_shim, is_withdrawn=self.is_withdrawn,
        )  # fmt: skip

    @property
    def phase(self) -> LocalPhase:
        """Its phase."""
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
        """Whether its job was started and has reported no progress: its steps are estimated from time."""
        return self.launch is not None and not self._reports

    @property
    def saves_at_end(self) -> bool:
        """Whether a rank has declared that it writes a checkpoint when the lease ends."""
        return any(report.saves_at_end for report in self._reports.values())

    @property
    def is_done(self) -> bool:
        """Whether all local ranks have reported their last step."""
        return self.launch is not None and has_done_all(self.launch, list(self._reports.values()))

    @property
    def shim_process(self) -> int:
        """Process id of its living shim; 0 = none."""
        if self.is_over or self.has_lost_shim or self._written_end is not None:
            return 0
        if self.shim is not None:
            return self.shim.process
        is_child_alive = self._child is not None and self._child.returncode is None
        return self._child.pid if self._child is not None and is_child_alive else 0

    @property
    def is_over(self) -> bool:
        """Whether none of its processes runs; its checkpoints may not be counted yet."""
        return self.end is not None or self.closing is not None

    def has_token(self, token: str) -> bool:
        """Whether its job has this token."""
        known = self.launch.environment.get(TOKEN_VARIABLE, "") if self.launch else ""
        return bool(known) and hmac.compare_digest(known.encode(), token.encode())

    def observe(self, now_clock_s: float) -> None:
        """Reads changed files and checks whether the shim lives."""
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
        if self._is_shim_alive(now_clock_s):
            return
        self._read_shim()  # it may have written again before it ended
        self._read_progress()
        self._written_end = self._read(lease_files.END_FILE, lease_files.read_end) or self._written_end
        if self._written_end is None:
            self.has_lost_shim = True
        elif processes.kill_lease(self._shim_state(), self.job_directory, self._cgroup):
            self._ended(self._written_end)

    def load_end(self) -> None:
        """Loads the end that an earlier agent or the shim wrote."""
        end = self._read(lease_files.END_FILE, lease_files.read_end)
        if end is not None:
            self._ended(end)

    def amend(self, terms: LeaseTerms, now_clock_s: float) -> None:
        """Writes new terms for the shim and the job, with the next version."""
        self.killed_clock_s = min(self.killed_clock_s, now_clock_s) if terms.kill else self.killed_clock_s
        new = replace(terms, version=self.orders.version + 1)
        lease_files.write_lease(self.directory, new)
        self.orders = new
        self._share_terms()

    def spawn(self, launch: Launch, now_clock_s: float) -> None:
        """Starts the shim, after writing launch.json: the next agent finds it if this one dies here."""
        if self.assignment is not None and self.assignment.time_left_s:
            limit_s = now_clock_s + self.assignment.time_left_s
            until_s = min(self.orders.until_clock_s, limit_s)
            self.amend(replace(self.orders, until_clock_s=until_s, limit_clock_s=limit_s), now_clock_s)
        if launch.uid >= 0:
            job_directory.make(self.directory, launch)
            job_directory.share_launch(self.directory, launch)
            job_directory.share_terms(self.directory, launch, self.orders)
        lease_files.write_launch(self.directory, launch)
        if self.port is not None:
            self.port.release()
        none = subprocess.DEVNULL
        self._child = subprocess.Popen(shim_argv(self.directory), stdin=none, stdout=none, stderr=none, cwd="/", env={})
        self.launched_clock_s, self.launch, self.is_starting = now_clock_s, launch, False

    def destroy(self, now_clock_s: float) -> None:
        """Kills the processes of the lease, then a shim that does not exit; concludes the lease once none is left."""
        if self.is_over:
            return
        if not self.orders.kill:  # a shim that is still starting reads this and starts nothing
            self.amend(replace(self.orders, kill=True), now_clock_s)
        if self.is_starting:
            return  # the starter checks the terms before the start
        self.destroyed_clock_s = min(self.destroyed_clock_s, now_clock_s)
        if not processes.kill_lease(self._shim_state(), self.job_directory, self._cgroup):
            return
        if not self.has_lost_shim:
            shim = self.shim_process or processes.find_shim_process(self.directory)
            if now_clock_s > self.destroyed_clock_s + SHIM_DIES_S and shim > 0:
                logger.warning("shim does not respond: killed", extra={"lease": self.lease, "job": self.job})
                processes.send(shim, signal.SIGKILL)
            return
        is_over = now_clock_s > self.orders.until_clock_s
        why = "its shim did not respond and was killed" if is_over else "its shim ended unexpectedly"
        self.conclude(LeaseOutcome.FINISHED if is_over and self.is_done else LeaseOutcome.LOST, why, now_clock_s)

    def conclude(self, outcome: LeaseOutcome, detail: str, now_clock_s: float, failure: str = "") -> None:
        """Ends a lease without processes; its saved steps count."""
        saved = self.progress.steps_saved
        end = End(outcome, 0, saved, saved, detail, now_clock_s, failure)
        lease_files.write_end(self.directory, end)
        self.is_starting = False
        self._ended(end)

    def close_port(self) -> None:
        """Ends the reservation of the rendezvous port."""
        if self.port is not None:
            self.port.close()
            self.port = None

    def write_assignment(self) -> None:
        """Writes assignment.json."""
        kept = AssignmentRecord(self.lease, self.job, self.assignment)
        write_text_whole(self.directory / ASSIGNMENT_FILE, msgspec.json.encode(kept).decode())

    @property
    def job_directory(self) -> Path:
        """Where its job reads the lease and writes its progress."""
        return self.launch.directory_of_job(self.directory) if self.launch is not None else self.directory

    @property
    def account_fields(self) -> dict[str, Any] | None:
        """The account of its job, as far as it is needed to read its checkpoints; None = the agent's."""
        launch = self.launch
        if launch is None or launch.uid < 0:
            return None
        return account_fields(Account("", launch.uid, launch.gid, launch.groups, "", ""))

    def write_progress(self, local_rank: int, progress: Progress) -> None:
        """Writes a report that the job has sent to its JobService. Raises OSError."""
        launch = self.launch
        if launch is not None and launch.uid >= 0:
            job_directory.share_progress(self.directory, launch, local_rank, progress)
        else:
            lease_files.write_progress(self.directory, local_rank, progress)

    def _share_terms(self) -> None:
        """Gives a job that runs as its owner its copy of the terms. It can spoil that copy: errors change nothing."""
        launch = self.launch
        if launch is None or launch.uid < 0 or self.is_over:
            return
        try:
            job_directory.share_terms(self.directory, launch, self.orders)
        except OSError as error:
            extra = {"lease": self.lease, "job": self.job}
            logger.warning("the job's copy of its lease cannot be written: %s", error, extra=extra)

    @property
    def checkpoint_directory(self) -> str:
        """Where its job writes checkpoints; empty if nothing was started."""
        return self.launch.environment.get(lease_files.CHECKPOINT_DIRECTORY_VARIABLE, "") if self.launch else ""

    def finish(self, steps_on_disk: float) -> None:
        """Ends the lease with the steps of its newest complete checkpoint, which the job may not have reported."""
        assert self.closing is not None, "a lease is finished once it has no processes"
        end, self.end, self.closing = self.closing, self.closing, None
        saved = max(end.steps_saved, steps_on_disk)
        self.progress = replace(self.progress, steps_done=max(end.steps_done, saved), steps_saved=saved)

    def _ended(self, end: End) -> None:
        """Records the end. Checkpoints are counted elsewhere, because storage can hang."""
        self.closing = end
        self.has_lost_shim = False
        self.close_port()
        for group in (self._cgroup, *(self.launch.limit_groups if self.launch is not None else ())):
            if cgroups.is_group_of(group, self.lease):
                cgroups.remove(group)
        self._reap()
        if self.checkpoint_directory and self.count_saved is not None:
            self.count_saved(self)
        else:
            self.finish(0.0)

    def _recreate(self) -> None:
        """Recreates a directory that the job has removed, so that shim and job get their terms."""
        self.directory.unlink(missing_ok=True)
        self.directory.mkdir(mode=0o700)
        self.write_assignment()
        if self.launch is not None:
            lease_files.write_launch(self.directory, self.launch)
        if self.shim is not None:
            lease_files.write_shim(self.directory, self.shim)
        lease_files.write_lease(self.directory, self.orders)
        logger.error("lease directory was removed: recreated", extra={"lease": self.lease, "job": self.job})

    def _reap(self) -> None:
        if self._child is not None and self._child.poll() is not None:
            self._child = None

    @property
    def child(self) -> int:
        """Process id of the shim that this agent started and has not reaped; 0 = none."""
        return self._child.pid if self._child is not None else 0

    @property
    def _cgroup(self) -> str:
        """The control group of its job; empty = none. The name is checked, as the job can write the lease's files."""
        path = self.launch.cgroup if self.launch is not None else ""
        return path if cgroups.is_group_of(path, self.lease) else ""

    def _shim_state(self) -> ShimState:
        """The shim's state, or an empty one, with which processes are found by their environment."""
        return self.shim or ShimState(-1, 0, processes.boot_id(), ShimPhase.STARTING)

    def _is_shim_alive(self, now_clock_s: float) -> bool:
        is_child_alive = self._child is not None and self._child.poll() is None
        if self.shim is not None:
            return is_child_alive or processes.is_shim_alive(self.shim)
        if is_child_alive or now_clock_s < self.launched_clock_s + SHIM_APPEARS_S:
            return is_child_alive or self._child is None  # a child that has ended will not write it any more
        return processes.find_shim_process(self.directory) > 0

    def _read_shim(self) -> None:
        self.shim = self._read(lease_files.SHIM_FILE, lease_files.read_shim) or self.shim

    def _read_progress(self) -> None:
        is_interactive = self.launch is not None and self.launch.terminal_away_s > 0  # its programs are not the job
        for rank in range(self.assignment.local_ranks if self.assignment and not is_interactive else 0):
            read = partial(lease_files.read_progress, local_rank=rank)
            found = self._read(lease_files.progress_file(rank), read, self.job_directory)
            if found is not None:
                self._reports[rank] = found
            self.metrics.read(rank, self._read, self.job_directory)

    def _read(self, name: str, read: Callable[[Path], Record | None], directory: Path | None = None) -> Record | None:
        """The content of a file that has changed since the last call; a damaged one is logged and ignored."""
        place = directory or self.directory
        try:
            status = (place / name).lstat()
        except FileNotFoundError:
            return None
        seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        if self._seen.get(name) == seen:
            return None
        self._seen[name] = seen
        try:
            return read(place)
        except RemoteViolation as violation:
            logger.warning("file of a lease ignored: %s", violation, extra={"lease": self.lease, "job": self.job})
            return None

    def _update_progress(self, now_clock_s: float) -> None:
        assert self.launch is not None, "only called after a launch"
        began = self.launch.steps_done
        if reports := self._reports.values():
            is_whole = len(self._reports) == self.launch.local_ranks
            self.progress = LeaseProgress(
                min(report.steps_done for report in reports) if is_whole else began,
                max(began, *(report.steps_saved for report in reports)),
                min(report.rate_steps_per_s for report in reports) if is_whole else 0.0,
                min((report.steps_total for report in reports if report.steps_total), default=0.0),
                max(report.gpu_memory_gib for report in reports),
                next((report.save_error for report in reports if report.save_error), ""),
            )
        elif self.shim is not None and self.shim.phase is not ShimPhase.STARTING:
            ran_s = max(0.0, now_clock_s - self.shim.started_clock_s)
            self.progress = LeaseProgress(estimated_steps(self.launch, ran_s), began)
