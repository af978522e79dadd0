"""A job with a /tmp of its own, and without sight of other users' processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.runtime.agent.config import node_config
from gavelpy.runtime.shim import isolation
from gavelpy.runtime.wire import agent_pb2 as pb
from tests.runtime.agent.conftest import Node
from tests.runtime.agent.owners import OWNERS, open_place, owners_node
from tests.runtime.agent.peer import Peer, order, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make mount namespaces")
NAME = f"gavel-private-{os.getpid()}"
WRITES = (
    f"sh -c 'echo x > /tmp/{NAME}-$LOCAL_RANK; echo x > /var/tmp/{NAME}; sleep 1; "
    "ls /tmp /var/tmp; echo end; sleep 100'"
)


@pytest.fixture
def node(port: int) -> Iterator[Node]:
    with (
        open_place("/var/lib") as place,
        owners_node(place / "state", port, OWNERS + "private_tmp = true\n") as started,
    ):
        yield started


def listed(node: Node, lease: int) -> list[str]:
    """What a job printed, once it is complete."""
    until(lambda: node.log_text(lease).endswith("end\n"))
    return [line.split(" ", 1)[1] for line in node.log_text(lease).splitlines()]


def test_tmp_is_shared_by_the_ranks_of_a_lease_and_by_no_other_job(peer: Peer, node: Node) -> None:
    peer.order(order(1, WRITES, owner="alice", gpus=(0, 1)))
    listed(node, 1)
    peer.order(
        order(
            2, "sh -c 'ls /tmp /var/tmp; stat -c \"%a %U\" /tmp; echo end; sleep 100'", owner="alice", job=1, gpus=(2,)
        )
    )

    assert listed(node, 1) == ["/tmp:", f"{NAME}-0", f"{NAME}-1", "", "/var/tmp:", NAME, "end"]
    assert listed(node, 2) == ["/tmp:", "", "/var/tmp:", "700 games", "end"]
    assert not list(Path("/tmp").glob(f"{NAME}*"))
    assert not Path(f"/var/tmp/{NAME}").exists()


def test_tmp_of_a_lease_is_put_away_with_it(peer: Peer, node: Node) -> None:
    peer.order(order(1, WRITES, owner="alice"))
    listed(node, 1)
    own = node.lease(1) / isolation.TMP
    assert (own / "tmp" / f"{NAME}-0").exists()

    peer.wish(1, pb.LEASE_WISH_KILL)
    peer.until_phase(1, pb.LEASE_PHASE_ENDED)
    peer.forget.append(1)
    peer.drop(1)

    until(lambda: not node.lease(1).exists())
    assert not (node.state / "ended/00000001/tmp").exists()


def test_mounts_of_a_job_are_not_on_the_node(peer: Peer, node: Node) -> None:
    peer.order(order(1, WRITES, owner="alice"))
    listed(node, 1)

    here = Path("/proc/self/mountinfo").read_text()
    of_job = Path(f"/proc/{node.shim(1).job_processes[0]}/mountinfo").read_text()
    assert "hidepid=invisible" in of_job
    assert str(node.lease(1)) in of_job
    assert "hidepid" not in here
    assert str(node.lease(1)) not in here


def test_job_sees_processes_of_its_account_only(peer: Peer, node: Node) -> None:
    peer.order(order(1, "sh -c 'ls -d /proc/1 /proc/self; echo end; sleep 100'", owner="alice"))

    lines = listed(node, 1)
    assert lines == ["/proc/self", "end"]


@pytest.mark.parametrize("name", ["state_directory", "checkpoint_directory"])
def test_private_tmp_does_not_hide_directories_of_the_node(name: str) -> None:
    with pytest.raises(InvalidInput, match=rf"{name} must not be below /tmp or /var/tmp with private_tmp"):
        node_config({"state_directory": "/var/lib/x", name: "/tmp/x", "private_tmp": True}, None)


def test_namespaces_can_be_made_here() -> None:
    assert isolation.is_possible() == ""
