"""Steps per second of a training loop, without its first steps and without its checkpoints."""

from __future__ import annotations

from collections import deque
from typing import Final

WARM_UP_STEPS: Final = 3  # they compile, allocate and fill caches
SAMPLE_S: Final = 0.5
SAMPLES: Final = 120  # the newest minute


class RateMeter:
    """Fed with times and counts of finished steps, in order; every time is of one clock, in seconds."""

    def __init__(self, now_s: float, steps: int) -> None:
        self._first_steps = steps
        self._idle_s = 0.0
        self._samples: deque[tuple[float, int]] = deque([(now_s, steps)], maxlen=SAMPLES)

    def add_idle(self, seconds: float) -> None:
        """Time that was spent on something else than steps since the last sample."""
        self._idle_s += seconds

    def sample(self, now_s: float, steps: int) -> None:
        """Notes that a step has just been finished."""
        taken = steps - self._first_steps
        busy_s = now_s - self._idle_s
        if len(self._samples) == 1 and 1 <= taken <= WARM_UP_STEPS:
            self._samples[0] = (busy_s, steps)  # counts from after this step
            return
        if busy_s - self._samples[-1][0] >= SAMPLE_S or len(self._samples) == 1:
            self._samples.append((busy_s, steps))

    def rate_steps_per_s(self) -> float:
        """Over the newest minute of steps; 0 where there is not yet enough to tell."""
        (began_s, began_steps), (ended_s, ended_steps) = self._samples[0], self._samples[-1]
        return (ended_steps - began_steps) / (ended_s - began_s) if ended_s > began_s else 0.0
