"""Counts the probes of a run that got GPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gavelpy.engine import Profiled
from gavelpy.journal.history import History
from gavelpy.simulator.result import Metrics


def with_probes_made(metrics: Metrics, profiled: Profiled, history: History) -> Metrics:
    """The metrics with the probes that got GPUs, each counted once, and the GPU time reserved for probes."""
    rows, types, _, _ = history.run_intervals()
    alone = set(zip(rows.tolist(), types.tolist(), strict=True))
    jobs, partners, pair_types, _, _ = history.sharing.times(history.now_s)
    members = np.sort(np.column_stack([jobs, partners]), axis=1)
    pairs = {(a, b, t) for (a, b), t in zip(members.tolist(), pair_types.tolist(), strict=True)}
    asked = {(min(a, b), max(a, b), t) for a, b, t in profiled.pairs}
    return replace(
        metrics,
        probes_alone=len(profiled.alone & alone),
        probes_pairs=len(asked & pairs),
        probes_gpu_s=profiled.gpu_s,
    )
