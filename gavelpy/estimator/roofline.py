"""Roofline prior for unmeasured jobs: a step takes the longer of arithmetic and memory traffic, plus overhead.

    step_s = max(flop / (peak u), bytes / (bandwidth v)) + overhead        Williams et al., CACM 2009, with an overhead
    rate(g) = g / step_s / (1 + c log2 g)                                  the scaling rule of workloads/README.md

u, v, overhead and c are calibrated on measured entries; the residual is the error bar.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gavelpy.estimator.kinds import Key, kind_of
from gavelpy.model.arrays import Floats
from gavelpy.model.cluster import GpuSpecs, StepCost
from gavelpy.model.throughput import Provenance, ThroughputTable

_START = (0.4, 0.6, 0.01, 0.1)
_SD_START = 0.7  # of a log rate before any calibration
_PARAMETER_SD = 3.0  # log distance of a parameter from its start that costs as much as an error of 1
_MAD_TO_SD = 1.4826
_FAMILIES_WORTH = 1.0  # weight of _SD_START, in families: one family is little evidence for the next


@dataclass(frozen=True)
class Calibration:
    """Shares of the peak rates that jobs reach, overhead, and loss of gangs."""

    compute_share: float = _START[0]
    bandwidth_share: float = _START[1]
    overhead_s: float = _START[2]
    gang_loss: float = _START[3]
    sd: float = _SD_START  # of the log rate


@dataclass(frozen=True)
class Roofline:
    """Step costs of job families, specs of GPU types, and the calibration."""

    jobs: Mapping[str, StepCost] = field(default_factory=dict)  # by family
    gpus: Mapping[str, GpuSpecs] = field(default_factory=dict)
    calibration: Calibration = field(default_factory=Calibration)

    def log_rate(self, keys: Sequence[Key], gpu_types: Sequence[str]) -> Floats:
        """Log of steps/s, (N, T); NaN where step cost or specs are unknown."""
        c = self.calibration
        return _log_rate(self._terms(keys, gpu_types), c.compute_share, c.bandwidth_share, c.overhead_s, c.gang_loss)

    def fits(self, keys: Sequence[Key], gpu_types: Sequence[str]) -> Floats:
        """1 where memory suffices, 0 where it does not, NaN where step cost or specs are unknown, (N, T)."""
        terms = self._terms(keys, gpu_types)
        return np.where(np.isnan(terms.memory), math.nan, (terms.memory <= 1.0).astype(np.float64))

    def calibrated(self, table: ThroughputTable) -> Roofline:
        """Fits the four parameters to the table's known rates by absolute errors, smoothed at 0.

        Estimated rates are ignored.
        """
        terms = self._terms(table.keys, table.gpu_types)
        with np.errstate(divide="ignore", invalid="ignore"):
            target = np.log(table.rate_steps_per_s)
        known = np.isfinite(target) & np.isfinite(terms.compute_s) & (table.provenance <= Provenance.PUBLISHED)
        if not known.any():
            return self
        from scipy.optimize import least_squares

        start = np.log(_START)

        def residuals(x: Floats) -> Floats:
            with np.errstate(over="ignore"):
                error = (_log_rate(terms, *np.exp(x)) - target)[known]
            return np.concatenate([error, (x - start) / _PARAMETER_SD])

        found = least_squares(residuals, start, loss="soft_l1", f_scale=0.2)
        error = residuals(found.x)[: np.count_nonzero(known)]
        sd = max(_MAD_TO_SD * float(np.median(np.abs(error))), float(np.quantile(np.abs(error), 0.9)) / 1.645)
        sd = max(sd, _between_families(error, [table.keys[row][0] for row in np.nonzero(known)[0].tolist()]))
        compute, bandwidth, overhead_s, loss = np.exp(found.x).tolist()
        return Roofline(self.jobs, self.gpus, Calibration(compute, bandwidth, overhead_s, loss, sd))

    def _terms(self, keys: Sequence[Key], gpu_types: Sequence[str]) -> _Terms:
        shape = len(keys), len(gpu_types)
        compute, traffic, memory = (np.full(shape, math.nan) for _ in range(3))
        known = [(t, self.gpus[name]) for t, name in enumerate(gpu_types) if name in self.gpus]
        for row, (job_type, _) in enumerate(keys):
            kind = kind_of(job_type)
            job = self.jobs.get(kind.family)
            if job is None:
                continue
            for t, gpu in known:
                compute[row, t] = kind.batch * job.gflop_per_sample / (1e3 * gpu.tflops(job.precision))
                traffic[row, t] = (kind.batch * job.gb_per_sample + job.gb_per_step) / gpu.bandwidth_gb_per_s
                memory[row, t] = job.memory_needed_gb(kind.batch) / gpu.memory_gb
        return _Terms(compute, traffic, memory, np.array([[gpus] for _, gpus in keys], dtype=np.float64).reshape(-1, 1))


def _between_families(error: Floats, job_types: Sequence[str]) -> float:
    """Root mean square of the families' mean errors, so that a small family counts as much as a large one.

    Includes one unseen family with the error before calibration.
    """
    family = np.unique([kind_of(name).family for name in job_types], return_inverse=True)[1]
    means = np.bincount(family, error) / np.bincount(family)
    squares = np.square(means).sum() + _FAMILIES_WORTH * _SD_START**2
    return float(np.sqrt(squares / (len(means) + _FAMILIES_WORTH)))


@dataclass(frozen=True, eq=False)
class _Terms:
    compute_s: Floats  # (N, T) at peak
    traffic_s: Floats  # (N, T) at peak
    memory: Floats  # (N, T) memory needed over memory available
    gpus: Floats  # (N, 1)


def _log_rate(terms: _Terms, compute: float, bandwidth: float, overhead_s: float, loss: float) -> Floats:
    step_s = np.maximum(terms.compute_s / compute, terms.traffic_s / bandwidth) + overhead_s
    return np.asarray(np.log(terms.gpus / (1.0 + loss * np.log2(terms.gpus)) / step_s))
