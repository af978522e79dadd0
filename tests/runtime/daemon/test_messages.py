"""Messages from agents are validated once, and orders to agents use the agent's clock."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gavelpy.errors import RemoteViolation
from gavelpy.mechanism.events import Outcome
from gavelpy.model.job import NodeId
from gavelpy.runtime.daemon.config_sections import NodeSettings
from gavelpy.runtime.daemon.leases.lease import Order, Phase, Start, Wish
from gavelpy.runtime.daemon.nodes.registry import Hello, Node
from gavelpy.runtime.daemon.rpc import agent_messages
from gavelpy.runtime.wire import agent_pb2
from tests.runtime.daemon.harness import make_spec


def make_node(**fields: Any) -> agent_pb2.Node:
    """A node, as in its first message."""
    given = {"node_id": "n0", "gpu_type": "v100", "gpu_count": 4, "api_versions": [1], "host_id": "h"} | fields
    return agent_pb2.Node(**given)  # type: ignore[arg-type]  # fields of any type, by name


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"node_id": ""}, "node_id must be 1 to 128 letters"),
        ({"node_id": "../x"}, r"node_id must be .* got '../x'"),
        ({"node_id": "n" * 129}, "node_id must be"),
        ({"gpu_type": "a b"}, "gpu_type must be"),
        ({"gpu_count": 0}, r"gpu_count must be in \[1, 4096\], got 0"),
        ({"gpu_count": 1 << 31}, "gpu_count must be"),
        ({"api_versions": [7]}, r"api_versions must contain 1, got \[7\]"),
        ({"address": "a\nb"}, "address must be at most 255 printable characters"),
        ({"checkpoint_marker": "x" * 256}, "checkpoint_marker must be at most 255"),
    ],
)
def test_a_node_that_cannot_be_is_refused_by_field(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RemoteViolation, match=complaint):
        agent_messages.hello_of(make_node(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"phase": 0},
        {"phase": 99},
        {"lease": -1},
        {"job": -1},
        {"steps_done": math.nan},
        {"steps_done": math.inf},
        {"steps_saved": -1.0},
        {"rate_steps_per_s": 1e300},
    ],
)
def test_a_report_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    given = {"lease": 1, "job": 1, "phase": agent_pb2.LEASE_PHASE_RUNNING} | fields
    message = agent_pb2.ConnectRequest(leases=[agent_pb2.LeaseReport(**given)])

    with pytest.raises(RemoteViolation):
        agent_messages.reports_of(message)


def test_what_an_agent_says_for_people_is_kept_short_and_printable() -> None:
    report = agent_pb2.LeaseReport(
        lease=1, job=2, phase=agent_pb2.LEASE_PHASE_ENDED, outcome=agent_pb2.LEASE_OUTCOME_FAILED, exit_code=-9,
        detail="\x1b[31m" + "x" * 1_000, rendezvous_port=70_000,
    )  # fmt: skip

    (part,) = agent_messages.reports_of(agent_pb2.ConnectRequest(leases=[report]))

    assert (part.phase, part.outcome, part.exit_code, part.rendezvous_port) == (Phase.ENDED, Outcome.FAILED, -9, 0)
    assert part.detail == " [31m" + "x" * (agent_messages.DETAIL_MAX - 5)


@pytest.mark.parametrize("clock_s", [math.nan, math.inf, -1.0])
def test_a_clock_that_cannot_be_is_refused(clock_s: float) -> None:
    with pytest.raises(RemoteViolation, match="clock_s must be in"):
        agent_messages.clock_of(agent_pb2.ConnectRequest(clock_s=clock_s))


def test_an_order_has_all_it_takes_and_ends_in_the_agents_clock() -> None:
    node = Node(Hello(NodeId("n1"), "h", "v100", 2, "10.0.0.2"))
    node.clock_s, node.received_at_s = 5_000.0, 100.0
    start = Start((0, 1), "v100", 1, 2, 2, 4, NodeId("n0"), 4711, 9, 3, 12, 400.0, 20.0)
    spec = make_spec("train#7", gpus=4, sizes=(4, 1, 2), environment={"A": "1"}, warning_s=5.0, warning_signal=10)

    message = agent_messages.order_message(
        Order(15, 7, 160.0, Wish.RUN, 400.0, start), spec, node, "10.0.0.1", NodeSettings(grace_s=30.0), 600.0
    )

    launch = message.launch
    assert (message.lease, message.job, message.until_clock_s, message.wish) == (15, 7, 5_060.0, 2)
    assert (launch.job_name, launch.command, launch.working_directory) == ("train", "true", "/")
    assert (launch.rendezvous_address, launch.rendezvous_port) == ("10.0.0.1", 4711)
    assert (launch.node_rank, launch.first_rank, launch.world_size, list(launch.gpus)) == (1, 2, 4, [0, 1])
    assert (launch.resume_lease, launch.resume_steps, launch.restart_count, launch.round) == (12, 400.0, 3, 9)
    assert (launch.grace_s, launch.warning_s, launch.warning_signal) == (30.0, 5.0, 10)
    assert dict(launch.environment) == {"A": "1"}
    assert list(launch.sizes) == [1, 2, 4]


@pytest.mark.parametrize(("stated_s", "mtbf_s"), [(0.0, 1_800_000.0), (60.0, 0.0)])
def test_a_job_without_a_cadence_gets_the_time_between_failures_of_its_nodes(stated_s: float, mtbf_s: float) -> None:
    start = Start((0,), "v100", 0, 2, 0, 2, NodeId("n0"), 4711, 9, 3, 12, 400.0, 20.0)  # on two nodes
    spec = make_spec("train#7", gpus=2, checkpoint_every_s=stated_s)
    order, node = Order(15, 7, 160.0, Wish.RUN, 400.0, start), Node(Hello(NodeId("n1"), "h", "v100", 2, "10.0.0.2"))

    message = agent_messages.order_message(order, spec, node, "10.0.0.1", NodeSettings(mtbf_h=1_000.0), 600.0)

    assert (message.launch.checkpoint_every_s, message.launch.mtbf_s) == (stated_s, mtbf_s)


def test_a_node_may_be_called_as_its_agent_and_its_token_may() -> None:
    assert agent_messages.hello_of(make_node(node_id="n" * 128)).node_id == "n" * 128


@pytest.mark.parametrize("trouble", ["x" * 501, "a\nb"])
def test_trouble_that_a_node_cannot_have_is_refused(trouble: str) -> None:
    with pytest.raises(RemoteViolation, match="trouble must be at most 500 printable characters"):
        agent_messages.trouble_of(agent_pb2.ConnectRequest(trouble=trouble))
