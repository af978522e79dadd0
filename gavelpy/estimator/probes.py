"""Plans probes: the most valuable measurements (job, GPU type, partner) within a budget of GPU-seconds.

A policy's shadow prices are the value of a GPU of each type in units of its objective. A job's steps cost least on the
type with the lowest  price / rate.  The value of a measurement is the expected decrease of that cost, because it may
show that another type is cheaper (knowledge gradient; Frazier et al., 2008). Log rates are Gaussian, so a measurement
shifts a job's estimates along a line, and the expectation is an integral over one variable. Measurements on the type
that a job is likely to run on anyway cost nothing and count as known.

Measuring a pair is valuable if the two co-located jobs may be worth more than the GPUs they share, and the policy would
not co-locate them by its current estimates. The value of a job's step is the cost of the GPUs that make it. Co-located
jobs divide that cost in proportion to the values of their steps, which are solved for iteratively (Richardson-Lucy
updates: a fit of  values x rates  to costs).

`with_probes` reserves time for the probes in the shares of an allocation, so that the mechanism leases GPUs for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.estimator.gaussian import Blocks
from gavelpy.estimator.kinds import Key
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem

if TYPE_CHECKING:
    from gavelpy.estimator.pairs import Slowdowns

WORTH_MIN = 0.01  # least gain per GPU-second of a probe
READING_SD = 0.05  # of the log rate that a probe measures
_GAIN_MIN = 1e-9  # least gain of a pair that is considered
_OFFERS_MAX = 1000  # pairs that are considered
_PRICE_FLOOR = 0.01  # relative to the dearest type: a type with free GPUs is cheap, not free
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_TURNS = 40


@dataclass(frozen=True)
class Probe:
    """One planned measurement."""

    row: int  # of the job among the candidates
    gpu_type: int
    partner: int = -1  # row of the co-located job, -1 = alone
    gain: float = 0.0  # expected gain in GPU-seconds of the dearest type
    gpu_s: float = 0.0  # cost


@dataclass(frozen=True, eq=False)
class Candidates:
    """J jobs that a plan may measure on T types."""

    blocks: Blocks  # estimates, log steps/s
    is_open: Bools  # (J, T) whether a job may be measured: it fits, and the type has enough GPUs
    gpus: Floats  # (J,)
    gpu_s_left: Floats  # (J,) remaining GPU time, approximately; a cheaper type saves a share of it
    prices: Floats  # (T,) shadow prices of a GPU, in any unit


@dataclass(frozen=True, eq=False)
class PairCandidates:
    """P pairs of those jobs, each on one type, that a plan may measure."""

    rows: Ints  # (P, 2)
    gpu_type: Ints  # (P,)
    mean: Floats  # (P, 2) log slowdowns, if the two fit
    sd: Floats  # (P, 2)
    fits: Floats  # (P,) probability
    value_alone: Floats  # (P, 2) value of the job alone on that type over the cost of its GPUs
    planned: Floats  # (P,) sum of the two co-located values by the policy's estimates
    gpu_s_left: Floats  # (P,) GPU time for which the result is useful


def plan(
    jobs: Candidates, budget_gpu_s: float, *, probe_s: float = 60.0, pairs: PairCandidates | None = None
) -> list[Probe]:
    """The probes with the largest gain per GPU-second within the budget, best first.

    The choice is greedy: each probe assumes that the results of the previous ones are known. A job is measured with one
    partner at a time. Raises InvalidInput unless the budget is finite and >= 0 and `probe_s` finite and > 0.
    """
    if not (math.isfinite(budget_gpu_s) and budget_gpu_s >= 0):
        raise InvalidInput(f"budget_gpu_s must be finite and >= 0, got {budget_gpu_s!r}")
    if not (math.isfinite(probe_s) and probe_s > 0):
        raise InvalidInput(f"probe_s must be finite and > 0, got {probe_s!r}")
    prices = relative_prices(jobs.prices)
    covariance = _running(jobs, prices)
    gains = _gains(jobs.blocks.mean, covariance, jobs, prices)
    offers = _pair_offers(jobs, prices, pairs, probe_s) if pairs is not None else []
    chosen: list[Probe] = []
    left_gpu_s = budget_gpu_s
    while True:
        per_gpu_s = np.where(jobs.gpus[:, None] * probe_s <= left_gpu_s, gains / (jobs.gpus[:, None] * probe_s), 0.0)
        row, gpu_type = np.unravel_index(int(np.argmax(per_gpu_s)), per_gpu_s.shape) if per_gpu_s.size else (0, 0)
        best = float(per_gpu_s[row, gpu_type]) if per_gpu_s.size else 0.0
        affordable = [offer for offer in offers if offer.gpu_s <= left_gpu_s]
        pair = max(affordable, key=lambda offer: offer.gain / offer.gpu_s, default=None)
        if pair is not None and pair.gain / pair.gpu_s > max(best, WORTH_MIN):
            probe = pair
            offers = [offer for offer in offers if not {offer.row, offer.partner} & {pair.row, pair.partner}]
        elif best > WORTH_MIN:
            i, t = int(row), int(gpu_type)
            probe = Probe(i, t, -1, float(gains[i, t]), float(jobs.gpus[i] * probe_s))
            covariance[i] = _after(covariance[i], t)
            gains[i] = _gains(jobs.blocks.mean[i : i + 1], covariance[i : i + 1], _only(jobs, i), prices)[0]
            gains[i, t] = 0.0
        else:
            return chosen
        chosen.append(probe)
        left_gpu_s -= probe.gpu_s


def _gains(mean: Floats, covariance: Floats, jobs: Candidates, prices: Floats) -> Floats:
    """Expected decrease of each job's cost by each measurement, (J, T), in GPU-seconds of the dearest type."""
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    noisy = variance + READING_SD**2
    with np.errstate(divide="ignore"):
        log_price = np.log(np.where(jobs.is_open, prices[None, :], np.inf))
    log_cost = log_price - mean + 0.5 * variance  # (J, T), of the expected cost
    least = log_cost.min(axis=1, initial=np.inf)
    is_served = np.isfinite(least)
    least = np.where(is_served, least, 0.0)
    slope = covariance / np.sqrt(noisy)[:, :, None]  # (J, t, u): shift of u's mean per sd of reading t
    moved = log_cost[:, None, :, None] - slope[:, :, :, None] * _NODES - 0.5 * np.square(slope)[:, :, :, None]
    after = np.exp(np.minimum(moved.min(axis=2) - least[:, None, None], 50.0)) @ _WEIGHTS
    fall = np.where(jobs.is_open & is_served[:, None], np.maximum(1.0 - after, 0.0), 0.0)
    cheapest = np.argmin(log_cost, axis=1) if log_cost.shape[1] else np.zeros(len(mean), dtype=np.int64)
    return np.asarray(fall * (jobs.gpu_s_left * prices[cheapest])[:, None])


def _pair_offers(jobs: Candidates, prices: Floats, pairs: PairCandidates, probe_s: float) -> list[Probe]:
    """E[max(0, S - 1)] minus the gain the policy expects; the sum S of the two values is normal if the jobs fit."""
    from scipy.special import ndtr

    share = pairs.value_alone * np.exp(pairs.mean + 0.5 * np.square(pairs.sd))
    spread = np.maximum(np.sqrt(np.square(share * pairs.sd).sum(axis=1)), 1e-12)
    over = share.sum(axis=1) - 1.0
    z = over / spread
    expected = spread * np.exp(-0.5 * np.square(z)) / math.sqrt(2.0 * math.pi) + over * ndtr(z)
    gain = pairs.fits * expected - np.maximum(pairs.planned - 1.0, 0.0)
    first, second = pairs.rows.T
    is_open = jobs.is_open[first, pairs.gpu_type] & jobs.is_open[second, pairs.gpu_type] & (gain > _GAIN_MIN)
    total = gain * pairs.gpu_s_left * prices[pairs.gpu_type]
    best = np.flatnonzero(is_open)
    best = best[np.argsort(-total[best], kind="stable")[:_OFFERS_MAX]]
    return [
        Probe(
            int(first[k]), int(pairs.gpu_type[k]), int(second[k]), float(total[k]), float(jobs.gpus[first[k]] * probe_s)
        )
        for k in best.tolist()
    ]


def _running(jobs: Candidates, prices: Floats) -> Floats:
    """Covariances (J, T, T) after each job has run on its cheapest type, which needs no probe."""
    variance = np.diagonal(jobs.blocks.covariance, axis1=1, axis2=2)
    log_cost = np.where(jobs.is_open, np.log(prices)[None, :] - jobs.blocks.mean + 0.5 * variance, np.inf)
    covariance = jobs.blocks.covariance.copy()
    for row in np.flatnonzero(jobs.is_open.any(axis=1)).tolist():
        covariance[row] = _after(covariance[row], int(np.argmin(log_cost[row])))
    return covariance


def _after(covariance: Floats, gpu_type: int) -> Floats:
    column = covariance[:, gpu_type]
    return np.asarray(covariance - np.outer(column, column) / (column[gpu_type] + READING_SD**2))


def _only(jobs: Candidates, row: int) -> Candidates:
    part = slice(row, row + 1)
    own = Blocks(jobs.blocks.mean[part], jobs.blocks.covariance[part])
    return Candidates(own, jobs.is_open[part], jobs.gpus[part], jobs.gpu_s_left[part], jobs.prices)


def relative_prices(prices: Floats) -> Floats:
    """Prices relative to the dearest type, at least a floor; all 1 if no price is positive."""
    dearest = float(prices.max(initial=0.0))
    return np.maximum(prices / dearest, _PRICE_FLOOR) if dearest > 0 else np.ones_like(prices)


@dataclass(frozen=True, eq=False)
class Shares:
    """Time shares of J jobs alone on T types, and of P pairs on one type each."""

    alone: Floats  # (J, T)
    pairs: Ints  # (P, 2) rows of jobs; each pair once per type
    pair_type: Ints  # (P,)
    together: Floats  # (P,)


def with_probes(
    shares: Shares, gpus: Floats, counts: Floats, probes: Sequence[Probe], fraction: float, pair_fraction: float = 0.0
) -> Shares:
    """The shares with the time share `fraction` for each probe alone and `pair_fraction` for each probe of a pair.

    Other shares shrink: those of a probed job by the time of its probes, those of a pair by that of the member with
    more probes, and all shares on a type that has too few GPUs. `gpus` (J,) are GPUs per job, `counts` (T,) GPUs per
    type. Raises InvalidInput unless both fractions are in [0, 1].
    """
    for name, value in (("fraction", fraction), ("pair_fraction", pair_fraction)):
        if not 0.0 <= value <= 1.0:
            raise InvalidInput(f"{name} must be in [0, 1], got {value!r}")
    extra = _of_probes(shares.alone.shape, gpus, counts, probes, fraction, pair_fraction)
    spent = _job_time(extra)
    alone = shares.alone * (1.0 - spent)[:, None]
    together = shares.together * (1.0 - spent[shares.pairs].max(axis=1, initial=0.0))
    rest = Shares(alone, shares.pairs, shares.pair_type, together)
    wanted, free = _used(rest, gpus), np.maximum(counts - _used(extra, gpus), 0.0)
    cut = np.minimum(1.0, np.divide(free, wanted, out=np.ones(len(counts)), where=wanted > 0))
    pairs = np.concatenate([np.sort(rest.pairs, axis=1), np.sort(extra.pairs, axis=1)])
    pair_type = np.concatenate([rest.pair_type, extra.pair_type])
    rows, place = np.unique(np.column_stack([pairs, pair_type]), axis=0, return_inverse=True)
    both = np.zeros(len(rows))
    np.add.at(both, place.ravel(), np.concatenate([together * cut[rest.pair_type], extra.together]))
    return Shares(alone * cut + extra.alone, rows[:, :2], rows[:, 2], both)


def _of_probes(
    shape: tuple[int, ...], gpus: Floats, counts: Floats, probes: Sequence[Probe], fraction: float, pair_fraction: float
) -> Shares:
    """Shares of the probes alone, limited to the jobs' time and the types' GPUs."""
    alone = np.zeros(shape)
    for probe in probes:
        if probe.partner < 0:
            alone[probe.row, probe.gpu_type] = fraction
    paired = [(probe.row, probe.partner, probe.gpu_type) for probe in probes if probe.partner >= 0]
    members = np.array(paired, dtype=np.int64).reshape(-1, 3)
    extra = Shares(alone, members[:, :2], members[:, 2], np.full(len(members), pair_fraction))
    over = np.maximum(_job_time(extra), 1.0)
    alone, together = alone / over[:, None], extra.together / over[extra.pairs].max(axis=1, initial=1.0)
    taken = _used(Shares(alone, extra.pairs, extra.pair_type, together), gpus)
    cut = np.minimum(1.0, np.divide(counts, taken, out=np.ones(len(counts)), where=taken > 0))
    return Shares(alone * cut, extra.pairs, extra.pair_type, together * cut[extra.pair_type])


def _job_time(shares: Shares) -> Floats:
    """Total time share of each job, alone and co-located, (J,)."""
    total = shares.alone.sum(axis=1)
    np.add.at(total, shares.pairs, shares.together[:, None])
    return np.asarray(total)


def _used(shares: Shares, gpus: Floats) -> Floats:
    """GPUs of each type in use, (T,)."""
    total = gpus @ shares.alone
    np.add.at(total, shares.pair_type, gpus[shares.pairs[:, 0]] * shares.together)
    return np.asarray(total)


def value_alone(problem: AllocationProblem, share: Floats, prices: Floats) -> Floats:
    """Value of each job's steps alone over the cost of its GPUs, (J, T); at most 1.

    `problem` and `share` (C, T), the policy's input and output, include jobs alone, pairs and sizes.
    """
    cost_of = relative_prices(prices)
    J, rates = problem.job_count, problem.rate_alone_steps_per_s
    alone = np.divide(rates, problem.gpus_asked[:, None] * cost_of, out=np.zeros_like(rates), where=rates > 0)
    best = alone.max(axis=1, initial=0.0)  # steps per unit of cost
    member, column = np.nonzero(share[problem.member_configuration] > 0)
    configuration, job = problem.member_configuration[member], problem.member_job[member]
    time = share[configuration, column]
    steps = time * problem.member_rate_steps_per_s[member, column]
    spent = time * problem.gpus_occupied[configuration] * cost_of[column]
    _, group = np.unique(configuration * len(cost_of) + column, return_inverse=True)
    made = np.bincount(job, steps, minlength=J)
    value_of_step = np.divide(1.0, best, out=np.zeros(J), where=best > 0)
    most = value_of_step
    for _ in range(_TURNS):
        value = value_of_step[job] * steps
        both = np.bincount(group, value)[group]
        paid = np.bincount(job, np.divide(spent * value, both, out=np.zeros_like(both), where=both > 0), minlength=J)
        value_of_step = np.minimum(np.divide(paid, made, out=most.copy(), where=made > 0), most)
    return np.asarray(value_of_step[:, None] * alone)


def pair_candidates(
    keys: Sequence[Key],  # J
    slowdowns: Slowdowns,  # of the K distinct keys in order of first occurrence, as the next two
    fits: Floats,  # (K, K, T)
    planned: Floats,  # (K, K, T) slowdowns that the policy uses
    alone: Floats,  # (J, T) value of each job alone
    gpu_s_left: Floats,  # (J,)
    running: Ints,  # (P, 3) rows of two jobs and a type on which the policy co-locates them
) -> PairCandidates:
    """For every two kinds and type the jobs with the most work left; skips kinds that the policy co-locates anyway."""
    row = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    kind = np.array([row[key] for key in keys], dtype=np.int64)
    gpus = np.array([count for _, count in row])
    order = np.lexsort((np.arange(len(kind)), -gpu_s_left, kind))
    starts, count = np.searchsorted(kind[order], np.arange(len(row))), np.bincount(kind, minlength=len(row))
    wanted = np.repeat((np.triu(gpus[:, None] == gpus[None, :]) & ~np.diag(count < 2))[:, :, None], alone.shape[1], 2)
    one, other, gpu_type = kind[running[:, 0]], kind[running[:, 1]], running[:, 2]
    wanted[np.minimum(one, other), np.maximum(one, other), gpu_type] = False
    a, b, t = np.nonzero(wanted)
    first, second = order[starts[a]], order[starts[b] + (a == b)]
    value = np.stack([alone[first, t], alone[second, t]], axis=1)
    of_kind = np.bincount(kind, gpu_s_left, minlength=len(row))
    return PairCandidates(
        np.column_stack([first, second]),
        t,
        np.stack([slowdowns.mean[a, b, t], slowdowns.mean[b, a, t]], axis=1),
        np.stack([slowdowns.sd[a, b, t], slowdowns.sd[b, a, t]], axis=1),
        fits[a, b, t],
        value,
        (value * np.stack([planned[a, b, t], planned[b, a, t]], axis=1)).sum(axis=1),
        np.where(a == b, 0.5, 1.0) * np.minimum(of_kind[a], of_kind[b]),
    )
