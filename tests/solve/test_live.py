"""A problem that changes by one job at a time gets the same answers as if solved from scratch."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linprog

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.ladder import solve
from gavelpy.solve.live import LiveMaxMin
from gavelpy.solve.objective import MaxMin
from tests.solve.problems import random_problem

TYPES = ("v100", "p100", "k80")


class World:
    """A live problem and the figures of its jobs."""

    def __init__(self, seed: int, jobs: int, gpu_counts: tuple[float, ...]) -> None:
        self._rng = np.random.default_rng(seed)
        self.gpu_counts = gpu_counts
        self.live = LiveMaxMin(TYPES, gpu_counts)
        self.jobs: dict[str, tuple[Floats, float, float]] = {}
        self._serial = 0
        for _ in range(jobs):
            self.arrive()

    def arrive(self) -> None:
        name, self._serial = f"job-{self._serial}", self._serial + 1
        rates, scale, gpus = self._figures()
        self.live.add(name, rates, scale=scale, gpus=gpus)
        self.jobs[name] = rates, scale, gpus

    def leave(self) -> None:
        name = list(self.jobs)[int(self._rng.integers(len(self.jobs)))]
        self.live.remove(name)
        del self.jobs[name]

    def change(self) -> None:
        name = list(self.jobs)[int(self._rng.integers(len(self.jobs)))]
        rates, scale, gpus = self._figures()
        self.live.change(name, rates, scale=scale, gpus=gpus)
        self.jobs[name] = rates, scale, gpus

    def step(self) -> None:
        way = int(self._rng.integers(3)) if len(self.jobs) > 1 else 0
        (self.arrive, self.leave, self.change)[way]()

    def from_scratch(self) -> float:
        """The same jobs' best level, by the whole ladder."""
        rates, scales, gpus = (np.array(figures) for figures in zip(*self.jobs.values(), strict=True))
        problem = AllocationProblem.of(list(self.jobs), TYPES, self.gpu_counts, rates, gpus=gpus)
        return solve(problem, MaxMin(scales)).certificate.objective

    def _figures(self) -> tuple[Floats, float, float]:
        rates = self._rng.uniform(0.5, 20.0) * self._rng.uniform(0.1, 1.0, 3) * (self._rng.random(3) > 0.1)
        rates[0] = max(rates[0], 0.1)
        return rates, float(10.0 ** self._rng.uniform(-0.5, 0.5) / rates.mean()), float(self._rng.choice([1, 1, 2, 4]))


@pytest.mark.parametrize("gpu_counts", [(8.0, 8.0, 8.0), (40.0, 30.0, 60.0), (500.0, 400.0, 600.0)])
@pytest.mark.parametrize("jobs", [3, 150])
@pytest.mark.parametrize("seed", range(2))
def test_every_change_is_answered_as_from_scratch(seed: int, jobs: int, gpu_counts: tuple[float, ...]) -> None:
    world = World(seed, jobs, gpu_counts)

    levels, expected = [], []
    for _ in range(12):
        world.step()
        levels.append(world.live.solve().certificate.objective)
        expected.append(world.from_scratch())

    np.testing.assert_allclose(levels, expected, rtol=2e-8, err_msg=f"seed {seed}")


def test_changes_are_answered_live_and_certified() -> None:
    world = World(seed=1, jobs=1000, gpu_counts=(30.0, 30.0, 30.0))
    world.live.solve()

    certificates = []
    for _ in range(30):
        world.step()
        certificates.append(world.live.solve().certificate)

    assert {c.path for c in certificates} == {"live"}
    assert max(c.gap for c in certificates) <= 1e-12
    assert max(c.violation for c in certificates) <= 1e-12
    assert min(c.solve_s for c in certificates) > 0


@pytest.mark.parametrize("gpu_counts", [(110.0, 150.0, 130.0), (60.0, 300.0, 300.0)])
def test_level_that_the_slowest_job_limits_is_answered_live(gpu_counts: tuple[float, ...]) -> None:
    world = World(5, 300, gpu_counts)

    for event in range(40):
        world.step()
        certificate = world.live.solve().certificate
        assert certificate.gap <= 1e-9
        assert certificate.violation <= 1e-9
        if event % 8 == 0:
            assert certificate.objective == pytest.approx(world.from_scratch(), rel=1e-9)

    assert world.live.solver.answers["live"] >= 36
    assert not world.live.solver.falls


def test_the_same_changes_give_the_same_bytes() -> None:
    answers = []
    for _ in range(2):
        world = World(seed=3, jobs=200, gpu_counts=(30.0, 30.0, 30.0))
        world.live.solve()
        world.arrive()
        answers.append(world.live.solve())

    assert answers[0].share.tobytes() == answers[1].share.tobytes()
    assert answers[0].shadow_prices.tobytes() == answers[1].shadow_prices.tobytes()


def test_shares_are_those_of_the_rows_jobs_are_in() -> None:
    problem = random_problem(0, jobs=100)
    live = LiveMaxMin(problem.gpu_types, problem.gpu_counts)
    for row, job in enumerate(problem.job_ids):
        live.add(job, problem.member_rate_steps_per_s[row], scale=1.0, gpus=problem.gpus_asked[row])
    live.remove(problem.job_ids[0])

    answer = live.solve()

    rates = dict(zip(problem.job_ids, problem.member_rate_steps_per_s, strict=True))
    levels = [float(rates[job] @ answer.share[row]) for row, job in enumerate(live.job_ids)]  # type: ignore[index]
    assert len(live.job_ids) == 99
    assert min(levels) == pytest.approx(answer.certificate.objective, rel=1e-9)


def test_nobody_is_answered_too() -> None:
    answer = LiveMaxMin(TYPES, (1, 1, 1)).solve()

    assert answer.share.shape == (0, 3)
    assert answer.certificate.path == "nothing runs"


def test_bad_figures_are_refused_and_change_nothing() -> None:
    live = LiveMaxMin(TYPES, (1, 1, 1))
    live.add("a", [1.0, 2.0, 3.0], scale=1.0)

    with pytest.raises(InvalidInput, match="job_id must be new, got 'a' again"):
        live.add("a", [1.0, 2.0, 3.0], scale=1.0)
    with pytest.raises(InvalidInput, match="rates_steps_per_s of 'b'"):
        live.add("b", [0.0, 0.0, 0.0], scale=1.0)
    with pytest.raises(InvalidInput, match="scale of 'b' must be > 0"):
        live.add("b", [1.0, 0.0, 0.0], scale=0.0)
    with pytest.raises(InvalidInput, match="must be a current job, got 'c'"):
        live.remove("c")

    assert live.job_ids == ("a",)


def _best_by_a_plain_program(world: World) -> tuple[float, float]:
    """The highest level and, at that level, the highest sum of values, by HiGHS on the whole linear program."""
    rates, scales, gpus = (np.array(figures) for figures in zip(*world.jobs.values(), strict=True))
    value = (rates * scales[:, None]).ravel()
    J, T = rates.shape
    entry, job = np.arange(J * T), np.repeat(np.arange(J), T)
    time = sp.csr_array((np.ones(J * T), (job, entry)), shape=(J, J * T + 1))
    part = gpus[job] / np.tile(np.array(world.gpu_counts), J)
    load = sp.csr_array((part, (np.tile(np.arange(T), J), entry)), shape=(T, J * T + 1))
    had = sp.csr_array((-value, (job, entry)), shape=(J, J * T + 1))
    level = sp.csr_array((np.ones(J), (np.arange(J), np.full(J, J * T))), shape=(J, J * T + 1))
    matrix, limit = sp.vstack([time, load, had + level]), np.append(np.ones(J + T), np.zeros(J))
    bounds = [(0.0, None if v > 0 else 0.0) for v in value]
    highest = linprog(np.append(np.zeros(J * T), -1.0), matrix, limit, bounds=[*bounds, (0.0, None)])
    near = (-highest.fun * (1 - 1e-9), None)
    most = linprog(np.append(-value, 0.0), matrix, limit, bounds=[*bounds, near])
    return -highest.fun, -most.fun


@pytest.mark.parametrize("seed", range(12))
def test_live_answers_are_those_of_a_plain_linear_program(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    jobs = int(rng.integers(70, 160))
    counts = (jobs * rng.choice([0.1, 0.33, 0.6, 1.0]) * rng.uniform(0.5, 1.5, 3)).round(1)
    world = World(seed, jobs, (counts[0], counts[1], counts[2]))

    for _ in range(5):
        for _ in range(int(rng.integers(1, 4))):
            world.step()
        answer = world.live.solve()
        best, most = _best_by_a_plain_program(world)
        rates, scales, gpus = (
            np.array([world.jobs[job][figure] for job in world.live.job_ids]) for figure in range(3)
        )  # fmt: skip
        values = scales * (rates * answer.share).sum(axis=1)
        assert values.min() == pytest.approx(best, rel=2e-8)
        assert values.sum() == pytest.approx(most, rel=1e-7)
        assert (gpus @ answer.share <= counts * (1 + 1e-9)).all()
        assert answer.certificate.objective == pytest.approx(values.min(), rel=1e-12)
        assert answer.certificate.gap <= 1e-9


@pytest.mark.parametrize("gpu_counts", [(30.0, 30.0, 30.0), (110.0, 150.0, 130.0)])
def test_sums_stay_exact_over_thousands_of_events(gpu_counts: tuple[float, float, float]) -> None:
    world = World(5, 300, gpu_counts)

    gaps, overs = [], []
    for _ in range(3000):
        world.step()
        answer = world.live.solve()
        gpus = np.array([world.jobs[job][2] for job in world.live.job_ids])
        overs.append(float((gpus @ answer.share / np.array(gpu_counts)).max()) - 1.0)
        gaps.append(max(answer.certificate.gap, answer.certificate.violation))

    assert max(gaps) <= 1e-9
    assert max(overs) <= 1e-11
    assert world.live.solver.answers["live"] >= 2700
    assert not world.live.solver.falls
    assert values_of(world).min() == pytest.approx(world.from_scratch(), rel=1e-9)


def values_of(world: World) -> Floats:
    """Scaled rates of all jobs."""
    share = world.live.solve().share
    return np.array(
        [world.jobs[job][1] * (world.jobs[job][0] @ share[row]) for row, job in enumerate(world.live.job_ids)]
    )


def test_equal_jobs_are_answered_live() -> None:
    live = LiveMaxMin(TYPES, (20.0, 20.0, 20.0))
    for number in range(200):
        live.add(f"job-{number}", [(4.0, 3.0, 1.0), (9.0, 2.0, 1.0)][number % 2], scale=1.0)
    live.solve()

    for number in range(40):
        live.remove(f"job-{number}")
        certificate = live.solve().certificate
        assert certificate.gap <= 1e-9
        assert certificate.violation <= 1e-9
    problem = AllocationProblem.of(
        [str(n) for n in range(160)], TYPES, (20.0, 20.0, 20.0), [(4.0, 3.0, 1.0), (9.0, 2.0, 1.0)] * 80
    )
    assert certificate.objective == pytest.approx(solve(problem, MaxMin(np.ones(160))).certificate.objective)
