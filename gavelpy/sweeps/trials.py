"""Trials of the same seeds under changed options: what `gavel capacity` and `gavel plan` measure.

A trace that is generated is drawn from each seed. A trace in a file is itself for the first seed; for each other seed
its jobs are drawn from it with replacement, at its times of arrival, so that results have an interval over the jobs
that could have come. At another load, all times of arrival are scaled. So the trials of a seed are paired.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from gavelpy.cli.simulation_choices import TraceChoices
from gavelpy.errors import GavelError, InvalidInput
from gavelpy.model.arrays import Floats
from gavelpy.model.job import JobId, Trace
from gavelpy.report.comparison import COLUMNS, Column
from gavelpy.sweeps.backends import Backend, run_all
from gavelpy.sweeps.cells import Cell, Scalar, cell_options, option_parameters
from gavelpy.traces.csv_format import write_csv_trace

NEVER: Final = 1e15  # the value of a metric of a run in which jobs never finish: worse than any
_UNITS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_TARGET: Final = re.compile(r"\s*(\w+)\s*(<=|>=)\s*([0-9.eE+-]+)\s*")
_FAIRNESS: Final = frozenset({"ftf_worst", "ftf_mean"})
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Metric:
    """A metric by the name that the user chose, in the user's unit."""

    name: str  # such as average_jct_h
    column: Column
    scale: float  # of the unit

    @classmethod
    def parse(cls, text: str) -> Metric:
        """`avg_jct_s`, `average_jct_h`, `p90_jct_min`, `utilization`; raises InvalidInput with the names."""
        known = {column.field: column for column in COLUMNS if column.better}
        plain = re.sub(r"^(?:average|mean)_jct", "avg_jct", text.strip())
        stem, _, unit = plain.rpartition("_")
        field = f"{stem}_s" if unit in _UNITS and f"{stem}_s" in known else plain
        if field not in known:
            raise InvalidInput(f"--target must be of {', '.join(known)} (times also in _min, _h, _d), got {text!r}")
        return cls(text.strip(), known[field], _UNITS[unit] if field != plain or field.endswith("_s") else 1.0)

    def of(self, results: Mapping[str, Any]) -> float:
        """The value in the user's unit; NEVER, or less than any, if measured jobs never finish."""
        value = results.get(self.column.field)
        if results.get("error") or results.get("jobs_unfinished") or value is None:
            return math.copysign(NEVER, -self.column.better)
        return float(value) / self.scale

    @property
    def options(self) -> dict[str, Scalar]:
        """Options that runs need for it."""
        return {"fairness": True} if self.column.field in _FAIRNESS else {}


@dataclass(frozen=True)
class Target:
    """A metric and its limit, in the user's unit."""

    metric: Metric
    at_most: bool
    limit: float

    @classmethod
    def parse(cls, text: str) -> Target:
        """`average_jct_h<=10`."""
        found = _TARGET.fullmatch(text)
        try:
            limit = float(found[3]) if found else math.nan
        except ValueError:
            limit = math.nan
        if found is None or not math.isfinite(limit):
            raise InvalidInput(f"--target must look like 'average_jct_h<=10', got {text!r}")
        return cls(Metric.parse(found[1]), found[2] == "<=", limit)

    def is_met(self, values: Floats | float) -> Any:  # Any: one bool, or an array of them
        """Whether means meet the target."""
        return values <= self.limit if self.at_most else values >= self.limit

    def __str__(self) -> str:
        return f"{self.metric.name} {'<=' if self.at_most else '>='} {self.limit:g}"


class Trials:
    """Runs cells of each seed in processes; a context, because traces are written to a temporary directory."""

    def __init__(self, base: Mapping[str, Scalar], seeds: int, *, jobs: int = 0, tell: Tell | None = None) -> None:
        first = int(base.get("seed", 0))
        self.seeds = tuple(range(first, first + seeds))
        self.base = {name: value for name, value in base.items() if name != "seed"}
        self._jobs, self._tell = jobs, tell or (lambda _: None)
        self._found: dict[str, dict[str, Any]] = {}
        self._trace: Trace | None = None
        self._directory = TemporaryDirectory(prefix="gavel-")
        self.simulated = 0

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()

    def run(self, changes: Sequence[Mapping[str, Scalar]]) -> list[list[dict[str, Any]]]:
        """The results of each change of options, by seed; those that were simulated before are not again."""
        cells = [[self._cell(change, seed) for seed in self.seeds] for change in changes]
        new = {cell.key: cell for row in cells for cell in row if cell.key not in self._found}
        for done, (cell, results) in enumerate(run_all(list(new.values()), Backend.PROCESSES, jobs=self._jobs), 1):
            self._found[cell.key] = results
            self.simulated += 1
            self._tell(f"{self.simulated} simulations, {len(new) - done} to run before the next step")
        return [[self._found[cell.key] for cell in row] for row in cells]

    def values(self, metric: Metric, changes: Sequence[Mapping[str, Scalar]]) -> Floats:
        """The metric of each change and seed, (changes, seeds). Raises GavelError if a simulation failed."""
        rows = self.run([{**change, **metric.options} for change in changes])
        for row, change in zip(rows, changes, strict=True):
            for results in row:
                if results.get("error") and results["error_type"] != "Stalled":
                    raise GavelError(f"simulation with {dict(change)} failed: {results['error']}")
        return np.array([[metric.of(results) for results in row] for row in rows])

    def trace(self) -> Trace:
        """The trace of the first seed, at the load that it states."""
        if self._trace is None:
            self._trace = Cell.of({**self.base, **self._seed(self.seeds[0])}).experiment().trace
        return self._trace

    @property
    def parameters(self) -> dict[str, Any]:  # Any: JSON values
        """What repeats the trials: options, seeds, hashes of files, the trace's source and rule, the version."""
        cell = Cell.of({**self.base, **self._seed(self.seeds[0])})
        source = dict(self.trace().provenance) if "trace" in self.base else {}
        return {
            "options": {name: value for name, value in cell.shown().items() if name != "seed"},
            "seeds": list(self.seeds),
            "sha256": dict(cell.contents),
            **({"trace_provenance": source} if source else {}),
            "version": cell.version,
        }

    def _cell(self, change: Mapping[str, Scalar], seed: int) -> Cell:
        options = {**self.base, **change, **self._seed(seed)}
        if "trace" in self.base:
            rate_per_h = options.pop("rate_per_h", 0.0)
            for name in _OF_FORMATS:
                options.pop(name, None)
            options["trace"] = str(self._file(seed, float(rate_per_h)))
        return Cell.of(options)

    def _seed(self, seed: int) -> dict[str, Scalar]:
        return {"seed": seed} if seed or "generate" in self.base else {}

    def _file(self, seed: int, rate_per_h: float) -> Path:
        path = Path(self._directory.name) / f"{seed}-{rate_per_h!r}.csv"
        if not path.exists():
            drawn = self.trace() if seed == self.seeds[0] else resampled_trace(self.trace(), seed)
            write_csv_trace(at_load(drawn, rate_per_h) if rate_per_h else drawn, path)
        return path


_OF_FORMATS: Final = tuple(
    one.name for one in fields(TraceChoices) if one.name not in ("trace", "generate", "node_events")
)


def resampled_trace(trace: Trace, seed: int) -> Trace:
    """Jobs drawn from the trace with replacement, at the trace's times of arrival."""
    rows = np.random.default_rng(seed).integers(0, len(trace), len(trace))
    jobs = tuple(replace(trace.jobs[row], id=JobId(f"{trace.jobs[row].id}~{i}")) for i, row in enumerate(rows.tolist()))
    after_s = (trace.cancelled_s - trace.arrival_s)[rows]
    ids = [(job.id, trace.jobs[row].id) for job, row in zip(jobs, rows.tolist(), strict=True)] if trace.phases else []
    phases = {new: trace.phases[old] for new, old in ids if old in trace.phases}
    return replace(trace, jobs=jobs, cancelled_s=trace.arrival_s + after_s, phases=phases)


def at_load(trace: Trace, rate_per_h: float) -> Trace:
    """The trace with all arrivals scaled, so that this many jobs arrive per hour on average."""
    span_s = float(trace.arrival_s[-1] - trace.arrival_s[0])
    if span_s <= 0:
        raise InvalidInput(f"{trace.name or 'trace'} must have arrivals at several times for another load, got one")
    scale = (len(trace) - 1) * 3600.0 / rate_per_h / span_s
    arrival_s = (trace.arrival_s - trace.arrival_s[0]) * scale
    return replace(trace, arrival_s=arrival_s, cancelled_s=arrival_s + trace.cancelled_s - trace.arrival_s)


def takes_cell_options(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds the options of cells to a command, whose first parameter gets those that are given; `without` these."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = list(signature.parameters.values())[1:]
        added = [one for name, one in option_parameters().items() if name not in {*without, *(o.name for o in own)}]

        @wraps(command)
        def called(**values: Any) -> None:  # Any: of options
            chosen = {one.name: values.pop(one.name) for one in added}
            given = {one.name: chosen[one.name] for one in added if chosen[one.name] != one.default}
            options = {
                name: ",".join(map(str, v)) if isinstance(v, list) else str(v) if isinstance(v, Path) else v
                for name, v in given.items()
            }
            command({name: cell_options()[name].value(v, Path.cwd()) for name, v in options.items()}, **values)

        called.__signature__ = signature.replace(parameters=[*added, *own])  # type: ignore[attr-defined]  # inspect's
        called.__annotations__ = {one.name: one.annotation for one in (*added, *own)}
        return called

    return decorate
