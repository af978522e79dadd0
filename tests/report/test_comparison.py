"""The comparison of runs: units, changes against the first run, best values, optional columns."""

import math

import pytest

from gavelpy.report.comparison import COLUMNS, best_of, cells, change, comparison_columns, duration, signed_percent
from tests.report.synthetic import make_result

AVERAGE = next(column for column in COLUMNS if column.field == "avg_jct_s")
UTILIZATION = next(column for column in COLUMNS if column.field == "utilization")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(50_040.0, "13.9 h"), (2520.0, "42.0 min"), (17.0, "17.0 s"), (0.0, "0.0 s"), (math.nan, "– s")],
)
def test_duration_has_a_readable_unit(seconds: float, text: str) -> None:
    found = duration(seconds)

    assert found == text


@pytest.mark.parametrize(
    ("value", "reference", "text"),
    [(69.0, 100.0, "−31.0 %"), (150.0, 100.0, "+50.0 %"), (math.nan, 100.0, "–"), (5.0, 0.0, "–")],
)
def test_change_is_in_percent_of_the_reference(value: float, reference: float, text: str) -> None:
    found = signed_percent(value, reference)

    assert found == text


def test_all_runs_of_a_column_share_one_unit() -> None:
    quick, slow = make_result("a", avg_jct_s=600.0), make_result("b", avg_jct_s=36_000.0)

    column = cells(AVERAGE, [quick, slow])

    assert (column.unit, column.texts) == ("h", ("0.2", "10.0"))


def test_lower_is_better_for_times_and_higher_for_utilization() -> None:
    runs = [make_result("a", avg_jct_s=100.0, utilization=0.5), make_result("b", avg_jct_s=200.0, utilization=0.9)]

    assert best_of(AVERAGE, runs) == (True, False)
    assert best_of(UTILIZATION, runs) == (False, True)


def test_no_run_is_best_if_all_are_equal() -> None:
    runs = [make_result("a", avg_jct_s=100.0), make_result("b", avg_jct_s=100.0)]

    assert best_of(AVERAGE, runs) == (False, False)


def test_a_run_that_leaves_jobs_unfinished_is_never_best() -> None:
    quitter = make_result("a", avg_jct_s=1.0, unfinished=3)
    finisher = make_result("b", avg_jct_s=500.0)

    assert best_of(AVERAGE, [quitter, finisher]) == (False, True)


def test_nan_is_never_best() -> None:
    runs = [make_result("a", avg_jct_s=math.nan), make_result("b", avg_jct_s=5.0), make_result("c", avg_jct_s=9.0)]

    assert best_of(AVERAGE, runs) == (False, True, False)


def test_change_is_relative_to_the_first_run() -> None:
    runs = [make_result("fifo@blind", avg_jct_s=100.0), make_result("fifo", avg_jct_s=69.0)]

    column = change(runs)

    assert (column.title, column.texts) == ("vs fifo@blind", ("—", "−31.0 %"))


def test_a_single_run_has_no_comparison_column() -> None:
    titles = [column.title for _, column in comparison_columns([make_result("fifo")])]

    assert "avg JCT" in titles
    assert not [title for title in titles if title.startswith("vs ")]


def test_unfinished_jobs_have_a_column_only_if_there_are_any() -> None:
    clean = [column.title for _, column in comparison_columns([make_result("fifo")])]
    stuck = [column.title for _, column in comparison_columns([make_result("fifo", unfinished=1)])]

    assert set(stuck) - set(clean) == {"unfinished"}


def test_probes_have_columns_only_if_there_were_any() -> None:
    plain, probed = make_result("fifo"), make_result("las", probes_pairs=12, probes_gpu_s=7200.0)

    titles = [[cells.title for _, cells in comparison_columns(runs)] for runs in ([plain], [plain, probed])]

    assert not {"probes", "of pairs", "probed"} & set(titles[0])
    assert {"of pairs", "probed"} <= set(titles[1])
    assert "probes" not in titles[1]
