"""Apps: the jobs of one hyper-parameter search, of which losers end early; the role of a job in its app, as data.

Written `NAME:at=3:jobs=9:metric=loss:direction=min:schedule=successive_halving:bracket=2:rungs=100/3,300/1`: the fourth
job of 9, with rungs at 100 and 300 steps, after which 3 jobs and 1 job continue. With `:rung_wait_max_s=3600` no job
waits longer at a rung for the others. The jobs of an app have consecutive serials.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from gavelpy.errors import InvalidInput
from gavelpy.model.limits import VALUE_MAX

NAME_ALLOWED = "1 to 63 letters, digits, '.', '_' and '-', a letter or digit first"
METRIC_ALLOWED = "1 to 63 letters, digits, '.', '_', '/' and '-', a letter or digit first"
JOBS_MAX = 100_000
RUNGS_MAX = 64
LOSS = "loss"  # the metric of jobs without an app
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_METRIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
RUNG_WAIT = "rung_wait_max_s"
_KEYS = ("at", "jobs", "metric", "direction", "schedule", "bracket", "rungs", RUNG_WAIT)


class Direction(StrEnum):
    """Whether smaller or larger values of the metric are better."""

    MIN = "min"
    MAX = "max"


class HalvingSchedule(StrEnum):
    """How jobs end early."""

    NONE = "none"
    SUCCESSIVE_HALVING = "successive_halving"
    HYPERBAND = "hyperband"


class Rung(NamedTuple):
    """Jobs are compared at `steps`; the best `keep` of them continue."""

    steps: float
    keep: int


@dataclass(frozen=True)
class AppRole:
    """The role of one job in its app. Raises InvalidInput, which names the field."""

    name: str
    at: int  # place of the job among those of its app, from 0
    jobs: int  # of the app
    metric: str = LOSS
    direction: Direction = Direction.MIN
    schedule: HalvingSchedule = HalvingSchedule.NONE
    bracket: int = 0  # jobs of one bracket are compared with each other only
    rungs: tuple[Rung, ...] = ()  # ascending; empty = no job ends early
    rung_wait_max_s: float = 0.0  # longest wait at a rung for the others of the bracket; 0 = no limit

    def __post_init__(self) -> None:
        _require(bool(_NAME.fullmatch(self.name)), "name", NAME_ALLOWED, self.name)
        _require(1 <= self.jobs <= JOBS_MAX, "jobs", f"in [1, {JOBS_MAX}]", self.jobs)
        _require(0 <= self.at < self.jobs, "at", f"in [0, {self.jobs})", self.at)
        _require(is_metric(self.metric), "metric", METRIC_ALLOWED, self.metric)
        _require(0 <= self.bracket <= RUNGS_MAX, "bracket", f"in [0, {RUNGS_MAX}]", self.bracket)
        _require(len(self.rungs) <= RUNGS_MAX, "rungs", f"at most {RUNGS_MAX}", len(self.rungs))
        before = 0.0
        for steps, keep in self.rungs:
            _require(before < steps <= VALUE_MAX, "rungs", "steps > 0 in ascending order, each once", f"{steps:g}")
            _require(1 <= keep <= JOBS_MAX, "rungs", f"STEPS/JOBS, jobs in [1, {JOBS_MAX}]", keep)
            before = steps
        is_early = self.schedule is not HalvingSchedule.NONE
        _require(is_early or not self.rungs, "rungs", "none with schedule=none", f"{len(self.rungs)} rungs")
        wait_s = self.rung_wait_max_s
        _require(0 <= wait_s <= VALUE_MAX, RUNG_WAIT, f"in [0, {VALUE_MAX:g}], 0 = no limit", wait_s)
        _require(is_early or not wait_s, RUNG_WAIT, "left out with schedule=none", wait_s)

    @property
    def text(self) -> str:
        """The role as text, which `parse` reads."""
        rungs = ",".join(f"{rung.steps!r}/{rung.keep}" for rung in self.rungs)
        wait = f":{RUNG_WAIT}={self.rung_wait_max_s!r}" if self.rung_wait_max_s else ""
        return (
            f"{self.name}:at={self.at}:jobs={self.jobs}:metric={self.metric}:direction={self.direction}"
            f":schedule={self.schedule}:bracket={self.bracket}{f':rungs={rungs}' if rungs else ''}{wait}"
        )

    @staticmethod
    def parse(text: str) -> AppRole:
        """The role that a text describes.

        >>> AppRole.parse("tune:at=3:jobs=9:schedule=successive_halving:rungs=100/3,300/1").rungs[0]
        Rung(steps=100.0, keep=3)
        """
        return _parsed(text)

    def is_better(self, value: float, other: float) -> bool:
        """Whether a value of the metric is better than another one."""
        return value < other if self.direction is Direction.MIN else value > other


def is_metric(name: str) -> bool:
    """Whether a metric can have this name."""
    return bool(_METRIC.fullmatch(name))


def check_apps(texts: Sequence[str]) -> None:
    """Raises InvalidInput unless the jobs of each app are next to each other, in order and complete; "" = no app."""
    k = 0
    while k < len(texts):
        if not texts[k]:
            k += 1
            continue
        first = AppRole.parse(texts[k])
        members = [AppRole.parse(text) if text else None for text in texts[k : k + first.jobs]]
        places = [one.at if one and (one.name, one.jobs) == (first.name, first.jobs) else None for one in members]
        if places != list(range(first.jobs)):
            allowed = f"of {first.jobs} jobs next to each other, with at=0 to at={first.jobs - 1}"
            raise InvalidInput(f"app {first.name!r} must be {allowed}, got at={', at='.join(map(str, places[:9]))}")
        k += first.jobs


@lru_cache(maxsize=4096)
def _parsed(text: str) -> AppRole:
    name, *settings = text.split(":")
    given: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if key not in _KEYS or not equals or key in given:
            raise InvalidInput(f"app must be NAME and {', '.join(_KEYS)}, each once as KEY=VALUE, got {text[:200]!r}")
        given[key] = value
    try:
        pairs = [rung.partition("/") for rung in given.get("rungs", "").split(",") if rung]
        rungs = tuple(Rung(float(steps), int(keep)) for steps, _, keep in pairs)
        numbers = {key: int(given.get(key, "0")) for key in ("at", "jobs", "bracket")}
        wait_s = float(given.get(RUNG_WAIT, "0"))
        direction, schedule = Direction(given.get("direction", "min")), HalvingSchedule(given.get("schedule", "none"))
    except ValueError as error:
        raise InvalidInput(f"app must have numbers, min or max, and a schedule ({error}), got {text!r}") from None
    at, jobs, bracket = (numbers[key] for key in ("at", "jobs", "bracket"))
    return AppRole(name, at, jobs, given.get("metric", LOSS), direction, schedule, bracket, rungs, wait_s)


def _require(ok: bool, field: str, allowed: str, value: object) -> None:
    if not ok:
        raise InvalidInput(f"{field} of an app must be {allowed}, got {value!r}")
