"""Configurations beyond one job alone on the GPUs it requested: several sizes of a job, and pairs of jobs.

`AllocationProblem.with_sizes` and `with_pairs` call these functions. Each appends rows to the problem's configurations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import VALUE_MAX, Floats, Ints, floats, index_of, require

if TYPE_CHECKING:
    from gavelpy.model.problem import AllocationProblem

THOUSANDTHS = 1000
AMOUNT_MAX = 1e15  # of a resource; in thousandths it fits in 64 bits


@dataclass(frozen=True)
class Size:
    """Another number of GPUs on which a job can run, with its rates there: measured, or by an efficiency.

    >>> Size(2, {"v100": 7.6, "k80": 1.9})  # doctest: +ELLIPSIS
    Size(gpus=2, ...)
    >>> Size(4, efficiency=0.85, plan="dp4").plan
    'dp4'
    """

    gpus: float
    rates_steps_per_s: Mapping[str, float] = field(default_factory=dict)  # by GPU type, in steps of the requested size
    efficiency: float = (
        0.0  # without rates: its rate is that of the requested size x GPUs / GPUs requested x efficiency
    )
    plan: str = ""  # how the job runs on that many GPUs; passed to the job, without a meaning here
    demand: Mapping[str, float] = field(default_factory=dict)  # of other resources; default: in proportion to GPUs

    def __post_init__(self) -> None:
        if not 0 < self.gpus <= AMOUNT_MAX:
            raise InvalidInput(f"gpus of a size must be > 0 and at most {AMOUNT_MAX:g}, got {self.gpus!r}")
        if bool(self.rates_steps_per_s) == bool(self.efficiency):
            given = f"both ({self.efficiency:g})" if self.efficiency else "neither"
            raise InvalidInput(
                "rates_steps_per_s of a size must be of at least one GPU type, or it must have an efficiency instead, "
                f"got {given} for {self.gpus:g} GPUs"
            )
        if not 0 <= self.efficiency <= VALUE_MAX:
            raise InvalidInput(f"efficiency of a size must be finite and > 0, got {self.efficiency!r}")


def require_amounts(name: str, amounts: Floats) -> None:
    """Raises InvalidInput unless these amounts of resources are in [0, AMOUNT_MAX]."""
    require(name, amounts, (amounts >= 0) & (amounts <= AMOUNT_MAX), f"in [0, {AMOUNT_MAX:g}]")


def with_sizes(problem: AllocationProblem, sizes: Mapping[str, Sequence[Size]]) -> AllocationProblem:
    """`problem` with one configuration more for each size; `sizes` are by job id."""
    row = index_of(problem.job_ids, "job_ids")
    for job in sizes:
        if job not in row:
            raise InvalidInput(f"sizes must name jobs of the problem, got {job!r}")
    jobs = np.array([row[job] for job, given in sizes.items() for _ in given], dtype=np.int64)
    listed = [size for given in sizes.values() for size in given]
    gpus = np.array([size.gpus for size in listed])
    _check_distinct(problem, jobs, listed)
    rates = _rates(problem, jobs, listed)
    demand = np.rint(_first_demand(problem)[jobs] * (gpus / problem.gpus_asked[jobs])[:, None])
    demand[:, 0] = np.rint(gpus * THOUSANDTHS)
    column = {name: r for r, name in enumerate(problem.resources)}
    for i, size in enumerate(listed):
        for name, amount in size.demand.items():
            if name not in column or column[name] == 0 or not (np.isfinite(amount) and amount >= 0):
                known = ", ".join(problem.resources[1:]) or "none"
                raise InvalidInput(f"demand of a size must be >= 0 of {known}, got {name!r}: {amount!r}")
            demand[i, column[name]] = np.rint(amount * THOUSANDTHS)
    require_amounts("demand of a size", demand / THOUSANDTHS)
    C, N = problem.configuration_count, len(listed)
    return replace(
        problem,
        demand=np.concatenate([problem.demand, demand.astype(np.int64)]),
        member_configuration=np.concatenate([problem.member_configuration, np.arange(C, C + N)]),
        member_job=np.concatenate([problem.member_job, jobs]),
        member_rate_steps_per_s=np.concatenate([problem.member_rate_steps_per_s, rates]),
        plan=_plans(problem, [size.plan for size in listed]),
    )


def with_size_rows(
    problem: AllocationProblem, jobs: Ints, gpus: Floats, rates_steps_per_s: Floats
) -> AllocationProblem:
    """`problem` with one configuration more for each row of a job, its GPUs, (S,), and rates, (S, T).

    As `with_sizes`, for valid sizes in arrays; other resources are needed in proportion to GPUs.
    """
    demand = np.rint(_first_demand(problem)[jobs] * (gpus / problem.gpus_asked[jobs])[:, None]).astype(np.int64)
    demand[:, 0] = np.rint(gpus * THOUSANDTHS)
    C, S = problem.configuration_count, len(jobs)
    return replace(
        problem,
        demand=np.concatenate([problem.demand, demand]),
        member_configuration=np.concatenate([problem.member_configuration, np.arange(C, C + S)]),
        member_job=np.concatenate([problem.member_job, jobs]),
        member_rate_steps_per_s=np.concatenate([problem.member_rate_steps_per_s, rates_steps_per_s]),
        plan=_plans(problem, [""] * S),
    )


def with_pairs(
    problem: AllocationProblem, pairs: Sequence[tuple[int, int]], rates_steps_per_s: npt.ArrayLike
) -> AllocationProblem:
    """`problem` with one configuration more for each pair of rows of jobs; rates are (P, 2, T).

    A pair shares the GPUs of one of its jobs, and needs the other resources of both.
    """
    rates = floats("rates_steps_per_s of pairs", rates_steps_per_s, (len(pairs), 2, len(problem.gpu_types)))
    asked = problem.gpus_asked
    for first, second in pairs:
        if not (0 <= first < problem.job_count and 0 <= second < problem.job_count):
            raise InvalidInput(f"pairs must name rows in [0, {problem.job_count}), got {(first, second)}")
        if first == second or asked[first] != asked[second]:
            raise InvalidInput(
                "pairs must be of two jobs with the same number of GPUs, got "
                f"{problem.job_ids[first]!r} ({asked[first]:g}) and {problem.job_ids[second]!r} ({asked[second]:g})"
            )
    rows = np.array(pairs, dtype=np.int64).reshape(len(pairs), 2)
    gpus = np.rint(asked[rows[:, 0]] * THOUSANDTHS).astype(np.int64)
    demand = gpus[:, None]
    if len(problem.resources) > 1:
        alone = _first_demand(problem)
        demand = np.column_stack([gpus, alone[rows[:, 0], 1:] + alone[rows[:, 1], 1:]])
    C = problem.configuration_count
    return replace(
        problem,
        demand=np.concatenate([problem.demand, demand]),
        member_configuration=np.concatenate([problem.member_configuration, np.repeat(np.arange(C, C + len(pairs)), 2)]),
        member_job=np.concatenate([problem.member_job, rows.ravel()]),
        member_rate_steps_per_s=np.concatenate([problem.member_rate_steps_per_s, rates.reshape(-1, rates.shape[2])]),
        plan=_plans(problem, [""] * len(pairs)),
    )


def _first_demand(problem: AllocationProblem) -> Ints:
    """Demand of each job's first configuration alone, in thousandths, (J, R)."""
    first: Ints = np.zeros((problem.job_count, len(problem.resources)), dtype=np.int64)
    alone = np.flatnonzero(problem.member_count[problem.member_configuration] == 1)[::-1]  # the first overwrites
    first[problem.member_job[alone]] = problem.demand[problem.member_configuration[alone]]
    return first


def _plans(problem: AllocationProblem, more: list[str]) -> tuple[str, ...]:
    """Plans of all configurations; empty if none has a plan."""
    if not problem.plan and not any(more):
        return ()
    return (*(problem.plan or ("",) * problem.configuration_count), *more)


def _check_distinct(problem: AllocationProblem, jobs: Ints, sizes: Sequence[Size]) -> None:
    """Raises InvalidInput if a job has the same GPUs and plan twice."""
    alone = problem.member_count[problem.member_configuration] == 1
    of = problem.member_configuration[alone]
    plans = [problem.plan[c] for c in of.tolist()] if problem.plan else [""] * len(of)
    seen = set(zip(problem.member_job[alone].tolist(), problem.demand[of, 0].tolist(), plans, strict=True))
    for job, size in zip(jobs.tolist(), sizes, strict=True):
        key = (job, round(size.gpus * THOUSANDTHS), size.plan)
        if key in seen:
            plan = f" and plan {size.plan!r}" if size.plan else ""
            raise InvalidInput(
                f"sizes of job {problem.job_ids[job]!r} must differ from each other and from the GPUs it requested, "
                f"got {size.gpus:g}{plan} twice"
            )
        seen.add(key)


def _rates(problem: AllocationProblem, jobs: Ints, sizes: Sequence[Size]) -> Floats:
    """Rates of each size on each type, (N, T)."""
    asked = problem.rate_as_requested_steps_per_s
    column = {name: t for t, name in enumerate(problem.gpu_types)}
    rates: Floats = np.zeros((len(sizes), len(column)))
    for i, (job, size) in enumerate(zip(jobs.tolist(), sizes, strict=True)):
        if size.efficiency:
            rates[i] = asked[job] * (size.gpus / problem.gpus_asked[job] * size.efficiency)
        for gpu_type, rate in size.rates_steps_per_s.items():
            if gpu_type not in column:
                raise InvalidInput(f"rates of a size must be of {', '.join(column)}, got {gpu_type!r}")
            rates[i, column[gpu_type]] = rate
    return rates
