"""A standby answers reads that may be stale, with their age, as the leader would; it refuses everything else."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gavelpy.errors import NotFound, SchedulerUnreachable
from gavelpy.runtime.client.connection import Client
from gavelpy.runtime.client.settings import ClientSettings
from gavelpy.runtime.local_cluster import LocalNode, program, wait_until
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live.several import Several, several

NODE = LocalNode("n1", "v100:2")
LONG_S = 60.0  # a lease of leadership that does not end on a busy machine


def reader(them: Several, address: str, timeout_s: float = 10.0) -> Client:
    """A client that accepts stale answers."""
    return Client(ClientSettings(scheduler=address, timeout_s=timeout_s), stale_ok=True)


def gavel(them: Several, *words: str) -> subprocess.CompletedProcess[str]:
    """A command with the address of the standby only."""
    line = [program("gavel"), *words, "--scheduler", them.address("b"), "--timeout", "1"]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


def plain(job: pb.Job) -> tuple[object, ...]:
    """What the journal has of a job."""
    return job.job, job.name, job.owner, job.state, job.lease, list(job.node_ids), job.gpus, job.submitted_at_s


def test_a_standby_answers_reads_as_the_leader_and_says_how_old_they_are(tmp_path: Path, postgres_url: str) -> None:
    jobs = [pb.JobDescription(name=name, command="sleep 900", gpus=2, steps_total=900) for name in ("one", "two")]
    with (
        several(tmp_path / "cluster", postgres_url, NODE, lease_s=LONG_S) as them,
        them.client() as client,
        reader(them, them.address("b")) as stale,
        reader(them, them.addresses) as both,
    ):
        client.submit(jobs)
        wait_until(lambda: client.job("one").job.state == pb.JOB_STATE_RUNNING, "it runs")
        wait_until(lambda: [*map(plain, stale.jobs())] == [*map(plain, client.jobs())], "the standby has followed")
        found = stale.stale

        assert found is not None
        assert (found.scheduler, found.leader) == (them.address("b"), them.address("a"))
        assert found.sequence > 0
        assert 0.0 <= found.age_s < 10.0
        assert stale.job("two").job.reason == client.job("two").job.reason != ""
        assert stale.cluster().policy == client.cluster().policy
        assert [(node.node_id, node.state, node.gpus_in_use) for node in stale.nodes()] == [("n1", "up", 2)]
        assert stale.nodes()[0].detail == f"its agent reports to {them.address('a')}"
        assert [row.gpu_type for row in stale.usage().rows] == [row.gpu_type for row in client.usage().rows]
        assert stale.wait(["one"], wait_s=0.0).all_over is False
        with pytest.raises(NotFound, match="number or name of one of yours"):
            stale.job("three")
        assert len(both.jobs()) == 2
        assert both.stale is None  # the leader has answered
        answer = gavel(them, "jobs", "-o", "json", "--stale-ok")
        assert json.loads(answer.stdout)["stale"]["leader"] == them.address("a")
        assert f"by the standby {them.address('b')}; {them.address('a')} leads" in answer.stderr
        refused = gavel(them, "jobs")
        assert refused.returncode == 3
        assert f"{them.address('a')} leads (--stale-ok reads from a standby)" in refused.stderr
        with reader(them, them.address("b"), 1.0) as brief, pytest.raises(SchedulerUnreachable, match="a standby"):
            brief.cancel(["one"])
