"""SenseTime's Helios clusters (Hu et al., SC '21; S-Lab-System-Group/HeliosData): `cluster_log.csv` of one cluster.

Columns: job_id, user (→ owner), vc (→ entity), gpu_num, cpu_num, node_num, state, submit_time, start_time, end_time,
duration (s), queue (s). Jobs without GPUs are left out, and so are jobs that never started.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from gavelpy.model.job import GPUS_MAX, Trace
from gavelpy.traces.durations import JobRow, PastJobs, Row, cells_of, trace_of
from gavelpy.traces.fields import Place, csv_table
from gavelpy.traces.formats import ReadOptions
from gavelpy.traces.source import Head, TraceFile
from gavelpy.traces.times import Clock

_COLUMNS = ("job_id", "user", "vc", "gpu_num", "state", "submit_time", "start_time", "duration")
_OTHERS = ("jobname", "cpu_num", "node_num", "end_time", "queue")
_STATES = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
_NEVER = ("", "None", "nan")


class HeliosReader:
    """Reads `cluster_log.csv`."""

    name: ClassVar[str] = "helios"
    title: ClassVar[str] = "Helios (SenseTime 2020): cluster_log.csv with job_id, user, vc, gpu_num, state and times"

    def matches(self, head: Head) -> bool:
        """Whether the header has Helios' columns."""
        return set(_COLUMNS) <= head.columns

    def read(self, path: Path, options: ReadOptions) -> Trace:
        """The trace."""
        source = TraceFile(path)
        history = PastJobs(source.file, notes={"time_zone": options.time_zone})
        clock = Clock(options.time_zone)
        for place, cell in cells_of(csv_table(source.lines(), source.file), _COLUMNS, _OTHERS):
            place.choice("state", cell["state"], _STATES)
            if cell["start_time"] in _NEVER:
                history.left_out["never started"] += 1
            else:
                history.add(_row(cell, place, clock))
        return trace_of(history, self.name, source, options)


def _row(cell: Row, place: Place, clock: Clock) -> JobRow:
    submitted_s = clock.seconds("submit_time", cell["submit_time"], place)
    if clock.seconds("start_time", cell["start_time"], place) < submitted_s:
        raise place.error("start_time", f">= submit_time ({cell['submit_time']})", cell["start_time"])
    return JobRow(
        cell["job_id"],
        submitted_s,
        place.number("duration", cell["duration"]),
        place.whole("gpu_num", cell["gpu_num"], 0, GPUS_MAX),
        place.line,
        owner=cell["user"],
        entity=cell["vc"],
    )
