"""Batch sizes that change during training, as in Shockwave's traces (Zheng et al., NSDI '23), as phases of the job.

A job with the mode `accordion` or `gns` changes its batch size at given epochs, by its model, its first batch size and
its number of GPUs. The epochs are those of Shockwave's artifact (uw-mad-dash/shockwave, scheduler/utils.py), with one
difference: there, the last epoch of a job with several changes has the first batch size again.

Each batch size is a phase of the job, with the rate that the throughput table has for it. Steps count in batches of the
first size, so a phase with batches of twice the size makes two steps with each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from gavelpy.model.job_phases import JobPhase, Phases
from gavelpy.model.throughput import ThroughputTable

_JOB_TYPE = re.compile(r"(?P<model>[^ ]+) \(batch size (?P<batch>[0-9]{1,7})\)")
_SAMPLES = {"ResNet-18": 50_000, "ResNet-50": 100_000, "Transformer": 10_000, "LM": 59_675, "Recommendation": 117_907}
_LARGEST = {"ResNet-18": 256, "ResNet-50": 128, "LM": 80, "Recommendation": 8192}
# Epochs at which the batch size doubles under `gns`, by model, first batch size and GPUs
_DOUBLES: Mapping[tuple[str, int, int], tuple[int, ...]] = {
    ("ResNet-18", 16, 1): (31, 41, 51, 71),
    ("ResNet-18", 32, 1): (21, 31, 51),
    ("ResNet-18", 64, 1): (11, 31),
    ("ResNet-18", 128, 1): (11,),
    ("ResNet-18", 16, 2): (21, 31, 91, 111),
    ("ResNet-18", 32, 2): (11, 21, 41),
    ("ResNet-18", 64, 2): (21, 41),
    ("ResNet-18", 128, 2): (41,),
    ("ResNet-18", 16, 4): (11, 21, 81, 91),
    ("ResNet-18", 32, 4): (21, 31, 61),
    ("ResNet-18", 64, 4): (11, 61),
    ("ResNet-18", 128, 4): (11,),
    ("ResNet-50", 64, 1): (101,),
    ("ResNet-50", 32, 2): (101, 111),
    ("ResNet-50", 64, 2): (81,),
    ("ResNet-50", 32, 4): (131, 221),
    ("ResNet-50", 64, 4): (191,),
    ("LM", 5, 1): (31, 41, 61, 71),
    ("LM", 10, 1): (11, 21, 41),
    ("LM", 20, 1): (11, 41),
    ("LM", 40, 1): (11,),
    ("LM", 5, 2): (31, 51, 61, 71),
    ("LM", 10, 2): (11, 31, 41),
    ("LM", 20, 2): (31, 41),
    ("LM", 40, 2): (11,),
    ("LM", 5, 4): (11, 31, 71, 91),
    ("LM", 10, 4): (11, 31, 61),
    ("LM", 20, 4): (11, 61),
    ("LM", 40, 4): (61,),
    ("Recommendation", 512, 1): (21, 41, 71, 91),
    ("Recommendation", 1024, 1): (21, 51, 91),
    ("Recommendation", 2048, 1): (21, 41),
    ("Recommendation", 4096, 1): (41,),
}
_CRITICAL_SHARE = 0.3  # of the epochs, which keep the first batch size under `accordion`


def batch_sizes(job_type: str, mode: str, steps: float, gpus: int) -> tuple[int, ...]:
    """Batch size of each epoch; empty if the model has no number of samples per epoch.

    >>> batch_sizes("LM (batch size 40)", "gns", 1492 * 13, 1)
    (40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 80, 80)
    """
    match = _JOB_TYPE.fullmatch(job_type)
    if match is None or match["model"] not in _SAMPLES or int(match["batch"]) < 1:
        return ()
    model, first = match["model"], int(match["batch"])
    epochs = math.ceil(steps / math.ceil(_SAMPLES[model] / first))
    largest = _LARGEST.get(model, first)
    if mode == "gns":
        doubles = _DOUBLES.get((model, first, gpus), ())
        return tuple(min(first * 2 ** sum(epoch >= at for at in doubles), largest) for epoch in range(epochs))
    if mode == "accordion" and model in _LARGEST:
        keeps = _CRITICAL_SHARE * epochs
        return tuple(
            first if _is_critical(model, first, epoch) or epoch <= keeps else largest for epoch in range(epochs)
        )
    return (first,) * epochs


def _is_critical(model: str, first: int, epoch: int) -> bool:
    match model:
        case "ResNet-18":
            return epoch < (20 if first == 256 else 10) or epoch in range(150, 160) or epoch in range(250, 260)
        case "ResNet-50":
            return epoch < 600 and epoch % 30 < 10
        case "LM":
            return epoch < 10
        case _:
            most = {512: 30, 1024: 30, 2048: 40}.get(first, 10)
            return epoch < most or epoch in range(60, 70) or epoch in range(80, 90)


def phases_of(job_type: str, mode: str, steps: float, gpus: int, table: ThroughputTable) -> Phases:
    """The job's phases, on the GPU types for which all its batch sizes have rates; empty without changes."""
    sizes = batch_sizes(job_type, mode, steps, gpus)
    if len(set(sizes)) < 2:
        return ()
    model, first = job_type.partition(" ")[0], sizes[0]
    by_size = {size: table.rates(f"{model} (batch size {size})", gpus) for size in set(sizes)}
    types = [name for name in table.gpu_types if all(rates.get(name, math.nan) > 0 for rates in by_size.values())]
    epoch_steps = math.ceil(_SAMPLES[model] / first)
    found: list[JobPhase] = []
    for epoch, size in enumerate(sizes if types else ()):
        if epoch == 0 or size != sizes[epoch - 1]:
            rates = {name: by_size[size][name] * size / first for name in types}
            found.append(JobPhase(float(epoch * epoch_steps), rates, size / first))
    return tuple(found)
