"""Files for papers and spreadsheets, `--figures DIR`: each figure as SVG, PDF and CSV, each table as CSV."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gavelpy.errors import InvalidInput
from gavelpy.report import plots, timeline
from gavelpy.report.comparison import COLUMNS, Result
from gavelpy.report.plots import Axis, Figure, PlotMarks, Scale

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_INCHES = 100.0  # pixels of the page per inch
_WIDTH = 7.0  # inches: a page of two columns
_STYLE: dict[Any, Any] = {  # matplotlib types each key
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "gavelpy",
}


def write_figures(directory: Path, results: Sequence[Result]) -> list[Path]:
    """Writes all files and returns their paths. Raises InvalidInput if the directory cannot be written."""
    tables = {"comparison": comparison_table(results)}
    tables |= {f"jobs_{_stem(result.label)}": result.jobs for result in results}
    drawings: dict[str, tuple[float, Callable[[Axes], None]]] = {}
    for figure in plots.comparisons(results):
        tables[figure.name] = figure.table()
        drawings[figure.name] = (figure.height / _INCHES, partial(_draw_curves, figure))
    for figure in timeline.of_each_run(results):
        tables[figure.name] = figure.table()
        for run in figure.marks:
            drawings[f"{figure.name}_{_stem(run)}"] = (
                figure.height / _INCHES,
                partial(_draw_marks, figure, run),
            )
    for run, family in timeline.families(results).items():
        tables[f"families_{_stem(run)}"] = family
        if family.empty:
            continue
        drawings[f"families_{_stem(run)}"] = (
            1.2 + 0.3 * len(family),
            partial(_draw_families, family),
        )
    for bars in plots.key_metrics(results):
        name = f"key_metric_{_stem(bars.title.partition(' [')[0])}"
        drawings[name] = (0.8 + 0.3 * len(results), partial(_draw_bars, bars))
    return _write(directory, tables, drawings)


def write_curves(directory: Path, figures: Sequence[Figure]) -> list[Path]:
    """Writes figures of curves, or of marks of one run, as SVG, PDF and CSV; returns the paths. Raises as above."""
    drawings = {
        figure.name: (
            figure.height / _INCHES,
            partial(_draw_curves, figure) if figure.curves else partial(_draw_marks, figure, ""),
        )
        for figure in figures
    }
    return _write(directory, {figure.name: figure.table() for figure in figures}, drawings)


def _write(
    directory: Path, tables: dict[str, pd.DataFrame], drawings: Mapping[str, tuple[float, Callable[[Axes], None]]]
) -> list[Path]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return [*_write_tables(directory, tables), *_write_drawings(directory, drawings)]
    except OSError as error:
        raise InvalidInput(f"--figures cannot be written ({error.strerror})", file=str(directory)) from error


def comparison_table(results: Sequence[Result]) -> pd.DataFrame:
    """All metrics of all runs, in base units."""
    import pandas as pd

    rows = {result.label: {c.field: getattr(result.metrics, c.field) for c in COLUMNS} for result in results}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("run")


def _write_tables(directory: Path, tables: dict[str, pd.DataFrame]) -> list[Path]:
    paths = []
    for name, table in tables.items():
        path = directory / f"{name}.csv"
        table.to_csv(path, index=table.index.name is not None, lineterminator="\n", float_format="%.10g")
        paths.append(path)
    return paths


def _write_drawings(directory: Path, drawings: Mapping[str, tuple[float, Callable[[Axes], None]]]) -> list[Path]:
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    paths = []
    with mpl.rc_context(_STYLE):
        for name, (height, draw) in drawings.items():
            canvas = Canvas(figsize=(_WIDTH, max(height, 1.5)), layout="constrained")
            draw(canvas.subplots())
            for suffix, date in (("svg", "Date"), ("pdf", "CreationDate")):
                path = directory / f"{name}.{suffix}"
                canvas.savefig(path, metadata={date: None})  # equal results give equal bytes
                paths.append(path)
    return paths


def _draw_curves(figure: Figure, axes: Axes) -> None:
    for curve in figure.curves:
        faint: dict[str, Any] = {"linestyle": "--", "alpha": 0.65} if curve.is_faint else {}
        axes.plot(curve.x, curve.y, color=curve.colour, label=curve.label, linewidth=1.4, **faint)
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.x, curve.low, curve.high, color=curve.colour, alpha=0.15, linewidth=0)
    _label(axes, figure.x, figure.y)
    if figure.curves:
        axes.legend(frameon=False, fontsize=8)


def _draw_marks(figure: Figure, run: str, axes: Axes) -> None:
    for marks in figure.marks[run]:
        _draw_group(axes, marks)
    x, y = figure.x_ranges.get(run), figure.y_ranges.get(run)
    _label(axes, figure.x, figure.y, x, y)
    if figure.has_diagonal:
        axes.axline((0, 0), slope=1, color="#808080", linewidth=0.8, linestyle=":")
    if any(len(marks.x) for marks in figure.marks[run]):
        axes.legend(frameon=False, fontsize=8, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))


def _draw_group(axes: Axes, marks: PlotMarks) -> None:
    if not len(marks.x):
        return
    if marks.end is None:
        colours: dict[str, Any] = {
            "facecolors": "none" if marks.is_hollow else marks.colour,
            "edgecolors": marks.colour,
        }
        axes.scatter(marks.x, marks.y, s=12, alpha=0.65, linewidths=0.6, label=marks.group, **colours)
        for text, x, y in zip(marks.text if marks.is_named else (), marks.x, marks.y, strict=False):
            axes.annotate(text, (x, y), xytext=(4, 0), textcoords="offset points", fontsize=7, va="center")
    else:
        axes.hlines(marks.y, marks.x, marks.end, color=marks.colour, linewidth=marks.width / 3, label=marks.group)


def _draw_families(family: pd.DataFrame, axes: Axes) -> None:
    axes.imshow(family.to_numpy(), cmap="Blues", vmin=0, vmax=1.6, aspect="auto")
    axes.set_xticks(range(len(family.columns)), [str(name) for name in family.columns])
    axes.set_yticks(range(len(family)), [str(name) for name in family.index])
    for row, values in enumerate(family.to_numpy()):
        for column, value in enumerate(values):
            axes.text(column, row, f"{100 * value:.0f} %", ha="center", va="center")


def _draw_bars(bars: plots.Bars, axes: Axes) -> None:
    rows = range(len(bars.labels))
    drawn = axes.barh(rows, bars.length, color=bars.colours)
    for bar, is_faint in zip(drawn, bars.is_faint, strict=True):
        bar.set_alpha(0.5 if is_faint else 1.0)
    axes.bar_label(drawn, bars.texts, padding=3)
    axes.set_yticks(rows, bars.labels)
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.set_title(bars.title, loc="left")


def _label(
    axes: Axes,
    x: Axis,
    y: Axis,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set_xlabel(x.title)
    axes.set_ylabel(y.title)
    if x.scale is Scale.LOG:
        axes.set_xscale("log")
    if y.scale is Scale.LOG:
        axes.set_yscale("log")
    if y.scale is Scale.PERCENT:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    for limits, chosen in ((axes.set_xlim, x_range or x.range), (axes.set_ylim, y_range or y.range)):
        if chosen is not None:
            limits(*chosen)
    if y.is_reversed:
        axes.invert_yaxis()


def _stem(text: str) -> str:
    """A part of a file name."""
    return re.sub(r"[^\w.@=-]+", "-", text)
