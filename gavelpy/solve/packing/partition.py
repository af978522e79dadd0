"""Classes of equal jobs and of equal configurations where jobs share GPUs.

Let jobs fall into classes, and configurations, too, such that those of one class have members of the same classes with
the same rates. Adding up the shares of any answer over each class of configurations gives totals that are feasible for
the classes, and no worse. Conversely, a total is distributed among its configurations so that each job of a class gets
the same time; if that is possible for every total, the linear program over classes has exactly the optimum of the one
over jobs. It is possible in three cases, tried in this order:

    in order      jobs of a class occupy [0, 1) in order, each with the same width; a pair of jobs of two classes gets
                  their overlap; within a class, each gets the half opposite. Needs few of the pairs
    evenly        every configuration of a class gets the same; right if each job is in equally many of them
    refined       jobs that are in different numbers of them become different classes, and so on until the second case
                  holds (colour refinement; Grohe, Kersting, Mladenov and Selman, ESA 2014)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.program import Classes, Partition, classes_of, classes_of_labels, mixed, singletons

WORTHWHILE = 0.7  # of the jobs; with more classes, hardly any columns are saved
_EVEN = 1e-11  # relative; loads of the members of a class that differ by less are equal
_STEP = 0.6180339887498949  # the golden ratio's fraction: multiples of it are all different


def of_pairs(
    problem: AllocationProblem, jobs: Ints, best_rate_steps_per_s: Floats, figures: Floats, *, aggregate: bool
) -> Partition:
    """The coarsest partition where jobs share GPUs; one class for each job if it saves few columns.

    `figures` (R, F) must agree within a class.
    """
    possible = np.ones(problem.configuration_count, dtype=np.bool_)
    possible[problem.member_configuration[best_rate_steps_per_s[problem.member_job] <= 0]] = False
    configurations = np.flatnonzero(possible)
    R = len(jobs)
    if aggregate:
        classes = classes_of(figures)
        slots = _slots(problem, configurations, jobs, best_rate_steps_per_s) if _worthwhile(classes, R) else None
        while slots is not None and _worthwhile(classes, R):
            groups = _groups(slots, classes)
            for weight in (_in_order(slots, classes, groups), _evenly(groups)):
                if _carries(slots, classes, groups, weight):
                    return _partition(problem, configurations, slots, classes, groups, weight)
            finer = _refined(slots, classes, groups)
            if len(finer.count) == len(classes.count):
                break
            classes = finer
    of_configuration = np.full(problem.configuration_count, -1)
    of_configuration[configurations] = np.arange(len(configurations))
    ones: Floats = np.ones(len(configurations))
    return Partition(singletons(R), of_configuration, configurations, possible.astype(np.float64), reach=ones)


@dataclass(frozen=True, eq=False)
class _Slots:
    """Members of P configurations in D places; an empty place is -1."""

    job: Ints  # (D, P) among the R
    rates: Ints  # (D, P) equal for members with equal rates
    demand: Ints  # (P,)


def _worthwhile(classes: Classes, jobs: int) -> bool:
    return len(classes.count) <= WORTHWHILE * jobs


def _slots(problem: AllocationProblem, configurations: Ints, jobs: Ints, best_rate_steps_per_s: Floats) -> _Slots:
    row = np.full(problem.job_count, -1)
    row[jobs] = np.arange(len(jobs))
    scaled = (
        problem.member_rate_steps_per_s
        / np.where(best_rate_steps_per_s > 0, best_rate_steps_per_s, 1.0)[problem.member_job, None]
    )
    kind = classes_of(scaled).of_job
    count = problem.member_count[configurations]
    first = (np.cumsum(problem.member_count) - problem.member_count)[configurations]
    places = np.arange(count.max(initial=1))[:, None]
    member = np.minimum(first + places, len(problem.member_job) - 1)
    taken = places < count
    return _Slots(
        job=np.where(taken, row[problem.member_job[member]], -1),
        rates=np.where(taken, kind[member], -1),
        demand=_labels_of_demand(problem.demand[configurations]),
    )


def _labels_of_demand(demand: Ints) -> Ints:
    """Equal numbers for configurations with equal demand of every resource, (P,)."""
    return demand[:, 0] if demand.shape[1] == 1 else classes_of_labels(demand).of_job


def _groups(slots: _Slots, classes: Classes) -> Classes:
    """Classes of configurations: equal demand, and the same classes of members at the same rates, in any order."""
    unit = int(slots.rates.max(initial=0)) + 1
    members = np.where(slots.job >= 0, classes.of_job[slots.job] * unit + slots.rates, -1)
    return classes_of_labels(np.vstack([slots.demand, np.sort(members, axis=0)]).T)


def _in_order(slots: _Slots, classes: Classes, groups: Classes) -> Floats:
    """Part of its class's total that each configuration gets, (P,): by overlap; evenly for three members."""
    weight = _evenly(groups)
    rank = np.empty(len(classes.of_job), dtype=np.int64)
    order = np.argsort(classes.of_job, kind="stable")
    rank[order] = np.arange(len(order)) - np.repeat(np.cumsum(classes.count) - classes.count, classes.count)
    taken = (slots.job >= 0).sum(axis=0)
    pairs = np.flatnonzero(taken == 2)
    if not len(pairs):
        return weight
    one, other = slots.job[0, pairs], slots.job[1, pairs]
    n, m = classes.count[classes.of_job[one]], classes.count[classes.of_job[other]]
    i, k = rank[one], rank[other]
    overlap = np.minimum((i + 1) * m, (k + 1) * n) - np.maximum(i * m, k * n)
    across = np.isin(np.abs(i - k) * 2 - n, (-1, 0, 1))
    same = classes.of_job[one] == classes.of_job[other]
    within = np.where(across, 2.0 - n % 2, 0.0) / n
    weight[pairs] = np.where(same, within, np.maximum(overlap, 0) / (n * m))
    return weight


def _evenly(groups: Classes) -> Floats:
    weight: Floats = 1.0 / groups.count[groups.of_job]
    return weight


def _carries(slots: _Slots, classes: Classes, groups: Classes, weight: Floats) -> bool:
    """Whether every total is distributed so that the jobs of a class get the same time at the same rates.

    All totals at once: with unrelated totals, equal sums mean equal terms. If that should ever err, the certificate,
    which does not use classes, rejects the answer.
    """
    unit = int(slots.rates.max(initial=0)) + 1
    of_job, of_class = np.zeros(len(classes.of_job)), np.zeros(len(classes.count))
    for job, rates in zip(slots.job, slots.rates, strict=True):
        taken = job >= 0
        total = 1.0 + (groups.of_job * unit + rates) * _STEP % 1.0  # of each configuration's class, at these rates
        of_job += np.bincount(job[taken], (weight * total)[taken], minlength=len(of_job))
        first, of_first = job[groups.representative], total[groups.representative]
        has = first >= 0
        of_class += np.bincount(classes.of_job[first[has]], of_first[has], minlength=len(of_class))
    expected = (of_class / classes.count)[classes.of_job]
    return bool((np.abs(of_job - expected) <= _EVEN * expected).all())


def _refined(slots: _Slots, classes: Classes, groups: Classes) -> Classes:
    """Classes divided by how many configurations of each class their jobs are in."""
    seen = np.zeros(len(classes.of_job), dtype=np.uint64)
    unit = int(slots.rates.max(initial=0)) + 1
    for job, rates in zip(slots.job, slots.rates, strict=True):
        taken = job >= 0
        np.add.at(seen, job[taken], mixed((groups.of_job * unit + rates)[taken].astype(np.uint64)))
    return classes_of_labels(np.column_stack([classes.of_job, seen.view(np.int64)]))


def _partition(
    problem: AllocationProblem, configurations: Ints, slots: _Slots, classes: Classes, groups: Classes, weight: Floats
) -> Partition:
    first = slots.job[:, groups.representative]
    member_class = np.where(first >= 0, classes.of_job[first], -1)
    with_me = (member_class[:, None, :] == member_class[None, :, :]).sum(axis=0)  # (D, Q) members of that class
    reach = np.where(member_class >= 0, classes.count[member_class] / with_me, np.inf).min(axis=0)
    of_configuration = np.full(problem.configuration_count, -1)
    of_configuration[configurations] = groups.of_job
    part: Floats = np.zeros(problem.configuration_count)
    part[configurations] = weight * reach[groups.of_job]
    return Partition(classes, of_configuration, configurations[groups.representative], part, reach)
