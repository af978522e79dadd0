"""Measured rates of real processes on this machine. Their steps are paced, so that a busy machine does not matter."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.runtime.profile import Bench, NotMeasured, ProfiledJob, measure

PACED = Path(__file__).resolve().parents[3] / "workloads" / "jobs" / "paced.py"
BENCH = Bench("k80", measure_s=1.0, start_s_max=60.0, on_cpu=True)


def make_job(
    *, script: str = "", arguments: str = "--rate=v100=5 --rate=k80=50", gpus: int = 1, processes: int = 0
) -> ProfiledJob:
    """A paced job, or a given Python program."""
    command = shlex.join(["python", "-c", script]) if script else f"python {shlex.quote(str(PACED))} {arguments}"
    return ProfiledJob("paced", command, gpus, processes or gpus)


def test_rate_is_measured_on_the_given_type() -> None:
    found = measure(make_job(), BENCH)

    assert found.rate_steps_per_s == pytest.approx(50, rel=0.15)
    assert found.gpu_type == "k80"


def test_rate_leaves_out_the_start_and_the_checkpoints() -> None:
    arguments = "--rate=50 --start-s=0.5 --save-s=0.3"
    often = ProfiledJob("paced", make_job(arguments=arguments).command, environment={"GAVEL_CHECKPOINT_EVERY_S": "0.4"})

    found = measure(often, BENCH)

    assert found.rate_steps_per_s == pytest.approx(50, rel=0.2)


def test_all_processes_of_a_gang_are_started() -> None:
    found = measure(make_job(gpus=2), BENCH)

    assert found.rate_steps_per_s == pytest.approx(50, rel=0.15)
    assert found.job.gpus == 2


def test_one_process_may_have_all_gpus(tmp_path: Path) -> None:
    told = f"import os, pathlib; pathlib.Path({str(tmp_path / 'told')!r}).write_text(os.environ['WORLD_SIZE']); 1 / 0"

    with pytest.raises(NotMeasured):
        measure(make_job(script=told, gpus=2, processes=1), BENCH)

    assert (tmp_path / "told").read_text() == "1"


def test_failed_job_is_not_measured_and_its_error_is_shown() -> None:
    with pytest.raises(NotMeasured, match=r"failed with exit code 1: .*no data here"):
        measure(make_job(script="raise ValueError('no data here')"), BENCH)


def test_job_that_fails_later_is_not_measured() -> None:
    with pytest.raises(NotMeasured, match="failed at step 40"):
        measure(make_job(arguments="--rate=50 --fail-at=40"), BENCH)


def test_job_without_the_iterator_is_not_measured() -> None:
    with pytest.raises(NotMeasured, match="LeaseIterator"):
        measure(make_job(script="import time; time.sleep(60)"), Bench("k80", start_s_max=0.5, on_cpu=True))


def test_job_that_ends_at_once_is_not_measured() -> None:
    with pytest.raises(NotMeasured, match="ended before its rate was known"):
        measure(make_job(script="pass"), BENCH)


def test_program_that_is_not_there_is_not_measured() -> None:
    with pytest.raises(NotMeasured, match="could not be started"):
        measure(ProfiledJob("paced", "no-such-program --fast"), BENCH)


def test_nothing_is_left_running_after_a_measurement(tmp_path: Path) -> None:
    note = tmp_path / "process"
    program = f"import os, pathlib, time; pathlib.Path({str(note)!r}).write_text(str(os.getpid())); time.sleep(60)"

    with pytest.raises(NotMeasured):
        measure(make_job(script=program), Bench("k80", start_s_max=2.0, on_cpu=True))

    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


@pytest.mark.parametrize("gpus", [0, 65])
def test_gpus_that_no_machine_has_are_refused(gpus: int) -> None:
    with pytest.raises(InvalidInput, match=r"gpus must be a whole number in \[1, 64\]"):
        make_job(gpus=gpus, processes=1)


def test_more_gpus_than_this_process_may_use_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")

    with pytest.raises(InvalidInput, match="at most the 1 in CUDA_VISIBLE_DEVICES"):
        measure(make_job(gpus=2), Bench("k80"))


def test_time_to_measure_must_be_positive() -> None:
    with pytest.raises(InvalidInput, match="measure_s"):
        Bench("k80", measure_s=0.0)
