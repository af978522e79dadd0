"""The table of ratios by load: what it measures, its record, and when the guard fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import by_load
from benchmarks.by_load import KEPT, LIVE, Place, Ratio

PLACE = Place("max_min_fairness", 32, 0.1)
PACKED = "max_min_fairness+pairs"


def test_ratio_below_two_thirds_of_the_recorded_one_has_fallen() -> None:
    assert by_load.has_fallen(1.99, 3.0)
    assert not by_load.has_fallen(2.01, 3.0)


def test_place_without_a_record_has_not_fallen() -> None:
    assert not by_load.has_fallen(0.01, None)


def test_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    by_load.write(tmp_path / "ratios.csv", {PLACE: 12.5})

    assert by_load.recorded(tmp_path / "ratios.csv") == {PLACE: 12.5}


def test_every_place_is_recorded() -> None:
    assert set(by_load.recorded(by_load.RECORDED)) == set(by_load.places(8192))


def test_guard_measures_no_large_problems() -> None:
    assert max(place.jobs for place in by_load.places(by_load.GUARD_JOBS_MAX)) == 2048


@pytest.mark.parametrize("name", ["min_cost", "nash_welfare"])
def test_a_kept_solver_is_measured_against_a_new_one(name: str) -> None:
    found = by_load.measured(Place(KEPT + name, 40, 0.33))

    assert found.peer == "new"
    assert min(found.ours_s, found.theirs_s) > 0


@pytest.mark.parametrize("place", [PLACE, Place("min_cost", 32, 0.6), Place(PACKED, 16, 0.6), Place(LIVE, 32, 0.33)])
def test_both_sides_are_measured(place: Place) -> None:
    found = by_load.measured(place)

    assert found.ours_s > 0
    assert found.theirs_s > 0
    assert found.peer in ("highs", "ecos", "clarabel")


def test_guard_measures_twice_and_then_fails_with_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Place] = []

    def slow(place: Place) -> Ratio:
        measured.append(place)
        return Ratio(1.0, 1e-9 if place == PLACE else 1e9, "highs")

    monkeypatch.setattr(by_load, "measured", slow)

    with pytest.raises(SystemExit, match=r"max_min_fairness, 32 jobs, load 0\.1"):
        by_load.run(["--guard"])
    assert measured.count(PLACE) == 2


def test_guard_passes_where_a_second_measurement_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    again = iter([1e-9])
    monkeypatch.setattr(by_load, "measured", lambda _: Ratio(1.0, next(again, 1e9), "highs"))

    by_load.run(["--guard"])
