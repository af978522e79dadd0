"""The scheduler's orders for this node: its messages, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.agent.leases.assignment import NodeAssignment, assignment_of
from gavelpy.runtime.quorum import MEMBERS_MAX, Member, View
from gavelpy.runtime.wire import agent_pb2

API_VERSIONS: Final = (1,)
_HEARTBEAT_S = (0.05, 60.0)
_CLOCK_S_MAX = 1e12
_LEASE_MAX = (1 << 63) - 1
_CLUSTER_ID_MAX = 255
_DURATION_S_MAX = 86_400.0


class OrderKind(StrEnum):
    """What to do with a lease."""

    PREPARE = "prepare"
    RUN = "run"
    STOP = "stop"
    KILL = "kill"


@dataclass(frozen=True)
class LeaseOrder:
    """The scheduler's order for one lease."""

    lease: int
    job: int
    until_clock_s: float
    kind: OrderKind
    steps_saved: float = 0.0
    assignment: NodeAssignment | None = None  # None = not sent, or invalid
    refusal: str = ""  # why the launch is invalid


@dataclass(frozen=True)
class Orders:
    """All leases that the node should have. Newer orders have a larger `order`."""

    incarnation: int
    stream: int  # counts the connections of this agent
    sequence: int
    leases: tuple[LeaseOrder, ...] = ()
    forget: frozenset[int] = frozenset()
    cluster_id: str = ""  # empty = not sent
    echo_clock_s: float = 0.0  # of this agent's last message that the scheduler had received
    view: View | None = None  # the agents that decide without a scheduler; None = not sent
    view_key: bytes = b""

    @property
    def order(self) -> tuple[int, int, int]:
        """Increases from message to message."""
        return self.incarnation, self.stream, self.sequence


_KINDS: Final = {
    agent_pb2.LEASE_WISH_PREPARE: OrderKind.PREPARE,
    agent_pb2.LEASE_WISH_RUN: OrderKind.RUN,
    agent_pb2.LEASE_WISH_STOP: OrderKind.STOP,
    agent_pb2.LEASE_WISH_KILL: OrderKind.KILL,
}


def orders_of(message: agent_pb2.ConnectResponse, stream: int) -> Orders:
    """The orders in a message.

    An invalid launch affects its lease only. Any other error makes the message invalid: RemoteViolation.
    """
    if message.api_version not in (0, *API_VERSIONS):
        raise RemoteViolation(f"api_version must be one of {list(API_VERSIONS)}, got {message.api_version}")
    leases = tuple(_order_of(order) for order in message.leases)
    if len({order.lease for order in leases}) != len(leases):
        raise RemoteViolation("leases must name each lease once")
    if len(message.cluster_id) > _CLUSTER_ID_MAX or not message.cluster_id.isprintable():
        allowed = f"at most {_CLUSTER_ID_MAX} printable characters"
        raise RemoteViolation(f"cluster_id must be {allowed}, got {message.cluster_id[:80]!r}")
    if not math.isfinite(message.echo_clock_s):
        raise RemoteViolation(f"echo_clock_s must be finite, got {message.echo_clock_s!r}")
    return Orders(
        message.incarnation,
        stream,
        message.sequence,
        leases,
        frozenset(message.forget),
        message.cluster_id,
        message.echo_clock_s,
        view_of(message.view) if message.HasField("view") else None,
        message.view.key,
    )


def view_of(message: agent_pb2.View) -> View:
    """The view in a message; raises RemoteViolation."""
    for name in ("orphan_max_s", "window_s", "step_s"):
        value = getattr(message, name)
        if not math.isfinite(value) or not 0 <= value <= _DURATION_S_MAX:
            raise RemoteViolation(f"view.{name} must be in [0, {_DURATION_S_MAX:g}], got {value!r}")
    if len(message.members) > MEMBERS_MAX:
        raise RemoteViolation(f"view.members must be at most {MEMBERS_MAX}, got {len(message.members)}")
    members = tuple(Member(member.node_id, member.state_id, member.address) for member in message.members)
    return View(message.epoch, members, message.orphan_max_s, message.window_s, message.step_s)


def heartbeat_interval_s(message: agent_pb2.ConnectResponse, current_s: float) -> float:
    """The interval that a message sets, within limits; `current_s` if it sets none."""
    interval_s = message.heartbeat_interval_s
    if not math.isfinite(interval_s) or interval_s <= 0:
        return current_s
    return min(max(interval_s, _HEARTBEAT_S[0]), _HEARTBEAT_S[1])


def is_newer(orders: Orders, than: Orders | None) -> bool:
    """Whether these orders are newer than the newest so far."""
    return than is None or orders.order > than.order


def _order_of(order: agent_pb2.LeaseOrder) -> LeaseOrder:
    kind = _KINDS.get(order.wish)
    if kind is None:
        raise RemoteViolation(f"lease {order.lease}: wish must be one of {sorted(_KINDS)}, got {order.wish}")
    if not 0 <= order.lease <= _LEASE_MAX or not 0 <= order.job <= _LEASE_MAX:
        raise RemoteViolation(f"lease and job must not be negative, got {order.lease} and {order.job}")
    if not math.isfinite(order.until_clock_s) or abs(order.until_clock_s) > _CLOCK_S_MAX:
        raise RemoteViolation(f"lease {order.lease}: until_clock_s must be finite, got {order.until_clock_s!r}")
    if not math.isfinite(order.steps_saved) or order.steps_saved < 0:
        raise RemoteViolation(f"lease {order.lease}: steps_saved must not be negative, got {order.steps_saved!r}")
    assignment, refusal = None, ""
    if order.HasField("launch"):
        try:
            assignment = assignment_of(order.launch)
        except RemoteViolation as violation:
            refusal = str(violation)
    return LeaseOrder(order.lease, order.job, order.until_clock_s, kind, order.steps_saved, assignment, refusal)
