"""The compiled steps of a wake-up against numpy: equal to the last bit, in tables and in whole simulations."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.journal.codec import encode
from gavelpy.mechanism import booking, placement, problem_columns, reports, sizes
from gavelpy.mechanism.events import ProgressReported
from gavelpy.mechanism.fills import by_share
from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.jobs import OPEN, JobTable
from gavelpy.mechanism.leases import LeaseBook
from gavelpy.mechanism.selection import select, serve
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Ints
from gavelpy.model.cluster import Cluster
from gavelpy.policies.base import PolicyRun
from gavelpy.simulator import virtual_scheduler
from gavelpy.simulator.cluster import VirtualCluster
from gavelpy.simulator.compare import engine_for
from gavelpy.simulator.settings import SimulationSettings
from gavelpy.simulator.simulate import Simulation
from gavelpy.simulator.wakeup_kernels import WakeupKernels
from gavelpy.traces.generator import GeneratorOptions, generate
from gavelpy.traces.workloads import published_throughputs
from tests.mechanism.builders import make_jobs, make_pool

TABLES = 2000
JOBS_MAX, TYPES_MAX = 40, 9
FLOATS = ("target", "owed_s", "received_s", "since_s", "attained_gpu_s")
KERNELS = WakeupKernels()


def blank(types: int) -> JobTable:
    return make_jobs([[1.0] * types] * JOBS_MAX)


def fill(jobs: JobTable, rng: np.random.Generator) -> None:
    """Some jobs are over, some have leases, which may not have started."""
    J, T = JOBS_MAX, jobs.target.shape[1]
    jobs.state[:J] = rng.choice([0, 0, 0, 3], J)
    jobs.listed_again()
    is_leased = (rng.random(J) < rng.random()) & (jobs.state[:J] == 0)
    jobs.set_leases(np.arange(J), np.where(is_leased, np.arange(J), -1))
    jobs.lease_type[:J], jobs.gpus[:J] = rng.integers(0, T, J), rng.choice([1, 1, 2, 4], J)
    jobs.since_s[:J] = np.where(is_leased & (rng.random(J) < 0.9), rng.random(J) * 100.0, -1.0)
    jobs.target[:J] = rng.random((J, T)) * (rng.random((J, T)) < 0.5)
    jobs.owed_s[:J], jobs.received_s[:J] = rng.random((2, J, T)) * 4000.0
    jobs.attained_gpu_s[:J] = rng.random(J) * 1e6


def test_time_is_booked_as_in_numpy() -> None:
    rng = np.random.default_rng(0)
    tables = {types: (blank(types), blank(types)) for types in range(1, TYPES_MAX + 1)}
    for table in range(TABLES):
        plain, compiled = tables[1 + table % TYPES_MAX]
        fill(plain, rng)
        for name in (*FLOATS, "state", "lease_type", "gpus"):
            getattr(compiled, name)[:] = getattr(plain, name)
        compiled.listed_again()
        compiled.set_leases(np.arange(JOBS_MAX), plain.lease[:JOBS_MAX])
        fade, lag_max_s = (1.0, float(rng.random() * 3000.0)) if table % 2 else (float(rng.random()), math.inf)
        elapsed_s = float(rng.exponential(200.0))

        booking.settle(plain, elapsed_s, fade, 100.0 + elapsed_s, lag_max_s)
        KERNELS.settle(compiled, elapsed_s, fade, 100.0 + elapsed_s, lag_max_s)

        for name in FLOATS:
            assert getattr(plain, name).tobytes() == getattr(compiled, name).tobytes(), name


def test_a_queue_is_served_as_in_numpy() -> None:
    rng = np.random.default_rng(1)
    for table in range(TABLES):
        T, count = 1 + table % TYPES_MAX, int(rng.integers(1, 80))
        places = np.sort(rng.choice(JOBS_MAX * T, min(count, JOBS_MAX * T), replace=False))
        jobs, types = places // T + 1000, places % T
        merit = [rng.choice([0.0, 0.5, 1.0, math.inf], len(jobs)) for _ in range(3)]
        if table % 3 == 0:
            merit[0] = rng.standard_normal(len(jobs))
        gpus = rng.choice([1, 1, 2, 4, 8], 1000 + JOBS_MAX)
        free = rng.integers(0, 8 if table % 2 else 200, T)
        left = free.copy(), free.copy()

        plain = serve(jobs, types, (merit[0], merit[1], merit[2]), gpus, left[0])
        compiled = KERNELS.serve(jobs, types, (merit[0], merit[1], merit[2]), gpus, left[1])

        assert [column.tolist() for column in plain] == [column.tolist() for column in compiled]
        assert left[0].tolist() == left[1].tolist()


def test_a_long_queue_is_served_as_in_numpy() -> None:
    """Only the most urgent are put in order, and the others that still fit if GPUs are left."""
    rng, others = np.random.default_rng(8), 0
    for table in range(200):
        T, J = 1 + table % 3, 3000
        jobs, types = np.repeat(np.arange(J), T), np.tile(np.arange(T), J)
        urgency = rng.standard_normal(J * T) if table % 2 else rng.choice([0.0, 0.5, 1.0, math.inf], J * T)
        urgency += 9.0 * (types == 0) * (table % 4 > 1)
        merit = urgency, rng.choice([0.0, 1.0], J * T), rng.choice([0.0, 1.0], J * T)
        gpus = rng.choice([1, 2, 4, 8] if table % 5 else [5, 7, 8], J)
        free = rng.integers(20, 120, T)
        left = free.copy(), free.copy()

        plain = serve(jobs, types, merit, gpus, left[0])
        compiled = KERNELS.serve(jobs, types, merit, gpus, left[1])

        assert [column.tolist() for column in plain] == [column.tolist() for column in compiled]
        assert left[0].tolist() == left[1].tolist()
        others += int(np.sort(urgency)[::-1][2 * free.sum()] > urgency[plain[0] * T + plain[1]].min())
    assert others > 20  # some were not among the most urgent


@pytest.mark.parametrize("fill_leftover", [False, True])
def test_free_gpus_are_filled_as_in_numpy(fill_leftover: bool) -> None:
    rng = np.random.default_rng(5)
    tables = {types: blank(types) for types in range(1, TYPES_MAX + 1)}
    served = 0
    for table in range(TABLES):
        types = 1 + table % TYPES_MAX
        jobs = tables[types]
        fill(jobs, rng)
        jobs.attained_gpu_s[rng.random(len(jobs.state)) < 0.3] = 0.0
        jobs.rate[:] = rng.choice([0.0, np.nan, 1.0, 2.0, 3.0], jobs.rate.shape)
        jobs.owed_s[:], jobs.received_s[:] = rng.choice([0.0, 60.0, 90.0, 400.0], (2, *jobs.owed_s.shape))  # ties
        usable = rng.integers(0, 12, types)
        free = np.minimum(rng.integers(0, 3 if table % 2 else 100, types), usable)
        settings = MechanismSettings(move_lag_s=float(rng.choice([0.0, 600.0])), fill_leftover=fill_leftover)
        waiting = jobs.active[jobs.lease[jobs.active] < 0]

        expected = select(jobs, waiting[sizes.fits(jobs, waiting, usable).any(axis=1)], free, settings)
        found = by_share(jobs, usable, free, settings, KERNELS)

        assert [column.tolist() for column in found] == [column.tolist() for column in expected]
        served += len(found.jobs)
    assert served > TABLES


ISOLATED = ("isolated_s", "isolated_steps", "isolated_rate")
READ = ("rate", "steps_total", "steps_done", "submitted_s", "begin_at_s", "deadline_at_s", "worked_s", "began_s")


def test_problems_are_read_as_in_numpy() -> None:
    rng = np.random.default_rng(2)
    tables = {types: (blank(types), blank(types)) for types in range(1, TYPES_MAX + 1)}
    for table in range(TABLES):
        types = 1 + table % TYPES_MAX
        plain, compiled = tables[types]
        fill(plain, rng)
        for name in (*READ, *ISOLATED):
            column = getattr(plain, name)
            column[:] = rng.exponential(1e4, column.shape) * (rng.random(column.shape) < 0.8)
        plain.rate[rng.random(plain.rate.shape) < 0.1] = np.nan
        for name in (*READ, *ISOLATED, "attained_gpu_s", "gpus", "lease_type"):
            getattr(compiled, name)[:] = getattr(plain, name)
        rows, counts = np.flatnonzero(rng.random(JOBS_MAX) < 0.7), rng.integers(0, 50, types)
        usable, now_s = np.nan_to_num(plain.rate[rows]) > 0, float(rng.random() * 1e6)

        problem_columns.book_isolated(plain, rows, counts)
        KERNELS.book_isolated(compiled, rows, counts)
        both = problem_columns.columns_of(plain, rows, usable, now_s), KERNELS.columns_of(compiled, rows, usable, now_s)

        assert [column.tobytes() for column in both[0]] == [column.tobytes() for column in both[1]]
        assert [column.dtype for column in both[0]] == [column.dtype for column in both[1]]
        for name in ISOLATED:
            assert getattr(plain, name).tobytes() == getattr(compiled, name).tobytes(), name


def test_progress_is_booked_as_in_numpy() -> None:
    rng = np.random.default_rng(4)
    plain, compiled, names = blank(2), blank(2), ("steps_done", "steps_saved", "steps_total", "worked_s")
    compiled.kernels = KERNELS
    for _ in range(TABLES):
        fill(plain, rng)
        for name in names:
            getattr(plain, name)[:] = rng.integers(-3, 20, len(plain.state))
        plain.total_by[:] = rng.choice([OPEN, -1, 5], len(plain.state))
        for name in (*names, "total_by", "lease"):
            getattr(compiled, name)[:] = getattr(plain, name)
        rows = np.flatnonzero(rng.random(JOBS_MAX) < 0.6)
        event = ProgressReported(rows, rows * (rng.random(len(rows)) < 0.8), rng.random(len(rows)) * 20.0)

        for jobs in (plain, compiled):
            reports.running(jobs, GpuPool(), event, 7.0)

        for name in names:
            assert getattr(plain, name).tobytes() == getattr(compiled, name).tobytes(), name


def test_gpus_are_placed_as_in_numpy() -> None:
    rng = np.random.default_rng(0)
    for _ in range(TABLES):
        nodes = rng.integers(1, 12)
        pool = make_pool(*((f"type-{rng.integers(0, 3)}", int(rng.integers(1, 9))) for _ in range(nodes)))
        free = pool.usable & (rng.random(len(pool.job)) < rng.random())
        left, domains, gpus = pool.domain_counts(free), list[int](), list[int]()
        for _ in range(rng.integers(1, 20)):
            domain, size = int(rng.integers(0, len(left))), int(rng.choice([1, 1, 2, 3, 8]))
            if size <= left[domain]:
                left[domain] -= size
                domains.append(domain)
                gpus.append(size)
        if not domains:
            continue
        wanted = np.array(domains), np.array(gpus)

        expected, found = placement.place(pool, free, *wanted), KERNELS.place(pool, free, *wanted)

        assert [one.tolist() for one in found] == [one.tolist() for one in expected]


def test_kernels_are_loaded_where_there_is_much_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_scheduler, "MUCH_WORK", 200)

    is_compiled, _ = run("fifo", SimulationSettings(), "no module", monkeypatch)

    assert is_compiled


def run(policy: str, settings: SimulationSettings, loaded: str, patch: pytest.MonkeyPatch) -> tuple[bool, list[bytes]]:
    """Whether the kernels were used, and the events. `loaded`: the module after which they are."""
    patch.setattr(virtual_scheduler, "NUMBA_IN_USE", loaded)
    options = GeneratorOptions(jobs=30, mean_interarrival_s=400.0, multi_gpu=True)
    trace = generate(options, published_throughputs(), np.random.default_rng(3))
    found: list[bytes] = []
    simulation = Simulation(
        trace,
        Cluster.parse("v100:8,p100:8,k80:8"),
        engine_for(PolicyRun(policy), settings, None, None, 0.0),
        settings,
        observers=[lambda event, now_s: found.append(encode(event, now_s))],
    )
    simulation.run()
    return isinstance(simulation.core.jobs.kernels, WakeupKernels), found


PROMPT = replace(SimulationSettings(), mechanism=replace(SimulationSettings().mechanism, move_lag_s=0.0))


@pytest.mark.parametrize(
    ("policy", "settings"),
    [("max_min_fairness", SimulationSettings()), ("max_min_fairness", PROMPT), ("shortest_job_first", PROMPT)],
)
def test_a_simulation_has_the_same_events(
    policy: str, settings: SimulationSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_compiled, compiled = run(policy, settings, "sys", monkeypatch)
    is_plain, plain = run(policy, settings, "no module", monkeypatch)

    assert (is_compiled, is_plain) == (True, False)
    assert compiled == plain


@pytest.mark.parametrize("policy", ["max_min_fairness", "fifo"])
def test_single_leases_start_and_end_as_several_do(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, shortened = run(policy, SimulationSettings(), "no module", monkeypatch)
    monkeypatch.setattr(reports, "_has_finished", lambda *_: False)
    monkeypatch.setattr(LeaseBook, "_is_simple", lambda *_: False)
    monkeypatch.setattr(VirtualCluster, "_start_one", start_as_several)
    _, general = run(policy, SimulationSettings(), "no module", monkeypatch)

    assert shortened == general


def start_as_several(cluster: VirtualCluster, rows: Ints, leases: Ints, gpus: Ints, now_s: float) -> None:
    cluster._start(rows, leases, np.array([0, len(gpus)]), gpus, now_s)
