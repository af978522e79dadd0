"""Settings of the core, with units and ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.rules import Rules


@dataclass(frozen=True)
class MechanismSettings:
    """Raises InvalidInput with the field, the value and the range."""

    round_s: float = 360.0  # leases last to the end of the round
    solve_interval_s: float = 0.0  # least time between two allocations
    solve_within_round: bool = True  # false: only at the end of a round
    fill_within_round: bool = True  # waiting jobs get free GPUs at once
    fill_leftover: bool = True  # GPUs that no share uses go to any job that can use them
    settled_rounds_max: int = 1  # longest round without changes, in rounds; any change ends it
    solve_patience_s: float = 10.0  # how long a plan waits for an allocation that is being computed
    lag_half_life_s: float = 3600.0  # half-life of owed and received time
    failures_max: int = 5  # a job that fails more often is not retried
    packing: bool = False  # the policy may co-locate two jobs
    lease_min_s: float = 0.0  # lease protection: minimum run time before preemption
    start_max_s: float = 0.0  # longest protection of a lease whose job has reported no progress; 0 = lease_min_s
    retry_s: float = 0.0  # pause before a failed job is retried, doubled each time; 0 = none
    retry_max_s: float = 300.0  # longest pause; a lease that ran this long resets the back-off
    losses_free: int = 0  # consecutive starts lost with their nodes that cause no pause
    loss_nodes_max: int = 0  # losses without progress on this many nodes in a row count as a failure; 0 = never
    solve_at_least_every_s: float = 0.0  # at the end of a round, an older allocation is computed again; 0 = never
    keep_unsaved: bool = False  # a job that is not known to resume from checkpoints is not preempted
    finish_grace_s: float = 0.0  # time after its last step in which a job is not stopped; 0 = none
    late_ends: bool = False  # the end of a lost lease counts when its node reports it later
    rules: Rules = field(default_factory=Rules)  # how time is booked and jobs are selected

    def with_round(self, round_s: float) -> MechanismSettings:
        """These settings with another round length and the settings that scale with it."""
        every_s = round_s * SOLVE_AT_LEAST_ROUNDS if self.solve_at_least_every_s else 0.0
        return replace(self, round_s=round_s, lease_min_s=round_s * LEASE_MIN_ROUNDS, solve_at_least_every_s=every_s)

    def __post_init__(self) -> None:
        _in_range("round_s", self.round_s, 1.0, 86_400.0)
        _in_range("solve_interval_s", self.solve_interval_s, 0.0, math.inf)
        _in_range("solve_patience_s", self.solve_patience_s, 0.0, 86_400.0)
        _in_range("lag_half_life_s", self.lag_half_life_s, 1.0, math.inf)
        _in_range("settled_rounds_max", self.settled_rounds_max, 1, 1_000_000)
        _in_range("failures_max", self.failures_max, 0, 1_000_000)
        _in_range("lease_min_s", self.lease_min_s, 0.0, 86_400.0)
        _in_range("start_max_s", self.start_max_s, 0.0, 86_400.0)
        _in_range("retry_s", self.retry_s, 0.0, 86_400.0)
        _in_range("retry_max_s", self.retry_max_s, self.retry_s, 86_400.0)
        _in_range("solve_at_least_every_s", self.solve_at_least_every_s, 0.0, math.inf)
        _in_range("loss_nodes_max", self.loss_nodes_max, 0, 1_000_000)
        _in_range("finish_grace_s", self.finish_grace_s, 0.0, 86_400.0)
        _in_range("losses_free", self.losses_free, 0, 1_000_000)
        self.rules.check(self)


# `lease_min_s` in rounds, where real jobs run. A lease that began with its round may be preempted at its end, even if
# the start took half of it; one that began or started late keeps its GPUs for another round. A whole round would make
# most turns two rounds.
LEASE_MIN_ROUNDS = 0.5

# `solve_at_least_every_s` in rounds, where answers depend on time: as often as the original Gavel recomputes.
SOLVE_AT_LEAST_ROUNDS = 5

# What else protects starts where real jobs run, and in simulations of them: a failing job waits as pods of Kubernetes
# do, though not after the first start that a node lost; five minutes load a large model.
START_SETTINGS: Mapping[str, Any] = MappingProxyType(  # Any: fields of MechanismSettings
    {"retry_s": 10.0, "retry_max_s": 300.0, "losses_free": 1, "start_max_s": 300.0}
)


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InvalidInput(f"{name} must be in [{low:g}, {high:g}], got {value!r}")
