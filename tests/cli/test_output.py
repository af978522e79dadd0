"""Texts of the command line: forecasts with their intervals."""

from __future__ import annotations

import pytest

from gavelpy.cli.output import with_interval


@pytest.mark.parametrize(
    ("low_s", "high_s", "shown"),
    [
        (480.0, 1_500.0, "12 min (80 %: 8 min to 25 min)"),
        (480.0, -1.0, "12 min (80 %: 8 min or more)"),
        (-1.0, -1.0, "12 min"),
        (0.0, 0.0, "12 min"),  # of an older scheduler
    ],
)
def test_forecast_is_shown_with_its_interval(low_s: float, high_s: float, shown: str) -> None:
    assert with_interval(720.0, low_s, high_s) == shown
