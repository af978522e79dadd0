"""A job that one node refuses waits with the reason, and runs on a node that knows its owner."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from gavelpy.runtime.local_cluster import LocalCluster, LocalNode, wait_until
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.agent.owners import ALICE, open_place
from tests.runtime.live.cluster import jobs_of, submit

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as other accounts")


def test_job_refused_by_one_node_waits_with_the_reason_and_runs_where_its_owner_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strange, known = LocalNode("strange", "v100:1"), LocalNode("known", "v100:1")
    with open_place() as place, LocalCluster(place / "cluster", (strange, known)) as cluster:
        cluster.checkpoints.chmod(0o711)
        cluster.start_scheduler()
        start_agent(cluster, strange, place / "strange.toml", "", monkeypatch)
        command = "sh -c 'id -u > $GAVEL_CHECKPOINT_DIR/uid'"
        described = pb.JobDescription(
            name="a", command=command, working_directory="/", gpus=1, steps_total=1.0, rates_steps_per_s={"v100": 1.0}
        )
        (job,) = submit(cluster, [described], "key")
        refused = "node strange does not know user 'local'"
        wait_until(lambda: refused in jobs_of(cluster)[job].detail, "the job waits with the reason")
        waiting = jobs_of(cluster)[job]

        start_agent(cluster, known, place / "known.toml", f'users = {{ local = "{ALICE}" }}', monkeypatch)
        wait_until(lambda: jobs_of(cluster)[job].state == pb.JOB_STATE_FINISHED, "the job has run")
        (written,) = cluster.checkpoints.glob("0/*/uid")
        uid = written.read_text().strip()

    assert (waiting.failures, waiting.failure_class) == (0, "refused")
    assert "refused by the node; retried" in waiting.failure
    assert uid == str(pwd.getpwnam(ALICE).pw_uid)


def start_agent(cluster: LocalCluster, node: LocalNode, file: Path, more: str, patch: pytest.MonkeyPatch) -> None:
    """Starts an agent with a configuration file, and waits for it."""
    file.write_text(f'[node]\nrun_as = "owner"\n{more}\n')
    patch.setenv("GAVEL_NODE_CONFIG", str(file))
    before = cluster.nodes_up()
    cluster.start_agent(node)
    wait_until(lambda: cluster.nodes_up() > before, "the node is up")
