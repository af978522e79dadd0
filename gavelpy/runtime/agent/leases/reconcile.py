"""From what the node runs and what the scheduler wants to what must be done: a pure function, called again and again.

What holds whatever the orders are (lost, repeated, late, out of order):

- A GPU is given to a lease only while no living lease of this node holds it; the same for a job. A lease that cannot
  have its GPUs yet waits, and is asked for again at the next call, until its time is over.
- A lease is only ever lengthened, and only before its end; a stop or a kill is never taken back. A scheduler that wants
  an earlier end says stop. Without a scheduler, other agents may lengthen it (`extended`).
- What is not in the newest orders is killed. Before the first orders nothing is.
- What is still there when its time and its grace are over is killed, whatever its shim does.
- The record of an ended lease goes when the scheduler says that it has the end in its journal, and not before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from typing import Final

from gavelpy.runtime.agent.leases.assignment import Assignment
from gavelpy.runtime.agent.orders import LeaseOrder, OrderKind, Orders
from gavelpy.runtime.lease_files import Outcome

OVERDUE_S: Final = 0.5  # what a shim may be late by
LENGTHENED_S_MIN: Final = 0.01  # the same end, told again, comes out a little different each time


class LocalPhase(StrEnum):
    """Where a lease of this node stands."""

    PREPARED = "prepared"  # holds its GPUs, runs nothing
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True)
class LocalLease:
    """What the node knows of one of its leases."""

    lease: int
    job: int
    phase: LocalPhase
    assignment: Assignment | None = None  # None = refused before it was one
    until_clock_s: float = 0.0
    stop: bool = False
    kill: bool = False
    killed_clock_s: float = inf  # when `kill` was ordered
    steps_saved: float = 0.0  # as the scheduler has it on record
    has_lost_shim: bool = False  # its shim has vanished

    @property
    def is_living(self) -> bool:
        """Whether it holds GPUs."""
        return self.phase is not LocalPhase.ENDED

    @property
    def gpus(self) -> frozenset[int]:
        """Its GPUs on this node."""
        return frozenset(self.assignment.gpus) if self.assignment else frozenset()

    def is_overdue(self, now_clock_s: float) -> bool:
        """Whether its shim should have ended it by now."""
        grace_s = self.assignment.grace_s if self.assignment else 0.0
        return now_clock_s > min(self.until_clock_s + grace_s, self.killed_clock_s) + OVERDUE_S


@dataclass(frozen=True)
class NodeGpus:
    """What the node has."""

    gpu_type: str
    gpu_count: int


@dataclass(frozen=True)
class Accept:
    """Take on a new lease: hold its GPUs and, if `start`, start it."""

    order: LeaseOrder
    assignment: Assignment
    start: bool


@dataclass(frozen=True)
class Start:
    """Start a lease that was prepared."""

    lease: int
    assignment: Assignment


@dataclass(frozen=True)
class Amend:
    """Give the shim new orders."""

    lease: int
    until_clock_s: float
    stop: bool
    kill: bool
    steps_saved: float


@dataclass(frozen=True)
class Refuse:
    """Record that a lease ended without anything having been started."""

    order: LeaseOrder
    outcome: Outcome
    detail: str


@dataclass(frozen=True)
class Cancel:
    """End a lease that is prepared and was never started."""

    lease: int
    detail: str


@dataclass(frozen=True)
class Kill:
    """Kill what is left of a lease, now."""

    lease: int


@dataclass(frozen=True)
class Forget:
    """Let go of an ended lease."""

    lease: int


Action = Accept | Start | Amend | Refuse | Cancel | Kill | Forget


def reconcile(
    local: Sequence[LocalLease], orders: Orders | None, place: NodeGpus, now_clock_s: float
) -> tuple[Action, ...]:
    """What to do now, in this order."""
    living = [lease for lease in sorted(local, key=lambda lease: lease.lease) if lease.is_living]
    actions: list[Action] = []
    for lease in living:
        actions += _expired(lease, now_clock_s)
    if orders is None:
        return tuple(actions)
    wanted = {order.lease: order for order in orders.leases}
    for lease in living:
        actions += _amended(lease, wanted.get(lease.lease), now_clock_s)
    known = {lease.lease for lease in local}
    actions += [Forget(lease.lease) for lease in local if not lease.is_living and lease.lease in orders.forget]
    new = [order for order in orders.leases if order.lease not in known and order.lease not in orders.forget]
    actions += _taken_on(sorted(new, key=lambda order: order.lease), living, place, now_clock_s)
    return tuple(actions)


def extended(local: Sequence[LocalLease], until_clock_s: float, now_clock_s: float) -> Iterator[Amend]:
    """Longer times for leases that run, where other agents agree that they may: see `gavelpy.runtime.quorum`."""
    for lease in local:
        is_running = lease.phase in (LocalPhase.STARTING, LocalPhase.RUNNING) and not (lease.stop or lease.kill)
        if is_running and now_clock_s < lease.until_clock_s < until_clock_s - LENGTHENED_S_MIN:
            yield Amend(lease.lease, until_clock_s, False, False, lease.steps_saved)


def _expired(lease: LocalLease, now_clock_s: float) -> Iterator[Action]:
    if lease.phase is LocalPhase.PREPARED:
        if now_clock_s >= lease.until_clock_s:
            yield Cancel(lease.lease, "its time was over before all its nodes were ready")
    elif lease.has_lost_shim or lease.is_overdue(now_clock_s):
        yield Kill(lease.lease)


def _amended(lease: LocalLease, order: LeaseOrder | None, now_clock_s: float) -> Iterator[Action]:
    """What the newest orders change for a lease that lives."""
    if lease.phase is LocalPhase.PREPARED and now_clock_s >= lease.until_clock_s:
        return  # it is being dropped
    kind = order.kind if order is not None and order.job == lease.job else OrderKind.KILL
    if lease.phase is LocalPhase.PREPARED and kind in (OrderKind.STOP, OrderKind.KILL):
        yield Cancel(lease.lease, "it was called off before it had started")
        return
    stop, kill = lease.stop or kind is OrderKind.STOP, lease.kill or kind is OrderKind.KILL
    until_clock_s, steps_saved = lease.until_clock_s, lease.steps_saved
    if order is not None and not stop and not kill and now_clock_s < until_clock_s:
        is_longer = order.until_clock_s > until_clock_s + LENGTHENED_S_MIN
        until_clock_s = order.until_clock_s if is_longer else until_clock_s
    if order is not None and not kill:
        steps_saved = max(steps_saved, order.steps_saved)
    new = Amend(lease.lease, until_clock_s, stop, kill, steps_saved)
    if new != Amend(lease.lease, lease.until_clock_s, lease.stop, lease.kill, lease.steps_saved):
        yield new
    if lease.phase is LocalPhase.PREPARED and kind is OrderKind.RUN and order is not None:
        yield from _started(lease, order)


def _started(lease: LocalLease, order: LeaseOrder) -> Iterator[Action]:
    """Starts a prepared lease once it is known where its ranks meet: the port is in the order that says run."""
    assert lease.assignment is not None, "a prepared lease has its assignment"
    told = order.assignment
    address = told.rendezvous_address if told else lease.assignment.rendezvous_address
    port = (told.rendezvous_port if told else 0) or lease.assignment.rendezvous_port
    if port or not lease.assignment.is_gang_of_nodes:
        yield Start(lease.lease, replace(lease.assignment, rendezvous_address=address, rendezvous_port=port))


def _taken_on(
    new: Sequence[LeaseOrder], living: Sequence[LocalLease], place: NodeGpus, now_clock_s: float
) -> Iterator[Action]:
    """Answers to orders for leases that the node does not know."""
    held = frozenset[int]().union(*(lease.gpus for lease in living))
    jobs = {lease.job for lease in living}
    for order in new:
        refusal = _refusal(order, place, now_clock_s)
        if refusal is not None:
            yield refusal
            continue
        assert order.assignment is not None, "an order without a launch is refused"
        if held & set(order.assignment.gpus) or order.job in jobs:
            continue  # waits for an older lease to end
        may_start = bool(order.assignment.rendezvous_port) or not order.assignment.is_gang_of_nodes
        yield Accept(order, order.assignment, start=may_start and order.kind is OrderKind.RUN)
        held |= set(order.assignment.gpus)
        jobs.add(order.job)


def _refusal(order: LeaseOrder, place: NodeGpus, now_clock_s: float) -> Refuse | None:
    """Why a new lease is not taken on; None where it is."""
    if order.refusal:
        return Refuse(order, Outcome.FAILED, f"the launch cannot be used: {order.refusal}")
    if order.assignment is None:
        return Refuse(order, Outcome.LOST, "this node does not know the lease")
    if order.kind is OrderKind.KILL:
        return Refuse(order, Outcome.LOST, "it was killed before it had started")
    if order.kind is OrderKind.STOP:
        return Refuse(order, Outcome.STOPPED, "it was stopped before it had started")
    wrong = [gpu for gpu in order.assignment.gpus if gpu >= place.gpu_count]
    if wrong or order.assignment.gpu_type not in ("", place.gpu_type):
        asked = f"{order.assignment.gpu_type} {list(order.assignment.gpus)}"
        return Refuse(order, Outcome.LOST, f"the node has {place.gpu_type} 0 to {place.gpu_count - 1}, not {asked}")
    if now_clock_s >= order.until_clock_s:
        return Refuse(order, Outcome.STOPPED, "its time was over before it could start")
    return None
