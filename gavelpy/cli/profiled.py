"""What `gavel profile` measures, and its rates as rows of a table. Loads no library beyond the standard one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gavelpy.cli.job_files import DescribedJob, read_job_file
from gavelpy.errors import InvalidInput
from gavelpy.runtime.profile import Bench, NotMeasured, ProfiledJob, measure
from gavelpy.runtime.profile_machine import Machine
from gavelpy.traces.measured import MeasuredRate

Tell = Callable[[str], None]


def described_jobs(paths: Sequence[Path]) -> list[DescribedJob]:
    """The jobs of all files, of an array the first; each needs a job type, and no (job_type, gpus) may come twice."""
    jobs: dict[tuple[str, int], DescribedJob] = {}
    for path in paths:
        for job in (entry.spread()[0] for entry in read_job_file(path)):
            key = (job.job_type, job.gpus or 1)
            if not job.job_type or key in jobs:
                told = f"{job.job_type!r} on {key[1]} GPUs"
                raise InvalidInput(f"job_type must be given, once for each number of GPUs, got {told}", file=str(path))
            jobs[key] = job
    return list(jobs.values())


def measured_here(jobs: Sequence[DescribedJob], bench: Bench, machine: Machine, tell: Tell) -> Iterator[MeasuredRate]:
    """The rates of those that can be measured on this machine; why another cannot is told."""
    for job in jobs:
        try:
            found = measure(_profiled(job), bench)
        except NotMeasured as error:
            tell(f"not measured: {error}")
            continue
        source = machine.source(job.command, bench.measure_s)
        tell(f"{job.job_type} on {job.gpus or 1} x {machine.gpu_type}: {found.rate_steps_per_s:.5g} steps/s")
        yield MeasuredRate(job.job_type, job.gpus or 1, machine.gpu_type, found.rate_steps_per_s, source)


def _profiled(job: DescribedJob) -> ProfiledJob:
    gpus = job.gpus or 1
    processes = 1 if job.one_process_a_node else gpus
    return ProfiledJob(job.job_type, job.command, gpus, processes, Path(job.working_directory), job.environment)
