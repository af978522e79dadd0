"""The rates measured on real GPUs are those of the shipped jobs, with product, driver, versions and date."""

from __future__ import annotations

import csv
import re

import pytest

from gavelpy.cli.job_files import read_job_file
from gavelpy.model.throughput import Provenance
from gavelpy.traces.csv_format import read_csv_throughputs
from gavelpy.traces.workloads import catalogue, workloads_directory

FILE = workloads_directory() / "measured.csv"
SOURCE = (
    r"gavel-node on \d{4}-\d\d-\d\d: python (\w+)\.py --full; [^;]+, driver [\d.]+, Python [\d.]+, torch [^,;]+, .*"
)


def rows() -> list[dict[str, str]]:
    with FILE.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_measured_rates_are_those_of_the_six_jobs_on_types_of_the_catalogue() -> None:
    table = read_csv_throughputs(FILE)

    jobs = {job.job_type: job.command for job in read_job_file(workloads_directory() / "jobs" / "full.toml")}
    assert set(table.job_types(1)) == set(jobs)
    assert set(table.gpu_types) <= set(catalogue())
    assert (table.provenance == Provenance.MEASURED).all()
    assert (table.rate_steps_per_s > 0).all()


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['job_type']}-{row['gpu_type']}")
def test_measured_rate_names_its_program_device_and_versions(row: dict[str, str]) -> None:
    found = re.fullmatch(SOURCE, row["source"])

    jobs = {job.job_type: job.command for job in read_job_file(workloads_directory() / "jobs" / "full.toml")}
    assert found is not None
    assert f"{found[1]}.py" in jobs[row["job_type"]]
