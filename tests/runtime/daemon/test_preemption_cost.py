"""The cost of a preemption, as `gavel explain` shows it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gavelpy.runtime.daemon.queries.explain import PreemptionCost, in_time, preemption_cost


def cost_of(**values: Any) -> PreemptionCost | None:
    known = {"gpus": 2, "rate_steps_per_s": 10.0, "steps_done": 3000.0, "steps_saved": 600.0, "restart_s": 12.0}
    return preemption_cost(**({"saves_when_stopped": False} | known | values))


def test_steps_since_the_last_checkpoint_are_repeated() -> None:
    assert cost_of() == PreemptionCost(
        2 * (240.0 + 12.0),
        "preempting it now would lose about 4 min of 2 GPUs (2400 steps since its last checkpoint, at 10 steps/s; "
        "restart 12 s, as measured for this lease)",
    )


def test_a_program_that_saves_first_only_restarts() -> None:
    assert cost_of(saves_when_stopped=True, gpus=1, restart_s=math.nan) == PreemptionCost(
        5.0, "preempting it now would lose about 5 s of 1 GPU (its program saves first; restart 5 s, assumed)"
    )


def test_without_a_checkpoint_all_steps_are_repeated() -> None:
    cost = cost_of(steps_saved=0.0)

    assert cost is not None
    assert (cost.gpu_s, "3000 steps since its start" in cost.text) == (2 * 312.0, True)


def test_the_cost_is_unknown_where_the_rate_is() -> None:
    assert cost_of(rate_steps_per_s=0.0) is None
    assert cost_of(rate_steps_per_s=0.0, saves_when_stopped=True) is not None


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (119.0, "119 s"), (240.0, "4 min"), (9_000.0, "2.5 h")])
def test_times_are_short(seconds: float, text: str) -> None:
    assert in_time(seconds) == text
