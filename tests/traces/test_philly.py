"""Philly's two forms, and the rule by which durations become steps."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from gavelpy.traces.formats import DurationRule, ReadOptions
from gavelpy.traces.reader import read_trace
from gavelpy.traces.workloads import published_throughputs
from tests.traces.histories import write_sample

TABLE = published_throughputs()


def test_csv_gives_jobs_in_order_of_submission(tmp_path: Path) -> None:
    trace = read_trace(write_sample(tmp_path, "philly"))

    assert [job.id for job in trace.jobs] == ["1", "0"]
    assert trace.arrival_s.tolist() == [0.0, 2932.0]
    assert [job.gpus for job in trace.jobs] == [4, 1]
    assert [job.entity for job in trace.jobs] == ["6214e9", "11cb48"]
    assert trace.provenance["left_out"] == {"ran for no time": 1}


def test_log_sums_attempts_and_leaves_out_jobs_that_never_started(tmp_path: Path) -> None:
    options = ReadOptions(durations=DurationRule.SECONDS)

    trace = read_trace(write_sample(tmp_path, "philly, log"), options=options)

    (job,) = trace.jobs
    assert (job.steps_total, job.gpus, job.owner, job.entity) == (90.0, 3, "ce2b4c", "ee9e8c")
    assert set(job.rates_steps_per_s.values()) == {1.0}
    assert trace.provenance["left_out"] == {"never started": 1}


def test_duration_on_the_reference_type_is_the_recorded_one(tmp_path: Path) -> None:
    trace = read_trace(write_sample(tmp_path, "philly"))

    durations = [job.steps_total / job.rates_steps_per_s["v100"] for job in trace.jobs]

    assert durations == pytest.approx(
        [2951.0, 66.0], abs=2.0
    )  # steps are whole; the slowest job type makes 0.5 a second


def test_gang_that_the_table_lacks_scales_from_the_next_smaller_one(tmp_path: Path) -> None:
    path = write_sample(tmp_path, "philly", ",4,11804.0", ",12,35412.0")

    job = read_trace(path).jobs[0]

    assert job.rates_steps_per_s["v100"] == pytest.approx(1.5 * TABLE.rates(job.job_type, 8)["v100"])


def test_seed_determines_the_job_types_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "many.csv"
    rows = "".join(f"2017-10-09 07:01:55,{60 + i},1,{60 + i},vc\n" for i in range(300))
    path.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n" + rows)
    types = [[job.job_type for job in read_trace(path, options=ReadOptions(seed=seed)).jobs] for seed in (1, 1, 2)]

    assert types[0] == types[1] != types[2]
    counts = [types[0].count(name) for name in TABLE.job_types(1)]
    assert min(counts) > 300 / 7 / 2  # uniform over 7 types


@pytest.mark.slow  # 82,247 rows
@pytest.mark.reference
def test_philly_is_read_whole_in_seconds_of_cpu(reference_directory: Path) -> None:
    """Counts by awk; 82,247 jobs and their GPUs as the data's README states them."""
    file = reference_directory / "data" / "philly" / "philly.csv"
    program = 'NR > 1 && NF { n[$3]++; s += $2 * $3 } END { for (g in n) print g, n[g]; print "gpu_s", s }'
    counted = subprocess.run(["awk", "-F,", program, file], capture_output=True, text=True, check=True).stdout
    expected = {key: float(value) for key, value in (line.split() for line in counted.splitlines())}
    began_s = time.process_time()

    trace = read_trace(file, options=ReadOptions(durations=DurationRule.SECONDS))

    assert time.process_time() - began_s < 20.0  # 2.4 s on a quiet machine
    gpus, counts = np.unique([job.gpus for job in trace.jobs], return_counts=True)
    assert dict(zip(map(str, gpus), counts, strict=True)) == {k: v for k, v in expected.items() if k != "gpu_s"}
    assert counts.sum() == 82_247
    assert sum(job.gpus * job.steps_total for job in trace.jobs) == pytest.approx(expected["gpu_s"], rel=1e-5)
    assert len({job.entity for job in trace.jobs}) == 15
