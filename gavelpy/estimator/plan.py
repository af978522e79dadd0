"""What to measure next: the few (job, GPU type, partner) that are worth most, within a budget of GPU-seconds.

A policy's prices say what a GPU of each type is worth, in units of its objective. A job is served most cheaply on the
type with the least  price / rate;  a measurement is worth what it is expected to lower that cost by, because it may
show another type to be the cheaper one (the knowledge gradient: Frazier et al., 2008). Rates are Gaussian on the
logarithm, so one measurement moves a job's beliefs along a line, and the expectation is an integral over one variable.
What a job shows where it would run anyway costs nothing and is counted as known.

Two jobs are worth measuring together where it is open whether they do more side by side than one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from gavelpy.errors import InvalidInput
from gavelpy.estimator.isolated import Blocks
from gavelpy.model.arrays import Bools, Floats

WORTH_MIN = 0.01  # gain a GPU-second below which nothing is measured
READING_SD = 0.05  # of what a probe measures, on the logarithm
_PRICE_FLOOR = 0.01  # of the dearest type: a type with GPUs to spare is cheap, not free
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclass(frozen=True)
class Probe:
    """One measurement to make."""

    row: int  # of the jobs asked about
    gpu_type: int
    partner: int = -1  # row of the job beside it, -1 = alone
    gain: float = 0.0  # expected, in the value of a GPU-second of the dearest type
    gpu_s: float = 0.0  # what it takes


@dataclass(frozen=True, eq=False)
class Candidates:
    """Jobs that a plan may measure, J of them, on T types."""

    blocks: Blocks  # beliefs, log steps/s
    is_open: Bools  # (J, T) where a job may be measured: it fits, the type has GPUs enough
    gpus: Floats  # (J,)
    gpu_s_left: Floats  # (J,) that the job still needs, about: what a cheaper type would save a share of
    prices: Floats  # (T,) of a GPU, any unit


@dataclass(frozen=True, eq=False)
class PairCandidates:
    """Pairs of those jobs that a plan may measure, P of them on a type each."""

    rows: Sequence[tuple[int, int]]
    gpu_type: Sequence[int]
    mean: Floats  # (P, 2) log slowdowns
    sd: Floats  # (P, 2)


def plan(
    jobs: Candidates, budget_gpu_s: float, *, probe_s: float = 60.0, pairs: PairCandidates | None = None
) -> list[Probe]:
    """The probes of the largest gain per GPU-second that the budget allows, best first.

    One after the other: what the first tells is taken into account when the next is chosen.
    """
    if not (math.isfinite(budget_gpu_s) and budget_gpu_s >= 0):
        raise InvalidInput(f"budget_gpu_s must be finite and >= 0, got {budget_gpu_s!r}")
    if not (math.isfinite(probe_s) and probe_s > 0):
        raise InvalidInput(f"probe_s must be finite and > 0, got {probe_s!r}")
    prices = _relative(jobs.prices)
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
            offers.remove(pair)
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


def with_probes(share: Floats, gpus: Floats, counts: Floats, probes: Sequence[Probe], fraction: float) -> Floats:
    """The shares (J, T) with this fraction of time spent on each probe, so that the mechanism leases GPUs for it.

    Others give way: a probed job's other shares by the time of its probes, and all on a type by what the probes need
    beyond its GPUs (`gpus` is of J jobs, `counts` of T types). Pairs are left to shells that can run them.
    """
    if not 0.0 <= fraction <= 1.0:
        raise InvalidInput(f"fraction must be in [0, 1], got {fraction!r}")
    extra = np.zeros_like(share)
    for probe in probes:
        if probe.partner < 0:
            extra[probe.row, probe.gpu_type] = fraction
    extra /= np.maximum(extra.sum(axis=1, keepdims=True), 1.0)
    taken = gpus @ extra
    extra *= np.minimum(1.0, np.divide(counts, taken, out=np.ones(len(counts)), where=taken > 0))
    rest = share * (1.0 - extra.sum(axis=1, keepdims=True))
    wanted, free = gpus @ rest, np.maximum(counts - gpus @ extra, 0.0)
    rest *= np.minimum(1.0, np.divide(free, wanted, out=np.ones(len(counts)), where=wanted > 0))
    return np.asarray(rest + extra)


def _gains(mean: Floats, covariance: Floats, jobs: Candidates, prices: Floats) -> Floats:
    """Expected fall of each job's cost by each measurement, (J, T), in GPU-seconds of the dearest type."""
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    noisy = variance + READING_SD**2
    with np.errstate(divide="ignore"):
        log_price = np.log(np.where(jobs.is_open, prices[None, :], np.inf))
    log_cost = log_price - mean + 0.5 * variance  # (J, T), of the expected cost
    least = log_cost.min(axis=1, initial=np.inf)
    is_served = np.isfinite(least)
    least = np.where(is_served, least, 0.0)
    slope = covariance / np.sqrt(noisy)[:, :, None]  # (J, t, u): of type u's mean, a standard deviation of reading t
    moved = log_cost[:, None, :, None] - slope[:, :, :, None] * _NODES - 0.5 * np.square(slope)[:, :, :, None]
    after = np.exp(np.minimum(moved.min(axis=2) - least[:, None, None], 50.0)) @ _WEIGHTS
    fall = np.where(jobs.is_open & is_served[:, None], np.maximum(1.0 - after, 0.0), 0.0)
    cheapest = np.argmin(log_cost, axis=1) if log_cost.shape[1] else np.zeros(len(mean), dtype=np.int64)
    return np.asarray(fall * (jobs.gpu_s_left * prices[cheapest])[:, None])


def _pair_offers(jobs: Candidates, prices: Floats, pairs: PairCandidates, probe_s: float) -> list[Probe]:
    """E[max(1, S)] - max(1, E[S]) of the sum S of two slowdowns, taken as normal, over the shorter job's time."""
    share = np.exp(pairs.mean + 0.5 * np.square(pairs.sd))
    spread = np.sqrt(np.square(share * pairs.sd).sum(axis=1))
    distance = np.abs(share.sum(axis=1) - 1.0)
    z = distance / np.maximum(spread, 1e-12)
    gain = spread * np.exp(-0.5 * np.square(z)) / math.sqrt(2.0 * math.pi) - distance * ndtr(-z)
    offers = []
    for (first, second), t, worth in zip(pairs.rows, pairs.gpu_type, gain.tolist(), strict=True):
        together_gpu_s = float(min(jobs.gpu_s_left[first], jobs.gpu_s_left[second]))
        gpu_s = float(jobs.gpus[first] * probe_s)
        if worth > 1e-9 and jobs.is_open[first, t] and jobs.is_open[second, t]:
            offers.append(Probe(first, t, second, worth * together_gpu_s * float(prices[t]), gpu_s))
    return offers


def _running(jobs: Candidates, prices: Floats) -> Floats:
    """Covariances (J, T, T) when each job has run where it is thought cheapest, which it will without any probe."""
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


def _relative(prices: Floats) -> Floats:
    """Prices as shares of the dearest; all alike where nothing is dear."""
    dearest = float(prices.max(initial=0.0))
    return np.maximum(prices / dearest, _PRICE_FLOOR) if dearest > 0 else np.ones_like(prices)
