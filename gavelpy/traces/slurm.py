"""Slurm's accounting: the output of `sacct -P` (or `-p`), whatever its columns, of one cluster.

    sacct --allusers --parsable2 --duplicates --starttime 2024-01-01 \\
          --format=JobID,User,Account,State,Submit,Start,End,ElapsedRaw,AllocTRES,ReqTRES

Needed: JobID (or JobIDRaw), State, Submit, AllocTRES (or AllocGRES), and ElapsedRaw, Elapsed, or Start and End. Used if
there: User (→ owner), Account (→ entity), ReqTRES, Timelimit, End. Other columns are ignored.

- Lines of steps (`12.batch`, `12.0`) are skipped. Each task of an array (`12_3`) and each part of a heterogeneous job
  (`12+1`) is a job. A line of tasks that did not start (`12_[1,3-5%2]`) counts as its tasks; where Slurm has cut their
  list (`...`), as those that it names, and `arrays_cut` of the provenance counts such lines. Lines of tasks that were
  cancelled while they waited name at most 1,000,000 tasks in a file, because each needs 2 KiB of memory.
- A job that was requeued has a line for each run (with --duplicates): its durations add up, from its first submission.
- GPUs are `gres/gpu=N`; their type is that of `gres/gpu:TYPE=N`. Jobs without GPUs, with GPUs of several types, still
  waiting or still running are left out and counted.
- A job that was cancelled before it started counts as one of the median duration of the jobs on as many GPUs, cancelled
  at its End. It takes its place in the queue until then.
- Times are those of the machine that ran sacct, without a zone: give `--time-zone`. Durations come from Elapsed, which
  no change of the clocks affects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import ClassVar

from gavelpy.model.job import GPUS_MAX, Trace
from gavelpy.traces.durations import JobRow, PastJobs, gpu_type_named, known_types, trace_of
from gavelpy.traces.fields import Place
from gavelpy.traces.formats import ReadOptions
from gavelpy.traces.source import Head, TraceFile
from gavelpy.traces.times import Clock, duration_s

_AGAIN = ("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL")  # another run may follow
_OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE", "REVOKED", "LAUNCH_FAILED")
_LIVING = (
    *("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED"),
    *("RESV_DEL_HOLD", "SPECIAL_EXIT", "POWER_UP_NODE", "RECONFIG_FAIL"),
)
_STATES = (*_OVER, *_AGAIN, *_LIVING)
_NEVER = ("", "None", "Unknown", "N/A", "NONE")
_ID = re.compile(r"[0-9]+(?:_(?:[0-9]+|\[[0-9][0-9,:.%-]*\]))?(?:\+[0-9]+)?")
_TASKS = re.compile(r"([0-9]+)_\[([0-9,:-]+)(?P<cut>\.\.\.)?(?:%[0-9]+)?\]")
_SPAN = re.compile(r"(?P<low>[0-9]{1,9})(?:-(?P<high>[0-9]{1,9})(?::(?P<step>[1-9][0-9]{0,8}))?)?")
_TASKS_MAX = 4_000_001  # the highest MaxArraySize of Slurm
_TASKS_OF_FILE_MAX = 1_000_000  # jobs from lines of several tasks
_GPU = re.compile(r"(?:gres/)?gpu(?::(?P<type>[^=:]+))?[=:](?P<count>[0-9]{1,9})")


@dataclass(frozen=True)
class _Run:
    """One line of a job."""

    row: JobRow
    state: str
    ended_s: float  # NaN-free: 0 if it has not ended


class SlurmReader:
    """Reads `sacct -P`."""

    name: ClassVar[str] = "slurm"
    title: ClassVar[str] = "Slurm: the output of sacct -P with JobID, State, Submit, ElapsedRaw, AllocTRES and more"

    def matches(self, head: Head) -> bool:
        """Whether the first line is a header of sacct."""
        columns = set(head.first_line.split("|"))
        return "State" in columns and bool(columns & {"JobID", "JobIDRaw"})

    def read(self, path: Path, options: ReadOptions) -> Trace:
        """The trace."""
        source = TraceFile(path)
        history = PastJobs(source.file)
        history.notes["time_zone"] = options.time_zone
        runs: dict[str, list[_Run]] = {}
        clock = Clock(options.time_zone)
        known = known_types(options)
        named = 0
        for place, cell in _cells(source):
            run = _run(cell, place, clock, history, known)
            if run is None:
                continue
            if tasks := _tasks(run.row.id, place, history):
                named += sum(map(len, tasks))
                if named > _TASKS_OF_FILE_MAX:
                    allowed = f"one of at most {_TASKS_OF_FILE_MAX:,} tasks, with those of the lines above"
                    raise place.error("JobID", allowed, f"{named:,} with {run.row.id}")
            for id in _ids(run.row.id, tasks):
                runs.setdefault(id, []).append(replace(run, row=replace(run.row, id=id)))
        waiting: list[JobRow] = []
        for job in (job for several in runs.values() for job in _jobs(several)):
            _add(job, history, waiting)
        _add_waiting(waiting, history)
        return trace_of(history, self.name, source, options)


def _cells(source: TraceFile) -> Iterator[tuple[Place, Mapping[str, str]]]:
    header: Sequence[str] = ()
    for line in source.lines():
        place = Place(source.file, source.line)
        cells = line.rstrip("\r\n").split("|")
        if not header:
            header = cells
            _check(header, place)
        elif len(cells) == len(header):
            yield place, dict(zip(header, cells, strict=True))
        elif line.strip():
            allowed = f"{len(header)} cells as in the header (leave out columns such as JobName, which may contain '|')"
            raise place.error("line", allowed, f"{len(cells)} cells")


def _check(header: Sequence[str], place: Place) -> None:
    for choices in (("JobID", "JobIDRaw"), ("State",), ("Submit",), ("AllocTRES", "AllocGRES"), _ELAPSED):
        if not any(name in header for name in choices):
            raise place.error("header", f"one with the column {' or '.join(choices)}", "|".join(header))
    if not {"ElapsedRaw", "Elapsed", "End"} & set(header):
        raise place.error("header", "one with the column ElapsedRaw or Elapsed, or Start and End", "|".join(header))


_ELAPSED = ("ElapsedRaw", "Elapsed", "Start")


def _run(cell: Mapping[str, str], place: Place, clock: Clock, history: PastJobs, known: Sequence[str]) -> _Run | None:
    """The run in a line; None if it is left out."""
    id = cell.get("JobID") or cell.get("JobIDRaw", "")
    if "." in id.rpartition("]")[2]:  # after the tasks, whose list may have dots
        return None  # a step
    if not _ID.fullmatch(id):
        raise place.error("JobID", "one such as 12, 12_3 or 12+1", id)
    state = place.choice("State", cell["State"].split(" ")[0].rstrip("+"), _STATES)
    allocated = _gpus("AllocTRES" if "AllocTRES" in cell else "AllocGRES", cell, place)
    gpus = allocated or _gpus("ReqTRES", cell, place)
    if state in _LIVING:
        history.left_out["waiting or running"] += sum(map(len, _tasks(id, place, history))) or 1
        return None
    if len(gpus) > 1:
        history.left_out["GPUs of several types"] += 1
        return None
    gpu_type, count = next(iter(gpus.items()), ("", 0))
    if count > GPUS_MAX:
        raise place.error("AllocTRES", f"at most {GPUS_MAX} GPUs", count)
    submitted_s = clock.seconds("Submit", cell["Submit"], place)
    ended = cell.get("End", "")
    row = JobRow(
        id,
        submitted_s,
        _elapsed_s(cell, place, clock),
        count,
        place.line,
        gpu_type=gpu_type_named(gpu_type, known) if gpu_type else "",
        owner=cell.get("User", ""),
        entity=cell.get("Account", ""),
    )
    return _Run(row, state, 0.0 if ended in _NEVER else clock.seconds("End", ended, place))


def _tasks(id: str, place: Place, history: PastJobs) -> list[range]:
    """The numbers of the tasks that a line names; none if it is of one job."""
    match = _TASKS.fullmatch(id)
    if match is None:
        return []
    if match["cut"]:
        history.notes["arrays_cut"] = history.notes.get("arrays_cut", 0) + 1
    found: list[range] = []
    room = _TASKS_MAX
    for part in filter(None, match[2].split(",")):
        span = _SPAN.fullmatch(part)
        low = int(span["low"]) if span else 0
        tasks = range(low, int(span["high"] or low) + 1, int(span["step"] or 1)) if span else range(0)
        if not 0 < len(tasks) <= room:
            raise place.error("JobID", f"one such as 12_[1,3-5%2], of at most {_TASKS_MAX} tasks", id)
        room -= len(tasks)
        found.append(tasks)
    return found


def _ids(id: str, tasks: Sequence[range]) -> Iterator[str]:
    """The ids of the jobs in a line: the id, or those of its tasks."""
    array = id.partition("_")[0]
    return (f"{array}_{task}" for each in tasks for task in each) if tasks else iter([id])


def _elapsed_s(cell: Mapping[str, str], place: Place, clock: Clock) -> float:
    if "ElapsedRaw" in cell:
        return place.number("ElapsedRaw", cell["ElapsedRaw"])
    if "Elapsed" in cell:
        return duration_s("Elapsed", cell["Elapsed"], place)
    if cell["Start"] in _NEVER or cell["End"] in _NEVER:
        return 0.0
    seconds = clock.seconds("End", cell["End"], place) - clock.seconds("Start", cell["Start"], place)
    if seconds < 0:
        raise place.error("End", f">= Start ({cell['Start']})", cell["End"])
    return seconds


def _gpus(column: str, cell: Mapping[str, str], place: Place) -> dict[str, int]:
    """GPUs by type; "" if none is stated."""
    untyped, typed = 0, dict[str, int]()
    for part in cell.get(column, "").split(","):
        name = part.strip()
        if not name.startswith(("gres/gpu", "gpu")) or name.startswith(("gres/gpumem", "gres/gpuutil")):
            continue
        match = _GPU.fullmatch(name)
        if match is None:
            raise place.error(column, "GPUs as gres/gpu=2 or gres/gpu:v100=2", name)
        if match["type"]:
            typed[match["type"]] = typed.get(match["type"], 0) + int(match["count"])
        else:
            untyped = int(match["count"])
    return typed or ({"": untyped} if untyped else {})


def _jobs(runs: Sequence[_Run]) -> list[list[_Run]]:
    """The runs of one id, by job: one that is over is followed by another job, whose id is used again."""
    jobs: list[list[_Run]] = [[]]
    for run in sorted(runs, key=lambda one: one.row.submitted_s):
        if jobs[-1] and jobs[-1][-1].state not in _AGAIN:
            jobs.append([])
        jobs[-1].append(run)
    first = runs[0].row.id
    return [
        [replace(run, row=replace(run.row, id=first if i == 0 else f"{first}@{i + 1}")) for run in job]
        for i, job in enumerate(jobs)
    ]


def _add(runs: Sequence[_Run], history: PastJobs, waiting: list[JobRow]) -> None:
    """Adds one job; one that was cancelled before it started is put aside in `waiting`."""
    ran = [run.row for run in runs if run.row.duration_s > 0]
    last = runs[-1]
    if len(runs) > 1:
        history.notes["requeued"] = history.notes.get("requeued", 0) + 1
    if ran or last.state != "CANCELLED" or not last.row.gpus or last.ended_s < last.row.submitted_s:
        row = ran[-1] if ran else last.row
        duration = sum(one.duration_s for one in ran)
        history.add(replace(row, submitted_s=runs[0].row.submitted_s, duration_s=duration))
    else:
        waiting.append(replace(last.row, submitted_s=runs[0].row.submitted_s, cancelled_s=last.ended_s))


def _add_waiting(waiting: Sequence[JobRow], history: PastJobs) -> None:
    by_gpus: dict[int, list[float]] = {}
    for row in history.rows:
        by_gpus.setdefault(row.gpus, []).append(row.duration_s)
    for row in waiting:
        if row.gpus in by_gpus:
            history.add(replace(row, duration_s=median(by_gpus[row.gpus])))
        else:
            history.left_out["cancelled while it waited, and no job on as many GPUs ran"] += 1
    if waiting:
        history.notes["cancelled_while_waiting"] = len(waiting)
