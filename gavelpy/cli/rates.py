"""Warnings about implausible rates in an input: a wrong unit, a typing error, the wrong file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gavelpy.cli import parsing as p
from gavelpy.cli.output import notify

if TYPE_CHECKING:
    from gavelpy.estimator.kinds import Key
    from gavelpy.model.job import Trace
    from gavelpy.model.problem import AllocationProblem
    from gavelpy.model.throughput import ThroughputTable

_NAMED_MAX = 10  # entries of one input that are named one by one


def believed(table: ThroughputTable, file: Path | None, effect: str) -> ThroughputTable:
    """The table without its absurd entries; each is named with its line and with what follows for it."""
    from gavelpy.estimator.roofline import Roofline
    from gavelpy.estimator.sanity import believable, located
    from gavelpy.traces.csv_format import throughput_lines
    from gavelpy.traces.job_types import gpu_specs, job_types

    if file is None:
        return table
    found = believable(table, Roofline(job_types(), gpu_specs()))
    for note in located(found.absurd, str(file), throughput_lines(file) if found.absurd else {}):
        notify(f"{note}; {effect}")
    return found.table


def believed_table_of(throughputs: Path | None) -> ThroughputTable:
    """The table in that file without its absurd entries, or the published one."""
    return believed(p.table_of(throughputs), throughputs, "it is left out")


def warn_of_trace(trace: Trace) -> None:
    """Warns of absurd rates of a trace's jobs; jobs of the same type and GPUs count once."""
    rates: dict[Key, Mapping[str, float]] = {}
    for job in trace.jobs:
        rates.setdefault((job.job_type or f"job {job.id}", job.gpus), job.rates_steps_per_s)
    _warn(trace.name or "trace", rates)


def warn_of_problem(problem: AllocationProblem, file: Path) -> None:
    """Warns of absurd rates of a problem's jobs alone; the answer is to the rates as they are."""
    alone = problem.member_count[problem.member_configuration] == 1
    jobs, values = problem.member_job[alone].tolist(), problem.member_rate_steps_per_s[alone].tolist()
    rates = {
        (problem.job_ids[job], int(problem.gpus_asked[job])): dict(zip(problem.gpu_types, row, strict=True))
        for job, row in zip(jobs, values, strict=True)
    }
    _warn(str(file), rates)


def _warn(where: str, rates: Mapping[Key, Mapping[str, float]]) -> None:
    from gavelpy.estimator.roofline import Roofline
    from gavelpy.estimator.sanity import believable
    from gavelpy.traces.job_types import gpu_specs, job_types

    table = _table(rates)
    absurd = believable(table, Roofline(job_types(), gpu_specs())).absurd if table is not None else ()
    for one in absurd[:_NAMED_MAX]:
        notify(f"warning: {where}: {one}; it is used as it is")
    if len(absurd) > _NAMED_MAX:
        notify(f"warning: {where}: {len(absurd) - _NAMED_MAX:,} more rates are not believed")


def _table(rates: Mapping[Key, Mapping[str, float]]) -> ThroughputTable | None:
    """A table of these rates; none without any."""
    import numpy as np

    from gavelpy.model.throughput import ThroughputTable

    types: Sequence[str] = tuple(dict.fromkeys(name for row in rates.values() for name in row))
    if not types:
        return None
    values = np.array([[row.get(name, np.nan) for name in types] for row in rates.values()], dtype=np.float64)
    kinds = np.zeros(values.shape, dtype=np.int64)
    return ThroughputTable(tuple(rates), tuple(types), values, kinds, ("",) * len(rates))
