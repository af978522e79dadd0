"""ElasticFlow's ITP traces (microsoft/elasticflow-traces): one CSV per cluster, raw or with what ElasticFlow added.

Raw: job_id, submission_time (s), duration (s), num_gpu. Derived, in addition: num_iteration, model_name, deadline (s,
on the clock of submission_time), batch_size. The iterations become the steps, and the rates are such that the duration
on the reference type is the recorded one; their ratios between GPU types are those of the model, if the throughput
table has it, else of a drawn job type.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import ClassVar

from gavelpy.model.job import GPUS_MAX, Trace
from gavelpy.traces.durations import JobRow, PastJobs, Row, cells_of, trace_of
from gavelpy.traces.fields import Place, csv_table
from gavelpy.traces.formats import ReadOptions
from gavelpy.traces.source import Head, TraceFile

_RAW = ("job_id", "submission_time", "num_gpu", "duration")
_DERIVED = ("num_iteration", "model_name", "deadline", "batch_size")


class ElasticFlowReader:
    """Reads both forms."""

    name: ClassVar[str] = "elasticflow"
    title: ClassVar[str] = "ElasticFlow / ITP (Microsoft 2021): job_id, submission_time, num_gpu, duration and more"

    def matches(self, head: Head) -> bool:
        """Whether the header has the raw columns."""
        return set(_RAW) <= head.columns

    def read(self, path: Path, options: ReadOptions) -> Trace:
        """The trace."""
        source = TraceFile(path)
        history = PastJobs(source.file)
        for place, cell in cells_of(csv_table(source.lines(), source.file), _RAW, _DERIVED):
            history.add(_row(cell, place))
        return trace_of(history, self.name, source, options)


def _row(cell: Row, place: Place) -> JobRow:
    submitted_s = place.number("submission_time", cell["submission_time"])
    model, batch = cell.get("model_name", ""), cell.get("batch_size", "")
    deadline_s = math.inf
    if "deadline" in cell:
        deadline_s = place.number("deadline", cell["deadline"]) - submitted_s
        if deadline_s <= 0:
            raise place.error("deadline", f"after the submission ({submitted_s:g})", cell["deadline"])
    if batch:
        place.whole("batch_size", batch, 1)
    return JobRow(
        cell["job_id"],
        submitted_s,
        place.number("duration", cell["duration"]),
        place.whole("num_gpu", cell["num_gpu"], 0, GPUS_MAX),
        place.line,
        job_type=f"{model} (batch size {batch})" if model and batch else model,
        steps=place.whole("num_iteration", cell["num_iteration"], 1) if "num_iteration" in cell else math.nan,
        deadline_s=deadline_s,
    )
