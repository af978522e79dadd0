"""The columns of a comparison: which figures, in what unit, and which way is better. Terminal and HTML share them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gavelpy.report.result import Result

_RARE = frozenset({"deadline_misses", "jobs_unfinished", "probes_alone", "probes_pairs", "probes_gpu_s"})
_TIED = 5e-4  # relative: figures that print alike share the honour of being best


class Kind(StrEnum):
    """What a figure counts, hence how it is printed."""

    TIME = "time"
    FRACTION = "fraction"
    MONEY = "money"
    RATIO = "ratio"
    COUNT = "count"


@dataclass(frozen=True)
class Column:
    """One figure of every run. A narrow terminal drops the columns of the last ranks."""

    field: str
    title: str
    kind: Kind
    better: int  # -1 = lower, 1 = higher, 0 = neither is
    rank: int
    meaning: str


@dataclass(frozen=True)
class Cells:
    """A column filled in: header, one text a run, and which runs are best."""

    title: str
    unit: str
    texts: tuple[str, ...]
    best: tuple[bool, ...]
    meaning: str = ""


COLUMNS = (
    Column("avg_jct_s", "avg JCT", Kind.TIME, -1, 0, "mean job completion time: finish less arrival"),
    Column("p50_jct_s", "p50 JCT", Kind.TIME, -1, 7, "median of job completion times"),
    Column("p90_jct_s", "p90 JCT", Kind.TIME, -1, 10, "90th percentile of job completion times"),
    Column("p99_jct_s", "p99 JCT", Kind.TIME, -1, 4, "99th percentile of job completion times"),
    Column("makespan_s", "makespan", Kind.TIME, -1, 1, "time until the last job finished"),
    Column("utilization", "utilization", Kind.FRACTION, 1, 2, "GPU time leased over GPU time there was"),
    Column("cost_usd", "cost", Kind.MONEY, -1, 5, "leased GPU time at the cluster's prices"),
    Column("ftf_worst", "worst FTF", Kind.RATIO, -1, 3, "largest JCT over the job's own JCT under `isolated`"),
    Column("ftf_mean", "mean FTF", Kind.RATIO, -1, 11, "mean of JCT over the job's own JCT under `isolated`"),
    Column("deadline_misses", "late", Kind.COUNT, -1, 12, "jobs that missed their deadline"),
    Column("preemptions", "preempt.", Kind.COUNT, -1, 8, "times that a running job lost its GPUs"),
    Column("migrations", "migr.", Kind.COUNT, -1, 9, "times that a job moved to other GPUs"),
    Column("jobs_unfinished", "unfinished", Kind.COUNT, -1, 6, "measured jobs that never finished"),
    Column("rounds", "rounds", Kind.COUNT, 0, 13, "rounds of the scheduler"),
    Column("solves", "solves", Kind.COUNT, 0, 14, "allocations computed"),
    Column("probes_alone", "probes", Kind.COUNT, 0, 15, "jobs measured on a GPU type because that was worth knowing"),
    Column(
        "probes_pairs", "of pairs", Kind.COUNT, 0, 16, "jobs measured beside a partner on a GPU type for that reason"
    ),
    Column("probes_gpu_s", "probed", Kind.TIME, 0, 17, "GPU time set aside for these measurements"),
)


def cells(column: Column, results: Sequence[Result]) -> Cells:
    """The column filled in for these runs, all in one unit."""
    values = [float(getattr(result.metrics, column.field)) for result in results]
    unit, texts = _texts(column.kind, values)
    return Cells(column.title, unit, tuple(texts), best_of(column, results), column.meaning)


def comparison_columns(results: Sequence[Result]) -> list[tuple[int, Cells]]:
    """The columns filled in, with their ranks, the change of average JCT beside the average JCT.

    Counts of what seldom happens (jobs late or unfinished, probes) are left out where it never did.
    """
    shown = [c for c in COLUMNS if c.field not in _RARE or any(getattr(r.metrics, c.field) for r in results)]
    filled = [(column.rank, cells(column, results)) for column in shown]
    if len(results) > 1:
        filled.insert(1, (0, change(results)))
    return filled


def change(results: Sequence[Result], field: str = "avg_jct_s") -> Cells:
    """The figure of each run relative to the first run's."""
    values = [float(getattr(result.metrics, field)) for result in results]
    texts = ["—", *(signed_percent(value, values[0]) for value in values[1:])]
    title = f"vs {results[0].label}"
    return Cells(title, "", tuple(texts), (False,) * len(values), f"average JCT relative to {results[0].label}")


def best_of(column: Column, results: Sequence[Result]) -> tuple[bool, ...]:
    """Which runs are best; none when all are alike. A run that left more jobs unfinished than another is never best."""
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
    """A time for people: `13.9 h`, `42 min`, `17 s`."""
    unit, (text,) = _texts(Kind.TIME, [seconds])
    return f"{text} {unit}".strip()


def signed_percent(value: float, reference: float) -> str:
    """`-31 %`: how far a value lies from its reference; a dash where that means nothing."""
    if not (math.isfinite(value) and math.isfinite(reference) and reference > 0):
        return "–"
    return f"{100 * (value / reference - 1):+.1f} %".replace("-", "−")


def time_unit(longest_s: float) -> tuple[str, float]:
    """Name and length in seconds of the unit in which times up to `longest_s` read best."""
    if longest_s >= 7200:
        return "h", 3600.0
    return ("min", 60.0) if longest_s >= 300 else ("s", 1.0)


def _texts(kind: Kind, values: Sequence[float]) -> tuple[str, list[str]]:
    finite = [abs(value) for value in values if math.isfinite(value)]
    match kind:
        case Kind.TIME:
            unit, scale = time_unit(max(finite, default=0.0))
            return unit, [_number(value / scale, 1) for value in values]
        case Kind.FRACTION:
            return "%", [_number(100 * value, 1) for value in values]
        case Kind.MONEY:
            return "$", [_number(value, 0 if max(finite, default=0.0) >= 1000 else 2) for value in values]
        case Kind.RATIO:
            return "", [_number(value, 2) for value in values]
        case Kind.COUNT:
            return "", [_number(value, 0) for value in values]


def _number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}" if math.isfinite(value) else "–"
