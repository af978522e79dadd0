"""The paced job: its rate, its checkpoints, and their record of earlier leases."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.workloads.leases import JOBS, lines, play_lease, run_script


def test_paced_job_keeps_to_the_rate_of_its_gpu_type(tmp_path: Path) -> None:
    environment = play_lease(tmp_path, 1).environment(GAVEL_GPU_TYPE="k80")

    said = lines(run_script("paced.py", "--steps=60", "--rate=v100=1", "--rate=k80=40", environment=environment))

    assert said[-1]["event"] == "finish"
    assert said[-1]["rate_steps_per_s"] == pytest.approx(40, rel=0.15)


def test_paced_job_goes_on_where_its_last_lease_stopped(tmp_path: Path) -> None:
    arguments = ("paced.py", "--steps=30", "--rate=300")

    first = lines(run_script(*arguments, environment=play_lease(tmp_path, 1, steps_max=12).environment()))
    second = lines(run_script(*arguments, environment=play_lease(tmp_path, 2).environment()))

    assert [(line["event"], line["steps"]) for line in first] == [("start", 0), ("checkpoint", 12), ("stop", 12)]
    assert [(line["event"], line["steps"]) for line in second] == [("start", 12), ("checkpoint", 30), ("finish", 30)]


def test_last_checkpoint_of_a_paced_job_accounts_for_every_step_once(tmp_path: Path) -> None:
    ends = (7.0, 19.0, 0.0)
    leases = [play_lease(tmp_path, number, steps_max=end) for number, end in enumerate(ends, start=1)]

    done = [run_script("paced.py", "--steps=25", "--rate=300", environment=lease.environment()) for lease in leases]

    assert [process.returncode for process in done] == [0, 0, 0]
    state = json.loads((leases[-1].checkpoints / "step-000000000025" / "state.json").read_text())
    assert state == {"steps": 25, "spans": [[1, 0, 7], [2, 7, 19], [3, 19, 25]]}
    assert all(before[2] == after[1] for before, after in pairwise(state["spans"]))


def test_paced_job_takes_its_steps_from_the_environment(tmp_path: Path) -> None:
    environment = play_lease(tmp_path, 1).environment(GAVEL_STEPS_TOTAL="9")

    said = lines(run_script("paced.py", "--rate=300", environment=environment))

    assert said[-1]["steps"] == 9


def test_paced_job_saves_on_a_cadence(tmp_path: Path) -> None:
    environment = play_lease(tmp_path, 1).environment(GAVEL_CHECKPOINT_EVERY_S="0.1")

    said = lines(run_script("paced.py", "--steps=40", "--rate=50", environment=environment))

    assert [line["event"] for line in said].count("checkpoint") >= 3


def test_paced_job_fails_where_it_is_told_to(tmp_path: Path) -> None:
    environment = play_lease(tmp_path, 1).environment()

    done = run_script("paced.py", "--steps=20", "--rate=300", "--fail-at=5", environment=environment)

    assert done.returncode == 1
    assert "failed at step 5" in done.stderr


def test_paced_job_refuses_a_rate_that_is_none() -> None:
    done = run_script("paced.py", "--rate=v100=-3", environment={})

    assert done.returncode == 2
    assert "(0, 1e6)" in done.stderr


def test_paced_job_needs_nothing_but_gavelpy() -> None:
    imports = [line for line in (JOBS / "paced.py").read_text().splitlines() if line.startswith(("import", "from"))]

    assert not [line for line in imports if "torch" in line or "numpy" in line]
