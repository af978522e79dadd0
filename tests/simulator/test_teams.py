"""Teams in simulation: every allocation is that of `gavel allocate` for the same jobs and teams."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from gavelpy.cli.allocate import limits_of_problem
from gavelpy.engine import Engine
from gavelpy.mechanism.commands import SolveAllocation
from gavelpy.mechanism.events import AllocationFailed, AllocationSolved
from gavelpy.mechanism.teams import Team
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import Trace
from gavelpy.model.problem import AllocationProblem, Entity, EntityPolicy
from gavelpy.model.throughput import ThroughputTable
from gavelpy.policies.base import policy_named
from gavelpy.policies.hierarchical import Hierarchical
from gavelpy.policies.team_rows import allocate_within
from gavelpy.simulator.simulate import Simulation
from gavelpy.traces.problem_json import parse_limited_problem
from gavelpy.traces.problem_writer import problem_text
from tests.simulator.builders import make_job, make_settings, random_trace

TEAMS = (
    Team("vision", 2.0, EntityPolicy.FIFO, "research", guaranteed={"v100": 1}),
    Team("research", 3.0, parent="company", quota={"v100": 3, "p100": 2}),
    Team("speech", parent="research", guaranteed={"k80": 2}),
    Team("company"),
    Team("guests", 0.5),
)
NAMES = [team.name for team in TEAMS]
ENTITIES = [Entity(team.name, team.weight, team.policy, team.parent) for team in TEAMS]


class Compared(Engine):
    """Compares each answer with the policy's for a problem that is built by hand."""

    compared = 0

    def solve(self, question: SolveAllocation) -> AllocationSolved | AllocationFailed:
        answer = super().solve(question)
        asked = question.problem
        by_hand = AllocationProblem.of(
            asked.job_ids, asked.gpu_types, asked.gpu_counts, asked.member_rate_steps_per_s, gpus=asked.gpus_asked,
            entity=[NAMES.index(team_of(int(job[1:]))) for job in asked.job_ids], entities=ENTITIES,
        )  # fmt: skip
        expected = allocate_within(Hierarchical(), by_hand, limits_of_problem(by_hand, TEAMS)).share
        share = np.zeros_like(expected)
        assert isinstance(answer, AllocationSolved)
        share[np.searchsorted(question.jobs, answer.jobs), answer.gpu_type] = answer.share
        assert np.abs(share - expected).max() < 2.0**-20  # shares are rounded down to 2 ** -24
        self.compared += 1
        return answer


class Written(Engine):
    """Compares each answer with the policy's for the problem file of the request."""

    seen: ClassVar[set[str]] = set()

    def solve(self, question: SolveAllocation) -> AllocationSolved | AllocationFailed:
        problem = self.problem_of(question)
        read, limits = parse_limited_problem(problem_text(problem, question.limits))
        expected = allocate_within(self.policy, read, limits)
        own = allocate_within(self.policy, problem, question.limits)
        assert (limits is None) == (question.limits is None)
        self.seen |= {"pairs"} if (problem.member_count > 1).any() else set()
        self.seen |= {name for name, value in (("sizes", question.sizes), ("limits", limits)) if value is not None}
        assert expected.rate_steps_per_s == pytest.approx(own.rate_steps_per_s, rel=1e-9)
        if problem.runs_alone:
            assert np.array_equal(expected.share, own.share)
        return super().solve(question)


def team_of(number: int) -> str:
    return ("vision", "speech", "guests", "company")[number % 4]


def test_every_allocation_is_that_of_the_same_problem_by_hand() -> None:
    drawn = random_trace(3, jobs=16)
    jobs = tuple(replace(job, entity=team_of(int(job.id[1:]))) for job in drawn.jobs)
    engine = Compared(Hierarchical())
    settings = make_settings(teams=TEAMS)

    result = Simulation(Trace(jobs, drawn.arrival_s), Cluster.parse("v100:4,p100:4,k80:4"), engine, settings).run()

    assert result.metrics.jobs_unfinished == 0
    assert engine.compared == result.metrics.solves > 16


@pytest.mark.parametrize("policy", ["hierarchical", "max_min_fairness"])
def test_the_file_of_any_request_has_the_same_answer(policy: str) -> None:
    drawn = random_trace(4, jobs=12)
    more: dict[str, Any] = {"cpus_per_gpu": 3.0, "job_type": "ant", "owner": "ann", "preemptible": True}
    jobs = [replace(job, entity=team_of(int(job.id[1:])), **more) for job in drawn.jobs]
    jobs[0] = replace(jobs[0], gpus=1, sizes=(1, 2), rates_by_size={2: {"v100": 7.0}}, weight=2.0)
    types, rates, kept = ("v100", "p100", "k80"), np.ones((1, 3)), np.full((1, 2, 3), 0.8)
    measured, pairs = np.zeros((1, 3), dtype=np.int64), np.zeros((1, 2), dtype=np.int64)
    table = ThroughputTable((("ant", 1),), types, rates, measured, ("",), pairs, kept)
    engine = Written(policy_named(policy), throughputs=table)
    settings = make_settings(teams=TEAMS, packing=True)
    cores = dict.fromkeys(table.gpu_types, 11.0)
    cluster = Cluster.parse("v100:4,p100:4,k80:4").with_amounts(cores, {})

    result = Simulation(Trace(tuple(jobs), drawn.arrival_s), cluster, engine, settings).run()

    assert result.metrics.jobs_unfinished == 0
    assert engine.seen == {"pairs", "sizes", "limits"}


def test_a_team_gets_its_part_of_the_time_by_weight() -> None:
    jobs = [replace(make_job(f"j{k}", steps=360_000.0), entity=name) for k, name in enumerate(["a"] * 4 + ["b"] * 4)]
    teams = (Team("a", 3.0), Team("b"))
    trace = Trace(tuple(jobs), np.zeros(8))

    result = Simulation(trace, Cluster.parse("v100:4"), Engine(Hierarchical()), make_settings(teams=teams)).run()

    finish_h = result.history.finish_s[:8] / 3600
    assert finish_h[:4].mean() == pytest.approx(400 / 3, rel=0.02), "three of four GPUs for 400 GPU-hours"
    assert finish_h[4:].mean() == pytest.approx(200.0, rel=0.02), "the rest of the time all four"
