"""Metrics: bounded labels, lag, preemptions by reason, lost steps, and text that Prometheus can read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gavelpy.mechanism.commands import Command, RoundPlan
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AllocationFailed,
    AllocationSolved,
    Event,
    JobCancelled,
    JobSubmitted,
    LeaseEnded,
    NodeDraining,
    NodeJoined,
    NodeLost,
)
from gavelpy.mechanism.priority_classes import PriorityClass
from gavelpy.mechanism.view import account, lag_s
from gavelpy.model.job import JobId, JobSpec, NodeId
from gavelpy.runtime.daemon.leases.lease import Phase
from gavelpy.runtime.daemon.metrics import SchedulerMetrics
from gavelpy.runtime.daemon.state_metrics import NODES_MAX, USERS_MAX, MetricFamily, ScrapeReading, StateMetrics
from tests.runtime.daemon.table_builders import Bench, part


class Counted(Bench):
    """A bench that counts plans and ends as the scheduler does."""

    def __init__(self, *nodes: tuple[str, int], **settings: Any) -> None:
        self.metrics = SchedulerMetrics()
        super().__init__(*nodes, **settings)

    def tell(self, event: Event) -> None:
        if not isinstance(event, LeaseEnded):
            super().tell(event)
            return
        leases = [self.table.leases.get(lease) for lease in event.leases.tolist()]
        super().tell(event)
        self.metrics.leases_ended(event, self.core, leases)

    def _execute(self, command: Command) -> None:
        if isinstance(command, RoundPlan):
            self.metrics.planned(command, self.core)
        super()._execute(command)

    def sample(self, name: str, **labels: str) -> float:
        """One sample of the scrape."""
        return samples_of(self.metrics, self.core)[name, tuple(labels.values())]

    def preemptions(self) -> dict[str, float]:
        """Counts that are not zero."""
        found = samples_of(self.metrics, self.core)
        return {labels[0]: n for (name, labels), n in found.items() if name == "gavel_preemptions_total" and n}


def reading_of(core: SchedulerCore, **values: Any) -> ScrapeReading:
    given = {"now_s": core.now_s, "leases": 0, "engine_restarts": 0, "incarnation": 1, "is_ready": True,
             "started_at_s": 0.0, "report_age_s": 0.0}  # fmt: skip
    return ScrapeReading(core, **{**given, **values})


def samples_of(metrics: SchedulerMetrics, core: SchedulerCore) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample by its name and its labels' values, as Prometheus' own parser reads them."""
    families = list(text_string_to_metric_families(metrics.read(reading_of(core)).decode()))
    found = {(s.name, tuple(s.labels.values())): s.value for family in families for s in family.samples}
    assert len(found) == sum(len(family.samples) for family in families), "a series is exported twice"
    return found


def family(core: SchedulerCore, name: str) -> dict[str, float]:
    """The values of one gauge by label."""
    (found,) = [each for each in StateMetrics().families(reading_of(core)) if each.name == f"gavel_{name}"]
    return dict(zip(found.label_values, found.values, strict=True))


def core_of_users(*owners: str, nodes: int = 0) -> SchedulerCore:
    core = SchedulerCore()
    for row in range(nodes):
        core.handle(NodeJoined(NodeId(f"n{row}"), "v100", 1), 0.0)
    for row, owner in enumerate(owners):
        spec = JobSpec(JobId(f"j{row}"), 1e6, rates_steps_per_s={"v100": 1.0}, owner=owner)
        core.handle(JobSubmitted(spec), 0.0)
    return core


def test_users_beyond_the_largest_are_summed_as_other() -> None:
    owners = [f"user-{row}" for row in range(USERS_MAX + 15) for _ in range(row + 1)]

    waiting = family(core_of_users(*owners), "user_waiting_jobs")

    assert len(waiting) == USERS_MAX + 1
    assert waiting["user-34"] == 35
    assert waiting["other"] == sum(range(1, 16))
    assert sum(waiting.values()) == len(owners)


def test_a_user_named_other_is_counted_with_the_rest() -> None:
    core = core_of_users("other", "other", "alice")

    assert family(core, "user_waiting_jobs") == {"alice": 1, "other": 2}
    assert samples_of(SchedulerMetrics(), core)["gavel_user_waiting_jobs", ("other",)] == 2


def test_a_user_without_jobs_has_no_label_any_more() -> None:
    core = core_of_users("alice", "bob")

    core.handle(JobCancelled(0), 1.0)

    assert family(core, "user_waiting_jobs") == {"bob": 1, "other": 0}


def test_jobs_that_arrive_after_a_scrape_count_at_the_next() -> None:
    core, metrics = core_of_users("alice"), SchedulerMetrics()
    samples_of(metrics, core)
    for row in range(200):
        core.handle(JobSubmitted(JobSpec(JobId(f"k{row}"), 1.0, rates_steps_per_s={"v100": 1.0}, owner="bob")), 1.0)

    assert samples_of(metrics, core)["gavel_user_waiting_jobs", ("bob",)] == 200


def test_nodes_beyond_the_limit_are_summed_and_lost_ones_come_last() -> None:
    core = core_of_users(nodes=NODES_MAX + 10)
    core.handle(NodeLost(NodeId("n0")), 1.0)

    gpus, usable = family(core, "node_gpus"), family(core, "node_usable")

    assert len(gpus) == NODES_MAX + 1
    assert "n0" not in gpus
    assert sum(gpus.values()) == NODES_MAX + 10
    assert (usable["n1"], usable["other"]) == (1, 9)


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\\n\nb", "ü", "{}=,"])
def test_names_of_users_are_escaped(name: str) -> None:
    text = MetricFamily("x", "X.", [1.0], "user", [name]).lines

    (found,) = text_string_to_metric_families(text)

    assert found.samples[0].labels == {"user": name}


def test_values_are_numbers_that_prometheus_reads() -> None:
    text = MetricFamily("x", "X.", [np.int64(3), np.float64(0.5), math.inf, True], "k", ["a", "b", "c", "d"]).lines

    (found,) = text_string_to_metric_families(text)

    assert [sample.value for sample in found.samples] == [3.0, 0.5, math.inf, 1.0]


def test_lag_is_the_time_owed_less_the_time_received_of_each_job() -> None:
    bench = Counted(("n0", 1))
    bench.submit("a", "b", "c")
    bench.wake(0.0)
    first = int(bench.core.jobs.leased[0])
    bench.say("n0", part(int(bench.core.jobs.lease[first]), first))
    later_s = 50.0

    lag = lag_s(bench.core, bench.core.jobs.active, later_s)

    accounts = [account(bench.core, job, later_s) for job in range(3)]
    assert lag == pytest.approx([float((a.owed_s - a.received_s).sum()) for a in accounts])
    assert lag[first] == pytest.approx(50 / 3 - 50)
    assert lag.max() == pytest.approx(50 / 3)
    bench.now_s = later_s
    reading = reading_of(bench.core, now_s=later_s)
    found = {each.name: each.values[0] for each in StateMetrics().families(reading) if not each.label}
    assert found["gavel_lag_worst_seconds"] == pytest.approx(50 / 3)
    assert found["gavel_lag_seconds"] == pytest.approx(100 / 3)
    assert found["gavel_longest_wait_seconds"] == pytest.approx(later_s)


def run_all(bench: Bench, node: str, **fields: Any) -> None:
    """Reports that every lease on a node runs."""
    jobs = bench.core.jobs
    bench.say(node, *(part(int(jobs.lease[job]), job, **fields) for job in jobs.leased.tolist()))


def test_a_lease_that_another_job_needs_is_a_preemption_for_other_jobs() -> None:
    bench = Counted(("n0", 1), keep_unsaved=False, lease_min_s=0.0)
    bench.submit("a", "b")
    bench.wake(0.0)
    run_all(bench, "n0")

    bench.wake(100.0)

    assert bench.preemptions() == {"other_jobs": 1}


def test_a_lease_that_a_higher_class_takes_back_is_counted_apart_and_explained() -> None:
    classes = (PriorityClass("high", 1, ("normal",)),)
    bench = Counted(("n0", 1), keep_unsaved=False, lease_min_s=0.0, priorities=classes)
    bench.submit("a")
    bench.wake(0.0)
    run_all(bench, "n0")

    bench.submit("b", priority="high")
    bench.wake(1.0)

    assert bench.preemptions() == {"higher_class": 1}
    assert bench.core.jobs.taken_by[0] == 1


def test_a_lease_on_a_draining_node_is_a_preemption_by_the_drain() -> None:
    bench = Counted(("n0", 1), keep_unsaved=False)
    bench.submit("a")
    bench.wake(0.0)
    run_all(bench, "n0")
    bench.tell(NodeDraining(NodeId("n0")))

    bench.wake(100.0)

    assert bench.preemptions() == {"drain": 1}


def test_steps_after_the_last_checkpoint_are_lost_with_the_node() -> None:
    bench = Counted(("n0", 1))
    bench.submit("a")
    bench.wake(0.0)
    run_all(bench, "n0", steps_done=70.0, steps_saved=40.0)

    bench.table.lost(NodeId("n0"), 10.0, "power failure")
    bench.tell(NodeLost(NodeId("n0")))
    bench.settle()

    assert bench.sample("gavel_lost_steps_total") == 30
    assert bench.sample("gavel_leases_ended_total", outcome="lost") == 1
    assert bench.preemptions() == {"node_lost": 1}


def test_a_cancelled_job_has_lost_no_steps() -> None:
    bench = Counted(("n0", 1))
    bench.submit("a")
    bench.wake(0.0)
    run_all(bench, "n0", steps_done=70.0)
    bench.tell(JobCancelled(0))

    bench.say("n0", part(0, 0, Phase.ENDED, steps_done=70.0))

    assert bench.sample("gavel_lost_steps_total") == 0
    assert bench.preemptions() == {}


def answered(path: str) -> AllocationSolved:
    none = np.zeros(0, dtype=np.int64)
    return AllocationSolved(0, none, none, np.zeros(0), path=path)


def test_solver_paths_are_few_labels() -> None:
    metrics = SchedulerMetrics()
    for path in ("highs x 3 after prices", "highs x 12", "highs", *(f"path {row}" for row in range(50))):
        metrics.answered(answered(path), 0.1)
    metrics.answered(AllocationFailed(0, "no"), 0.1)

    counts = {labels[0]: n for (name, labels), n in samples_of(metrics, core_of_users()).items()
              if name == "gavel_solve_seconds_count"}  # fmt: skip

    assert counts["highs"] == 3
    assert len(counts) == 21
    assert sum(counts.values()) == 54
