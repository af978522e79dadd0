"""The rules of the original Gavel (OSDI '20), for the preset `gavel-osdi20`; no other code of the core needs them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.selection import alone, joined, merit
from gavelpy.mechanism.settings import MechanismSettings, Rules
from gavelpy.mechanism.taking import Chosen, Selection, take
from gavelpy.model.arrays import Floats, Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.domains import Domains
    from gavelpy.mechanism.jobs import JobTable
    from gavelpy.mechanism.taking import Reserved

DEFICIT = "deficit_s"  # column of the job table: owed minus received time up to the last allocation, (N, T)


class PriorityRule(StrEnum):
    """How urgency is computed."""

    LAG = "lag"  # time owed / time received since arrival, with a half-life
    OSDI20 = "osdi20"  # share / received share since the last allocation


class QueueRule(StrEnum):
    """Order in which (job, GPU type) pairs get GPUs."""

    GLOBAL = "global"  # one queue over all types, then leftover GPUs
    BY_TYPE = "by_type"  # one queue per type, types in the order of WakeupDue


@dataclass(frozen=True)
class OriginalRules(Rules):
    """The original's rules. With `OSDI20`, counters restart with each allocation, at half a round."""

    newcomers_wait: bool = True  # a job gets no GPU before its first allocation
    whole_steps: bool = True  # a round ends with the last whole step; the rest is lost
    priority: PriorityRule = PriorityRule.OSDI20
    queue: QueueRule = QueueRule.BY_TYPE

    @property
    def may_merge_rounds(self) -> bool:
        """Not if each round ends with a whole step."""
        return not self.whole_steps

    @property
    def allows_sizes(self) -> bool:
        """Queues by type and whole steps exclude them, as they do co-location."""
        return self.queue is QueueRule.GLOBAL and not self.whole_steps

    def fade(self, settings: MechanismSettings, elapsed_s: float) -> float:
        """1: the counters restart instead."""
        return super().fade(settings, elapsed_s) if self.priority is PriorityRule.LAG else 1.0

    def newcomer_received_s(self, settings: MechanismSettings) -> float:
        """Half a round, as after each allocation."""
        return 0.0 if self.priority is PriorityRule.LAG else settings.round_s / 2

    def forgotten_s(self, settings: MechanismSettings) -> float:
        """Infinite: time before the allocation does not count."""
        return super().forgotten_s(settings) if self.priority is PriorityRule.LAG else math.inf

    def allocation_arrived(self, jobs: JobTable, settings: MechanismSettings) -> None:
        """Restarts the counters, with half a round received on each type; the deficit breaks ties from then on."""
        if self.priority is PriorityRule.LAG:
            return
        active, prior_s = jobs.active, settings.round_s / 2
        jobs.rule_column(DEFICIT)[active] += jobs.owed_s[active] - (jobs.received_s[active] - prior_s)
        jobs.owed_s[active] = 0.0
        jobs.received_s[active] = prior_s
        jobs.lists.time_passes(active)
        jobs.claims.owed_s[:] = 0.0
        jobs.claims.received_s[:] = prior_s

    def urgency(self, share: Floats, owed_s: Floats, received_s: Floats, settings: MechanismSettings) -> Floats:
        """Target share over received time, (K,): infinite where nothing was received. Gavel (OSDI '20), section 5."""
        if self.priority is PriorityRule.LAG:
            return super().urgency(share, owed_s, received_s, settings)
        urgency = np.divide(share, received_s, out=np.full_like(share, np.inf), where=received_s > 0)
        return np.where(share > 0, urgency, 0.0)

    def candidates(self, jobs: JobTable, rows: Ints) -> Ints:
        """Jobs that were in an allocation."""
        return rows[jobs.solved[rows] >= 0] if self.newcomers_wait else rows

    def select(
        self,
        jobs: JobTable,
        rows: Ints,
        free: Ints,
        settings: MechanismSettings,
        type_order: Ints,
        domains: Domains | None = None,
        reserved: Reserved | None = None,
    ) -> Chosen:
        """One queue per GPU type, in the order of `type_order`; empty = in the order of type numbers."""
        if self.queue is QueueRule.GLOBAL:
            return super().select(jobs, rows, free, settings, type_order, domains, reserved)
        order = type_order if len(type_order) else np.arange(jobs.rate.shape[1])
        return alone(jobs, select_by_type(jobs, rows, free, settings, order, domains, reserved))

    def round_length_s(self, jobs: JobTable, settings: MechanismSettings, chosen: Chosen) -> float:
        """Up to the last step that any chosen job completes within `round_s`.

        A job with a step longer than a round gets time for one step, as it would never complete one otherwise.
        """
        if not self.whole_steps or not len(chosen.jobs):
            return settings.round_s
        rows, rate = chosen.jobs, jobs.rate[chosen.jobs, chosen.domains]
        steps = np.maximum(np.floor(rate * settings.round_s), 1.0)
        steps = np.minimum(steps, np.ceil(jobs.steps_total[rows] - jobs.steps_done[rows]))
        return float(np.max(steps / rate)) or settings.round_s

    def check(self, settings: MechanismSettings) -> None:
        """Queues by type and whole steps exclude co-location; counters that restart exclude `move_lag_s`."""
        if settings.move_lag_s and self.priority is PriorityRule.OSDI20:
            raise InvalidInput(
                f"move_lag_s must be 0 where priority is {str(self.priority)!r}, got {settings.move_lag_s:g}: "
                "time received restarts with each allocation"
            )
        if settings.packing and self.queue is not QueueRule.GLOBAL:
            raise InvalidInput(f"queue must be {QueueRule.GLOBAL} where packing is on, got {str(self.queue)!r}")
        if settings.packing and self.whole_steps:
            raise InvalidInput("whole_steps must be False where packing is on, got True: steps of pairs are not whole")

    @property
    def stored(self) -> dict[str, Any]:
        """The four settings that store these rules: the fields."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def select_by_type(
    jobs: JobTable,
    rows: Ints,
    free: Ints,
    settings: MechanismSettings,
    type_order: Ints,
    domains: Domains | None = None,
    reserved: Reserved | None = None,
) -> Selection:
    """One queue per GPU type, types in the given order; with `fill_leftover`, jobs without a share come last.

    Order as in the original Gavel: priority, deficit, share, arrival.
    """
    left, waiting, deficit_s = free.copy(), rows, jobs.rule_column(DEFICIT)
    chosen: Selection = (rows[:0], rows[:0])
    for gpu_type in type_order.tolist():
        runs = jobs.rate[waiting, gpu_type] > 0
        if not settings.fill_leftover:
            runs &= jobs.target[waiting, gpu_type] > 0
        here = waiting[runs]
        types = np.full(len(here), gpu_type)
        urgency, _, share = merit(jobs, here, types, settings)
        order = np.lexsort((here, -share, -deficit_s[here, gpu_type], -urgency))
        slots = types if domains is None else domains.slots(here)[:, gpu_type][order]
        taken = take(here[order], slots, jobs.gpus, left, domains, reserved)
        chosen = joined(chosen, taken)
        waiting = waiting[~jobs.marks(taken[0])[waiting]]
    return chosen


_ALLOWED = {"priority": f"one of {', '.join(PriorityRule)}", "queue": f"one of {', '.join(QueueRule)}"}


def original_rules(given: Mapping[str, Any]) -> OriginalRules:  # Any: values as stored
    """The rules that these four stored settings name. Raises InvalidInput."""
    try:
        return msgspec.convert(given, OriginalRules)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("$.")[2].strip("`")
        raise InvalidInput(f"{name} must be {_ALLOWED.get(name, 'bool')}, got {given.get(name)!r}") from None
