"""A hostile job attacks another user's job and the agent: every attack fails, and would work if both were one account.

Both jobs run on one node. The evidence that an attack is one is a second node that runs all jobs as root.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from gavelpy.runtime import lease_files
from gavelpy.runtime.wire import agent_pb2 as pb
from gavelpy.runtime.wire import job_pb2, job_pb2_grpc
from tests.runtime.agent import hostile
from tests.runtime.agent.conftest import Node
from tests.runtime.agent.owners import OWNERS, PYTHON, open_place, owners_node
from tests.runtime.agent.peer import Peer, order, serving, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as other accounts")

LEASES = {"job": 0, "lease": 1, "own_lease": 2}
NO_TARGET = {"victim": 1, "shim": 1, "agent": 1, "state": "/", "checkpoints": "/", "job_directory": "/", **LEASES}
ATTACKS = sorted(hostile.attacks({**NO_TARGET, "cgroup": "/sys/fs/cgroup/a/b"}))
SECRET = "bobs-secret"
VICTIM = "sh -c 'echo $API_KEY; echo $API_KEY > $GAVEL_CHECKPOINT_DIR/secret; exec sleep 100'"


def attacked(more: str) -> dict[str, str]:
    """What the hostile job printed for each attack on a node with this configuration."""
    peer = Peer()
    with open_place() as place, serving(peer) as port, owners_node(place / "state", port, more) as node:
        (place / "token").write_text("the node's token")
        (place / "token").chmod(0o600)
        shutil.copy("/usr/bin/id", place / "id")
        (place / "id").chmod(0o4755)
        peer.order(order(1, VICTIM, owner="bob", environment={"API_KEY": SECRET}))
        until(lambda: SECRET in node.log_text(1))
        script = place / "hostile.py"
        shutil.copy(hostile.__file__, script)
        (place / "targets.json").write_text(json.dumps(targets(node, place)))
        peer.order(order(2, f"{PYTHON} {script} {place / 'targets.json'}", owner="alice", job=1, gpus=(1,)))
        report = peer.until_phase(2, pb.LEASE_PHASE_ENDED)
        assert report.outcome == pb.LEASE_OUTCOME_FINISHED, node.log_text(2)
        assert peer.until_phase(1, pb.LEASE_PHASE_RUNNING)
        lines = [line.split(" ", 1)[1].split(" ", 1) for line in node.log_text(2).splitlines()]
    return dict(lines)


def targets(node: Node, place: Path) -> dict[str, object]:
    shim = node.shim(1)
    launch = lease_files.read_launch(node.lease(1))
    assert launch is not None
    assert node.process is not None
    return {
        **LEASES,
        "victim": shim.job_processes[0],
        "shim": shim.process,
        "agent": node.process.pid,
        "state": str(node.state),
        "checkpoints": str(node.checkpoints),
        "job_directory": str(launch.directory_of_job(node.lease(1))),
        "token": str(place / "token"),
        "set_uid": str(place / "id"),
        "cgroup": launch.cgroup,
    }


@pytest.fixture(scope="module")
def as_owners() -> dict[str, str]:
    return attacked(OWNERS)


@pytest.fixture(scope="module")
def as_one_account() -> dict[str, str]:
    return attacked('run_as = "agent"\n')


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_on_another_owners_job_fails(as_owners: dict[str, str], attack: str) -> None:
    if attack.endswith("control-group") and attack not in as_owners:
        pytest.skip("this machine has no control groups that can be written")

    assert as_owners[attack].startswith("denied"), as_owners


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_works_among_jobs_of_one_account(as_one_account: dict[str, str], attack: str) -> None:
    if attack.endswith("control-group") and attack not in as_one_account:
        pytest.skip("this machine has no control groups that can be written")
    if attack == "kill-control-group" and as_one_account[attack] != "worked":
        pytest.skip("this kernel or hierarchy has no cgroup.kill")

    assert as_one_account[attack] == "worked", as_one_account


@pytest.fixture
def served(place: Path, peer: Peer, port: int) -> Iterator[str]:
    """Address of the JobService of a node that runs bob's job."""
    with owners_node(place / "state", port) as node:
        peer.order(order(1, "sh -c 'echo $GAVEL_JOB_SERVICE; exec sleep 100'", owner="bob"))
        yield until(lambda: node.log_text(1)).split()[1]


@pytest.fixture
def place() -> Iterator[Path]:
    with open_place() as directory:
        yield directory


@pytest.mark.parametrize("token", ["", "x", "Bearer ", "gavel_x"])
def test_job_service_answers_only_the_job_with_the_token(served: str, token: str) -> None:
    with grpc.insecure_channel(served) as channel:
        stub = job_pb2_grpc.JobServiceStub(channel)
        for call, request in (
            (stub.GetLease, job_pb2.GetLeaseRequest()),
            (stub.ReportProgress, job_pb2.ReportProgressRequest(steps_done=1e6, finished=True)),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                call(request, metadata=(("authorization", token),), timeout=30)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_job_cannot_create_a_file_of_root(place: Path, peer: Peer, port: int) -> None:
    """A set-uid file that a job makes is its owner's, and gives others the rights of the owner only."""
    made = "sh -c 'cd $GAVEL_CHECKPOINT_DIR; cp /usr/bin/id .; chmod 6755 id; chown root id'"
    with owners_node(place / "state", port) as node:
        peer.order(order(1, made, owner="alice"))
        peer.until_phase(1, pb.LEASE_PHASE_ENDED)
        found = (node.checkpoints / "0/lease-00000001/id").stat()

    assert found.st_uid != 0
    assert found.st_gid != 0
    assert stat.S_IMODE(found.st_mode) == 0o6755
