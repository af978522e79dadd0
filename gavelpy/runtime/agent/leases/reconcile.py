"""The actions that follow from a node's leases and the scheduler's orders: a pure function, called repeatedly.

Invariants, for orders that are lost, repeated, late or out of order:

- A GPU is assigned to a lease only while no living lease of this node has it, but that of the co-located job which the
  order names; the same for a job. If its GPUs are not free, a lease waits and is tried again at the next call, until
  its time is over. So does a lease for which leases that are ending leave too few of the CPU cores or too little of the
  memory that jobs declare.
- A lease is only extended, and only before its end; a stop or a kill is final. For an earlier end the scheduler sends a
  stop. Without a scheduler, other agents can extend it (`extended`). No extension goes beyond the time limit of the
  job, so the limit holds without a scheduler.
- A lease that is not in the newest orders is killed. Before the first orders none is.
- A lease that is withdrawn ends only if none of its processes was started: a start that is being prepared is given up.
- A lease that still runs after its time and grace is killed, even if its shim does not respond.
- The record of an ended lease is deleted when the scheduler confirms that the end is in its journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from typing import Final

from gavelpy.runtime.agent.leases.orders import LeaseOrder, NodeAssignment, OrderKind, Orders
from gavelpy.runtime.lease_files import LeaseOutcome

ROUNDING: Final = 1e-6  # of sums of amounts
OVERDUE_S: Final = 0.5  # allowed delay of a shim
WITHDRAWN: Final = "it was withdrawn before it had started: the node can start no job"
EXTENSION_S_MIN: Final = 0.01  # clock conversion makes the same end differ slightly between messages


class LocalPhase(StrEnum):
    """Phase of a lease on this node."""

    PREPARED = "prepared"  # holds its GPUs, runs nothing
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True)
class LocalLease:
    """One lease of this node."""

    lease: int
    job: int
    phase: LocalPhase
    assignment: NodeAssignment | None = None  # None = it was refused
    until_clock_s: float = 0.0
    stop: bool = False
    kill: bool = False
    killed_clock_s: float = inf  # when `kill` was ordered
    steps_saved: float = 0.0  # as the scheduler has it on record
    has_lost_shim: bool = False  # its shim ended without end.json
    is_withdrawn: bool = False  # its start is given up unless its processes were started
    limit_clock_s: float = inf  # when the running time left to its job is over: no extension goes beyond

    @property
    def is_living(self) -> bool:
        """Whether it has GPUs."""
        return self.phase is not LocalPhase.ENDED

    @property
    def gpus(self) -> frozenset[int]:
        """Its GPUs on this node."""
        return frozenset(self.assignment.gpus) if self.assignment else frozenset()

    def is_overdue(self, now_clock_s: float) -> bool:
        """Whether its shim should have ended it already."""
        grace_s = self.assignment.grace_s if self.assignment else 0.0
        return now_clock_s > min(self.until_clock_s + grace_s, self.killed_clock_s) + OVERDUE_S


@dataclass(frozen=True)
class NodeGpus:
    """The GPUs of the node, and what else it has for jobs."""

    gpu_type: str
    gpu_count: int
    cpus: float = inf
    memory_gib: float = inf

    def has(self, needs: Sequence[tuple[float, float]]) -> bool:
        """Whether it has all these CPU cores and GiB together."""
        cpus, memory_gib = sum(need[0] for need in needs), sum(need[1] for need in needs)
        return cpus <= self.cpus + ROUNDING and memory_gib <= self.memory_gib + ROUNDING


@dataclass(frozen=True)
class Accept:
    """Accept a new lease: reserve its GPUs and, if `start`, start it."""

    order: LeaseOrder
    assignment: NodeAssignment
    start: bool


@dataclass(frozen=True)
class StartLease:
    """Start a prepared lease."""

    lease: int
    assignment: NodeAssignment


@dataclass(frozen=True)
class Amend:
    """Write new terms for the shim and the job."""

    lease: int
    until_clock_s: float
    stop: bool
    kill: bool
    steps_saved: float


@dataclass(frozen=True)
class Refuse:
    """Record that a lease ended without a start."""

    order: LeaseOrder
    outcome: LeaseOutcome
    detail: str


@dataclass(frozen=True)
class Cancel:
    """End a prepared lease that was never started."""

    lease: int
    detail: str


@dataclass(frozen=True)
class Withdraw:
    """End a lease whose start is being prepared, unless its processes start first."""

    lease: int


@dataclass(frozen=True)
class Kill:
    """Kill what is left of a lease, now."""

    lease: int


@dataclass(frozen=True)
class Forget:
    """Let go of an ended lease."""

    lease: int


Action = Accept | StartLease | Amend | Refuse | Cancel | Withdraw | Kill | Forget


def reconcile(
    local: Sequence[LocalLease], orders: Orders | None, gpus: NodeGpus, now_clock_s: float
) -> tuple[Action, ...]:
    """The actions, in order."""
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
    ends = any(_is_ending(lease, wanted.get(lease.lease)) for lease in living)
    actions += _accepted(sorted(new, key=lambda order: order.lease), living, gpus, now_clock_s, ends=ends)
    return tuple(actions)


def extended(local: Sequence[LocalLease], until_clock_s: float, now_clock_s: float) -> Iterator[Amend]:
    """Extensions of running leases that a majority of the agents allows: see `gavelpy.runtime.quorum`."""
    for lease in local:
        is_running = lease.phase in (LocalPhase.STARTING, LocalPhase.RUNNING) and not (lease.stop or lease.kill)
        longest_s = min(until_clock_s, lease.limit_clock_s)
        if is_running and now_clock_s < lease.until_clock_s < longest_s - EXTENSION_S_MIN:
            yield Amend(lease.lease, longest_s, False, False, lease.steps_saved)


def _expired(lease: LocalLease, now_clock_s: float) -> Iterator[Action]:
    if lease.phase is LocalPhase.PREPARED:
        if now_clock_s >= lease.until_clock_s:
            yield Cancel(lease.lease, "its time was over before all its nodes were ready")
    elif lease.has_lost_shim or lease.is_overdue(now_clock_s):
        yield Kill(lease.lease)


def _amended(lease: LocalLease, order: LeaseOrder | None, now_clock_s: float) -> Iterator[Action]:
    """What the newest orders change for a living lease."""
    if lease.phase is LocalPhase.PREPARED and now_clock_s >= lease.until_clock_s:
        return  # it is being cancelled
    kind = order.kind if order is not None and order.job == lease.job else OrderKind.KILL
    if lease.phase is LocalPhase.PREPARED and kind in (OrderKind.STOP, OrderKind.KILL):
        yield Cancel(lease.lease, "it was cancelled before it had started")
        return
    if order is not None and order.withdraw and kind in (OrderKind.PREPARE, OrderKind.RUN):
        if lease.phase is LocalPhase.PREPARED:
            yield Cancel(lease.lease, WITHDRAWN)
            return
        if lease.phase is LocalPhase.STARTING and not lease.is_withdrawn:
            yield Withdraw(lease.lease)
    stop, kill = lease.stop or kind is OrderKind.STOP, lease.kill or kind is OrderKind.KILL
    until_clock_s, steps_saved = lease.until_clock_s, lease.steps_saved
    if order is not None and not stop and not kill and now_clock_s < until_clock_s:
        longest_s = min(order.until_clock_s, lease.limit_clock_s)
        until_clock_s = longest_s if longest_s > until_clock_s + EXTENSION_S_MIN else until_clock_s
    if order is not None and not kill:
        steps_saved = max(steps_saved, order.steps_saved)
    new = Amend(lease.lease, until_clock_s, stop, kill, steps_saved)
    if new != Amend(lease.lease, lease.until_clock_s, lease.stop, lease.kill, lease.steps_saved):
        yield new
    if lease.phase is LocalPhase.PREPARED and kind is OrderKind.RUN and order is not None:
        yield from _started(lease, order)


def _started(lease: LocalLease, order: LeaseOrder) -> Iterator[Action]:
    """Starts a prepared lease once the rendezvous port is known: it is in the order to run."""
    assert lease.assignment is not None, "a prepared lease has an assignment"
    newest = order.assignment
    address = newest.rendezvous_address if newest else lease.assignment.rendezvous_address
    port = (newest.rendezvous_port if newest else 0) or lease.assignment.rendezvous_port
    if port or not lease.assignment.is_gang_of_nodes:
        yield StartLease(lease.lease, replace(lease.assignment, rendezvous_address=address, rendezvous_port=port))


def _is_ending(lease: LocalLease, order: LeaseOrder | None) -> bool:
    """Whether a living lease will soon leave what it has."""
    is_wanted = order is not None and order.kind in (OrderKind.PREPARE, OrderKind.RUN)
    return lease.stop or lease.kill or lease.phase is LocalPhase.STOPPING or not is_wanted


def _accepted(
    new: Sequence[LeaseOrder], living: Sequence[LocalLease], gpus: NodeGpus, now_clock_s: float, *, ends: bool
) -> Iterator[Action]:
    """Actions for leases that are new to the node; `ends`: a living one is ending."""
    needs = [lease.assignment.needs for lease in living if lease.assignment is not None]
    held = [(lease.job, lease.gpus) for lease in living]
    jobs = {lease.job for lease in living}
    for order in new:
        refusal = _refusal(order, gpus, now_clock_s)
        if refusal is not None:
            yield refusal
            continue
        assert order.assignment is not None, "an order without a launch is refused"
        gpus_asked = frozenset(order.assignment.gpus)
        if order.job in jobs or not {job for job, there in held if there & gpus_asked} <= {order.assignment.beside_job}:
            continue  # wait for an older lease to end
        if ends and not gpus.has([*needs, order.assignment.needs]):
            continue  # wait for what it uses of the node's cores and memory
        may_start = bool(order.assignment.rendezvous_port) or not order.assignment.is_gang_of_nodes
        yield Accept(order, order.assignment, start=may_start and order.kind is OrderKind.RUN)
        held.append((order.job, gpus_asked))
        needs.append(order.assignment.needs)
        jobs.add(order.job)


def _refusal(order: LeaseOrder, gpus: NodeGpus, now_clock_s: float) -> Refuse | None:
    """Why a new lease is refused; None if it is accepted."""
    if order.refusal:
        return Refuse(order, LeaseOutcome.FAILED, f"invalid launch: {order.refusal}")
    if order.assignment is None:
        return Refuse(order, LeaseOutcome.LOST, "this node does not know the lease")
    if order.kind is OrderKind.KILL:
        return Refuse(order, LeaseOutcome.LOST, "it was killed before it had started")
    if order.kind is OrderKind.STOP:
        return Refuse(order, LeaseOutcome.STOPPED, "it was stopped before it had started")
    if order.withdraw:
        return Refuse(order, LeaseOutcome.STOPPED, WITHDRAWN)
    wrong = [gpu for gpu in order.assignment.gpus if gpu >= gpus.gpu_count]
    if wrong or order.assignment.gpu_type not in ("", gpus.gpu_type):
        requested = f"{order.assignment.gpu_type} {list(order.assignment.gpus)}"
        return Refuse(
            order, LeaseOutcome.LOST, f"the node has {gpus.gpu_type} 0 to {gpus.gpu_count - 1}, not {requested}"
        )
    if now_clock_s >= order.until_clock_s:
        return Refuse(order, LeaseOutcome.STOPPED, "its time was over before it could start")
    return None
