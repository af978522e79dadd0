"""A node that joins another cluster archives its old leases and checkpoints, and reports none of them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gavelpy.errors import RemoteViolation
from gavelpy.runtime import lease_files
from gavelpy.runtime.agent.agent_state import AgentState
from gavelpy.runtime.agent.config import NodeConfig
from gavelpy.runtime.agent.leases.orders import Orders, orders_of
from gavelpy.runtime.agent.leases.reconcile import LocalLease, LocalPhase, NodeGpus, reconcile
from gavelpy.runtime.agent.leases.retention import OrdersKind, archive, classify_orders, final_orders
from gavelpy.runtime.checkpoint_directory import MARKER_FILE
from gavelpy.runtime.shim import processes
from gavelpy.runtime.wire import agent_pb2 as pb
from tests.runtime.agent.conftest import Node
from tests.runtime.agent.peer import Peer, order, serving, until

RUNNING, ENDED = pb.LEASE_PHASE_RUNNING, pb.LEASE_PHASE_ENDED


@pytest.mark.parametrize(
    ("incarnation", "cluster_id", "regarded"),
    [
        (5, "c1", OrdersKind.CURRENT),
        (4, "c1", OrdersKind.OUTDATED),
        (4, "", OrdersKind.OUTDATED),
        (5, "", OrdersKind.CURRENT),
        (1, "c2", OrdersKind.OTHER_CLUSTER),
        (9, "c2", OrdersKind.OTHER_CLUSTER),
    ],
)
def test_numbers_of_a_scheduler_mean_something_in_its_cluster_only(
    incarnation: int, cluster_id: str, regarded: OrdersKind
) -> None:
    known = AgentState("n0", "boot", cluster_id="c1", incarnation=5)

    assert classify_orders(Orders(incarnation, 1, 1, cluster_id=cluster_id), known) is regarded


def test_node_that_has_no_cluster_joins_any() -> None:
    assert classify_orders(Orders(1, 1, 1, cluster_id="c2"), AgentState("n0", "boot")) is OrdersKind.CURRENT


def test_farewell_kills_what_lives_and_forgets_what_has_ended() -> None:
    living, ended = LocalLease(1, 1, LocalPhase.RUNNING, until_clock_s=9.0), LocalLease(2, 2, LocalPhase.ENDED)

    actions = reconcile([living, ended], final_orders([living, ended]), NodeGpus("v100", 1), 1.0)

    assert [(type(action).__name__, getattr(action, "kill", None)) for action in actions] == [
        ("Amend", True),
        ("Forget", None),
    ]


def test_cluster_id_that_is_none_spoils_the_message() -> None:
    with pytest.raises(RemoteViolation, match="cluster_id must be at most 255 printable characters"):
        orders_of(pb.ConnectResponse(cluster_id="c\n1"), 1)


def test_what_the_old_cluster_left_on_this_node_is_put_aside(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    (tmp_path / "ended" / "00000001").mkdir(parents=True)
    (checkpoints / "0" / "lease-00000001").mkdir(parents=True)
    (tmp_path / "former" / "ended" / "00000009").mkdir(parents=True)

    archive(tmp_path, checkpoints, "c2")
    archive(tmp_path, checkpoints, "c2")  # as after a crash in between

    assert [entry.name for entry in (tmp_path / "former" / "ended").iterdir()] == ["00000001"]
    assert [entry.name for entry in (tmp_path / "former" / "checkpoints").iterdir()] == ["0"]
    assert [*(tmp_path / "ended").iterdir(), *checkpoints.iterdir()] == []


def test_checkpoints_that_are_the_new_clusters_or_elsewhere_stay(tmp_path: Path) -> None:
    shared, elsewhere = tmp_path / "state" / "checkpoints", tmp_path / "elsewhere"
    (shared / "0").mkdir(parents=True)
    (shared / MARKER_FILE).write_text("c2\n")
    (elsewhere / "0").mkdir(parents=True)

    archive(tmp_path / "state", shared, "c2")
    archive(tmp_path / "state", None, "c2")

    assert (shared / "0").exists()
    assert (elsewhere / "0").exists()
    own = NodeConfig(state_directory=str(tmp_path / "state"))
    assert own.has_own_checkpoints
    assert not msgspec.structs.replace(own, checkpoint_directory=str(elsewhere)).has_own_checkpoints


def test_new_scheduler_finds_a_node_without_leases_of_the_old_one(
    make_node: Callable[..., Node], kept_port: int
) -> None:
    old, new = Peer(), Peer()
    old.incarnation = 7
    with serving(old, kept_port):
        node = make_node(scheduler=f"127.0.0.1:{kept_port}")
        old.order(order(1, "sleep 100", job=0))
        old.until_phase(1, RUNNING)
        before = node.shim(1)

    new.cluster_id = "c2"
    new.order(order(1, "sleep 200", job=0))
    with serving(new, kept_port):
        started = new.until_phase(1, RUNNING)

        assert (new.nodes[0].cluster_id, new.nodes[0].confirmed_dead) == ("c1", False)
        joined = next(node for node in new.nodes if node.cluster_id == "c2")
        assert joined.confirmed_dead
        assert list(new.heard[0].leases) == []
        assert started.shim_process not in (0, before.process)
        assert not processes.is_shim_alive(before)
        assert [processes.process_facts(process) for process in before.job_processes] == [None]


def test_node_stays_with_its_new_cluster_over_a_restart(make_node: Callable[..., Node], kept_port: int) -> None:
    old, new = Peer(), Peer()
    with serving(old, kept_port):
        node = make_node(scheduler=f"127.0.0.1:{kept_port}")
        until(lambda: old.heard)
        until(lambda: '"cluster_id":"c1"' in (node.state / "node.json").read_text())
        node.send(signal.SIGKILL)

    new.cluster_id = "c2"
    with serving(new, kept_port):
        node.start()
        until(lambda: '"cluster_id":"c2"' in (node.state / "node.json").read_text())
        node.send(signal.SIGKILL)
        node.start()
        new.order(order(1, "true"))

        assert new.until_phase(1, ENDED).outcome == pb.LEASE_OUTCOME_FINISHED
        assert new.nodes[-1].cluster_id == "c2"
        assert lease_files.read_end(node.lease(1)) is not None
