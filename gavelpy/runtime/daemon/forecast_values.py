"""What is asked of the process that looks ahead, and what it answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.model.job import JobSpec
from gavelpy.runtime.daemon.policy_choice import PolicyChoice

NOT_SEEN_S = math.inf


@dataclass(frozen=True)
class Expected:
    """What will become of a job, counted from now. Infinite = not seen to happen."""

    start_in_s: float = NOT_SEEN_S
    finish_in_s: float = NOT_SEEN_S
    gpu_type: str = ""
    node_ids: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class LookAhead:
    """What is asked: a copy of the core (its specs apart, in pickled parts) and what is to be known of which jobs."""

    core: SchedulerCore
    specs: Sequence[bytes]
    now_s: float
    choice: PolicyChoice
    submitted: Sequence[JobSpec]  # tried out; their serials follow those there are
    wanted: Sequence[int]
    rates: Mapping[int, float]  # measured, by job
    horizon_s: float
    wall_s: float
    everything: bool = False  # every living job is wanted, and the answer is in `Ahead.seen`


@dataclass(frozen=True)
class Ahead:
    """What will become of the wanted jobs, in order, and why that is not all, if it is not."""

    expected: tuple[Expected, ...]
    why_not: str
    seen: Mapping[int, Expected] = field(default_factory=dict)  # by job, those that start; of `everything` only
