"""`--figures DIR`: the files, and that the CSVs hold what the figures show."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.report.export import write_figures
from tests.report.synthetic import make_result


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The files of one run."""
    return list(write_figures(tmp_path_factory.mktemp("figures") / "new", [make_result("fifo:by=total", jobs=4)]))


def test_each_figure_is_svg_pdf_and_csv(written: list[Path]) -> None:
    names = {path.name for path in written}
    assert {"comparison.csv", "jobs_fifo-by=total.csv", "timeline.csv", "timeline_fifo-by=total.svg"} <= names
    assert {path.stem for path in written if path.suffix == ".svg"} == {p.stem for p in written if p.suffix == ".pdf"}
    assert all(path.stat().st_size > 0 for path in written)
    curves = ("completion", "fairness", "queue", "utilization_v100", "marginal_value_k80")
    assert {f"{name}.{kind}" for name in curves for kind in ("svg", "pdf", "csv")} <= names


def test_csv_of_a_run_has_every_job(written: list[Path]) -> None:
    result, directory = make_result("fifo:by=total", jobs=4), written[0].parent

    jobs = pd.read_csv(directory / "jobs_fifo-by=total.csv", index_col="job")
    assert jobs["jct_s"].tolist() == pytest.approx(result.jobs["jct_s"].tolist())
    comparison = pd.read_csv(directory / "comparison.csv", index_col="run")
    assert comparison.loc["fifo:by=total", "avg_jct_s"] == pytest.approx(result.metrics.avg_jct_s)


@pytest.mark.slow
def test_equal_results_give_equal_files(written: list[Path], tmp_path: Path) -> None:
    again = write_figures(tmp_path, [make_result("fifo:by=total", jobs=4)])

    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written]


def test_run_without_jobs_has_figures(tmp_path: Path) -> None:
    assert write_figures(tmp_path, [make_result("fifo", jobs=0, avg_jct_s=float("nan"))])


def test_unwritable_directory_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(InvalidInput, match="--figures cannot be written"):
        write_figures(tmp_path / "file" / "figures", [make_result("fifo", jobs=1)])
