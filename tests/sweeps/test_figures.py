"""Figures of sweeps: curves by policy, bands from the intervals, and one clear line without a numeric axis."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.report.export import write_curves
from gavelpy.statistics import MeanInterval
from gavelpy.sweeps.figures import axis_of, figures_of
from gavelpy.sweeps.grid import grid_of
from gavelpy.sweeps.summary import Group

BASE = {"generate": 5, "cluster": "v100:2"}


def group(rate: float, policy: str, hours: float) -> Group:
    means = {"avg_jct_s": MeanInterval(hours * 3600, hours * 3000, hours * 4000, 5), "rounds": MeanInterval(7, 7, 7, 5)}
    return Group({"rate_per_h": rate, "policy": policy}, means, 0)


def test_curve_of_a_policy_has_its_means_and_band_in_order_of_load() -> None:
    groups = [group(8, "las", 6), group(2, "las", 3), group(2, "las@blind", 4)]

    (figure,) = figures_of(groups, "rate_per_h")

    aware, blind = figure.curves
    assert (figure.name, figure.x.title, figure.y.title) == ("avg_jct_s", "jobs per hour", "avg JCT [h]")
    assert aware.x.tolist() == [2, 8]
    assert aware.y.tolist() == [3, 6]
    assert aware.low is not None
    assert aware.low.tolist() == [2.5, 5]
    assert (blind.label, blind.colour, blind.is_faint) == ("las@blind", aware.colour, True)


def test_files_have_the_band(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    groups = [group(2, "las", 3), group(8, "las", 6)]

    paths = write_curves(tmp_path, figures_of(groups, "rate_per_h"))

    assert sorted(path.name for path in paths) == ["avg_jct_s.csv", "avg_jct_s.pdf", "avg_jct_s.svg"]
    table = pd.read_csv(tmp_path / "avg_jct_s.csv")
    assert table["avg JCT [h] high"].tolist() == [pytest.approx(4000 / 1200), pytest.approx(8000 / 1200)]
    assert "FillBetweenPolyCollection" in (tmp_path / "avg_jct_s.svg").read_text()


def test_unknown_means_leave_gaps() -> None:
    unknown = Group(
        {"rate_per_h": 4.0, "policy": "las"}, {"avg_jct_s": MeanInterval(math.nan, math.nan, math.nan, 0)}, 5
    )

    (figure,) = figures_of([group(2, "las", 3), unknown, group(8, "las", 6)], "rate_per_h")

    assert figure.curves[0].x.tolist() == [2, 8]


def test_axis_must_have_several_numbers() -> None:
    grid = grid_of({**BASE, "rate_per_h": [2, 4], "round_s": [60, 360]})

    assert axis_of(grid) == "rate_per_h"
    assert axis_of(grid, "round_s") == "round_s"
    with pytest.raises(InvalidInput, match=r"--x must be .* in this sweep \(rate_per_h, round_s\), got 'seed'"):
        axis_of(grid, "seed")
    with pytest.raises(InvalidInput, match="--figures needs an option with several numbers"):
        axis_of(grid_of({**BASE, "policy": ["fifo", "las"]}))
