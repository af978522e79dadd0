"""The rules of the core: how time is booked, how urgent a job is, which jobs get GPUs, and how long a round lasts.

`Rules` are those of this scheduler. A subclass can replace single rules and be passed in `MechanismSettings.rules`: see
`original_gavel`, which has the rules of the original Gavel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism.selection import Chosen, alone, select_global, select_packed
from gavelpy.model.arrays import Floats, Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.domains import Domains
    from gavelpy.mechanism.jobs import JobTable
    from gavelpy.mechanism.selection import Reserved
    from gavelpy.mechanism.settings import MechanismSettings


@dataclass(frozen=True)
class Rules:
    """Owed and received time fade with a half-life; one queue over all GPU types; rounds of equal length."""

    @property
    def may_merge_rounds(self) -> bool:
        """Whether several rounds without changes may be one."""
        return True

    def fade(self, settings: MechanismSettings, elapsed_s: float) -> float:
        """Factor on owed and received time after `elapsed_s`."""
        return float(0.5 ** (elapsed_s / settings.lag_half_life_s))

    def newcomer_received_s(self, settings: MechanismSettings) -> float:
        """Received time of a new job on each type."""
        return 0.0

    def forgotten_s(self, settings: MechanismSettings) -> float:
        """A pair without a share is deleted at an allocation if its owed and received time are below this."""
        return settings.round_s / 32

    def allocation_arrived(self, jobs: JobTable, settings: MechanismSettings) -> None:
        """A new allocation is in force: changes nothing, because owed time must outlast it."""

    def urgency(self, share: Floats, owed_s: Floats, received_s: Floats, settings: MechanismSettings) -> Floats:
        """Urgency of (job, type) pairs, (K,): time owed over time received, zero where the share is zero.

        Half a round is added to both sides (to what is owed, at the target share), so that a newcomer starts at its
        share, and a job that gets what it is owed approaches 1.
        """
        prior_s = settings.round_s / 2
        return np.where(share > 0, (owed_s + share * prior_s) / (received_s + prior_s), 0.0)

    def candidates(self, jobs: JobTable, rows: Ints) -> Ints:
        """Jobs among `rows` that may get GPUs: all of them, with or without an allocation."""
        return rows

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
        """Jobs among `rows` that run: one queue over all types. `free` (L,) are the GPUs to allocate."""
        if jobs.pairs.count:
            return select_packed(jobs, rows, free, settings, domains, reserved)
        return alone(select_global(jobs, rows, free, settings, domains, reserved))

    def round_length_s(self, jobs: JobTable, settings: MechanismSettings, chosen: Chosen) -> float:
        """Length of the coming round, in which these jobs run. The domains of `chosen` are GPU types."""
        return settings.round_s

    def check(self, settings: MechanismSettings) -> None:
        """Raises InvalidInput for settings that these rules do not support."""
