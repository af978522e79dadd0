"""`gavel usage`, `gavel jobs --ended` and `--priority`: periods, tables and refusals."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import pytest
import typer

from gavelpy.cli.job_tables import ended_table, priority_table
from gavelpy.cli.output import DASH, duration
from gavelpy.cli.usage import csv_rows, since, usage_table
from gavelpy.runtime.wire import client_pb2
from tests.cli.commands import Gavel


@pytest.mark.parametrize(("text", "age_s"), [("30m", 1_800), ("12h", 43_200), ("7d", 604_800), ("2w", 1_209_600)])
def test_a_duration_counts_back_from_now(text: str, age_s: float) -> None:
    assert time.time() - since(text) == pytest.approx(age_s, abs=5.0)


def test_a_date_is_local_midnight() -> None:
    assert since("2025-03-01") == datetime(2025, 3, 1).timestamp()


def test_a_date_can_have_a_time() -> None:
    assert since("2025-03-01T08:30") == datetime(2025, 3, 1, 8, 30).timestamp()


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "1e3h", "yesterday", "0001-01-01", "1.5h", "9999999d"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="must be"):
        since(text)


def test_a_date_in_the_future_is_refused() -> None:
    tomorrow = (datetime.now() + timedelta(days=1)).date().isoformat()

    with pytest.raises(typer.BadParameter, match="must be in the past"):
        since(tomorrow)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ended", "--all"], "--ended selects states itself"),
        (["--ended", "--priority"], "--ended selects states itself"),
        (["--ended", "--state", "failed"], "--ended selects states itself"),
        (["--all", "--priority"], "--priority orders jobs that are not over"),
        (["--since", "7d"], "add --ended or --all"),
        (["--ended", "--since", "soon"], "a duration like 30m"),
    ],
)
def test_options_that_contradict_each_other_are_refused(gavel: Gavel, options: list[str], message: str) -> None:
    answer = gavel("jobs", *options)

    assert answer.code == 2
    assert message in answer.err
    assert answer.out == ""


def test_usage_by_an_unknown_column_is_refused(gavel: Gavel) -> None:
    answer = gavel("usage", "--by", "node")

    assert answer.code == 2
    assert "must be among user, entity, team, type, got 'node'" in answer.err


def test_usage_is_sorted_and_summed() -> None:
    bob, alice = [3600.0, 1.5, 0.0, 0.0, 0.0], [10_800.0, 2.0, 240.0, 2.0, 1.0]
    table = usage_table(["user", "type"], {("bob", "k80"): bob, ("alice", "v100"): alice})

    assert table.titles == ("user", "GPU type", "GPU-hours", "part", "USD", "mean wait", "leases", "preempted")
    assert list(table.rows) == [
        ("alice", "v100", "3.00", "75 %", "2.00", duration(120.0), "2", "1"),
        ("bob", "k80", "1.00", "25 %", "1.50", DASH, "0", "0"),
        ("all", "", "4.00", "100 %", "3.50", duration(120.0), "2", "1"),
    ]


def test_usage_without_prices_has_no_cost() -> None:
    ((*_, usd, _, _, _),) = usage_table(["user"], {("bob",): [3600.0, 0.0, 0.0, 1.0, 0.0]}).rows

    assert usd == DASH


def test_usage_of_nothing_is_an_empty_table() -> None:
    assert list(usage_table(["user"], {}).rows) == []


def test_a_job_that_is_over_has_its_times_and_gpu_hours() -> None:
    job = client_pb2.Job(job=3, name="a", state=client_pb2.JOB_STATE_FAILED, gpus=2, submitted_at_s=1e9,
                         started_at_s=1e9 + 60, ended_at_s=1e9 + 3660, gpu_s=7200,
                         restarts=1, detail="boom")  # fmt: skip

    (row,) = ended_table([job]).rows

    assert (row[0], row[3], row[6], row[8], row[9], row[10]) == ("3", "failed", "60 s", "2", "2.00", "boom")


def test_lag_of_a_job_that_is_ahead_is_negative() -> None:
    behind = client_pb2.Job(job=1, owed_s=300.0, received_s=100.0, urgency=1.5, share=0.25)
    ahead = client_pb2.Job(job=2, owed_s=100.0, received_s=300.0, urgency=0.7, share=0.5)

    rows = priority_table([behind, ahead]).rows

    assert [row[10] for row in rows] == ["3 min", "-3 min"]
    assert [row[7] for row in rows] == ["25.0 %", "50.0 %"]


def test_csv_has_seconds_without_rounding_and_whole_counts() -> None:
    rows = list(csv_rows(["team", "type"], {("b", "k80"): [1.5, 0.25, 3.125, 2.0, 1.0], ("a", "k80"): [0.0] * 5}))

    assert rows == [
        ["team", "type", "gpu_s", "cost_usd", "waited_s", "leases", "preemptions"],
        ["a", "k80", 0.0, 0.0, 0.0, 0, 0],
        ["b", "k80", 1.5, 0.25, 3.125, 2, 1],
    ]
    assert all(isinstance(value, int) for value in rows[2][5:])
