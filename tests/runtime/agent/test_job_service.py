"""JobService: a job reads its lease and reports progress through the agent."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import grpc
import pytest

from gavelpy.runtime import lease_files
from gavelpy.runtime.lease_files import Launch
from gavelpy.runtime.wire import agent_pb2 as pb
from gavelpy.runtime.wire import job_pb2
from gavelpy.runtime.wire.job_pb2_grpc import JobServiceStub
from tests.runtime.agent.conftest import Node
from tests.runtime.agent.peer import Peer, order, until

CALL_S = 30.0


class Job:
    """A running job, with the calls that its script would make."""

    def __init__(self, launch: Launch) -> None:
        self.metadata = (("authorization", f"Bearer {launch.environment['GAVEL_JOB_TOKEN']}"),)
        self._channel = grpc.insecure_channel(launch.environment["GAVEL_JOB_SERVICE"])
        self.service = JobServiceStub(self._channel)

    def lease(self, **request: object) -> job_pb2.GetLeaseResponse:
        asked = job_pb2.GetLeaseRequest(**request)  # type: ignore[arg-type]  # fields of any type
        return self.service.GetLease(asked, metadata=self.metadata, timeout=CALL_S)

    def report(self, **request: object) -> job_pb2.ReportProgressResponse:
        said = job_pb2.ReportProgressRequest(**request)  # type: ignore[arg-type]  # fields of any type
        return self.service.ReportProgress(said, metadata=self.metadata, timeout=CALL_S)

    def close(self) -> None:
        self._channel.close()


@pytest.fixture
def job(shared: tuple[Peer, Node]) -> Iterator[Job]:
    peer, node = shared
    peer.order(order(1, "sleep 100", steps_max=500))
    peer.until_phase(1, pb.LEASE_PHASE_RUNNING)
    launch = lease_files.read_launch(node.lease(1))
    assert launch is not None
    made = Job(launch)
    yield made
    made.close()


def test_job_learns_its_lease(job: Job) -> None:
    lease = job.lease()

    assert 0 < lease.remaining_s <= 60
    assert not lease.should_stop
    assert lease.steps_max == 500


def test_job_that_waits_gets_a_stop_at_once(job: Job, shared: tuple[Peer, Node]) -> None:
    seen = job.lease().version

    shared[0].wish(1, pb.LEASE_WISH_STOP)

    assert job.lease(version_seen=seen, wait_s=4.0).should_stop


def test_progress_reaches_the_scheduler(job: Job, shared: tuple[Peer, Node]) -> None:
    job.report(steps_done=120, steps_saved=100, rate_steps_per_s=8.0, saves_at_end=True)

    peer, _ = shared
    report = until(lambda: found if (found := peer.report(1)) and found.steps_done == 120 else None)
    assert (report.steps_saved, report.rate_steps_per_s) == (100, 8.0)
    assert (report.by_time, report.saves_at_end) == (False, True)


def test_wrong_token_is_refused(job: Job) -> None:
    job.metadata = (("authorization", "Bearer nonsense"),)

    with pytest.raises(grpc.RpcError) as refused:
        job.lease()

    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ({"local_rank": 1}, "local_rank must be below 1, got 1"),
        ({"steps_done": float("nan")}, "steps_done must be in [0, 1e+15], got nan"),
        ({"steps_done": 1, "steps_saved": 2}, "steps_saved must be at most steps_done = 1, got 2"),
        ({"rate_steps_per_s": -1}, "rate_steps_per_s must be in [0, 1e+15], got -1.0"),
    ],
)
def test_report_that_makes_no_sense_is_refused(report: dict[str, float], message: str, job: Job) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        job.report(**report)

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == message


def test_service_keeps_its_address_over_a_restart_of_the_agent(job: Job, shared: tuple[Peer, Node]) -> None:
    peer, node = shared
    streams = len(peer.nodes)
    node.send(signal.SIGKILL)
    node.start()
    until(lambda: len(peer.nodes) > streams)

    job.report(steps_done=7)

    said = json.loads((node.lease(1) / "progress.0.json").read_text())
    assert said["steps_done"] == 7
