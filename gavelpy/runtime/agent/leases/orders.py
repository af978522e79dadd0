"""The scheduler's orders for this node: which leases it should have, and what each of them runs; messages, checked."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Final

from gavelpy.errors import InvalidInput, RemoteViolation
from gavelpy.model.software import OF_NODE, Software
from gavelpy.runtime.quorum import MEMBERS_MAX, Member, View
from gavelpy.runtime.wire import agent_pb2, software_pb2

# Options of jobs whose fields this agent knows. The scheduler places no job that needs another one on this node.
FEATURES: Final = (
    "co_located", "conda", "cpus-per-gpu", "image", "memory-per-gpu", "metrics", "plan", "pty", "secret", "snapshot",
    "stall", "time", "venv",
)  # fmt: skip
TEXT_MAX: Final = 1 << 20
RANKS_MAX: Final = 1 << 16
SIGNALS_MAX: Final = 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CHANGED = ("argv", "beside_job", "gpus", "environment", "secrets", "sizes", "software")  # others are as in the message


@dataclass(frozen=True)
class NodeAssignment:
    """The part of a job that one node runs under one lease."""

    argv: tuple[str, ...]
    working_directory: str
    gpus: tuple[int, ...]  # numbers on this node
    gpu_type: str
    beside_job: int = -1  # the job that it shares its GPUs with; -1 = none
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)  # names by variable
    job_name: str = ""
    owner: str = ""
    one_process_a_node: bool = False
    node_rank: int = 0
    node_count: int = 1
    first_rank: int = 0
    world_size: int = 1
    rendezvous_address: str = ""
    rendezvous_port: int = 0  # 0 = unknown yet
    round: int = 0
    restart_count: int = 0
    steps_total: float = 0.0
    steps_done: float = 0.0
    rate_steps_per_s: float = 0.0
    resume_lease: int = -1
    resume_steps: float = 0.0
    grace_s: float = 0.0
    finish_grace_s: float = 0.0
    warning_s: float = 0.0
    warning_signal: int = 0
    checkpoint_every_s: float = 0.0
    mtbf_s: float = 0.0  # of its nodes together, where it has no cadence; 0 = not known
    steps_max: float = 0.0
    time_left_s: float = 0.0  # running time until the job is stopped for good; 0 = no limit
    stall_s: float = 0.0
    checkpoint_directory_id: str = ""  # that the scheduler expects on this node; empty = any
    software: Software = OF_NODE
    interactive: bool = False
    cpus_per_gpu: float = 0.0
    memory_gib_per_gpu: float = 0.0
    sizes: tuple[int, ...] = ()  # all numbers of GPUs on which the job may run; empty = always as many as now
    plan: str = ""  # of the owner, for the number of GPUs of the lease
    gpu_memory_gib: float = 0.0  # of each GPU, which it may share; 0 = not known
    gpu_memory_share: float = 0.0  # the same of a GPU's memory; 0 = not known

    @property
    def needs(self) -> tuple[float, float]:
        """CPU cores and GiB that it declares for this node."""
        return self.cpus_per_gpu * len(self.gpus), self.memory_gib_per_gpu * len(self.gpus)

    @property
    def local_ranks(self) -> int:
        """Processes on this node."""
        return 1 if self.one_process_a_node else len(self.gpus)

    @property
    def is_first_node(self) -> bool:
        """Whether rank 0, the rendezvous, runs here."""
        return self.node_rank == 0

    @property
    def is_gang_of_nodes(self) -> bool:
        """Whether other nodes run parts of the job."""
        return self.node_count > 1


def assignment_of(launch: agent_pb2.Launch) -> NodeAssignment:
    """The launch, checked; raises RemoteViolation naming the field, its value and what is allowed."""
    _check_numbers(launch)
    _check_texts(launch)
    others = {field.name: getattr(launch, field.name) for field in fields(NodeAssignment) if field.name not in _CHANGED}
    made = NodeAssignment(
        argv=_argv(launch.command),
        gpus=tuple(launch.gpus),
        beside_job=launch.beside_job if launch.HasField("beside_job") else -1,
        environment=dict(sorted(launch.environment.items())),
        secrets=dict(sorted(launch.secrets.items())),
        software=_software(launch.software),
        sizes=tuple(launch.sizes),
        **others,
    )
    if made.first_rank + made.local_ranks > made.world_size:
        raise RemoteViolation(
            f"first_rank + processes on this node must be at most world_size = {made.world_size}, "
            f"got {made.first_rank} + {made.local_ranks}"
        )
    return made


def _software(given: software_pb2.Software) -> Software:
    try:
        return Software(**{part.name: getattr(given, part.name) for part in fields(Software)})
    except InvalidInput as error:
        raise RemoteViolation(f"software.{error}") from None


def _check_numbers(launch: agent_pb2.Launch) -> None:
    floats = ("steps_total", "steps_done", "rate_steps_per_s", "resume_steps", "grace_s", "warning_s", "finish_grace_s")
    others = (
        "checkpoint_every_s",
        "mtbf_s",
        "steps_max",
        "time_left_s",
        "stall_s",
        "cpus_per_gpu",
        "memory_gib_per_gpu",
    )
    for name in (*floats, *others, "gpu_memory_gib", "gpu_memory_share"):
        value = getattr(launch, name)
        if not math.isfinite(value) or not 0 <= value <= 1e15:
            raise RemoteViolation(f"{name} must be in [0, 1e15], got {value!r}")
    if not launch.gpus or len(set(launch.gpus)) != len(launch.gpus):
        raise RemoteViolation(f"gpus must name one or more GPUs, each once, got {list(launch.gpus)[:20]!r}")
    if not 1 <= launch.node_count <= RANKS_MAX or launch.node_rank >= launch.node_count:
        raise RemoteViolation(f"node_rank must be below node_count, got {launch.node_rank} of {launch.node_count}")
    if not 1 <= launch.world_size <= RANKS_MAX:
        raise RemoteViolation(f"world_size must be in [1, {RANKS_MAX}], got {launch.world_size}")
    if len(launch.sizes) > RANKS_MAX or not all(1 <= size <= RANKS_MAX for size in launch.sizes):
        raise RemoteViolation(f"sizes must be numbers in [1, {RANKS_MAX}], got {list(launch.sizes)[:20]!r}")
    if launch.rendezvous_port >= 1 << 16:
        raise RemoteViolation(f"rendezvous_port must be below 65536, got {launch.rendezvous_port}")
    if launch.HasField("beside_job") and launch.beside_job < 0:
        raise RemoteViolation(f"beside_job must be a job, got {launch.beside_job}")
    if launch.resume_lease < -1:
        raise RemoteViolation(f"resume_lease must be a lease or -1, got {launch.resume_lease}")
    if not 0 <= launch.warning_signal <= SIGNALS_MAX:
        raise RemoteViolation(f"warning_signal must be in [0, {SIGNALS_MAX}], got {launch.warning_signal}")


def _check_texts(launch: agent_pb2.Launch) -> None:
    names = ("job_name", "owner", "command", "working_directory", "gpu_type", "rendezvous_address")
    for name in (*names, "checkpoint_directory_id", "plan"):
        _check_text(name, getattr(launch, name))
    for variable, value in (*launch.environment.items(), *launch.secrets.items()):
        if not _NAME.fullmatch(variable):
            raise RemoteViolation(f"environment: a name must be letters, digits and '_', got {variable[:80]!r}")
        _check_text(f"environment: {variable}", value)


def _check_text(name: str, value: str) -> None:
    if "\0" in value or len(value) > TEXT_MAX:
        raise RemoteViolation(f"{name} must have at most {TEXT_MAX} characters and no NUL, got {value[:80]!r}")


def _argv(command: str) -> tuple[str, ...]:
    try:
        argv = tuple(shlex.split(command))
    except ValueError as error:
        raise RemoteViolation(f"command must be quoted as for a shell ({error}), got {command[:200]!r}") from error
    if not argv or not argv[0]:
        raise RemoteViolation(f"command must name a program, got {command[:200]!r}")
    return argv


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
    withdraw: bool = False  # it ends if no process of it was started here


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
    neighbors: tuple[tuple[int, int], ...] = ()  # processes of other agents on this host, to be watched

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
        tuple((process.process, process.start) for process in message.neighbors),
    )


def view_of(message: agent_pb2.View) -> View:
    """The view in a message; raises RemoteViolation."""
    for name in ("orphan_max_s", "window_s", "step_s"):
        value = getattr(message, name)
        if not math.isfinite(value) or not 0 <= value <= _DURATION_S_MAX:
            raise RemoteViolation(f"view.{name} must be in [0, {_DURATION_S_MAX:g}], got {value!r}")
    if len(message.members) > MEMBERS_MAX:
        raise RemoteViolation(f"view.members must be at most {MEMBERS_MAX}, got {len(message.members)}")
    members = tuple(Member(m.node_id, m.state_id, m.address, m.probe_port & 0xFFFF) for m in message.members)
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
    given = order.lease, order.job, order.until_clock_s, kind, order.steps_saved
    return LeaseOrder(*given, assignment, refusal, order.withdraw)
