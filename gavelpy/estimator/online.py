"""The estimator that a scheduler keeps: a table, what users claim, and what running jobs report.

A user's figures are measurements with a large error, part of it common to all types; a few minutes of running outvote
them. Readings that cannot be true are refused with a reason, which the shell logs. Where several in a row
agree, it is what was expected that was wrong. An update touches one job type's small Gaussian; `absorb` lets other job
types learn from it, off the fast path.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gavelpy.estimator.claims import with_claims
from gavelpy.estimator.company import CompanyReadings
from gavelpy.estimator.completion import Completion, Estimates, EstimatorModel, aligned
from gavelpy.estimator.gauge import Gauge
from gavelpy.estimator.gaussian import UNKNOWN_VARIANCE, updated
from gavelpy.estimator.isolated import Blocks
from gavelpy.estimator.kinds import Key
from gavelpy.estimator.pairs import Alone, Slowdowns, kept
from gavelpy.model.arrays import Floats
from gavelpy.model.throughput import Provenance, ThroughputTable

WARM_UP_S = 30.0  # of a lease, in which nothing is believed
STUCK_S = 600.0  # without a step: the job does not run there
RATE_MAX_STEPS_PER_S = 1e9
_FAR = math.log(1000.0)  # from what is expected: refused, if it is also beyond _FAR_SD
_FAR_SD = 6.0
_AGREEING, _AGREE = 3, math.log(1.5)  # so many far readings in a row, each within a factor of the last, are believed
_OWN_LEVEL_SD = 0.3  # of a running job against the table's figures for its type: another script, another phase
_PHASE_DOUBT = 0.3  # sd of what one type's new phase means for the others
_HINTS_MAX, _HINT_DOUBT = 4.0, 0.15  # readings beside partners that a hint is worth, and what they have in common
_TOLD_NOTHING = 0.99  # of a variance that is left
_NOTABLE = 0.1  # by how much a claim must be off for its owner to hear of it


@dataclass(frozen=True)
class Reading:
    """Steps that a job made on GPUs of one type in some seconds, which ended `lease_age_s` after its first."""

    job_type: str
    gpus: int
    gpu_type: str
    steps: float
    seconds: float
    lease_age_s: float = math.inf


@dataclass(frozen=True)
class Verdict:
    """What became of a reading or a claim, and why; shells log the reasons."""

    accepted: bool
    reason: str = ""
    is_new_phase: bool = False


@dataclass
class _Entry:
    """One key: base belief, claims, gauges."""

    blocks: Blocks
    fits: Floats  # (1, T)
    kinds: tuple[int, ...]  # provenance of the base belief, T
    claims: dict[str, float] = field(default_factory=dict)  # log steps/s by GPU type
    gauges: dict[str, Gauge] = field(default_factory=dict)
    idle_s: dict[str, float] = field(default_factory=dict)  # without a step, by GPU type
    doubted: dict[str, list[float]] = field(default_factory=dict)  # log rates refused in a row that agree
    hints: dict[str, Gauge] = field(default_factory=dict)  # rates alone as rates beside partners suggest them
    weighed: set[str] = field(default_factory=set)  # GPU types whose hints are of all pairs together


class ThroughputEstimator:
    """Beliefs about rates of jobs alone, and about what they keep of them beside each other.

    Knows no clock and draws nothing: same calls, same answers.
    """

    def __init__(
        self, table: ThroughputTable, model: EstimatorModel | None = None, gpu_types: Sequence[str] = ()
    ) -> None:
        self.table, self.model = table, model or EstimatorModel()
        self.gpu_types = tuple(dict.fromkeys([*table.gpu_types, *gpu_types]))
        self._column = {name: t for t, name in enumerate(self.gpu_types)}
        self._entries: dict[Key, _Entry] = {}
        self._completion = Completion(table, self.model)
        self._company = CompanyReadings()
        self._weigh_pairs()

    # Told --------------------------------------------------------------------------------------------------------

    def claim(self, job_type: str, gpus: int, rates_steps_per_s: Mapping[str, float]) -> list[Verdict]:
        """A user's figures, by GPU type; a claim of 0 says that the job does not fit."""
        if not rates_steps_per_s:
            return []
        self._meet(rates_steps_per_s)
        entry, verdicts = self._entry((job_type, gpus)), []
        for gpu_type, rate in rates_steps_per_s.items():
            wrong = _impossible(rate)
            if not wrong and rate > 0:
                entry.claims[gpu_type] = math.log(rate)
            elif not wrong and gpu_type not in entry.gauges:
                entry.fits[0, self._column[gpu_type]] = 0.0
            verdicts.append(_verdict(job_type, gpu_type, wrong and f"claimed {rate!r} steps/s: {wrong}"))
        return verdicts

    def observe(self, reading: Reading) -> Verdict:
        """What a job that runs alone reports."""
        where = reading.job_type, reading.gpu_type
        if wrong := _unusable(reading):
            return _verdict(*where, wrong)
        self._meet((reading.gpu_type,))
        entry = self._entry((reading.job_type, reading.gpus))
        if reading.steps == 0:
            return self._idle(entry, reading)
        rate = reading.steps / reading.seconds
        if wrong := _untold(reading, rate):
            return _verdict(*where, wrong)
        believed, reason = self._judged(entry, reading, math.log(rate))
        if not believed:
            return _verdict(*where, reason)
        entry.idle_s.pop(reading.gpu_type, None)
        entry.fits[0, self._column[reading.gpu_type]] = 1.0
        gauge = entry.gauges.setdefault(reading.gpu_type, Gauge())
        jump = sum(gauge.read(log_rate) for log_rate in believed)
        if jump:
            for gpu_type, other in entry.gauges.items():
                if gpu_type != reading.gpu_type:
                    other.shift(jump, _PHASE_DOUBT)
            reason = reason or f"a new phase, {math.exp(jump):.3g} times as fast"
        return Verdict(True, f"{reading.job_type} on {reading.gpu_type}: {reason}" if reason else "", bool(jump))

    def observe_beside(self, reading: Reading, partner: Key) -> Verdict:
        """What a job reports that runs beside another on the same GPUs."""
        where = reading.job_type, reading.gpu_type
        if wrong := _unusable(reading):
            return _verdict(*where, wrong)
        self._meet((reading.gpu_type,))
        key = reading.job_type, reading.gpus
        entry, _ = self._entry(key), self._entry(partner)
        cell = key, partner, reading.gpu_type
        if reading.steps == 0:
            stuck = self._company.idle(cell, reading.seconds)
            return Verdict(True, f"{where[0]} on {where[1]} beside {partner[0]}: no step, so they do not fit" * stuck)
        rate = reading.steps / reading.seconds
        if wrong := _untold(reading, rate):
            return _verdict(*where, wrong)
        self._company.read(cell, math.log(rate))
        if reading.gpu_type not in entry.gauges and reading.gpu_type not in entry.weighed:
            guess, sd = self._company.guess(cell)
            hint = entry.hints.setdefault(reading.gpu_type, Gauge(deviation=sd))
            hint.read(math.log(rate) - guess)
            hint.count, hint.doubt = min(hint.count, _HINTS_MAX), _HINT_DOUBT
        return Verdict(True)

    def absorb(self, of: Iterable[Key] | None = None) -> None:
        """Makes what was measured, of these keys or of all, part of the table: job types alike profit from it."""
        entries = self._entries if of is None else {key: self._entries[key] for key in of if key in self._entries}
        keys = tuple(dict.fromkeys([*self.table.keys, *entries]))
        row = {key: i for i, key in enumerate(keys)}
        rates = np.full((len(keys), len(self.gpu_types)), math.nan)
        kinds = np.full(rates.shape, int(Provenance.MEASURED), dtype=np.int64)
        known = len(self.table.keys), len(self.table.gpu_types)
        rates[: known[0], : known[1]], kinds[: known[0], : known[1]] = (
            self.table.rate_steps_per_s,
            self.table.provenance,
        )
        for key, entry in entries.items():
            for gpu_type, gauge in entry.gauges.items():
                rates[row[key], self._column[gpu_type]] = math.exp(gauge.level)
                kinds[row[key], self._column[gpu_type]] = int(Provenance.MEASURED)
            for gpu_type, idle_s in entry.idle_s.items():
                if idle_s >= STUCK_S:
                    rates[row[key], self._column[gpu_type]] = 0.0
        source = (*self.table.source, *("measured here" for _ in keys[known[0] :]))
        pairs = np.full((len(self.table.pair_rows), 2, len(self.gpu_types)), math.nan)
        pairs[:, :, : known[1]] = self.table.pair_rate_steps_per_s
        pair_rows, pairs = self._company.into(row, self._column, self.table.pair_rows, pairs)
        self.table = ThroughputTable(keys, self.gpu_types, rates, kinds, source, pair_rows, pairs)
        self._completion = Completion(self.table, self.model)
        self._begin_anew()
        self._weigh_pairs()

    def adopt(self, model: EstimatorModel) -> None:
        """Another model, as fitted to the table in the meantime; what was claimed and measured stays."""
        self.model, self._completion = model, Completion(self.table, model)
        self._begin_anew()
        self._weigh_pairs()

    def keep(self, keys: Collection[Key]) -> None:
        """Forgets what was claimed and measured of all others; the table keeps what it has absorbed."""
        self._entries = {key: entry for key, entry in self._entries.items() if key in keys}
        self._company.keep(keys)

    # Asked -------------------------------------------------------------------------------------------------------

    def estimates(self, keys: Sequence[Key], gpu_types: Sequence[str]) -> Estimates:
        """What is believed of these keys on these types."""
        self._meet(gpu_types)
        self._prepare(keys)
        size, T, columns = len(keys), len(gpu_types), [self._column[name] for name in gpu_types]
        mean, covariance, fits = np.zeros((size, T)), np.zeros((size, T, T)), np.zeros((size, T))
        kinds = np.zeros((size, T), dtype=np.int64)
        for i, key in enumerate(keys):
            entry = self._entries[key]
            belief = self._posterior(entry)
            mean[i], covariance[i] = belief.mean[0, columns], belief.covariance[0][np.ix_(columns, columns)]
            fits[i] = entry.fits[0, columns]
            measured = [name in entry.gauges for name in gpu_types]
            kinds[i] = np.where(measured, int(Provenance.MEASURED), np.array(entry.kinds)[columns])
        return Estimates(tuple(keys), tuple(gpu_types), Blocks(mean, covariance), fits, kinds)

    def rates(self, keys: Sequence[Key], gpu_types: Sequence[str], quantile: float = 0.5) -> Floats:
        """Steps/s to tell a policy, (N, T): the table's own figure for what no running job has told otherwise."""
        found = self.estimates(keys, gpu_types).rates(quantile)
        known = aligned(self.table, keys, gpu_types)
        is_heard = np.array(
            [bool(entry.gauges or entry.idle_s) for entry in map(self._entries.__getitem__, keys)], dtype=np.bool_
        )
        return np.where(np.isnan(known) | is_heard[:, None], found, known)

    def pairs(self, keys: Sequence[Key], gpu_types: Sequence[str], quantile: float = 0.5) -> Floats:
        """Part of its rate alone that each key keeps beside each, (N, N, T): 0 = they likely do not fit together."""
        return kept(*self.company(keys, gpu_types), quantile)

    def company(self, keys: Sequence[Key], gpu_types: Sequence[str]) -> tuple[Slowdowns, Floats]:
        """What is believed of every key beside every key, and the probability that the two fit, (N, N, T)."""
        with np.errstate(divide="ignore"):
            log_alone = np.log(self.rates(keys, gpu_types))
        return self._company.believed(self._completion, keys, gpu_types, log_alone)

    def is_measured(self, key: Key) -> bool:
        """Whether any job of this key has been seen at work."""
        return key in self._entries and bool(self._entries[key].gauges)

    def differences(self, job_type: str, gpus: int, rates_steps_per_s: Mapping[str, float] | None = None) -> list[str]:
        """What the owner of a claim, this one or the last, should hear: types where measurements say otherwise."""
        entry = self._entries.get((job_type, gpus))
        claims = entry.claims if entry is not None else {}
        if rates_steps_per_s is not None:
            claims = {name: math.log(rate) for name, rate in rates_steps_per_s.items() if rate > 0}
        found = []
        for gpu_type, claim in claims.items():
            gauge = entry.gauges.get(gpu_type) if entry is not None else None
            if gauge is None:
                continue
            sd = math.sqrt(gauge.variance)
            if abs(claim - gauge.level) > max(2.0 * sd, _NOTABLE):
                rate = math.exp(gauge.level)
                said, measured = f"{math.exp(claim):.3g} steps/s on {gpu_type}", f"{rate:.3g} ± {rate * sd:.1g}"
                found.append(f"you said {said}; measured {measured}")
        return found

    # Within ------------------------------------------------------------------------------------------------------

    def _idle(self, entry: _Entry, reading: Reading) -> Verdict:
        idle_s = entry.idle_s.get(reading.gpu_type, 0.0) + reading.seconds
        entry.idle_s[reading.gpu_type] = idle_s
        if idle_s < STUCK_S:
            return _verdict(reading.job_type, reading.gpu_type, f"no step in {idle_s:g} s yet")
        entry.fits[0, self._column[reading.gpu_type]] = 0.0
        entry.gauges.pop(reading.gpu_type, None)
        return Verdict(
            True, f"{reading.job_type} on {reading.gpu_type}: no step in {idle_s:g} s, so it does not run there"
        )

    def _judged(self, entry: _Entry, reading: Reading, log_rate: float) -> tuple[list[float], str]:
        """The log rates to take in, none if this one is absurd and stands alone; and what to say of it."""
        known, t, doubted = self._posterior(entry), self._column[reading.gpu_type], entry.doubted
        mean, sd = float(known.mean[0, t]), float(known.sd[0, t])
        if abs(log_rate - mean) <= max(_FAR, _FAR_SD * sd):
            doubted.pop(reading.gpu_type, None)
            return [log_rate], ""
        before = doubted.get(reading.gpu_type, [])
        agreeing = [*before, log_rate] if before and abs(log_rate - before[-1]) <= _AGREE else [log_rate]
        said = f"reported {math.exp(log_rate):g} steps/s where {math.exp(mean):.3g} are expected"
        if len(agreeing) < _AGREEING:
            doubted[reading.gpu_type] = agreeing
            return [], f"{said}: absurd"
        doubted.pop(reading.gpu_type, None)
        base = entry.blocks  # it is off by this much on all types, for all one knows
        entry.blocks = Blocks(base.mean, base.covariance + (log_rate - float(base.mean[0, t])) ** 2)
        return agreeing, f"{said}, {_AGREEING} times in a row: believed"

    def _posterior(self, entry: _Entry) -> Blocks:
        """The base belief after claims and gauges."""
        claims = {self._column[name]: claim for name, claim in entry.claims.items()}
        return with_claims(self._heard(entry), claims) if claims else self._heard(entry)

    def _heard(self, entry: _Entry) -> Blocks:
        """The base belief after gauges, whatever was claimed."""
        heard, mean = entry.hints | entry.gauges, entry.blocks.mean
        if not heard:
            return entry.blocks
        seen, variance = mean.copy(), np.full(len(self.gpu_types), UNKNOWN_VARIANCE)
        for gpu_type, gauge in heard.items():
            seen[0, self._column[gpu_type]] = gauge.level
            variance[self._column[gpu_type]] = gauge.variance
        return Blocks(*updated(mean, entry.blocks.covariance, seen, np.diag(variance)[None]))

    def _weigh_pairs(self) -> None:
        """Hints at rates alone that were not measured, from all pairs of the table at once."""
        half_known = _known_beside_only(self.table)
        if not half_known:
            return
        self._prepare(half_known)
        shape = self.table.rate_steps_per_s.shape
        alone = Alone(np.full(shape, math.nan), np.zeros(shape))
        for row, key in enumerate(self.table.keys):
            if key in self._entries:
                entry = self._entries[key]
                entry.hints, entry.weighed = {}, set()
                belief, own = self._posterior(entry), slice(shape[1])  # the table's types come first
                alone.mean[row], alone.variance[row] = belief.mean[0, own], np.square(belief.sd[0, own])
        found = self._completion.alone_by_pairs(alone).alone()
        for row, column, moved, before, now in zip(*(values.tolist() for values in found), strict=True):
            entry, gpu_type = self._entries[self.table.keys[row]], self.gpu_types[column]
            if now >= before * _TOLD_NOTHING:
                continue
            precision = 1.0 / now - 1.0 / before
            level = float(alone.mean[row, column]) + moved / (now * precision)
            entry.hints[gpu_type] = Gauge(level, 1.0, math.sqrt(1.0 / precision))
            entry.weighed.add(gpu_type)

    def _entry(self, key: Key) -> _Entry:
        if key not in self._entries:
            self._prepare([key])
        return self._entries[key]

    def _prepare(self, keys: Sequence[Key]) -> None:
        """Base beliefs of keys not met yet."""
        new = [key for key in dict.fromkeys(keys) if key not in self._entries]
        if not new or not self.gpu_types:
            return
        base = self._completion.estimates(new, self.gpu_types)
        for i, key in enumerate(new):
            own = Blocks(base.blocks.mean[i : i + 1], base.blocks.covariance[i : i + 1] + _OWN_LEVEL_SD**2)
            self._entries[key] = _Entry(own, base.fits[i : i + 1].copy(), tuple(base.provenance[i].tolist()))

    def _meet(self, gpu_types: Iterable[str]) -> None:
        """GPU types that join are estimated from now on."""
        new = [name for name in dict.fromkeys(gpu_types) if name not in self._column]
        if new:
            self.gpu_types = (*self.gpu_types, *new)
            self._column = {name: t for t, name in enumerate(self.gpu_types)}
            self._begin_anew()

    def _begin_anew(self) -> None:
        """New base beliefs; what was claimed and measured stays."""
        before, self._entries = self._entries, {}
        self._prepare(list(before))
        for key, entry in before.items():
            kept = self._entries[key]
            kept.claims, kept.gauges, kept.idle_s = entry.claims, entry.gauges, entry.idle_s
            kept.doubted, kept.weighed = entry.doubted, entry.weighed
            kept.hints = {name: hint for name, hint in entry.hints.items() if name not in entry.gauges}
            for gpu_type in entry.gauges:
                kept.fits[0, self._column[gpu_type]] = 1.0
            for gpu_type in (name for name, idle_s in entry.idle_s.items() if idle_s >= STUCK_S):
                kept.fits[0, self._column[gpu_type]] = 0.0


def _known_beside_only(table: ThroughputTable) -> list[Key]:
    """Keys that ran beside others on a type where nobody measured them alone."""
    is_open = np.isnan(table.rate_steps_per_s[table.pair_rows]) & (table.pair_rate_steps_per_s > 0)
    return [table.keys[row] for row in np.unique(table.pair_rows[is_open.any(axis=2)]).tolist()]


def _unusable(reading: Reading) -> str:
    """Why a reading is none; empty if it is one."""
    if not (math.isfinite(reading.seconds) and reading.seconds > 0):
        return f"seconds must be finite and > 0, got {reading.seconds!r}"
    if not (math.isfinite(reading.steps) and reading.steps >= 0):
        return f"steps must be finite and >= 0, got {reading.steps!r}"
    return ""


def _untold(reading: Reading, rate: float) -> str:
    """Why a reading's rate says nothing; empty where it does."""
    if wrong := _impossible(rate):
        return f"reported {rate:g} steps/s: {wrong}"
    is_warm = reading.lease_age_s - reading.seconds >= WARM_UP_S
    return "" if is_warm else f"warm-up: {reading.lease_age_s:g} s after the lease began it is still warming up"


def _impossible(rate: float) -> str:
    """Why no job has such a rate; empty if one may."""
    if not math.isfinite(rate):
        return "not a finite number"
    if rate < 0:
        return "less than 0"
    return f"more than {RATE_MAX_STEPS_PER_S:g}, which no job makes" if rate > RATE_MAX_STEPS_PER_S else ""


def _verdict(job_type: str, gpu_type: str, reason: str) -> Verdict:
    return Verdict(not reason, f"{job_type} on {gpu_type}: {reason}" if reason else "")
