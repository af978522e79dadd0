"""`gavel profile --on cluster`: jobs are measured where they would run, by a scheduler, on each of its GPU types."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gavelpy.cli.job_files import DescribedJob
from gavelpy.errors import InvalidInput
from gavelpy.runtime.client.states import is_over

if TYPE_CHECKING:
    from gavelpy.cli.profiled import Tell
    from gavelpy.runtime.client.connection import Client
    from gavelpy.runtime.wire import client_pb2
    from gavelpy.traces.measured import MeasuredRate

_LOOK_S = 0.5
_STEPS = 1e12  # more than any job does meanwhile
# What the scheduler is told to expect. It answers with the measured rate as soon as there is one, which is not this
# very number: nobody measures all sixteen digits of it.
_EXPECTED_STEPS_PER_S = 1.0000000123456789
_UP = "up"


def gpu_types_up(client: Client) -> list[str]:
    """Those of nodes that are up; InvalidInput where there are none."""
    found = sorted({node.gpu_type for node in client.nodes() if node.state == _UP})
    if not found:
        raise InvalidInput("the scheduler must have a node that is up, got none")
    return found


def measured_on_cluster(
    jobs: Sequence[DescribedJob],
    gpu_types: Sequence[str],
    client: Client,
    measure_s: float,
    patience_s: float,
    tell: Tell,
) -> Iterator[MeasuredRate]:
    """The rates of all jobs on all of these types; the jobs that are submitted for it are cancelled in the end.

    A job that has not reported a rate `patience_s` after its submission is given up, and told of.
    """
    asked = [(job, gpu_type) for job in jobs for gpu_type in gpu_types]
    tag = uuid.uuid4().hex[:8]
    messages = [_pinned(job, gpu_type, f"profile-{tag}-{row}").message() for row, (job, gpu_type) in enumerate(asked)]
    numbers = [one.job for one in client.submit(messages).jobs]
    open_jobs = dict(zip(numbers, asked, strict=True))
    known_since_s: dict[int, float] = {}
    until_s = time.monotonic() + patience_s
    try:
        while open_jobs and (time.monotonic() < until_s or known_since_s.keys() & open_jobs.keys()):
            for seen in _seen(client, list(open_jobs)):
                job, gpu_type = open_jobs[seen.job]
                if is_over(seen):
                    tell(f"not measured: {job.job_type} on {gpu_type} ended: {seen.detail or 'nobody knows why'}")
                    del open_jobs[seen.job]
                elif seen.rate_steps_per_s not in (0.0, _EXPECTED_STEPS_PER_S):
                    begun_s = known_since_s.setdefault(seen.job, time.monotonic())
                    if time.monotonic() - begun_s >= measure_s:
                        del open_jobs[seen.job]
                        client.cancel([str(seen.job)])
                        yield _rate(job, seen, measure_s, tell)
            time.sleep(_LOOK_S)
        for job, gpu_type in open_jobs.values():
            tell(f"not measured: {job.job_type} on {gpu_type} reported no rate within {patience_s:g} s")
    finally:
        if open_jobs:
            client.cancel([str(number) for number in open_jobs])


def _pinned(job: DescribedJob, gpu_type: str, name: str) -> DescribedJob:
    """The job on one type only, without an end of its own."""
    rates = {gpu_type: _EXPECTED_STEPS_PER_S}
    return replace(job, name=name, steps_total=_STEPS, rates_steps_per_s=rates, deadline_s=0.0, array="")


def _seen(client: Client, numbers: Sequence[int]) -> list[client_pb2.Job]:
    return list(client.wait([str(number) for number in numbers], wait_s=0.0).jobs)


def _rate(job: DescribedJob, seen: client_pb2.Job, measure_s: float, tell: Tell) -> MeasuredRate:
    from gavelpy.traces.measured import MeasuredRate

    tell(f"{job.job_type} on {seen.gpus} x {seen.gpu_type}: {seen.rate_steps_per_s:.5g} steps/s")
    day = datetime.now(UTC).date().isoformat()
    where = ", ".join(seen.node_ids)
    source = f"gavel profile on {day}: {job.command}; on {where}; {measure_s:g} s after the first steps"
    return MeasuredRate(job.job_type, seen.gpus, seen.gpu_type, seen.rate_steps_per_s, source)
