"""Named settings of simulations; `gavel-osdi20` reproduces the original Gavel's simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.original_gavel import OriginalRules
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import BlindView
from gavelpy.simulator.cluster import VirtualCluster
from gavelpy.simulator.settings import Costs, SimulationSettings, StepCount

STEP_ROUNDING = 1e-6  # a step this close to its end is done


@dataclass(frozen=True)
class WholeSteps(StepCount):
    """The original's count: a round ends with the last whole step, and the rest is lost."""

    def done(self, steps: Floats) -> Floats:
        """The whole steps among these."""
        return np.floor(steps + STEP_ROUNDING)

    def extended(self, cluster: VirtualCluster, rows: Ints, now_s: float) -> None:
        """These jobs begin a new step now; jobs about to finish are on the timeline already."""
        rows = rows[(cluster.began_s[rows] < now_s) & ~cluster.is_watched[rows]]
        cluster.count_again(rows, now_s)


GAVEL_OSDI20 = SimulationSettings(
    mechanism=MechanismSettings(
        round_s=360.0,
        solve_interval_s=1920.0,
        solve_within_round=False,
        fill_within_round=False,
        rules=OriginalRules(),
    ),
    costs=Costs(checkpoint_s=0.0, restart_s=0.0, migration_s=0.0),
    plans_slack=False,
    steps=WholeSteps(),
    blind_view=MappingProxyType(
        {"max_min_fairness": BlindView.ONES, "las": BlindView.ONES, "min_makespan": BlindView.FIRST}
    ),
    shuffled=frozenset({"isolated", "isolated@blind", "max_min_fairness@blind", "las@blind", "min_makespan@blind"}),
)

PRESETS: Mapping[str, SimulationSettings] = MappingProxyType(
    {"default": SimulationSettings(), "gavel-osdi20": GAVEL_OSDI20}
)


def preset(name: str) -> SimulationSettings:
    """The settings of that name; raises InvalidInput with the known names."""
    if name not in PRESETS:
        raise InvalidInput(f"preset must be one of {', '.join(sorted(PRESETS))}, got {name!r}")
    return PRESETS[name]
