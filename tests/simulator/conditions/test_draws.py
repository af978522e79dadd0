"""Random numbers by cause and subject, and distributions of durations."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.simulator.conditions.draws import DrawnDurations, Duration, normal, uniform

ROWS = np.arange(20_000)


def test_numbers_are_uniform_and_independent_of_each_other() -> None:
    first, second = uniform(1, "a", ROWS, 0), uniform(1, "a", ROWS, 1)

    assert np.histogram(first, 10, (0, 1))[0] == pytest.approx(2000, abs=200)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.03


def test_a_number_depends_on_seed_cause_subject_and_count_only() -> None:
    alone = uniform(1, "a", np.array([7]), 3).item()

    assert uniform(1, "a", ROWS, 3)[7] == alone
    assert len({alone, uniform(2, "a", ROWS, 3)[7], uniform(1, "b", ROWS, 3)[7], uniform(1, "a", ROWS, 4)[7]}) == 4


def test_a_few_numbers_at_once_are_those_of_many() -> None:
    counts = ROWS % 7
    many, few = uniform(3, "a", ROWS + 2**40, counts), np.arange(0, 40, 5)

    assert [uniform(3, "a", ROWS[k : k + 5] + 2**40, counts[k : k + 5]).tolist() for k in few] == [
        many[k : k + 5].tolist() for k in few
    ]


def test_normal_numbers_have_their_moments() -> None:
    found = normal(5, "noise", ROWS)

    assert (found.mean(), found.std()) == (pytest.approx(0.0, abs=0.02), pytest.approx(1.0, abs=0.02))


def test_a_duration_has_the_mean_that_it_states() -> None:
    kinds = (Duration(fixed_s=3.0, median_s=10.0, sigma=0.5), Duration(low_s=2.0, high_s=6.0, gib=8.0, gib_per_s=4.0))
    drawn = DrawnDurations(1, "start", kinds, ROWS % 2)

    found = drawn.draw(ROWS, 0)

    assert found[::2].mean() == pytest.approx(kinds[0].mean_s, rel=0.02)
    assert found[1::2].mean() == pytest.approx(kinds[1].mean_s, rel=0.02)
    assert (found[1::2].min(), found[1::2].max()) == (pytest.approx(4.0, abs=0.01), pytest.approx(8.0, abs=0.01))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"fixed_s": -1.0}, "fixed_s must be in"),
        ({"fixed_s": float("nan")}, "fixed_s must be in"),
        ({"gib": 3.0}, "gib_per_s must be > 0"),
        ({"low_s": 3.0, "high_s": 2.0}, "high_s must be >= low_s"),
        ({"median_s": 3.0, "sigma": 9.0}, "sigma must be in"),
    ],
)
def test_impossible_durations_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Duration(**values)
