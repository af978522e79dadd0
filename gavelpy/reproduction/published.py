"""A published figure, its repetition here, and what both come to: rows of values side by side, and curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from gavelpy.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

    from gavelpy.model.throughput import ThroughputTable
    from gavelpy.report.plots import Figure
    from gavelpy.simulator.simulate import Progress

UNKNOWN = math.nan  # a value that was not published, or that this run does not have


@dataclass(frozen=True)
class FigureSize:
    """How much of a figure is repeated. None: the figure's own choice, small or full."""

    is_full: bool = False
    seeds: int | None = None
    rates_per_h: tuple[float, ...] | None = None  # jobs per hour
    window: tuple[int, int] | None = None  # jobs that are measured, in order of arrival
    throughputs: ThroughputTable | None = None  # None: the published rates that ship with gavel
    progress: Progress | None = None
    trace: Path | None = None  # of figures on a recorded trace

    def __post_init__(self) -> None:
        if self.seeds is not None and not 1 <= self.seeds <= 1000:
            raise InvalidInput(f"seeds must be in [1, 1000], got {self.seeds}")
        for rate in self.rates_per_h or ():
            if not 0 < rate <= 1e6:
                raise InvalidInput(f"rates must be in (0, 1e6] jobs per hour, got {rate:g}")
        if self.window is not None and not 0 <= self.window[0] < self.window[1]:
            first, last = self.window
            raise InvalidInput(f"window must be A:B with 0 <= A < B, got {first}:{last}")

    @property
    def table(self) -> ThroughputTable:
        """The rates of the jobs."""
        if self.throughputs is not None:
            return self.throughputs
        from gavelpy.traces.workloads import published_throughputs

        return published_throughputs()

    def progress_of(self, part: str) -> Progress | None:
        """The progress of one simulation of several, with its name before the run's."""
        if self.progress is None:
            return None
        tell = self.progress
        return lambda label, done, total, now_s: tell(f"{part}: {label}", done, total, now_s)


@dataclass(frozen=True)
class Row:
    """One quantity, as it was published and as it comes out here; NaN = unknown."""

    at: str  # where on the x axis, such as "4 jobs/h"
    run: str  # policy, as `gavel simulate` names it
    quantity: str  # with its unit
    published: float
    ours: float

    @property
    def ratio(self) -> float:
        """Ours over the published value; NaN if one is unknown."""
        return self.ours / self.published if self.published else UNKNOWN

    def to_json(self) -> dict[str, Any]:
        """The documented object; NaN becomes null."""
        values = {**asdict(self), "ratio": self.ratio}
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


@dataclass(frozen=True, eq=False)
class Reproduction:
    """What a figure came to."""

    rows: tuple[Row, ...]
    figures: tuple[Figure, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)  # so that it can be repeated
    remarks: tuple[str, ...] = ()  # on this run, such as a load that was not sustained


@dataclass(frozen=True)
class PublishedFigure:
    """A figure or table of a paper that `gavel reproduce NAME` repeats."""

    name: str
    title: str
    source: str  # paper, figure or section, and where the values were read
    differences: str  # why ours may differ
    reproduce: Callable[[FigureSize], Reproduction]
