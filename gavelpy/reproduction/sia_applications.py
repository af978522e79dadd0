"""An application of Sia's workloads on one GPU type: step times by placement, and the progress and noise of epochs.

The rules are those of the authors' simulator (siasosp23/artifacts, sia-simulator, applications.py). A placement is the
GPUs of a job on each of its nodes, such as (4, 4). A step time that was profiled for the placement is interpolated in
the batch size of a GPU; others are interpolated in nodes, GPUs and batch size together.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
from scipy.interpolate import LinearNDInterpolator

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats
from gavelpy.traces.sia import CLUSTERS, VALIDATION, SiaProfiles

EPOCHS: Mapping[str, int] = {
    "bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50
}  # fmt: skip
"""Epochs of a job, by application. Source: applications.py, max_epochs."""
_PLACEMENTS = ("placement", "local_bsz", "step_time", "sync_time")
_SCALABILITY = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
_GRADIENTS = ("progress", "grad_sqr", "grad_var")

Placement = tuple[int, ...]


class Application:
    """An application on a GPU type. `local` is a batch size of one GPU, `batch` that of all GPUs of a job."""

    def __init__(self, profiles: SiaProfiles, name: str, gpu_type: str) -> None:
        self.name = name
        placed = profiles.table(f"{name}-placements-{CLUSTERS[gpu_type]}.csv", _PLACEMENTS)
        scaled = profiles.table(f"{name}-scalability-{CLUSTERS[gpu_type]}.csv", _SCALABILITY)
        texts = np.array([str(int(one)) for one in placed["placement"].tolist()])
        self._placed: dict[str, Floats] = {}  # rows of local batch size, step time, time of synchronisation
        for text in np.unique(texts).tolist():
            rows = np.column_stack([placed[column][texts == text] for column in _PLACEMENTS[1:]])
            self._placed[text] = rows[np.argsort(rows[:, 0], kind="stable")]
        self._scaled = np.column_stack([scaled[column] for column in _SCALABILITY])
        self.profile = np.concatenate([self._means(), self._scaled])  # (K, 5): nodes, GPUs, local, step and sync time
        self.local_min, self.local_max = int(placed["local_bsz"].min()), int(placed["local_bsz"].max())
        self._epochs = self._read_epochs(profiles)
        self.batch_min, self.batch_max = min(self._epochs), max(self._epochs)
        count = EPOCHS.get(name, min(map(len, self._epochs.values())))
        reached = np.min([table[:count, 0] for table in self._epochs.values()], axis=0)
        self.progress: Floats = np.concatenate([[0.0], reached])  # at the end of each epoch
        self.step_s, self.local_most = cache(self._step_s), cache(self._local_most)

    def _read_epochs(self, profiles: SiaProfiles) -> dict[int, Floats]:
        """Progress, squared norm and variance of the gradient by epoch, for each profiled batch size, ascending."""
        names = [path.name for path in profiles.directory.glob(f"{self.name}-validation-*.csv")]
        found = {}
        for batch in sorted(int(name.removesuffix(".csv").rpartition("-")[2]) for name in names):
            table = profiles.table(f"{self.name}-validation-{batch}.csv", VALIDATION, _GRADIENTS)
            found[batch] = np.column_stack([table[column] for column in _GRADIENTS])
        if not found:
            raise InvalidInput(f"application must have a profile {self.name}-validation-*.csv, got none")
        return found

    def _means(self) -> Floats:
        """Profiled placements by nodes, GPUs and local batch size, (K, 5): means over placements of equal size."""
        rows = np.concatenate([
            np.column_stack([np.tile([len(text), sum(map(int, text))], (len(table), 1)), table])
            for text, table in self._placed.items()
        ])  # fmt: skip
        keys, of = np.unique(rows[:, :3], axis=0, return_inverse=True)
        total = np.zeros((len(keys), 2))
        np.add.at(total, of.ravel(), rows[:, 3:])
        return np.column_stack([keys, total / np.bincount(of.ravel())[:, None]])

    def _step_s(self, placement: Placement, local: int) -> tuple[float, float]:
        """Seconds of a step, and those of them in which GPUs synchronise."""
        table = self._placed.get(_text(placement))
        if table is not None:
            return float(np.interp(local, table[:, 0], table[:, 1])), float(np.interp(local, table[:, 0], table[:, 2]))
        at = np.array([len(placement), sum(placement), local], dtype=np.float64)
        found = np.asarray(self._interpolate(at)).ravel()
        if np.isnan(found).any():  # outside of what was profiled: the nearest profile
            scale = self.profile[:, :3].max(axis=0)
            found = self.profile[np.argmin((np.abs(self.profile[:, :3] - at) / scale).sum(axis=1)), 3:]
        return float(found[0]), float(found[1])

    def _interpolate(self, at: Floats) -> Floats:
        if not hasattr(self, "_interpolator"):
            self._interpolator = LinearNDInterpolator(self.profile[:, :3], self.profile[:, 3:])
        found: Floats = self._interpolator(at)
        return found

    def _local_most(self, placement: Placement) -> int:
        """The largest local batch size on this placement."""
        table = self._placed.get(_text(placement))
        if table is not None:
            return int(table[:, 0].max())
        larger = (self._scaled[:, 0] >= len(placement)) & (self._scaled[:, 1] >= sum(placement))
        return int(self._scaled[larger, 2].max(initial=0)) or self.local_max

    def gradients(self, batch: float, epoch: int) -> tuple[float, float]:
        """Squared norm and variance of the gradient in an epoch, interpolated in the batch size."""
        sizes = list(self._epochs)
        rows = np.array([self._epochs[size][epoch, 1:] for size in sizes])
        return float(np.interp(batch, sizes, rows[:, 0])), float(np.interp(batch, sizes, rows[:, 1]))


def _text(placement: Placement) -> str:
    """The placement as in the profiles: of all rotations, the first."""
    turned = min(placement[k:] + placement[:k] for k in range(len(placement)))
    return "".join(map(str, turned))
