"""Reads traces and throughput tables; recognises the format of the file."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from gavelpy.model.job import JobSpec, Trace
from gavelpy.model.throughput import ThroughputTable
from gavelpy.traces.csv_format import parse_csv_throughputs, write_csv_trace
from gavelpy.traces.fields import read_text
from gavelpy.traces.formats import ReadOptions, reader_for, reader_named
from gavelpy.traces.gavel import parse_gavel_throughputs, write_gavel_trace
from gavelpy.traces.source import head_of, seekable


class TraceFormat(StrEnum):
    """Formats that traces are written in."""

    CSV = "csv"  # complete
    GAVEL = "gavel"  # the original's 10 columns: no ids, no rates


def read_trace(
    path: str | Path,
    *,
    throughputs: ThroughputTable | None = None,
    from_format: str = "",
    options: ReadOptions | None = None,
) -> Trace:
    """The trace in `path`, in this format, or in the one that its beginning shows (`gavel trace formats` lists them).

    Jobs without rates of their own get those of their (job_type, gpus) in `throughputs`. A job that is not in the table
    cannot run and waits with that reason.
    """
    chosen = replace(options or ReadOptions(), throughputs=throughputs)
    with seekable(path) as file:
        reader = reader_named(from_format) if from_format else reader_for(head_of(file))
        trace = reader.read(file, chosen)
    return trace if throughputs is None else attach_rates(trace, throughputs)


def attach_rates(trace: Trace, throughputs: ThroughputTable) -> Trace:
    """The trace with the table's rates for jobs, and sizes of jobs, without rates."""
    jobs = tuple(
        job if job.rates_steps_per_s else job.with_rates(throughputs.rates(job.job_type, job.gpus))
        for job in trace.jobs
    )
    return replace(trace, jobs=tuple(_with_sizes(job, throughputs) if job.sizes else job for job in jobs))


def _with_sizes(job: JobSpec, throughputs: ThroughputTable) -> JobSpec:
    unknown = [size for size in job.sizes if size != job.gpus and not job.rates_by_size.get(size)]
    more = {size: rates for size in unknown if (rates := throughputs.rates(job.job_type, size))}
    return replace(job, rates_by_size={**job.rates_by_size, **more})


def write_trace(trace: Trace, path: str | Path, format: TraceFormat = TraceFormat.CSV) -> None:
    """Writes the trace; `write_gavel_trace` lists what Gavel's format cannot hold."""
    match TraceFormat(format):
        case TraceFormat.CSV:
            write_csv_trace(trace, path)
        case TraceFormat.GAVEL:
            write_gavel_trace(trace, path)


def read_throughputs(path: str | Path, *, keep_unconsolidated: bool = False) -> ThroughputTable:
    """The table in `path`: Gavel's JSON if it starts with a brace, else CSV."""
    text = read_text(path)
    if text.lstrip().startswith("{"):
        return parse_gavel_throughputs(text, str(path), keep_unconsolidated=keep_unconsolidated)
    return parse_csv_throughputs(text, str(path))
