"""Jobs and traces: each bad value is refused with the names of its field and its job."""

from __future__ import annotations

import re
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import encode, encode_state
from gavelpy.mechanism.events import JobSubmitted
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.model.job import JobId, JobKind, JobSpec, Trace
from tests.mechanism.builders import make_core

NAN, INF = float("nan"), float("inf")


def make_job(**fields: Any) -> JobSpec:
    return JobSpec(**({"id": JobId("a"), "steps_total": 100.0} | fields))


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("id", "", "non-empty name without commas"),
        ("id", "a,b", "non-empty name without commas"),
        ("id", "a\tb", "tabs or line breaks"),
        ("id", "a\nb", "tabs or line breaks"),
        ("gpus", 0, "a whole number in [1, 1000000]"),
        ("gpus", 1_000_001, "a whole number in [1, 1000000]"),
        ("gpus", 1.0, "a whole number in [1, 1000000]"),
        ("gpus", True, "a whole number in [1, 1000000]"),
        ("steps_total", 0.0, "> 0 and at most 1e+18"),
        ("steps_total", -5.0, "> 0 and at most 1e+18"),
        ("steps_total", NAN, "> 0 and at most 1e+18"),
        ("steps_total", INF, "> 0 and at most 1e+18"),
        ("weight", 0.0, "> 0 and at most 1e+18"),
        ("weight", NAN, "> 0 and at most 1e+18"),
        ("deadline_s", 0.0, "> 0"),
        ("deadline_s", -1.0, "> 0"),
        ("deadline_s", NAN, "> 0"),
        ("kind", JobKind.SERVICE, "'batch'"),
        ("owner", "al\nice", "without control characters"),
        ("owner", "\x1b[31m", "without control characters"),
        ("one_process_a_node", 1, "true or false"),
        ("checkpoint_every_s", -1.0, "in [0, 1e+18]"),
        ("checkpoint_every_s", INF, "in [0, 1e+18]"),
        ("warning_s", -1.0, "in [0, 1e+18]"),
        ("warning_s", NAN, "in [0, 1e+18]"),
        ("warning_signal", -1, "a whole number in [0, 64]"),
        ("warning_signal", 65, "a whole number in [0, 64]"),
        ("warning_signal", True, "a whole number in [0, 64]"),
    ],
)
def test_bad_value_is_refused_by_name(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(
        InvalidInput, match=rf"^{field} .*must be .*{re.escape(allowed)}.*, got {re.escape(repr(value))}$"
    ):
        make_job(**{field: value})


def test_interactive_job_has_one_process() -> None:
    with pytest.raises(InvalidInput, match="one_process_a_node of job 'a' must be true, because it is interactive"):
        make_job(kind=JobKind.INTERACTIVE)
    assert make_job(kind=JobKind.INTERACTIVE, one_process_a_node=True).kind is JobKind.INTERACTIVE


@pytest.mark.parametrize("rate", [-1.0, NAN, INF])
def test_bad_rate_is_refused_by_type_and_job(rate: float) -> None:
    with pytest.raises(
        InvalidInput, match=rf"rates_steps_per_s\['k80'\] of job 'a' must be in \[0, 1e\+18\], got {rate!r}"
    ):
        make_job(rates_steps_per_s={"v100": 1.0, "k80": rate})


@pytest.mark.parametrize("name", ["", "A B", "1A", "A-B", "A=B", "A\0"])
def test_bad_name_of_a_variable_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=rf"environment of job 'a': a name is .*, got {re.escape(repr(name))}$"):
        make_job(environment={name: "1"})


@pytest.mark.parametrize("value", ["a\0b", 7])
def test_bad_value_of_a_variable_is_refused_by_its_name(value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"environment\['SEED'\] of job 'a' must be a string without NUL, got "):
        make_job(environment={"SEED": value})


def test_a_blank_within_an_id_is_fine() -> None:
    assert make_job(id="ResNet 50").id == "ResNet 50"


def test_a_job_keeps_its_rates_when_the_caller_changes_theirs() -> None:
    rates = {"v100": 1.0}
    job = make_job(rates_steps_per_s=rates)

    rates["v100"] = -7.0

    assert job.rates_steps_per_s == {"v100": 1.0}


def test_a_job_with_read_only_rates_can_be_written_to_a_snapshot() -> None:
    core = make_core(make_job(rates_steps_per_s=MappingProxyType({"v100": 1.0})))

    assert encode_state(snapshot(restore(snapshot(core)))) == encode_state(snapshot(core))


def test_with_rates_changes_nothing_else() -> None:
    job = make_job(gpus=4, weight=2.0, deadline_s=60.0)

    other = job.with_rates({"k80": 3.0})

    assert other == make_job(gpus=4, weight=2.0, deadline_s=60.0, rates_steps_per_s={"k80": 3.0})
    assert job.rates_steps_per_s == {}


@pytest.mark.parametrize(
    ("arrival_s", "complaint"),
    [
        ([0.0, NAN], "arrival_s[1] must be finite and >= 0, got nan"),
        ([0.0, INF], "arrival_s[1] must be finite and >= 0, got inf"),
        ([-1.0, 0.0], "arrival_s[0] must be finite and >= 0, got -1.0"),
        ([5.0, 4.0], "arrival_s must not decrease, got 4.0 after 5.0 (row 1)"),
        ([0.0], "arrival_s must have shape (2,), got (1,)"),
        (["soon", "later"], "arrival_s must be numbers, got"),
    ],
)
def test_bad_arrivals_are_refused(arrival_s: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(complaint)):
        Trace((make_job(id="a"), make_job(id="b")), arrival_s)


def test_jobs_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"job ids must be unique, got 'a' twice \(rows 0 and 1\)"):
        Trace((make_job(), make_job()), np.zeros(2))


def test_arrivals_of_a_trace_cannot_be_changed() -> None:
    trace = Trace((make_job(),), np.zeros(1))

    with pytest.raises(ValueError, match="read-only"):
        trace.arrival_s[0] = 5.0

    assert len(trace) == 1


def test_a_renamed_job_is_the_same_in_all_else_to_the_byte() -> None:
    job = make_job(gpus=2, rates_steps_per_s={"v100": 2.0}, environment={"A": "1"}, command="true", warning_s=5.0)

    renamed = job.renamed(JobId("b#1"), "ann")

    assert renamed == replace(job, id=JobId("b#1"), owner="ann")
    assert encode(JobSubmitted(renamed), 1.0) == encode(JobSubmitted(replace(job, id=JobId("b#1"), owner="ann")), 1.0)
    assert (job.id, job.owner) == ("a", "")


@pytest.mark.parametrize(("id", "owner", "field"), [("a,b", "ann", "id"), ("", "ann", "id"), ("b", "a\nn", "owner")])
def test_what_is_renamed_is_checked(id: str, owner: str, field: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{field} "):
        make_job().renamed(JobId(id), owner)
