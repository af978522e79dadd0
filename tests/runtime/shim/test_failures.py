"""The class of a failure follows from evidence only: exit codes, the end of the output, the kernel's memory killer."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from gavelpy.runtime.lease_files import End, LeaseOutcome, Progress
from gavelpy.runtime.shim import cgroups, failures
from gavelpy.runtime.shim.failures import FailureKind, OutputTails, StallWatch, explained, failure_by_output

UNKNOWN, USER, MEMORY, SYSTEM, PEER, *_ = FailureKind
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        (f"{TRACEBACK}ModuleNotFoundError: No module named 'foo'\n", USER),
        ('  File "train.py", line 3\n    def (:\n        ^\nSyntaxError: invalid syntax\n', USER),
        ("python3: can't open file '/srv/a/trian.py': [Errno 2] No such file or directory\n", USER),
        ("/usr/bin/python3: No module named trian\n", USER),
        ("usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --rl 0.1\n", USER),
        (f"{TRACEBACK}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n", MEMORY),
        (f"{TRACEBACK}MemoryError\n", MEMORY),
        (f"{TRACEBACK}RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed. \n", MEMORY),
        (f"{TRACEBACK}OSError: [Errno 116] Stale file handle: '/data/x.bin'\n", SYSTEM),
        (f"{TRACEBACK}RuntimeError: CUDA error: uncorrectable ECC error encountered\n", SYSTEM),
        (f"{TRACEBACK}RuntimeError: No CUDA GPUs are available\n", SYSTEM),
        (f"{TRACEBACK}torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited\n", PEER),
        (f"{TRACEBACK}RuntimeError: [gloo] Connection closed by peer [10.0.0.2]:4\n", PEER),
        (f"{TRACEBACK}ValueError: lr must be positive\n", UNKNOWN),
        ("Segmentation fault\n", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_class_of_what_a_program_prints_last(last: str, kind: FailureKind) -> None:
    assert failure_by_output(f"epoch 1, loss 0.3\n{last}").kind is kind


@pytest.mark.parametrize(
    "text",
    [
        f"{TRACEBACK}ModuleNotFoundError: No module named 'apex'\nusing the slow path\n{TRACEBACK}KeyError: 'lr'\n",
        "ModuleNotFoundError: No module named 'apex', going on\nValueError: lr must be positive\n",
        f"{TRACEBACK}RuntimeError: CUDA out of memory\nbatch size halved\n{TRACEBACK}ZeroDivisionError: x\n",
        "CUDA out of memory: batch size halved\n" + "step\n" * failures.LINES + "ValueError: x\n",
    ],
    ids=["module", "module-in-one-line", "memory", "memory-long-ago"],
)
def test_errors_that_a_program_has_handled_do_not_count(text: str) -> None:
    assert failure_by_output(text).kind is UNKNOWN


def test_the_error_of_a_launchers_child_counts() -> None:
    launcher = f"{TRACEBACK}torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED\n"

    found = failure_by_output(f"[rank1]: {TRACEBACK}[rank1]: ImportError: cannot import name 'x'\n{launcher}")

    assert (found.kind, found.evidence) == (USER, "ImportError: cannot import name 'x'")


@pytest.mark.parametrize("line", ["gavelpy.errors.InvalidInput: range must count samples", "ValueError: lr"])
def test_an_exception_whose_name_does_not_end_in_error_is_evidence_too(line: str) -> None:
    known = failure_by_output(f"{TRACEBACK}{line}\n")

    assert (known.kind, known.evidence) == (UNKNOWN, line)


def test_evidence_is_one_printable_line_of_limited_length() -> None:
    found = failure_by_output(f"{TRACEBACK}ValueError: \x1b[31m{'x' * 1_000}\n")

    assert found.evidence.isprintable()
    assert len(found.evidence) == failures.EVIDENCE_CHARACTERS_MAX


def failed(codes: dict[int, int], outputs: dict[int, str], first: int = 0, memory: str = "") -> End:
    """The end of a lease with these exit codes and outputs by rank."""
    tails = OutputTails()
    for rank, text in outputs.items():
        tails.follow(rank, rank, is_error_stream=True)
        tails.add(rank, text.encode())
    end = End(LeaseOutcome.FAILED, codes[first], detail=f"rank {first} exited")
    return explained(end, tails, codes, first, memory)


def test_the_rank_with_the_strongest_evidence_decides() -> None:
    outputs = {0: "RuntimeError: NCCL error: remote process exited", 1: "torch.OutOfMemoryError: CUDA out of memory."}

    end = failed({0: 1, 1: -signal.SIGKILL}, outputs)

    assert end.failure == "out-of-memory"
    assert end.detail == "rank 0 exited: torch.OutOfMemoryError: CUDA out of memory."


def test_a_lost_peer_is_the_cause_only_if_no_rank_failed_otherwise() -> None:
    comm = "RuntimeError: NCCL error: remote process exited"

    ends = [failed({0: 1, 1: 1}, {0: comm, 1: other}) for other in (comm, "ValueError: x", "")]

    assert [end.failure for end in ends] == ["communication", "", ""]


@pytest.mark.parametrize(
    ("code", "memory", "kind"),
    [
        (127, "", USER),
        (126, "", USER),
        (-9, "", UNKNOWN),
        (-9, "killed", MEMORY),
        (137, "killed", MEMORY),
        (3, "", UNKNOWN),
        (1, "killed", UNKNOWN),
    ],
)
def test_class_by_exit_code(code: int, memory: str, kind: FailureKind) -> None:
    assert failed({0: code}, {}, memory=memory).failure == kind


def test_other_outcomes_have_no_class() -> None:
    end = End(LeaseOutcome.STOPPED, -15, detail="all ranks stopped")

    assert explained(end, OutputTails(), {0: -15}, -1, "") is end


def test_only_the_end_of_the_output_is_kept() -> None:
    tails = OutputTails()
    tails.follow(5, 0, is_error_stream=False)

    for _ in range(100):
        tails.add(5, b"x" * 1_000)

    assert len(tails.text(0)) == failures.TAIL_BYTES + 1


def test_kills_are_read_from_the_control_group(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\nhigh 2\nmax 5\noom 1\noom_kill 2\n")

    assert cgroups.memory_kills([str(tmp_path)]) == 2
    assert [cgroups.memory_kills(paths) for paths in ([], [str(tmp_path / "none")])] == [-1, -1]


def test_kills_on_the_node_are_evidence_only_where_the_group_does_not_count_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 1\noom_kill 7\n")
    monkeypatch.setattr(failures, "_VMSTAT", tmp_path / "vmstat")

    found = [failures.memory_evidence(group, before) for group, before in ((0, 6), (1, 7), (-1, 7), (-1, 6))]

    assert [bool(evidence) for evidence in found] == [False, True, False, True]


def looks(*seen: tuple[float, list[Progress], bool]) -> str:
    """What a watch of 10 s finds after looks at these times, each with reports and whether there was output."""
    watch = StallWatch(10.0, 0.0)
    for now_s, reports, has_output in seen:
        watch.has_output = has_output
        watch.look(now_s, lambda reports=reports: reports, 100.0)  # type: ignore[misc]  # bound in the loop
    return watch.stalled


def test_job_whose_steps_do_not_rise_has_stalled_even_if_it_writes_output() -> None:
    at_seven = [Progress(steps_done=7.0), Progress(steps_done=8.0)]

    assert looks((1.0, at_seven, True), (10.9, at_seven, True)) == ""
    assert looks((1.0, at_seven, True), (11.0, at_seven, True)) == "no progress for 10 s at step 7"


def test_a_step_of_any_rank_or_a_checkpoint_is_progress() -> None:
    first, second = [Progress(7.0), Progress(7.0)], [Progress(7.0), Progress(8.0)]
    saved = [Progress(7.0), Progress(8.0, steps_saved=8.0)]

    assert looks((1.0, first, False), (9.0, second, False), (18.0, saved, False), (27.0, saved, False)) == ""


def test_without_reports_output_is_progress() -> None:
    assert looks((1.0, [], True), (9.0, [], True), (18.0, [], False)) == ""
    assert looks((1.0, [], True), (11.0, [], False)) == "no output for 10 s, and no step reported under this lease"


def test_job_that_has_done_its_last_step_has_not_stalled() -> None:
    done = [Progress(steps_done=100.0)]

    assert looks((1.0, done, False), (20.0, done, False)) == ""


def test_without_a_limit_nothing_is_read() -> None:
    StallWatch(0.0, 0.0).look(1e9, lambda: pytest.fail("read"), 1.0)
