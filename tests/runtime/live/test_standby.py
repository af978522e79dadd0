"""One of several schedulers leads; another takes over when it is killed, frozen or stopped, or is to hand over."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from gavelpy.errors import GavelError
from gavelpy.runtime.client.connection import Client
from gavelpy.runtime.local_cluster import LocalNode, program, wait_until
from gavelpy.runtime.wire import client_pb2 as pb
from tests.journal.postgres_pair import pair
from tests.journal.postgres_server import required
from tests.runtime.live.several import Several, several

NODE = LocalNode("n1", "v100:2")
LIMIT_S = 20.0  # from a failure to an acknowledged submission, on a busy machine; RESULTS.md has figures of a quiet one


def sleeping(name: str) -> pb.JobDescription:
    """A job that lasts longer than the test."""
    return pb.JobDescription(name=name, command="sleep 900", gpus=1, steps_total=900)


def command(them: Several, *words: str, of: str) -> str:
    """The output of a command of `gavel-scheduler` with the configuration of this scheduler."""
    line = [program("gavel-scheduler"), *words, "--config", str(them.config(of))]
    return subprocess.run(line, check=True, capture_output=True, text=True, timeout=60).stdout


def test_a_standby_takes_over_from_a_killed_scheduler_and_hands_over_when_told(
    tmp_path: Path, postgres_url: str
) -> None:
    with several(tmp_path / "cluster", postgres_url, NODE) as them, them.client() as client:
        first = client.submit([sleeping("one")]).jobs[0].job
        wait_until(lambda: client.job(str(first)).job.state == pb.JOB_STATE_RUNNING, "it runs")
        lease, incarnation = client.job(str(first)).job.lease, client.server_info().incarnation
        assert json.loads(command(them, "members", "--json", of="a"))["standbys"][0]["address"] == them.address("b")

        them.kill("a")
        second = client.submit([sleeping("two")]).jobs[0].job

        assert second == first + 1
        assert client.server_info().incarnation == incarnation + 1
        assert client.job(str(first)).job.lease == lease  # the job is not disturbed
        them.start("a")
        them.wait_standby("a")

        wait_until(lambda: them.address("a") in command(them, "members", of="a"), "a is listed")
        assert f"{them.address('a')} leads" in command(them, "promote", of="a")

        assert them.leads("a")
        assert {job.job for job in client.jobs()} == {first, second}
        assert client.job(str(first)).job.lease == lease
        them.wait_standby("b")


def test_a_frozen_leader_is_replaced_and_notices_it(tmp_path: Path, postgres_url: str) -> None:
    with several(tmp_path / "cluster", postgres_url, NODE) as them, them.client() as client:
        first = client.submit([sleeping("one")]).jobs[0].job

        them.signal("a", signal.SIGSTOP)
        second = client.submit([sleeping("two")]).jobs[0].job

        assert second == first + 1
        assert them.leads("b")
        them.signal("a", signal.SIGCONT)
        wait_until(lambda: "leads no more" in them.cluster.log("a"), "it notices")
        them.wait_standby("a")
        assert [job.job for job in client.jobs()] == [first, second]


class Submitters:
    """Clients that submit jobs until they are stopped."""

    def __init__(self, them: Several, count: int) -> None:
        self.acknowledged: dict[str, int] = {}
        self.refused: list[str] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._submit, args=(them, who)) for who in range(count)]

    def __enter__(self) -> Submitters:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for one in self._threads:
            one.join()

    def _submit(self, them: Several, who: int) -> None:
        with them.client() as client:
            for k in itertools.count():
                name = f"c{who}-{k}"
                try:
                    self.acknowledged[name] = client.submit([sleeping(name)], key=name).jobs[0].job
                except GavelError:
                    self.refused.append(name)
                if self._over.wait(0.5):
                    return


def fail_over(them: Several, fault: str, leader: str, other: str, client: Client, name: str) -> tuple[int, float]:
    """Does this to the leader; returns a job submitted right after it, and how long that took."""
    if fault == "promote":
        command(them, "promote", of=other)
    began_s = time.monotonic()
    match fault:
        case "kill":
            them.kill(leader)
        case "freeze":
            them.signal(leader, signal.SIGSTOP)
        case "stop":
            them.signal(leader, signal.SIGTERM)
    job = client.submit([sleeping(name)], key=name).jobs[0].job
    gap_s = time.monotonic() - began_s
    if fault == "freeze":
        them.signal(leader, signal.SIGCONT)
    elif fault != "promote":
        them.cluster.processes[leader].wait(30)
        them.start(leader)
    wait_until(lambda: not them.leads(leader) and them.leads(other), "the other one leads", 30.0)
    return job, gap_s


@pytest.mark.slow  # about ten minutes: 100 failovers
def test_no_acknowledged_job_is_lost_or_doubled_in_a_hundred_failovers(tmp_path: Path, postgres_url: str) -> None:
    rng, gaps_s = np.random.default_rng(16), []
    with several(tmp_path / "cluster", postgres_url, NODE) as them, them.client() as client:
        steady = client.submit([sleeping("steady")]).jobs[0].job
        wait_until(lambda: client.job(str(steady)).job.state == pb.JOB_STATE_RUNNING, "it runs")
        lease = client.job(str(steady)).job.lease
        with Submitters(them, 8) as clients:
            expected = {"steady": steady}
            for k in range(100):
                leader = them.leader()
                other = "b" if leader == "a" else "a"
                them.wait_standby(other)
                fault = str(rng.choice(["kill", "freeze", "stop", "promote"]))
                expected[f"f{k}"], gap_s = fail_over(them, fault, leader, other, client, f"f{k}")
                gaps_s.append(gap_s)
                assert client.job(str(steady)).job.lease == lease, "a running job was disturbed"
        found = client.jobs()

    expected |= clients.acknowledged
    there = {job.name: job.job for job in found}
    assert len(found) == len(there), "a job exists twice"
    assert expected.items() <= there.items()
    assert there.keys() - expected.keys() <= set(clients.refused)
    median_s, p99_s = np.quantile(gaps_s, [0.5, 0.99])
    (tmp_path / "figures").write_text(f"median {median_s:.2f} s, p99 {p99_s:.2f} s, {len(expected)} jobs\n")
    assert p99_s <= LIMIT_S


@pytest.mark.slow  # about a minute: two servers of PostgreSQL
def test_acknowledged_jobs_survive_the_promotion_of_the_databases_replica(tmp_path: Path) -> None:
    with (
        pair(required(os.environ)) as servers,
        several(tmp_path / "cluster", servers.url, NODE) as them,
        them.client(60.0) as client,
    ):
        steady = client.submit([sleeping("steady")]).jobs[0].job
        wait_until(lambda: client.job(str(steady)).job.state == pb.JOB_STATE_RUNNING, "it runs")
        lease = client.job(str(steady)).job.lease
        with Submitters(them, 4) as clients:
            wait_until(lambda: len(clients.acknowledged) > 20, "jobs are submitted")
            servers.kill_primary()
            time.sleep(2.0)
            servers.promote()
            before = len(clients.acknowledged)
            wait_until(lambda: len(clients.acknowledged) > before + 20, "jobs are submitted again", 60.0)
        found = client.jobs()

        there = {job.name: job.job for job in found}
        assert len(found) == len(there), "a job exists twice"
        assert clients.acknowledged.items() <= there.items()
        assert client.job(str(steady)).job.lease == lease
