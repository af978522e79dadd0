"""Trials on a pool against a plain computation: who fails there, when jobs start, and GPU time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.events import JobCancelled, JobsReleased, LeaseStarted, NodeLost
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.simulator.conditions.causes import JobFailures, NodeFailures, TrialRuns
from gavelpy.simulator.conditions.draws import Duration
from gavelpy.simulator.conditions.job_costs import JobCosts
from gavelpy.simulator.conditions.spec import Conditions, conditions_of
from gavelpy.simulator.simulate import Simulation
from tests.simulator.builders import make_job, make_simulation, make_trace, random_trace
from tests.simulator.conditions.builders import under

COSTS = JobCosts(20.0, 0.0, 0.0, 0.0)
CLUSTER, POOL = "v100:6,p100:8,k80:4", {"gpu_type": "p100", "gpus": 2}
ERRORS = JobFailures(early_share=0.4, early=100.0)


class Ends:
    """When each trial ends, and when jobs first start in the main cluster."""

    def __init__(self, simulation: Simulation) -> None:
        self.trial_s: dict[int, float] = {}
        self.start_s: dict[int, float] = {}
        self.gpus: set[int] = set()
        simulation.observers.append(self)
        self.result = simulation.run()

    def __call__(self, event: object, now_s: float) -> None:
        match event:
            case JobsReleased():
                self.trial_s |= dict.fromkeys(event.jobs.tolist(), now_s)
            case JobCancelled():
                self.trial_s[event.job] = now_s
            case LeaseStarted():
                self.gpus |= set(event.gpus.tolist())
                self.start_s = dict.fromkeys(event.jobs.tolist(), now_s) | self.start_s


def simulation_of(conditions: Conditions, seed: int = 0) -> Simulation:
    """Of jobs that work for 400 s or more."""
    trace = random_trace(seed)
    trace = replace(trace, jobs=tuple(replace(job, steps_total=job.steps_total + 2000.0) for job in trace.jobs))
    return make_simulation(trace, CLUSTER, "fifo", under(conditions), seed=seed)


def failed(simulation: Simulation) -> set[int]:
    return {row for row, state in enumerate(simulation.core.view().job_state) if state == JobState.FAILED}


@pytest.mark.parametrize("seed", range(3))
def test_jobs_take_turns_on_the_pool_and_those_with_errors_fail_there(seed: int) -> None:
    without = simulation_of(Conditions(COSTS, job_failures=ERRORS), seed)
    without.run()
    faulty = failed(without)
    simulation = simulation_of(Conditions(COSTS, job_failures=ERRORS, trials=TrialRuns(150.0, **POOL)), seed)

    ends = Ends(simulation)

    free_s, expected_s, used_s = [0.0] * 4, {}, 0.0  # nodes are taken whole
    for row, arrival_s in enumerate(simulation.trace.arrival_s.tolist()):
        if not simulation.trace.jobs[row].rates_steps_per_s["p100"]:
            continue
        free_s.sort()
        begin_s, length_s = max(arrival_s, free_s[0]), 20.0 + (100.0 if row in faulty else 150.0)
        free_s[0] = expected_s[row] = begin_s + length_s
        used_s += length_s
    assert faulty
    assert ends.trial_s == pytest.approx(expected_s)
    assert all(ends.start_s[row] >= end_s for row, end_s in expected_s.items() if row in ends.start_s)
    cannot = set(range(len(simulation.trace))) - set(expected_s)
    assert failed(simulation) == faulty & cannot
    assert set(ends.start_s) == set(range(len(simulation.trace))) - (faulty - cannot)
    assert {ends.result.reasons[row] for row in faulty - cannot} == {"failed in its trial"}
    assert ends.result.metrics.gpu_hours["trials"] * 3600 == pytest.approx(used_s)
    pool = set(range(len(simulation.core.pool.type_of))) & set((~simulation.core.pool.usable).nonzero()[0].tolist())
    assert len(pool) == 4
    assert not pool & ends.gpus


def test_error_after_the_trial_is_one_of_the_main_cluster() -> None:
    without = simulation_of(Conditions(COSTS, job_failures=ERRORS))
    without.run()
    simulation = simulation_of(Conditions(COSTS, job_failures=ERRORS, trials=TrialRuns(99.0, **POOL)))

    simulation.run()

    assert failed(simulation) == failed(without)
    assert not simulation.conditions.trials.failed


def test_short_job_shows_no_error_and_leaves_the_pool_after_its_work() -> None:
    trace = make_trace(make_job("a", steps=90.0, rates={"v100": 3.0, "p100": 1.0}))
    failing = JobFailures(early_share=1.0, early=100.0)
    conditions = Conditions(COSTS, job_failures=failing, trials=TrialRuns(200.0, gpu_type="p100", gpus=1))

    ends = Ends(make_simulation(trace, "v100:1,p100:1", "fifo", under(conditions)))

    assert ends.trial_s == pytest.approx({0: 110.0})
    assert ends.result.jobs["finish_s"].tolist() == pytest.approx([110.0 + 20.0 + 30.0])


def test_job_that_is_cancelled_before_its_trial_takes_no_gpu_of_the_pool() -> None:
    trace = make_trace(*(make_job(f"j{i}", steps=600.0, rates={"v100": 1.0, "p100": 1.0}) for i in range(3)))
    cancelled = [(50.0, JobCancelled(1))]
    conditions = Conditions(COSTS, trials=TrialRuns(100.0, gpu_type="p100", gpus=1))
    simulation = make_simulation(trace, "v100:3,p100:1", "fifo", under(conditions), node_events=cancelled)

    ends = Ends(simulation)

    assert ends.trial_s == pytest.approx({0: 120.0, 1: 50.0, 2: 240.0})
    assert ends.result.reasons[1] == "cancelled by its user"


def test_the_pool_has_no_failures_and_the_other_nodes_have_those_as_without_it() -> None:
    nodes = NodeFailures(2.0, Duration(median_s=600.0), 40.0)
    lost = {}
    for name, trials in (("with", TrialRuns(150.0, **POOL)), ("without", TrialRuns())):
        lost[name] = list[tuple[float, str]]()
        simulation = simulation_of(Conditions(COSTS, nodes=nodes, trials=trials))
        simulation.observers.append(
            lambda event, now_s, name=name: (
                lost[name].append((now_s, event.node_id)) if isinstance(event, NodeLost) else None
            )
        )
        simulation.run()
    pool = {node.node_id for node in simulation_of(Conditions(trials=TrialRuns(150.0, **POOL))).conditions.trials.nodes}

    both_s = min(lost["with"][-1][0], lost["without"][-1][0])
    of_others = [one for one in lost["without"] if one[1] not in pool and one[0] <= both_s]
    assert [one for one in lost["with"] if one[0] <= both_s] == of_others
    assert of_others
    assert len(pool) == 1


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"most_s": 60.0}, "nodes, or gpu_type and gpus, must be given"),
        ({"most_s": 60.0, "nodes": ["a"], "gpu_type": "k80", "gpus": 1}, "nodes, or gpu_type and gpus, must be given"),
        ({"most_s": 60.0, "nodes": ["a"], "gpu_type": "k80"}, "nodes must be alone"),
        ({"most_s": -1.0}, "most_s must be in"),
        ({"most_s": 60.0, "nodes": ["a"]}, "nodes of .trials. must be in the cluster, such as"),
        ({"most_s": 60.0, "gpu_type": "k80", "gpus": 5}, "gpus of .trials. must be at most those of type 'k80', got 5"),
    ],
)
def test_mistakes_name_the_field_and_the_value(section: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        simulation_of(conditions_of({"trials": section}))
