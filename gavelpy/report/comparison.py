"""The comparison of runs: what a report needs of a run, the columns with units and direction, the terminal's table.

The HTML report shows the same columns. The simulator's results implement the protocol `Result`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pandas as pd


BLIND_SUFFIX = "@blind"


class ComparedMetrics(Protocol):
    """Metrics of one run. Times in seconds; NaN without measured jobs. `jobs_measured` counts finished jobs only."""

    @property
    def avg_jct_s(self) -> float: ...
    @property
    def p50_jct_s(self) -> float: ...
    @property
    def p90_jct_s(self) -> float: ...
    @property
    def p99_jct_s(self) -> float: ...
    @property
    def makespan_s(self) -> float: ...
    @property
    def utilization(self) -> float: ...
    @property
    def efficiency(self) -> float: ...
    @property
    def ideal_avg_jct_s(self) -> float: ...
    @property
    def ideal_makespan_s(self) -> float: ...
    @property
    def cost_usd(self) -> float: ...
    @property
    def ftf_worst(self) -> float: ...
    @property
    def ftf_mean(self) -> float: ...
    @property
    def deadline_misses(self) -> int: ...
    @property
    def preemptions(self) -> int: ...
    @property
    def migrations(self) -> int: ...
    @property
    def rounds(self) -> int: ...
    @property
    def solves(self) -> int: ...
    @property
    def jobs_measured(self) -> int: ...
    @property
    def jobs_unfinished(self) -> int: ...
    @property
    def wall_s(self) -> float: ...
    @property
    def cpu_s(self) -> float: ...
    @property
    def cpu_solve_s(self) -> float: ...
    @property
    def probes_alone(self) -> int: ...
    @property
    def probes_pairs(self) -> int: ...
    @property
    def probes_gpu_s(self) -> float: ...
    @property
    def gpu_hours(self) -> Mapping[str, float]: ...  # by use, and `capacity`; empty if not known


class Result(Protocol):
    """One run: its metrics and data frames.

    jobs         index job id, in order of arrival; arrival_s, finish_s (NaN = unfinished), jct_s, job_type, measured,
                 reason (why it never finished, or ""); ftf, finish-time fairness, if known
    leases       one row per stay on the same GPUs: job, gpu_type, gpus, start_s, end_s
    shares       one row per (job, GPU type): job, gpu_type, owed_s, received_s
    utilization  index start of a bin in seconds; one column per GPU type, fraction of its GPUs leased
    marginal_values  index time of an allocation in seconds; one column per GPU type, empty for rules
    partial      where the run was stopped before its end, else ""
    """

    @property
    def label(self) -> str: ...
    @property
    def metrics(self) -> ComparedMetrics: ...
    @property
    def jobs(self) -> pd.DataFrame: ...
    @property
    def leases(self) -> pd.DataFrame: ...
    @property
    def shares(self) -> pd.DataFrame: ...
    @property
    def utilization(self) -> pd.DataFrame: ...
    @property
    def marginal_values(self) -> pd.DataFrame: ...
    @property
    def parameters(self) -> Mapping[str, Any]: ...  # JSON values
    @property
    def partial(self) -> str: ...


def policy_of(label: str) -> str:
    """The policy's name in a label `name` or `name@blind`."""
    return label.removesuffix(BLIND_SUFFIX)


def title_of(result: Result) -> str:
    """The label in tables: `name (partial)` for a run that was stopped before its end."""
    return f"{result.label} (partial)" if result.partial else result.label


def is_blind(label: str) -> bool:
    """Whether the run was blind to GPU types."""
    return label.endswith(BLIND_SUFFIX)


_RARE = frozenset({"deadline_misses", "jobs_unfinished", "probes_alone", "probes_pairs", "probes_gpu_s"})
_ON_REQUEST = frozenset({"ftf_worst", "ftf_mean", "ideal_avg_jct_s", "ideal_makespan_s"})
_TIED = 5e-4  # relative: values that print alike are equally good
_PADDING = 3  # of a terminal column, in characters


class MetricKind(StrEnum):
    """What a metric measures, which determines its format."""

    TIME = "time"
    FRACTION = "fraction"
    MONEY = "money"
    RATIO = "ratio"
    COUNT = "count"


@dataclass(frozen=True)
class Column:
    """One metric of each run. A narrow terminal drops the columns with the highest ranks."""

    field: str
    title: str
    kind: MetricKind
    better: int  # -1 = lower, 1 = higher, 0 = neither
    rank: int
    meaning: str


@dataclass(frozen=True)
class FormattedColumn:
    """A formatted column: header, one text per run, and which runs are best."""

    title: str
    unit: str
    texts: tuple[str, ...]
    best: tuple[bool, ...]
    meaning: str = ""


COLUMNS = (
    Column("avg_jct_s", "avg JCT", MetricKind.TIME, -1, 0, "mean job completion time: finish minus arrival"),
    Column("p50_jct_s", "p50 JCT", MetricKind.TIME, -1, 7, "median of job completion times"),
    Column("p90_jct_s", "p90 JCT", MetricKind.TIME, -1, 10, "90th percentile of job completion times"),
    Column("p99_jct_s", "p99 JCT", MetricKind.TIME, -1, 4, "99th percentile of job completion times"),
    Column("makespan_s", "makespan", MetricKind.TIME, -1, 1, "time until the last job finished"),
    Column("ideal_avg_jct_s", "ideal JCT", MetricKind.TIME, -1, 1, "average JCT with shares delivered exactly"),
    Column("ideal_makespan_s", "ideal mksp.", MetricKind.TIME, -1, 8, "makespan with shares delivered exactly"),
    Column("utilization", "utilization", MetricKind.FRACTION, 1, 2, "leased GPU time over available GPU time"),
    Column(
        "efficiency", "efficiency", MetricKind.FRACTION, 1, 2, "GPU time of steps that were kept over leased GPU time"
    ),
    Column("cost_usd", "cost", MetricKind.MONEY, -1, 5, "leased GPU time at the cluster's prices"),
    Column("ftf_worst", "worst FTF", MetricKind.RATIO, -1, 3, "largest JCT over the job's own JCT under `isolated`"),
    Column("ftf_mean", "mean FTF", MetricKind.RATIO, -1, 11, "mean of JCT over the job's own JCT under `isolated`"),
    Column("deadline_misses", "late", MetricKind.COUNT, -1, 12, "jobs that missed their deadline"),
    Column("preemptions", "preempt.", MetricKind.COUNT, -1, 8, "number of times a running job lost its GPUs"),
    Column("migrations", "migr.", MetricKind.COUNT, -1, 9, "number of times a job moved to other GPUs"),
    Column("jobs_unfinished", "unfinished", MetricKind.COUNT, -1, 6, "measured jobs that never finished"),
    Column("rounds", "rounds", MetricKind.COUNT, 0, 13, "rounds of the scheduler"),
    Column("solves", "solves", MetricKind.COUNT, 0, 14, "allocations computed"),
    Column("probes_alone", "probes", MetricKind.COUNT, 0, 15, "measurements of single jobs on a GPU type"),
    Column("probes_pairs", "of pairs", MetricKind.COUNT, 0, 16, "measurements of two co-located jobs on a GPU type"),
    Column("probes_gpu_s", "probed", MetricKind.TIME, 0, 17, "GPU time reserved for these measurements"),
)


def cells(column: Column, results: Sequence[Result]) -> FormattedColumn:
    """The formatted column for these runs, all in one unit."""
    values = [float(getattr(result.metrics, column.field)) for result in results]
    unit, texts = _texts(column.kind, values)
    return FormattedColumn(column.title, unit, tuple(texts), best_of(column, results), column.meaning)


def comparison_columns(results: Sequence[Result]) -> list[tuple[int, FormattedColumn]]:
    """The formatted columns with their ranks; the change of average JCT follows the average JCT.

    Counts of rare events (jobs late or unfinished, probes) are left out if all are zero, figures on request if no run
    has one.
    """
    shown = [column for column in COLUMNS if _has_data(column.field, results)]
    filled = [(column.rank, cells(column, results)) for column in shown]
    if len(results) > 1:
        filled.insert(1, (0, change(results)))
    return filled


def _has_data(field: str, results: Sequence[Result]) -> bool:
    values = [float(getattr(result.metrics, field)) for result in results]
    return (field not in _RARE or any(values)) and (field not in _ON_REQUEST or any(map(math.isfinite, values)))


def change(results: Sequence[Result], field: str = "avg_jct_s") -> FormattedColumn:
    """The metric of each run relative to the first run's."""
    values = [float(getattr(result.metrics, field)) for result in results]
    texts = ["—", *(signed_percent(value, values[0]) for value in values[1:])]
    title = f"vs {results[0].label}"
    return FormattedColumn(
        title, "", tuple(texts), (False,) * len(values), f"average JCT relative to {results[0].label}"
    )


def best_of(column: Column, results: Sequence[Result]) -> tuple[bool, ...]:
    """Which runs are best; none if all are equal. A run with more unfinished jobs than another is never best."""
    values = [float(getattr(result.metrics, column.field)) for result in results]
    unfinished_min = min((result.metrics.jobs_unfinished for result in results), default=0)
    eligible = [
        column.better * value
        for value, result in zip(values, results, strict=True)
        if result.metrics.jobs_unfinished == unfinished_min and math.isfinite(value)
    ]
    finite = [value for value in values if math.isfinite(value)]
    if column.better == 0 or not eligible or max(finite) - min(finite) <= _TIED * abs(max(finite)):
        return (False,) * len(values)
    goal = max(eligible)
    return tuple(
        result.metrics.jobs_unfinished == unfinished_min and column.better * value >= goal - _TIED * abs(goal)
        for value, result in zip(values, results, strict=True)
    )


def duration(seconds: float) -> str:
    """A readable time: `13.9 h`, `42 min`, `17 s`."""
    unit, (text,) = _texts(MetricKind.TIME, [seconds])
    return f"{text} {unit}".strip()


def signed_percent(value: float, reference: float) -> str:
    """`-31 %`: a value relative to its reference; a dash if either is not finite or the reference not positive."""
    if not (math.isfinite(value) and math.isfinite(reference) and reference > 0):
        return "–"
    return f"{100 * (value / reference - 1):+.1f} %".replace("-", "−")


def time_unit(longest_s: float) -> tuple[str, float]:
    """Name and length in seconds of the unit for times up to `longest_s`."""
    if longest_s >= 7200:
        return "h", 3600.0
    return ("min", 60.0) if longest_s >= 300 else ("s", 1.0)


def comparison(results: Sequence[Result], *, width: int = 200) -> Table:
    """The comparison for the terminal: one row per run, the best values in bold green; `width` in characters."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy", no_wrap=True, style="bold")
    columns = _fitting(comparison_columns(results), width - max(len(title_of(result)) for result in results) - 2)
    for column in columns:
        table.add_column(_header(column), justify="right", no_wrap=True)
    for row, result in enumerate(results):
        marked = (_marked(column.texts[row], column.best[row]) for column in columns)
        table.add_row(title_of(result), *marked)
    return table


def unit_of(kind: MetricKind, largest: float) -> tuple[str, float, int]:
    """Unit, its length in base units, and digits after the point, for values up to `largest`.

    >>> unit_of(MetricKind.TIME, 9000.0)
    ('h', 3600.0, 1)
    """
    match kind:
        case MetricKind.TIME:
            return *time_unit(largest), 1
        case MetricKind.FRACTION:
            return "%", 0.01, 1
        case MetricKind.MONEY:
            return "$", 1.0, 0 if largest >= 1000 else 2
        case MetricKind.RATIO:
            return "", 1.0, 2
        case MetricKind.COUNT:
            return "", 1.0, 0


def _texts(kind: MetricKind, values: Sequence[float]) -> tuple[str, list[str]]:
    unit, scale, digits = unit_of(kind, max((abs(value) for value in values if math.isfinite(value)), default=0.0))
    return unit, [_number(value / scale, digits) for value in values]


def _number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}" if math.isfinite(value) else "–"


def _fitting(ranked: Sequence[tuple[int, FormattedColumn]], width: int) -> list[FormattedColumn]:
    """The columns with the lowest ranks that fit, in their own order; at least two."""
    chosen: list[int] = []
    for index in sorted(range(len(ranked)), key=lambda index: ranked[index][0]):
        column = ranked[index][1]
        width -= max(len(line) for line in (*_header(column).split("\n"), *column.texts)) + _PADDING
        if width < 0 and len(chosen) >= 2:
            break
        chosen.append(index)
    return [ranked[index][1] for index in sorted(chosen)]


def _header(column: FormattedColumn) -> str:
    if column.title.startswith("vs "):
        return column.title.replace(" ", "\n", 1)
    return f"{column.title}\n{column.unit}" if column.unit else column.title


def _marked(text: str, best: bool) -> Text:
    from rich.text import Text

    return Text(text, style="bold green" if best else "")
