"""A local cluster for tests, with calls that are retried while the scheduler is down."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import grpc

from gavelpy.runtime.local_cluster import CALL_S, START_S, LocalCluster
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire.client_pb2_grpc import SchedulerServiceStub

Answer = TypeVar("Answer")
OVER = (pb.JOB_STATE_FINISHED, pb.JOB_STATE_CANCELLED, pb.JOB_STATE_FAILED)


def submit(cluster: LocalCluster, jobs: list[pb.JobDescription], key: str) -> list[int]:
    """Submits jobs, with retries under the same key until the scheduler acknowledges them; returns their serials."""
    request = pb.SubmitJobsRequest(idempotency_key=key, jobs=jobs)
    answer = patiently(cluster, lambda client: client.SubmitJobs(request, timeout=CALL_S))
    return [job.job for job in answer.jobs]


def jobs_of(cluster: LocalCluster) -> dict[int, pb.Job]:
    """Every job by its serial."""
    request = pb.ListJobsRequest(all_states=True, page_size=10_000)
    answer = patiently(cluster, lambda client: client.ListJobs(request, timeout=CALL_S))
    return {job.job: job for job in answer.jobs}


def all_over(cluster: LocalCluster) -> bool:
    """Whether every job is over."""
    return all(job.state in OVER for job in jobs_of(cluster).values())


def patiently(cluster: LocalCluster, ask: Callable[[SchedulerServiceStub], Answer]) -> Answer:
    """The answer of a scheduler that may be down for a while."""
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            with cluster.client() as client:
                return ask(client)
        except grpc.RpcError as error:
            away = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
            if not away or time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
