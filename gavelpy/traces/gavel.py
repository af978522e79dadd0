"""The original Gavel's file formats: traces, and throughputs in JSON.

A trace has TAB-separated columns, no header, one job per line, ids = line numbers from 0.

    10 columns   job_type command working_directory num_steps_arg needs_data_dir total_steps scale_factor
                 priority_weight SLO arrival_time
     7 columns   job_type command num_steps_arg needs_data_dir total_steps arrival_time scale_factor   (older)
    12 columns   the ten, with `mode` after scale_factor and `duration` before arrival_time            (Shockwave)

The number of columns in the first line determines the variant. `scale_factor` becomes `gpus`. `SLO` is a multiple of
the job's duration, < 0 for none; the deadline is SLO x duration, where duration is the `duration` column if present,
else total_steps / rate on the reference type (v100, as in the original's generator; without v100 the fastest known
type). `num_steps_arg` becomes part of the command, as `... --steps {steps}`. `needs_data_dir` means that the command
contains a `%s` for the data directory; the writer derives it from the command.

Throughputs: `{gpu type: {"('model', gpus)": {"null": alone, "('model2', gpus)": [first, second]}}}` in steps/s of the
whole job on that many GPUs; 0 = does not fit there. Types that end in `_unconsolidated` (the GPUs of a gang are on
different nodes) are left out by default. If a file has a pair in both orders, the first counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats
from gavelpy.model.job import GPUS_MAX, JobId, JobSpec, Trace
from gavelpy.model.job_phases import Phases, mean_rates
from gavelpy.model.throughput import Provenance, ThroughputTable
from gavelpy.traces.fields import EXACT_MAX, JsonText, Place, parse_json, read_text, write_text
from gavelpy.traces.formats import ReadOptions
from gavelpy.traces.provenance import with_source
from gavelpy.traces.shockwave import phases_of
from gavelpy.traces.source import Head, TraceFile

REFERENCE_GPU_TYPE = "v100"
_TEN = (
    "job_type",
    "command",
    "working_directory",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "scale_factor",
    "priority_weight",
    "SLO",
    "arrival_time",
)
_SEVEN = (
    "job_type",
    "command",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "arrival_time",
    "scale_factor",
)
_TWELVE = (*_TEN[:7], "mode", *_TEN[7:9], "duration", _TEN[9])
_COLUMNS = {len(names): names for names in (_SEVEN, _TEN, _TWELVE)}
_MODES = ("static", "accordion", "gns")
_CHANGE_DIRECTORY = re.compile(r"cd (\S+) && (.*)")
_STEPS = " {steps}"


def read_gavel_trace(path: str | Path, *, throughputs: ThroughputTable | None = None) -> Trace:
    """The trace in `path`. Rates are not attached; `throughputs` only turns SLOs into deadlines."""
    return parse_gavel_trace(read_text(path), str(path), throughputs=throughputs)


def parse_gavel_trace(text: str, file: str = "", *, throughputs: ThroughputTable | None = None) -> Trace:
    """The trace in `text`; `file` is for messages and the trace's name."""
    return _trace(text.rstrip("\n\r").split("\n"), file, throughputs)


class GavelReader:
    """Reads the three variants; the file is streamed."""

    name: ClassVar[str] = "gavel"
    title: ClassVar[str] = "Gavel's TAB-separated columns: 10, 7 (older) or 12 (Shockwave)"

    def matches(self, head: Head) -> bool:
        """Whether the first line has a TAB."""
        return "\t" in head.first_line

    def read(self, path: Path, options: ReadOptions) -> Trace:
        """The trace. Throughputs turn SLOs into deadlines; rates are attached only to jobs whose batch size changes."""
        source = TraceFile(path)
        trace = _trace(_without_end(source.lines()), source.file, options.throughputs)
        provenance: dict[str, Any] = {"format": self.name, "file": path.name, "sha256": source.sha256()}
        if trace.phases:
            provenance["jobs_with_changing_batch_sizes"] = len(trace.phases)
        return replace(trace, provenance=with_source(provenance, path))


def _without_end(lines: Iterable[str]) -> Iterator[str]:
    """The lines without their ends, and without blank lines at the end of the file."""
    blank: list[str] = []
    for line in lines:
        text = line.removesuffix("\n")
        if not text.strip("\r\n"):
            blank.append(text)
            continue
        yield from blank
        blank.clear()
        yield text


def _trace(lines: Iterable[str], file: str, throughputs: ThroughputTable | None) -> Trace:
    columns: tuple[str, ...] = ()
    jobs: list[JobSpec] = []
    arrivals: list[float] = []
    phases: dict[JobId, Phases] = {}
    for i, line in enumerate(lines):
        place = Place(file, i + 1)
        columns = columns or _columns(line, place)
        cells_found = line.removesuffix("\r").split("\t")
        if len(cells_found) != len(columns):
            raise place.error(
                "line", f"{len(columns)} TAB-separated columns as in line 1", f"{len(cells_found)} columns"
            )
        cell = dict(zip(columns, cells_found, strict=True))
        arrival_s = place.number("arrival_time", cell["arrival_time"])
        if arrivals and arrival_s < arrivals[-1]:
            raise place.error(
                "arrival_time", f">= the line before ({arrivals[-1]!r}), as jobs are in order of arrival", arrival_s
            )
        arrivals.append(arrival_s)
        job = _job(i, cell, place, throughputs)
        if throughputs is not None and (own := _phases(job, cell, place, throughputs)):
            phases[job.id] = own
            job = job.with_rates(mean_rates(own, job.steps_total))
        jobs.append(job)
    return Trace(tuple(jobs), np.array(arrivals), Path(file).stem, phases=phases)


def _phases(job: JobSpec, cell: Mapping[str, str], place: Place, throughputs: ThroughputTable) -> Phases:
    mode = place.choice("mode", cell.get("mode", _MODES[0]), _MODES)
    return phases_of(job.job_type, mode, job.steps_total, job.gpus, throughputs)


def _columns(line: str, place: Place) -> tuple[str, ...]:
    found = _COLUMNS.get(line.count("\t") + 1)
    if found is None:
        counts = ", ".join(map(str, sorted(_COLUMNS)))
        cells = f"{line.count(chr(9)) + 1} columns"
        raise place.error("line", f"one of {counts} TAB-separated columns (or the header of a CSV)", cells)
    return found


def _job(i: int, cell: Mapping[str, str], place: Place, throughputs: ThroughputTable | None) -> JobSpec:
    steps = place.whole("total_steps", cell["total_steps"], 1)
    gpus = place.whole("scale_factor", cell["scale_factor"], 1, GPUS_MAX)
    place.choice("needs_data_dir", cell["needs_data_dir"], ("0", "1"))
    place.choice("mode", cell.get("mode", _MODES[0]), _MODES)
    directory, command = cell.get("working_directory", ""), cell["command"]
    moved = _CHANGE_DIRECTORY.fullmatch(command) if "working_directory" not in cell else None
    if moved:  # the 7-column format has the directory in the command
        directory, command = moved[1], moved[2]
    if cell["num_steps_arg"]:
        command = f"{command} {cell['num_steps_arg']}{_STEPS}"
    weight = place.number("priority_weight", cell["priority_weight"], positive=True) if "SLO" in cell else 1.0
    deadline_s = _deadline_s(cell, steps, gpus, place, throughputs) if "SLO" in cell else math.inf
    return JobSpec(
        JobId(str(i)),
        float(steps),
        gpus=gpus,
        weight=weight,
        job_type=cell["job_type"],
        deadline_s=deadline_s,
        command=command,
        working_directory=directory,
    )


def _deadline_s(
    cell: Mapping[str, str], steps: int, gpus: int, place: Place, throughputs: ThroughputTable | None
) -> float:
    slo = place.signed("SLO", cell["SLO"])
    duration_s = place.number("duration", cell["duration"], positive=True) if "duration" in cell else math.inf
    if slo < 0:
        return math.inf
    if slo == 0:
        raise place.error("SLO", "< 0 (none) or > 0 (a multiple of the job's duration)", cell["SLO"])
    if "duration" not in cell:
        if throughputs is None:
            raise place.error(
                "SLO", "< 0 (none) unless throughputs are given: it is a multiple of the job's duration", cell["SLO"]
            )
        rate = _reference_rate(throughputs.rates(cell["job_type"], gpus))
        duration_s = steps / rate if rate > 0 else math.inf  # no known duration, and the job cannot run anyway
    return slo * duration_s


def _reference_rate(rates_steps_per_s: Mapping[str, float]) -> float:
    return rates_steps_per_s.get(REFERENCE_GPU_TYPE, 0.0) or max(rates_steps_per_s.values(), default=0.0)


def write_gavel_trace(trace: Trace, path: str | Path) -> None:
    """Writes the 10 columns. Ids become line numbers; rates are lost, as the format has no column for them.

    Raises InvalidInput for anything else that the format cannot hold: entities, fractional steps, deadlines of jobs
    without a known rate, TABs or line breaks in texts.
    """
    write_text(path, gavel_text(trace))


def gavel_text(trace: Trace) -> str:
    """The trace in the 10 columns."""
    return "".join(f"{_line(job, at)}\n" for job, at in zip(trace.jobs, trace.arrival_s.tolist(), strict=True))


def _line(job: JobSpec, arrival_s: float) -> str:
    if job.entity:
        raise _unwritable(job, "entity", "empty", job.entity)
    if job.sizes:
        raise _unwritable(job, "sizes", "one", ",".join(map(str, job.sizes)))
    if not job.steps_total.is_integer() or job.steps_total > EXACT_MAX:
        raise _unwritable(job, "steps_total", f"whole and <= {EXACT_MAX}", job.steps_total)
    command, argument = job.command, ""
    if command.endswith(_STEPS):
        command, _, argument = command.removesuffix(_STEPS).rpartition(" ")
    texts = {"job_type": job.job_type, "command": command, "working_directory": job.working_directory}
    for name, text in (*texts.items(), ("num_steps_arg", argument)):
        if any(c in text for c in "\t\n\r"):
            raise _unwritable(job, name, "free of TABs and line breaks", text)
    slo = -1.0
    if math.isfinite(job.deadline_s):
        rate = _reference_rate(job.rates_steps_per_s)
        if rate <= 0:
            raise _unwritable(job, "deadline_s", "infinite for a job without a known rate", job.deadline_s)
        slo = job.deadline_s * rate / job.steps_total
    cells = (
        *texts.values(),
        argument,
        "1" if "%s" in command else "0",
        str(int(job.steps_total)),
        str(job.gpus),
        repr(float(job.weight)),
        repr(slo),
        repr(arrival_s),
    )
    return "\t".join(cells)


def _unwritable(job: JobSpec, field: str, allowed: str, value: object) -> InvalidInput:
    return Place("").error(f"{field} of job {job.id!r}", f"{allowed} to be written in Gavel's columns", value)


UNCONSOLIDATED = "_unconsolidated"
_ALONE = "null"
_KEY = re.compile(r"\(\s*(?P<quote>['\"])(?P<model>[^\\]+?)(?P=quote)\s*,\s*(?P<gpus>[0-9]{1,7})\s*\)")
_Key = tuple[str, int]


def read_gavel_throughputs(path: str | Path, *, keep_unconsolidated: bool = False) -> ThroughputTable:
    """The table in `path`, provenance measured."""
    return parse_gavel_throughputs(read_text(path), str(path), keep_unconsolidated=keep_unconsolidated)


def parse_gavel_throughputs(text: str, file: str = "", *, keep_unconsolidated: bool = False) -> ThroughputTable:
    """The table in `text`; `file` is for messages and the rows' source."""
    document = parse_json(text, file)
    types = _mapping(document, (), document.value, "an object of GPU types")
    kept = tuple(t for t in types if keep_unconsolidated or not t.endswith(UNCONSOLIDATED))
    if not kept:
        raise document.error((), "an object with a GPU type", types)
    found = _Rates()
    for gpu_type in kept:
        _read_type(document, gpu_type, types[gpu_type], found)
    keys = tuple(dict.fromkeys(key for _, key in found.alone))
    row = {key: i for i, key in enumerate(keys)}
    rates: Floats = np.full((len(keys), len(kept)), math.nan)
    for (gpu_type, key), rate in found.alone.items():
        rates[row[key], kept.index(gpu_type)] = rate
    pair_rows, pair_rates = _pairs(document, found, row, kept)
    return ThroughputTable(
        keys,
        kept,
        rates,
        np.full(rates.shape, int(Provenance.MEASURED), dtype=np.int64),
        (Path(file).name,) * len(keys),
        np.array(pair_rows, dtype=np.int64).reshape(-1, 2),
        pair_rates,
    )


@dataclass
class _Rates:
    """The rates of the file, by (GPU type, key) and by (GPU type, key, other key)."""

    alone: dict[tuple[str, _Key], float] = field(default_factory=dict)
    paired: dict[tuple[str, _Key, _Key], tuple[tuple[str, ...], float, float]] = field(default_factory=dict)


def _read_type(document: JsonText, gpu_type: str, entry: object, found: _Rates) -> None:
    for key_text, rates in _mapping(document, (gpu_type,), entry, "an object of \"('model', gpus)\" keys").items():
        path = (gpu_type, key_text)
        key = _key(document, path, key_text)
        inner = _mapping(document, path, rates, "an object with 'null' (the rate alone)")
        if _ALONE not in inner:
            raise document.error(path, "an object with 'null' (the rate alone)", list(inner))
        if (gpu_type, key) in found.alone:
            raise document.error(path, "given once", key)
        for other_text, value in inner.items():
            if other_text == _ALONE:
                found.alone[gpu_type, key] = _rate(document, (*path, _ALONE), value)
                continue
            other = _key(document, (*path, other_text), other_text)
            if other[1] != key[1]:
                raise document.error((*path, other_text), f"a job type with the same number of GPUs ({key[1]})", other)
            if not isinstance(value, list) or len(value) != 2:
                raise document.error((*path, other_text), "two rates [first, second]", value)
            first, second = (_rate(document, (*path, other_text, i), rate) for i, rate in enumerate(value))
            if (gpu_type, other, key) not in found.paired:
                found.paired.setdefault((gpu_type, key, other), ((*path, other_text), first, second))


def _pairs(
    document: JsonText, found: _Rates, row: Mapping[_Key, int], gpu_types: tuple[str, ...]
) -> tuple[list[tuple[int, int]], Floats]:
    """Rows of keys of each pair, lower row first, P of them, and their rates (P, 2, T)."""
    index: dict[tuple[int, int], int] = {}
    entries: list[tuple[int, int, float, float]] = []
    for (gpu_type, key, other), (path, first, second) in found.paired.items():
        if other not in row:
            raise document.error(path, "a pair of jobs that have a rate alone", other)
        a, b = row[key], row[other]
        if a > b:
            a, b, first, second = b, a, second, first
        entries.append((index.setdefault((a, b), len(index)), gpu_types.index(gpu_type), first, second))
    rates: Floats = np.full((len(index), 2, len(gpu_types)), math.nan)
    for pair, column, first, second in entries:
        rates[pair, :, column] = first, second
    return list(index), rates


def _mapping(document: JsonText, path: tuple[str, ...], value: object, allowed: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise document.error(path, allowed, value)
    return value


def _key(document: JsonText, path: tuple[str, ...], text: str) -> _Key:
    match = _KEY.fullmatch(text)
    if match is None or not 1 <= int(match["gpus"]) <= GPUS_MAX:
        raise document.error(path, f"keyed \"('model', gpus)\" with gpus in [1, {GPUS_MAX}]", text)
    return match["model"], int(match["gpus"])


def _rate(document: JsonText, path: tuple[str | int, ...], value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e300:
        raise document.error(path, "a finite number >= 0", value)
    return float(value)
