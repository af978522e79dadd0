"""The table of jobs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from gavelpy.cli.jobs import jobs_table
from gavelpy.runtime.wire import client_pb2


@pytest.mark.parametrize(
    ("lease", "state", "told"),
    [(7, client_pb2.JOB_STATE_RUNNING, 0), (-1, client_pb2.JOB_STATE_FAILED, 1)],
)
def test_how_the_last_lease_ended_is_told_while_there_is_none(
    lease: int, state: client_pb2.JobState.ValueType, told: int
) -> None:
    job = client_pb2.Job(job=1, name="train", lease=lease, state=state, detail="node n1 was lost", steps_total=1.0)
    out = io.StringIO()

    Console(file=out, width=200).print(jobs_table([job]))

    assert out.getvalue().count("node n1 was lost") == told
