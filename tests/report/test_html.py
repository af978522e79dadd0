"""The HTML report: self-contained, deterministic, bounded in size, with unfinished jobs and their reasons."""

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.report.html import render, write
from tests.report.synthetic import SyntheticResult, make_result


def _page(*results: SyntheticResult) -> str:
    return render(results, title="a trace on a cluster", parameters={"trace": "a trace", "costs": {"restart_s": 10.0}})


def _figures(page: str) -> dict[str, Any]:
    found = re.search(r'id="figures">(.*?)</script>', page, re.DOTALL)
    assert found
    parsed: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(found[1])))
    return parsed


def _own_parts(page: str) -> str:
    """The page without uPlot, whose licence line has an address that it does not request."""
    return re.sub(r"<script>/\*!.*?</script>", "", page, count=1, flags=re.DOTALL)


def test_page_names_each_run_and_parameter() -> None:
    page = _page(make_result("fifo@blind"), make_result("fifo"), make_result("min_makespan"))

    assert all(f'data-run="{label}"' in page for label in ("fifo@blind", "fifo", "min_makespan"))
    assert "restart_s: 10" in page


def test_page_needs_no_network() -> None:
    page = _page(make_result("fifo"))

    assert not re.search(r"<(script|img|iframe|link)[^>]*\b(src|href)\s*=", _own_parts(page))
    assert not re.search(r"https?://|@import|url\(", _own_parts(page))


def test_page_holds_one_drawing_library_and_all_figures() -> None:
    page = _page(make_result("fifo"))

    assert page.count("uPlot (v1.6.32)") == 1
    by_type = {f"{name}_{t}" for name in ("utilization", "marginal_value") for t in ("v100", "p100", "k80")}
    assert set(_figures(page)) == {"completion", "fairness", "queue", "timeline", "shares"} | by_type
    assert all(f'<div class="plot" id="{name}">' in page for name in _figures(page))


def test_page_of_six_runs_is_small() -> None:
    labels = [f"{name}{view}" for name in ("fifo", "max_min_fairness", "min_makespan") for view in ("", "@blind")]

    page = _page(*(make_result(label, jobs=360, stays=40) for label in labels))

    assert len(page.encode()) < 600_000


def test_same_results_give_the_same_bytes() -> None:
    assert _page(make_result("fifo", seed=4)) == _page(make_result("fifo", seed=4))


def test_page_of_a_run_in_which_nothing_finished_opens_and_shows_the_reason() -> None:
    stuck = make_result("fifo", jobs=3, unfinished=3, reason="no GPU type has <64> GPUs")

    page = _page(stuck)

    assert "Jobs that never finished" in page
    assert "no GPU type has &lt;64&gt; GPUs" in page
    assert set(_figures(page)) >= {"completion", "timeline"}


def test_page_of_a_run_without_any_job_opens() -> None:
    page = _page(make_result("fifo", jobs=0, avg_jct_s=float("nan")))

    assert "No measured job finished under fifo" in page


def test_page_shows_unfinished_jobs_next_to_finished_ones() -> None:
    page = _page(make_result("fifo", jobs=10, unfinished=2))

    assert "<td>job-8</td>" in page
    assert "<td>job-7</td>" not in page


def test_job_names_cannot_end_the_script_that_holds_them() -> None:
    result = make_result("fifo")
    evil = "</script><b>"
    result.jobs.index = result.jobs.index.where(result.jobs.index != "job-0", evil)
    result.leases["job"] = result.leases["job"].replace("job-0", evil)

    page = _page(result)

    assert evil not in page
    assert evil in json.dumps(_figures(page)["timeline"])


def test_page_is_bounded_for_a_big_trace() -> None:
    library = len(_page(make_result("fifo", jobs=1)))

    page = _page(make_result("fifo", jobs=5000, stays=8))

    assert len(page) - library < 150_000


def test_page_is_written_into_a_new_directory(tmp_path: Path) -> None:
    target = tmp_path / "new" / "report.html"

    write(target, [make_result("fifo")], title="t", parameters={})

    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_unwritable_path_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")

    with pytest.raises(InvalidInput, match="--report cannot be written"):
        write(tmp_path / "file" / "report.html", [make_result("fifo")], title="t", parameters={})
