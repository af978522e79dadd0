"""The core's table of co-located pairs: one row per pair and GPU type, in order of (first, second, type).

Owed and received time of a pair is separate from that of its members alone, as in Gavel (OSDI '20, section 5); a job's
time is the sum of both. While only one member runs yet, half of the time counts. A pair without a share keeps its row
while its owed or received time matters, as the policy may choose it again soon.
"""

from __future__ import annotations

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints

PAIR_INT_COLUMNS = ("first", "second", "gpu_type")
PAIR_FLOAT_COLUMNS = ("target", "owed_s", "received_s")
_SERIAL_BITS, _TYPE_BITS = 26, 10  # of a key: 67 million jobs, 1,024 types


class PairTable:
    """P rows, with first < second; empty unless the policy co-locates jobs."""

    first: Ints  # (P,) serial of a job
    second: Ints  # (P,) serial of another, larger
    gpu_type: Ints  # (P,)
    target: Floats  # (P,) share of the allocation in force
    owed_s: Floats  # (P,) target integrated over time
    received_s: Floats  # (P,) co-located time under lease

    def __init__(self) -> None:
        for name in PAIR_INT_COLUMNS:
            setattr(self, name, np.zeros(0, dtype=np.int64))
        for name in PAIR_FLOAT_COLUMNS:
            setattr(self, name, np.zeros(0))

    @property
    def count(self) -> int:
        """P."""
        return len(self.first)

    def renumber(self, new: Ints) -> None:
        """Replaces the row of each job by its new one, in the same order; deletes pairs with a job that has none."""
        stays = (new[self.first] >= 0) & (new[self.second] >= 0)
        for name in (*PAIR_INT_COLUMNS, *PAIR_FLOAT_COLUMNS):
            setattr(self, name, getattr(self, name)[stays])
        self.first, self.second = new[self.first], new[self.second]

    def find(self, jobs: Ints, partners: Ints, gpu_type: Ints) -> Ints:
        """Rows of these pairs on these types, (K,), in either order of the jobs; asserts that all exist."""
        wanted = _keys(np.minimum(jobs, partners), np.maximum(jobs, partners), gpu_type)
        keys = _keys(self.first, self.second, self.gpu_type)
        rows = np.searchsorted(keys, wanted)
        assert (rows < len(keys)).all(), "the pair of a lease is not stored"
        assert (keys[rows] == wanted).all(), "the pair of a lease is not stored"
        return np.asarray(rows, dtype=np.int64)

    def put(self, members: Ints, gpu_type: Ints, share: Floats, remembered: Bools) -> None:
        """Puts these shares (K,) of pairs (K, 2) in force, and deletes other rows that are not `remembered` (P,)."""
        first, second = members.min(axis=1), members.max(axis=1)
        fresh = _keys(first, second, gpu_type)
        before = _keys(self.first, self.second, self.gpu_type)[remembered]
        keys = np.union1d(before, fresh)
        old, new = np.searchsorted(keys, before), np.searchsorted(keys, fresh)
        columns = {"first": first, "second": second, "gpu_type": gpu_type}
        for name in PAIR_INT_COLUMNS:
            values = np.zeros(len(keys), dtype=np.int64)
            values[old], values[new] = getattr(self, name)[remembered], columns[name]
            setattr(self, name, values)
        for name in PAIR_FLOAT_COLUMNS:
            claims = np.zeros(len(keys))
            claims[old] = getattr(self, name)[remembered]
            setattr(self, name, claims)
        self.target[:] = 0.0
        self.target[new] = share

    def settle(self, elapsed_s: float, fade: float) -> None:
        """Books owed time up to now; older time is multiplied by `fade`."""
        self.owed_s = self.owed_s * fade + self.target * elapsed_s
        self.received_s = self.received_s * fade

    def limit_lag(self, lag_max_s: float) -> None:
        """Limits the difference of owed and received time: see `JobTable.limit_lag`."""
        owed_s, received_s = self.owed_s, self.received_s
        self.owed_s = np.maximum(owed_s, received_s - lag_max_s)
        self.received_s = np.maximum(received_s, owed_s - lag_max_s)

    def credit(self, jobs: Ints, partners: Ints, gpu_type: Ints, time_s: Floats) -> None:
        """Books time that these jobs ran co-located; each of the two counts for half."""
        np.add.at(self.received_s, self.find(jobs, partners, gpu_type), time_s / 2)

    def by_job(self, name: str, count: int, type_count: int) -> Floats:
        """A column summed by member and type, (count, type_count)."""
        total, values = np.zeros((count, type_count)), getattr(self, name)
        np.add.at(total, (self.first, self.gpu_type), values)
        np.add.at(total, (self.second, self.gpu_type), values)
        return total


def _keys(first: Ints, second: Ints, gpu_type: Ints) -> Ints:
    """One key per row, in the order of the rows."""
    assert not len(second) or second.max() < 1 << _SERIAL_BITS, "more jobs than a pair can name"
    return (first << (_SERIAL_BITS + _TYPE_BITS)) | (second << _TYPE_BITS) | gpu_type
