"""Plans probes: the most valuable measurements (job, GPU type, partner) within a budget of GPU-seconds.

A policy's shadow prices are the value of a GPU of each type in units of its objective. A job's steps cost least on the
type with the lowest  price / rate.  The value of a measurement is the expected decrease of that cost, because it may
show that another type is cheaper (knowledge gradient; Frazier et al., 2008). Log rates are Gaussian, so a measurement
shifts a job's estimates along a line, and the expectation is an integral over one variable. Measurements on the type
that a job is likely to run on anyway cost nothing and count as known.

Measuring a pair is valuable if the two co-located jobs may be worth more than the GPUs they share, and the policy would
not co-locate them by its current estimates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from gavelpy.errors import InvalidInput
from gavelpy.estimator.gaussian import Blocks
from gavelpy.model.arrays import Bools, Floats, Ints

WORTH_MIN = 0.01  # least gain per GPU-second of a probe
READING_SD = 0.05  # of the log rate that a probe measures
_GAIN_MIN = 1e-9  # least gain of a pair that is considered
_OFFERS_MAX = 1000  # pairs that are considered
_PRICE_FLOOR = 0.01  # relative to the dearest type: a type with free GPUs is cheap, not free
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


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
    worth: Floats  # (P, 2) value of the job alone on that type over the cost of its GPUs
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
    share = pairs.worth * np.exp(pairs.mean + 0.5 * np.square(pairs.sd))
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
