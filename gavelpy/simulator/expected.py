"""The forecast of one job, apart from the simulator, which only a worker process of the scheduler loads."""

from __future__ import annotations

import math
from dataclasses import dataclass

NOT_SEEN_S = math.inf


@dataclass(frozen=True)
class Expected:
    """Forecast of a job, counted from now. Infinite = not within the simulated time."""

    start_in_s: float = NOT_SEEN_S
    finish_in_s: float = NOT_SEEN_S
    gpu_type: str = ""  # of its first lease, as the next two
    node_ids: tuple[str, ...] = ()
    gpus: int = 0
