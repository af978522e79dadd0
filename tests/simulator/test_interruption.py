"""A simulation that is stopped has partial results, marked as such."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gavelpy.model.cluster import Cluster
from gavelpy.report.comparison import title_of
from gavelpy.report.summary import sentences
from gavelpy.simulator.compare import PolicyRun, compare
from gavelpy.simulator.simulate import INTERRUPTED
from tests.simulator.builders import make_job, make_settings, make_trace, run

TRACE = make_trace(*(make_job(name) for name in "abc"))
RUNS = [PolicyRun("fifo"), PolicyRun("max_min_fairness"), PolicyRun("shortest_job_first")]
CLUSTER = Cluster.parse("v100:1")


def after(checks: int) -> Callable[[], bool]:
    """Whether it was called more often than that."""
    left = iter(range(checks))
    return lambda: next(left, None) is None


def test_a_stopped_run_has_the_figures_of_the_time_until_then() -> None:
    seen: list[Any] = []

    def has_two_jobs_done() -> bool:
        return bool(seen) and seen[-1][1] == 2

    def show(*now: Any) -> None:
        seen.append(now)

    result = run(TRACE, settings=make_settings(), stop=has_two_jobs_done, progress=show)

    assert result.partial.startswith("interrupted at ")
    assert result.partial.endswith(" s of virtual time with 2 of 3 jobs done")
    assert (result.metrics.jobs_measured, result.metrics.jobs_unfinished) == (2, 1)
    assert set(result.jobs["reason"]) == {INTERRUPTED}
    assert seen[0][:3] == (result.label, 0, 3)
    assert [now_s for *_, now_s in seen] == sorted(now_s for *_, now_s in seen)


def test_of_several_runs_those_before_are_whole_and_those_after_are_missing() -> None:
    whole = compare(TRACE, CLUSTER, RUNS[:1], settings=make_settings())
    checks = 0

    def counted() -> bool:
        nonlocal checks
        checks += 1
        return False

    compare(TRACE, CLUSTER, RUNS[:1], settings=make_settings(), stop=counted)
    results = compare(TRACE, CLUSTER, RUNS, settings=make_settings(), stop=after(checks + 3), fairness=True)

    assert list(results) == ["fifo", "max_min_fairness"]
    assert results["fifo"].partial == ""
    assert results["fifo"].jobs["finish_s"].tolist() == whole["fifo"].jobs["finish_s"].tolist()
    assert title_of(results["max_min_fairness"]) == "max_min_fairness (partial)"
    assert sentences(list(results.values()))[-1].startswith("max_min_fairness is partial: interrupted at ")


def test_a_run_that_is_stopped_at_once_has_no_jobs() -> None:
    results = compare(TRACE, CLUSTER, RUNS, settings=make_settings(), stop=after(0))

    assert list(results) == ["fifo"]
    assert results["fifo"].metrics.jobs_measured == 0
    assert sentences(list(results.values())) == [
        "fifo is partial: interrupted at 0 s of virtual time with 0 of 3 jobs done; its figures are of that time."
    ]
