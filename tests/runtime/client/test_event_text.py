"""Events as text: their sentences, and the facts that users see only of their own jobs."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gavelpy.mechanism.events import (
    AllocationSolved,
    Event,
    JobAnnotated,
    JobCancelled,
    JobSubmitted,
    LeaseEnded,
    LeaseStarted,
    NodeLost,
    Outcome,
    ThroughputEstimated,
)
from gavelpy.model.job import NodeId
from gavelpy.runtime.daemon.queries.events import event_text, jobs_of, kind_of
from tests.runtime.daemon.harness import make_spec

STARTED = LeaseStarted(np.array([3, 5]), np.array([30, 50]), np.array([0, 1, 3]), np.array([7, 8, 9]))
ENDED = LeaseEnded(np.array([3, 5]), np.array([30, 50]), np.array([10.0, 20.0]), Outcome.FINISHED)
SUBMITTED = JobSubmitted(make_spec("train#3", environment={"KEY": "hunter2"}, owner="alice"))


@pytest.mark.parametrize(
    ("event", "kind", "text"),
    [
        (SUBMITTED, "job-submitted", "job 3 (train) submitted by alice: 1 GPU, 1e+06 steps"),
        (JobCancelled(3), "job-cancelled", "job 3 cancelled"),
        (JobAnnotated(3, 30, "killed"), "job-noted", "job 3, lease 30: killed"),
        (STARTED, "lease-started", "started: job 3 (lease 30, GPU 7), job 5 (lease 50, GPU 8, 9)"),
        (ENDED, "lease-ended", "finished: job 3 (lease 30, step 10), job 5 (lease 50, step 20)"),
        (NodeLost(NodeId("n0")), "node-lost", "node n0 is lost"),
    ],
)
def test_event_is_a_sentence(event: Event, kind: str, text: str) -> None:
    told = event_text(event)

    assert told is not None
    assert (told.kind, told.text, kind_of(event)) == (kind, text, kind)


def test_rows_of_other_jobs_are_left_out() -> None:
    told = event_text(STARTED, {5})

    assert told is not None
    assert told.text == "started: job 5 (lease 50, GPU 8, 9)"
    assert json.loads(told.json) == {"jobs": [5], "leases": [50], "gpus": [[8, 9]]}


@pytest.mark.parametrize("event", [SUBMITTED, JobCancelled(3), JobAnnotated(3, 30, "x"), STARTED, ENDED])
def test_event_of_other_jobs_only_is_not_shown(event: Event) -> None:
    assert event_text(event, {99}) is None


def test_event_of_no_job_is_shown_to_all() -> None:
    assert jobs_of(NodeLost(NodeId("n0"))) is None
    assert event_text(NodeLost(NodeId("n0")), set()) is not None


def test_values_of_the_environment_are_not_shown() -> None:
    told = event_text(SUBMITTED)

    assert told is not None
    assert "hunter2" not in told.json + told.text
    assert json.loads(told.json)["environment"] == {"KEY": "***"}


def test_numbers_that_are_none_are_null() -> None:
    told = event_text(ThroughputEstimated(np.array([1]), np.array([[np.nan, 2.0]])))

    assert told is not None
    assert json.loads(told.json)["rates_steps_per_s"] == [[None, 2.0]]


def test_sentence_about_many_jobs_stays_short() -> None:
    many = np.arange(1_000)
    told = event_text(AllocationSolved(1, many, many * 0, many * 0.001))

    assert told is not None
    assert "and 990 more" in told.text
    assert len(told.text) < 500


def test_refused_jobs_are_shown_to_their_owners_and_memory_to_nobody() -> None:
    event = AllocationSolved(
        1, np.array([0, 2]), np.array([0, 0]), np.array([0.5, 0.5]), marginal_value=np.array([0.25]), again_s=9.0,
        memory=b"mine", refused_jobs=np.array([1, 3]), refused_why=("late", "large"),
    )  # fmt: skip

    found = event_text(event, {0, 1})

    assert found is not None
    values = json.loads(found.json)
    assert (values["jobs"], values["refused_jobs"], values["refused_why"]) == ([0], [1], ["late"])
    assert (values["marginal_value"], values["again_s"]) == ([0.25], 9.0)
    assert "memory" not in values


def test_sizes_of_other_jobs_are_left_out() -> None:
    rows = np.array([3, 5, 5])
    event = AllocationSolved(1, rows, np.zeros(3, dtype=int), np.array([1.0, 0.5, 0.25]), sizes=np.array([1, 1, 2]))

    told = event_text(event, {5})

    assert told is not None
    values = json.loads(told.json)
    assert (values["jobs"], values["sizes"], values["share"]) == ([5, 5], [1, 2], [0.5, 0.25])


def test_submission_has_all_numbers_of_gpus() -> None:
    told = event_text(JobSubmitted(make_spec("train#3", owner="alice", gpus=2, sizes=(1, 2, 4))))

    assert told is not None
    assert told.text == "job 3 (train) submitted by alice: 2 GPUs (or 1, 4), 1e+06 steps"
