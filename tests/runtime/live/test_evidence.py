"""The checks of the crash test detect what they are for."""

from __future__ import annotations

from pathlib import Path

from tests.runtime.live import evidence
from tests.runtime.live.evidence import Line


def line(
    at_s: float, kind: str = "ran", *, job: int = 0, lease: int = 0, gpu: str = "0", steps: int = 0, rank: int = 0
) -> Line:
    return Line(at_s, kind, job, lease, rank, "n0", (gpu,), steps)


def test_two_leases_on_one_gpu_at_once_are_seen() -> None:
    lines = [line(0.0), line(0.5, lease=1, job=1), line(1.0), line(1.2, lease=1, job=1)]

    found = evidence.double_gpus(evidence.stays(lines))

    assert found == ["GPU 0 of n0: lease 0 until 1.000, lease 1 from 0.500"]


def test_one_lease_after_the_other_is_fine() -> None:
    found = evidence.stays([line(0.0), line(1.0), line(1.1, lease=1), line(2.0, lease=1)])

    assert not evidence.double_gpus(found)
    assert not evidence.double_jobs(found)


def test_copies_of_a_job_on_two_gpus_are_seen() -> None:
    lines = [line(0.0), line(0.5, lease=1, gpu="1"), line(1.0), line(1.2, lease=1, gpu="1")]

    assert len(evidence.double_jobs(evidence.stays(lines))) == 1


def test_frozen_process_does_not_run_while_it_does_not_report() -> None:
    lines = [line(0.0), line(1.0), line(2.0, lease=1), line(3.0, lease=1), line(9.0)]

    assert not evidence.double_jobs(evidence.stays(lines))


def test_beginning_before_the_last_checkpoint_is_seen() -> None:
    lines = [line(0.0, "saved", steps=10), line(2.5), line(3.0, "began", lease=1, steps=5)]

    assert evidence.lost_steps(lines) == ["job 0 under lease 1 began at 5, saved was 10"]


def test_beginning_at_the_last_checkpoint_is_right() -> None:
    lines = [line(0.0, "saved", steps=10), line(0.5, "ran", steps=12), line(1.0, "began", lease=1, steps=10)]

    assert not evidence.lost_steps(lines)


def test_a_rank_that_begins_after_another_one_has_saved_is_right() -> None:
    lines = [line(1.0, "began", steps=5), line(2.0, "saved", steps=10), line(3.0, "began", rank=1, steps=5)]

    assert not evidence.lost_steps(lines)
    assert evidence.lost_steps([*lines, line(4.0, "began", lease=1, rank=1, steps=5)])


def test_checkpoint_written_twice_is_seen() -> None:
    assert evidence.saved_twice([line(0.0, "saved", steps=1), line(1.0, "saved", steps=1)])


def test_torn_last_line_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.evidence").write_text("1.5 ran 0 0 0 n0 0,1 7\n2.0 ran 0 0 0 n0 0,")

    assert evidence.read(tmp_path) == [Line(1.5, "ran", 0, 0, 0, "n0", ("0", "1"), 7)]
