"""Claims of the Gavel paper (OSDI '20), repeated in small; `gavel reproduce` has the paper's sizes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.reproduction.answers import FIG11, FIG12
from gavelpy.reproduction.estimates import ALONE, ESTIMATED, FIG14, TO_ORACLE
from gavelpy.reproduction.load import FIG8, FIG9, FIG10, LAS_SINGLE, RATIO
from gavelpy.reproduction.objectives import COST, MAKESPAN
from gavelpy.reproduction.published import FigureSize, PublishedFigure, Reproduction
from gavelpy.reproduction.rounds import FIG13, TO_IDEAL
from gavelpy.traces.reader import read_throughputs

MULTI = FigureSize(rates_per_h=(2.0,), window=(300, 400))
SINGLE = FigureSize(rates_per_h=(4.0,), window=(100, 200))


def value(found: Reproduction, run: str, quantity: str) -> float:
    """The only row of this run and quantity."""
    (row,) = (row for row in found.rows if (row.run, row.quantity) == (run, quantity))
    return row.ours


@pytest.mark.parametrize(
    ("figure", "size"),
    [
        pytest.param(FIG8, SINGLE, id="fig8", marks=pytest.mark.slow),
        pytest.param(FIG9, MULTI, id="fig9", marks=pytest.mark.slow),
        pytest.param(FIG10, MULTI, id="fig10", marks=pytest.mark.slow),
    ],
)
def test_section_7_3_aware_policies_lower_the_average_completion_time(
    figure: PublishedFigure, size: FigureSize
) -> None:
    found = figure.reproduce(size)

    assert not found.remarks
    for row in found.rows:
        assert row.ours == pytest.approx(row.published, rel=0.35), row
    assert value(found, "", RATIO) > 1.2


@pytest.mark.slow
def test_figure_8_at_high_load_the_ratio_reaches_that_of_the_abstract() -> None:
    """Up to 3.5 times: the blind policy has an unstable queue at loads that the aware one sustains."""
    found = FIG8.reproduce(FigureSize(rates_per_h=(4.0, 5.5), window=(4000, 5000)))

    ratios = [row.ours for row in found.rows if row.quantity == RATIO]
    assert ratios[0] > 1.25
    assert ratios[1] > 2.0


def test_figure_11_entities_receive_in_proportion_to_their_weights() -> None:
    found = FIG11.reproduce(FigureSize())

    assert len(found.rows) == 6
    for row in found.rows:
        assert row.ours == pytest.approx(row.published, abs=1e-6), row


def test_figure_12_answers_take_less_time_than_the_original() -> None:
    found = FIG12.reproduce(FigureSize())

    at_most = {row.at: row for row in found.rows if row.run == "max_min_fairness_water_filling"}
    assert all(np.isfinite(row.ours) and row.ours > 0 for row in found.rows)
    assert at_most["512 jobs"].ours < at_most["512 jobs"].published


@pytest.mark.slow
def test_figure_13_the_mechanism_is_within_ten_percent_of_the_ideal() -> None:
    found = FIG13.reproduce(FigureSize(rates_per_h=(2.0,)))

    ratios = [row.ours for row in found.rows if row.quantity == TO_IDEAL]
    assert 0.97 <= ratios[0] <= 1.1
    assert ratios[0] < ratios[-1] < 1.5


@pytest.mark.slow
def test_figure_14_estimated_rates_keep_most_of_the_gain_of_co_location(reference_directory: Path) -> None:
    table = read_throughputs(reference_directory / "data" / "gavel" / "simulation_throughputs.json")

    found = FIG14.reproduce(FigureSize(rates_per_h=(8.0,), throughputs=table))

    estimated, alone = value(found, ESTIMATED, TO_ORACLE), value(found, ALONE, TO_ORACLE)
    assert estimated < 1.15
    assert alone - 1.0 > 2 * (estimated - 1.0)


def test_figure_14_needs_rates_of_pairs() -> None:
    with pytest.raises(InvalidInput, match="fig14 needs --throughputs FILE with rates of pairs"):
        FIG14.reproduce(FigureSize())


@pytest.mark.slow
def test_section_7_3_the_makespan_is_shorter_than_of_blind_policies() -> None:
    found = MAKESPAN.reproduce(FigureSize())

    ratios = {(row.at, row.run): row.ours for row in found.rows if row.quantity == "ratio of makespans"}
    assert len(ratios) == 6
    assert all(ratio > 1.4 for ratio in ratios.values())
    assert ratios["200 jobs", "fifo@blind / min_makespan"] > 2.5


@pytest.mark.slow
def test_section_7_3_jobs_cost_less_and_deadlines_are_kept() -> None:
    found = COST.reproduce(FigureSize(rates_per_h=(2.0,)))

    ratios = {row.run: row.ours for row in found.rows if row.quantity == "ratio of costs"}
    assert ratios["max_sum_throughput / min_cost"] > 1.2
    assert ratios["max_sum_throughput / min_cost:deadlines=true"] > 1.1
    assert value(found, "min_cost:deadlines=true", "deadlines missed, %") <= 2
    assert value(found, "max_sum_throughput", "deadlines missed, %") > 2


def test_a_load_that_is_not_printed_has_no_published_value() -> None:
    assert math.isnan(LAS_SINGLE.jct_h(4.2, blind=False))
    assert math.isnan(LAS_SINGLE.jct_h(2.0, blind=True))
    assert LAS_SINGLE.jct_h(2.0, blind=False) == 17


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"seeds": 0}, "seeds must be in"),
        ({"rates_per_h": (0.0,)}, "rates must be in"),
        ({"window": (5, 5)}, "window must be A:B"),
    ],
)
def test_sizes_are_checked(choice: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        FigureSize(**choice)  # type: ignore[arg-type]
