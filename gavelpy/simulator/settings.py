"""Settings of a simulation: the mechanism, costs of starts and stops, and presets.

The preset `gavel-osdi20` reproduces the original Gavel's simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.original_gavel import OriginalRules
from gavelpy.mechanism.settings import (
    LEASE_MIN_ROUNDS,
    MOVE_LAG_ROUNDS,
    MOVE_LAG_ROUNDS_ON_TIME,
    SOLVE_AT_LEAST_ROUNDS,
    SOLVE_INTERVAL_ROUNDS,
    START_SETTINGS,
    MechanismSettings,
)
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import BlindView
from gavelpy.policies.base import Policy, uses_deadlines, varies_with_time
from gavelpy.simulator.conditions.job_costs import Costs as Costs
from gavelpy.simulator.conditions.spec import Conditions

if TYPE_CHECKING:
    from gavelpy.simulator.virtual_leases import VirtualLeases

WORK_MIN = 0.5  # least part of a turn that is work, without a warning
SETTLED_ROUNDS = 1_000_000  # virtual leases need no renewal: rounds without changes are merged


def default_mechanism() -> MechanismSettings:
    """The daemon's mechanism settings, for virtual leases and with one allocation a round at most."""
    round_s = MechanismSettings.round_s
    return MechanismSettings(
        solve_interval_s=round_s * SOLVE_INTERVAL_ROUNDS,
        settled_rounds_max=SETTLED_ROUNDS,
        lease_min_s=round_s * LEASE_MIN_ROUNDS,
        move_lag_s=round_s * MOVE_LAG_ROUNDS,
        solve_at_least_every_s=round_s * SOLVE_AT_LEAST_ROUNDS,  # for policies whose allocations vary with time
        **START_SETTINGS,
    )


@dataclass(frozen=True)
class StepCount:
    """How virtual jobs count their steps: continuously, also across rounds."""

    saves_meanwhile: ClassVar[bool] = False  # whether running jobs write checkpoints

    def done(self, steps: Floats) -> Floats:
        """Steps that count, of these."""
        return steps

    def extended(self, cluster: VirtualLeases, rows: Ints, now_s: float) -> None:
        """The leases of these jobs continue into another round: their steps continue, too."""

    def worked_s(self, cluster: VirtualLeases, rows: Ints, now_s: float | Floats, since_s: Floats) -> Floats:
        """Time from `since_s` (K,), but not before their first steps, to now in which these jobs make steps."""
        return np.maximum(now_s - since_s, 0.0)

    def worked_at_s(self, cluster: VirtualLeases, rows: Ints, work_s: Floats) -> Floats:
        """When these jobs have worked this long since `cluster.counted_s`."""
        worked_at_s: Floats = cluster.counted_s[rows] + work_s
        return worked_at_s

    def book_saves(self, cluster: VirtualLeases, rows: Ints, now_s: float) -> None:
        """Books the checkpoints that running jobs have completed by now: none, as jobs save when they are stopped."""


@dataclass(frozen=True)
class SimulationSettings:
    """All parameters of a simulation except trace, cluster, policy and seed."""

    mechanism: MechanismSettings = field(default_factory=default_mechanism)
    costs: Costs = field(default_factory=Costs)
    blind_view: Mapping[str, BlindView] = field(default_factory=dict)  # by policy; default: the mean rate
    plans_slack: bool = True  # policies that plan deadlines know the round length, the cost of a turn and the lag
    mechanism_given: frozenset[str] = (
        frozenset()
    )  # fields of the mechanism that hold for all policies: see `for_policy`
    steps: StepCount = field(default_factory=StepCount)
    conditions: Conditions = field(default_factory=Conditions)
    shuffled: frozenset[str] = frozenset()  # labels of runs with a random type order in each round

    def blind_view_of(self, policy: str) -> BlindView:
        """Rates that this policy sees when it is blind."""
        return self.blind_view.get(policy, BlindView.MEAN)

    def for_policy(self, policy: Policy) -> SimulationSettings:
        """These settings with the mechanism's defaults for a policy.

        A policy that uses deadlines gets a `move_lag_s` of one round in place of the default of five. Under a policy
        whose jobs start only with a share, each arrival and finish is answered at once, as by the daemon. Any other
        value stays, and so do the fields of `mechanism_given`.
        """
        mechanism = self.mechanism
        round_s, move_lag_s, interval_s = mechanism.round_s, mechanism.move_lag_s, mechanism.solve_interval_s
        is_default = move_lag_s == round_s * MOVE_LAG_ROUNDS
        if is_default and uses_deadlines(policy):
            move_lag_s = round_s * MOVE_LAG_ROUNDS_ON_TIME
        is_default = interval_s == round_s * SOLVE_INTERVAL_ROUNDS
        if is_default and not policy.fills_leftover:
            interval_s = 0.0
        every_s = mechanism.solve_at_least_every_s if varies_with_time(policy) else 0.0
        declared: dict[str, Any] = {"fill_leftover": policy.fills_leftover, "solve_at_least_every_s": every_s}
        declared |= {"move_lag_s": move_lag_s, "solve_interval_s": interval_s}
        chosen = {name: value for name, value in declared.items() if name not in self.mechanism_given}
        return replace(self, mechanism=replace(mechanism, **chosen))

    @property
    def little_work(self) -> str:
        """A warning if less than half of a turn may be work, else empty."""
        mechanism, turn_s = self.mechanism, self.costs.turn_s
        longest_s = max(mechanism.round_s, mechanism.lease_min_s)
        if longest_s * (1.0 - WORK_MIN) >= turn_s:
            return ""
        return (
            f"less than half of a round is work: a round takes {mechanism.round_s:g} s, and of each turn of a job up "
            f"to {turn_s:g} s go to its start and its checkpoint; longer rounds (round_s {turn_s / (1.0 - WORK_MIN):g} "
            "or more) waste less"
        )


STEP_ROUNDING = 1e-6  # a step this close to its end is done


@dataclass(frozen=True)
class WholeSteps(StepCount):
    """The original's count: a round ends with the last whole step, and the rest is lost."""

    def done(self, steps: Floats) -> Floats:
        """The whole steps among these."""
        return np.floor(steps + STEP_ROUNDING)

    def extended(self, cluster: VirtualLeases, rows: Ints, now_s: float) -> None:
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
        {
            "max_min_fairness": BlindView.ONES,
            "las": BlindView.ONES,
            "min_makespan": BlindView.FIRST,
            "finish_time_fairness": BlindView.FIRST,
        }
    ),
    shuffled=frozenset(
        {"isolated"}
        | {f"{name}@blind" for name in ("isolated", "max_min_fairness", "las", "min_makespan", "finish_time_fairness")}
    ),
)

PRESETS: Mapping[str, SimulationSettings] = MappingProxyType(
    {"default": SimulationSettings(), "gavel-osdi20": GAVEL_OSDI20}
)


def preset(name: str) -> SimulationSettings:
    """The settings of that name; raises InvalidInput with the known names."""
    if name not in PRESETS:
        raise InvalidInput(f"preset must be one of {', '.join(sorted(PRESETS))}, got {name!r}")
    return PRESETS[name]
