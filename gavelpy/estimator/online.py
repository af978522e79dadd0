"""The online estimator of a scheduler: combines a table, users' claims, and readings of running jobs.

A claim is a measurement with a large error, part of which is common to all types; a few minutes of readings outweigh
it. An implausible reading is refused with a reason, which the caller logs; if several in a row agree, the expectation
was wrong and they are accepted. A reading updates the Gaussian of one job type only; `absorb` updates similar job
types, off the fast path.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gavelpy.estimator.completion import Completion, Estimates, EstimatorModel, aligned
from gavelpy.estimator.gaussian import UNKNOWN_VARIANCE, Blocks, updated, with_claims
from gavelpy.estimator.interference import ColocatedReadings
from gavelpy.estimator.kinds import RATE_MAX_STEPS_PER_S, ClaimedSize, Key
from gavelpy.estimator.pairs import Alone, Slowdowns, slowdown_quantile
from gavelpy.estimator.rate_filter import RateFilter, Reading, Verdict
from gavelpy.model.arrays import Floats
from gavelpy.model.throughput import Provenance, ThroughputTable

WARM_UP_S = 30.0  # start of a lease, of which readings are refused
STUCK_S = 600.0  # without a step: the job does not run on this type
_FAR = math.log(1000.0)  # distance from the expectation at which a reading is refused, if also beyond _FAR_SD
_FAR_SD = 6.0
_AGREEING, _AGREE = 3, math.log(1.5)  # far readings in a row that are accepted if each is close to the last
_OWN_LEVEL_SD = 0.3  # of a running job against the table's rates for its type: another script, another phase
_PHASE_SD = 0.3  # sd added to the other types when one type has a new phase
_HINTS_MAX, _HINT_SD = 4.0, 0.15  # largest weight of a hint in co-located readings, and their common sd
_UNINFORMED = 0.99  # share of the prior variance above which a posterior counts as uninformed
_NOTABLE = 0.1  # least deviation of a claim that is reported to the user


@dataclass
class _Entry:
    """State of one key: base estimate, claims, rate filters."""

    blocks: Blocks
    fits: Floats  # (1, T)
    kinds: tuple[int, ...]  # provenance of the base estimate, T
    claims: dict[str, float] = field(default_factory=dict)  # log steps/s by GPU type
    filters: dict[str, RateFilter] = field(default_factory=dict)
    idle_s: dict[str, float] = field(default_factory=dict)  # without a step, by GPU type
    refused: dict[str, list[float]] = field(default_factory=dict)  # refused log rates in a row that agree
    hints: dict[str, RateFilter] = field(default_factory=dict)  # rates alone that co-located rates suggest
    weighed: set[str] = field(default_factory=set)  # GPU types with hints from all pairs of the table


class ThroughputEstimator:
    """Estimates rates of jobs alone, and the slowdowns of co-located jobs.

    Deterministic: uses no clock and no random numbers.
    """

    def __init__(
        self, table: ThroughputTable, model: EstimatorModel | None = None, gpu_types: Sequence[str] = ()
    ) -> None:
        self.table, self.model = table, model or EstimatorModel()
        self.gpu_types = tuple(dict.fromkeys([*table.gpu_types, *gpu_types]))
        self._column = {name: t for t, name in enumerate(self.gpu_types)}
        self._entries: dict[Key, _Entry] = {}
        self._completion = Completion(table, self.model)
        self._colocated = ColocatedReadings()
        self._weigh_pairs()

    # Updates -----------------------------------------------------------------------------------------------------

    def claim(self, job_type: str, gpus: int, rates_steps_per_s: Mapping[str, float]) -> list[Verdict]:
        """Adds a user's rates in steps/s by GPU type; 0 = the job does not fit."""
        if not rates_steps_per_s:
            return []
        self._add_gpu_types(rates_steps_per_s)
        entry, verdicts = self._entry((job_type, gpus)), []
        for gpu_type, rate in rates_steps_per_s.items():
            wrong = _impossible(rate)
            if not wrong and rate > 0:
                entry.claims[gpu_type] = math.log(rate)
            elif not wrong and gpu_type not in entry.filters:
                entry.fits[0, self._column[gpu_type]] = 0.0
            verdicts.append(_verdict(job_type, gpu_type, wrong and f"claimed {rate!r} steps/s: {wrong}"))
        return verdicts

    def observe(self, reading: Reading) -> Verdict:
        """Adds a reading of a job that runs alone."""
        where = reading.job_type, reading.gpu_type
        if wrong := _unusable(reading):
            return _verdict(*where, wrong)
        self._add_gpu_types((reading.gpu_type,))
        entry = self._entry((reading.job_type, reading.gpus))
        if reading.steps == 0:
            return self._idle(entry, reading)
        rate = reading.steps / reading.seconds
        if wrong := _unused(reading, rate):
            return _verdict(*where, wrong)
        believed, reason = self._screened(entry, reading, math.log(rate))
        if not believed:
            return _verdict(*where, reason)
        entry.idle_s.pop(reading.gpu_type, None)
        entry.fits[0, self._column[reading.gpu_type]] = 1.0
        rate_filter = entry.filters.setdefault(reading.gpu_type, RateFilter())
        jump = sum(rate_filter.read(log_rate) for log_rate in believed)
        if jump:
            for gpu_type, other in entry.filters.items():
                if gpu_type != reading.gpu_type:
                    other.shift(jump, _PHASE_SD)
            reason = reason or f"a new phase, {math.exp(jump):.3g} times as fast"
        return Verdict(True, f"{reading.job_type} on {reading.gpu_type}: {reason}" if reason else "", bool(jump))

    def observe_colocated(self, reading: Reading, partner: Key) -> Verdict:
        """Adds a reading of a job that is co-located with another."""
        where = reading.job_type, reading.gpu_type
        if wrong := _unusable(reading):
            return _verdict(*where, wrong)
        self._add_gpu_types((reading.gpu_type,))
        key = reading.job_type, reading.gpus
        entry, _ = self._entry(key), self._entry(partner)
        cell = key, partner, reading.gpu_type
        if reading.steps == 0:
            stuck = self._colocated.idle(cell, reading.seconds)
            return Verdict(True, f"{where[0]} on {where[1]} with {partner[0]}: no step, so they do not fit" * stuck)
        rate = reading.steps / reading.seconds
        if wrong := _unused(reading, rate):
            return _verdict(*where, wrong)
        self._colocated.read(cell, math.log(rate))
        if reading.gpu_type not in entry.filters and reading.gpu_type not in entry.weighed:
            guess, sd = self._colocated.guess(cell)
            hint = entry.hints.setdefault(reading.gpu_type, RateFilter(deviation=sd))
            hint.read(math.log(rate) - guess)
            hint.count, hint.extra_sd = min(hint.count, _HINTS_MAX), _HINT_SD
        return Verdict(True)

    def absorb(self, of: Iterable[Key] | None = None) -> None:
        """Adds the measurements of these keys, default all, to the table, which updates similar job types."""
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
            for gpu_type, rate_filter in entry.filters.items():
                rates[row[key], self._column[gpu_type]] = math.exp(rate_filter.level)
                kinds[row[key], self._column[gpu_type]] = int(Provenance.MEASURED)
            for gpu_type, idle_s in entry.idle_s.items():
                if idle_s >= STUCK_S:
                    rates[row[key], self._column[gpu_type]] = 0.0
        source = (*self.table.source, *("measured here" for _ in keys[known[0] :]))
        pairs = np.full((len(self.table.pair_rows), 2, len(self.gpu_types)), math.nan)
        pairs[:, :, : known[1]] = self.table.pair_rate_steps_per_s
        pair_rows, pairs = self._colocated.update_pairs(row, self._column, self.table.pair_rows, pairs)
        self.table = ThroughputTable(keys, self.gpu_types, rates, kinds, source, pair_rows, pairs)
        self._completion = Completion(self.table, self.model)
        self._reset_estimates()
        self._weigh_pairs()

    def adopt(self, model: EstimatorModel) -> None:
        """Replaces the model, for example after a new fit; claims and measurements are kept."""
        self.model, self._completion = model, Completion(self.table, model)
        self._reset_estimates()
        self._weigh_pairs()

    def keep(self, keys: Collection[Key]) -> None:
        """Drops claims and measurements of all other keys; the table keeps what it has absorbed."""
        self._entries = {key: entry for key, entry in self._entries.items() if key in keys}
        self._colocated.keep(keys)

    # Queries -----------------------------------------------------------------------------------------------------

    def estimates(self, keys: Sequence[Key], gpu_types: Sequence[str]) -> Estimates:
        """Estimated rates alone of these keys on these types."""
        self._add_gpu_types(gpu_types)
        self._prepare(keys)
        size, T, columns = len(keys), len(gpu_types), [self._column[name] for name in gpu_types]
        mean, covariance, fits = np.zeros((size, T)), np.zeros((size, T, T)), np.zeros((size, T))
        kinds = np.zeros((size, T), dtype=np.int64)
        for i, key in enumerate(keys):
            entry = self._entries[key]
            belief = self._posterior(entry)
            mean[i], covariance[i] = belief.mean[0, columns], belief.covariance[0][np.ix_(columns, columns)]
            fits[i] = entry.fits[0, columns]
            measured = [name in entry.filters for name in gpu_types]
            kinds[i] = np.where(measured, int(Provenance.MEASURED), np.array(entry.kinds)[columns])
        return Estimates(tuple(keys), tuple(gpu_types), Blocks(mean, covariance), fits, kinds)

    def rates(self, keys: Sequence[Key], gpu_types: Sequence[str], quantile: float = 0.5) -> Floats:
        """Steps/s for a policy, (N, T): the table's own rate unless running jobs have reported on the key."""
        found = self.estimates(keys, gpu_types).rates(quantile)
        known = aligned(self.table, keys, gpu_types)
        is_reported = np.array(
            [bool(entry.filters or entry.idle_s) for entry in map(self._entries.__getitem__, keys)], dtype=np.bool_
        )
        return np.where(np.isnan(known) | is_reported[:, None], found, known)

    def rates_of_sizes(
        self, keys: Sequence[Key], claimed: Sequence[ClaimedSize | None], gpu_types: Sequence[str], quantile: float
    ) -> Floats:
        """As `rates`; unmeasured ones in proportion to a claim for the same job on another number of GPUs."""
        found = self.rates(keys, gpu_types, quantile)
        for k, (key, claim) in enumerate(zip(keys, claimed, strict=True)):
            if claim is not None and claim[1] and key not in self.table and not self.is_measured(key):
                base = self.rates([(key[0], claim[0])], gpu_types, quantile)[0]
                rates = np.array([claim[1].get(name, 0.0) for name in gpu_types])
                found[k] *= np.divide(rates, base, out=np.ones_like(base), where=base > 0)
        return found

    def pairs(self, keys: Sequence[Key], gpu_types: Sequence[str], quantile: float = 0.5) -> Floats:
        """Slowdown of each key with each partner, (N, N, T), as a share of its rate alone; 0 = likely do not fit."""
        return slowdown_quantile(*self.slowdowns(keys, gpu_types), quantile)

    def slowdowns(self, keys: Sequence[Key], gpu_types: Sequence[str]) -> tuple[Slowdowns, Floats]:
        """Log slowdowns of every key with every partner, and the probability that the two fit, (N, N, T)."""
        with np.errstate(divide="ignore"):
            log_alone = np.log(self.rates(keys, gpu_types))
        return self._colocated.estimates(self._completion, keys, gpu_types, log_alone)

    def is_measured(self, key: Key) -> bool:
        """Whether any job of this key has reported a rate."""
        return key in self._entries and bool(self._entries[key].filters)

    def is_news(self, key: Key, share: float) -> bool:
        """Whether measured rates of a key are not in the table, or differ from it by more than this share."""
        entry = self._entries.get(key)
        if entry is None:
            return False
        stuck = [gpu_type for gpu_type, idle_s in entry.idle_s.items() if idle_s >= STUCK_S]
        rates = {name: math.exp(known.level) for name, known in entry.filters.items()} | dict.fromkeys(stuck, 0.0)
        known = aligned(self.table, [key], list(rates))[0].tolist()
        return any(not abs(rate - old) <= share * old for rate, old in zip(rates.values(), known, strict=True))

    def differences(self, job_type: str, gpus: int, rates_steps_per_s: Mapping[str, float] | None = None) -> list[str]:
        """A message for each type on which measurements contradict a claim: the given rates, else the last claim."""
        entry = self._entries.get((job_type, gpus))
        claims = entry.claims if entry is not None else {}
        if rates_steps_per_s is not None:
            claims = {name: math.log(rate) for name, rate in rates_steps_per_s.items() if rate > 0}
        found = []
        for gpu_type, claim in claims.items():
            rate_filter = entry.filters.get(gpu_type) if entry is not None else None
            if rate_filter is None:
                continue
            sd = math.sqrt(rate_filter.variance)
            if abs(claim - rate_filter.level) > max(2.0 * sd, _NOTABLE):
                rate = math.exp(rate_filter.level)
                claimed, measured = f"{math.exp(claim):.3g} steps/s on {gpu_type}", f"{rate:.3g} ± {rate * sd:.1g}"
                found.append(f"claimed {claimed}; measured {measured}")
        return found

    # Internal ----------------------------------------------------------------------------------------------------

    def _idle(self, entry: _Entry, reading: Reading) -> Verdict:
        idle_s = entry.idle_s.get(reading.gpu_type, 0.0) + reading.seconds
        entry.idle_s[reading.gpu_type] = idle_s
        if idle_s < STUCK_S:
            return _verdict(reading.job_type, reading.gpu_type, f"no step in {idle_s:g} s yet")
        entry.fits[0, self._column[reading.gpu_type]] = 0.0
        entry.filters.pop(reading.gpu_type, None)
        return Verdict(
            True, f"{reading.job_type} on {reading.gpu_type}: no step in {idle_s:g} s, so it does not run there"
        )

    def _screened(self, entry: _Entry, reading: Reading, log_rate: float) -> tuple[list[float], str]:
        """The log rates to accept, none if this one is absurd and no earlier ones agree; and the reason."""
        known, t, refused = self._posterior(entry), self._column[reading.gpu_type], entry.refused
        mean, sd = float(known.mean[0, t]), float(known.sd[0, t])
        if abs(log_rate - mean) <= max(_FAR, _FAR_SD * sd):
            refused.pop(reading.gpu_type, None)
            return [log_rate], ""
        before = refused.get(reading.gpu_type, [])
        agreeing = [*before, log_rate] if before and abs(log_rate - before[-1]) <= _AGREE else [log_rate]
        reason = f"reported {math.exp(log_rate):g} steps/s where {math.exp(mean):.3g} are expected"
        if len(agreeing) < _AGREEING:
            refused[reading.gpu_type] = agreeing
            return [], f"{reason}: absurd"
        refused.pop(reading.gpu_type, None)
        base = entry.blocks  # assume that it is off by as much on all types
        entry.blocks = Blocks(base.mean, base.covariance + (log_rate - float(base.mean[0, t])) ** 2)
        return agreeing, f"{reason}, {_AGREEING} times in a row: accepted"

    def _posterior(self, entry: _Entry) -> Blocks:
        """The base estimate after claims and rate filters."""
        claims = {self._column[name]: claim for name, claim in entry.claims.items()}
        return with_claims(self._reported(entry), claims) if claims else self._reported(entry)

    def _reported(self, entry: _Entry) -> Blocks:
        """The base estimate after rate filters, without claims."""
        filters, mean = entry.hints | entry.filters, entry.blocks.mean
        if not filters:
            return entry.blocks
        seen, variance = mean.copy(), np.full(len(self.gpu_types), UNKNOWN_VARIANCE)
        for gpu_type, rate_filter in filters.items():
            seen[0, self._column[gpu_type]] = rate_filter.level
            variance[self._column[gpu_type]] = rate_filter.variance
        return Blocks(*updated(mean, entry.blocks.covariance, seen, np.diag(variance)[None]))

    def _weigh_pairs(self) -> None:
        """Infers hints of unmeasured rates alone jointly from all pairs of the table."""
        half_known = _known_colocated_only(self.table)
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
            if now >= before * _UNINFORMED:
                continue
            precision = 1.0 / now - 1.0 / before
            level = float(alone.mean[row, column]) + moved / (now * precision)
            entry.hints[gpu_type] = RateFilter(level, 1.0, math.sqrt(1.0 / precision))
            entry.weighed.add(gpu_type)

    def _entry(self, key: Key) -> _Entry:
        if key not in self._entries:
            self._prepare([key])
        return self._entries[key]

    def _prepare(self, keys: Sequence[Key]) -> None:
        """Computes base estimates of new keys."""
        new = [key for key in dict.fromkeys(keys) if key not in self._entries]
        if not new or not self.gpu_types:
            return
        base = self._completion.estimates(new, self.gpu_types)
        for i, key in enumerate(new):
            own = Blocks(base.blocks.mean[i : i + 1], base.blocks.covariance[i : i + 1] + _OWN_LEVEL_SD**2)
            self._entries[key] = _Entry(own, base.fits[i : i + 1].copy(), tuple(base.provenance[i].tolist()))

    def _add_gpu_types(self, gpu_types: Iterable[str]) -> None:
        """Adds new GPU types to the estimates."""
        new = [name for name in dict.fromkeys(gpu_types) if name not in self._column]
        if new:
            self.gpu_types = (*self.gpu_types, *new)
            self._column = {name: t for t, name in enumerate(self.gpu_types)}
            self._reset_estimates()

    def _reset_estimates(self) -> None:
        """Recomputes base estimates; keeps claims and measurements."""
        before, self._entries = self._entries, {}
        self._prepare(list(before))
        for key, entry in before.items():
            renewed = self._entries[key]
            renewed.claims, renewed.filters, renewed.idle_s = entry.claims, entry.filters, entry.idle_s
            renewed.refused, renewed.weighed = entry.refused, entry.weighed
            renewed.hints = {name: hint for name, hint in entry.hints.items() if name not in entry.filters}
            for gpu_type in entry.filters:
                renewed.fits[0, self._column[gpu_type]] = 1.0
            for gpu_type in (name for name, idle_s in entry.idle_s.items() if idle_s >= STUCK_S):
                renewed.fits[0, self._column[gpu_type]] = 0.0


def _known_colocated_only(table: ThroughputTable) -> list[Key]:
    """Keys with co-located rates on a type on which they were not measured alone."""
    is_open = np.isnan(table.rate_steps_per_s[table.pair_rows]) & (table.pair_rate_steps_per_s > 0)
    return [table.keys[row] for row in np.unique(table.pair_rows[is_open.any(axis=2)]).tolist()]


def _unusable(reading: Reading) -> str:
    """The reason why a reading is invalid; empty if it is valid."""
    if not (math.isfinite(reading.seconds) and reading.seconds > 0):
        return f"seconds must be finite and > 0, got {reading.seconds!r}"
    if not (math.isfinite(reading.steps) and reading.steps >= 0):
        return f"steps must be finite and >= 0, got {reading.steps!r}"
    return ""


def _unused(reading: Reading, rate: float) -> str:
    """The reason why a reading's rate is not used; empty if it is."""
    if wrong := _impossible(rate):
        return f"reported {rate:g} steps/s: {wrong}"
    is_warm = reading.lease_age_s - reading.seconds >= WARM_UP_S
    return "" if is_warm else f"warm-up: {reading.lease_age_s:g} s after the lease began it is still warming up"


def _impossible(rate: float) -> str:
    """The reason why a rate is impossible; empty if it is possible."""
    if not math.isfinite(rate):
        return "not a finite number"
    if rate < 0:
        return "less than 0"
    return f"more than {RATE_MAX_STEPS_PER_S:g}, which no job makes" if rate > RATE_MAX_STEPS_PER_S else ""


def _verdict(job_type: str, gpu_type: str, reason: str) -> Verdict:
    return Verdict(not reason, f"{job_type} on {gpu_type}: {reason}" if reason else "")
