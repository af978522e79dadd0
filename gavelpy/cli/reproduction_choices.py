"""Options of `gavel reproduce`: how much of a figure is repeated, and on which files."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from gavelpy.cli import options as o
from gavelpy.cli import parsing as p
from gavelpy.cli import simulation_options as so
from gavelpy.errors import InvalidInput

ShockwaveTraceOption = Annotated[
    Path, typer.Option("--trace", metavar="FILE", help="Shockwave's trace (12 columns): 120_jobs_dynamic.trace.")
]
WorkloadOption = Annotated[
    Path, typer.Option("--workload", metavar="FILE", help="One of Sia's workloads, with its profiles in ../profiles.")
]
PaperSizeOption = Annotated[
    bool, typer.Option("--full", help="The size of the paper: minutes to hours, where the small one takes a minute.")
]
TracesOption = Annotated[
    int | None,
    typer.Option("--seeds", metavar="N", parser=o.whole(1, 1000), help="Number of traces. Default: 1; --full: 3."),
]
RatesOption = Annotated[
    str | None, typer.Option(metavar="X,Y,...", help="Loads in jobs per hour. Default: the figure's.")
]
RecordedTraceOption = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="The recorded trace. Without one, jobs are drawn at random."),
]


@dataclass(frozen=True, kw_only=True)
class NoChoices:
    """Of a figure with one size."""

    def files(self) -> list[Path]:
        """The files that were given."""
        return [value for one in fields(self) if isinstance(value := getattr(self, one.name), Path)]

    def size(self) -> dict[str, Any]:  # Any: of several types
        """Fields of the size."""
        return {}


@dataclass(frozen=True, kw_only=True)
class TableChoices(NoChoices):
    """The rates of jobs."""

    throughputs: o.ThroughputsOption = None

    def size(self) -> dict[str, Any]:  # Any: of several types
        """Fields of the size."""
        return {**super().size(), "throughputs": None if self.throughputs is None else p.table_of(self.throughputs)}


@dataclass(frozen=True, kw_only=True)
class FullChoices(TableChoices):
    """Small, or as in the paper."""

    full: PaperSizeOption = False

    def size(self) -> dict[str, Any]:  # Any: of several types
        """Fields of the size."""
        return {**super().size(), "is_full": self.full}


@dataclass(frozen=True, kw_only=True)
class TraceNumberChoices(FullChoices):
    """Also the number of traces."""

    seeds: TracesOption = None

    def size(self) -> dict[str, Any]:  # Any: of several types
        """Fields of the size."""
        return {**super().size(), "seeds": self.seeds}


@dataclass(frozen=True, kw_only=True)
class RateChoices(TraceNumberChoices):
    """Also the loads."""

    rates: RatesOption = None

    def size(self) -> dict[str, Any]:  # Any: of several types
        """Fields of the size."""
        return {**super().size(), "rates_per_h": _rates(self.rates) if self.rates is not None else None}


@dataclass(frozen=True, kw_only=True)
class LoadChoices(RateChoices):
    """Also the jobs that are measured."""

    window: so.WindowOption = None

    def size(self) -> dict[str, Any]:  # Any: of several types
        """Fields of the size."""
        return {**super().size(), "window": p.window(self.window) if self.window is not None else None}


@dataclass(frozen=True, kw_only=True)
class DrawnChoices(NoChoices):
    """Small or as large as is feasible, and the number of traces of jobs with rates of their own."""

    full: PaperSizeOption = False
    seeds: TracesOption = None

    def size(self) -> dict[str, Any]:  # Any: of several types
        """Fields of the size."""
        return {**super().size(), "is_full": self.full, "seeds": self.seeds}


@dataclass(frozen=True, kw_only=True)
class RecordedChoices(DrawnChoices):
    """Also a recorded trace."""

    trace: RecordedTraceOption = None

    def size(self) -> dict[str, Any]:  # Any: of several types
        """Fields of the size."""
        return {**super().size(), "trace": self.trace}


@dataclass(frozen=True, kw_only=True)
class ShockwaveChoices(NoChoices):
    """The trace and the rates of Shockwave's artifact."""

    trace: ShockwaveTraceOption
    throughputs: o.ThroughputsOption

    def size(self) -> dict[str, Any]:  # Any: of several types
        """Fields of the size."""
        assert self.throughputs is not None, "an option without default is given"
        return {**super().size(), "trace": self.trace, "throughputs": p.table_of(self.throughputs)}


@dataclass(frozen=True, kw_only=True)
class SiaChoices(NoChoices):
    """One of Sia's workloads, or all of its kind."""

    workload: WorkloadOption
    full: PaperSizeOption = False

    def size(self) -> dict[str, Any]:  # Any: of several types
        """Fields of the size."""
        return {**super().size(), "trace": self.workload, "is_full": self.full}


def _rates(text: str) -> tuple[float, ...]:
    read = o.number(0.0, 1e6)
    try:
        return tuple(map(read, text.split(",")))
    except typer.BadParameter as error:
        raise InvalidInput(f"--rates must look like 1,4.5 (jobs per hour), got {text[:60]!r}") from error
