"""`gavel app cancel`: all jobs of an app end in one durable act, at most once, and only for their owner and admins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gavelpy.cli.main import main as gavel
from gavelpy.errors import NotFound
from gavelpy.mechanism.events import JobCancelled
from gavelpy.model.apps import AppRole, HalvingSchedule, Rung
from gavelpy.runtime.security.tokens import Role
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.client.serving import Serving, make_description, serving

USERS = {"alice": Role.USER, "bob": Role.USER, "root": Role.ADMIN}
WAITING, CANCELLED = pb.JOB_STATE_WAITING, pb.JOB_STATE_CANCELLED


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("apps"), users=USERS) as served:
        yield served


def submit(scheduler: Serving, owner: str, name: str, jobs: int = 3) -> list[int]:
    """Submits an app and returns the numbers of its jobs."""
    schedule, rungs = HalvingSchedule.SUCCESSIVE_HALVING, (Rung(100, 1),)
    roles = [AppRole(name, at, jobs, schedule=schedule, rungs=rungs) for at in range(jobs)]
    described = [make_description(f"{name}-{role.at}", app=role.text) for role in roles]
    with scheduler.client(owner) as client:
        return [job.job for job in client.submit(described).jobs]


def states(scheduler: Serving, jobs: list[int]) -> list[pb.JobState.ValueType]:
    with scheduler.client("root") as client:
        return [job.state for job in client.wait([str(job) for job in jobs], wait_s=0.0).jobs]


def cancelled(scheduler: Serving) -> list[int]:
    return [event.job for event in scheduler.events() if isinstance(event, JobCancelled)]


def run(scheduler: Serving, tmp_path: Path, owner: str, *words: str) -> int:
    token = tmp_path / owner
    token.write_text(scheduler.tokens[owner])
    token.chmod(0o600)
    return gavel(["app", *words, "--scheduler", scheduler.address, "--token-file", str(token)])


def test_living_jobs_of_the_newest_app_of_the_name_end_held_ones_too_and_no_others(
    scheduler: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older, newer = submit(scheduler, "alice", "tune"), submit(scheduler, "alice", "tune-2")
    with scheduler.client("alice") as client:
        client.cancel([str(job) for job in older])
    newest = submit(scheduler, "alice", "tune")
    other = submit(scheduler, "bob", "tune")
    with scheduler.client("alice") as client:
        client.change_jobs([str(newest[1])], pb.JOB_CHANGE_HOLD)
        client.cancel([str(newest[0])])
    before = cancelled(scheduler)

    words = "cancel", "tune", "-o", "json"
    code, first = run(scheduler, tmp_path, "alice", *words), json.loads(capsys.readouterr().out)
    repeated, again = run(scheduler, tmp_path, "alice", *words), json.loads(capsys.readouterr().out)

    shown: dict[str, Any] = {"version": 1, "app": "tune", "owner": "alice", "first_job": newest[0], "jobs": 3}
    assert (code, repeated) == (0, 0)
    assert first == {**shown, "cancelled": 2}
    assert again == {**shown, "cancelled": 0}
    assert cancelled(scheduler) == [*before, *newest[1:]], "the second call writes nothing"
    assert states(scheduler, newest) == [CANCELLED] * 3
    assert states(scheduler, [*newer, *other]) == [WAITING] * 6


def test_apps_of_others_are_as_if_they_were_not_there_and_admins_name_them_by_owner(
    scheduler: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = submit(scheduler, "bob", "mine")
    with scheduler.client("alice") as client:
        for text in ("mine", "bob/mine", str(jobs[0]), "", "/", "mine/"):
            with pytest.raises(NotFound):
                client.cancel_app(text)

    code = run(scheduler, tmp_path, "root", "cancel", "mine")
    refusal = capsys.readouterr().err
    assert states(scheduler, jobs) == [WAITING] * 3
    assert run(scheduler, tmp_path, "root", "cancel", "bob/mine") == 0

    assert code == 2
    assert "app must be the name of one of yours, for admins also OWNER/NAME, or the number of a job of it" in refusal
    assert capsys.readouterr().out == "mine: 3 of 3 jobs cancelled\n"
    assert states(scheduler, jobs) == [CANCELLED] * 3


def test_the_number_of_any_job_names_its_app_and_a_job_without_an_app_is_refused(scheduler: Serving) -> None:
    jobs = submit(scheduler, "alice", "numbered")
    with scheduler.client("alice") as client:
        alone = client.submit([make_description("alone")]).jobs[0].job
        with pytest.raises(NotFound, match=rf"got job {alone} \(alone\), which belongs to none"):
            client.cancel_app(str(alone))

        answer = client.cancel_app(str(jobs[2]))

    assert (answer.app, answer.first_job, answer.cancelled) == ("numbered", jobs[0], 3)
    assert states(scheduler, [*jobs, alone]) == [CANCELLED] * 3 + [WAITING]
