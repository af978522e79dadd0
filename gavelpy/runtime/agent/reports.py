"""Messages about the node and its leases."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from typing import Final

from gavelpy import __version__
from gavelpy.runtime.agent.checkpoint_watch import DirectoryState, DirectoryStatus
from gavelpy.runtime.agent.config import NodeConfig
from gavelpy.runtime.agent.gpus import Gpus
from gavelpy.runtime.agent.leases.directory import LeaseDirectory
from gavelpy.runtime.agent.leases.orders import API_VERSIONS
from gavelpy.runtime.agent.leases.reconcile import LocalPhase
from gavelpy.runtime.lease_files import LeaseOutcome
from gavelpy.runtime.security.exposure import is_loopback
from gavelpy.runtime.shim.processes import boot_id, this_process
from gavelpy.runtime.wire import agent_pb2

DETAIL_CHARACTERS_MAX: Final = 1_000
TROUBLE_CHARACTERS_MAX: Final = 500
_EXIT_CODES: Final = range(-(1 << 31), 1 << 31)
_PHASES: Final = {
    LocalPhase.PREPARED: agent_pb2.LEASE_PHASE_PREPARED,
    LocalPhase.STARTING: agent_pb2.LEASE_PHASE_STARTING,
    LocalPhase.RUNNING: agent_pb2.LEASE_PHASE_RUNNING,
    LocalPhase.STOPPING: agent_pb2.LEASE_PHASE_STOPPING,
    LocalPhase.ENDED: agent_pb2.LEASE_PHASE_ENDED,
}
_OUTCOMES: Final = {
    LeaseOutcome.FINISHED: agent_pb2.LEASE_OUTCOME_FINISHED,
    LeaseOutcome.STOPPED: agent_pb2.LEASE_OUTCOME_STOPPED,
    LeaseOutcome.FAILED: agent_pb2.LEASE_OUTCOME_FAILED,
    LeaseOutcome.LOST: agent_pb2.LEASE_OUTCOME_LOST,
}


_SIGHTS: Final = {
    DirectoryState.UNKNOWN: agent_pb2.CHECKPOINT_SIGHT_STATE_UNKNOWN,
    DirectoryState.AVAILABLE: agent_pb2.CHECKPOINT_SIGHT_STATE_SEEN,
    DirectoryState.UNAVAILABLE: agent_pb2.CHECKPOINT_SIGHT_STATE_UNSEEN,
}


def status_message(sight: DirectoryStatus, now_clock_s: float) -> agent_pb2.CheckpointSight:
    """State of the checkpoint directory."""
    age_s = max(0.0, now_clock_s - sight.since_clock_s)
    return agent_pb2.CheckpointSight(
        state=_SIGHTS[sight.state], directory_id=sight.directory, cluster_id=sight.cluster, age_s=age_s
    )


def report_of(folder: LeaseDirectory) -> agent_pb2.LeaseReport:
    """The report of a lease."""
    progress, end, saved = folder.progress, folder.end, folder.progress.steps_saved
    if folder.launch is not None and folder.assignment is not None and saved <= folder.launch.steps_done:
        saved = folder.assignment.steps_done  # a newer checkpoint that it resumed from is another lease's
    report = agent_pb2.LeaseReport(
        lease=folder.lease,
        job=folder.job,
        phase=_PHASES[folder.phase],
        steps_done=progress.steps_done,
        steps_saved=saved,
        rate_steps_per_s=progress.rate_steps_per_s,
        by_time=folder.is_estimated,
        saves_at_end=folder.saves_at_end,
        last_step_done=folder.is_done,
    )
    if folder.shim is not None:
        report.shim_process = folder.shim.process
        report.shim_process_start = folder.shim.process_start_ticks
    assignment = folder.assignment
    if assignment is not None and assignment.is_first_node:
        report.rendezvous_port = assignment.rendezvous_port
    if end is not None:
        report.outcome = _OUTCOMES[end.outcome]
        report.exit_code = end.exit_code if end.exit_code in _EXIT_CODES else -1
        report.detail = end.detail[:DETAIL_CHARACTERS_MAX]
    return report


def trouble_of(error: OSError) -> str:
    """Why the state directory cannot be used."""
    where = f" ({str(error.filename)!r})" if error.filename else ""
    return f"the state directory cannot be used: {error.strerror or 'unknown error'}{where}"[:TROUBLE_CHARACTERS_MAX]


def urgent_part(reports: Iterable[agent_pb2.LeaseReport]) -> tuple[tuple[object, ...], ...]:
    """The fields of which a change is reported at once; others wait for the next heartbeat."""
    return tuple(
        (
            report.lease,
            report.phase,
            report.outcome,
            report.rendezvous_port,
            report.steps_saved,
            report.shim_process,
            report.saves_at_end,
            report.last_step_done,
        )
        for report in reports
    )


LOOPBACK: Final = "127.0.0.1"


def describe_node(config: NodeConfig, gpus: Gpus, checkpoint_marker: str) -> agent_pb2.Node:
    """The description of this node."""
    return agent_pb2.Node(
        node_id=config.node_id,
        host_id=boot_id(),
        agent_version=__version__,
        api_versions=API_VERSIONS,
        gpu_type=gpus.gpu_type,
        gpu_count=len(gpus.devices),
        address=config.address or address_towards(config.scheduler),
        checkpoint_marker=checkpoint_marker,
        agent_process=os.getpid(),
        agent_process_start=this_process().start_ticks,
        state_directory=str(config.state),
    )


def address_towards(scheduler: str) -> str:
    """The address of this node's interface towards HOST:PORT."""
    if is_loopback(scheduler):
        return LOOPBACK
    host, _, port = scheduler.rpartition(":")
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()
