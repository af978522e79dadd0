"""Themis with apps of several jobs: their ratios, bids and leases, and what jobs that have left count."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from gavelpy.mechanism.events import JobsArchived, Outcome
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.model.apps import AppRole
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import PolicyRun
from gavelpy.policies.themis import Themis
from gavelpy.policies.themis_apps import ThemisApps
from gavelpy.simulator.compare import compare
from gavelpy.traces.problem_json import parse_problem
from gavelpy.traces.problem_writer import problem_text
from tests.mechanism.builders import end, make_spec, questions, running_core, tell, wake


def random_problem(seed: int, app: list[str]) -> AllocationProblem:
    """Jobs of one or two GPUs, some of which have run."""
    rng, J = np.random.default_rng(seed), len(app)
    return AllocationProblem.of(
        [f"job-{row}" for row in range(J)], ["v100", "k80"], rng.integers(1, 5, 2), rng.uniform(0.5, 4.0, (J, 2)),
        gpus=rng.choice([1, 2], J), steps_remaining=rng.uniform(100.0, 5e3, J), age_s=rng.uniform(0.0, 3e3, J),
        isolated_s=rng.uniform(0.0, 1e3, J), app=app,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(30))
def test_apps_of_one_job_are_as_jobs_without_an_app(seed: int) -> None:
    alone, apart = random_problem(seed, [""] * 6), random_problem(seed, [f"app-{row}" for row in range(6)])

    one, other = Themis(filtered=0.4).allocate(alone), Themis(filtered=0.4).allocate(apart)

    leases, ours = (json.loads(answer.memory) for answer in (one, other))
    del ours[""]
    assert one.share.tolist() == other.share.tolist()
    assert leases.keys() == ours.keys()
    assert [leases[job] for job in leases] == [pytest.approx(ours[job]) for job in leases]
    assert ThemisApps(apart, {}).ratio == pytest.approx(ThemisApps(alone, {}).ratio)


def least_time(work_gpu_s: list[float], gpus: list[float], part: float) -> float:
    """The least T in which jobs do their work with at most `gpus` each and `part` in all at any time, as a program.

    Variables: T, and the GPU-seconds of each job in each of two halves of T.
    """
    n = len(work_gpu_s)
    rows, limits = [], []
    for half in range(2):
        rows.append([-part / 2, *([1.0 if k // n == half else 0.0 for k in range(2 * n)])])
        limits.append(0.0)
        for job in range(n):
            rows.append([-gpus[job] / 2, *([1.0 if k == half * n + job else 0.0 for k in range(2 * n)])])
            limits.append(0.0)
    equal = [[0.0, *([1.0 if k % n == job else 0.0 for k in range(2 * n)])] for job in range(n)]
    found = linprog([1.0, *[0.0] * 2 * n], A_ub=rows, b_ub=limits, A_eq=equal, b_eq=work_gpu_s)
    return float(found.x[0])


@pytest.mark.parametrize("seed", range(20))
def test_the_time_alone_is_that_of_a_program_over_turns(seed: int) -> None:
    p = replace(random_problem(seed, ["a", "b", "a", "", "a", "b"]), isolated_s=np.zeros(6))
    apps = ThemisApps(p, {})
    part = p.gpu_counts.sum() / 3
    rate = p.rate_alone_steps_per_s @ p.gpu_counts / p.gpu_counts.sum()

    expected = [
        least_time([p.gpus_asked[j] * p.steps_remaining[j] / rate[j] for j in jobs], p.gpus_asked[jobs].tolist(), part)
        for jobs in apps.members
    ]

    assert apps.members == [[0, 2, 4], [1, 5], [3]]
    assert apps.alone_s.tolist() == pytest.approx(expected)


def search_and_job(**columns: object) -> AllocationProblem:
    """An app of two jobs, and one job; two GPUs."""
    given = {"steps_remaining": 600.0, "app": ["tune", "tune", ""]} | columns
    return AllocationProblem.of(["x0", "x1", "y"], ["v100"], [2], np.ones((3, 1)), **given)  # type: ignore[arg-type]


def test_an_app_bids_as_one_by_hand() -> None:
    """T is 1200 s for the app and 600 s for y. V of the app: 1 with a GPU, 2 with both; of y 1.

    Both are served with one GPU. Without y the app would have both: y keeps 1 / 2. Without the app y has the same.
    """
    answer = Themis(filtered=0.0).allocate(search_and_job())

    leases = json.loads(answer.memory)
    assert answer.share[:, 0].tolist() == [1, 0, 1]
    assert leases["x0"] == [0, 1000, 1200.0]
    assert leases["y"] == [0, 1000, 600.0]


def test_an_app_alone_wins_gpus_for_several_jobs() -> None:
    answer = Themis(filtered=0.0).allocate(search_and_job(app=["tune"] * 3, steps_remaining=[600.0, 500.0, 700.0]))

    assert answer.share[:, 0].tolist() == [1, 0, 1]  # the most steps left first


def test_the_filter_counts_apps() -> None:
    """y has waited longer for its work, so of two apps only y bids; the app takes what is left."""
    p = search_and_job(age_s=[0.0, 0.0, 900.0])

    leases = json.loads(Themis(filtered=0.5).allocate(p).memory)

    assert leases["y"][2] == 900.0 + 1200.0  # no other bids, no payment
    assert leases["x0"][2] == 1200.0


def test_jobs_that_lost_count_with_the_work_that_they_did() -> None:
    p = search_and_job(steps_remaining=[300.0, 300.0, 600.0], isolated_s=[150.0, 150.0, 0.0])
    first = Themis().allocate(p)
    rest = AllocationProblem.of(
        ["x0", "y"], ["v100"], [2], np.ones((2, 1)), steps_remaining=[300.0, 600.0], isolated_s=[150.0, 0.0],
        app=["tune", ""], memory=first.memory,
    )  # fmt: skip
    kept = json.loads(first.memory)[""]

    later = json.loads(Themis().allocate(rest).memory)[""]

    assert kept["tune"][0] == 0.0
    assert later["tune"][0] == pytest.approx(kept["tune"][1]["x1"])
    assert later["tune"][0] > 0
    longer, shorter = ThemisApps(rest, kept).alone_s, ThemisApps(rest, {}).alone_s
    assert longer[0] == pytest.approx(shorter[0] + later["tune"][0])  # on one GPU
    assert ThemisApps(rest, kept).ratio[0] < ThemisApps(rest, {}).ratio[0]


def test_a_large_search_takes_no_more_than_its_half() -> None:
    """Eight jobs of one app and one job, on two GPUs: as an app they leave one GPU to the job, else it has 2 / 9."""
    roles = [AppRole("tune", k, 8) for k in range(8)]

    def finish_s(apps: bool) -> float:
        jobs = [
            JobSpec(JobId(f"x{k}"), 7200.0, rates_steps_per_s={"v100": 1.0}, app=roles[k].text if apps else "")
            for k in range(8)
        ]
        jobs.append(JobSpec(JobId("y"), 7200.0, rates_steps_per_s={"v100": 1.0}))
        trace = Trace(tuple(jobs), np.zeros(9))
        found = compare(trace, Cluster.parse("v100:2"), [PolicyRun("themis:filtered=0")])["themis:filtered=0"]
        return float(found.history.finish_s[8])

    assert finish_s(apps=True) < 2.5 * 7200.0
    assert finish_s(apps=False) > 3.5 * 7200.0


def test_a_scheduler_states_the_apps_of_its_jobs_and_equal_names_are_two_apps() -> None:
    roles = [AppRole("tune", 0, 2), AppRole("tune", 1, 2), AppRole("tune", 0, 1)]
    specs = [make_spec("gone"), *(make_spec(f"j{k}", app=role.text) for k, role in enumerate(roles)), make_spec("p")]
    core = running_core(*specs, servers=[("v100", 1)] * 5)

    def stated() -> tuple[list[int], tuple[str, ...]]:
        core.question.forget()
        core.disturb()
        (question,) = questions(wake(core, core.now_s + 400.0))
        return question.problem.app.tolist(), question.problem.apps

    first = stated()
    end(core, 0, int(core.jobs.lease[0]), Outcome.FINISHED, steps=1e9)
    tell(core, JobsArchived(np.array([0])))
    core = restore(snapshot(core))
    later = stated()

    assert first == ([-1, 0, 0, 1, -1], ("tune/1", "tune/3"))
    assert later == ([0, 0, 1, -1], ("tune/1", "tune/3"))


def test_a_problem_file_keeps_apps() -> None:
    assert parse_problem(problem_text(search_and_job())).app.tolist() == [0, 0, -1]
