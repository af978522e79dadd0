"""The contract of all policies, as checks for the tests of a plug-in.

    from gavelpy.policies.contract import CHECKS, problems

    @pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
    @pytest.mark.parametrize("problem", problems(seed=0).values(), ids=problems(seed=0))
    def test_mine(problem, check):
        check(MyPolicy(), problem)

A check raises AssertionError with what was expected and what it got. It needs no test framework.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, reduce, wraps
from typing import Any

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Ints
from gavelpy.model.job import JobId
from gavelpy.model.problem import AllocationProblem, BlindView, Entity, Size
from gavelpy.policies.base import COUNTED, Policy, ProblemInput, uses_of, varies_with_time
from gavelpy.solve.solver import Solver

FEASIBLE = 1e-9
SAME_OBJECTIVE = 2e-8  # relative; two answers each within 1e-8 of the optimum
_PER_JOB = (
    "gpus_asked",
    "weight",
    "steps_remaining",
    "steps_total",
    "age_s",
    "isolated_s",
    "deadline_s",
    "attained_gpu_s",
    "entity",
    "job_type",
    "owner",
    "restart_s",
    "completion_value",
    "losses",
    "app",
)

Check = Callable[[Policy, AllocationProblem], None]


def check_feasible(policy: Policy, problem: AllocationProblem) -> None:
    """Shares are in 0..1, within time budgets and capacities, and zero on types where a job cannot run."""
    allocation = policy.allocate(problem)
    share, time = allocation.share, allocation.job_share.sum(axis=1)
    used = np.einsum("cr,ct->tr", problem.demand, share)

    assert np.isfinite(share).all(), "shares must be finite"
    assert (share >= 0).all(), f"shares must be >= 0, least is {share.min()}"
    assert (time <= 1 + FEASIBLE).all(), f"a job's shares must sum to at most 1, most is {time.max()}"
    assert (used <= problem.capacity * (1 + FEASIBLE)).all(), (
        f"thousandths of {', '.join(problem.resources)} used by type {used.tolist()} of {problem.capacity.tolist()}"
    )
    assert (share[:, problem.gpu_counts == 0] == 0).all(), "a type without GPUs must not be shared"
    if _optimises(allocation):
        assert (share[~problem.fits] == 0).all(), "an optimum must give no share where nothing runs"
    assert (allocation.job_share[~problem.can_run] == 0).all(), "a job that can run nowhere must have no share"


def check_certificate(policy: Policy, problem: AllocationProblem) -> None:
    """The certificate is finite and its violation small; shadow prices are >= 0, or NaN from a rule."""
    allocation = policy.allocate(problem)
    c = allocation.certificate
    figures = np.array([c.objective, c.bound, c.gap, c.violation, c.solve_s])

    assert np.isfinite(figures).all(), f"certificate must be finite, got {c}"
    assert 0 <= c.violation <= FEASIBLE, f"violation must be in [0, {FEASIBLE}], got {c.violation}"
    assert c.gap >= 0, f"gap must be >= 0, got {c.gap}"
    assert c.path, "certificate must name the path of the answer"
    prices = allocation.resource_prices
    assert (np.isnan(prices) | (prices >= 0)).all(), f"shadow prices must be >= 0: {prices}"


def check_deterministic(policy: Policy, problem: AllocationProblem) -> None:
    """The same problem gives the same bytes: on a second call, and with a solver warm from another problem."""
    solver = Solver()
    policy.allocate(problem.blind_to_type(), solver)
    first, again, warm = policy.allocate(problem), policy.allocate(problem), policy.allocate(problem, solver)

    assert first.share.tobytes() == again.share.tobytes(), "two calls gave different shares"
    assert first.share.tobytes() == warm.share.tobytes(), "a warm solver changed the shares"
    assert first.resource_prices.tobytes() == warm.resource_prices.tobytes(), "a warm solver changed the prices"


def check_names_mean_nothing(policy: Policy, problem: AllocationProblem) -> None:
    """Shares do not depend on the names of jobs and GPU types."""
    renamed = replace(
        problem,
        job_ids=tuple(JobId(f"other-{job}") for job in problem.job_ids),
        gpu_types=tuple(f"other-{gpu_type}" for gpu_type in problem.gpu_types),
    )

    assert policy.allocate(renamed).share.tobytes() == policy.allocate(problem).share.tobytes(), "names had a meaning"


def check_blind(policy: Policy, problem: AllocationProblem) -> None:
    """The policy accepts each blind view; with the default view, the shares are feasible on the true problem."""
    for view in BlindView:
        policy.allocate(problem.blind_to_type(view))
    blind = policy.allocate(problem.blind_to_type())

    assert np.isfinite(blind.evaluated_on(problem).rate_steps_per_s).all(), "true rates must be finite"
    assert (blind.share[:, problem.gpu_counts == 0] == 0).all(), "a type without GPUs must not be shared"


def check_order_of_rows(policy: Policy, problem: AllocationProblem) -> None:
    """An optimum does not depend on the order of jobs. Rules that follow the order of arrival are exempt."""
    allocation = policy.allocate(problem)
    order = np.arange(problem.job_count)[::-1]

    _same_objective(allocation, policy.allocate(_with_jobs_in(problem, order)), "other order of jobs")


def check_order_of_types(policy: Policy, problem: AllocationProblem) -> None:
    """An optimum does not depend on the order of GPU types."""
    allocation = policy.allocate(problem)
    order = np.arange(len(problem.gpu_types))[::-1]
    turned = replace(
        problem,
        gpu_types=problem.gpu_types[::-1],
        capacity=problem.capacity[order],
        member_rate_steps_per_s=problem.member_rate_steps_per_s[:, order],
        price_usd_per_gpu_h=problem.price_usd_per_gpu_h[order],
    )

    _same_objective(allocation, policy.allocate(turned), "other order of GPU types")


def check_more_gpus(policy: Policy, problem: AllocationProblem) -> None:
    """Twice the GPUs of each type do not lower the optimum, unless more jobs can run.

    Exempt: policies that compare jobs with a part of the cluster, which grows too. They declare
    `relative_to_cluster: ClassVar[bool] = True`.
    """
    if getattr(policy, "relative_to_cluster", False):
        return
    allocation = policy.allocate(problem)
    doubled = replace(problem, capacity=problem.capacity * 2)
    if not _optimises(allocation) or not np.array_equal(doubled.can_run, problem.can_run):
        return
    more = policy.allocate(doubled).certificate.objective

    least = allocation.certificate.objective
    assert more >= least - SAME_OBJECTIVE * abs(least), f"objective fell from {least} to {more} with twice the GPUs"


def check_time(policy: Policy, problem: AllocationProblem) -> None:
    """Some time later the same jobs get the same shares, unless the policy declares that it varies with time."""
    if varies_with_time(policy):
        return
    part = np.random.default_rng(problem.job_count).uniform(0.2, 1.0, problem.job_count)
    later = replace(
        problem,
        steps_remaining=problem.steps_remaining * part,
        age_s=problem.age_s + 3600.0,
        isolated_s=problem.isolated_s + 1800.0 * part,
        deadline_s=problem.deadline_s - 3600.0,
        attained_gpu_s=problem.attained_gpu_s + 7200.0 * part,
    )

    same = policy.allocate(later).share.tobytes() == policy.allocate(problem).share.tobytes()
    assert same, "the answer changed with time: declare time_varying = True"


def check_memory(policy: Policy, problem: AllocationProblem) -> None:
    """A policy keeps nothing between calls but its memory, and accepts the memory of jobs that have left.

    So a scheduler that restarts between two answers decides the same.
    """
    first = policy.allocate(problem)
    if not first.memory:
        return
    gone = replace(problem, job_ids=tuple(JobId(f"new-{job}") for job in problem.job_ids), memory=first.memory)
    later = replace(problem, attained_gpu_s=problem.attained_gpu_s + 900.0, age_s=problem.age_s + 900.0)
    before = policy.allocate(replace(later, memory=first.memory))
    policy.allocate(gone)
    after = policy.allocate(replace(later, memory=first.memory))

    assert _decision(after) == _decision(before), "equal problems with equal memory gave different answers"
    if problem.job_count:
        ids = [job.encode() for job in problem.job_ids if len(job) > 2]
        kept = policy.allocate(replace(gone, memory=policy.allocate(gone).memory)).memory
        assert not any(job in kept.replace(b"new-" + job, b"") for job in ids), "memory must forget jobs that have left"


def _decision(allocation: Allocation) -> tuple[bytes, bytes, bytes, float]:
    named = b"" if allocation.next_round is None else allocation.next_round.tobytes()
    return allocation.share.tobytes(), named, allocation.memory, allocation.again_s


def check_unused_inputs(policy: Policy, problem: AllocationProblem, *, together: bool = False) -> None:
    """An input that the policy does not declare to use changes nothing; sizes and further resources are refused.

    One input at a time, or all of them `together`: a tenth of the time, but effects can hide or cancel each other.
    """
    uses = uses_of(policy)
    if uses is None:
        return
    for given in COUNTED:
        if given not in uses and problem.job_count:
            _check_refusal(policy, with_other(problem, given), given)
    shares = policy.allocate(problem).share.tobytes()
    unused = [given for given in ProblemInput if given not in uses and given not in (ProblemInput.PAIRS, *COUNTED)]
    for changed in [unused] if together else [[given] for given in unused]:
        other, words = reduce(with_other, changed, problem), " or ".join(given.in_words for given in changed)
        assert policy.allocate(other).share.tobytes() == shares, f"shares depend on {words}: declare it"


def _check_refusal(policy: Policy, problem: AllocationProblem, given: ProblemInput) -> None:
    refusal = _refusal(policy, problem)

    assert refusal, f"{given.in_words} are ignored: use them and declare it, or call refuse_unused"
    assert given.in_words in refusal, f"the refusal must name {given.in_words}, got: {refusal}"


def _refusal(policy: Policy, problem: AllocationProblem) -> str:
    """The message with which the policy refuses the problem; "" = it does not."""
    try:
        policy.allocate(problem)
    except InvalidInput as error:
        return str(error)
    return ""


def with_other(problem: AllocationProblem, given: ProblemInput, seed: int = 0) -> AllocationProblem:
    """The problem with other values of this input. Not for pairs."""
    rng = np.random.default_rng(seed)
    J, T, scales = problem.job_count, len(problem.gpu_types), rng.uniform(0.5, 2.0, problem.job_count)
    changed: dict[str, Any] = {}  # Any: fields of several types
    match given:
        case ProblemInput.ENTITY:
            changed = {"entities": (Entity("one"), Entity("two", weight=3.0)), "entity": rng.integers(-1, 2, J)}
        case ProblemInput.GPU_TYPE_HELD:
            changed[given] = rng.integers(-1, T, J)
        case ProblemInput.GPUS_HELD:
            changed = {given: scales * problem.gpus_asked}
        case ProblemInput.JOB_TYPE | ProblemInput.OWNER | ProblemInput.APP:
            changed = {f"{given}s": ("one", "two"), given: rng.integers(-1, 2, J)}
        case ProblemInput.PRICE:
            changed[given] = rng.uniform(0.5, 4.0, T)
        case ProblemInput.RESOURCES:
            amount, need = rng.integers(2_000, 9_000, (T, 1)), rng.integers(1_000, 4_000, problem.configuration_count)
            changed = {
                "resources": (*problem.resources, "cpu"),
                "capacity": np.hstack([problem.capacity, amount]),
                "demand": np.column_stack([problem.demand, need]),
            }
        case ProblemInput.SIZES:
            efficiency = float(rng.uniform(0.6, 1.0))
            asked = zip(problem.job_ids, problem.gpus_asked.tolist(), strict=True)
            return problem.with_sizes({job: [Size(2 * gpus, efficiency=efficiency)] for job, gpus in asked})
        case ProblemInput.DEADLINE:
            changed[given] = scales * problem.steps_remaining
        case ProblemInput.AGE | ProblemInput.ISOLATED | ProblemInput.ATTAINED | ProblemInput.RESTART:
            changed[given] = 1e4 * scales
        case ProblemInput.COMPLETION_VALUE:
            rows = np.column_stack([rng.integers(1, 4, J), scales, 1e4 * scales, np.zeros(J)])
            changed[given] = np.where(rows[:, :1] == 2, [[2.0, 1.0, 1e4, 1e-3]], rows)
        case ProblemInput.LOSSES:
            steps = np.broadcast_to(np.arange(1.0, 7.0), (J, 6)) * problem.steps_total[:, None] / 900.0
            changed[given] = np.stack([steps, 1.0 / (1.0 + scales[:, None] * np.arange(6))], axis=2)
        case _:
            changed[given] = scales * getattr(problem, given)
    return replace(problem, **changed)


def _unless_refused(check: Check) -> Check:
    """The check on problems that the policy does not refuse; `unused_inputs` checks its refusals."""

    @wraps(check)
    def checked(policy: Policy, problem: AllocationProblem) -> None:
        uses = uses_of(policy) or frozenset()
        unused = [each for each in COUNTED if each not in uses and each.is_given(problem)]
        if not unused or not any(each.in_words in _refusal(policy, problem) for each in unused):
            check(policy, problem)

    return checked


CHECKS: Mapping[str, Check] = {
    check.__name__.removeprefix("check_"): _unless_refused(check)
    for check in (
        check_feasible,
        check_certificate,
        check_deterministic,
        check_names_mean_nothing,
        check_blind,
        check_order_of_rows,
        check_order_of_types,
        check_more_gpus,
        check_time,
        check_memory,
        check_unused_inputs,
    )
}
QUICK_CHECKS = {**CHECKS, "unused_inputs": _unless_refused(partial(check_unused_inputs, together=True))}


def problems(seed: int) -> Mapping[str, AllocationProblem]:
    """Problems that tend to break policies, by name. `seed` determines the random rates."""
    rng = np.random.default_rng(seed)
    ratios = 10.0 ** rng.uniform(-6, 6, (8, 3))
    return {
        "random": _random(rng, jobs=12, types=3),
        "many types": _random(rng, jobs=9, types=8),
        "crowded": _random(rng, jobs=60, types=3),
        "idle cluster": replace(_random(rng, jobs=3, types=2), capacity=np.full((2, 1), 50_000)),
        "pairs": _with_pairs(rng, _random(rng, jobs=6, types=3)),
        "two resources": _with_cpus(rng, _random(rng, jobs=9, types=3)),
        "sizes": _with_sizes(rng, _random(rng, jobs=9, types=3)),
        "zero rates": _random(rng, jobs=12, types=3, zeros=0.5),
        "oversized gang": AllocationProblem.of("abc", ["v", "k"], [2, 3], rng.uniform(1, 9, (3, 2)), gpus=[1, 3, 8]),
        "all oversized": AllocationProblem.of("ab", ["v"], [2], [[1.0], [2.0]], gpus=[4, 8]),
        "one job": AllocationProblem.of("a", ["v", "k"], [1, 1], [[3.0, 1.0]]),
        "no jobs": AllocationProblem.of([], ["v", "k"], [1, 1], np.zeros((0, 2))),
        "equal jobs": AllocationProblem.of("abcdefg", ["v", "k"], [2, 1], np.full((7, 2), [5.0, 2.0])),
        "one type": _random(rng, jobs=7, types=1),
        "a type without GPUs": AllocationProblem.of("abcd", ["v", "k"], [0, 2], rng.uniform(1, 9, (4, 2))),
        "no GPUs": AllocationProblem.of("ab", ["v", "k"], [0, 0], np.ones((2, 2))),
        "huge ratios": AllocationProblem.of(
            "abcdefgh", ["v", "p", "k"], [2, 1, 2], ratios, weight=10.0 ** rng.uniform(-3, 3, 8)
        ),
    }


def _random(rng: np.random.Generator, *, jobs: int, types: int, zeros: float = 0.0) -> AllocationProblem:
    rates = rng.uniform(0.5, 20.0, (jobs, 1)) * rng.uniform(0.1, 1.0, (jobs, types))
    return AllocationProblem.of(
        [f"job-{i}" for i in range(jobs)],
        [f"type-{i}" for i in range(types)],
        rng.integers(4, 9, types),
        np.where(rng.random(rates.shape) < zeros, 0.0, rates),
        gpus=rng.choice([1, 1, 1, 2, 4], jobs),
        weight=rng.choice([1.0, 1.0, 5.0], jobs),
        steps_remaining=rng.uniform(1e2, 1e6, jobs),
        steps_total=1e6,
    )


def _with_pairs(rng: np.random.Generator, problem: AllocationProblem) -> AllocationProblem:
    """All pairs of jobs with the same number of GPUs may be co-located, at 30 to 90 % of their rates alone."""
    gpus, jobs = problem.gpus_asked, range(problem.job_count)
    pairs = [(i, k) for i in jobs for k in jobs if i < k and gpus[i] == gpus[k]]
    rates = problem.member_rate_steps_per_s[np.array(pairs, dtype=np.int64).reshape(-1, 2)]
    return problem.with_pairs(pairs, rates * rng.uniform(0.3, 0.9, rates.shape))


def _with_cpus(rng: np.random.Generator, problem: AllocationProblem) -> AllocationProblem:
    """CPU cores limit some jobs and GPUs others; the first type has cores for few."""
    J, T = problem.job_count, len(problem.gpu_types)
    cores = np.append(3_000, rng.integers(8_000, 40_000, T - 1))
    return replace(
        problem,
        resources=(*problem.resources, "cpu"),
        capacity=np.column_stack([problem.capacity, cores]),
        demand=np.column_stack([problem.demand, rng.choice([0, 1_000, 2_000, 8_000], J)]),
    )


def _with_sizes(rng: np.random.Generator, problem: AllocationProblem) -> AllocationProblem:
    """Most jobs can run on 2 and 4 times the GPUs that they requested, with less and less gain."""
    given = zip(problem.job_ids, problem.gpus_asked.tolist(), strict=True)
    sizes = {job: [Size(2 * gpus, efficiency=0.9), Size(4 * gpus, efficiency=0.7)] for job, gpus in given}
    return problem.with_sizes({job: listed for job, listed in sizes.items() if rng.random() < 0.8})


def _with_jobs_in(problem: AllocationProblem, order: Ints) -> AllocationProblem:
    """The same jobs and configurations with job rows in another order."""
    new_row = np.empty_like(order)
    new_row[order] = np.arange(len(order))
    per_job = {name: getattr(problem, name)[order] for name in _PER_JOB}
    job_ids = tuple(problem.job_ids[row] for row in order)
    return replace(problem, job_ids=job_ids, member_job=new_row[problem.member_job], **per_job)


def _optimises(allocation: Allocation) -> bool:
    return allocation.certificate.path != "rule"


def _same_objective(expected: Allocation, got: Allocation, what: str) -> None:
    if not _optimises(expected):
        return
    a, b = expected.certificate.objective, got.certificate.objective
    assert abs(a - b) <= SAME_OBJECTIVE * max(abs(a), abs(b)), f"objective {a} became {b} with {what}"
