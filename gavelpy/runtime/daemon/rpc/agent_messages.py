"""Converts between agents' messages and the scheduler's own values; bounds and checks what agents send, once."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from gavelpy.errors import InvalidInput, RemoteViolation
from gavelpy.mechanism.accept import DIRECTORY_ID
from gavelpy.mechanism.events import FailureClass, Outcome
from gavelpy.model.job import AMOUNT_MAX, JobKind, JobSpec, NodeId
from gavelpy.model.places import check_place_name
from gavelpy.runtime.daemon.config_sections import NodeSettings
from gavelpy.runtime.daemon.job_history import name_of
from gavelpy.runtime.daemon.leases.lease import Order, PartReport, Phase, Wish
from gavelpy.runtime.daemon.leases.metrics import valid_points
from gavelpy.runtime.daemon.nodes.peer_reports import ReportedPeer, SightState
from gavelpy.runtime.daemon.nodes.registry import Hello, Node, ReportedDirectory, ReportedState
from gavelpy.runtime.metric_files import MetricPoint
from gavelpy.runtime.quorum import View
from gavelpy.runtime.security.tokens import NODE_ID
from gavelpy.runtime.wire import agent_pb2, software_pb2

API_VERSION = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
GPUS_A_NODE_MAX = 4_096
LEASES_A_NODE_MAX = 100_000
TEXT_MAX = 255
FEATURES_MAX = 1_000
PATH_MAX = 4_096
DETAIL_MAX = 500
KEY_LENGTHS = (32, 255)
STEPS_MAX = 1e18
PEERS_MAX = 1_000
NEIGHBORS_MAX = 4_096
_PORTS = range(1 << 16)

_PHASES = {
    agent_pb2.LEASE_PHASE_PREPARED: Phase.PREPARED,
    agent_pb2.LEASE_PHASE_STARTING: Phase.STARTING,
    agent_pb2.LEASE_PHASE_RUNNING: Phase.RUNNING,
    agent_pb2.LEASE_PHASE_STOPPING: Phase.STOPPING,
    agent_pb2.LEASE_PHASE_ENDED: Phase.ENDED,
}
_OUTCOMES = {
    agent_pb2.LEASE_OUTCOME_FINISHED: Outcome.FINISHED,
    agent_pb2.LEASE_OUTCOME_STOPPED: Outcome.STOPPED,
    agent_pb2.LEASE_OUTCOME_FAILED: Outcome.FAILED,
    agent_pb2.LEASE_OUTCOME_LOST: Outcome.LOST,
}
_FAILURES = {
    agent_pb2.FAILURE_CLASS_USER: FailureClass.USER,
    agent_pb2.FAILURE_CLASS_OUT_OF_MEMORY: FailureClass.OUT_OF_MEMORY,
    agent_pb2.FAILURE_CLASS_SYSTEM: FailureClass.SYSTEM,
    agent_pb2.FAILURE_CLASS_COMMUNICATION: FailureClass.COMMUNICATION,
    agent_pb2.FAILURE_CLASS_REFUSED: FailureClass.REFUSED,
    agent_pb2.FAILURE_CLASS_TIME_LIMIT: FailureClass.TIME_LIMIT,
    agent_pb2.FAILURE_CLASS_STALLED: FailureClass.STALLED,
}
_DIRECTORY_STATES = {
    agent_pb2.CHECKPOINT_SIGHT_STATE_UNKNOWN: ReportedState.UNKNOWN,
    agent_pb2.CHECKPOINT_SIGHT_STATE_SEEN: ReportedState.SEEN,
    agent_pb2.CHECKPOINT_SIGHT_STATE_UNSEEN: ReportedState.UNSEEN,
}
_PEER_STATES = {
    agent_pb2.PEER_SIGHT_STATE_ALIVE: SightState.ALIVE,
    agent_pb2.PEER_SIGHT_STATE_SUSPECT: SightState.SUSPECT,
    agent_pb2.PEER_SIGHT_STATE_DEAD: SightState.DEAD,
}
_WISHES = {
    Wish.PREPARE: agent_pb2.LEASE_WISH_PREPARE,
    Wish.RUN: agent_pb2.LEASE_WISH_RUN,
    Wish.STOP: agent_pb2.LEASE_WISH_STOP,
    Wish.KILL: agent_pb2.LEASE_WISH_KILL,
}


def hello_of(node: agent_pb2.Node) -> Hello:
    """How a node introduces itself; raises RemoteViolation naming the field, its value and what is allowed."""
    if API_VERSION not in node.api_versions:
        raise RemoteViolation(f"api_versions must contain {API_VERSION}, got {list(node.api_versions)[:8]}")
    for name, pattern in (("node_id", NODE_ID), ("gpu_type", NAME)):
        if not pattern.fullmatch(getattr(node, name)):
            allowed = "1 to 128 letters, digits, '.', '_' and '-'"
            raise RemoteViolation(f"{name} must be {allowed}, got {getattr(node, name)[:80]!r}")
    if not 1 <= node.gpu_count <= GPUS_A_NODE_MAX:
        raise RemoteViolation(f"gpu_count must be in [1, {GPUS_A_NODE_MAX}], got {node.gpu_count}")
    for name in (
        "host_id",
        "agent_version",
        "address",
        "checkpoint_marker",
        "state_id",
        "containment",
        "peer_address",
        "images",
    ):
        text = getattr(node, name)
        if len(text) > TEXT_MAX or not text.isprintable():
            raise RemoteViolation(f"{name} must be at most {TEXT_MAX} printable characters, got {text[:80]!r}")
    directory = node.state_directory
    if directory and not (directory.startswith("/") and len(directory) <= PATH_MAX and directory.isprintable()):
        raise RemoteViolation(f"state_directory must be an absolute path, got {directory[:80]!r}")
    if len(node.features) > FEATURES_MAX or not all(NAME.fullmatch(name) for name in node.features):
        raise RemoteViolation(f"features must be at most {FEATURES_MAX} names, got {list(node.features)[:3]!r}"[:200])
    return Hello(
        node_id=NodeId(node.node_id),
        host_id=node.host_id,
        gpu_type=node.gpu_type,
        gpu_count=node.gpu_count,
        address=node.address,
        agent_version=node.agent_version,
        checkpoint_marker=node.checkpoint_marker,
        agent=(node.agent_process, node.agent_process_start),
        is_confirmed_dead=node.confirmed_dead,
        state_id=node.state_id,
        identity_key=_identity_key(node.identity_key),
        is_new=not node.cluster_id,
        containment=node.containment,
        images=node.images,
        state_directory=directory,
        peer_address=node.peer_address,
        probe_port=node.probe_port if node.probe_port in _PORTS else 0,
        features=frozenset(node.features),
        cpus=_amount("cpus", node.cpus),
        memory_gib=_amount("memory_gib", node.memory_gib),
        place=(_place("rack", node.rack), _place("zone", node.zone), _place("region", node.region)),
    )


def _place(field: str, name: str) -> str:
    try:
        return check_place_name(field, name)
    except InvalidInput as error:
        raise RemoteViolation(str(error)) from None


def _amount(field: str, value: float) -> float:
    if not 0 <= value <= AMOUNT_MAX:
        raise RemoteViolation(f"{field} must be in [0, {AMOUNT_MAX:g}], got {value!r}")
    return value


def _identity_key(key: str) -> str:
    if key and not KEY_LENGTHS[0] <= len(key) <= KEY_LENGTHS[1]:  # a short one could be guessed; it is not shown
        raise RemoteViolation(f"identity_key must have {KEY_LENGTHS[0]} to {KEY_LENGTHS[1]} characters, got {len(key)}")
    return key


def reports_of(message: agent_pb2.ConnectRequest) -> list[PartReport]:
    """What a node knows of its leases; raises RemoteViolation."""
    if len(message.leases) > LEASES_A_NODE_MAX:
        raise RemoteViolation(f"leases must be at most {LEASES_A_NODE_MAX}, got {len(message.leases)}")
    return [_report_of(report) for report in message.leases]


def clock_of(message: agent_pb2.ConnectRequest) -> float:
    """The agent's clock; raises RemoteViolation."""
    if not math.isfinite(message.clock_s) or not 0 <= message.clock_s <= 1e12:
        raise RemoteViolation(f"clock_s must be in [0, 1e12], got {message.clock_s!r}")
    return message.clock_s


def trouble_of(message: agent_pb2.ConnectRequest) -> str:
    """Why a node cannot execute its orders; raises RemoteViolation."""
    return _text("trouble", message.trouble)


def gpu_sharing_of(message: agent_pb2.ConnectRequest) -> str:
    """How jobs share GPUs on a node; raises RemoteViolation."""
    return _text("gpu_sharing", message.gpu_sharing)


def _text(name: str, text: str) -> str:
    if len(text) > DETAIL_MAX or not text.isprintable():
        raise RemoteViolation(f"{name} must be at most {DETAIL_MAX} printable characters, got {text[:80]!r}")
    return text


def reported_directory_of(message: agent_pb2.ConnectRequest) -> ReportedDirectory:
    """The state of the checkpoint directory as its node reports it; raises RemoteViolation."""
    if not message.HasField("checkpoints"):
        return ReportedDirectory()
    reported = message.checkpoints
    state = _DIRECTORY_STATES.get(reported.state)
    if state is None:
        raise RemoteViolation(f"checkpoints.state must be one of {sorted(_DIRECTORY_STATES)}, got {reported.state}")
    if (state is ReportedState.SEEN or reported.directory_id) and not DIRECTORY_ID.fullmatch(reported.directory_id):
        allowed = "1 to 128 letters, digits, '.', '_' and '-'"
        raise RemoteViolation(f"checkpoints.directory_id must be {allowed}, got {reported.directory_id[:80]!r}")
    if len(reported.cluster_id) > TEXT_MAX or not reported.cluster_id.isprintable():
        allowed = f"at most {TEXT_MAX} printable characters"
        raise RemoteViolation(f"checkpoints.cluster_id must be {allowed}, got {reported.cluster_id[:80]!r}")
    if not (math.isfinite(reported.age_s) and reported.age_s >= 0):
        raise RemoteViolation(f"checkpoints.age_s must not be negative, got {reported.age_s!r}")
    return ReportedDirectory(state, reported.directory_id, reported.cluster_id, reported.age_s)


def reported_peers_of(message: agent_pb2.ConnectRequest) -> list[ReportedPeer]:
    """What an agent found of others; raises RemoteViolation."""
    if len(message.peers) > PEERS_MAX:
        raise RemoteViolation(f"peers must be at most {PEERS_MAX}, got {len(message.peers)}")
    return [_reported_peer_of(peer) for peer in message.peers]


def _reported_peer_of(peer: agent_pb2.PeerSight) -> ReportedPeer:
    state = _PEER_STATES.get(peer.state)
    if state is None or not NODE_ID.fullmatch(peer.node_id) or len(peer.state_id) > TEXT_MAX or math.isnan(peer.age_s):
        raise RemoteViolation(f"peers must name an agent, a state and an age, got {peer.node_id[:80]!r}, {peer.state}")
    return ReportedPeer(peer.node_id, peer.state_id, state, peer.age_s if peer.age_s >= 0 else math.inf)


def ended_neighbors_of(message: agent_pb2.ConnectRequest) -> frozenset[tuple[int, int]]:
    """Processes of other agents on its host that an agent saw alive, and whose ends it saw; raises RemoteViolation."""
    if len(message.ended) > NEIGHBORS_MAX:
        raise RemoteViolation(f"ended must be at most {NEIGHBORS_MAX}, got {len(message.ended)}")
    return frozenset((process.process, process.start) for process in message.ended)


def order_message(
    order: Order, spec: JobSpec, node: Node, rendezvous_address: str, settings: NodeSettings, finish_grace_s: float
) -> agent_pb2.LeaseOrder:
    """The message of an order, in the time of the node's own clock.

    A job without a cadence of its own gets the mean time between failures of its nodes together.
    """
    message = agent_pb2.LeaseOrder(
        lease=order.lease,
        job=order.job,
        until_clock_s=node.clock_of(order.until_s),
        wish=_WISHES[order.wish],
        steps_saved=order.steps_saved,
        withdraw=order.withdraw,
    )
    start = order.start
    if start is not None:
        message.launch.CopyFrom(
            agent_pb2.Launch(
                job_name=name_of(spec.id),
                owner=spec.owner,
                command=spec.command,
                working_directory=spec.working_directory or "/",
                environment=spec.environment,
                secrets=spec.secrets,
                gpus=start.gpus,
                gpu_type=start.gpu_type,
                one_process_a_node=spec.one_process_a_node,
                node_rank=start.node_rank,
                node_count=start.node_count,
                first_rank=start.first_rank,
                world_size=start.world_size,
                rendezvous_address=rendezvous_address,
                rendezvous_port=start.rendezvous_port,
                round=start.round,
                restart_count=start.restart_count,
                steps_total=0.0 if spec.open_ended else spec.steps_total,  # its program decides
                steps_done=start.resume_steps,
                rate_steps_per_s=start.rate_steps_per_s,
                resume_lease=start.resume_lease,
                resume_steps=start.resume_steps,
                grace_s=settings.grace_s,
                finish_grace_s=finish_grace_s,
                warning_s=spec.warning_s,
                warning_signal=spec.warning_signal,
                checkpoint_every_s=spec.checkpoint_every_s,
                mtbf_s=0.0 if spec.checkpoint_every_s else settings.mtbf_h * 3_600 / start.node_count,
                time_left_s=start.time_left_s,
                stall_s=spec.stall_s,
                cpus_per_gpu=spec.cpus_per_gpu,
                memory_gib_per_gpu=spec.memory_gib_per_gpu,
                checkpoint_directory_id=start.directory,
                software=software_pb2.Software(**vars(spec.software)),
                interactive=spec.kind is JobKind.INTERACTIVE,
                gpu_memory_gib=start.gpu_memory_gib,
                gpu_memory_share=start.gpu_memory_share,
                beside_job=None if start.beside_job < 0 else start.beside_job,
                plan=spec.plans.get(start.gpus_held, ""),
                sizes=spec.sizes if len(spec.sizes) > 1 else (),
                steps_max=start.steps_max,
            )
        )
    return message


def orders_message(
    leases: Sequence[agent_pb2.LeaseOrder], forget: Sequence[int], *, sequence: int, incarnation: int,
    clock_s: float, heartbeat_interval_s: float, cluster_id: str, view: agent_pb2.View | None = None,
    neighbors: Sequence[tuple[int, int]] = (),
) -> agent_pb2.ConnectResponse:  # fmt: skip
    """All that a node shall do."""
    return agent_pb2.ConnectResponse(
        sequence=sequence,
        incarnation=incarnation,
        echo_clock_s=clock_s,
        heartbeat_interval_s=heartbeat_interval_s,
        api_version=API_VERSION,
        leases=leases,
        forget=forget,
        cluster_id=cluster_id,
        view=view,
        neighbors=[agent_pb2.HostProcess(process=process, start=start) for process, start in neighbors],
    )


def view_message(view: View, key: bytes) -> agent_pb2.View:
    """The agents that decide together without a scheduler."""
    members = [
        agent_pb2.Member(node_id=m.node_id, state_id=m.state_id, address=m.address, probe_port=m.probe_port)
        for m in view.members
    ]
    return agent_pb2.View(
        epoch=view.epoch,
        members=members,
        orphan_max_s=view.orphan_max_s,
        window_s=view.window_s,
        step_s=view.step_s,
        key=key,
    )


def _report_of(report: agent_pb2.LeaseReport) -> PartReport:
    phase = _PHASES.get(report.phase)
    if phase is None or report.lease < 0 or report.job < 0:
        raise RemoteViolation(
            f"a report must name a lease, a job and a phase, got {report.lease}, {report.job} and {report.phase}"
        )
    outcome = _OUTCOMES.get(report.outcome, Outcome.LOST)
    return PartReport(
        lease=report.lease,
        job=report.job,
        phase=phase,
        steps_done=_steps("steps_done", report.steps_done),
        steps_saved=_steps("steps_saved", report.steps_saved),
        rate_steps_per_s=_steps("rate_steps_per_s", report.rate_steps_per_s),
        steps_total=_steps("steps_total", report.steps_total),
        gpu_memory_gib=_amount("gpu_memory_gib", report.gpu_memory_gib),
        rendezvous_port=report.rendezvous_port if report.rendezvous_port in _PORTS else 0,
        outcome=outcome,
        exit_code=report.exit_code,
        detail="".join(c if c.isprintable() else " " for c in report.detail[:DETAIL_MAX]),
        shim=(report.shim_process, report.shim_process_start),
        is_by_time=report.by_time,
        saves_at_end=report.saves_at_end,
        is_done=report.last_step_done,
        failure=_FAILURES.get(report.failure, FailureClass.UNKNOWN),
        metrics=valid_points(MetricPoint(one.name, one.step, one.value) for one in report.metrics),
    )


def _steps(name: str, value: float) -> float:
    if not 0 <= value <= STEPS_MAX:  # NaN is not either
        raise RemoteViolation(f"{name} must be in [0, {STEPS_MAX:g}], got {value!r}")
    return value
