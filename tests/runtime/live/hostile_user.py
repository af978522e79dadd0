"""A job of a hostile user, who has a token: attacks each victim of a file of targets on its node and by the API.

Each attack prints `<victim> <name> worked` or `<victim> <name> denied <reason>`. Only a refusal is a denial: an attack
that fails otherwise counts as one that worked.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

from gavelpy.runtime.wire import agent_pb2, agent_pb2_grpc, job_pb2, job_pb2_grpc
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire.client_pb2_grpc import SchedulerServiceStub
from tests.runtime.agent import hostile

DENIALS = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
CALL_S = 60.0
NO_JOB = "987654321"
PROCESSES_BACK = 5_000  # process ids below its own that it tries


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def job_attacks(address: str, token: str, at: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Attacks on the victim through the scheduler, by name."""
    job, name, owner, secret = str(at["job"]), at["name"], at["owner"], at["secret"]

    def call(method: str, request: Any) -> Any:
        with grpc.insecure_channel(address) as channel:
            answer = getattr(SchedulerServiceStub(channel), method)(request, metadata=bearer(token), timeout=CALL_S)
            return list(answer) if isinstance(answer, Iterator) else answer

    def seen(method: str, request: Any, *traces: str) -> None:
        """Denied if the answer does not mention the victim."""
        text = str(call(method, request))
        if not any(trace in text for trace in traces or (name, owner)):
            raise PermissionError(0, "not in the answer")

    def tunnel(port: int) -> None:
        with grpc.insecure_channel(address) as channel:
            requests = iter([pb.OpenTunnelRequest(job=job, port=port, last=True)])
            next(SchedulerServiceStub(channel).OpenTunnel(requests, metadata=bearer(token), timeout=CALL_S))

    def after(number: str) -> str:
        """The answer to a submission that comes after a job."""
        one = pb.JobDescription(command="true", steps_total=1.0, rates_steps_per_s={"v100": 1.0}, after=[number])
        try:
            call("SubmitJobs", pb.SubmitJobsRequest(jobs=[one], dry_run=True))
        except grpc.RpcError as error:
            return str(error.details())  # type: ignore[attr-defined]  # it is also a Call
        return "accepted"

    def come_after() -> None:
        """Denied if the job is treated as one that does not exist."""
        if after(job) == after(NO_JOB).replace(NO_JOB, job):
            raise PermissionError(0, "as a job that does not exist")

    change = {"hold": pb.JOB_CHANGE_HOLD, "release": pb.JOB_CHANGE_RELEASE, "requeue": pb.JOB_CHANGE_REQUEUE}
    return {
        "list-jobs": lambda: seen("ListJobs", pb.ListJobsRequest(all_states=True)),
        "list-jobs-of-owner": lambda: seen("ListJobs", pb.ListJobsRequest(all_states=True, owner=owner)),
        "list-events": lambda: seen("ListEvents", pb.ListEventsRequest(events_max=100_000)),
        "list-usage": lambda: seen("GetUsage", pb.GetUsageRequest()),
        "read-logs-of-all": lambda: seen("ReadLogs", pb.ReadLogsRequest(rank=-1), secret),
        "explain-job": lambda: call("GetJob", pb.GetJobRequest(job=job)),
        "explain-job-by-name": lambda: call("GetJob", pb.GetJobRequest(job=name)),
        "read-events-of-job": lambda: seen("ListEvents", pb.ListEventsRequest(job=job)),
        "read-logs-of-job": lambda: call("ReadLogs", pb.ReadLogsRequest(job=job, rank=-1)),
        "wait-for-job": lambda: call("WaitJobs", pb.WaitJobsRequest(jobs=[job])),
        "come-after-job": come_after,
        "open-terminal": lambda: tunnel(0),
        "open-port": lambda: tunnel(22),
        **{
            f"{verb}-job": lambda kind=kind: call(
                "ChangeJobs", pb.ChangeJobsRequest(jobs=[job], change=kind, force=True)
            )
            for verb, kind in change.items()
        },
        "cancel-job": lambda: call("CancelJobs", pb.CancelJobsRequest(jobs=[job])),
        **operator_attacks(call, at["node"]),
    }


def operator_attacks(call: Callable[[str, Any], object], node: str) -> dict[str, Callable[[], object]]:
    """What only operators of the cluster may do, by name."""
    reservation = pb.Reservation(name="r", node_ids=[node], begin_at_s=4e9, end_at_s=5e9)
    return {
        "set-policy": lambda: call("SetPolicy", pb.SetPolicyRequest(round_s=5.0)),
        "reserve-nodes": lambda: call("ReserveNodes", pb.ReserveNodesRequest(reservation=reservation)),
        "drain-node": lambda: call("SetNode", pb.SetNodeRequest(node_id=node, wish=pb.NODE_WISH_DRAIN)),
    }


def node_attacks(address: str, token: str, at: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Attacks on the victim's node through the scheduler and the agent's socket, and by any process id, by name."""

    def connect() -> None:
        node = agent_pb2.Node(node_id=at["node"], api_versions=[1], gpu_type="v100", gpu_count=2, address="here")
        with grpc.insecure_channel(address) as channel:
            stub = agent_pb2_grpc.AgentServiceStub(channel)
            request = agent_pb2.ConnectRequest(sequence=1, clock_s=1.0, node=node)
            next(stub.Connect(iter([request]), metadata=bearer(token), timeout=CALL_S))

    def report(job_token: str) -> None:
        with grpc.insecure_channel(os.environ["GAVEL_JOB_SERVICE"]) as channel:
            request = job_pb2.ReportProgressRequest(steps_done=1e6, finished=True)
            stub = job_pb2_grpc.JobServiceStub(channel)
            stub.ReportProgress(request, metadata=bearer(job_token), timeout=CALL_S)

    return {
        "connect-as-node": connect,
        "report-without-token": lambda: report(""),
        "report-with-the-users-token": lambda: report(token),
        "signal-any-process": signal_any,
    }


def signal_any() -> None:
    """Denied if all processes that accept a signal are of this account."""
    for process in range(max(2, os.getpid() - PROCESSES_BACK), os.getpid() + 100):
        try:
            os.kill(process, 0)
            if Path(f"/proc/{process}").stat().st_uid != os.getuid():
                return
        except (ProcessLookupError, PermissionError, FileNotFoundError):
            continue
    raise PermissionError(0, "no process of another account accepts a signal")


def tried(attack: Callable[[], object]) -> str:
    """As hostile.tried; of a call, only a refusal is a denial."""
    try:
        return hostile.tried(attack)
    except grpc.RpcError as error:
        code = error.code()  # type: ignore[attr-defined]  # an RpcError that is also a Call
        return f"denied {code.name}" if code in DENIALS else "worked"


def main(targets: Path, token: str) -> None:
    """Attacks every victim."""
    given = json.loads(targets.read_text())
    own = int(Path(os.environ["GAVEL_LEASE_DIR"]).name)
    for at in given["victims"]:
        attacks = hostile.attacks({**at, "own_lease": own})
        for kind in (node_attacks, job_attacks):
            attacks |= kind(given["scheduler"], token, at)
        for name, attack in attacks.items():
            sys.stdout.write(f"{at['name']} {name} {tried(attack)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]).read_text().strip())
