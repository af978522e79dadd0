"""The goodput of a job as Pollux's agent learns it: a model of step times, fitted to what the job has measured.

    compute  a_c + b_c m                         m: batch size of a GPU
    network  a_r + b_r (K - 2) on one node, a_n + b_n (K - 2) on several, K GPUs
    step     (compute^γ + network^γ)^(1/γ), and compute for each further part of an accumulated batch

Pollux (OSDI '21), section 3.2 and equations 8 to 11, with the loss, priors and bounds of the authors' code (adaptdl;
siasosp23/artifacts, sia-simulator, goodput.py). Goodput is samples/s times the efficiency of a sample,
(var + sqr) / (var / scale + sqr) / scale, with the noise of the gradient and the batch size over the smallest one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.optimize import Bounds, minimize

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.reproduction.sia_applications import Application

Profile = Mapping[tuple[int, int, int], tuple[float, float]]  # (nodes, GPUs, local) -> step and sync time
TINY, GAMMA_MAX = 1e-8, 10.0
BATCHES = 50  # that are tried between the smallest and the largest
_FLAT, _EVEN = 1e-3, 1e-2  # weights of the priors: a small γ, and little network time that grows with GPUs
_ROUNDING = 1e-8


def fitted(profile: Profile) -> Floats:
    """The parameters a_c, b_c, a_n, b_n, a_r, b_r, γ with the least loss, (7,).

    What a job has not measured is optimistic: without several GPUs the network takes no time.
    """
    nodes, gpus, local = np.array(list(profile), dtype=np.float64).T
    step_s, sync_s = np.array(list(profile.values())).T
    compute_s = np.maximum(step_s - sync_s, TINY)
    start = np.array([0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001])
    low, high = np.array([TINY] * 6 + [1.0]), np.array([np.inf] * 6 + [GAMMA_MAX])
    several, one = nodes > 1, (nodes == 1) & (gpus > 1)
    fixed = np.zeros(7, dtype=np.bool_)
    if len(np.unique(local)) == 1:  # half of the time is assumed to be constant
        low[0], fixed[0] = compute_s.mean() / 2, True
    fixed[2:4], fixed[4:6] = not several.any(), not one.any()
    fixed[[3, 5]] |= not (gpus > 2).any()
    start[fixed], high[fixed] = low[fixed], low[fixed]
    measured = (nodes, gpus, local, np.log(compute_s), np.log(step_s))
    bounds = Bounds(low, high, keep_feasible=True)
    found = minimize(loss, start, args=measured, jac=True, bounds=bounds, tol=1e-5, method="L-BFGS-B")
    x: Floats = found.x
    if not several.any():
        x[2:4] = np.maximum(x[2:4], 1.1 * x[4:6])
    return x


def loss(x: Floats, nodes: Floats, gpus: Floats, local: Floats, compute: Floats, step: Floats) -> tuple[float, Floats]:
    """The errors of both logarithms (root mean squares) and the priors, and the gradient, (7,)."""
    several, one, more, a, b, gamma = *_links(nodes, gpus), x[0:6:2], x[1:6:2], x[6]
    own, network = _times(x, nodes, gpus, local)
    powers = np.array([own**gamma, network**gamma])
    both = powers.sum(axis=0)
    errors = np.array([np.log(own) - compute, np.log(both) / gamma - step])
    size = np.sqrt((errors**2).mean(axis=1))
    priors = _FLAT * (gamma - 1) ** 2 + _EVEN * float(((b[1:] / a[1:]) ** 2).sum())
    first, second = errors / (len(local) * np.maximum(size, 1e-12))[:, None]
    by_own, by_network = first / own + second * powers[0] / own / both, second * powers[1] / network / both
    by_gamma = (powers[0] * np.log(own) + powers[1] * np.log(network)) / (gamma * both) - np.log(both) / gamma**2
    gradient = np.zeros(7)
    gradient[:2] = by_own.sum(), (by_own * local).sum()
    for k, mask in ((1, several), (2, one)):
        gradient[2 * k] = by_network[mask].sum() - 2 * _EVEN * b[k] ** 2 / a[k] ** 3
        gradient[2 * k + 1] = (by_network * more)[mask].sum() + 2 * _EVEN * b[k] / a[k] ** 2
    gradient[6] = (second * by_gamma).sum() + 2 * _FLAT * (gamma - 1)
    return float(size.sum() + priors), gradient


def step_s(x: Floats, nodes: Floats, gpus: Floats, local: Floats, accumulated: Floats) -> Floats:
    """Seconds of a step of `accumulated` parts and a last one."""
    own, network = _times(x, nodes, gpus, local)
    found: Floats = accumulated * own + (own ** x[6] + network ** x[6]) ** (1 / x[6])
    return found


def best_batches(
    x: Floats, gradients: tuple[float, float], application: Application, nodes: Ints, gpus: Ints, local_max: int
) -> tuple[Floats, Ints, Ints]:
    """The highest goodput on each of K placements, and its local batch size and accumulated parts, (K,) each.

    The placements need gpus * application.local_min <= application.batch_max.
    """
    n, g, low = nodes.astype(np.float64), gpus.astype(np.float64), float(application.local_min)
    batch = np.geomspace(np.maximum(application.batch_min, low * g), application.batch_max, BATCHES)  # (BATCHES, K)
    parts = np.ceil(batch / g / local_max - _ROUNDING) - 1
    alone = (g == 1) & (batch > application.batch_min + _ROUNDING)  # noise cannot be measured in one part
    parts = np.where(alone, np.maximum(parts, 1), parts)
    local = np.ceil(batch / g / (parts + 1) - _ROUNDING)
    whole = g * local * (parts + 1)
    goodput = whole / step_s(x, n, g, local, parts) * efficiency(gradients, whole / application.batch_min)
    goodput = np.where((low <= local) & (local <= local_max), goodput, 0.0)
    best = np.argmax(goodput, axis=0), np.arange(len(g))
    return goodput[best], local[best].astype(np.int64), parts[best].astype(np.int64)


def efficiency(gradients: tuple[float, float], scale: Floats) -> Floats:
    """Progress of a sample in a batch of `scale` times the smallest one, over that in the smallest one."""
    squared, variance = gradients
    found: Floats = (variance + squared) / (variance / scale + squared) / scale
    return found


def _links(nodes: Floats, gpus: Floats) -> tuple[Bools, Bools, Floats]:
    """Whether GPUs are on several nodes; whether several are on one; and GPUs above two."""
    return nodes > 1, (nodes <= 1) & (gpus > 1), np.maximum(gpus - 2, TINY)


def _times(x: Floats, nodes: Floats, gpus: Floats, local: Floats) -> tuple[Floats, Floats]:
    """Compute and network time."""
    several, one, more = _links(nodes, gpus)
    network = np.select([several, one], [x[2] + x[3] * more, x[4] + x[5] * more], TINY + TINY * more)
    return x[0] + x[1] * local, network
