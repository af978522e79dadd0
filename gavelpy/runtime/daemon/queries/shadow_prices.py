"""Shadow prices of GPUs and other resources over time, in Unix time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gavelpy.runtime.daemon.queries.fields import number, require

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.queries.state import SchedulerState


@dataclass(frozen=True)
class ShadowPrice:
    """The objective of a policy gained by one more of a resource, in one period."""

    start_s: float
    length_s: float
    policy: str
    gpu_type: str
    resource: str
    known_s: float  # time of the period in which an allocation stated it
    mean: float  # over known_s
    highest: float


def shadow_prices(scheduler: SchedulerState, since_s: float = 0.0, until_s: float = 0.0) -> Sequence[ShadowPrice]:
    """Rows of the periods that overlap the time between two Unix times (0: since the journal began; until now).

    Raises InvalidInput.
    """
    number("since_s", since_s)
    number("until_s", until_s)
    require(not until_s or until_s > since_s, "until_s", "later than since_s", until_s)
    epoch_s, now_s = scheduler.wall_s(0.0), scheduler.now_s()
    configured = "" if scheduler.history.policy else scheduler.choice.name
    rows = scheduler.history.shadow_prices.rows(since_s - epoch_s, until_s - epoch_s if until_s else math.inf, now_s)
    return [
        ShadowPrice(
            epoch_s + row.start_s, row.length_s, row.priced.policy or configured, row.priced.gpu_type,
            row.priced.resource, row.known_s, row.price_s / row.known_s, row.highest,
        )
        for row in rows if row.known_s > 0
    ]  # fmt: skip
