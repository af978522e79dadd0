"""`gavel profile --on cluster`: a scheduler and two nodes of different types, as processes on this machine."""

import shlex
import sys
from pathlib import Path

import pytest

from gavelpy.runtime.local_cluster import LocalCluster, LocalNode
from tests.cli.commands import Gavel

PACED = Path(__file__).resolve().parents[2] / "workloads" / "jobs" / "paced.py"
PYTHON = shlex.quote(sys.executable)
JOBS = f"""
[[job]]
job_type = "paced"
command = "{PYTHON} {PACED} --rate=v100=60 --rate=k80=20"
steps_total = 1000

[[job]]
job_type = "broken"
command = "{PYTHON} -c 1/0"
steps_total = 1000
"""


def test_jobs_are_measured_on_each_type_of_the_cluster(gavel: Gavel, tmp_path: Path) -> None:
    jobs = gavel.file("jobs.toml", JOBS)
    nodes = (LocalNode("n0", "v100:2"), LocalNode("n1", "k80:2"))
    settings = {"mechanism": {"failures_max": 1, "retry_s": 0.1, "retry_max_s": 0.2}}

    with LocalCluster(tmp_path / "cluster", nodes, settings) as cluster:
        cluster.start()
        at = ("--scheduler", cluster.address)
        answer = gavel("profile", jobs, "--on", "cluster", "--seconds", "1", "--patience", "300", "-o", "json", *at)
        left = gavel("jobs", "-o", "json", *at)

    rates = {rate["gpu_type"]: rate["rate_steps_per_s"] for rate in answer.json["rates"]}
    assert rates == {"v100": pytest.approx(60, rel=0.2), "k80": pytest.approx(20, rel=0.2)}
    assert answer.err.count("not measured: broken on") == 2
    assert "2 of 4 rates were not measured" in answer.err
    assert answer.code == 1
    assert left.json["jobs"] == []


def test_missing_scheduler_is_an_error(gavel: Gavel) -> None:
    at = ("--scheduler", "127.0.0.1:1", "--timeout", "0.5")

    answer = gavel("profile", gavel.file("jobs.toml", JOBS), "--on", "cluster", *at)

    assert answer.code == 3
    assert "127.0.0.1:1" in answer.err
