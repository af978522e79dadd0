"""Phases of a job: its rates change at given steps, as those of training whose batch size grows.

A scheduler does not know them in advance. It learns the rates of a phase when the job enters it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import VALUE_MAX
from gavelpy.model.job_sizes import checked_rates

if TYPE_CHECKING:
    from gavelpy.model.job import JobId, JobSpec

PHASES_MAX = 10_000  # of one job


@dataclass(frozen=True)
class JobPhase:
    """From `from_step` on, the job runs at these rates. Raises InvalidInput."""

    from_step: float
    rates_steps_per_s: Mapping[str, float]  # of the whole job on its GPUs, by GPU type; all > 0
    batch_scale: float = 1.0  # batch size relative to the one by which the job's steps count

    def __post_init__(self) -> None:
        if not 0 <= self.from_step <= VALUE_MAX:
            raise InvalidInput(f"from_step of a phase must be in [0, {VALUE_MAX:g}], got {self.from_step!r}")
        if not 0 < self.batch_scale <= VALUE_MAX:
            raise InvalidInput(f"batch_scale of a phase must be > 0, got {self.batch_scale!r}")


Phases = tuple[JobPhase, ...]


def check_phases_of(jobs: Sequence[JobSpec], phases: Mapping[JobId, Phases]) -> None:
    """Raises InvalidInput unless these are phases of jobs among these, by id: see `check_phases`."""
    found = [job for job in jobs if job.id in phases] if phases else []
    for job in found:
        check_phases(job, phases[job.id])
    if len(found) < len(phases):
        unknown = min(set(phases) - {job.id for job in found})
        raise InvalidInput(f"phases must be of jobs of the trace, got {unknown!r}")


def check_phases(job: JobSpec, phases: Sequence[JobPhase]) -> None:
    """Raises InvalidInput unless the phases cover all steps of the job in order, with rates on the same GPU types."""
    name, steps = f"phases of job {job.id!r}", [phase.from_step for phase in phases]
    if not 1 <= len(phases) <= PHASES_MAX or steps[0] != 0:
        raise InvalidInput(f"{name} must be 1 to {PHASES_MAX}, the first from step 0, got {len(phases)}: {steps[:3]}")
    if job.sizes:
        raise InvalidInput(f"{name} must be none, because it has several sizes, got {len(phases)}")
    for before, after in pairwise(steps):
        if not before < after:
            raise InvalidInput(f"{name} must begin at ascending steps, got {after!r} after {before!r}")
    if not steps[-1] < job.steps_total:
        raise InvalidInput(f"{name} must begin before its last step ({job.steps_total!r}), got {steps[-1]!r}")
    types = {gpu_type for gpu_type, rate in job.rates_steps_per_s.items() if rate > 0}
    for phase in phases:
        rates = checked_rates("rates_steps_per_s", job.id, phase.rates_steps_per_s)
        if {gpu_type for gpu_type, rate in rates.items() if rate > 0} != types:
            expected = ", ".join(sorted(types)) or "none"
            raise InvalidInput(f"{name} must have rates > 0 on the types of the job ({expected}), got {rates}")


def mean_rates(phases: Sequence[JobPhase], steps_total: float) -> dict[str, float]:
    """Rates with which a job without phases takes as long on each GPU type, where all phases have rates.

    >>> phases = (JobPhase(0.0, {"v100": 1.0}), JobPhase(60.0, {"v100": 4.0}))
    >>> mean_rates(phases, 100.0)  # 60 s and 10 s
    {'v100': 1.4285714285714286}
    """
    ends = [*(phase.from_step for phase in phases[1:]), steps_total]
    found: dict[str, float] = {}
    for gpu_type in phases[0].rates_steps_per_s:
        rates = [phase.rates_steps_per_s.get(gpu_type, 0.0) for phase in phases]
        if min(rates) > 0:
            spans = zip(phases, ends, rates, strict=True)
            found[gpu_type] = steps_total / math.fsum((end - phase.from_step) / rate for phase, end, rate in spans)
    return found


def phases_text(phases: Sequence[JobPhase]) -> str:
    """Phases as text, from which `parsed_phases` reads the same numbers.

    >>> phases_text((JobPhase(0.0, {"v100": 1.5, "k80": 1.0}), JobPhase(600.0, {"v100": 4.0, "k80": 2.0}, 2.0)))
    '0.0:v100=1.5|k80=1.0;600.0x2.0:v100=4.0|k80=2.0'
    """
    found = []
    for phase in phases:
        if unwritable := [name for name in phase.rates_steps_per_s if set(name) & set(";|")]:
            raise InvalidInput(f"GPU types of phases must be without ';' and '|' to be written, got {unwritable[0]!r}")
        scale = f"x{float(phase.batch_scale)!r}" if phase.batch_scale != 1.0 else ""
        rates = "|".join(f"{name}={float(rate)!r}" for name, rate in phase.rates_steps_per_s.items())
        found.append(f"{float(phase.from_step)!r}{scale}:{rates}")
    return ";".join(found)


def parsed_phases(text: str) -> Phases:
    """The phases in a text such as `0:v100=1.5;600x2:v100=4`: from a step on (with batches of twice the size), rates.

    Raises InvalidInput.
    """
    found: list[JobPhase] = []
    for part in text.split(";"):
        begin, _, rates = part.partition(":")
        from_step, _, scale = begin.partition("x")
        try:
            by_type = {name.strip(): float(rate) for name, _, rate in (one.rpartition("=") for one in rates.split("|"))}
            if len(by_type) <= rates.count("|"):
                raise InvalidInput(f"phases must name a GPU type once, got {rates[:60]!r}")
            found.append(JobPhase(float(from_step), by_type, float(scale) if scale else 1.0))
        except InvalidInput:  # a ValueError, too
            raise
        except ValueError:
            raise InvalidInput(f"phases must look like 0:v100=1.5|k80=1;600:v100=4|k80=2, got {part[:60]!r}") from None
    return tuple(found)
