"""Measures the rates of jobs for `gavel profile`: on this machine, or on each GPU type of a cluster.

Measuring on this machine loads only the standard library: no gRPC, no numpy.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gavelpy.cli.job_files import JobTemplate, read_job_file
from gavelpy.errors import InvalidInput
from gavelpy.runtime.profile import Bench, Machine, NotMeasured, ProfiledJob, measure

if TYPE_CHECKING:
    from gavelpy.runtime.client.connection import Client
    from gavelpy.runtime.wire import client_pb2


from dataclasses import dataclass

from gavelpy.traces.fields import csv_table, csv_text

_COLUMNS = ("job_type", "gpus", "gpu_type", "rate_steps_per_s", "provenance", "source")
_OPTIONAL = ("pair_job_type", "pair_rate_steps_per_s")
_PROVENANCE = "measured"


@dataclass(frozen=True)
class MeasuredRate:
    """One row: the rate of a whole job on all its GPUs."""

    job_type: str
    gpus: int
    gpu_type: str
    rate_steps_per_s: float
    source: str

    def __post_init__(self) -> None:
        if not 0 < self.rate_steps_per_s < float("inf"):
            raise InvalidInput(f"rate_steps_per_s must be a finite number > 0, got {self.rate_steps_per_s!r}")

    @property
    def cells(self) -> dict[str, str]:
        """The row by column. Rates have five digits: measurements are not more exact."""
        rate = float(f"{self.rate_steps_per_s:.5g}")
        values = (self.job_type, str(self.gpus), self.gpu_type, repr(rate), _PROVENANCE, self.source)
        return dict(zip(_COLUMNS, values, strict=True))


def with_measured(text: str, rates: Sequence[MeasuredRate], file: str = "") -> str:
    """The table `text` ("" = a new table) with these rates; `file` is for messages."""
    rows = _rows(text, file) if text else []
    fresh = {_key(rate.cells): rate.cells for rate in rates}
    merged = [fresh.pop(_key(row), row) if not row.get("pair_job_type") else row for row in rows]
    merged += fresh.values()
    header = [*_COLUMNS, *(name for name in _OPTIONAL if any(row.get(name) for row in merged))]
    return csv_text(header, [[row.get(name, "") for name in header] for row in merged])


def _rows(text: str, file: str) -> list[dict[str, str]]:
    table = csv_table(text, file)
    table.require(_COLUMNS[:4], (*_COLUMNS[4:], *_OPTIONAL))
    return [dict(zip(table.header, cells, strict=True)) for _, cells in table.rows]


def _key(row: dict[str, str]) -> tuple[str, str, str]:
    return row["job_type"], row["gpus"], row["gpu_type"]


Notify = Callable[[str], None]

_POLL_S = 0.5
_UP = "up"
_STEPS = 1e12  # no job finishes while it is measured
# The rate submitted with a probe job. The scheduler replaces it with the measured rate, which never has exactly these
# sixteen digits, so any other value is a measurement.
_PLACEHOLDER_STEPS_PER_S = 1.0000000123456789


def read_templates(paths: Sequence[Path]) -> list[JobTemplate]:
    """The jobs of all files, the first of each array, and one for each number of GPUs on which it runs.

    Raises InvalidInput where a job type is missing or a (job_type, gpus) occurs twice.
    """
    jobs: dict[tuple[str, int], JobTemplate] = {}
    for path in paths:
        for job in (job for entry in read_job_file(path) for job in _by_size(entry.expand()[0])):
            key = (job.job_type, job.gpus or 1)
            if not job.job_type or key in jobs:
                got = f"{job.job_type!r} on {key[1]} GPUs"
                raise InvalidInput(f"job_type must be given, once for each number of GPUs, got {got}", file=str(path))
            jobs[key] = job
    return list(jobs.values())


def _by_size(job: JobTemplate) -> list[JobTemplate]:
    one = replace(job, sizes=(), rates_by_size={}, efficiency={})
    return [replace(one, gpus=gpus) for gpus in job.sizes or (job.gpus,)]


def measured_here(
    jobs: Sequence[JobTemplate], bench: Bench, machine: Machine, notify: Notify
) -> Iterator[MeasuredRate]:
    """Rates measured on this machine, one job at a time; `notify` reports jobs that cannot be measured."""
    for job in jobs:
        try:
            found = measure(_profiled(job), bench)
        except NotMeasured as error:
            notify(f"not measured: {error}")
            continue
        source = machine.source(job.command, bench.measure_s)
        notify(f"{job.job_type} on {job.gpus or 1} x {machine.gpu_type}: {found.rate_steps_per_s:.5g} steps/s")
        yield MeasuredRate(job.job_type, job.gpus or 1, machine.gpu_type, found.rate_steps_per_s, source)


def gpu_types_up(client: Client) -> list[str]:
    """GPU types of the nodes that are up; raises InvalidInput if there are none."""
    found = sorted({node.gpu_type for node in client.nodes() if node.state == _UP})
    if not found:
        raise InvalidInput("no node of the cluster is up; see `gavel nodes`")
    return found


def measured_on_cluster(
    jobs: Sequence[JobTemplate],
    gpu_types: Sequence[str],
    client: Client,
    measure_s: float,
    patience_s: float,
    notify: Notify,
) -> Iterator[MeasuredRate]:
    """Rates of all jobs on all of these types, measured by probe jobs that are cancelled afterwards.

    A probe that has no rate `patience_s` after its submission is given up; `notify` reports it.
    """
    from gavelpy.runtime.client.connection import is_over

    wanted = [(job, gpu_type) for job in jobs for gpu_type in gpu_types]
    tag = uuid.uuid4().hex[:8]
    messages = [_probe(job, gpu_type, f"profile-{tag}-{row}").message() for row, (job, gpu_type) in enumerate(wanted)]
    numbers = [one.job for one in client.submit(messages).jobs]
    open_probes = dict(zip(numbers, wanted, strict=True))
    known_since_s: dict[int, float] = {}
    until_s = time.monotonic() + patience_s
    try:
        while open_probes and (time.monotonic() < until_s or known_since_s.keys() & open_probes.keys()):
            for probe in _poll(client, list(open_probes)):
                job, gpu_type = open_probes[probe.job]
                if is_over(probe):
                    notify(f"not measured: {job.job_type} on {gpu_type} ended: {probe.detail or 'reason unknown'}")
                    del open_probes[probe.job]
                elif probe.rate_steps_per_s not in (0.0, _PLACEHOLDER_STEPS_PER_S):
                    since_s = known_since_s.setdefault(probe.job, time.monotonic())
                    if time.monotonic() - since_s >= measure_s:
                        del open_probes[probe.job]
                        client.cancel([str(probe.job)])
                        yield _rate(job, probe, measure_s, notify)
            time.sleep(_POLL_S)
        for job, gpu_type in open_probes.values():
            notify(f"not measured: {job.job_type} on {gpu_type} reported no rate within {patience_s:g} s")
    finally:
        if open_probes:
            client.cancel([str(number) for number in open_probes])


def _profiled(job: JobTemplate) -> ProfiledJob:
    gpus = job.gpus or 1
    processes = 1 if job.one_process_a_node else gpus
    return ProfiledJob(job.job_type, job.command, gpus, processes, Path(job.working_directory), job.environment)


def _probe(job: JobTemplate, gpu_type: str, name: str) -> JobTemplate:
    """The job on this type only, with so many steps that it does not finish."""
    rates = {gpu_type: _PLACEHOLDER_STEPS_PER_S}
    return replace(job, name=name, steps_total=_STEPS, rates_steps_per_s=rates, deadline_s=0.0, array="")


def _poll(client: Client, numbers: Sequence[int]) -> list[client_pb2.Job]:
    return list(client.wait([str(number) for number in numbers], wait_s=0.0).jobs)


def _rate(job: JobTemplate, probe: client_pb2.Job, measure_s: float, notify: Notify) -> MeasuredRate:
    notify(f"{job.job_type} on {probe.gpus} x {probe.gpu_type}: {probe.rate_steps_per_s:.5g} steps/s")
    day = datetime.now(UTC).date().isoformat()
    where = ", ".join(probe.node_ids)
    source = f"gavel profile on {day}: {job.command}; on {where}; {measure_s:g} s after the first steps"
    return MeasuredRate(job.job_type, probe.gpus, probe.gpu_type, probe.rate_steps_per_s, source)
