"""The shim's process and loop: reads the lease, captures the job's output, sends signals, writes how the lease ended.

One thread, because PR_SET_PDEATHSIG applies to the thread that forked. `termination` decides.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gavelpy.errors import RemoteViolation
from gavelpy.runtime import lease_files
from gavelpy.runtime.lease_files import End, Launch, LeaseOutcome, LeaseTerms, Progress, ShimPhase, ShimState, clock_s
from gavelpy.runtime.shim import cgroups, containers, failures, isolation, processes, ranks
from gavelpy.runtime.shim.log_files import LogWriter
from gavelpy.runtime.shim.termination import (
    RankExits,
    Stage,
    Termination,
    estimated_steps,
    has_done_all,
    is_failure,
    is_stop_requested,
    lease_end,
    limited,
    may_run,
    next_termination,
    seconds_left,
    session_end,
    until_change_s,
)

if TYPE_CHECKING:
    from gavelpy.runtime.shim.terminal import Terminal

LOG_FILE: Final = "shim.log"
POLL_S: Final = 0.05  # of lease.json
READ_BYTES: Final = 1 << 16
ORPHANS_EVERY_S: Final = 1.0
RETRY_S: Final = 1.0
LINGER_S: Final = 30.0  # after the end of an interactive program, for the first client


def main(argv: Sequence[str]) -> int:
    """Runs the lease of one directory; the exit code does not depend on the job."""
    directory = Path(argv[0]).resolve()
    processes.detach(directory / LOG_FILE)
    try:
        launch, lease = lease_files.read_start(directory)
    except RemoteViolation as error:
        lease_files.write_end(directory, End(LeaseOutcome.FAILED, 0, 0.0, 0.0, str(error), clock_s()))
        return 1
    Supervisor(directory, launch, lease).run()
    return 0


class Supervisor:
    """Runs one lease, from the start of its ranks to end.json."""

    def __init__(self, directory: Path, launch: Launch, lease: LeaseTerms) -> None:
        self._directory = directory
        self._launch = launch
        self._lease = lease
        self._job_directory = launch.directory_of_job(directory)
        self._lease_seen: tuple[int, int] = (0, 0)
        self._termination = Termination()
        self._ranks: list[ranks.Rank] = []
        self._writers: dict[int, LogWriter] = {}
        self._tails = failures.OutputTails()
        self._memory_kills = failures.memory_kills()
        self._memory_evidence = ""
        self._stalls = failures.StallWatch(launch.stall_s, clock_s())
        self._codes: dict[int, int] = {}
        self._first_failure = -1
        self._paused = False
        self._reported = False
        self._groups = cgroups.JobGroups()
        self._terminal: Terminal | None = None
        self._is_abandoned = False
        self._is_terminating = False
        self._orphans_reaped_s = 0.0
        self._ended_s = 0.0
        me = processes.this_process()
        self._state = ShimState(
            me.process, me.start_ticks, processes.boot_id(), ShimPhase.STARTING, started_clock_s=clock_s()
        )

    def run(self) -> End:
        """Starts the job, supervises it and writes how it ended."""
        lease_files.write_shim(self._directory, self._state)
        signal.signal(signal.SIGTERM, lambda *_: self._terminate())
        end = self._start() or self._supervise()
        if code_directory := self._launch.software.get("code", ""):
            shutil.rmtree(code_directory, ignore_errors=True)
        while not self._written(end):
            time.sleep(RETRY_S)
        self._write_state(ShimPhase.ENDED)
        return end

    def _written(self, end: End) -> bool:
        """Whether end.json has been written; a full disk is retried."""
        try:
            lease_files.write_end(self._directory, end)
        except OSError as error:
            sys.stderr.write(f"end.json: {error}\n")
            return not self._directory.exists()
        return True

    def _terminate(self) -> None:
        self._is_terminating = True

    def _start(self) -> End | None:
        """None if all ranks run; else how the lease ended."""
        self._read_lease()
        if self._is_over():
            return failures.not_started(
                self._launch, LeaseOutcome.STOPPED, "the lease was over before anything was started", 0
            )
        if why := self._groups.make(self._launch) or isolation.isolate(self._directory, self._launch):
            return failures.not_started(self._launch, LeaseOutcome.LOST, why, 0)
        marker = {lease_files.LEASE_DIRECTORY_VARIABLE: str(self._job_directory)}
        common = {**self._launch.environment, **marker}
        try:
            if (self._launch.software or self._launch.secrets) and (end := self._prepare(common)):
                return end
            self._open_terminal()
            for environment in self._launch.rank_environments:
                self._start_rank({**common, **environment})
        except ranks.RankNotStarted as error:
            self._kill_all()
            return failures.not_started(self._launch, LeaseOutcome.FAILED, str(error.strerror), error.code)
        self._write_state(ShimPhase.RUNNING)
        return None

    def _prepare(self, environment: dict[str, str]) -> End | None:
        """Prepares the job's software and adds its secrets to the environment; None, or how the lease ended."""
        from gavelpy.runtime.shim import preparation  # few jobs need it, and it loads much

        made = preparation.prepare(self._launch, environment, self._groups.all, self._is_over)
        environment |= {**made.secrets, **environment}
        if made.outcome is None:
            return None
        self._kill_all()
        return failures.not_started(self._launch, made.outcome, made.message, made.code)

    def _open_terminal(self) -> None:
        """Makes the terminal of an interactive job, which has one process."""
        if self._launch.terminal_away_s > 0:
            from gavelpy.runtime.shim.terminal import Terminal  # few jobs have one

            self._terminal = Terminal(self._directory, self._launch.terminal_away_s, clock_s(), self._launch.uid)

    def _is_over(self) -> bool:
        """Whether the lease is over before its ranks have started."""
        self._read_lease()
        is_over = clock_s() >= self._lease.until_clock_s
        return self._is_terminating or self._lease.kill or self._lease.stop or is_over

    def _start_rank(self, environment: dict[str, str]) -> None:
        launch, local_rank = self._launch, len(self._ranks)
        slave = self._terminal.slave if self._terminal is not None else -1
        rank = ranks.start_rank(
            *containers.command(launch, self._job_directory, environment, local_rank),
            self._state.group,
            self._groups.all,
            launch.identity,
            slave,
        )
        if self._terminal is not None:
            self._terminal.started()
        self._ranks.append(rank)
        for end, is_error_stream in ((rank.output, False), (rank.errors, True)):
            self._tails.follow(end, local_rank, is_error_stream=is_error_stream)
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
        self._write_state(ShimPhase.STARTING)

    def _supervise(self) -> End:
        while len(self._codes) < len(self._ranks):
            self._throttle()
            self._capture(self._wait_s())
            self._read_lease()
            self._stalls.look(clock_s(), self._reports, self._launch.steps_total)
            self._send_signals()
            self._collect_exits()
        reports = self._reports()
        if self._terminal is not None:
            return self._end_session(self._terminal)
        self._kill_all()
        exits = RankExits(
            codes=self._codes,
            first_failure=self._first_failure,
            ran_s=self._ended_s - self._state.started_clock_s,
            stop_requested=is_stop_requested(self._ended_s, self._launch, self._lease, self._termination),
        )
        end = lease_end(self._launch, exits, reports, self._termination.reason, clock_s())
        end = failures.explained(end, self._tails, self._codes, self._first_failure, self._memory_evidence)
        return limited(end, self._lease, self._stalls.stalled)

    def _end_session(self, terminal: Terminal) -> End:
        """Waits for the first client of a session that was short: it gets the output and the exit code."""
        is_abandoned, code = self._is_abandoned, self._codes[0]
        end = session_end(self._launch, code, self._lease, self._ended_s, is_abandoned=is_abandoned)
        while terminal.awaits_first_client and clock_s() < self._ended_s + LINGER_S and not self._is_over():
            self._capture(POLL_S)
        terminal.finish(code)
        self._kill_all()
        return end

    def _read_lease(self) -> None:
        """Reads a newer lease; ignores a damaged file."""
        try:
            found = (self._directory / lease_files.LEASE_FILE).stat()
            seen = (found.st_ino, found.st_mtime_ns)
            if seen != self._lease_seen:
                lease = lease_files.read_lease(self._directory)
                self._lease = lease if lease and lease.version >= self._lease.version else self._lease
                self._lease_seen = seen
        except (FileNotFoundError, RemoteViolation):
            return

    def _orders(self) -> LeaseTerms:
        """The lease, with a stop if the shim got SIGTERM or a job that does not report has used its steps.

        A job that has stalled will not stop by itself: its lease is over at once. An interactive job stops
        if no client is attached.
        """
        if self._stalls.stalled:
            return replace(self._lease, until_clock_s=min(self._lease.until_clock_s, self._stalls.looked_s))
        steps_max = self._lease.steps_max
        ran_s = clock_s() - self._state.started_clock_s
        has_enough = 0 < steps_max <= estimated_steps(self._launch, ran_s) and not self._has_reports()
        is_to_stop = has_enough or self._is_terminating or self._is_abandoned
        return replace(self._lease, stop=True) if is_to_stop else self._lease

    def _send_signals(self) -> None:
        """Sends the signals that are due."""
        before, lease = self._termination, self._orders()
        is_done = self._lease.stop and not self._is_terminating and has_done_all(self._launch, self._reports())
        self._termination = now = next_termination(
            clock_s(), self._launch, lease, before, reports=self._has_reports(), is_done=is_done
        )
        if now.warned_until_s != before.warned_until_s:
            self._send_ranks(self._launch.warning_signal)
        if now.stage is before.stage:
            return
        self._write_state(ShimPhase.STOPPING)
        is_kill = now.stage is not Stage.TERMINATED
        send = self._send_ranks if self._launch.hides_ranks and not is_kill else self._send_group
        send(signal.SIGKILL if is_kill else signal.SIGTERM)
        self._send_group(signal.SIGCONT)
        self._paused = False

    def _throttle(self) -> None:
        """Pauses the job for a share of each period, to emulate a slower GPU; not while the program starts."""
        started_s = clock_s() - self._state.started_clock_s
        if started_s < self._launch.silent_start_s and not self._has_reports():
            return
        is_stopping = self._termination.stage > Stage.RUNNING or self._termination.stop_seen_s < float("inf")
        pause = not is_stopping and not may_run(clock_s(), self._launch.speed_factor)
        if pause != self._paused:
            self._paused = pause
            self._send_group(signal.SIGSTOP if pause else signal.SIGCONT)

    def _wait_s(self) -> float:
        now_s = clock_s()
        orders_s = seconds_left(now_s, self._launch, self._lease, self._termination, reports=self._has_reports())
        return min(POLL_S, orders_s, until_change_s(now_s, self._launch.speed_factor))

    def _capture(self, timeout_s: float) -> None:
        """Waits for output, at most `timeout_s`, and writes it to the logs."""
        terminal = self._terminal.ends if self._terminal is not None else []
        ends = ranks.readable([*self._writers, *terminal], timeout_s)
        now_s = time.time()
        if self._terminal is not None:
            self._serve_terminal(self._terminal, ends)
        for end in (end for end in ends if end in self._writers):
            content = os.read(end, READ_BYTES)
            if content:
                self._take(end, content, now_s)
            else:
                self._close(end, now_s)
        for writer in self._writers.values():
            writer.flush(now_s)

    def _take(self, end: int, content: bytes, now_s: float) -> None:
        """Writes output to the log, and keeps its end for the classification of a failure."""
        self._stalls.has_output = True
        self._writers[end].write(content, now_s)
        self._tails.add(end, content)

    def _serve_terminal(self, terminal: Terminal, ends: list[int]) -> None:
        terminal.serve(ends, clock_s())
        if terminal.is_abandoned(clock_s()) and not self._is_abandoned:
            self._is_abandoned = True
            terminal.hang_up()

    def _close(self, end: int, now_s: float) -> None:
        self._writers.pop(end).close(now_s)
        os.close(end)

    def _collect_exits(self) -> None:
        for local_rank, rank in enumerate(self._ranks):
            code = ranks.exit_code(rank.process) if local_rank not in self._codes else None
            if code is not None:
                self._codes[local_rank] = code
                self._ended_s = clock_s()
                self._check_exit(local_rank, code)
        if clock_s() - self._orphans_reaped_s > ORPHANS_EVERY_S:
            ranks.reap_orphans(self._state.job_processes)
            self._orphans_reaped_s = clock_s()

    def _check_exit(self, local_rank: int, code: int) -> None:
        """If a rank fails, kills the others."""
        report = self._report(local_rank)
        expired = report is not None and report.stopped and self._ended_s >= self._lease.until_clock_s
        if self._first_failure >= 0 or not is_failure(code, self._launch, self._termination, expired=expired):
            return
        self._first_failure = local_rank
        kills, limit = cgroups.memory_kills(self._groups.all), cgroups.memory_limit_gib(self._launch.limits)
        self._memory_evidence = failures.memory_evidence(kills, self._memory_kills, limit)
        self._termination = replace(self._termination, stage=Stage.KILLED, reason="a rank failed")
        self._send_group(signal.SIGKILL)

    def _kill_all(self) -> None:
        """Kills all processes of the job, also those that left its group, and writes the rest of its output.

        The group first, with one signal: /proc can miss a process that forks and exits quickly.
        """
        if self._ranks:
            self._send_group(signal.SIGKILL)
        self._kill_lease()
        if self._launch.hides_ranks and self._ranks:
            from gavelpy.runtime.shim import preparation

            preparation.remove_containers(self._launch, self._job_directory, self._groups.all)
            self._kill_lease()
        self._groups.remove()
        for end in list(self._writers):
            self._drain(end)

    def _kill_lease(self) -> None:
        while not processes.kill_lease(self._state, self._job_directory, self._groups.main):
            self._capture(POLL_S / 5)
            ranks.reap_orphans(self._state.job_processes)

    def _drain(self, end: int) -> None:
        while ranks.readable([end], 0.0) and (content := os.read(end, READ_BYTES)):
            self._take(end, content, time.time())
        self._close(end, time.time())

    def _reports(self) -> list[Progress]:
        ranks_here = lease_files.reporting_ranks(self._job_directory) if self._terminal is None else ()
        reports = (self._report(rank) for rank in ranks_here)
        return [report for report in reports if report is not None]

    def _report(self, local_rank: int) -> Progress | None:
        try:
            return lease_files.read_progress(self._job_directory, local_rank)
        except RemoteViolation:
            return None

    def _has_reports(self) -> bool:
        if self._terminal is None:  # programs that are run in a session are not the job
            self._reported = self._reported or bool(lease_files.reporting_ranks(self._job_directory))
        return self._reported

    def _send_group(self, number: int) -> None:
        assert self._state.group > 0, "group 0 would be the shim's own"
        processes.send(-self._state.group, number)

    def _send_ranks(self, number: int) -> None:
        if self._launch.hides_ranks:
            containers.send(number, processes.lease_processes(self._state, self._job_directory, self._groups.main))
            return
        for rank in self._ranks:
            processes.send(rank.process, number)

    def _write_state(self, phase: ShimPhase) -> None:
        """Writes shim.json. If the disk is full, the job continues."""
        self._state = replace(self._state, phase=phase)
        try:
            lease_files.write_shim(self._directory, self._state)
        except OSError as error:
            sys.stderr.write(f"shim.json: {error}\n")
