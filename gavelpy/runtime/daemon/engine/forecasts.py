"""What is known of forecasts: how earlier ones turned out, and the last one of all living jobs, for lists of jobs.

`ForecastRecord` changes it; queries read it. As text it is kept in the journal, so that intervals survive restarts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from gavelpy.errors import InvalidInput
from gavelpy.simulator.expected import Expected
from gavelpy.simulator.intervals import Interval, IntervalModel, Row

START, END = "start", "end"
UNKNOWN_S: Final = -1.0
VERSION: Final = 1  # of the text
_DIGITS: Final = 1  # of seconds in the text


@dataclass(frozen=True)
class Times:
    """When a job should start and end, from now, with intervals of 80 %; -1 = unknown, or without an upper end."""

    start_in_s: float = UNKNOWN_S
    finish_in_s: float = UNKNOWN_S
    start_low_s: float = UNKNOWN_S
    start_high_s: float = UNKNOWN_S
    finish_low_s: float = UNKNOWN_S
    finish_high_s: float = UNKNOWN_S


@dataclass(frozen=True)
class OpenForecast:
    """A forecast of which the outcome is not known yet."""

    what: str
    job: int
    at_s: float
    number: int  # in its model


class _KeptModel(msgspec.Struct, array_like=True, frozen=True):
    level: float
    first: int
    rows: list[tuple[float, int, float, bool, bool, float | None, float | None]]  # None = NaN; high -1 = infinite


class _Kept(msgspec.Struct, frozen=True):
    version: int
    models: dict[str, _KeptModel]
    open: list[tuple[str, int, float, int]]
    noted: list[tuple[int, int]]


class Forecasts:
    """Read it between two awaits."""

    def __init__(self) -> None:
        self.models = {START: IntervalModel(), END: IntervalModel()}
        self.at_s = -math.inf  # time of the last forecast of all living jobs
        self.is_read = False  # whether a list has shown it since
        self._times: Mapping[int, Times] = {}

    def interval(self, what: str, seconds: float) -> Interval | None:
        """The interval of a forecast that is made now; None if too few outcomes of similar ones are known."""
        return self.models[what].interval(seconds)

    def times(self, expected: Expected) -> Times:
        """A forecast that is made now, with its intervals."""
        is_later = math.isfinite(expected.start_in_s) and expected.start_in_s > 0
        start = self.interval(START, expected.start_in_s) if is_later else None
        return _times(expected, start, self.interval(END, expected.finish_in_s))

    def times_of(self, seen: Mapping[int, Expected]) -> dict[int, Times]:
        """The same of many jobs, by job. It takes long, and may run in a thread while no forecast is noted."""
        begin_s = [one.start_in_s if one.start_in_s > 0 else math.inf for one in seen.values()]
        starts = self.models[START].intervals(begin_s)
        ends = self.models[END].intervals([one.finish_in_s for one in seen.values()])
        both = zip(seen.items(), starts, ends, strict=True)
        return {job: _times(expected, start, end) for (job, expected), start, end in both}

    def show(self, times: Mapping[int, Times], at_s: float) -> None:
        """Sets what lists show: forecasts that were made at a time, by job."""
        self._times, self.at_s, self.is_read = times, at_s, False

    def of(self, job: int) -> Times | None:
        """The last forecast of a job, counted from `at_s`; None if there is none."""
        self.is_read = True
        return self._times.get(job)


def text_of(models: Mapping[str, IntervalModel], open_: Sequence[OpenForecast], noted: Mapping[int, int]) -> str:
    """Models, forecasts without an outcome, and how often jobs were noted, as text."""
    kept = {
        what: _KeptModel(model.level, model.first, [_rounded(row) for row in model.rows()])
        for what, model in models.items()
    }
    opened = [(one.what, one.job, round(one.at_s, _DIGITS), one.number) for one in open_]
    return msgspec.json.encode(_Kept(VERSION, kept, opened, list(noted.items()))).decode()


def of_text(text: str) -> tuple[dict[str, IntervalModel], list[OpenForecast], dict[int, int]]:
    """The models, open forecasts and counts of a text. Raises InvalidInput for one that is damaged or newer."""
    try:
        kept = msgspec.json.decode(text, type=_Kept)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"forecasts in the journal cannot be read: {error}") from None
    if kept.version != VERSION or kept.models.keys() != {START, END}:
        got = f"{kept.version} with {sorted(kept.models)}"
        raise InvalidInput(f"forecasts in the journal must be of version {VERSION} with start and end, got {got}")
    models = {
        what: IntervalModel.restored([_exact(row) for row in one.rows], one.first, one.level)
        for what, one in kept.models.items()
    }
    opened = [OpenForecast(*one) for one in kept.open if one[0] in models]
    for one in opened:
        model = kept.models[one.what]
        if one.number >= model.first + len(model.rows):
            allowed = f"below {model.first + len(model.rows)}"
            raise InvalidInput(f"number of a forecast of job {one.job} must be {allowed}, got {one.number}")
    return models, opened, dict(kept.noted)


def _rounded(row: Row) -> tuple[float, int, float, bool, bool, float | None, float | None]:
    predicted_s, subject, outcome_s, is_known, is_counted, low_s, high_s = row
    low = None if math.isnan(low_s) else round(low_s, _DIGITS)
    high = None if math.isnan(high_s) else round(high_s, _DIGITS) if high_s < math.inf else UNKNOWN_S
    return round(predicted_s, _DIGITS), subject, round(outcome_s, _DIGITS), is_known, is_counted, low, high


def _exact(row: tuple[float, int, float, bool, bool, float | None, float | None]) -> Row:
    predicted_s, subject, outcome_s, is_known, is_counted, low, high = row
    low_s = math.nan if low is None or high is None else low
    high_s = math.nan if high is None else math.inf if high < 0 else high
    return predicted_s, subject, outcome_s, is_known, is_counted, low_s, high_s


def _times(expected: Expected, start: Interval | None, end: Interval | None) -> Times:
    starts, ends = (_known(seconds) for seconds in (expected.start_in_s, expected.finish_in_s))
    start_low, start_high = _ends(start) if starts > 0 else (starts, starts)
    return Times(starts, ends, start_low, start_high, *_ends(end))


def _known(seconds: float) -> float:
    return seconds if math.isfinite(seconds) else UNKNOWN_S


def _ends(interval: Interval | None) -> tuple[float, float]:
    return (UNKNOWN_S, UNKNOWN_S) if interval is None else (interval.low_s, _known(interval.high_s))
