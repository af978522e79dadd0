"""The core's table of claims: time on GPUs that a job has not alone on the GPUs that it requested.

A claim is of two co-located jobs, or of a job with several sizes for one of them. Owed and received time of each is
separate, as in Gavel (OSDI '20, section 5, for pairs); a job's time is the sum over its claims. Jobs of one size alone
have the dense columns of `JobTable` instead. While only one job of a pair runs yet, half of the time counts. A claim
without a share keeps its row while its owed or received time matters, as the policy may choose it again soon.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints

CLAIM_INT_COLUMNS = ("first", "second", "gpus", "gpu_type")
CLAIM_FLOAT_COLUMNS = ("target", "owed_s", "received_s")
ALONE = -1
_TYPE_BITS, _OTHER_BITS, _SIZES = 10, 27, 1 << 20  # of a key: 1,024 types, 67 million jobs, sizes up to a million


class ClaimKeys(NamedTuple):
    """What claims are of, (K,) each."""

    first: Ints  # row of a job
    second: Ints  # row of its co-located job, ALONE = none
    gpus: Ints
    gpu_type: Ints

    @property
    def order(self) -> Ints:
        """One number per claim, in the order of the rows: a job's sizes come before its pairs, (K,)."""
        first, second = np.minimum(self.first, self.second), np.maximum(self.first, self.second)
        is_pair = first >= 0
        assert not len(second) or second.max() < 1 << 26, "more jobs than a claim can name"
        first, other = np.where(is_pair, first, second), np.where(is_pair, _SIZES + second, self.gpus)
        return np.asarray((first << (_OTHER_BITS + _TYPE_BITS)) | (other << _TYPE_BITS) | self.gpu_type)


class ClaimTable:
    """P rows, in order of (first, second, gpus, type), with first < second in pairs."""

    first: Ints  # (P,) row of a job
    second: Ints  # (P,) row of another, larger; ALONE = none
    gpus: Ints  # (P,)
    gpu_type: Ints  # (P,)
    target: Floats  # (P,) share of the allocation in force
    owed_s: Floats  # (P,) target integrated over time
    received_s: Floats  # (P,) time under lease

    def __init__(self) -> None:
        for name in CLAIM_INT_COLUMNS:
            setattr(self, name, np.zeros(0, dtype=np.int64))
        for name in CLAIM_FLOAT_COLUMNS:
            setattr(self, name, np.zeros(0))

    @property
    def count(self) -> int:
        """P."""
        return len(self.first)

    @property
    def keys(self) -> ClaimKeys:
        """What the rows are of."""
        return ClaimKeys(self.first, self.second, self.gpus, self.gpu_type)

    def renumber(self, new: Ints) -> None:
        """Replaces the row of each job by its new one, in the same order; deletes claims of jobs that have none."""
        stays = (new[self.first] >= 0) & ((self.second < 0) | (new[self.second] >= 0))
        for name in (*CLAIM_INT_COLUMNS, *CLAIM_FLOAT_COLUMNS):
            setattr(self, name, getattr(self, name)[stays])
        self.first, self.second = new[self.first], np.where(self.second < 0, ALONE, new[self.second])

    def find(self, wanted: ClaimKeys) -> Ints:
        """Rows of these claims, (K,), with pairs in either order of the jobs; asserts that all exist."""
        keys, order = self.keys.order, wanted.order
        rows = np.searchsorted(keys, order)
        assert (rows < len(keys)).all(), "the claim of a lease is not stored"
        assert (keys[rows] == order).all(), "the claim of a lease is not stored"
        return np.asarray(rows, dtype=np.int64)

    def put(self, fresh: ClaimKeys, share: Floats, remembered: Bools) -> None:
        """Puts these shares (K,) in force, and deletes other rows that are not `remembered` (P,)."""
        self._merge(fresh, remembered)
        self.target[:] = 0.0
        self.target[self.find(fresh)] = share

    def shares(self, wanted: ClaimKeys) -> Floats:
        """The share of each of these claims, (K,); 0 of those that have no row."""
        keys, order = self.keys.order, wanted.order
        rows = np.minimum(np.searchsorted(keys, order), self.count - 1)
        return np.where(keys[rows] == order, self.target[rows], 0.0) if self.count else np.zeros(len(order))

    def add(self, fresh: ClaimKeys) -> None:
        """Adds those of these claims that have no row, without a share or time."""
        if len(fresh.first) and not np.isin(fresh.order, self.keys.order).all():
            self._merge(fresh, np.ones(self.count, dtype=np.bool_))

    def _merge(self, fresh: ClaimKeys, remembered: Bools) -> None:
        before, order = self.keys.order[remembered], fresh.order
        keys = np.union1d(before, order)
        old, new = np.searchsorted(keys, before), np.searchsorted(keys, order)
        is_pair = fresh.second >= 0
        first = np.where(is_pair, np.minimum(fresh.first, fresh.second), fresh.first)
        second = np.where(is_pair, np.maximum(fresh.first, fresh.second), ALONE)
        columns = (first, second, fresh.gpus, fresh.gpu_type)
        for name, column in zip(CLAIM_INT_COLUMNS, columns, strict=True):
            values = np.zeros(len(keys), dtype=np.int64)
            values[old], values[new] = getattr(self, name)[remembered], column
            setattr(self, name, values)
        for name in CLAIM_FLOAT_COLUMNS:
            claims = np.zeros(len(keys))
            claims[old] = getattr(self, name)[remembered]
            setattr(self, name, claims)

    def settle(self, elapsed_s: float, fade: float) -> None:
        """Books owed time up to now; older time is multiplied by `fade`."""
        self.owed_s = self.owed_s * fade + self.target * elapsed_s
        self.received_s = self.received_s * fade

    def limit_lag(self, lag_max_s: float) -> None:
        """Limits the difference of owed and received time: see `booking.limit_lag`."""
        owed_s, received_s = self.owed_s, self.received_s
        self.owed_s = np.maximum(owed_s, received_s - lag_max_s)
        self.received_s = np.maximum(received_s, owed_s - lag_max_s)

    def credit(self, keys: ClaimKeys, time_s: Floats) -> None:
        """Books time that jobs ran under these claims; each of two co-located jobs counts for half."""
        np.add.at(self.received_s, self.find(keys), np.where(keys.second >= 0, time_s / 2, time_s))

    def disclaim(self, rows: Ints) -> None:
        """Removes the shares of these jobs."""
        if self.count:
            self.target[np.isin(self.first, rows) | np.isin(self.second, rows)] = 0.0

    def gpus_owed(self, count: int) -> Floats:
        """GPUs that the shares of each job are worth on average, half of those of a pair for each, (count,)."""
        total, is_pair = np.zeros(count), self.second >= 0
        gpus = self.target * self.gpus
        np.add.at(total, self.first, np.where(is_pair, gpus / 2, gpus))
        np.add.at(total, self.second[is_pair], gpus[is_pair] / 2)
        return total

    def by_job(self, name: str, count: int, type_count: int) -> Floats:
        """A column summed by job and type, (count, type_count)."""
        total, values, is_pair = np.zeros((count, type_count)), getattr(self, name), self.second >= 0
        np.add.at(total, (self.first, self.gpu_type), values)
        np.add.at(total, (self.second[is_pair], self.gpu_type[is_pair]), values[is_pair])
        return total
