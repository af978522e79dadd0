"""The comparison of runs as a table on a terminal."""

import io
import re

import pytest
from rich.console import Console

from gavelpy.report.comparison import comparison
from tests.report.synthetic import SyntheticResult, make_result


def _printed(results: list[SyntheticResult], width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(comparison(results, width=width))
    return out.getvalue()


PAIR = [make_result("max_min_fairness@blind", avg_jct_s=72_000.0), make_result("max_min_fairness", avg_jct_s=36_000.0)]


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
def test_table_keeps_labels_and_average_whole_at_any_width(width: int) -> None:
    text = _printed(PAIR, width)

    assert "max_min_fairness@blind" in text
    assert "20.0" in text
    assert "−50.0 %" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width


def test_wide_table_shows_every_figure() -> None:
    text = _printed(PAIR, 250)

    assert all(title in text for title in ("p50 JCT", "p99 JCT", "makespan", "worst FTF", "migr.", "solves"))


def test_best_value_is_highlighted_on_a_terminal() -> None:
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=True, color_system="standard")

    console.print(comparison(PAIR, width=200))

    assert re.search(r"\x1b\[1;32m *10\.0\x1b\[0m", out.getvalue())
