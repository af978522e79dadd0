"""Marginal values of CPU cores and memory: of one class, of several, and of pairs that share GPUs."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.engine import Engine
from gavelpy.mechanism.events import AllocationSolved
from gavelpy.mechanism.priority_classes import PriorityClass
from gavelpy.model.pairs import with_gaining_pairs
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.max_min_fairness import MaxMinFairness
from tests.mechanism.builders import questions, wake
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
