"""CPU cores and memory of nodes on the command line: what a node has, who waits, and what a job receives."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from gavelpy.runtime.local_cluster import LocalCluster, LocalNode, wait_until
from tests.cli.commands import Gavel
from tests.cli.test_cluster import FAST

SHOW = "import os; print('cores', os.environ['GAVEL_CPUS'], 'threads', os.environ['OMP_NUM_THREADS'], flush=True)"
SLEEP = f"{SHOW}; import time; time.sleep(600)"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    node = LocalNode("n1", "v100:2", cpus=8.0, memory_gib=64.0)
    with LocalCluster(tmp_path_factory.mktemp("cluster"), (node,), FAST) as started:
        started.start()
        yield started


@pytest.fixture
def cli(gavel: Gavel, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Gavel:
    monkeypatch.setenv("GAVEL_SCHEDULER", cluster.address)
    monkeypatch.setenv("GAVEL_TIMEOUT_S", "60")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(gavel.folder))
    return gavel


def submit(cli: Gavel, name: str, *options: str, code: str = SLEEP) -> None:
    command = ("--", sys.executable, "-c", code)
    answer = cli("submit", "--name", name, "--steps", "1", "--rate", "v100:10", *options, *command)
    assert answer.code == 0, answer.err


def test_a_job_waits_while_another_one_uses_the_cores(cli: Gavel) -> None:
    submit(cli, "one", "--cpus-per-gpu", "6", "--memory-per-gpu", "16")
    wait_until(lambda: "cores 6 threads 6" in cli("logs", "one").out, "the first job runs")
    submit(cli, "two", "--cpus-per-gpu", "4")
    wait_until(lambda: "awaits-resources" in cli("explain", "two", "-o", "json").out, "the second job waits")

    (node,) = cli("nodes", "-o", "json").json["nodes"]
    shown = cli("explain", "two").out

    assert (node["cpus"], node["cpus_in_use"]) == (8.0, 6.0)
    assert (node["memory_gib"], node["memory_gib_in_use"]) == (64.0, 16.0)
    assert "needs 6 CPU cores per GPU" in " ".join(cli("explain", "one").out.split())
    assert "2/8" in cli("nodes").out
    assert "waits for 4 CPU cores per GPU: 1 GPU would be free, but n1 has 2 CPU cores" in " ".join(shown.split())
    assert cli("cancel", "one").code == 0
    wait_until(lambda: "cores 4 threads 4" in cli("logs", "two").out, "the second job runs")
    assert cli("cancel", "two").code == 0


def test_a_job_that_fits_on_no_node_has_a_reason(cli: Gavel) -> None:
    submit(cli, "large", "--cpus-per-gpu", "64")

    answer = cli("explain", "large")

    assert "needs 64 CPU cores per GPU; no v100 node has more than 8 CPU cores for jobs" in " ".join(answer.out.split())
    assert cli("cancel", "large").code == 0


def test_a_policy_that_does_not_count_cores_refuses_such_jobs(cli: Gavel) -> None:
    submit(cli, "held", "--cpus-per-gpu", "1", "--hold")
    assert "cpus_per_gpu must be 0 with the policy gandiva" in cli("policy", "set", "gandiva").err
    assert cli("cancel", "held").code == 0
    assert cli("policy", "set", "gandiva").code == 0

    refused = cli("submit", "--cpus-per-gpu", "1", "--rate", "v100:1", "--steps", "1", "--", "true")

    assert refused.code == 2
    assert "does not count CPU cores and memory" in refused.err
    assert cli("policy", "set", "max_min_fairness").code == 0
