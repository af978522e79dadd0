"""Reserves time for probes in the shares of an allocation, so that the mechanism leases GPUs for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.estimator.plan import Probe
from gavelpy.model.arrays import Floats, Ints


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
