"""Costs of starts, restores, checkpoints and migrations by job type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gavelpy.errors import InvalidInput
from gavelpy.simulator.conditions.draws import Duration, duration


@dataclass(frozen=True)
class Costs:
    """Seconds that a job holds GPUs without progress."""

    checkpoint_s: float = 5.0  # after a lease is revoked, to write a checkpoint
    restart_s: float = 15.0  # before the first step of every lease, to start and load
    migration_s: float = 5.0  # in addition, if the job last ran on other GPUs

    def __post_init__(self) -> None:
        for name in ("checkpoint_s", "restart_s", "migration_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidInput(f"{name} must be finite and >= 0, got {value!r}")

    @property
    def turn_s(self) -> float:
        """Highest cost of a turn: a start on other GPUs and a checkpoint."""
        return self.checkpoint_s + self.restart_s + self.migration_s


COSTS = ("start", "restore", "checkpoint", "migration")


class KnownCosts(NamedTuple):
    """The costs of one job type."""

    start: Duration
    restore: Duration
    checkpoint: Duration
    migration: Duration


@dataclass(frozen=True)
class CostsOfType:
    """Durations in which a job holds GPUs without progress: a number of seconds or a `Duration`; None = the default."""

    start: float | Duration | None = None  # before the first step of each lease, to start the program
    restore: float | Duration | None = None  # in addition, of a lease that resumes from a checkpoint
    checkpoint: float | Duration | None = None  # each time that the job saves
    migration: float | Duration | None = None  # in addition to start and restore, on other GPUs than before

    def __post_init__(self) -> None:
        for name in COSTS:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, duration(value))


@dataclass(frozen=True)
class JobCosts(CostsOfType):
    """The costs of all job types, with those of single types; what none of them states is as in `Costs`."""

    types: Mapping[str, CostsOfType] = field(default_factory=dict)  # by job type

    def of(self, job_type: str, base: Costs) -> KnownCosts:
        """The costs of a job type."""
        own = self.types.get(job_type, CostsOfType())
        default = CostsOfType(base.restart_s, 0.0, base.checkpoint_s, base.migration_s)
        found = [next(v for one in (own, self, default) if (v := getattr(one, name)) is not None) for name in COSTS]
        return KnownCosts(*found)

    @property
    def is_given(self) -> bool:
        """Whether it states anything."""
        return bool(self.types) or any(getattr(self, name) is not None for name in COSTS)

    def turn_s(self, base: Costs) -> float:
        """Highest mean cost of a turn of any job type: a start on other GPUs and a checkpoint."""
        names = ["", *self.types]
        return max(sum(one.mean_s for one in self.of(name, base)) for name in names)
