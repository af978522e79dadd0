"""Reports metrics of a training script to the scheduler, through a file in the lease directory.

A report replaces the one before: the scheduler receives the last value of each name, a few times a minute, and more
often where it compares jobs. Standard library only.
"""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path

from gavelpy.errors import InvalidInput
from gavelpy.runtime.lease_files import LEASE_DIRECTORY_VARIABLE, STEPS_MAX
from gavelpy.runtime.metric_files import METRIC_NAME, METRICS_MAX, MetricsRecord, write_metrics

_lock = threading.Lock()
_last: dict[str, tuple[float, float]] = {}  # (step, value) by name
_written_by = 0  # process id


def report_metric(name: str, value: float, *, step: float) -> None:
    """Reports the value of a metric after `step` steps of the job, which count from its submission.

    At most 8 names, of letters, digits, '.', '_', '/' and '-'. Outside a lease nothing is written. A value that is not
    finite is not reported, so a diverged run keeps its last one. Each call replaces a small file (some 0.1 ms): call it
    where you evaluate the model, not after each of thousands of steps per second.
    """
    if not METRIC_NAME.fullmatch(name):
        allowed = "1 to 63 letters, digits, '.', '_', '/' and '-', a letter or digit first"
        raise InvalidInput(f"name of a metric must be {allowed}, got {name[:80]!r}")
    value, step = float(value), float(step)
    if not 0 <= step <= STEPS_MAX:
        raise InvalidInput(f"step of metric {name!r} must be in [0, {STEPS_MAX:g}], got {step!r}")
    directory = os.environ.get(LEASE_DIRECTORY_VARIABLE, "")
    if not directory or not math.isfinite(value):
        return
    with _lock:
        _forget_of_parent()
        if name not in _last and len(_last) == METRICS_MAX:
            raise InvalidInput(f"a job must report at most {METRICS_MAX} metrics, got {name!r} as well")
        _last[name] = step, value
        rank = os.environ.get("LOCAL_RANK", "") or "0"
        columns = zip(*_last.values(), strict=True)
        write_metrics(Path(directory), int(rank), MetricsRecord(tuple(_last), *map(tuple, columns)))


def _forget_of_parent() -> None:
    """A forked process starts without the metrics of its parent."""
    global _written_by
    if _written_by != os.getpid():
        _last.clear()
        _written_by = os.getpid()
