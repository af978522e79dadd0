"""The rate of one job type on one GPU type, from what running jobs report: robust, and quick to see a new phase.

Readings are Gaussian on the logarithm, winsorised at three standard deviations: a straggler moves little. Two sums of
what they are off by (CUSUM, Page 1954) tell a lasting change from a bad reading; after one, the gauge starts anew from
the readings since.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

READINGS_MAX = 30.0  # that an old level is worth: the gauge follows slow drift
FLOOR_SD = 0.01  # no measurement is surer than this
_SD_START, _SD_MIN, _SD_MAX = 0.15, 0.02, 0.5  # of a reading
_WINSOR = 3.0
_MEMORY = 0.95  # of the deviation, a reading
_SLACK, _ALARM = 0.75, 6.0  # of the sums, in standard deviations of a reading


@dataclass
class _Drift:
    """One of the two sums, and the readings since it was last 0."""

    sum: float = 0.0
    total: float = 0.0
    count: int = 0

    def add(self, z: float, log_rate: float) -> None:
        self.sum = max(0.0, self.sum + z - _SLACK)
        self.total, self.count = (self.total + log_rate, self.count + 1) if self.sum > 0 else (0.0, 0)


@dataclass
class Gauge:
    """State of one rate; what is read is told, never looked up."""

    level: float = 0.0  # logarithm of steps/s
    count: float = 0.0  # readings that the level is worth
    deviation: float = _SD_START  # of a reading
    doubt: float = 0.0  # sd added to the level: it was measured in another phase
    _up: _Drift = field(default_factory=_Drift)
    _down: _Drift = field(default_factory=_Drift)

    @property
    def variance(self) -> float:
        """Of the level; a gauge that has read nothing knows nothing."""
        return self.deviation**2 / max(self.count, 1e-9) + FLOOR_SD**2 + self.doubt**2

    def read(self, log_rate: float) -> float:
        """Takes a reading in; returns by how much the level jumped if this is a new phase, else 0."""
        if self.count == 0:
            self.level, self.count = log_rate, 1.0
            return 0.0
        spread = math.hypot(self.deviation, self.doubt)
        z = max(-_WINSOR, min(_WINSOR, (log_rate - self.level) / spread))
        self._up.add(z, log_rate)
        self._down.add(-z, log_rate)
        for drift in (self._up, self._down):
            if drift.sum > _ALARM:
                return self._restart(drift)
        held, weight = z * spread, self._weight()
        self.level += held * weight
        self.count = min(self.count + 1.0, READINGS_MAX)
        self.doubt *= math.sqrt(1.0 - weight)
        deviation = math.sqrt(_MEMORY * self.deviation**2 + (1.0 - _MEMORY) * held**2)
        self.deviation = min(max(deviation, _SD_MIN), _SD_MAX)
        return 0.0

    def shift(self, jump: float, doubt: float) -> None:
        """Another GPU type has seen a new phase: this level moves along, less surely."""
        self.level += jump
        self.doubt = math.hypot(self.doubt, doubt)
        self._up, self._down = _Drift(), _Drift()

    def _weight(self) -> float:
        """Of a reading against the level."""
        level = self.deviation**2 / self.count + self.doubt**2
        return level / (level + self.deviation**2)

    def _restart(self, drift: _Drift) -> float:
        fresh = drift.total / drift.count
        jump, self.level = fresh - self.level, fresh
        self.count, self.deviation, self.doubt = float(drift.count), _SD_START, 0.0
        self._up, self._down = _Drift(), _Drift()
        return jump
