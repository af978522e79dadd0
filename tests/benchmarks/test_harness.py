"""The harness of the benchmarks: timing, forecasts, rows of measurements, and the command."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import allocation, certainty
from benchmarks.memory import peak_of
from benchmarks.problems import Case
from benchmarks.record import Measurement, read, recording
from benchmarks.timing import RUNS, Patience, peak_memory_mb, timed

CASE = Case("max_min_fairness", "distinct", 3, 32, 0.1, 0)


def test_the_first_run_is_not_counted() -> None:
    calls: list[int] = []

    found = timed(lambda: calls.append(1), budget_s=60.0)

    assert (len(calls), found.runs) == (RUNS + 1, RUNS)


def test_a_single_run_counts_where_there_is_no_time_for_another() -> None:
    found = timed(lambda: sum(range(1000)), budget_s=0.0)

    assert (found.runs, found.answer) == (1, 499_500)
    assert found.median_s > 0


def test_what_is_prepared_is_prepared_before_each_run() -> None:
    order: list[str] = []

    timed(lambda: order.append("run"), prepare=lambda: order.append("prepare"), budget_s=0.0)

    assert order == ["prepare", "run"]


def test_nobody_is_over_before_anything_is_known() -> None:
    assert not Patience(1.0).is_over(10**9)


def test_whoever_has_passed_the_limit_is_over() -> None:
    patience = Patience(1.0)
    patience.add(100, 1.5)

    assert patience.is_over(101)


def test_a_power_law_through_the_last_two_sizes_says_who_will_be_over() -> None:
    patience = Patience(1.0)
    patience.add(100, 0.01)
    patience.add(200, 0.04)

    assert patience.forecast_s(400) == pytest.approx(0.16)
    assert not patience.is_over(1600)
    assert patience.is_over(2000)


def test_a_contender_that_got_quicker_is_expected_to_grow_all_the_same() -> None:
    patience = Patience(1.0)
    patience.add(100, 0.2)
    patience.add(200, 0.1)

    assert patience.forecast_s(400) == pytest.approx(0.2)


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    ours = Measurement(CASE, "ours", 0.5, 3, gap=1e-12, violation=0.0, path="highs", memory_mb=70.5)
    failed = Measurement(CASE, "ecos", note="it said: no, thanks")
    with recording(tmp_path / "new" / "rows.csv") as record:
        record.add(ours)
        record.add(failed)

    found = read(tmp_path / "new" / "rows.csv")

    assert (found[0].case, found[0].median_s, found[0].runs, found[0].memory_mb) == (CASE, 0.5, 3, 70.5)
    assert math.isnan(found[0].solver_s)
    assert (found[1].note, math.isnan(found[1].median_s)) == ("it said: no, thanks", True)


def test_a_row_is_on_the_disk_before_the_next_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"

    with recording(path) as record:
        record.add(Measurement(CASE, "ours", 0.5, 3))

        assert len(read(path)) == 1


def test_memory_of_this_process_is_more_than_numpy_needs() -> None:
    assert 10 < peak_memory_mb() < 100_000


def test_memory_of_a_case_is_that_of_a_process_of_its_own() -> None:
    before_mb, peak_mb = peak_of(replace(CASE, jobs=8))

    assert 10 < before_mb <= peak_mb < 1000


def test_allocation_prints_a_line_a_contender_and_keeps_rows_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # no browser, so no picture
    out = tmp_path / "rows.csv"

    allocation.run(
        f"--policies max_min_fairness,fifo --jobs 8,4 --peers ecos,highs --warm --limit-s 60 --out {out}".split()
    )

    rows = [(m.case.policy, m.case.jobs, m.contender, m.case.mode) for m in read(out)]
    contenders = [("ours", "cold"), ("ecos", "cold"), ("highs", "cold"), ("ours", "warm"), ("highs", "warm")]
    fair = [("max_min_fairness", jobs, *contender) for jobs in (4, 8) for contender in contenders]
    assert rows == fair + [("fifo", jobs, "ours", mode) for jobs in (4, 8) for mode in ("cold", "warm")]
    assert all(m.note == "" for m in read(out))
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(rows)
    assert out.with_suffix(".html").exists()


@pytest.mark.parametrize("option", ["--policies nonsense", "--peers gurobi", "--mix some"])
def test_an_unknown_name_is_refused_with_those_that_are_known(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        allocation.run(option.split())

    assert "max_min_fairness" in (told := capsys.readouterr().err) or "ecos" in told or "gavel" in told


def test_certainty_counts_problems_by_rung_and_by_reason(capsys: pytest.CaptureFixture[str]) -> None:
    certainty.run(["--problems", "12"])

    printed = capsys.readouterr().out
    assert "12 problems from number 0" in printed
    assert "not right: 0" in printed
