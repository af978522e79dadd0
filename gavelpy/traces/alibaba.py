"""Alibaba's GPU traces as jobs: PAI 2020 (`pai`), openb 2023 (`openb`), spot GPUs 2026 (`alibaba_spot`).

All of them lend parts of a GPU; a job here holds whole ones, so that a part counts as a whole GPU. How many were
rounded up is in the provenance (`gpus_rounded_up`). Seconds count from an origin that the publishers chose.

`pai`: `pai_task_table.csv` alone or in a directory with `pai_job_table.csv`, with or without a line of column names. A
job holds the GPUs of all of its tasks (instances x plan_gpu / 100) from the first start of a task with GPUs to the last
end. Its GPU type is that of the task with most GPUs. With the job table: user (→ owner) and the submission.

`openb`: a pod list alone, or a directory with one node list and one pod list (`openb_node_list_*`, `openb_pod_list_*`).
A pod ran from scheduled_time to deletion_time; gpu_spec limits its GPU types; qos is the entity.

`alibaba_spot`: `job_info_df.csv` alone or in a directory with `node_info_df.csv`. A job holds gpu_request x worker_num
GPUs of gpu_model; organization is the entity. High priority and spot are not distinguished.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import ClassVar

from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import ClusterNode
from gavelpy.model.job import GPUS_MAX, NodeId, Trace
from gavelpy.traces.durations import JobRow, PastJobs, Row, cells_of, gpu_type_named, known_types, trace_of
from gavelpy.traces.fields import Place, csv_table
from gavelpy.traces.formats import ReadOptions
from gavelpy.traces.openb import NODE_COLUMNS, POD_COLUMNS, POD_OPTIONAL
from gavelpy.traces.source import Head, TraceFile, head_of

_TASKS = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
_JOBS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
_STATUS = ("Terminated", "Failed", "Running", "Waiting")
_SPOT_JOBS = (
    *("job_name", "organization", "gpu_model", "cpu_request", "gpu_request"),
    *("worker_num", "submit_time", "duration", "job_type"),
)
_SPOT_NODES = ("node_name", "gpu_model", "gpu_capacity_num", "cpu_num")
_INDEX = ("", "Unnamed: 0")  # columns that pandas writes


class OpenbReader:
    """Reads the pods, with the nodes if they are there."""

    name: ClassVar[str] = "openb"
    title: ClassVar[str] = "Alibaba 2023 (openb): a pod list, or a directory with a node list and a pod list"

    def matches(self, head: Head) -> bool:
        """Whether the header is that of a pod list, or the directory has both lists."""
        return set(POD_COLUMNS) <= head.columns or bool(_named(head, "openb_pod_list") and _named(head, "openb_node_"))

    def read(self, path: Path, options: ReadOptions) -> Trace:
        """The trace."""
        known = known_types(options)
        head = head_of(path)
        pods = TraceFile(path / _one(head, "openb_pod_list") if head.names else path)
        nodes = _openb_nodes(path / _one(head, "openb_node_"), known) if head.names else []
        history = PastJobs(pods.file)
        columns = (*POD_COLUMNS, *POD_OPTIONAL)
        for place, cell in cells_of(csv_table(pods.lines(), pods.file), columns):
            _add_pod(cell, place, history, known)
        return trace_of(history, self.name, pods, options, nodes=nodes)


def _add_pod(cell: Row, place: Place, history: PastJobs, known: Sequence[str]) -> None:
    gpus = place.whole("num_gpu", cell["num_gpu"], 0, GPUS_MAX)
    milli = place.whole("gpu_milli", cell["gpu_milli"] or "0", 0, 1000)
    if not cell["scheduled_time"]:
        history.left_out["never started"] += 1
        return
    begun_s = place.number("scheduled_time", cell["scheduled_time"])
    seconds = place.number("deletion_time", cell["deletion_time"]) - begun_s
    if seconds < 0:
        raise place.error("deletion_time", f">= scheduled_time ({begun_s:g})", cell["deletion_time"])
    _count_part(history, gpus == 1 and milli < 1000)
    types = tuple(dict.fromkeys(gpu_type_named(name, known) for name in cell["gpu_spec"].split("|") if name))
    at_s = place.number("creation_time", cell["creation_time"])
    name = cell["name"]
    gpu_type = types[0] if len(types) == 1 else ""
    history.add(JobRow(name, at_s, seconds, gpus, place.line, gpu_type=gpu_type, entity=cell["qos"], gpu_types=types))


def _openb_nodes(path: Path, known: Sequence[str]) -> list[ClusterNode]:
    source = TraceFile(path)
    found: list[ClusterNode] = []
    for place, cell in cells_of(csv_table(source.lines(), source.file), NODE_COLUMNS):
        gpus = place.whole("gpu", cell["gpu"], 0, GPUS_MAX)
        if gpus:
            gpu_type = gpu_type_named(cell["model"], known)
            if not gpu_type:
                raise place.error("model", "the model of the node's GPUs", cell["model"])
            found.append(ClusterNode(NodeId(cell["sn"]), gpu_type, gpus))
    return found


class PaiReader:
    """Reads the task table, with the job table if it is there."""

    name: ClassVar[str] = "pai"
    title: ClassVar[str] = "Alibaba PAI 2020: pai_task_table.csv, or a directory with it and pai_job_table.csv"

    def matches(self, head: Head) -> bool:
        """Whether the file has the columns of the task table, or the directory has that table."""
        cells = head.first_line.split(",")
        is_table = len(cells) == len(_TASKS) and (cells[3] in _STATUS or tuple(cells) == _TASKS)
        return is_table or bool(_named(head, "pai_task_table.csv"))

    def read(self, path: Path, options: ReadOptions) -> Trace:
        """The trace."""
        head = head_of(path)
        tasks = TraceFile(path / _one(head, "pai_task_table.csv") if head.names else path)
        history = PastJobs(tasks.file)
        jobs: dict[str, _PaiJob] = {}
        for place, cell in _table(tasks, _TASKS):
            _add_task(cell, place, jobs, history)
        has_jobs = bool(_named(head, "pai_job_table.csv"))
        users = _pai_users(path / _one(head, "pai_job_table.csv"), jobs) if has_jobs else {}
        known = known_types(options)
        for name, job in jobs.items():
            owner, submitted_s = users.get(name, ("", job.start_s))
            _count_part(history, not float(job.gpus).is_integer())
            gpu_type = gpu_type_named(job.gpu_type, known)
            seconds, gpus = job.end_s - job.start_s, math.ceil(job.gpus)
            history.add(JobRow(name, submitted_s, seconds, gpus, job.line, gpu_type=gpu_type, owner=owner))
        return trace_of(history, self.name, tasks, options)


@dataclass
class _PaiJob:
    line: int
    gpus: float = 0.0
    start_s: float = math.inf
    end_s: float = -math.inf
    gpu_type: str = ""
    most: float = field(default=0.0, repr=False)  # GPUs of the task that gives the type


def _add_task(cell: Row, place: Place, jobs: dict[str, _PaiJob], history: PastJobs) -> None:
    status = place.choice("status", cell["status"], _STATUS)
    instances = place.number("inst_num", cell["inst_num"] or "0")
    gpus = instances * place.number("plan_gpu", cell["plan_gpu"] or "0") / 100
    if not gpus:
        history.left_out["tasks without GPU"] += 1
    elif status in ("Waiting", "Running") or not cell["start_time"] or not cell["end_time"]:
        history.left_out["tasks that did not end"] += 1
    else:
        begun_s, ended_s = (place.number(name, cell[name]) for name in ("start_time", "end_time"))
        if ended_s < begun_s:
            raise place.error("end_time", f">= start_time ({begun_s:g})", cell["end_time"])
        job = jobs.setdefault(cell["job_name"], _PaiJob(place.line))
        job.gpus += gpus
        job.start_s, job.end_s = min(job.start_s, begun_s), max(job.end_s, ended_s)
        if gpus > job.most:
            job.most, job.gpu_type = gpus, cell["gpu_type"]


def _pai_users(path: Path, jobs: dict[str, _PaiJob]) -> dict[str, tuple[str, float]]:
    """User and submission of the jobs that have tasks with GPUs."""
    found: dict[str, tuple[str, float]] = {}
    for place, cell in _table(TraceFile(path), _JOBS):
        if (job := jobs.get(cell["job_name"])) is not None:
            at_s = place.number("start_time", cell["start_time"]) if cell["start_time"] else job.start_s
            found[cell["job_name"]] = cell["user"], min(at_s, job.start_s)
    return found


class AlibabaSpotReader:
    """Reads the jobs, with the nodes if they are there."""

    name: ClassVar[str] = "alibaba_spot"
    title: ClassVar[str] = "Alibaba 2026, spot GPUs: job_info_df.csv, or a directory with it and node_info_df.csv"

    def matches(self, head: Head) -> bool:
        """Whether the header is that of the jobs, or the directory has them."""
        return set(_SPOT_JOBS) <= head.columns or bool(_named(head, "job_info_df.csv"))

    def read(self, path: Path, options: ReadOptions) -> Trace:
        """The trace."""
        known, head = known_types(options), head_of(path)
        source = TraceFile(path / _one(head, "job_info_df.csv") if head.names else path)
        history = PastJobs(source.file)
        for place, cell in cells_of(csv_table(source.lines(), source.file), _SPOT_JOBS, _INDEX):
            place.choice("job_type", cell["job_type"], ("HP", "Spot"))
            workers = place.whole("worker_num", cell["worker_num"], 0, GPUS_MAX)
            each = place.number("gpu_request", cell["gpu_request"])
            gpus = math.ceil(each) * workers
            if gpus > GPUS_MAX:
                raise place.error("gpu_request", f"at most {GPUS_MAX} GPUs of all workers", gpus)
            _count_part(history, each != math.ceil(each))
            at_s, seconds = (place.number(name, cell[name]) for name in ("submit_time", "duration"))
            gpu_type = gpu_type_named(cell["gpu_model"], known)
            name, team = cell["job_name"], cell["organization"]
            history.add(JobRow(name, at_s, seconds, gpus, place.line, gpu_type=gpu_type, entity=team))
        nodes = _spot_nodes(path / "node_info_df.csv", known) if _named(head, "node_info_df.csv") else []
        return trace_of(history, self.name, source, options, nodes=nodes)


def _spot_nodes(path: Path, known: Sequence[str]) -> list[ClusterNode]:
    source = TraceFile(path)
    found: list[ClusterNode] = []
    for place, cell in cells_of(csv_table(source.lines(), source.file), _SPOT_NODES, _INDEX):
        gpus = place.whole("gpu_capacity_num", cell["gpu_capacity_num"], 0, GPUS_MAX)
        if gpus:
            gpu_type = gpu_type_named(cell["gpu_model"], known)
            found.append(ClusterNode(NodeId(f"node-{cell['node_name']}-{gpu_type}"), gpu_type, gpus))
    return found


def _table(source: TraceFile, columns: Sequence[str]) -> Iterator[tuple[Place, Row]]:
    """The rows of a table, which may lack its line of column names."""
    lines = source.lines()
    first = next(lines, "")
    has_names = first.startswith(f"{columns[0]},")
    return cells_of(csv_table(chain([first], lines), source.file, header=() if has_names else columns), columns)


def _count_part(history: PastJobs, is_part: bool) -> None:
    if is_part:
        history.notes["gpus_rounded_up"] = history.notes.get("gpus_rounded_up", 0) + 1


def _named(head: Head, prefix: str) -> list[str]:
    return [name for name in head.names if name.startswith(prefix)]


def _one(head: Head, prefix: str) -> str:
    found = _named(head, prefix)
    if len(found) != 1:
        file = str(head.path)
        raise InvalidInput(f"directory must have one file {prefix}*, got {', '.join(found) or 'none'}", file=file)
    return found[0]
