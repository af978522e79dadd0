"""The duty cycle by which a node emulates a slower GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.runtime.shim.termination import THROTTLE_PERIOD_S, may_run, until_change_s


def test_full_speed_never_pauses() -> None:
    assert may_run(0.079, 1.0)
    assert until_change_s(0.079, 1.0) == float("inf")


@given(st.floats(0.05, 0.95))
def test_running_share_is_the_factor(factor: float) -> None:
    samples = [may_run(5.0 + THROTTLE_PERIOD_S * index / 1000, factor) for index in range(1000)]

    assert sum(samples) / 1000 == pytest.approx(factor, abs=0.003)


@given(st.floats(0, 1e6), st.floats(0.05, 0.95))
def test_next_change_is_within_a_period(clock_s: float, factor: float) -> None:
    assert 0 <= until_change_s(clock_s, factor) <= THROTTLE_PERIOD_S
