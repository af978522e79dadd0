"""Filters the rate of one job type on one GPU type from the readings of running jobs, with change detection.

Readings are Gaussian on the logarithm and winsorised at three standard deviations, so that a straggler has little
effect. Two cumulative sums of deviations (CUSUM, Page 1954) distinguish a lasting change from a bad reading. After a
change the filter restarts from the readings since the change began.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

READINGS_MAX = 30.0  # cap on the weight of an old level, so that the filter follows slow drift
FLOOR_SD = 0.01  # smallest uncertainty of a measured level
_SD_START, _SD_MIN, _SD_MAX = 0.15, 0.02, 0.5  # of a reading
_WINSOR = 3.0
_MEMORY = 0.95  # of the deviation, per reading
_SLACK, _ALARM = 0.75, 6.0  # of the sums, in standard deviations of a reading


@dataclass(frozen=True)
class Reading:
    """Steps of a job on one GPU type over `seconds`, a period that ended `lease_age_s` after the lease started."""

    job_type: str
    gpus: int
    gpu_type: str
    steps: float
    seconds: float
    lease_age_s: float = math.inf


@dataclass(frozen=True)
class Verdict:
    """Whether a reading or a claim was accepted, and the reason, which the caller logs."""

    accepted: bool
    reason: str = ""
    is_new_phase: bool = False


@dataclass
class _Cusum:
    """One CUSUM statistic, and the readings since it was last 0."""

    sum: float = 0.0
    total: float = 0.0
    count: int = 0

    def add(self, z: float, log_rate: float) -> None:
        self.sum = max(0.0, self.sum + z - _SLACK)
        self.total, self.count = (self.total + log_rate, self.count + 1) if self.sum > 0 else (0.0, 0)


@dataclass
class RateFilter:
    """State of one rate."""

    level: float = 0.0  # logarithm of steps/s
    count: float = 0.0  # weight of the level, in readings
    deviation: float = _SD_START  # of a reading
    extra_sd: float = 0.0  # sd added after a phase change on another GPU type
    _up: _Cusum = field(default_factory=_Cusum)
    _down: _Cusum = field(default_factory=_Cusum)

    @property
    def variance(self) -> float:
        """Variance of the level; very large before the first reading."""
        return self.deviation**2 / max(self.count, 1e-9) + FLOOR_SD**2 + self.extra_sd**2

    def read(self, log_rate: float) -> float:
        """Adds a reading; returns the jump of the level if a new phase is detected, else 0."""
        if self.count == 0:
            self.level, self.count = log_rate, 1.0
            return 0.0
        spread = math.hypot(self.deviation, self.extra_sd)
        z = max(-_WINSOR, min(_WINSOR, (log_rate - self.level) / spread))
        self._up.add(z, log_rate)
        self._down.add(-z, log_rate)
        for cusum in (self._up, self._down):
            if cusum.sum > _ALARM:
                return self._restart(cusum)
        clipped, weight = z * spread, self._weight()
        self.level += clipped * weight
        self.count = min(self.count + 1.0, READINGS_MAX)
        self.extra_sd *= math.sqrt(1.0 - weight)
        deviation = math.sqrt(_MEMORY * self.deviation**2 + (1.0 - _MEMORY) * clipped**2)
        self.deviation = min(max(deviation, _SD_MIN), _SD_MAX)
        return 0.0

    def shift(self, jump: float, extra_sd: float) -> None:
        """Follows a new phase that was detected on another GPU type, with added uncertainty."""
        self.level += jump
        self.extra_sd = math.hypot(self.extra_sd, extra_sd)
        self._up, self._down = _Cusum(), _Cusum()

    def _weight(self) -> float:
        """Weight of a reading relative to the level."""
        level = self.deviation**2 / self.count + self.extra_sd**2
        return level / (level + self.deviation**2)

    def _restart(self, cusum: _Cusum) -> float:
        fresh = cusum.total / cusum.count
        jump, self.level = fresh - self.level, fresh
        self.count, self.deviation, self.extra_sd = float(cusum.count), _SD_START, 0.0
        self._up, self._down = _Cusum(), _Cusum()
        return jump
