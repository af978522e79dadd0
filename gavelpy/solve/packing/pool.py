"""The entries of a program that has very many: those in use, and which of the others are worth having."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.solve.program import Program

AT_FIRST = 1  # entries of several jobs for each class of jobs (and GPU type, if nothing is known) to begin with, and
AT_ONCE = 2  # for each class of jobs in one go later: fewer make more rounds, more make longer ones
PROMISING = 24  # entries for each class of jobs, on average: the best of each are looked for among so many


@dataclass(frozen=True, eq=False)
class Duals:
    """What constraints are worth, in units of the objective; a class counts for all its jobs."""

    rate: Floats  # (K,) of a rate's unit, because of levels and floors
    time: Floats  # (K,) of a job's time
    capacity: Floats  # (T,) of all GPUs of a type
    per_gain: float  # of what an entry adds to the sum of values; 0 where the sum is for ties only


class Pool:
    """Which entries, (class of configurations, GPU type), are in use. All that one job has to itself always are.

    Tables of entries are (T, Q) here, so that what is added up stands side by side.
    """

    def __init__(self, program: Program) -> None:
        c, gpus = program.columns, program.problem.gpu_counts
        self._class_count = len(program.value)
        self._member_class = c.member_class
        self._rate = np.ascontiguousarray(c.member_rate.transpose(2, 0, 1))
        self._time = c.member_time
        self._gpus = c.gpus
        self._load = c.gpus / np.where(gpus > 0, gpus, 1.0)[:, None]
        self._alone = c.fits.T & c.is_alone
        self._unused = np.ascontiguousarray(c.fits.T)
        self._several = self._unused & ~c.is_alone
        self._gain = self._valued(program.value * program.classes.count) * program.type_worth[:, None]
        self.gain_max = float(
            np.where(self._unused, self._gain, 0.0).max(initial=0.0)
        )  # of an entry, to a sum of values

    def candidates(self, count: int) -> tuple[Ints, Ints]:
        """Entries of one job, and of each class of jobs the `count` others most valuable for their GPUs by type."""
        wanted = self._alone.copy()
        value = np.where(self._several, self._gain / self._gpus, -np.inf)
        for chosen, of_type in zip(wanted, value, strict=True):
            chosen[self._best(of_type, count, least=0.0)] = True
        gpu_type, group = np.nonzero(wanted)
        return group, gpu_type

    def first(self, duals: Duals | None) -> tuple[Ints, Ints]:
        """Entries to begin with, used from now on: those of one job, and AT_FIRST others for each class of jobs."""
        if duals is None:
            group, gpu_type = self.candidates(AT_FIRST)
            return self._used(gpu_type * self._unused.shape[1] + group)
        worth = np.where(self._several, self._worth(duals) / self._gpus, -np.inf)
        wanted = self._alone.copy()
        wanted.ravel()[self._best(worth.ravel(), AT_FIRST, least=-np.inf)] = True
        return self._used(np.flatnonzero(wanted))

    def wanted(self, duals: Duals, least: float) -> tuple[Ints, Ints]:
        """Unused entries that would gain more than `least`, used from now on: AT_ONCE for each class of jobs."""
        return self._used(self._best(self._worth(duals).ravel(), AT_ONCE, least))

    def keep(self, duals: Duals, least: float) -> None:
        """Forgets the unused entries that would not gain more than `least`."""
        self._unused = self._worth(duals) > least

    def _valued(self, weight: Floats) -> Floats:
        """Σ over members of their class's weight x rate, (T, Q)."""
        valued: Floats = np.einsum("dq,tdq->tq", self._of_member(weight), self._rate)
        return valued

    def _of_member(self, per_class: Floats) -> Floats:
        """The figure of each member's class, (D, Q); 0 where there is no member."""
        return np.append(per_class, 0.0)[self._member_class]  # class -1 is the last

    def _worth(self, duals: Duals) -> Floats:
        """What each unused entry would add to the objective at share 1, (T, Q); -inf for the others."""
        worth = self._valued(duals.rate)
        if duals.per_gain:
            worth += duals.per_gain * self._gain
        worth -= np.einsum("dq,dq->q", self._of_member(duals.time), self._time)
        worth -= self._load * duals.capacity[:, None]
        return np.where(self._unused, worth, -np.inf)

    def _best(self, worth: Floats, count: int, least: float) -> Ints:
        """The `count` best places of flat `worth` above `least` for each class of jobs, among the most promising."""
        places = np.flatnonzero(worth > least)
        few = PROMISING * self._class_count
        if len(places) > few:
            places = places[worth[places] >= np.partition(worth[places], -few)[-few]]
        places = places[np.argsort(-worth[places], kind="stable")]
        keep: Bools = np.zeros(len(places), dtype=np.bool_)
        short = np.int16 if self._class_count < np.iinfo(np.int16).max else np.int64  # 16 bits are sorted by radix
        for classes in self._member_class[:, places % self._unused.shape[1]]:
            order = np.argsort(classes.astype(short), kind="stable")
            sizes = np.bincount(classes + 1, minlength=self._class_count + 1)
            rank = np.arange(len(places)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            keep[order[(rank < count) & (classes[order] >= 0)]] = True
        return places[keep]

    def _used(self, places: Ints) -> tuple[Ints, Ints]:
        self._unused.ravel()[places] = False
        gpu_type, group = np.divmod(places, self._unused.shape[1])
        return group, gpu_type
