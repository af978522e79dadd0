"""Marginal values of CPU cores, memory and quotas: of one class, of several, of pairs, in the journal, over time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gavelpy.engine import Engine
from gavelpy.journal.codec import decode, encode, encode_state
from gavelpy.mechanism.class_tiers import joined_answers
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import AllocationSolved
from gavelpy.mechanism.priority_classes import PriorityClass
from gavelpy.mechanism.snapshot import snapshot
from gavelpy.mechanism.teams import Team
from gavelpy.model.pairs import with_gaining_pairs
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.isolated import Isolated
from gavelpy.policies.max_min_fairness import MaxMinFairness
from gavelpy.runtime.daemon.web.samples import Samples
from tests.mechanism.builders import make_core, make_spec, questions, tell, wake
from tests.mechanism.test_node_resources import core_of, needing, submit


def test_scarce_cores_have_a_marginal_value_and_gpus_have_none() -> None:
    """Four jobs of 4 cores share 8: each has half of its time, and with one core more 1/16 more of it."""
    core = core_of((8, 8.0, 64.0))
    submit(core, *(needing(f"j{i}", 4.0, 1.0) for i in range(4)))
    engine = Engine(MaxMinFairness())

    answer = engine.solve(questions(wake(core, 0.0))[0])

    assert isinstance(answer, AllocationSolved)
    assert answer.share.tolist() == [0.5] * 4
    assert engine.shadow_prices == {"v100": 0.0}
    assert engine.resource_prices == {
        ("v100", "cpus"): pytest.approx(1 / 16),
        ("v100", "memory_gib"): pytest.approx(0.0),
    }


def test_a_lower_class_divides_the_cores_that_a_higher_one_leaves() -> None:
    classes = (PriorityClass("high", 100, ("low",)), PriorityClass("low", 10))
    core = core_of((8, 8.0, 0.0), priorities=classes)
    submit(core, needing("first", 6.0, priority="high"), *(needing(f"j{i}", 2.0, priority="low") for i in range(2)))
    engine = Engine(MaxMinFairness())

    answer = engine.solve(questions(wake(core, 0.0))[0])

    assert isinstance(answer, AllocationSolved)
    assert dict(zip(answer.jobs.tolist(), answer.share.tolist(), strict=True)) == {0: 1.0, 1: 0.5, 2: 0.5}


def test_a_pair_needs_the_cores_of_both_jobs() -> None:
    resources, demand = {"cpus": 8.0}, {"cpus": [6.0, 3.0, 1.0]}
    problem = AllocationProblem.of("abc", ["v100"], [1], [[1.0]] * 3, resources=resources, demand=demand)

    packed = with_gaining_pairs(problem, [0, 0, 0], np.full((1, 1, 1), 0.9))

    pairs = packed.member_job.reshape(-1)[3:].reshape(-1, 2)
    assert packed.demand[3:].tolist() == [
        [1000, round(1000 * (demand["cpus"][one] + demand["cpus"][other]))] for one, other in pairs.tolist()
    ]


def limited_by_cores() -> SchedulerCore:
    core = core_of((8, 8.0, 64.0))
    submit(core, *(needing(f"j{i}", 4.0, 1.0) for i in range(4)))
    return core


def limited_by_quota() -> SchedulerCore:
    teams = (Team("a", quota={"v100": 2}), Team("b"))
    specs = [make_spec(f"j{k}", entity=team) for k, team in enumerate("aaab")]
    return make_core(*specs, servers=[("v100", 4)], teams=teams)


def solved(core: SchedulerCore, engine: Engine) -> AllocationSolved:
    answer = engine.solve(questions(wake(core, 0.0))[0])
    assert isinstance(answer, AllocationSolved)
    return answer


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [(limited_by_cores, "cpus", 1 / 16), (limited_by_quota, "GPU of the quota of a", 1 / 3)],
)
def test_the_value_of_what_limits_jobs_is_journaled_and_replayed(make: Any, name: str, value: float) -> None:
    core, again, engine = make(), make(), Engine(MaxMinFairness())
    answer = solved(core, engine)
    wake(again, 0.0)

    record = encode(answer, 1.0)
    _, read = decode(record)
    tell(core, answer)
    tell(again, read)

    assert isinstance(read, AllocationSolved)
    assert read.resources == (name,)
    assert read.resource_value == pytest.approx(np.array([[value]]))
    assert (record[1], encode(read, 1.0)) == (14, record)
    assert encode_state(snapshot(again)) == encode_state(snapshot(core))


def test_without_scarce_resources_and_of_rules_the_record_is_as_before() -> None:
    core = core_of((8, 8.0, 64.0))
    submit(core, needing("alone", 4.0, 1.0))
    plenty, ruled = solved(core, Engine(MaxMinFairness())), solved(make_core(make_spec("a")), Engine(Isolated()))

    assert (plenty.resources, plenty.resource_value.shape, encode(plenty, 1.0)[1]) == ((), (0,), 11)
    assert (ruled.resources, encode(ruled, 1.0)[1]) == ((), 2)


def test_joined_answers_have_the_value_of_the_first_in_which_a_resource_is_scarce() -> None:
    none = np.zeros(0, dtype=int), np.zeros(0, dtype=int), np.zeros(0)
    high = AllocationSolved(1, *none, resources=("cpus",), resource_value=np.array([[0.5, 0.0]]))
    low = AllocationSolved(1, *none, resources=("gib", "cpus"), resource_value=np.array([[0.0, 3.0], [2.0, 1.0]]))

    joined = joined_answers(1, [AllocationSolved(1, *none), high, low])

    assert dict(zip(joined.resources, joined.resource_value.tolist(), strict=True)) == {
        "cpus": [0.5, 1.0],
        "gib": [0.0, 3.0],
    }


def test_values_over_time_name_the_resources_that_were_scarce() -> None:
    core, engine = limited_by_cores(), Engine(MaxMinFairness())
    scheduler: Any = SimpleNamespace(core=core, engine=engine, wall_s=lambda now_s: 1000.0 + now_s)
    samples = Samples(scheduler)
    samples.take(0.0)
    tell(core, solved(core, engine))
    samples.take(1.0)

    found: Any = samples.prices()

    assert found["time_s"] == [1000.0, 1001.0]
    (cores,) = found["by_resource"]
    assert (cores["gpu_type"], cores["resource"]) == ("v100", "cpus")
    assert cores["values"] == pytest.approx([np.nan, 1 / 16], nan_ok=True)
