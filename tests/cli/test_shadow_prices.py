"""`gavel shadow-prices`: periods, tables and refusals."""

from __future__ import annotations

from datetime import datetime

import pytest

from gavelpy.cli.shadow_prices import Period, csv_rows, price_table, summed
from gavelpy.runtime.wire.client_pb2 import ShadowPriceRow
from tests.cli.commands import Gavel

DAY = datetime(2026, 11, 2).timestamp()


def row(
    hour: int, *, mean: float, known_s: float = 3_600.0, highest: float = 0.0, gpu_type: str = "v100"
) -> ShadowPriceRow:
    """An hour of a price."""
    return ShadowPriceRow(
        start_s=DAY + 3_600 * hour, length_s=3_600, policy="max_min_fairness", gpu_type=gpu_type, resource="gpu",
        known_s=known_s, mean=mean, highest=max(highest, mean),
    )  # fmt: skip


def test_the_mean_is_over_the_time_in_which_the_price_is_known() -> None:
    (found,) = summed([row(0, mean=1.0, known_s=900.0), row(5, mean=0.2, known_s=2_700.0)], Period.ALL)

    assert (found.mean, found.highest, found.known_s) == (pytest.approx(0.4), 1.0, 3_600.0)
    assert (found.start_s, found.end_s) == (DAY, DAY + 6 * 3_600)


def test_days_are_those_of_local_time() -> None:
    found = summed([row(0, mean=1.0), row(23, mean=3.0), row(24, mean=5.0)], Period.DAY)

    assert [one.mean for one in found] == [2.0, 5.0]


def test_hours_have_a_row_for_each_type() -> None:
    rows = summed([row(0, mean=1.0), row(0, mean=2.0, gpu_type="k80"), row(1, mean=3.0)], Period.HOUR)

    assert [cells[1:6] for cells in price_table(rows, Period.HOUR).rows] == [
        ("k80", "gpu", "max_min_fairness", "2", "2"),
        ("v100", "gpu", "max_min_fairness", "1", "1"),
        ("v100", "gpu", "max_min_fairness", "3", "3"),
    ]


def test_csv_has_numbers_as_they_are() -> None:
    lines = list(csv_rows(summed([row(0, mean=1 / 3)], Period.ALL)))

    assert lines[1] == [DAY, DAY + 3_600, "max_min_fairness", "v100", "gpu", 3_600.0, pytest.approx(1 / 3), 1 / 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--csv", "-o", "json"], "two formats"),
        (["--every", "week"], "'hour', 'day', 'all'"),
        (["--since", "1d", "--until", "2d"], "--until must be later than --since"),
        (["--since", "soon"], "a duration like 30m"),
    ],
)
def test_what_means_nothing_is_refused(gavel: Gavel, options: list[str], message: str) -> None:
    answer = gavel("shadow-prices", *options)

    assert answer.code == 2
    assert message in answer.err
