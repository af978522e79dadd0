"""Messages between the scheduler and the forecast process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.model.job import JobSpec
from gavelpy.runtime.daemon.engine.policy_choice import PolicyChoice

NOT_SEEN_S = math.inf


@dataclass(frozen=True)
class Expected:
    """Forecast of a job, counted from now. Infinite = not within the simulated time."""

    start_in_s: float = NOT_SEEN_S
    finish_in_s: float = NOT_SEEN_S
    gpu_type: str = ""
    node_ids: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class LookAhead:
    """Request: a copy of the core, with its specs in separate pickled parts, and the wanted jobs."""

    core: SchedulerCore
    specs: Sequence[bytes]
    now_s: float
    choice: PolicyChoice
    submitted: Sequence[JobSpec]  # in addition to the core's jobs; their serials follow
    wanted: Sequence[int]
    rates: Mapping[int, float]  # measured, by job
    horizon_s: float
    wall_s: float
    everything: bool = False  # every living job is wanted, and the answer is in `Ahead.seen`


@dataclass(frozen=True)
class Ahead:
    """Forecasts of the wanted jobs, in order, and why they are incomplete (empty = they are complete)."""

    expected: tuple[Expected, ...]
    why_not: str
    seen: Mapping[int, Expected] = field(default_factory=dict)  # by job, those that start; of `everything` only
