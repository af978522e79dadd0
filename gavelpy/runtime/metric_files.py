"""Files through which a job reports its metrics to the agent: the last value of each name, one file a rank.

`metrics.<local rank>.json` in the lease directory, or the job's copy of it. Standard library only: jobs load this.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.lease_files import STEPS_MAX
from gavelpy.runtime.whole_files import read_record, write_record

METRICS_MAX: Final = 8  # names of a job
METRIC_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")


@dataclass(frozen=True)
class MetricsRecord:
    """The last values of the metrics that one local rank has reported, in columns."""

    names: tuple[str, ...] = ()
    steps: tuple[float, ...] = ()  # of the job since its submission
    values: tuple[float, ...] = ()


class MetricPoint(NamedTuple):
    """A value of a metric."""

    name: str
    step: float  # of the job since its submission
    value: float


Read = Callable[[str, Callable[[Path], MetricsRecord | None], Path | None], MetricsRecord | None]


class MetricFiles:
    """Of the ranks of a lease on one node. Where several report the same name, the lowest rank counts."""

    def __init__(self) -> None:
        self._ranks: dict[int, MetricsRecord] = {}

    def read(self, rank: int, read: Read, directory: Path) -> None:
        """Reads the file of a local rank with `read`, which returns None if it has not changed or is damaged."""
        found = read(metrics_file(rank), partial(read_metrics, local_rank=rank), directory)
        if found is not None:
            self._ranks[rank] = found

    @property
    def last(self) -> list[MetricPoint]:
        """The last value of each name, at most `METRICS_MAX`."""
        points: dict[str, MetricPoint] = {}
        for _, one in sorted(self._ranks.items()):
            for name, step, value in zip(one.names, one.steps, one.values, strict=True):
                points.setdefault(name, MetricPoint(name, step, value))
        return list(points.values())[:METRICS_MAX]


def metrics_file(local_rank: int) -> str:
    """File name of a local rank's metrics."""
    return f"metrics.{local_rank}.json"


def read_metrics(directory: Path, local_rank: int) -> MetricsRecord | None:
    """The last metrics of a local rank; None if there are none. RemoteViolation for values that cannot be."""
    path = directory / metrics_file(local_rank)
    found = read_record(path, MetricsRecord, {})
    if found is None:
        return None
    if not len(found.names) == len(found.steps) == len(found.values) == len(set(found.names)) <= METRICS_MAX:
        raise RemoteViolation(f"{path} must have at most {METRICS_MAX} names, each once, with a step and a value")
    if wrong := [name for name in found.names if not METRIC_NAME.fullmatch(name)]:
        raise RemoteViolation(f"{path}: names must be letters, digits and '._/-', got {wrong[0][:80]!r}")
    if wrong_steps := [step for step in found.steps if not 0 <= step <= STEPS_MAX]:
        raise RemoteViolation(f"{path}: steps must be in [0, {STEPS_MAX:.12g}], got {wrong_steps[0]!r}")
    return found


def write_metrics(directory: Path, local_rank: int, metrics: MetricsRecord) -> None:
    """Writes the metrics of a local rank by one rename."""
    write_record(directory / metrics_file(local_rank), metrics)
