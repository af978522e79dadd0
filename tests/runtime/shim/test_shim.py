"""Real shims run small scripts under a lease."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from gavelpy.runtime import lease_files
from gavelpy.runtime.lease_files import LeaseOutcome, LeaseTerms, ShimPhase, clock_s
from gavelpy.runtime.shim.processes import all_processes, is_shim_alive, kill_lease, process_facts
from tests.runtime.shim.driver import Shim, on_the_edge, processes_left, sampled, started, wait_for

HOPS = """
import ctypes, os, time
libc, ends_s = ctypes.CDLL(None), time.monotonic() + 3.0
if os.fork() == 0:
    while time.monotonic() < ends_s:
        if libc.fork():
            libc._exit(0)
    libc._exit(0)
time.sleep(0.2)
"""
WITH_A_STRANGER = """
import os
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        told = f"echo $$ >&{write}; exec sleep 60"
        os.set_inheritable(write, True)
        os.execve("/bin/sh", ["sh", "-c", told], {})
    os._exit(0)
print(os.read(read, 100).decode().strip())
"""
SLEEPS = "import time; print('ready'); time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); time.sleep(60)"
TELLS_SIGTERM = """
import signal, sys, time
def on_signal(*_):
    print('terminated'); sys.exit(0)
signal.signal(signal.SIGTERM, on_signal)
print('ready')
time.sleep(60)
"""
WITH_GRANDCHILDREN = """
import subprocess, sys
stays = "import time; time.sleep(60)"
subprocess.Popen([sys.executable, "-c", stays])
subprocess.Popen([sys.executable, "-c", stays], start_new_session=True)
print("ready")
"""
MEMORY_MB_MAX = 24


def outcome_of(shim: Shim) -> tuple[LeaseOutcome, int, str]:
    end = shim.end()
    return end.outcome, end.exit_code, end.detail


def test_script_that_ends_well_has_finished(tmp_path: Path) -> None:
    script = "import os, sys; print(os.environ['RANK'], os.getcwd()); print('oh', file=sys.stderr)"

    with started(tmp_path, script) as shim:
        end = shim.end()

    assert (end.outcome, end.detail) == (LeaseOutcome.FINISHED, "all ranks exited with code 0")
    assert shim.lines() == [f"0 {tmp_path}"]
    assert shim.lines(is_error_stream=True) == ["oh"]
    state = lease_files.read_shim(tmp_path)
    assert state is not None
    assert state.phase is ShimPhase.ENDED
    assert not is_shim_alive(state)


def test_job_is_terminated_when_its_lease_is_over(tmp_path: Path) -> None:
    with started(tmp_path, TELLS_SIGTERM) as shim:
        shim.prints("ready")
        shim.order(until_clock_s=clock_s() + 0.3)
        end = shim.end()

    assert (end.outcome, end.exit_code, end.detail) == (LeaseOutcome.STOPPED, 0, "the lease is over")
    assert end.at_clock_s - shim.lease.until_clock_s >= 0.0
    assert shim.lines()[-1] == "terminated"


def test_steps_of_a_script_that_does_not_report_are_estimated_by_time_and_not_saved(tmp_path: Path) -> None:
    with started(tmp_path, SLEEPS, steps_done=50.0, rate_steps_per_s=100.0, silent_start_s=0.0) as shim:
        shim.state()
        shim.order(until_clock_s=clock_s() + 0.6)
        end = shim.end()

    state = lease_files.read_shim(tmp_path)
    assert state is not None
    least_s, most_s = (moment_s - state.started_clock_s for moment_s in (shim.lease.until_clock_s, end.at_clock_s))
    assert 50.0 + 100.0 * least_s <= end.steps_done <= 50.0 + 100.0 * most_s
    assert end.steps_saved == 50.0


def test_stop_ends_the_job_before_its_lease(tmp_path: Path) -> None:
    with started(tmp_path, SLEEPS) as shim:
        shim.prints("ready")
        shim.order(stop=True)

        assert outcome_of(shim) == (LeaseOutcome.STOPPED, -signal.SIGTERM, "a stop was requested")


def test_kill_ends_the_job_at_once(tmp_path: Path) -> None:
    with started(tmp_path, STUBBORN) as shim:
        shim.prints("ready")
        shim.order(kill=True)

        assert outcome_of(shim) == (LeaseOutcome.STOPPED, -signal.SIGKILL, "killed by order")


def test_job_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    with started(tmp_path, STUBBORN, grace_s=0.3) as shim:
        shim.prints("ready")
        ordered_s = clock_s()
        shim.order(stop=True)
        end = shim.end()

    assert (end.outcome, end.exit_code) == (LeaseOutcome.STOPPED, -signal.SIGKILL)
    assert end.at_clock_s - ordered_s >= 0.3


def test_warning_signal_comes_before_the_end(tmp_path: Path) -> None:
    script = TELLS_SIGTERM.replace("SIGTERM", "SIGUSR2")

    with started(tmp_path, script, warning_s=9.8, warning_signal=int(signal.SIGUSR2)) as shim:
        shim.prints("ready")
        shim.order(until_clock_s=clock_s() + 10.0)
        end = shim.end()

    assert end.outcome is LeaseOutcome.STOPPED
    assert end.at_clock_s < shim.lease.until_clock_s
    assert shim.lines() == ["ready", "terminated"]


def test_extended_lease_lets_the_job_continue(tmp_path: Path) -> None:
    with started(tmp_path, SLEEPS, lease_s=0.8) as shim:
        first_until_s = shim.lease.until_clock_s
        shim.order(until_clock_s=first_until_s + 0.6)
        end = shim.end()

    assert end.at_clock_s >= first_until_s + 0.6


def test_older_order_is_ignored(tmp_path: Path) -> None:
    with started(tmp_path, SLEEPS, lease=LeaseTerms(5, clock_s() + 60.0)) as shim:
        on_the_edge(lambda: "ready" in shim.lines(), 1.0, shim)
        lease_files.write_lease(tmp_path, LeaseTerms(4, clock_s() + 60.0, kill=True))

        assert outcome_of(shim)[2] == "the lease is over"


def test_damaged_lease_leaves_the_last_one_in_force(tmp_path: Path) -> None:
    with started(tmp_path, TELLS_SIGTERM) as shim:
        on_the_edge(lambda: "ready" in shim.lines(), 1.0, shim)
        (tmp_path / "lease.json").write_bytes(b'{"version": 9, "until')

        assert outcome_of(shim) == (LeaseOutcome.STOPPED, 0, "the lease is over")


def test_removed_lease_leaves_the_last_one_in_force(tmp_path: Path) -> None:
    with started(tmp_path, TELLS_SIGTERM) as shim:
        on_the_edge(lambda: "ready" in shim.lines(), 1.0, shim)
        (tmp_path / "lease.json").unlink()

        assert outcome_of(shim) == (LeaseOutcome.STOPPED, 0, "the lease is over")


def test_lease_that_is_over_starts_nothing(tmp_path: Path) -> None:
    with started(tmp_path, "print('never')", lease_s=-1.0) as shim:
        end = shim.end()

    assert (end.outcome, shim.lines()) == (LeaseOutcome.STOPPED, [])


def test_damaged_launch_is_reported(tmp_path: Path) -> None:
    with started(tmp_path, SLEEPS, argv=()) as shim:
        end = shim.end()

    assert end.outcome is LeaseOutcome.FAILED
    assert "argv and rank_environments must not be empty" in end.detail


def test_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    script = "import os, sys, time; time.sleep(60 if os.environ['RANK'] == '0' else 0); sys.exit(3)"

    with started(tmp_path, script, ranks=2, first_rank=4) as shim:
        end = shim.end()

    assert (end.outcome, end.exit_code, end.detail) == (LeaseOutcome.FAILED, 3, "rank 5 exited with code 3")


def test_missing_command_is_named(tmp_path: Path) -> None:
    with started(tmp_path, "", argv=("no-such-command", "x")) as shim:
        end = shim.end()

    assert (end.outcome, end.exit_code) == (LeaseOutcome.FAILED, 127)
    assert end.detail == "the command 'no-such-command' cannot be run: No such file or directory"


def test_missing_working_directory_is_named(tmp_path: Path) -> None:
    with started(tmp_path, "", working_directory=str(tmp_path / "gone")) as shim:
        end = shim.end()

    assert end.detail == f"cannot enter the working directory '{tmp_path}/gone': No such file or directory"


def test_grandchildren_end_with_their_job_also_outside_its_group(tmp_path: Path) -> None:
    with started(tmp_path, WITH_GRANDCHILDREN) as shim:
        end = shim.end()

        assert end.outcome is LeaseOutcome.FINISHED
        assert processes_left(shim) == ()


@pytest.mark.parametrize("attempt", range(5))
def test_process_that_forks_and_exits_faster_than_it_is_found_ends_with_its_job(tmp_path: Path, attempt: int) -> None:
    with started(tmp_path, HOPS) as shim:
        shim.end()
        group = shim.state().group

        assert [facts for _ in range(20) for facts in all_processes() if facts.group == group] == []


def test_process_without_group_session_and_environment_of_its_job_ends_with_it(tmp_path: Path) -> None:
    with started(tmp_path, WITH_A_STRANGER) as shim:
        end = shim.end()
        [stranger] = [int(line) for line in shim.lines()]

        assert end.outcome is LeaseOutcome.FINISHED
        assert process_facts(stranger) is None


def test_job_dies_with_its_shim(tmp_path: Path) -> None:
    with started(tmp_path, SLEEPS, ranks=2) as shim:
        shim.prints("ready")
        state = shim.state()

        shim.process.kill()
        shim.process.wait()

        wait_for(lambda: [process_facts(process) for process in state.job_processes] == [None, None])
        assert not is_shim_alive(state)
        assert lease_files.read_end(tmp_path) is None


def test_processes_of_a_killed_shim_are_found_and_killed(tmp_path: Path) -> None:
    with started(tmp_path, WITH_GRANDCHILDREN + "import time; time.sleep(60)") as shim:
        shim.prints("ready")
        state = shim.state()

        shim.process.kill()
        shim.process.wait()
        wait_for(lambda: len(processes_left(shim)) == 2)

        wait_for(lambda: kill_lease(state, tmp_path))
        assert processes_left(shim) == ()


def test_shim_that_was_frozen_past_its_lease_kills_at_once(tmp_path: Path) -> None:
    with started(tmp_path, TELLS_SIGTERM, grace_s=0.2) as shim:
        on_the_edge(lambda: "ready" in shim.lines(), 1.5, shim)
        shim.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: clock_s() > shim.lease.until_clock_s + 0.3)
        shim.process.send_signal(signal.SIGCONT)
        end = shim.end()

    assert (end.outcome, end.exit_code) == (LeaseOutcome.STOPPED, -signal.SIGKILL)
    assert "terminated" not in shim.lines()


def test_shim_that_gets_sigterm_stops_its_job(tmp_path: Path) -> None:
    with started(tmp_path, TELLS_SIGTERM) as shim:
        shim.prints("ready")
        shim.process.terminate()

        assert outcome_of(shim) == (LeaseOutcome.STOPPED, 0, "a stop was requested")


def test_job_that_does_not_report_stops_after_its_steps(tmp_path: Path) -> None:
    with started(
        tmp_path,
        SLEEPS,
        lease=LeaseTerms(1, clock_s() + 60.0, steps_max=40.0),
        rate_steps_per_s=100.0,
        silent_start_s=0.0,
    ) as shim:
        end = shim.end()

    assert (end.outcome, end.detail) == (LeaseOutcome.STOPPED, "a stop was requested")
    assert end.steps_done >= 40.0


def test_output_of_any_kind_is_kept(tmp_path: Path) -> None:
    script = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 2000 + b'x' * 100000 + b'\\nno newline')"

    with started(tmp_path, script) as shim:
        shim.end()

    lines = (tmp_path / "log" / "rank-0.out").read_bytes().split(b"\n")[:-1]
    written = b"".join(line[18:] + b"\n"[: line[17:18] == b" "] for line in lines)
    assert written == bytes(range(256)) * 2000 + b"x" * 100000 + b"\nno newline\n"


def test_flood_of_output_is_rotated_and_bounded(tmp_path: Path) -> None:
    script = "for number in range(40000): print('line', number)"

    with started(tmp_path, script, log_bytes_max=100_000, log_files_max=2) as shim:
        shim.end()

    files = {path.name: path for path in (tmp_path / "log").iterdir() if ".out" in path.name}
    removed = int(files.pop("rank-0.out.removed").read_text())
    lines_left = sum(path.read_bytes().count(b"\n") for path in files.values())
    assert removed + lines_left == 40_000
    sizes = [path.stat().st_size for path in files.values()]
    assert len(sizes) == 3
    assert max(sizes) <= 100_000
    assert shim.lines()[-1] == "line 39999"


def test_speed_factor_throttles_a_loop(tmp_path: Path) -> None:
    script = "import time\nprint('ready')\nwhile True: time.process_time()"

    with started(tmp_path, script, speed_factor=0.3, silent_start_s=0.0) as shim:
        shim.prints("ready")
        stat = Path(f"/proc/{shim.state().job_processes[0]}/stat")
        states: list[str] = []

        def is_paced() -> bool:
            states.extend(sampled(lambda: stat.read_text().rsplit(")", 1)[1].split()[0], 1.0))
            return 1 - states.count("T") / len(states) == pytest.approx(0.3, abs=0.1)

        wait_for(is_paced)  # on a busy machine the average takes some time
        shim.order(stop=True)
        end = shim.end()

    assert end.exit_code == -signal.SIGTERM


def test_job_sees_the_signals_and_files_of_a_fresh_process(tmp_path: Path) -> None:
    script = (
        "import os, signal; print(sorted(os.listdir('/proc/self/fd'))[:3], len(os.listdir('/proc/self/fd')),"
        " signal.getsignal(signal.SIGHUP) is signal.SIG_DFL, os.getppid() != 1, os.getpgid(0) == os.getpid())"
    )

    with started(tmp_path, script) as shim:
        shim.end()

    assert shim.lines() == ["['0', '1', '2'] 4 True True True"]


def test_shim_is_small_and_loads_the_standard_library_only(tmp_path: Path) -> None:
    with started(tmp_path, SLEEPS) as shim:
        status = Path(f"/proc/{shim.state().process}/status").read_text()
        maps = Path(f"/proc/{shim.state().process}/maps").read_text()

    memory_kb = int(status.split("VmRSS:")[1].split()[0])
    assert memory_kb < MEMORY_MB_MAX * 1024
    assert "numpy" not in maps
    assert "grpc" not in maps


DONE = """
import os, time
from pathlib import Path
from gavelpy.runtime.lease_files import Progress, write_progress
write_progress(Path(os.environ["GAVEL_LEASE_DIR"]), 0, Progress(40.0, 40.0, finished=True))
print("done")
"""


def test_a_job_that_is_stopped_after_its_last_step_exits_by_itself(tmp_path: Path) -> None:
    with started(tmp_path, DONE + "time.sleep(1)", grace_s=0.1, finish_grace_s=60.0, steps_total=40.0) as shim:
        shim.prints("done")
        shim.order(stop=True)
        end = shim.end()

    assert (end.outcome, end.exit_code) == (LeaseOutcome.FINISHED, 0)


def test_a_job_that_does_not_exit_after_its_last_step_has_finished_when_it_is_ended(tmp_path: Path) -> None:
    with started(tmp_path, DONE + "time.sleep(100)", grace_s=0.1, finish_grace_s=0.3, steps_total=40.0) as shim:
        shim.prints("done")
        shim.order(stop=True)
        end = shim.end()

    assert (end.outcome, end.exit_code, end.steps_done) == (LeaseOutcome.FINISHED, -signal.SIGTERM, 40.0)
