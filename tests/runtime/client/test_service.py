"""Guarantees to clients: submissions are durable and never duplicated, and users can access only their own jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gavelpy.cli.main import main as gavel
from gavelpy.errors import CallFailed, InvalidInput, NotAllowed, NotFound
from gavelpy.mechanism.events import JobSubmitted
from gavelpy.runtime.security.tokens import Role
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.client.serving import Serving, make_description, serving, until

USERS = {"alice": Role.USER, "bob": Role.USER, "root": Role.ADMIN, "n0": Role.NODE}


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    sections: dict[str, dict[str, Any]] = {"limits": {"jobs_living_max": 500}, "nodes": {"silent_after_s": 60.0}}
    with serving(tmp_path_factory.mktemp("service"), users=USERS, **sections) as served:
        yield served


def submitted(scheduler: Serving) -> int:
    return sum(isinstance(event, JobSubmitted) for event in scheduler.events())


def test_submission_is_in_the_journal_when_it_is_answered(scheduler: Serving) -> None:
    before = submitted(scheduler)

    with scheduler.client("alice") as client:
        answer = client.submit([make_description("durable"), make_description()])

    assert [job.name for job in answer.jobs] == ["durable", f"job-{answer.jobs[1].job}"]
    assert submitted(scheduler) == before + 2


def test_same_key_and_jobs_are_answered_alike_and_make_no_new_jobs(scheduler: Serving) -> None:
    with scheduler.client("alice") as client:
        first = client.submit([make_description("once")], key="k1")
        before = submitted(scheduler)
        again = client.submit([make_description("once")], key="k1")

    assert [job.job for job in again.jobs] == [job.job for job in first.jobs]
    assert (first.repeated_submission, again.repeated_submission) == (False, True)
    assert submitted(scheduler) == before


def test_same_key_with_other_jobs_is_refused(scheduler: Serving) -> None:
    with scheduler.client("alice") as client:
        client.submit([make_description("first")], key="k2")

        with pytest.raises(InvalidInput, match="idempotency_key 'k2' must be repeated with the same jobs"):
            client.submit([make_description("second")], key="k2")


def test_keys_of_other_users_are_theirs(scheduler: Serving) -> None:
    with scheduler.client("alice") as alice, scheduler.client("bob") as bob:
        first = alice.submit([make_description("mine")], key="k3")
        other = bob.submit([make_description("mine")], key="k3")

    assert first.jobs[0].job != other.jobs[0].job
    assert not other.repeated_submission


def test_batch_with_one_bad_job_makes_none(scheduler: Serving) -> None:
    before = submitted(scheduler)

    with scheduler.client("alice") as client, pytest.raises(InvalidInput, match=r"jobs\[1\].gpus must be"):
        client.submit([make_description("good"), make_description("bad", gpus=2**31)])

    assert submitted(scheduler) == before


def test_name_of_a_living_job_is_taken_and_free_again_when_it_is_over(scheduler: Serving) -> None:
    with scheduler.client("alice") as client:
        first = client.submit([make_description("again")]).jobs[0].job
        with pytest.raises(InvalidInput, match="name must be unique among the living jobs of 'alice', got 'again'"):
            client.submit([make_description("again")])
        client.cancel(["again"])
        second = client.submit([make_description("again")]).jobs[0].job

        assert second > first
        assert client.job("again").job.job == second
        assert client.job(str(first)).job.state == pb.JOB_STATE_CANCELLED


def test_user_sees_own_jobs_only_and_others_as_if_they_were_not_there(scheduler: Serving) -> None:
    with scheduler.client("alice") as alice, scheduler.client("bob") as bob:
        number = str(alice.submit([make_description("secret")]).jobs[0].job)
        missing = "job must be the number or name of one of yours, got {!r}"

        assert number not in {str(job.job) for job in bob.jobs(all_states=True)}
        for text in (number, "secret", "alice/secret", "999999", "nonsense"):
            with pytest.raises(NotFound) as refused:
                bob.job(text)
            assert str(refused.value) == missing.format(text)
        with pytest.raises(NotFound):
            bob.cancel([number])
        assert alice.job(number).job.state != pb.JOB_STATE_CANCELLED
        assert bob.jobs(owner="alice", all_states=True) == []


def test_admin_sees_all_jobs_and_names_them_by_owner(scheduler: Serving) -> None:
    with scheduler.client("bob") as bob, scheduler.client("root") as root:
        number = bob.submit([make_description("shown")]).jobs[0].job

        assert root.job("bob/shown").job.job == number
        assert {job.owner for job in root.jobs(owner="bob")} == {"bob"}
        assert root.cancel([str(number)])[0].state == pb.JOB_STATE_CANCELLED


def test_events_of_other_users_are_hidden(scheduler: Serving) -> None:
    with scheduler.client("alice") as alice, scheduler.client("bob") as bob, scheduler.client("root") as root:
        alice.submit([make_description("unheard", environment={"KEY": "hidden"})])

        told = [event.text + event.json for event in bob.events(events_max=100_000)]
        all_told = [event.text + event.json for event in root.events(events_max=100_000)]

    assert not any("unheard" in text for text in told)
    assert any("unheard" in text for text in all_told)
    assert not any("hidden" in text for text in all_told)


def test_what_only_admins_may_do_is_refused_to_users(scheduler: Serving) -> None:
    with scheduler.client("alice") as client:
        with pytest.raises(NotAllowed, match="SetPolicy requires the role admin; the token is of a user"):
            client.set_policy(policy="fifo")
        with pytest.raises(NotAllowed, match="SetNode requires the role admin"):
            client.set_node("n0", pb.NODE_WISH_DRAIN)


def test_without_a_token_nothing_is_answered(scheduler: Serving) -> None:
    with scheduler.client() as client, pytest.raises(NotAllowed, match="no token was sent"):
        client.jobs()


def test_server_reports_the_identity_of_the_caller(scheduler: Serving) -> None:
    with scheduler.client("alice") as client:
        info = client.server_info()

    assert (info.user, info.role, info.api_version, info.cluster_name) == ("alice", "user", 1, "gavel")


def test_jobs_come_in_pages_in_order(scheduler: Serving) -> None:
    with scheduler.client("bob") as client:
        made = [job.job for job in client.submit([make_description() for _ in range(25)]).jobs]
        stub, metadata = client._stub, scheduler.metadata("bob")

        pages = [stub.ListJobs(pb.ListJobsRequest(page_size=10, after=made[0] - 1), metadata=metadata)]
        pages.append(stub.ListJobs(pb.ListJobsRequest(page_size=10, after=pages[-1].next_after), metadata=metadata))
        pages.append(stub.ListJobs(pb.ListJobsRequest(page_size=10, after=pages[-1].next_after), metadata=metadata))

    assert [job.job for page in pages for job in page.jobs] == made
    assert pages[-1].next_after == -1


def test_more_living_jobs_than_allowed_are_refused(scheduler: Serving) -> None:
    with scheduler.client("bob") as client, pytest.raises(CallFailed, match="jobs_living_max is 500"):
        client.submit([make_description() for _ in range(501)])


def test_wait_ends_when_all_are_over_or_the_time_is(scheduler: Serving) -> None:
    with scheduler.client("alice") as client:
        client.submit([make_description("waited")])

        early = client.wait(["waited"], wait_s=0.05)
        client.cancel(["waited"])
        late = client.wait(["waited"], wait_s=30.0)

    assert (early.all_over, late.all_over) == (False, True)
    assert late.jobs[0].ended_at_s > 0


def test_job_is_explained_with_its_reason_and_its_history(scheduler: Serving) -> None:
    with scheduler.client("alice") as client:
        client.submit([make_description("puzzle", gpus=1000, environment={"API_KEY": "b", "TZ": "UTC"})])
        found = client.job("puzzle")

    assert found.job.reason
    assert found.description.environment == {"API_KEY": "***", "TZ": "UTC"}
    assert found.start_in_s == -1
    assert found.forecast == "incomplete: no job will start or end until something changes"
    assert [line.split()[-1] for line in found.history] == ["submitted"]


def test_policy_is_changed_and_shown(scheduler: Serving) -> None:
    with scheduler.client("root") as client:
        client.set_policy(policy="shortest_job_first", parameters='{"by": "total"}', round_s=7.0)
        cluster = client.cluster()

        assert (cluster.policy, cluster.policy_parameters, cluster.round_s) == (
            "shortest_job_first",
            '{"by": "total"}',
            7.0,
        )
        with pytest.raises(InvalidInput, match="nonsense"):
            client.set_policy(policy="nonsense")
        client.set_policy(policy="max_min_fairness", round_s=2.0)


def test_node_is_listed_drained_and_resumed(scheduler: Serving) -> None:
    leave = scheduler.join_node("n0", gpus=3, name="n0")
    with scheduler.client("root") as client:
        until(lambda: bool(client.nodes()), "the node is there")
        (node,) = client.nodes()

        assert (node.node_id, node.gpu_type, node.gpu_count, node.state) == ("n0", "v100", 3, "up")
        assert client.set_node("n0", pb.NODE_WISH_DRAIN).state in ("draining", "drained")
        assert client.set_node("n0", pb.NODE_WISH_RESUME).state == "up"
        with pytest.raises(NotFound, match="node must be one that has joined, got 'n9'"):
            client.set_node("n9", pb.NODE_WISH_DRAIN)
        leave()


def test_submission_that_cannot_run_is_warned_of(
    scheduler: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leave = scheduler.join_node("n0", gpus=3, name="n0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAVEL_TOKEN", scheduler.tokens["alice"])
    with scheduler.client("root") as root:
        until(lambda: any(kind.gpus == 3 for kind in root.cluster().types), "the node is up")
    submit = ["submit", "--scheduler", scheduler.address, "--steps", "10", "--preemptible"]

    assert gavel([*submit, "--gpus", "9", "--rate", "v100:1", "--", "true"]) == 0
    assert gavel([*submit, "--rate", "v100:1", "--rate", "v1oo:1", "--", "true"]) == 0
    assert gavel([*submit, "--rate", "v100:1", "--", "true"]) == 0

    too_large, misspelt = capsys.readouterr().err.splitlines()
    assert too_large.endswith(
        "cannot run on this cluster as it is: it needs 9 GPUs of one type; "
        "the cluster has at most 3 v100 that it can use together"
    )
    assert misspelt.endswith("no node has GPUs of type v1oo; the cluster has v100")
    leave()


def test_dry_run_creates_no_jobs_and_forecasts_their_start(scheduler: Serving) -> None:
    leave = scheduler.join_node("n0", gpus=3, name="n0")
    with scheduler.client("alice") as alice, scheduler.client("root") as root:
        until(lambda: any(kind.gpus == 3 for kind in root.cluster().types), "the node is up")
        root.cancel([str(job.job) for job in root.jobs()])
        before = submitted(scheduler)
        answer = alice.submit([make_description("would", steps=100.0), make_description("never", gpus=9)], dry_run=True)

    told, hopeless = answer.jobs[0].forecast, answer.jobs[1].forecast
    assert submitted(scheduler) == before
    assert (told.can_run, told.gpu_type, list(told.node_ids)) == (True, "v100", ["n0"])
    assert told.finish_in_s - told.start_in_s >= 10.0
    assert (hopeless.can_run, hopeless.start_in_s) == (False, -1)
    assert hopeless.reason
    leave()


def test_first_page_holds_the_very_first_job(scheduler: Serving) -> None:
    with scheduler.client("root") as client:
        client.submit([make_description()])
        stub, metadata = client._stub, scheduler.metadata("root")

        page = stub.ListJobs(pb.ListJobsRequest(all_states=True), metadata=metadata)

    assert page.jobs[0].job == 0


def test_values_of_variables_are_shown_to_the_owner_and_admins_on_request_only(scheduler: Serving) -> None:
    described = make_description("keyed", environment={"API_KEY": "s3cret"}, secrets={"TOKEN": "HF"})
    with scheduler.client("alice") as alice, scheduler.client("root") as admin, scheduler.client("bob") as bob:
        alice.submit([described])

        shown = alice.job("keyed", environment=True).description
        found = [alice.job("keyed").description, admin.job("alice/keyed").description]
        to_admin = admin.job("alice/keyed", environment=True).description
        with pytest.raises(NotFound):
            bob.job("keyed", environment=True)
        with pytest.raises(NotFound):
            bob.job("alice/keyed", environment=True)

    assert dict(shown.environment) == dict(to_admin.environment) == {"API_KEY": "s3cret"}
    assert [dict(each.environment) for each in found] == [{"API_KEY": "***"}] * 2
    assert dict(shown.secrets) == {"TOKEN": "HF"}


def test_a_submission_names_what_the_policy_does_not_use(tmp_path: Path) -> None:
    with serving(tmp_path) as served, served.client() as client:
        jobs = [
            make_description("weighty", weight=2.0),
            make_description("urgent", weight=2.0, deadline_s=60.0, entity="vision"),
        ]
        weighty, urgent = client.submit(jobs).jobs

    assert "does not use" not in weighty.note
    assert "the policy max_min_fairness does not use entities and deadlines" in urgent.note


def test_a_submission_and_a_forecast_show_limits_that_the_job_gets_by_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path, users=USERS, jobs={"time_s": 60.0, "stall_max_s": 30.0}) as served:
        with served.client("alice") as client:
            plain, own = client.submit([make_description("plain"), make_description("own", time_s=9.0)]).jobs
            planned = client.submit([make_description("planned", stall_s=5.0)], dry_run=True).jobs[0]
            with pytest.raises(InvalidInput, match=r"stall_s must be at most 30 here \(stall_max_s in "):
                client.submit([make_description(stall_s=31.0)], dry_run=True)
        token = tmp_path / "token"
        token.write_text(served.tokens["alice"])
        token.chmod(0o600)
        assert gavel(["explain", "plain", "--scheduler", served.address, "--token-file", str(token)]) == 0

    assert "it runs for at most 60 s, the default here; --time sets another limit" in plain.note
    assert "it ends after 30 s without progress, the default here" in plain.note
    assert "runs for at most" not in own.note
    assert "it ends after 30 s" in own.note
    assert "it runs for at most 60 s" in planned.note
    assert "it ends after" not in planned.note
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.partition("Limits: ")[2].startswith("running time 0.0 s of at most 60 s; ended after 30 s"), shown


def test_a_user_moves_jobs_to_classes_that_are_open_to_them_and_an_admin_to_any(tmp_path: Path) -> None:
    classes: dict[str, dict[str, Any]] = {
        "priorities.high": {"value": 1, "owners": ["bob"]},
        "priorities.low": {"value": -1},
    }
    with serving(tmp_path, users=USERS, **classes) as served, served.client("alice") as alice:
        alice.submit([make_description("mine")])
        priority = pb.JOB_CHANGE_PRIORITY
        with pytest.raises(InvalidInput, match="priority must be one of normal, low, which 'alice' may use"):
            alice.change_jobs(["mine"], priority, priority="high")
        with pytest.raises(InvalidInput, match="priority must be given with the change priority, and only then"):
            alice.change_jobs(["mine"], pb.JOB_CHANGE_HOLD, priority="low")
        (lower,) = alice.change_jobs(["mine"], priority, priority="low")
        with served.client("bob") as bob, pytest.raises(NotFound):
            bob.change_jobs(["0"], priority, priority="high")
        with served.client("root") as root:
            (higher,) = root.change_jobs(["0"], priority, priority="high")
        history = alice.job("mine").history
        alice.cancel(["mine"])
        with pytest.raises(InvalidInput, match="jobs must be not over, got 'mine'"):
            alice.change_jobs(["mine"], priority, priority="low")

    assert (lower.job.priority, higher.job.priority) == ("low", "high")
    assert [line.partition("priority changed")[2].strip(" :") for line in history if "priority changed" in line] == [
        "to low",
        "to high",
    ]
