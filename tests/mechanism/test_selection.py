"""Selection against plain Python: greedy down a sorted list, one job and one GPU at a time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.mechanism.claims import ALONE, ClaimKeys
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.original_gavel import DEFICIT, PriorityRule, select_by_type
from gavelpy.mechanism.selection import select, select_leftover
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.taking import Chosen, Selection, take
from gavelpy.model.arrays import Ints
from gavelpy.model.job import JobId, JobSpec
from tests.mechanism.builders import make_jobs, make_mechanism

T = 3
SHARES = st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0])
SECONDS = st.sampled_from([0.0, 90.0, 360.0, 1000.0])
RATES = st.sampled_from([0.0, 1.0, 2.0, 7.0])
SETTINGS = st.builds(make_mechanism, fill_leftover=st.booleans(), priority=st.sampled_from(PriorityRule))


class Case(NamedTuple):
    jobs: JobTable
    rows: Ints
    free: Ints


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to 8 jobs, not all of them available for selection, on three types with few GPUs."""
    J = draw(st.integers(1, 8))

    def table(values: st.SearchStrategy[float]) -> list[list[float]]:
        return draw(st.lists(st.lists(values, min_size=T, max_size=T), min_size=J, max_size=J))

    rates = np.array(table(RATES))
    sizes = draw(st.lists(st.sampled_from([1, 1, 2, 3]), min_size=J, max_size=J))
    target = np.where(rates > 0, table(SHARES), 0.0)  # a policy gives no share where a job cannot run
    jobs = make_jobs(
        rates.tolist(), gpus=sizes, target=target.tolist(), owed_s=table(SECONDS), received_s=table(SECONDS)
    )
    jobs.rule_column(DEFICIT)[:J] = table(SECONDS)
    rows = draw(st.lists(st.sampled_from(range(J)), unique=True).map(sorted))
    free = draw(st.lists(st.integers(0, 4), min_size=T, max_size=T))
    return Case(jobs, np.array(rows, dtype=np.int64), np.array(free))


def urgency(jobs: JobTable, job: int, kind: int, settings: MechanismSettings) -> float:
    share, owed_s, received_s = (column[[job], [kind]] for column in (jobs.target, jobs.owed_s, jobs.received_s))
    return float(settings.rules.urgency(share, owed_s, received_s, settings)[0])


def greedy(jobs: JobTable, queue: list[tuple[int, int]], left: list[int]) -> list[tuple[int, int]]:
    """Goes down the queue of (job, type) and selects each job that fits; lowers `left`."""
    chosen: dict[int, int] = {}
    for job, kind in queue:
        if job not in chosen and jobs.gpus[job] <= left[kind]:
            chosen[job] = kind
            left[kind] -= int(jobs.gpus[job])
    return list(chosen.items())


def dumb_global(case: Case, settings: MechanismSettings) -> list[tuple[int, int]]:
    jobs = case.jobs
    left = case.free.tolist()

    def key(pair: tuple[int, int]) -> tuple[float, ...]:
        lag = jobs.owed_s[pair] - jobs.received_s[pair]
        return (-urgency(jobs, *pair, settings), -lag, -jobs.target[pair], *pair)

    pairs = [(job, kind) for job in case.rows.tolist() for kind in range(T) if jobs.target[job, kind] > 0]
    chosen = greedy(jobs, sorted(pairs, key=key), left)
    return chosen + (dumb_leftover(case, {job for job, _ in chosen}, left) if settings.fill_leftover else [])


def dumb_leftover(case: Case, taken: set[int], left: list[int]) -> list[tuple[int, int]]:
    jobs = case.jobs
    rest = [job for job in case.rows.tolist() if job not in taken]
    neglect = {job: float((jobs.owed_s[job] - jobs.received_s[job]).sum()) for job in rest}
    queue = [
        (job, kind)
        for job in sorted(rest, key=lambda job: (-neglect[job], job))
        for kind in sorted(range(T), key=lambda kind: (-jobs.rate[job, kind], kind))
        if jobs.rate[job, kind] > 0
    ]
    return greedy(jobs, queue, left)


def dumb_by_type(case: Case, settings: MechanismSettings, order: list[int]) -> list[tuple[int, int]]:
    jobs, left = case.jobs, case.free.tolist()
    chosen: list[tuple[int, int]] = []
    for kind in order:
        taken = {job for job, _ in chosen}
        here = [job for job in case.rows.tolist() if job not in taken and jobs.rate[job, kind] > 0]
        here = [job for job in here if settings.fill_leftover or jobs.target[job, kind] > 0]

        def key(job: int, kind: int = kind) -> tuple[float, ...]:
            return (
                -urgency(jobs, job, kind, settings),
                -jobs.rule_column(DEFICIT)[job, kind],
                -jobs.target[job, kind],
                job,
            )

        chosen += greedy(jobs, [(job, kind) for job in sorted(here, key=key)], left)
    return chosen


def pairs_of(selection: Selection | Chosen) -> list[tuple[int, int]]:
    return list(zip(selection[0].tolist(), selection[1].tolist(), strict=True))


@given(case=cases(), settings=SETTINGS)
def test_global_queue_is_greedy_by_urgency(case: Case, settings: MechanismSettings) -> None:
    chosen = select(*case, settings)

    assert pairs_of(chosen) == dumb_global(case, settings)


@given(case=cases(), settings=SETTINGS, order=st.permutations(range(T)))
def test_queues_by_type_are_greedy_in_the_order_of_types(
    case: Case, settings: MechanismSettings, order: list[int]
) -> None:
    chosen = select_by_type(*case, settings, np.array(order))

    assert pairs_of(chosen) == dumb_by_type(case, settings, order)


@given(case=cases(), settings=SETTINGS, by_type=st.booleans())
def test_nobody_is_chosen_twice_and_no_gpu_is_given_twice(
    case: Case, settings: MechanismSettings, by_type: bool
) -> None:
    before = case.free.tolist()

    jobs, types, *_ = select_by_type(*case, settings, np.arange(T)) if by_type else select(*case, settings)

    used = np.bincount(types, weights=case.jobs.gpus[jobs], minlength=T)
    assert len(np.unique(jobs)) == len(jobs)
    assert set(jobs.tolist()) <= set(case.rows.tolist())
    assert (used <= case.free).all()
    assert (case.jobs.rate[jobs, types] > 0).all()
    assert case.free.tolist() == before


@given(case=cases(), settings=SETTINGS)
def test_with_leftovers_no_gpu_idles_that_a_waiting_job_could_use(case: Case, settings: MechanismSettings) -> None:
    filled = MechanismSettings(rules=settings.rules, fill_leftover=True)

    jobs, types, *_ = select(*case, filled)

    left = case.free - np.bincount(types, weights=case.jobs.gpus[jobs], minlength=T)
    waiting = np.setdiff1d(case.rows, jobs)
    assert not ((case.jobs.rate[waiting] > 0) & (case.jobs.gpus[waiting, None] <= left[None, :])).any()


@given(case=cases(), settings=SETTINGS)
def test_without_leftovers_a_share_is_needed(case: Case, settings: MechanismSettings) -> None:
    strict = MechanismSettings(rules=settings.rules, fill_leftover=False)

    jobs, types, *_ = select(*case, strict)

    assert (case.jobs.target[jobs, types] > 0).all()


@given(case=cases())
def test_leftover_lowers_what_is_free_by_what_it_gives(case: Case) -> None:
    free = case.free.copy()

    jobs, types, *_ = select_leftover(case.jobs, case.rows, free)

    assert pairs_of((jobs, types)) == dumb_leftover(case, set(), case.free.tolist())
    assert free.tolist() == (case.free - np.bincount(types, weights=case.jobs.gpus[jobs], minlength=T)).tolist()


@pytest.mark.parametrize(("order", "expected"), [([0, 1, 2], [(0, 0)]), ([2, 1, 0], [(0, 2)])])
def test_a_job_goes_to_the_first_type_in_the_order(order: list[int], expected: list[tuple[int, int]]) -> None:
    jobs = make_jobs([[1.0, 1.0, 1.0]], target=[[0.3, 0.3, 0.3]])

    chosen = select_by_type(jobs, np.array([0]), np.array([1, 1, 1]), MechanismSettings(), np.array(order))

    assert pairs_of(chosen) == expected


def test_a_gang_that_does_not_fit_is_skipped_and_a_smaller_one_behind_it_runs() -> None:
    jobs = make_jobs([[1.0], [1.0]], gpus=[2, 1], target=[[0.9], [0.1]])

    chosen = select(jobs, np.array([0, 1]), np.array([1]), MechanismSettings())

    assert pairs_of(chosen) == [(1, 0)]


def test_of_two_equal_jobs_the_earlier_one_runs() -> None:
    jobs = make_jobs([[1.0], [1.0]], target=0.5)

    chosen = select(jobs, np.array([0, 1]), np.array([1]), MechanismSettings())

    assert pairs_of(chosen) == [(0, 0)]


# With claims -----------------------------------------------------------------------------------------------------


@st.composite
def claimed_cases(draw: st.DrawFn) -> Case:
    """The same with up to six claims, of pairs with equal gang size or of sizes, each with its own time owed."""
    case = draw(cases())
    jobs, J = case.jobs, case.jobs.count
    pairs = [(a, b, int(jobs.gpus[a])) for a in range(J) for b in range(a + 1, J) if jobs.gpus[a] == jobs.gpus[b]]
    sizes = [(a, ALONE, gpus) for a in range(J) for gpus in (1, 2, 3)]
    possible = [(*claim, kind) for claim in [*pairs, *sizes] for kind in range(T)]
    rows = draw(st.lists(st.sampled_from(possible), unique=True, max_size=6)) if possible else []
    table = np.array(sorted(rows), dtype=np.int64).reshape(-1, 4)
    count = len(table)
    jobs.claims.put(ClaimKeys(*table.T), np.zeros(count), np.zeros(0, dtype=np.bool_))
    jobs.claims.target[:] = draw(st.lists(SHARES, min_size=count, max_size=count))
    jobs.claims.owed_s[:] = draw(st.lists(SECONDS, min_size=count, max_size=count))
    jobs.claims.received_s[:] = draw(st.lists(SECONDS, min_size=count, max_size=count))
    return case


def dumb_claims(case: Case, settings: MechanismSettings) -> list[tuple[int, int, int, int]]:
    jobs, claims, left = case.jobs, case.jobs.claims, case.free.tolist()
    units: list[tuple[tuple[float, ...], int, int, int, int]] = []
    rows = set(case.rows.tolist())
    for job in rows:
        for kind in range(T):
            if jobs.target[job, kind] > 0:
                lag = float(jobs.owed_s[job, kind] - jobs.received_s[job, kind])
                gpus = int(jobs.gpus[job])
                key = (-urgency(jobs, job, kind, settings), -lag, -float(jobs.target[job, kind]), job, kind, -1, gpus)
                units.append((key, job, -1, kind, gpus))
    for row in range(claims.count):
        first, second, gpus, kind = (int(column[row]) for column in claims.keys)
        if claims.target[row] > 0 and {first, second} - {ALONE} <= rows:
            claim = [column[row : row + 1] for column in (claims.target, claims.owed_s, claims.received_s)]
            lag = float(claims.owed_s[row] - claims.received_s[row])
            key = (
                -float(settings.rules.urgency(*claim, settings)[0]),
                -lag,
                -float(claims.target[row]),
                first,
                kind,
                second,
                gpus,
            )
            units.append((key, first, second, kind, gpus))
    chosen: list[tuple[int, int, int, int]] = []
    taken: set[int] = set()
    for _, first, second, kind, gpus in sorted(units):
        if first in taken or second in taken or gpus > left[kind]:
            continue
        left[kind] -= gpus
        members = [job for job in (first, second) if job >= 0]
        taken |= set(members)
        chosen += [(job, kind, other, gpus) for job, other in zip(members, [second, first], strict=False)]
    rest = dumb_leftover_with_claims(case, taken, left) if settings.fill_leftover else []
    return chosen + [(job, kind, -1, int(jobs.gpus[job])) for job, kind in rest]


def dumb_leftover_with_claims(case: Case, taken: set[int], left: list[int]) -> list[tuple[int, int]]:
    """As without claims, but the time owed to a job by claims counts as well."""
    jobs, claims = case.jobs, case.jobs.claims
    lag_s = (jobs.owed_s - jobs.received_s).sum(axis=1)
    for row in range(claims.count):
        members = np.array([job for job in (claims.first[row], claims.second[row]) if job >= 0])
        lag_s[members] += claims.owed_s[row] - claims.received_s[row]
    rest = sorted((job for job in case.rows.tolist() if job not in taken), key=lambda job: (-lag_s[job], job))
    by_speed = {job: sorted(range(T), key=lambda kind: (-jobs.rate[job, kind], kind)) for job in rest}
    queue = [(job, kind) for job in rest for kind in by_speed[job] if jobs.rate[job, kind] > 0]
    return greedy(jobs, queue, left)


@given(case=claimed_cases(), settings=SETTINGS)
def test_pairs_sizes_and_jobs_alone_are_in_one_queue(case: Case, settings: MechanismSettings) -> None:
    chosen = select(*case, settings)

    assert list(zip(*(column.tolist() for column in chosen), strict=True)) == dumb_claims(case, settings)


@pytest.mark.parametrize("seed", range(200))
def test_a_queue_is_served_in_order_whether_all_its_jobs_fit_or_not(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gpus = rng.choice([1, 1, 2, 4], 12)
    pairs, types = rng.integers(12, size=20), rng.integers(3, size=20)
    free = rng.integers(0, 12 if seed % 2 else 40, size=3)
    left, wanted = free.tolist(), dict[int, int]()
    for job, gpu_type in zip(pairs.tolist(), types.tolist(), strict=True):
        if job not in wanted and gpus[job] <= left[gpu_type]:
            left[gpu_type] -= int(gpus[job])
            wanted[job] = gpu_type

    jobs, domains = take(pairs, types, gpus, free, None, None)

    assert list(zip(jobs.tolist(), domains.tolist(), strict=True)) == list(wanted.items())
    assert free.tolist() == left


@pytest.mark.parametrize("move_lag_s", [0.0, 500.0])
def test_one_job_is_chosen_as_in_a_queue_of_jobs_and_claims(move_lag_s: float) -> None:
    rng = np.random.default_rng(int(move_lag_s))
    jobs = make_jobs([[1.0] * 4] * 500)
    jobs.rate[:500] = rng.choice([0.0, np.nan, 1.0, 2.0, 7.0], (500, 4))
    jobs.target[:500] = rng.choice([0.0, 0.0, 0.25, 0.5], (500, 4)) * (jobs.rate[:500] > 0)
    jobs.owed_s[:500], jobs.received_s[:500] = rng.choice([0.0, 90.0, 360.0], (2, 500, 4))
    jobs.lease[:500] = jobs.lease_type[:500] = rng.integers(-1, 4, 500)
    jobs.gpus[:500], jobs.attained_gpu_s[:500] = rng.choice([1, 2, 4], 500), rng.choice([0.0, 1.0], 500)
    free = rng.integers(0, 5, (500, 4))
    other = jobs.add(JobSpec(JobId("none"), 1.0, rates_steps_per_s={"none": 1.0}), ("a", "b", "c", "d"), 0.0)

    for row in range(500):
        settings = make_mechanism(fill_leftover=row % 3 > 0, move_lag_s=move_lag_s)
        alone = select(jobs, np.array([row]), free[row], settings)
        queue = select(jobs, np.array([row, other]), free[row], settings)

        assert pairs_of(alone) == pairs_of(queue)
