"""A job and its agent in Sia's simulator: trains by the profiles, measures, and learns its goodput (Pollux).

A step makes progress by the true time of the placement and the true noise of the gradient; of both, the agent sees what
the job has run with. It does not distinguish GPU types: the first measurement of so many nodes, GPUs and samples counts
for all. Rules: siasosp23/artifacts, sia-simulator, job.py and cluster_unaware.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.reproduction.sia_applications import Application, Placement
from gavelpy.reproduction.sia_speed_model import best_batches, efficiency, fitted

GPUS_MAX = 16  # of a job: the GPUs of the smallest part of the cluster
MEASURED_ON = "t4"  # the type by which the agent takes limits of batch sizes (get_goodput_fn)
GROWTH_MAX = 2.0  # over the most GPUs that were measured


@dataclass(eq=False)
class LearningJob:
    """A job of an application; `known` has the parameters of each GPU type, if its agent need not learn them."""

    application: Mapping[str, Application]  # by GPU type
    arrival_s: float
    start_s: float  # that each start takes
    slowdown: float
    known: Mapping[str, Floats] = field(default_factory=dict)
    weight: Mapping[str, float] = field(default_factory=dict)  # of the types in known goodput: parts of the cluster

    gpu_type: str = ""
    placement: Placement = ()
    starts: int = 0
    attained_gpu_s: float = 0.0
    starting_s: float = 0.0  # that the start still takes
    finish_s: float = math.inf
    most: int = 0  # GPUs so far

    def __post_init__(self) -> None:
        self._now_s, self._epoch, self._progress = 0.0, 0, 0.0
        self._gradients: tuple[float, float] | None = None
        self._profile: dict[tuple[int, int, int], tuple[float, float]] = {}
        self._parameters: Floats | None = None
        self._local = self._parts = 0

    def place(self, gpu_type: str, placement: Placement) -> None:
        """Moves the job; on the same type, equal numbers of GPUs on other nodes are no start."""
        starts = bool(placement) and (gpu_type, placement) != (self.gpu_type, self.placement)
        self.gpu_type, self.placement = gpu_type, placement
        self.most = max(self.most, sum(placement))
        if starts:
            self._choose_batch()
            self.starting_s = self.start_s
            self.starts += 1

    def step(self, seconds: float) -> None:
        """Trains until so much later."""
        if math.isfinite(self.finish_s):
            return
        end_s, gpus = self._now_s + seconds, sum(self.placement)
        if self.placement:
            spent = min(self.starting_s, seconds)
            self.starting_s -= spent
            self._now_s += spent
            self.attained_gpu_s += spent * gpus
            while self._now_s < end_s and math.isinf(self.finish_s):
                before_s = self._now_s
                self._train(end_s)
                self.attained_gpu_s += (self._now_s - before_s) * gpus
        self._now_s = end_s

    def _train(self, end_s: float) -> None:
        """Trains to the end of the epoch, or until then, and chooses a batch size again."""
        application = self.application[self.gpu_type]
        scale = sum(self.placement) * self._local * (self._parts + 1) / application.batch_min
        self._gradients = application.gradients(scale * application.batch_min, self._epoch)
        step_s, sync_s = application.step_s(self.placement, self._local)
        self._measured((len(self.placement), sum(self.placement), self._local), (step_s, sync_s))
        gain = float(efficiency(self._gradients, np.array([scale]))[0]) * scale
        per_s = gain / (step_s + self._parts * (step_s - sync_s)) / self.slowdown
        next_, left_s = application.progress[self._epoch + 1], end_s - self._now_s
        if self._progress + per_s * left_s < next_:
            self._progress += per_s * left_s
            self._now_s = end_s
        else:
            self._now_s += round((next_ - self._progress) / per_s)
            self._progress = next_
            self._epoch += 1
            if self._epoch == len(application.progress) - 1:
                self.finish_s = self._now_s
                return
        self._choose_batch()

    def _measured(self, key: tuple[int, int, int], seconds: tuple[float, float]) -> None:
        if not self.known and key not in self._profile:
            self._profile[key] = seconds
            self._parameters = fitted(self._profile)

    def _choose_batch(self) -> None:
        """The best batch size by what the agent believes; before a measurement, the smallest."""
        application, gpus = self.application[self.gpu_type], sum(self.placement)
        most = application.local_most(self.placement)
        parameters = self.known.get(self.gpu_type, self._parameters)
        if self._gradients is None or parameters is None:
            each = math.ceil(max(application.batch_min, application.local_min * gpus) / gpus)
            self._parts = math.ceil(each / most) - 1
            self._local = math.ceil(each / (self._parts + 1))
        else:
            at = np.array([len(self.placement)]), np.array([gpus])
            _, local, parts = best_batches(parameters, self._gradients, application, *at, most)
            self._local, self._parts = int(local[0]), int(parts[0])
        self._local = min(self._local, most, int(application.batch_max / (gpus * (self._parts + 1))))

    def gpus_max(self) -> int:
        """The most GPUs that it may get."""
        if next(iter(self.application.values())).name == "ncf":
            return 1
        limits = self.application[MEASURED_ON]
        tried = self.most if self.known else max((gpus for _, gpus, _ in self._profile), default=0)
        return min(max(int(GROWTH_MAX * tried), 1), GPUS_MAX, limits.batch_max // limits.local_min)

    def speedups(self, fair: int) -> Floats:
        """Goodput by nodes and GPUs over that on `fair` GPUs of one node, (N + 1, N + 1), as the agent believes it."""
        found = np.zeros((GPUS_MAX + 1, GPUS_MAX + 1))
        if self._parameters is None and not self.known:
            found[1:] = np.arange(GPUS_MAX + 1) / fair
            return np.triu(found)
        limits = self.application[MEASURED_ON]
        nodes, gpus = _PAIRS[:, _PAIRS[1] * limits.local_min <= limits.batch_max]
        values = self._goodput(np.append(nodes, 1), np.append(gpus, fair))
        found[nodes, gpus] = values[:-1] / values[-1]
        return found

    def _goodput(self, nodes: Ints, gpus: Ints) -> Floats:
        limits = self.application[MEASURED_ON]
        if not self.known:
            assert self._parameters is not None, "the agent has measured"
            assert self._gradients is not None, "it has the noise of the same step"
            return best_batches(self._parameters, self._gradients, limits, nodes, gpus, limits.local_max)[0]
        gradients = self._gradients or limits.gradients(limits.batch_min, 0)
        total = np.zeros(len(gpus))
        for gpu_type, parameters in self.known.items():
            own = self.application[gpu_type]
            total += self.weight[gpu_type] * best_batches(parameters, gradients, own, nodes, gpus, own.local_max)[0]
        return total


_PAIRS = np.array([(nodes, gpus) for gpus in range(1, GPUS_MAX + 1) for nodes in range(1, gpus + 1)]).T
