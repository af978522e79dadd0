"""Scripts with the iterator under real shims: leases end, jobs move, gangs stop at one step."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

from gavelpy.runtime.lease_files import LeaseOutcome, clock_s, read_progress, step_name, whole_checkpoints
from tests.runtime.shim.driver import Shim, on_the_edge, started, wait_for

COUNTS = """
import os, socket, time
from gavelpy import LeaseIterator
count = 0
def save(directory):
    with open(directory / f"count-{os.environ['RANK']}", "w") as file:
        file.write(str(count))
def load(directory):
    global count
    count = int((directory / "count-0").read_text())
def joined(path):
    line = socket.socket(socket.AF_UNIX)
    if os.environ["RANK"] == "0":
        line.bind(path)
        line.listen()
        return line.accept()[0]
    while line.connect_ex(path):
        time.sleep(0.01)
    return line
together = joined(os.environ["TOGETHER"]) if "TOGETHER" in os.environ else None
batches = LeaseIterator(range(10), save, load=load, save_on=os.environ.get("SAVE_ON", "first"))
print("begins at", batches.steps_done, count)
for item in batches:
    assert item == count % 10
    count += 1
    time.sleep(float(os.environ["STEP_S"]))
    if together:  # as in a collective operation, nobody goes on before all are here
        together.sendall(b"x")
        together.recv(1)
print("ends at", batches.steps_done, batches.finished)
"""


def environment(checkpoints: Path, **more: str) -> dict[str, str]:
    return {"GAVEL_CHECKPOINT_DIR": str(checkpoints), "GAVEL_STEPS_TOTAL": "300", "STEP_S": "0.004", **more}


def gang(stack: ExitStack, root: Path, **more: str) -> tuple[Shim, Shim]:
    """Two nodes with one rank each, which share only the checkpoint directory. The second is slower."""
    shims = [
        stack.enter_context(
            started(
                root / f"node-{rank}",
                COUNTS,
                environment=environment(
                    root / "checkpoints", STEP_S=("0.002", "0.005")[rank], GAVEL_STEPS_TOTAL="1000000", **more
                ),
                rank_environments=({"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2"},),
                first_rank=rank,
                grace_s=20.0,  # on a busy machine
            )
        )
        for rank in range(2)
    ]
    return shims[0], shims[1]


def test_job_stops_before_the_end_of_its_lease_and_resumes_under_the_next(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    with started(first, COUNTS, environment=environment(first / "c", GAVEL_STEPS_TOTAL="1000000")) as shim:
        on_the_edge(lambda: _steps(first, 0) > 0, 5.0, shim)
        stopped = shim.end()
    until_clock_s, step = shim.lease.until_clock_s, int(stopped.steps_saved)
    more = {"GAVEL_RESUME_DIR": str(first / "c" / step_name(step)), "GAVEL_STEPS_TOTAL": str(step + 50)}
    with started(second, COUNTS, environment=environment(second / "c", **more), steps_done=step) as shim:
        finished = shim.end()

    assert (stopped.outcome, stopped.exit_code) == (LeaseOutcome.STOPPED, 0)
    assert 0 < step == stopped.steps_done
    assert stopped.at_clock_s < until_clock_s
    assert (finished.outcome, finished.steps_done, finished.steps_saved) == (
        LeaseOutcome.FINISHED,
        step + 50,
        step + 50,
    )
    assert shim.lines() == [f"begins at {step} {step}", f"ends at {step + 50} True"]


def test_stop_by_order_is_graceful(tmp_path: Path) -> None:
    with started(tmp_path, COUNTS, environment=environment(tmp_path / "c", GAVEL_STEPS_TOTAL="1000000")) as shim:
        wait_for(lambda: _steps(tmp_path, 0) > 0)
        shim.order(stop=True)
        end = shim.end()

    assert (end.outcome, end.exit_code, end.detail) == (LeaseOutcome.STOPPED, 0, "all ranks stopped")
    assert whole_checkpoints(tmp_path / "c") == (int(end.steps_done),)


def test_killed_job_has_done_what_it_has_saved(tmp_path: Path) -> None:
    more = environment(tmp_path / "c", GAVEL_STEPS_TOTAL="1000000", GAVEL_CHECKPOINT_EVERY_S="0.1")
    with started(tmp_path, COUNTS, environment=more) as shim:
        wait_for(lambda: _saved(tmp_path) > 0)
        shim.order(kill=True)
        end = shim.end()

    assert (end.outcome, end.exit_code) == (LeaseOutcome.STOPPED, -signal.SIGKILL)
    assert 0 < end.steps_done == end.steps_saved <= whole_checkpoints(tmp_path / "c")[-1]


def test_checkpoints_that_fail_are_in_its_progress_until_one_succeeds(tmp_path: Path) -> None:
    script = COUNTS.replace("def save(directory):", "def save(directory):\n    open(os.environ['DISK']).close()")
    disk = tmp_path / "disk"
    more = environment(tmp_path / "c", GAVEL_CHECKPOINT_EVERY_S="0.05", GAVEL_STEPS_TOTAL="1000000", DISK=str(disk))
    with started(tmp_path, script, environment=more) as shim:
        wait_for(lambda: _save_error(tmp_path) == "FileNotFoundError: No such file or directory")
        disk.touch()
        wait_for(lambda: _saved(tmp_path) > 0 and not _save_error(tmp_path))
        shim.order(stop=True)
        shim.end()


def test_an_error_with_any_characters_does_not_spoil_the_progress(tmp_path: Path) -> None:
    script = COUNTS.replace("def save(directory):", "def save(directory):\n    raise OSError('bad \\udc80 \\0 name')")
    more = environment(tmp_path / "c", GAVEL_CHECKPOINT_EVERY_S="0.05", GAVEL_STEPS_TOTAL="1000000")
    with started(tmp_path, script, environment=more) as shim:
        wait_for(lambda: _save_error(tmp_path) == r"OSError: bad \udc80 \x00 name")
        shim.order(kill=True)
        shim.end()


def test_crash_of_a_job_is_a_failure_with_what_it_has_saved(tmp_path: Path) -> None:
    more = environment(tmp_path / "c", GAVEL_CHECKPOINT_EVERY_S="0.1", GAVEL_STEPS_TOTAL="1000000")
    with started(tmp_path, COUNTS, environment=more) as shim:
        wait_for(lambda: _saved(tmp_path) > 0)
        os.kill(shim.state().job_processes[0], signal.SIGSEGV)
        end = shim.end()

    assert (end.outcome, end.detail) == (LeaseOutcome.FAILED, "rank 0 was killed by SIGSEGV")
    assert end.steps_saved > 0


def test_gang_over_two_nodes_stops_at_one_step(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = gang(stack, tmp_path, TOGETHER=str(tmp_path / "line"))
        on_the_edge(lambda: _steps(second.directory, 0) > 0, 6.0, first, second)
        ends = (first.end(), second.end())

    assert {(end.outcome, end.detail) for end in ends} == {(LeaseOutcome.STOPPED, "all ranks stopped")}
    assert ends[0].steps_done == ends[1].steps_done > 0
    assert whole_checkpoints(tmp_path / "checkpoints") == (int(ends[0].steps_done),)


def test_order_to_one_node_stops_the_whole_gang_at_one_step(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = gang(stack, tmp_path)
        wait_for(lambda: _steps(second.directory, 0) > 0)
        second.order(stop=True)
        ends = (first.end(), second.end())

    assert [end.exit_code for end in ends] == [0, 0]
    assert ends[0].steps_done == ends[1].steps_done > 0


def test_all_ranks_write_one_checkpoint_on_the_cadence_and_at_the_stop(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = gang(stack, tmp_path, SAVE_ON="all", GAVEL_CHECKPOINT_EVERY_S="0.3")
        wait_for(lambda: len(whole_checkpoints(tmp_path / "checkpoints")) >= 2)
        first.order(stop=True)
        second.order(stop=True)
        ends = (first.end(), second.end())

    whole = whole_checkpoints(tmp_path / "checkpoints")
    assert ends[0].steps_saved == ends[1].steps_saved == whole[-1]
    assert {_counts(tmp_path / "checkpoints" / step_name(step)) for step in whole} == {
        (str(step), str(step)) for step in whole
    }


def test_gang_that_loses_a_rank_ends_with_its_lease(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = gang(stack, tmp_path)
        wait_for(lambda: all(_steps(shim.directory, 0) > 0 for shim in (first, second)))
        second.order(kill=True)
        second.end()
        first.order(until_clock_s=clock_s() + 2.0)
        end = first.end()

    assert end.outcome is LeaseOutcome.STOPPED
    assert end.at_clock_s - first.lease.until_clock_s < 30.0
    assert "ranks without a proposal: 1" in "".join(first.lines(is_error_stream=True))
    assert whole_checkpoints(tmp_path / "checkpoints") == ()


def _steps(directory: Path, local_rank: int) -> float:
    progress = read_progress(directory, local_rank)
    return progress.steps_done if progress else 0.0


def _saved(directory: Path) -> float:
    progress = read_progress(directory, 0)
    return progress.steps_saved if progress else 0.0


def _save_error(directory: Path) -> str:
    progress = read_progress(directory, 0)
    return progress.save_error if progress else ""


def _counts(directory: Path) -> tuple[str, str]:
    return (directory / "count-0").read_text(), (directory / "count-1").read_text()
