"""The project's CSV formats: traces (one row per job) and throughput tables (one row per job type, GPUs and GPU type).

Traces: id, arrival_s, steps_total, then optionally gpus (1), weight (1), job_type, deadline_s (from submission; empty
= none), entity, command, working_directory, completion_value, cpus_per_gpu (0), memory_gib_per_gpu (0), and a column
`rate_<gpu type>` (steps/s of the whole job; 0 = cannot run there, empty = unknown) for each type. `owner` is a user,
`gpu_types` the types on which a job may run ("t4|v100"; empty = all), `cancelled_s` when its user cancels it (from
arrival; empty = never). `sizes` has all numbers of GPUs on which a job can run ("1,2,4", "1..8", gpus among them;
empty = only gpus), `rate_<gpu type>@<GPUs>` its rates there. `phases` has rates that change at given steps
("0:v100=1.5|k80=1;600:v100=4|k80=2"; empty = none); the columns of rates then have the means. `app` is the role of a
job in a search (`model.apps`), `metric_curve` what it reports by its steps (`model.metric_curve`).

Tables: job_type, gpus, gpu_type, rate_steps_per_s (empty = unknown), then optionally provenance (measured), source,
pair_job_type and pair_rate_steps_per_s: a row with a pair_job_type gives the rates of two jobs that share the GPUs.

Numbers survive a round trip exactly. Columns may be in any order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats
from gavelpy.model.job import GPUS_MAX, JobId, JobSpec, Trace
from gavelpy.model.job_phases import Phases, check_phases, parsed_phases, phases_text
from gavelpy.model.job_sizes import parsed_sizes
from gavelpy.model.metric_curve import MetricCurve
from gavelpy.model.throughput import Provenance, ThroughputTable
from gavelpy.traces.fields import CsvTable, Place, csv_table, csv_text, read_text, write_text
from gavelpy.traces.formats import ReadOptions
from gavelpy.traces.provenance import with_source
from gavelpy.traces.source import Head, TraceFile

TRACE_REQUIRED = ("id", "arrival_s", "steps_total")
_OWN_COLUMNS = frozenset({"id", "arrival_s", "steps_total"})
_TEXTS = ("command", "working_directory", "completion_value", "app")
_NEEDS = ("cpus_per_gpu", "memory_gib_per_gpu")
TRACE_OPTIONAL = (
    *("gpus", "sizes", "weight", "job_type", "deadline_s", "entity", "owner", "gpu_types", "cancelled_s"),
    "phases",
    "metric_curve",
    *_TEXTS,
    *_NEEDS,
)
RATE_PREFIX = "rate_"
TABLE_REQUIRED = ("job_type", "gpus", "gpu_type", "rate_steps_per_s")
TABLE_OPTIONAL = ("provenance", "source", "pair_job_type", "pair_rate_steps_per_s")
_WRITTEN = ("gpus", "weight", "job_type", "deadline_s", "entity")
_PROVENANCES = tuple(p.name.lower() for p in Provenance)
_Key = tuple[str, int]
_REQUESTED = -1  # number of GPUs of rates of the requested size


# Traces ---------------------------------------------------------------------------------------------------------


def read_csv_trace(path: str | Path) -> Trace:
    """The trace in `path`."""
    return parse_csv_trace(read_text(path), str(path))


class CsvReader:
    """Reads our CSV; the file is streamed."""

    name: ClassVar[str] = "csv"
    title: ClassVar[str] = "our CSV: id, arrival_s, steps_total and more, with a column of rates per GPU type"

    def matches(self, head: Head) -> bool:
        """Whether the header has one of the columns that only this format has."""
        return "\t" not in head.first_line and bool(head.columns & _OWN_COLUMNS)

    def read(self, path: Path, options: ReadOptions) -> Trace:  # noqa: ARG002  # its rates are in the file
        """The trace."""
        source = TraceFile(path)
        trace = trace_from_table(csv_table(source.lines(), source.file))
        provenance = {"format": self.name, "file": path.name, "sha256": source.sha256()}
        return replace(trace, provenance=with_source(provenance, path))


def parse_csv_trace(text: str, file: str = "") -> Trace:
    """The trace in `text`; `file` is for messages and the trace's name."""
    return trace_from_table(csv_table(text, file))


def trace_from_table(table: CsvTable) -> Trace:
    """The trace in rows of text cells."""
    table.require(TRACE_REQUIRED, TRACE_OPTIONAL, RATE_PREFIX)
    jobs: list[JobSpec] = []
    arrivals: list[float] = []
    cancelled_s: list[float] = []
    lines: dict[str, int] = {}
    phases: dict[JobId, Phases] = {}
    curves: dict[JobId, MetricCurve] = {}
    for place, cells in table.rows:
        cell = dict(zip(table.header, cells, strict=True))
        arrival_s = place.number("arrival_s", cell["arrival_s"])
        if arrivals and arrival_s < arrivals[-1]:
            raise place.error(
                "arrival_s", f">= the row before ({arrivals[-1]!r}), as jobs are in order of arrival", arrival_s
            )
        job = _job(cell, place)
        if job.id in lines:
            raise place.error("id", f"unique (line {lines[job.id]} has the same)", job.id)
        lines[job.id] = place.line
        arrivals.append(arrival_s)
        after = cell.get("cancelled_s", "").strip()
        cancelled_s.append(arrival_s + place.number("cancelled_s", after) if after else math.inf)
        if text := cell.get("phases", "").strip():
            phases[job.id] = _phases(text, job, place)
        if text := cell.get("metric_curve", "").strip():
            curves[job.id] = _curve(text, place)
        jobs.append(job)
    if not jobs:
        raise Place(table.file).error("file", "a header and at least one job", "no job")
    name, cancelled = Path(table.file).stem, np.array(cancelled_s)
    return Trace(tuple(jobs), np.array(arrivals), name, cancelled_s=cancelled, phases=phases, curves=curves)


def _curve(text: str, place: Place) -> MetricCurve:
    try:
        return MetricCurve.parse(text)
    except InvalidInput as error:
        raise error.located(place.file, place.line) from error


def _phases(text: str, job: JobSpec, place: Place) -> Phases:
    try:
        phases = parsed_phases(text)
        check_phases(job, phases)
    except InvalidInput as error:
        raise error.located(place.file, place.line) from error
    return phases


def _job(cell: Mapping[str, str], place: Place) -> JobSpec:
    deadline = cell.get("deadline_s", "").strip()
    weight = cell.get("weight", "").strip()
    rates = _rates(cell, place)
    try:
        return JobSpec(
            JobId(cell["id"]),
            place.number("steps_total", cell["steps_total"], positive=True),
            gpus=place.whole("gpus", cell.get("gpus", "") or "1", 1, GPUS_MAX),
            weight=place.number("weight", weight, positive=True) if weight else 1.0,
            job_type=cell.get("job_type", ""),
            rates_steps_per_s=rates.pop(_REQUESTED, {}),
            sizes=parsed_sizes(cell["sizes"].strip(), "sizes") if cell.get("sizes", "").strip() else (),
            rates_by_size=rates,
            deadline_s=(math.inf if deadline in ("", "inf") else place.number("deadline_s", deadline, positive=True)),
            entity=cell.get("entity", ""),
            owner=cell.get("owner", ""),
            gpu_types=tuple(filter(None, cell.get("gpu_types", "").split("|"))),
            command=cell.get("command", ""),
            working_directory=cell.get("working_directory", ""),
            cpus_per_gpu=_need("cpus_per_gpu", cell, place),
            memory_gib_per_gpu=_need("memory_gib_per_gpu", cell, place),
            completion_value=cell.get("completion_value", "").strip(),
            app=cell.get("app", "").strip(),
        )
    except InvalidInput as error:
        raise error.located(place.file, place.line) from error


def _rates(cell: Mapping[str, str], place: Place) -> dict[int, dict[str, float]]:
    """Rates by number of GPUs, or _REQUESTED, and GPU type. Only with a column of sizes, `@` has a meaning."""
    found: dict[int, dict[str, float]] = {}
    for column, text in cell.items():
        if column.startswith(RATE_PREFIX) and text.strip():
            name, _, size = column.removeprefix(RATE_PREFIX).rpartition("@") if "sizes" in cell else ("", "", "")
            is_sized = bool(name) and size.isdecimal()
            gpu_type = name if is_sized else column.removeprefix(RATE_PREFIX)
            found.setdefault(int(size) if is_sized else _REQUESTED, {})[gpu_type] = place.number(column, text)
    return found


def _need(name: str, cell: Mapping[str, str], place: Place) -> float:
    text = cell.get(name, "").strip()
    return place.number(name, text) if text else 0.0


def write_csv_trace(trace: Trace, path: str | Path) -> None:
    """Writes the trace; `read_csv_trace` returns the same jobs and times."""
    write_text(path, csv_text(*trace_cells(trace)))


def trace_cells(trace: Trace) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the trace; the columns after `entity`, except rates, only if some job has them."""
    gpu_types = list(dict.fromkeys(t for job in trace.jobs for t in job.rates_steps_per_s))
    extra = [name for name in _TEXTS if any(getattr(job, name) for job in trace.jobs)]
    needs = [name for name in _NEEDS if any(getattr(job, name) for job in trace.jobs)]
    owner = ["owner"] if any(job.owner for job in trace.jobs) else []
    limited = ["gpu_types"] if any(job.gpu_types for job in trace.jobs) else []
    cancelled = ["cancelled_s"] if np.isfinite(trace.cancelled_s).any() else []
    by_size = dict.fromkeys((t, size) for job in trace.jobs for size, by in job.rates_by_size.items() for t in by)
    phased = ["phases"] if trace.phases else []
    metered = ["metric_curve"] if trace.curves else []
    sizes = ["sizes"] if any(job.sizes for job in trace.jobs) else []
    rates = [*(f"{RATE_PREFIX}{t}" for t in gpu_types), *(f"{RATE_PREFIX}{t}@{size}" for t, size in by_size)]
    header = [
        *TRACE_REQUIRED,
        *_WRITTEN,
        *owner,
        *limited,
        *cancelled,
        *phased,
        *metered,
        *extra,
        *needs,
        *sizes,
        *rates,
    ]
    rows = [
        [
            job.id,
            repr(arrival_s),
            _float_text(job.steps_total),
            str(job.gpus),
            _float_text(job.weight),
            job.job_type,
            "" if math.isinf(job.deadline_s) else _float_text(job.deadline_s),
            job.entity,
            *(job.owner for _ in owner),
            *("|".join(job.gpu_types) for _ in limited),
            *("" if math.isinf(cancelled_s) else repr(cancelled_s - arrival_s) for _ in cancelled),
            *(phases_text(trace.phases.get(job.id, ())) for _ in phased),
            *(trace.curves[job.id].text if job.id in trace.curves else "" for _ in metered),
            *(getattr(job, name) for name in extra),
            *(_float_text(getattr(job, name)) for name in needs),
            *(",".join(map(str, job.sizes)) for _ in sizes),
            *(_float_text(job.rates_steps_per_s.get(t, math.nan)) for t in gpu_types),
            *(_float_text(job.rates_by_size.get(size, {}).get(t, math.nan)) for t, size in by_size),
        ]
        for job, arrival_s, cancelled_s in zip(
            trace.jobs, trace.arrival_s.tolist(), trace.cancelled_s.tolist(), strict=True
        )
    ]
    return header, rows


# Throughput tables ----------------------------------------------------------------------------------------------


def read_csv_throughputs(path: str | Path) -> ThroughputTable:
    """The table in `path`."""
    return parse_csv_throughputs(read_text(path), str(path))


def parse_csv_throughputs(text: str, file: str = "") -> ThroughputTable:
    """The table in `text`; `file` is for messages."""
    return throughputs_from_table(csv_table(text, file))


def throughput_lines(path: str | Path) -> dict[tuple[tuple[str, int], str, str], int]:
    """Line of each entry of a CSV, by key, GPU type and partner ("" = a rate alone); empty for other formats."""
    text = read_text(path)
    if text.lstrip().startswith("{"):
        return {}
    table = csv_table(text, str(path))
    lines: dict[tuple[tuple[str, int], str, str], int] = {}
    for place, cells in table.rows:
        cell = dict(zip(table.header, cells, strict=True))
        gpus, partner = place.whole("gpus", cell["gpus"], 1, GPUS_MAX), cell.get("pair_job_type", "")
        lines[(cell["job_type"], gpus), cell["gpu_type"], partner] = place.line
        if partner:
            lines[(partner, gpus), cell["gpu_type"], cell["job_type"]] = place.line
    return lines


@dataclass
class _Found:
    """Entries in the order of the file."""

    rates: dict[tuple[_Key, str], tuple[float, int]] = field(default_factory=dict)
    sources: dict[_Key, dict[str, None]] = field(default_factory=dict)
    pairs: dict[tuple[_Key, _Key, str], tuple[Place, float, float]] = field(default_factory=dict)


def throughputs_from_table(table: CsvTable) -> ThroughputTable:
    """The table in rows of text cells; a key's source joins the distinct sources of its rows."""
    table.require(TABLE_REQUIRED, TABLE_OPTIONAL)
    found = _Found()
    for place, cells in table.rows:
        _read_entry(dict(zip(table.header, cells, strict=True)), place, found)
    if not found.rates:
        raise Place(table.file).error("file", "a header and at least one rate", "no rate")
    keys = tuple(found.sources)
    gpu_types = tuple(dict.fromkeys([*(t for _, t in found.rates), *(t for _, _, t in found.pairs)]))
    row, column = ({name: i for i, name in enumerate(names)} for names in (keys, gpu_types))
    rates: Floats = np.full((len(keys), len(gpu_types)), math.nan)
    kinds = np.full(rates.shape, int(Provenance.MEASURED), dtype=np.int64)
    for (key, gpu_type), (rate, kind) in found.rates.items():
        rates[row[key], column[gpu_type]] = rate
        kinds[row[key], column[gpu_type]] = kind
    index: dict[tuple[int, int], int] = {}
    for (first, second, _), (place, _, _) in found.pairs.items():
        for key in (first, second):
            if key not in row:
                raise place.error("pair_job_type", "of jobs that have a row of their own", key)
        index.setdefault((row[first], row[second]), len(index))
    pair_rates: Floats = np.full((len(index), 2, len(gpu_types)), math.nan)
    for (first, second, gpu_type), (_, a, b) in found.pairs.items():
        pair_rates[index[row[first], row[second]], :, column[gpu_type]] = a, b
    sources = tuple("; ".join(filter(None, found.sources[key])) for key in keys)
    pair_rows = np.array(list(index), dtype=np.int64).reshape(-1, 2)
    return ThroughputTable(keys, gpu_types, rates, kinds, sources, pair_rows, pair_rates)


def _read_entry(cell: Mapping[str, str], place: Place, found: _Found) -> None:
    gpus = place.whole("gpus", cell["gpus"], 1, GPUS_MAX)
    key, gpu_type = (cell["job_type"], gpus), cell["gpu_type"]
    for name in ("job_type", "gpu_type"):
        if not cell[name]:
            raise place.error(name, "a name", "")
    rate = _rate("rate_steps_per_s", cell, place)
    if cell.get("pair_job_type"):
        pair = (key, (cell["pair_job_type"], gpus), gpu_type)
        if pair in found.pairs:
            raise place.error("pair_job_type", f"given once for {key} on {gpu_type}", cell["pair_job_type"])
        found.pairs[pair] = place, rate, _rate("pair_rate_steps_per_s", cell, place)
        return
    if (key, gpu_type) in found.rates:
        raise place.error("gpu_type", f"given once for job type {key[0]!r} on {gpus} GPUs", gpu_type)
    kind = place.choice("provenance", cell.get("provenance", "").strip() or "measured", _PROVENANCES)
    found.rates[key, gpu_type] = rate, int(Provenance[kind.upper()])
    found.sources.setdefault(key, {}).setdefault(cell.get("source", ""))


def _rate(name: str, cell: Mapping[str, str], place: Place) -> float:
    text = cell.get(name, "").strip()
    return place.number(name, text) if text else math.nan


def write_csv_throughputs(table: ThroughputTable, path: str | Path) -> None:
    """Writes the table; `read_csv_throughputs` returns the same keys, types, rates, provenances and pairs."""
    write_text(path, csv_text(*throughput_cells(table)))


def throughput_cells(table: ThroughputTable) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table, unknown rates as empty cells; pair columns only if there are pairs."""
    has_pairs = len(table.pair_rows) > 0
    header = [*TABLE_REQUIRED, *(TABLE_OPTIONAL if has_pairs else TABLE_OPTIONAL[:2])]
    rows: list[list[str]] = []
    entries = zip(table.keys, table.rate_steps_per_s, table.provenance, table.source, strict=True)
    for (job_type, gpus), rates, kinds, source in entries:
        for gpu_type, rate, kind in zip(table.gpu_types, rates.tolist(), kinds.tolist(), strict=True):
            cells = [job_type, str(gpus), gpu_type, _float_text(rate), _PROVENANCES[kind], source]
            rows.append([*cells, "", ""] if has_pairs else cells)
    for (first, second), pair_rates in zip(table.pair_rows.tolist(), table.pair_rate_steps_per_s, strict=True):
        job_type, gpus = table.keys[first]
        for gpu_type, a, b in zip(table.gpu_types, *_lists(pair_rates), strict=True):
            rows.append([job_type, str(gpus), gpu_type, _float_text(a), "", "", table.keys[second][0], _float_text(b)])
    return header, rows


def _lists(rates: Floats) -> Sequence[list[float]]:
    return [row.tolist() for row in rates]


def _float_text(value: float) -> str:
    return "" if math.isnan(value) else repr(float(value))
