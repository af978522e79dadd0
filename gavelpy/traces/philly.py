"""Microsoft's Philly cluster (Jeon et al., USENIX ATC '19): the short CSV, and the published `cluster_job_log`.

The CSV (as in the artifacts of Sia and ElasticFlow) has one row per job: timestamp, duration (s), num_gpus, gpu_time
(GPU-s), cluster (the virtual cluster). The log is a JSON array of jobs with status, vc, jobid, attempts, submitted_time
and user; an attempt has start_time, end_time and detail, a list of machines (ip) with the GPUs used there.

A virtual cluster becomes the entity, a user the owner. A job of the log ran for the sum of its attempts, on the GPUs of
its last one. Neither form has a GPU type or a model. Times have no zone; they count as those of the zone in the
options, and only their differences matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from gavelpy.model.job import GPUS_MAX, Trace
from gavelpy.traces.durations import JobRow, PastJobs, trace_of
from gavelpy.traces.fields import Place, csv_table
from gavelpy.traces.formats import ReadOptions
from gavelpy.traces.json_stream import Element, json_elements
from gavelpy.traces.source import Head, TraceFile
from gavelpy.traces.times import Clock

_COLUMNS = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")
_STATES = ("Pass", "Killed", "Failed")


class PhillyReader:
    """Reads both forms."""

    name: ClassVar[str] = "philly"
    title: ClassVar[str] = "Philly (Microsoft 2017): CSV of timestamp, duration, num_gpus, or cluster_job_log (JSON)"

    def matches(self, head: Head) -> bool:
        """Whether the header is that of the CSV, or the first object has the log's fields."""
        if head.columns == set(_COLUMNS):
            return True
        return head.text.lstrip().startswith("[") and '"attempts"' in head.text and '"submitted_time"' in head.text

    def read(self, path: Path, options: ReadOptions) -> Trace:
        """The trace."""
        source = TraceFile(path)
        history = PastJobs(source.file)
        clock = Clock(options.time_zone)
        is_json = path.suffix == ".json" or _is_json(path)
        (_read_log if is_json else _read_csv)(source, history, clock)
        history.notes["time_zone"] = options.time_zone
        return trace_of(history, self.name, source, options)


def _is_json(path: Path) -> bool:
    from gavelpy.traces.source import head_of

    return head_of(path).text.lstrip().startswith(("[", "{"))


def _read_csv(source: TraceFile, history: PastJobs, clock: Clock) -> None:
    table = csv_table(source.lines(), source.file)
    table.require(_COLUMNS, ())
    where = [table.header.index(name) for name in _COLUMNS]
    for number, (place, cells) in enumerate(table.rows):
        at, duration, gpus, gpu_time, cluster = (cells[i] for i in where)
        duration_s = place.number("duration", duration)
        count = place.whole("num_gpus", gpus, 0, GPUS_MAX)
        if abs(place.number("gpu_time", gpu_time) - duration_s * count) > 1.0 + 1e-6 * duration_s * count:
            raise place.error("gpu_time", f"duration x num_gpus ({duration_s * count:g})", gpu_time)
        history.add(
            JobRow(str(number), clock.seconds("timestamp", at, place), duration_s, count, place.line, entity=cluster)
        )


def _read_log(source: TraceFile, history: PastJobs, clock: Clock) -> None:
    for element in json_elements(source):
        row = _job(element, clock)
        if row is None:
            history.left_out["never started"] += 1
        else:
            history.add(row)


def _job(element: Element, clock: Clock) -> JobRow | None:
    """The job; None if no attempt has a beginning and an end."""
    job: Mapping[str, Any] = element.mapping("job", element.value)
    place = element.place
    place.choice("status", element.text(job, "status"), _STATES)
    duration_s, gpus = 0.0, 0
    for attempt in element.sequence("attempts", job.get("attempts")):
        entry = element.mapping("attempts", attempt)
        begin, end = entry.get("start_time"), entry.get("end_time")
        if _is_missing(begin) or _is_missing(end):
            continue
        seconds = _time(clock, place, "end_time", end) - _time(clock, place, "start_time", begin)
        if seconds < 0:
            raise place.error("end_time", f">= start_time ({begin})", end)
        duration_s += seconds
        gpus = sum(
            len(element.sequence("gpus", element.mapping("detail", machine).get("gpus")))
            for machine in element.sequence("detail", entry.get("detail"))
        )
    if duration_s == 0:
        return None
    return JobRow(
        element.text(job, "jobid"),
        _time(clock, place, "submitted_time", job.get("submitted_time")),
        duration_s,
        gpus,
        place.line,
        owner=element.text(job, "user"),
        entity=element.text(job, "vc"),
    )


def _is_missing(value: object) -> bool:
    return value is None or value in ("", "None")


def _time(clock: Clock, place: Place, field: str, value: object) -> float:
    if not isinstance(value, str):
        raise place.error(field, "a time such as 2017-10-09 07:01:55", value)
    return clock.seconds(field, value, place)
