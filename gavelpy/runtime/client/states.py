"""What the states of a job mean."""

from __future__ import annotations

from gavelpy.runtime.wire import client_pb2

OVER = (client_pb2.JOB_STATE_FINISHED, client_pb2.JOB_STATE_CANCELLED, client_pb2.JOB_STATE_FAILED)


def is_over(job: client_pb2.Job) -> bool:
    """Whether nothing will happen to a job any more."""
    return job.state in OVER
