"""Which jobs were on the same GPUs at the same time, folded from starts and ends of leases.

Two leases on a GPU at once are those of a pair: where nobody shares, the newer one only means that the end of the older
was not heard.
"""

from __future__ import annotations

import numpy as np

from gavelpy.model.arrays import Floats, Ints

NOBODY = -1


class Sharing:
    """Times in which two jobs had leases on the same GPUs. Rows of jobs are serials."""

    def __init__(self) -> None:
        self._partner: dict[int, int] = {}
        self._since: dict[int, tuple[float, int]] = {}  # when they came together, and on which GPU type
        self._times: list[tuple[int, int, int, float, float]] = []

    def begin(self, one: int, other: int, gpu_type: int, now_s: float) -> None:
        """A job starts on the GPUs of another that runs there."""
        self._partner[one], self._partner[other] = other, one
        self._since[one] = self._since[other] = (now_s, gpu_type)

    def leave(self, rows: Ints, now_s: float) -> None:
        """These jobs leave their GPUs."""
        if not self._partner:
            return
        for row in rows.tolist():
            other = self._partner.pop(row, NOBODY)
            if other != NOBODY:
                del self._partner[other]
                since_s, gpu_type = self._since[row]
                self._times.append((min(row, other), max(row, other), gpu_type, since_s, now_s))

    def times(self, now_s: float) -> tuple[Ints, Ints, Ints, Floats, Floats]:
        """Job, partner, GPU type, start and end, (K,) each; those under way end now."""
        under_way = [
            (row, other, self._since[row][1], self._since[row][0], now_s)
            for row, other in self._partner.items()
            if row < other
        ]
        table = np.array([*self._times, *under_way], dtype=np.float64).reshape(-1, 5)
        job, partner, gpu_type = table[:, :3].astype(np.int64).T
        return job, partner, gpu_type, table[:, 3], table[:, 4]
