"""Turns a history of jobs (when, how long, on how many GPUs) into a trace: durations become steps and rates.

The rule `table`, in the order of the file:
1. A job ran on the GPU type that its row states, else on the reference type. A type that the throughput table lacks
   gets the rates of the reference type.
2. Its job type is the one that the row states, if the table has it (case and punctuation do not count), else one that
   is drawn, uniform over the job types of the table with a rate on that GPU type.
3. Its rates are those of the job type on its number of GPUs. If the table lacks that number, they are those of the next
   smaller one, times GPUs / that number.
4. steps_total = duration x rate on the GPU type on which it ran, rounded, at least 1. If the row states the steps, they
   stay, and all rates are scaled so that the duration is as recorded.

The rule `seconds`: a step is a second on every GPU type, so that steps_total is the duration.

Jobs that ran for no time, or on no GPU, are left out and counted in the provenance.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.cluster import ClusterNode
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.model.throughput import ThroughputTable
from gavelpy.traces.fields import CsvTable, Place
from gavelpy.traces.formats import DurationRule, ReadOptions
from gavelpy.traces.source import TraceFile

Row = Mapping[str, str]
_NO_NAME = re.compile(r"[^a-z0-9]+")
_BATCH = re.compile(r"batchsize([0-9]+)$")
_NOT_IN_TYPES = re.compile(r"[^a-z0-9._-]+")


@dataclass(frozen=True)
class JobRow:
    """One job of a history. Times are in seconds on one clock."""

    id: str
    submitted_s: float
    duration_s: float  # that it ran, over all of its runs
    gpus: int
    line: int = 0  # of the file
    gpu_type: str = ""  # on which it ran
    job_type: str = ""
    owner: str = ""
    entity: str = ""
    steps: float = math.nan  # stated by the trace
    deadline_s: float = math.inf  # from submission
    cancelled_s: float = math.inf  # when its user cancelled it, on the clock of submitted_s
    gpu_types: tuple[str, ...] = ()  # on which it may run; empty = on all
    cpus_per_gpu: float = 0.0
    memory_gib_per_gpu: float = 0.0


@dataclass
class PastJobs:
    """Rows in the order of the file, and how many were left out for which reason."""

    file: str
    rows: list[JobRow] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: dict[str, Any] = field(default_factory=dict)  # of the reader, for the provenance

    def add(self, row: JobRow) -> None:
        """Adds a job, unless it ran for no time or on no GPU."""
        if row.gpus < 1:
            self.left_out["no GPU"] += 1
        elif not row.duration_s > 0:
            self.left_out["ran for no time"] += 1
        else:
            self.rows.append(row)


def cells_of(table: CsvTable, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[tuple[Place, Row]]:
    """The rows of a CSV as mappings; `columns` must be there, and no others than `optional`."""
    table.require(columns, optional)
    for place, cells in table.rows:
        yield place, dict(zip(table.header, cells, strict=True))


def gpu_type_named(text: str, known: Sequence[str] = ()) -> str:
    """The GPU type that a trace's text names: one of `known` if it contains one, else the text in lower case.

    >>> gpu_type_named("Tesla V100-SXM2-32GB", ("a10", "a100", "v100"))
    'v100'
    >>> gpu_type_named("G2", ("t4",))
    'g2'
    """
    lower = text.strip().lower()
    for name in sorted(known, key=len, reverse=True):
        if re.search(rf"(?<![a-z0-9]){re.escape(name.lower())}(?![0-9])", lower):
            return name
    return _NOT_IN_TYPES.sub("-", lower).strip("-._")


def known_types(options: ReadOptions) -> tuple[str, ...]:
    """GPU types of the throughput table, for `gpu_type_named`."""
    return _table(options).gpu_types


def trace_of(
    history: PastJobs, format: str, source: TraceFile, options: ReadOptions, *, nodes: Sequence[ClusterNode] = ()
) -> Trace:
    """The trace of a history: jobs in order of submission, the first at 0."""
    rows = history.rows
    if not rows:
        why = ", ".join(f"{count} {reason}" for reason, count in history.left_out.items()) or "no row"
        raise InvalidInput(f"file must have a job that ran on a GPU, got none ({why})", file=history.file)
    submitted_s = np.array([row.submitted_s for row in rows])
    start_s = float(submitted_s.min())
    rates, steps, job_types, facts = _rated(rows, options, [node.gpu_type for node in nodes])
    order = np.argsort(submitted_s, kind="stable").tolist()
    provenance = {
        "format": format,
        "file": Path(history.file).name,
        "sha256": source.sha256(),
        "starts_at_s": start_s,
        "durations": options.durations.value,
        **facts,
        **({"left_out": dict(history.left_out)} if history.left_out else {}),
        **history.notes,
    }
    return Trace(
        tuple(_spec(rows[i], steps[i], job_types[i], rates[i], history.file) for i in order),
        submitted_s[order] - start_s,
        Path(history.file).name.partition(".")[0],
        cancelled_s=np.array([max(rows[i].cancelled_s, rows[i].submitted_s) - start_s for i in order]),
        nodes=tuple(nodes),
        provenance=provenance,
    )


def _spec(row: JobRow, steps: float, job_type: str, rates: Mapping[str, float], file: str) -> JobSpec:
    try:
        return JobSpec(
            JobId(row.id),
            steps,
            gpus=row.gpus,
            job_type=job_type,
            rates_steps_per_s=rates,
            deadline_s=row.deadline_s,
            entity=row.entity,
            owner=row.owner,
            gpu_types=row.gpu_types,
            cpus_per_gpu=row.cpus_per_gpu,
            memory_gib_per_gpu=row.memory_gib_per_gpu,
        )
    except InvalidInput as error:
        raise error.located(file, row.line) from error


_Rated = tuple[list[Mapping[str, float]], list[float], list[str], dict[str, Any]]


def _rated(rows: Sequence[JobRow], options: ReadOptions, more_types: Sequence[str]) -> _Rated:
    """Rates, steps and job type of each row, and how they were found."""
    if options.durations is DurationRule.TABLE:
        return _Drawing(_table(options), options).rated(rows)
    stated = [row.gpu_type for row in rows if row.gpu_type]
    types = dict.fromkeys([*_table(options).gpu_types, *more_types, *stated])
    rates = dict.fromkeys(types, 1.0)
    steps = [row.duration_s if math.isnan(row.steps) else row.steps for row in rows]
    by_row: list[Mapping[str, float]] = [
        rates if math.isnan(row.steps) else dict.fromkeys(types, row.steps / row.duration_s) for row in rows
    ]
    return by_row, steps, [row.job_type for row in rows], {}


def _table(options: ReadOptions) -> ThroughputTable:
    from gavelpy.traces.workloads import published_throughputs

    return options.throughputs if options.throughputs is not None else published_throughputs()


class _Drawing:
    """The rule `table`."""

    def __init__(self, table: ThroughputTable, options: ReadOptions) -> None:
        if options.reference_gpu_type not in table.gpu_types:
            known = ", ".join(table.gpu_types)
            raise InvalidInput(f"reference_gpu_type must be one of {known}, got {options.reference_gpu_type!r}")
        self.table, self.options = table, options
        self.column = {name: i for i, name in enumerate(table.gpu_types)}
        self.gpus: Ints = np.array([gpus for _, gpus in table.keys], dtype=np.int64)
        self.names = [_NO_NAME.sub("", job_type.lower()) for job_type, _ in table.keys]
        self._found: dict[tuple[int, str, str], tuple[Ints, int, bool]] = {}
        self._rates: dict[tuple[int, int, str], dict[str, float]] = {}

    def rated(self, rows: Sequence[JobRow]) -> _Rated:
        """Rates, steps and job type of each row, and what was drawn."""
        position = np.random.default_rng(self.options.seed).random(len(rows)).tolist()
        rates: list[Mapping[str, float]] = []
        steps: list[float] = []
        job_types: list[str] = []
        drawn, scaled, others = 0, 0, Counter[str]()
        for row, at in zip(rows, position, strict=True):
            reference = row.gpu_type if row.gpu_type in self.column else self.options.reference_gpu_type
            keys, gang, is_stated = self._candidates(row.gpus, reference, row.job_type)
            key = int(keys[int(at * len(keys))])
            own = self._rates_of(key, row.gpus, row.gpu_type)
            drawn, scaled = drawn + (not is_stated), scaled + (gang != row.gpus)
            if row.gpu_type not in self.column:
                others[row.gpu_type or "not stated"] += 1
            rate = own[reference]
            if math.isnan(row.steps):
                steps.append(max(float(np.rint(row.duration_s * rate)), 1.0))
                rates.append(own)
            else:
                factor = row.steps / row.duration_s / rate
                steps.append(row.steps)
                rates.append({name: value * factor for name, value in own.items()})
            job_types.append(row.job_type or self.table.keys[key][0])
        facts = {
            "seed": self.options.seed,
            "reference_gpu_type": self.options.reference_gpu_type,
            "jobs": len(rows),
            "job_types_drawn": drawn,
            "gangs_scaled": scaled,
            "gpu_types_assumed": dict(others),
        }
        return rates, steps, job_types, facts

    def _candidates(self, gpus: int, reference: str, job_type: str) -> tuple[Ints, int, bool]:
        """Rows of the table to draw from, their number of GPUs, and whether they are of the stated job type."""
        asked = gpus, reference, job_type
        if asked not in self._found:
            runs = self.table.rate_steps_per_s[:, self.column[reference]] > 0
            stated = np.array([_is_same(job_type, name) for name in self.names], dtype=np.bool_)
            for mask, is_stated in ((runs & stated, True), (runs, False)):
                if len(sizes := self.gpus[mask & (self.gpus <= gpus)]):
                    gang = int(sizes.max())
                    self._found[asked] = np.flatnonzero(mask & (self.gpus == gang)), gang, is_stated
                    break
            else:
                allowed = f"a table with a job type that runs on {reference} on {gpus} GPUs or fewer"
                raise InvalidInput(f"throughputs must be {allowed}, got none")
        return self._found[asked]

    def _rates_of(self, key: int, gpus: int, gpu_type: str) -> dict[str, float]:
        asked = key, gpus, gpu_type
        if asked not in self._rates:
            scale = gpus / self.gpus.item(key)
            values: Floats = self.table.rate_steps_per_s[key] * scale
            found = {t: rate for t, rate in zip(self.table.gpu_types, values.tolist(), strict=True) if rate == rate}
            if gpu_type and gpu_type not in self.column:
                found[gpu_type] = found[self.options.reference_gpu_type]
            self._rates[asked] = found
        return self._rates[asked]


def _is_same(stated: str, name: str) -> bool:
    """Whether a name of the table, reduced to letters and digits, is that of a stated job type.

    A batch size counts only if both have one.
    """
    if not stated:
        return False
    asked = _NO_NAME.sub("", stated.lower())
    return (
        asked == name or _BATCH.sub("", asked) == name or (not _BATCH.search(asked) and asked == _BATCH.sub("", name))
    )
