"""Settings of the core, with units and ranges, and its rules: how time fades, how urgent a job is, which jobs get GPUs.

`Rules` are those of this scheduler. A subclass can replace single rules and be passed in `MechanismSettings.rules`: see
`original_gavel`, which has the rules of the original Gavel. Journals, snapshots and configurations store rules as four
settings: `newcomers_wait`, `whole_steps`, `priority` and `queue`. Each can be switched separately.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.gpu_memory import GpuType, check_gpu_types
from gavelpy.mechanism.priority_classes import PriorityClass, check_classes
from gavelpy.mechanism.selection import select
from gavelpy.mechanism.strategies import STRATEGIES
from gavelpy.mechanism.taking import Chosen
from gavelpy.mechanism.teams import Team, any_limits, check_teams
from gavelpy.model.arrays import Floats, Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.domains import Domains
    from gavelpy.mechanism.jobs import JobTable
    from gavelpy.mechanism.taking import Reserved


@dataclass(frozen=True)
class Rules:
    """Owed and received time fade with a half-life; one queue over all GPU types; rounds of equal length."""

    @property
    def may_merge_rounds(self) -> bool:
        """Whether several rounds without changes may be one."""
        return True

    @property
    def allows_sizes(self) -> bool:
        """Whether jobs may have several sizes."""
        return True

    def fade(self, settings: MechanismSettings, elapsed_s: float) -> float:
        """Factor on owed and received time after `elapsed_s`: 1 where `lag_max_s` limits their difference instead."""
        return 1.0 if settings.move_lag_s else float(0.5 ** (elapsed_s / settings.lag_half_life_s))

    def lag_max_s(self, settings: MechanismSettings) -> float:
        """Largest difference of owed and received time, either way; infinite where time fades instead."""
        return LAG_MAX * settings.move_lag_s if settings.move_lag_s else math.inf

    def newcomer_received_s(self, settings: MechanismSettings) -> float:
        """Received time of a new job on each type."""
        return 0.0

    def forgotten_s(self, settings: MechanismSettings) -> float:
        """A claim without a share is deleted at an allocation if its owed and received time are below this."""
        return settings.round_s / 32

    def allocation_arrived(self, jobs: JobTable, settings: MechanismSettings) -> None:
        """A new allocation is in force: changes nothing, because owed time must outlast it."""

    def urgency(self, share: Floats, owed_s: Floats, received_s: Floats, settings: MechanismSettings) -> Floats:
        """Urgency of (job, type) pairs, (K,): time owed over time received, zero where the share is zero.

        Half a round is added to both sides (to what is owed, at the target share), so that a newcomer starts at its
        share, and a job that gets what it is owed approaches 1.

        With `move_lag_s`, urgency is the lag in units of it: time owed less time received; see `selection.merit`.
        """
        if settings.move_lag_s:
            return np.where(share > 0, (owed_s - received_s) / settings.move_lag_s, 0.0)
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
        return select(jobs, rows, free, settings, domains, reserved)

    def round_length_s(self, jobs: JobTable, settings: MechanismSettings, chosen: Chosen) -> float:
        """Length of the coming round, in which these jobs run. The domains of `chosen` are GPU types."""
        return settings.round_s

    def check(self, settings: MechanismSettings) -> None:
        """Raises InvalidInput for settings that these rules do not support."""

    @property
    def stored(self) -> dict[str, Any]:
        """The four settings that store these rules."""
        return dict(STORED_RULES)


STORED_RULES: Mapping[str, Any] = MappingProxyType(  # Any: bool or str
    {"newcomers_wait": False, "whole_steps": False, "priority": "lag", "queue": "global"}
)


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
    system_failures_max: int = 20  # the same for failures that the system causes, not the job; see failures
    packing: bool = False  # the policy may co-locate two jobs
    lease_min_s: float = 0.0  # lease protection: minimum run time before preemption
    move_lag_s: float = 0.0  # a running job is preempted by a job whose lag is this much larger; 0 = by urgency alone
    start_max_s: float = 0.0  # longest protection of a lease whose job has reported no progress; 0 = lease_min_s
    retry_s: float = 0.0  # pause before a failed job is retried, doubled each time; 0 = none
    retry_max_s: float = 300.0  # longest pause; a lease that ran this long resets the back-off
    losses_free: int = 0  # consecutive starts lost with their nodes that cause no pause
    loss_nodes_max: int = 0  # losses without progress on this many nodes in a row count as a failure; 0 = never
    solve_at_least_every_s: float = 0.0  # at the end of a round, an older allocation is computed again; 0 = never
    keep_unsaved: bool = False  # a job that is not known to resume from checkpoints is not preempted
    finish_grace_s: float = 0.0  # time after its last step in which a job is not stopped; 0 = none
    late_ends: bool = False  # the end of a lost lease counts when its node reports it later
    priorities: tuple[PriorityClass, ...] = ()  # priority classes of jobs; empty = one class
    jobs_running_a_user_max: int = 0  # jobs of one owner that have GPUs at once; 0 = no limit
    gpus_a_user_max: int = 0  # GPUs that the jobs of one owner have at once; 0 = no limit
    placement: str = STRATEGIES[0]  # which nodes new leases get: see strategies
    consolidate_s: float = 0.0  # how long a gang waits for each level of closeness; 0 = it does not wait
    defragment: bool = False  # running jobs move to free GPUs in one place for a gang that waits, where that pays
    packing_measured: bool = False  # measured GPU memory of a job that declared none counts as declared
    gpu_types: tuple[GpuType, ...] = ()  # with known memory, which jobs share if it suffices; empty = no limits
    teams: tuple[Team, ...] = ()  # the entities of jobs; empty = those that jobs name
    move_within_round: bool = False  # running jobs move to faster free GPUs at once, where that pays: see early_moves
    in_order: bool = False  # the policy serves jobs in order of submission: see competition
    rules: Rules = field(default_factory=Rules)  # how time is booked and jobs are selected

    def with_round(self, round_s: float) -> MechanismSettings:
        """These settings with another round length and the settings that scale with it."""
        every_s = round_s * SOLVE_AT_LEAST_ROUNDS if self.solve_at_least_every_s else 0.0
        is_by_round = self.solve_interval_s == self.round_s * SOLVE_INTERVAL_ROUNDS
        return replace(
            self,
            round_s=round_s,
            solve_interval_s=round_s * SOLVE_INTERVAL_ROUNDS if is_by_round else self.solve_interval_s,
            lease_min_s=round_s * LEASE_MIN_ROUNDS,
            move_lag_s=round_s * MOVE_LAG_ROUNDS if self.move_lag_s else 0.0,
            solve_at_least_every_s=every_s,
        )

    @property
    def limits_teams(self) -> bool:
        """Whether any team has a quota or guaranteed GPUs."""
        return bool(self.teams) and any_limits(self.teams)

    @property
    def limits_users(self) -> bool:
        """Whether what the jobs of one owner have at once is limited."""
        return bool(self.jobs_running_a_user_max or self.gpus_a_user_max)

    def __post_init__(self) -> None:
        _in_range("round_s", self.round_s, 1.0, 86_400.0)
        _in_range("solve_interval_s", self.solve_interval_s, 0.0, math.inf)
        _in_range("solve_patience_s", self.solve_patience_s, 0.0, 86_400.0)
        _in_range("lag_half_life_s", self.lag_half_life_s, 1.0, math.inf)
        _in_range("settled_rounds_max", self.settled_rounds_max, 1, 1_000_000)
        _in_range("failures_max", self.failures_max, 0, 1_000_000)
        _in_range("system_failures_max", self.system_failures_max, 0, 1_000_000)
        _in_range("lease_min_s", self.lease_min_s, 0.0, 86_400.0)
        _in_range("move_lag_s", self.move_lag_s, 0.0, 604_800.0)
        _in_range("start_max_s", self.start_max_s, 0.0, 86_400.0)
        _in_range("retry_s", self.retry_s, 0.0, 86_400.0)
        _in_range("retry_max_s", self.retry_max_s, self.retry_s, 86_400.0)
        _in_range("solve_at_least_every_s", self.solve_at_least_every_s, 0.0, math.inf)
        _in_range("loss_nodes_max", self.loss_nodes_max, 0, 1_000_000)
        _in_range("finish_grace_s", self.finish_grace_s, 0.0, 86_400.0)
        _in_range("losses_free", self.losses_free, 0, 1_000_000)
        _in_range("jobs_running_a_user_max", self.jobs_running_a_user_max, 0, 10_000_000)
        _in_range("gpus_a_user_max", self.gpus_a_user_max, 0, 10_000_000)
        if self.placement not in STRATEGIES:
            raise InvalidInput(f"placement must be one of {', '.join(STRATEGIES)}, got {self.placement!r}")
        _in_range("consolidate_s", self.consolidate_s, 0.0, 604_800.0)
        if self.defragment and not self.consolidate_s:
            raise InvalidInput("defragment must be false without consolidate_s, got true")
        check_classes(self.priorities)
        check_gpu_types(self.gpu_types)
        if self.packing_measured and not self.packing:
            raise InvalidInput("packing_measured must be false without packing, got true")
        if self.teams:
            check_teams(self.teams)
        self.rules.check(self)


# `lease_min_s` in rounds, where real jobs run. A lease that began with its round may be preempted at its end, even if
# the start took half of it; one that began or started late keeps its GPUs for another round. A whole round would make
# most turns two rounds.
LEASE_MIN_ROUNDS = 0.5

# `move_lag_s` in rounds, where starts cost time, by measurement: see docs/decisions/0039.
MOVE_LAG_ROUNDS = 5.0
MOVE_LAG_ROUNDS_ON_TIME = 1.0  # the same for policies that use deadlines, which need shares delivered promptly
LAG_MAX = 2.0  # the largest lag that counts, either way, in units of `move_lag_s`

# `solve_interval_s` in rounds in simulations: allocations at every arrival and finish cost more and give the same
# averages. See docs/decisions/0010.
SOLVE_INTERVAL_ROUNDS = 1

# `solve_at_least_every_s` in rounds, where answers depend on time: as often as the original Gavel recomputes.
SOLVE_AT_LEAST_ROUNDS = 5

# What else protects starts where real jobs run, and in simulations of them: a failing job waits as pods of Kubernetes
# do, though not after the first start that a node lost; five minutes load a large model.
START_SETTINGS: Mapping[str, Any] = MappingProxyType(  # Any: fields of MechanismSettings
    {"retry_s": 10.0, "retry_max_s": 300.0, "losses_free": 1, "start_max_s": 300.0}
)


def has_placement(settings: MechanismSettings) -> bool:
    """Whether leases are placed in another way than by default."""
    return settings.placement != STRATEGIES[0] or bool(settings.consolidate_s)


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InvalidInput(f"{name} must be in [{low:g}, {high:g}], got {value!r}")


# Settings as journals, snapshots and configurations store them ------------------------------------------------------

_BEFORE = {  # places of the rules in a record
    "settled_rounds_max": ("newcomers_wait", "whole_steps"),
    "lag_half_life_s": ("priority", "queue"),
}


def settings_values(settings: MechanismSettings) -> dict[str, Any]:
    """All settings by name, with the rules as stored settings, in the order of a journal's record."""
    rules = settings.rules.stored
    values: dict[str, Any] = {}
    for name in (one.name for one in fields(settings)):
        values |= {rule: rules[rule] for rule in _BEFORE.get(name, ())}
        if name != "rules":
            values[name] = getattr(settings, name)
    for name in ("priorities", "teams", "gpu_types"):
        if values[name]:
            values[name] = [asdict(one) for one in values[name]]
    for team in values["teams"]:
        for name in ("quota", "guaranteed"):
            if not team[name]:
                del team[name]
    return values


def settings_of(values: Mapping[str, Any]) -> MechanismSettings:
    """Settings from their stored values; raises InvalidInput or msgspec.ValidationError."""
    if not isinstance(values, Mapping):
        raise InvalidInput(f"settings must be a map, got {values!r}")
    rest = {name: value for name, value in values.items() if name not in STORED_RULES}
    return replace(msgspec.convert(rest, MechanismSettings), rules=rules_of(values))


def rules_of(values: Mapping[str, Any]) -> Rules:  # Any: values as stored
    """The rules that these stored settings name; missing ones are those of `Rules`. Raises InvalidInput."""
    given = {name: values.get(name, default) for name, default in STORED_RULES.items()}
    if given == STORED_RULES and all(isinstance(given[name], type(value)) for name, value in STORED_RULES.items()):
        return Rules()
    from gavelpy.mechanism.original_gavel import original_rules  # only if any of its rules is in use

    return original_rules(given)
