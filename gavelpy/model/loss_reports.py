"""Losses that jobs reported, as an array of a problem: (J, K, 2) steps and values, in order; NaN behind the last ones.

A problem has at most `REPORTS_MAX` reports of each job: the first one, and the newest. Smaller values are better, so
a metric that jobs maximise is there with the opposite sign.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats, Ints, require

REPORTS_MAX = 32
ALLOWED = "[step, value] of each report: finite, steps >= 0 in ascending order, each once"
Reports = Sequence[tuple[float, float]]  # step and value, in ascending order of steps


def losses_of(reports: Sequence[Reports]) -> Floats:
    """The reports of J jobs as an array; empty = no job has any. Of too many, the first one and the newest stay.

    >>> losses_of([[(10.0, 2.0), (20.0, 1.5)], []])[:, :, 1].tolist()
    [[2.0, 1.5], [nan, nan]]
    """
    kept = [[*one[:1], *one[1 - REPORTS_MAX :]] if len(one) > REPORTS_MAX else one for one in reports]
    found = np.full((len(kept), max(map(len, kept), default=0), 2), np.nan)
    for row, one in enumerate(kept):
        if one:
            found[row, : len(one)] = one
    return found


def are_reports(reports: Reports) -> bool:
    """Whether these are reports of one job."""
    found = np.array(reports, dtype=np.float64).reshape(-1, 2)
    return bool(
        np.isfinite(found).all() and (np.diff(found[:, 0], prepend=-1.0) > 0).all() and (found >= 0)[:, 0].all()
    )


def report_counts(losses: Floats) -> Ints:
    """How many reports each job has, (J,)."""
    return np.asarray((~np.isnan(losses[:, :, 0])).sum(axis=1), dtype=np.int64)


def checked_losses(losses: Floats, jobs: int) -> Floats:
    """The array as read-only floats; raises InvalidInput unless it is as described above."""
    if not np.size(losses):  # of most problems
        found = np.zeros((jobs, 0, 2))
        found.flags.writeable = False
        return found
    found = np.array(losses, dtype=np.float64)
    if found.ndim != 3 or found.shape[0] != jobs or found.shape[2] != 2 or found.shape[1] > REPORTS_MAX:
        raise InvalidInput(f"losses must have shape ({jobs}, at most {REPORTS_MAX}, 2), got {np.shape(losses)}")
    steps, is_report = found[:, :, 0], np.arange(found.shape[1]) < report_counts(found)[:, None]
    require("losses", found, np.isfinite(found) == is_report[:, :, None], ALLOWED)
    rises = np.diff(steps, axis=1, prepend=-1.0) > 0
    require("losses", steps, (rises & (steps >= 0)) | ~is_report, ALLOWED)
    found.flags.writeable = False
    return found
