"""Each call of the protocol by a user about another user's job: refused, and as if the job were not there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from gavelpy.runtime.security.tokens import Role
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire.client_pb2_grpc import SchedulerServiceStub
from tests.runtime.client.serving import Serving, make_description, serving

USERS = {"alice": Role.USER, "bob": Role.USER}
SECRET = "unheard-of"
OF_ADMINS = {
    "ReserveNodes": pb.ReserveNodesRequest(),
    "DeleteReservation": pb.DeleteReservationRequest(name="r"),
    "SetNode": pb.SetNodeRequest(node_id="n0", wish=pb.NODE_WISH_DRAIN),
    "SetPolicy": pb.SetPolicyRequest(policy="fifo"),
}
OPEN = {"GetServerInfo", "ListNodes", "GetCluster", "ListReservations", "GetShadowPrices"}  # name no jobs of others


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("others"), users=USERS) as served:
        yield served


@pytest.fixture(scope="module")
def job(scheduler: Serving) -> str:
    with scheduler.client("alice") as alice:
        return str(alice.submit([make_description(SECRET)]).jobs[0].job)


@pytest.fixture
def stub(scheduler: Serving) -> Iterator[SchedulerServiceStub]:
    with grpc.insecure_channel(scheduler.address) as channel:
        yield SchedulerServiceStub(channel)


def about(job: str) -> dict[str, Any]:  # messages of the protocol
    """A request about a job, for each call that names jobs."""
    changes = (pb.JOB_CHANGE_HOLD, pb.JOB_CHANGE_RELEASE, pb.JOB_CHANGE_REQUEUE, pb.JOB_CHANGE_PRIORITY)
    return {
        "GetJob": [pb.GetJobRequest(job=job)],
        "WaitJobs": [pb.WaitJobsRequest(jobs=[job])],
        "CancelJobs": [pb.CancelJobsRequest(jobs=[job])],
        "CancelApp": [pb.CancelAppRequest(app=job)],
        "ChangeJobs": [pb.ChangeJobsRequest(jobs=[job], change=one, priority="normal", force=True) for one in changes],
        "ListEvents": [pb.ListEventsRequest(job=job)],
        "ReadLogs": [pb.ReadLogsRequest(job=job)],
        "OpenTunnel": [iter([pb.OpenTunnelRequest(job=job, port=80)])],
        "SubmitJobs": [pb.SubmitJobsRequest(idempotency_key="k", jobs=[make_description("b", after=[job])])],
    }


def refusal(stub: SchedulerServiceStub, scheduler: Serving, call: str, request: Any) -> tuple[grpc.StatusCode, str]:
    """Status and message of a call by bob; OK if it is answered."""
    try:
        answer = getattr(stub, call)(request, metadata=scheduler.metadata("bob"), timeout=60.0)
        list(answer) if isinstance(answer, grpc.Call) else None
    except grpc.RpcError as error:
        return error.code(), str(error.details())
    return grpc.StatusCode.OK, ""


def test_every_call_is_looked_at() -> None:
    calls = {method.name for method in pb.DESCRIPTOR.services_by_name["SchedulerService"].methods}

    assert calls == {*about("1"), *OF_ADMINS, *OPEN, "ListJobs", "GetUsage"}


@pytest.mark.parametrize("call", about("1"))
@pytest.mark.parametrize("prefix", ["", "alice/"])
def test_job_of_another_user_is_as_if_it_were_not_there(
    stub: SchedulerServiceStub, scheduler: Serving, job: str, call: str, prefix: str
) -> None:
    name, missing = (f"{prefix}{SECRET}", f"{prefix}no-such") if prefix else (job, "999999")

    refused = [refusal(stub, scheduler, call, request) for request in about(name)[call]]
    of_missing = [refusal(stub, scheduler, call, request) for request in about(missing)[call]]

    assert grpc.StatusCode.OK not in {code for code, _ in refused}
    assert [(c, t.replace(repr(name), "J")) for c, t in refused] == [
        (c, t.replace(repr(missing), "J")) for c, t in of_missing
    ]


@pytest.mark.parametrize("call", OF_ADMINS)
def test_what_changes_the_cluster_is_refused(stub: SchedulerServiceStub, scheduler: Serving, call: str) -> None:
    assert refusal(stub, scheduler, call, OF_ADMINS[call])[0] is grpc.StatusCode.PERMISSION_DENIED


def test_answers_to_another_user_do_not_name_the_job(stub: SchedulerServiceStub, scheduler: Serving, job: str) -> None:
    more: dict[str, Any] = {"metadata": scheduler.metadata("bob"), "timeout": 60.0}

    answers = [
        stub.ListJobs(pb.ListJobsRequest(all_states=True), **more),
        stub.GetUsage(pb.GetUsageRequest(owner="alice"), **more),
        stub.GetServerInfo(pb.GetServerInfoRequest(), **more),
        stub.ListNodes(pb.ListNodesRequest(), **more),
        stub.GetShadowPrices(pb.GetShadowPricesRequest(), **more),
        stub.GetCluster(pb.GetClusterRequest(), **more),
        stub.ListReservations(pb.ListReservationsRequest(), **more),
    ]

    assert not any(SECRET in str(answer) or "alice" in str(answer) for answer in answers)
    with scheduler.client("alice") as alice:
        assert alice.job(job).job.state == pb.JOB_STATE_WAITING
