"""Settings of the mechanism: each bad value is refused with the name of its field."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.original_gavel import PriorityRule, QueueRule
from gavelpy.mechanism.settings import settings_values
from tests.mechanism.builders import make_mechanism


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("round_s", 0.5),
        ("round_s", 86_401.0),
        ("round_s", math.nan),
        ("round_s", math.inf),
        ("solve_interval_s", -1.0),
        ("solve_interval_s", math.nan),
        ("solve_patience_s", -1.0),
        ("solve_patience_s", math.inf),
        ("solve_patience_s", math.nan),
        ("lag_half_life_s", 0.0),
        ("lag_half_life_s", math.nan),
        ("failures_max", -1),
        ("failures_max", math.nan),
        ("lease_min_s", -1.0),
        ("lease_min_s", math.nan),
        ("retry_s", -1.0),
        ("retry_s", math.inf),
        ("retry_max_s", -1.0),
        ("retry_max_s", 86_401.0),
        ("priority", "fastest"),
        ("priority", None),
        ("queue", 1),
    ],
)
def test_bad_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=rf"^{name} must be .*, got {value!r}"):
        make_mechanism(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("round_s", 1.0),
        ("round_s", 86_400.0),
        ("solve_interval_s", 0.0),
        ("solve_interval_s", math.inf),
        ("solve_patience_s", 0.0),
        ("lag_half_life_s", math.inf),
        ("failures_max", 0),
        ("lease_min_s", 86_400.0),
        ("retry_s", 300.0),
        ("retry_max_s", 0.0),
        ("priority", PriorityRule.OSDI20),
        ("queue", QueueRule.BY_TYPE),
    ],
)
def test_value_at_the_edge_of_its_range_is_taken(name: str, value: Any) -> None:
    assert settings_values(make_mechanism(**{name: value}))[name] == value
