"""The page of estimated against true rates: correct numbers, self-contained, names escaped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.report.html import Panel, estimates_figure, render_estimates, write_estimates

PANEL = Panel(
    "alone <b>",
    np.array([1.0, 2.0, 4.0]),
    np.array([1.1, 2.0, 8.0]),
    np.array([True, True, False]),
    ("ant", "ant", "<script>bee"),
)
EMPTY = Panel("none", np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.bool_), ())


def test_page_has_errors_and_coverage() -> None:
    assert (
        "3 entries held out: median error 10.0 %, 90 % of errors below 82.0 %; 67 % of true rates"
        in render_estimates([PANEL])
    )


def test_the_page_needs_no_network_and_escapes_names() -> None:
    page = render_estimates([PANEL])

    assert "<script src" not in page
    assert "alone &lt;b&gt;" in page
    assert "<script>bee" not in page


def test_axes_name_their_unit() -> None:
    found = estimates_figure(PANEL, "panel0")

    assert (found.x.title, found.y.title) == ("true, steps/s", "estimated, steps/s")


def test_points_outside_their_interval_are_hollow() -> None:
    drawn = {marks.group: marks.is_hollow for marks in estimates_figure(PANEL, "panel0").marks[""] if len(marks.x)}

    assert drawn == {"ant": False, "<script>bee, outside its interval": True}


def test_panel_without_entries_has_a_sentence() -> None:
    assert "No held-out entry" in render_estimates([EMPTY])


def test_same_panels_same_bytes() -> None:
    assert render_estimates([PANEL]) == render_estimates([PANEL])


def test_unwritable_path_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(InvalidInput, match="--report cannot be written"):
        write_estimates(tmp_path / "file" / "page.html", [PANEL])
