"""The shim's loop: looks at the clock and the lease, moves the job's output into its logs, and sends signals.

One thread, because PR_SET_PDEATHSIG is about the thread that forked. Decisions are in `orders` and `verdict`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from gavelpy.errors import RemoteViolation
from gavelpy.runtime import lease_files
from gavelpy.runtime.lease_files import End, Launch, Lease, Outcome, Phase, Progress, ShimState, clock_s
from gavelpy.runtime.shim import cgroups, pacing, processes, ranks
from gavelpy.runtime.shim.log_files import LogWriter
from gavelpy.runtime.shim.orders import Stage, Standing, is_stop_asked, next_standing, seconds_left
from gavelpy.runtime.shim.verdict import Exits, estimated_steps, has_done_all, is_fault, verdict

POLL_S: Final = 0.05  # between looks at lease.json
READ_BYTES: Final = 1 << 16
ORPHANS_EVERY_S: Final = 1.0
RETRY_S: Final = 1.0


class Supervisor:
    """Runs one lease from its start to its end.json."""

    def __init__(self, directory: Path, launch: Launch, lease: Lease) -> None:
        self._directory = directory
        self._launch = launch
        self._lease = lease
        self._lease_seen: tuple[int, int] = (0, 0)
        self._standing = Standing()
        self._ranks: list[ranks.Rank] = []
        self._writers: dict[int, LogWriter] = {}
        self._codes: dict[int, int] = {}
        self._first_fault = -1
        self._paused = False
        self._reported = False
        self._cgroup = ""
        self._asked_to_end = False
        self._orphans_reaped_s = 0.0
        self._ended_s = 0.0
        me = processes.this_process()
        self._state = ShimState(
            me.process, me.start_ticks, processes.boot_id(), Phase.STARTING, started_clock_s=clock_s()
        )

    def run(self) -> End:
        """Starts the job, sees it through and writes how it ended."""
        lease_files.write_shim(self._directory, self._state)
        signal.signal(signal.SIGTERM, lambda *_: self._ask_to_end())
        end = self._start() or self._see_through()
        while not self._written(end):
            time.sleep(RETRY_S)
        self._say(Phase.ENDED)
        return end

    def _written(self, end: End) -> bool:
        """The last word must not be lost where a disk is full for a while."""
        try:
            lease_files.write_end(self._directory, end)
        except OSError as error:
            sys.stderr.write(f"end.json: {error}\n")
            return not self._directory.exists()
        return True

    def _ask_to_end(self) -> None:
        self._asked_to_end = True

    def _start(self) -> End | None:
        """None once all ranks run; how it ended where one cannot be started or the lease is over before it began."""
        self._read_lease()
        if self._lease.kill or self._lease.stop or clock_s() >= self._lease.until_clock_s:
            return self._not_run(Outcome.STOPPED, "the lease was over before anything was started", 0)
        self._make_cgroup()
        marker = {lease_files.LEASE_DIRECTORY_VARIABLE: str(self._directory)}
        try:
            for environment in self._launch.rank_environments:
                self._start_rank({**self._launch.environment, **environment, **marker})
        except ranks.CannotStart as error:
            self._kill_all()
            return self._not_run(Outcome.FAILED, str(error.strerror), error.code)
        self._say(Phase.RUNNING)
        return None

    def _make_cgroup(self) -> None:
        """Without its control group a job runs all the same: its session, environment and descent tell it, too."""
        try:
            if self._launch.cgroup:
                cgroups.make(self._launch.cgroup)
                self._cgroup = self._launch.cgroup
        except OSError as error:
            sys.stderr.write(f"control group: {error}\n")

    def _start_rank(self, environment: dict[str, str]) -> None:
        launch, local_rank = self._launch, len(self._ranks)
        rank = ranks.start_rank(launch.argv, launch.working_directory, environment, self._state.group, self._cgroup)
        self._ranks.append(rank)
        for end, is_error_stream in ((rank.output, False), (rank.errors, True)):
            self._writers[end] = LogWriter(
                self._directory,
                launch.first_rank + local_rank,
                is_error_stream=is_error_stream,
                bytes_max=launch.log_bytes_max,
                files_max=launch.log_files_max,
            )
        self._state = replace(
            self._state, group=self._ranks[0].process, job_processes=tuple(rank.process for rank in self._ranks)
        )
        self._say(Phase.STARTING)

    def _see_through(self) -> End:
        while len(self._codes) < len(self._ranks):
            self._pace()
            self._capture(self._wait_s())
            self._read_lease()
            self._obey()
            self._see_exits()
        reports = self._reports()
        self._kill_all()
        exits = Exits(
            codes=self._codes,
            first_fault=self._first_fault,
            ran_s=self._ended_s - self._state.started_clock_s,
            stop_asked=is_stop_asked(self._ended_s, self._launch, self._lease, self._standing),
        )
        return verdict(self._launch, exits, reports, self._standing.reason, clock_s())

    def _read_lease(self) -> None:
        """Takes over newer orders; a damaged file leaves those in force."""
        try:
            found = (self._directory / lease_files.LEASE_FILE).stat()
            seen = (found.st_ino, found.st_mtime_ns)
            if seen != self._lease_seen:
                lease = lease_files.read_lease(self._directory)
                self._lease = lease if lease and lease.version >= self._lease.version else self._lease
                self._lease_seen = seen
        except (FileNotFoundError, RemoteViolation):
            return

    def _orders(self) -> Lease:
        """The lease; also a stop where the shim was asked to end, or a job that does not report has had its steps."""
        steps_max = self._lease.steps_max
        ran_s = clock_s() - self._state.started_clock_s
        has_enough = 0 < steps_max <= estimated_steps(self._launch, ran_s) and not self._has_reports()
        return replace(self._lease, stop=True) if has_enough or self._asked_to_end else self._lease

    def _obey(self) -> None:
        """Sends what the moment asks for. The clock is read after every sleep, however long that was."""
        before, lease = self._standing, self._orders()
        is_done = self._lease.stop and not self._asked_to_end and has_done_all(self._launch, self._reports())
        self._standing = now = next_standing(
            clock_s(), self._launch, lease, before, reports=self._has_reports(), is_done=is_done
        )
        if now.warned_until_s != before.warned_until_s:
            self._send_ranks(self._launch.warning_signal)
        if now.stage is before.stage:
            return
        self._say(Phase.STOPPING)
        self._send_group(signal.SIGTERM if now.stage is Stage.TERMINATED else signal.SIGKILL)
        self._send_group(signal.SIGCONT)
        self._paused = False

    def _pace(self) -> None:
        """A slower GPU does slower steps; how long a program takes to start is the machine's affair."""
        started_s = clock_s() - self._state.started_clock_s
        if started_s < self._launch.silent_start_s and not self._has_reports():
            return
        is_stopping = self._standing.stage > Stage.RUNNING or self._standing.stop_seen_s < float("inf")
        pause = not is_stopping and not pacing.may_run(clock_s(), self._launch.speed_factor)
        if pause != self._paused:
            self._paused = pause
            self._send_group(signal.SIGSTOP if pause else signal.SIGCONT)

    def _wait_s(self) -> float:
        now_s = clock_s()
        orders_s = seconds_left(now_s, self._launch, self._lease, self._standing, reports=self._has_reports())
        return min(POLL_S, orders_s, pacing.until_change_s(now_s, self._launch.speed_factor))

    def _capture(self, timeout_s: float) -> None:
        """Waits for output or so long, and moves what there is."""
        ends = ranks.readable(list(self._writers), timeout_s)
        now_s = time.time()
        for end in ends:
            content = os.read(end, READ_BYTES)
            if content:
                self._writers[end].write(content, now_s)
            else:
                self._close(end, now_s)
        for writer in self._writers.values():
            writer.flush(now_s)

    def _close(self, end: int, now_s: float) -> None:
        self._writers.pop(end).close(now_s)
        os.close(end)

    def _see_exits(self) -> None:
        for local_rank, rank in enumerate(self._ranks):
            code = ranks.exit_code(rank.process) if local_rank not in self._codes else None
            if code is not None:
                self._codes[local_rank] = code
                self._ended_s = clock_s()
                self._judge(local_rank, code)
        if clock_s() - self._orphans_reaped_s > ORPHANS_EVERY_S:
            ranks.reap_orphans(self._state.job_processes)
            self._orphans_reaped_s = clock_s()

    def _judge(self, local_rank: int, code: int) -> None:
        """One rank that fails takes the others with it."""
        report = self._report(local_rank)
        expired = report is not None and report.stopped and self._ended_s >= self._lease.until_clock_s
        if self._first_fault >= 0 or not is_fault(code, self._launch, self._standing, expired=expired):
            return
        self._first_fault = local_rank
        self._standing = replace(self._standing, stage=Stage.KILLED, reason="a rank failed")
        self._send_group(signal.SIGKILL)

    def _kill_all(self) -> None:
        """Ends whatever is left of the job, also what has left its group, and takes the last of its output.

        The group first, in one move: a process that forks and exits faster than /proc is read is never found there.
        """
        if self._ranks:
            self._send_group(signal.SIGKILL)
        while not processes.kill_lease(self._state, self._directory, self._cgroup):
            self._capture(POLL_S / 5)
            ranks.reap_orphans(self._state.job_processes)
        if self._cgroup:
            cgroups.remove(self._cgroup)
        for end in list(self._writers):
            self._drain(end)

    def _drain(self, end: int) -> None:
        while ranks.readable([end], 0.0) and (content := os.read(end, READ_BYTES)):
            self._writers[end].write(content, time.time())
        self._close(end, time.time())

    def _reports(self) -> list[Progress]:
        reports = (self._report(rank) for rank in lease_files.reporting_ranks(self._directory))
        return [report for report in reports if report is not None]

    def _report(self, local_rank: int) -> Progress | None:
        try:
            return lease_files.read_progress(self._directory, local_rank)
        except RemoteViolation:
            return None

    def _has_reports(self) -> bool:
        self._reported = self._reported or bool(lease_files.reporting_ranks(self._directory))
        return self._reported

    def _send_group(self, number: int) -> None:
        assert self._state.group > 0, "group 0 would be the shim's own"
        processes.send(-self._state.group, number)

    def _send_ranks(self, number: int) -> None:
        for rank in self._ranks:
            processes.send(rank.process, number)

    def _say(self, phase: Phase) -> None:
        """Where a full disk keeps the state from being told, the job goes on all the same."""
        self._state = replace(self._state, phase=phase)
        try:
            lease_files.write_shim(self._directory, self._state)
        except OSError as error:
            sys.stderr.write(f"shim.json: {error}\n")

    def _not_run(self, outcome: Outcome, detail: str, code: int) -> End:
        steps = self._launch.steps_done
        return End(outcome, code, steps, steps, detail, clock_s())
