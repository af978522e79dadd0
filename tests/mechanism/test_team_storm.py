"""Limits of teams under random events: see `team_storm`."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mechanism.team_storm import TeamStorm


@given(seed=st.integers(0, 10**9))
@settings(max_examples=6, deadline=None)
def test_quotas_hold_and_nothing_that_is_owed_stays_idle(seed: int) -> None:
    TeamStorm(seed).run(80)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 3000, 250))
def test_three_thousand_storms(first: int) -> None:
    for seed in range(first, first + 250):
        TeamStorm(seed).run(120)
