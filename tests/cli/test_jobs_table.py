"""The table of jobs: drawn with rich on a terminal, in plain columns if it is long or piped."""

from __future__ import annotations

import io
import json
import time

import pytest
from rich.console import Console

from gavelpy.cli.job_tables import jobs_table
from gavelpy.cli.jobs import _sentences, explanation
from gavelpy.cli.output import as_json, as_rich, as_text, echo_json_list, show_table
from gavelpy.runtime.wire import client_pb2

MANY = 10_000
PROMPT_S = 5.0  # CPU time for many jobs; as a drawn table they take three times as long


def make_job(number: int = 1, **fields: object) -> client_pb2.Job:
    values = {"job": number, "name": f"train-{number}", "lease": -1, "steps_total": 1e6, "node_ids": ["n1"], **fields}
    return client_pb2.Job(**values)  # type: ignore[arg-type]  # fields of any type


@pytest.mark.parametrize(
    ("lease", "state", "told"),
    [(7, client_pb2.JOB_STATE_RUNNING, 0), (-1, client_pb2.JOB_STATE_FAILED, 1)],
)
def test_end_of_the_last_lease_is_shown_between_leases(
    lease: int, state: client_pb2.JobState.ValueType, told: int
) -> None:
    job = make_job(lease=lease, state=state, detail="node n1 was lost")
    out = io.StringIO()

    Console(file=out, width=200).print(as_rich(jobs_table([job])))

    assert out.getvalue().count("node n1 was lost") == told


def test_priority_classes_are_a_column_where_jobs_have_several() -> None:
    normal, high = make_job(1, priority="normal"), make_job(2, priority="high")

    both = jobs_table([normal, high])

    assert "class" not in jobs_table([normal, normal]).titles
    assert [row[both.titles.index("class")] for row in both.rows] == ["normal", "high"]


def test_steps_that_are_counted_by_time_are_marked_as_an_estimate() -> None:
    job = make_job(lease=7, state=client_pb2.JOB_STATE_RUNNING, steps_done=4e5, steps_estimated=True)
    answer = client_pb2.GetJobResponse(job=job)

    (row,) = jobs_table([job]).rows
    done = next(line for line in _sentences(answer) if line.startswith("Done"))

    assert row[7] == "~40 %"
    assert "(40 %), an estimate by time as the job reports none; none in a checkpoint" in done


def test_plain_columns_are_those_that_are_drawn_and_nothing_is_cut() -> None:
    table = jobs_table([make_job(7, reason="x" * 300), make_job(12, name="a\nb")])

    title, first, second = as_text(table).splitlines()

    assert title.split() == list(table.titles)
    assert first.split()[:3] == ["7", "train-7", "unspecified"]
    assert first.endswith("x" * 300)
    assert second.startswith(" 12  a\\nb")


def test_many_jobs_are_listed_soon(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [make_job(number, reason="waits for others") for number in range(MANY)]
    began_s = time.process_time()

    show_table(jobs_table(jobs))

    assert time.process_time() - began_s < PROMPT_S
    assert len(capsys.readouterr().out.splitlines()) == MANY + 1


def test_many_jobs_are_the_same_json_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [as_json(make_job(number, steps_done=float("nan"))) for number in range(400)]

    echo_json_list("jobs", jobs)

    out = capsys.readouterr().out
    assert json.loads(out) == {"version": 1, "jobs": jobs}
    assert len(out.splitlines()) == 402
    assert jobs[3]["steps_done"] is None
    assert jobs[3]["node_ids"] == ["n1"]


def make_array(*states: tuple[int, client_pb2.JobState.ValueType], **fields: object) -> list[client_pb2.Job]:
    """Jobs of the array that begins with job 12."""
    return [
        make_job(number, name=f"sweep-{number - 12}", state=state, array_size=9, array_first=12, gpus=2, **fields)
        for number, state in states
    ]


def test_array_is_one_line_for_each_state() -> None:
    waiting, running = client_pb2.JOB_STATE_WAITING, client_pb2.JOB_STATE_RUNNING
    states = [(12, running), *((number, waiting) for number in (13, 14, 16, 17, 18)), (19, running)]
    array = make_array(*states, steps_done=250_000.0, reason="behind others")
    others = [make_job(3), make_job(20, array_size=2, array_first=20), make_job(30)]

    rows = jobs_table([others[0], *array, *others[1:]], expand=False).rows

    assert [row[0] for row in rows] == ["3", "12,19", "13-14,16-18", "20", "30"]
    assert rows[2][1:6] == ("sweep-*", "", "waiting x5", "5x2", "n1")
    assert (rows[2][6:8], rows[2][9]) == (("5,000,000", "25 %"), "behind others")
    assert [row[0] for row in jobs_table(array).rows] == ["12", "13", "14", "16", "17", "18", "19"]


def test_reason_of_most_jobs_of_an_array_is_shown_with_their_number() -> None:
    array = make_array(*((number, client_pb2.JOB_STATE_WAITING) for number in (12, 13, 14)))
    for job, reason in zip(array, ("array-limit", "behind others", "array-limit"), strict=True):
        job.reason = reason

    (row,) = jobs_table(array, expand=False).rows

    assert row[9] == "array-limit (2 of 3)"


def test_one_job_of_unknown_length_makes_the_total_of_an_array_unknown() -> None:
    array = make_array((12, client_pb2.JOB_STATE_RUNNING), (13, client_pb2.JOB_STATE_RUNNING), steps_done=60.0)
    array[1].total_open = True

    (row,) = jobs_table(array, expand=False).rows

    assert row[6:8] == ("?", "120 steps")


@pytest.mark.parametrize(
    ("fields", "cell"),
    [
        ({"gpus": 4}, "4"),
        ({"gpus": 1, "sizes": [1, 2, 4]}, "1,2,4"),
        ({"gpus": 2, "sizes": [1, 2, 4], "lease": 7}, "2 of 1,2,4"),
        ({"gpus": 3, "sizes": range(1, 9), "lease": 7}, "3 of 1..8"),
        ({"gpus": 1, "sizes": [1, 2]}, "1,2"),
    ],
)
def test_gpus_are_those_held_of_all_on_which_the_job_runs(fields: dict[str, object], cell: str) -> None:
    assert jobs_table([make_job(**fields)]).rows[0][4] == cell


def test_explanation_has_requested_and_held_gpus_and_a_line_for_each_size() -> None:
    job = make_job(gpus=2, sizes=[1, 2], lease=7)
    size = client_pb2.SizeAccount(gpus=2, gpu_type="v100", rate_steps_per_s=18.0, share=0.5, owed_s=60.0)
    answer = client_pb2.GetJobResponse(job=job, description=client_pb2.JobDescription(gpus=1), sizes=[size])

    lines = explanation(answer)

    assert any(line.startswith("Requests 1 GPU, runs on 1,2, has 2 now, weight") for line in lines)
    assert "2 v100: 18 steps/s, share 50.0 %, owed 60 s, received 0.0 s" in lines
