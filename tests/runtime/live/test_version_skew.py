"""An older version leads, this one takes over, and the older one leads again: with real programs of both versions.

The older one is the first commit that has standbys. Its messages and records lack what came later.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from gavelpy.runtime.local_cluster import LocalNode, program, wait_until
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live.several import Several, several
from tests.runtime.live.test_standby import command, sleeping

OLDER = "c352b8d"
ROOT = Path(__file__).parents[3]
NODE = LocalNode("n1", "v100:2")


def older_version(directory: Path) -> Path:
    """The package of the older version; skips where the clone lacks its commit."""
    made = subprocess.run(["git", "archive", OLDER, "gavelpy", "workloads"], cwd=ROOT, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"no commit {OLDER} in this clone")
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return directory


def older_gavel(older: Path, them: Several, *words: str) -> str:
    """What `gavel` of the older version prints."""
    line = [program("gavel"), *words]
    environment = {**os.environ, "PYTHONPATH": str(older), "GAVEL_SCHEDULER": them.addresses}
    return subprocess.run(line, check=True, capture_output=True, text=True, timeout=60, env=environment).stdout


def names(them: Several, older: Path) -> tuple[set[str], set[str]]:
    """Names of jobs as clients of this version and of the older one see them."""
    with them.client() as client:
        here = {job.name for job in client.jobs()}
    listed = json.loads(older_gavel(older, them, "jobs", "-o", "json"))["jobs"]
    return here, {job["name"] for job in listed}


@pytest.mark.slow  # 20 s: programs of two versions
def test_versions_take_over_from_each_other_in_both_directions(tmp_path: Path, postgres_url: str) -> None:
    older = older_version(tmp_path / "older")
    with (
        several(tmp_path / "cluster", postgres_url, NODE, older={"a": older}) as them,
        them.client() as client,
    ):
        first = client.submit([sleeping("of-new")]).jobs[0].job
        older_gavel(older, them, "submit", "--name", "of-old", "--steps", "900", "--", "sleep", "900")
        wait_until(lambda: client.job(str(first)).job.state == pb.JOB_STATE_RUNNING, "it runs")
        lease, incarnation = client.job(str(first)).job.lease, client.server_info().incarnation
        assert names(them, older) == ({"of-new", "of-old"}, {"of-new", "of-old"})

        assert "leads" in command(them, "promote", of="b")  # this version

        assert them.leads("b")
        assert client.job(str(first)).job.lease == lease
        assert older_gavel(older, them, "explain", "of-old")
        older_gavel(older, them, "cancel", "of-old")
        client.submit([sleeping("later")])
        them.wait_standby("a")
        wait_until(lambda: follows(them), "the older version follows")

        assert "leads" in command(them, "promote", of="a")  # the older version again

        assert them.leads("a")
        assert names(them, older) == ({"of-new", "later"}, {"of-new", "later"})
        assert client.job(str(first)).job.lease == lease  # it was not disturbed
        assert client.server_info().incarnation == incarnation + 2
        wait_until(lambda: client.job("later").job.state == pb.JOB_STATE_RUNNING, "jobs start")


def follows(them: Several) -> bool:
    """Whether the standby has read the journal."""
    found = json.loads(command(them, "members", "--json", of="b"))["standbys"]
    return bool(found) and all(one["follows_to"] > 0 for one in found)
