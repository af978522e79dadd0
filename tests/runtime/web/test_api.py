"""The web page's JSON: what callers see and change, as with gRPC, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gavelpy.mechanism.events import JobCancelled, PolicyChanged
from gavelpy.runtime.daemon.engine.forecasts import Times
from gavelpy.runtime.daemon.queries.job_table import SORTS
from gavelpy.runtime.daemon.web.server import HEADERS
from gavelpy.runtime.security.tokens import Role, TokenFile
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.client.serving import Serving, make_description, serving, until
from tests.runtime.web.http import call, events

USERS = {"alice": Role.USER, "bob": Role.USER, "root": Role.ADMIN, "n0": Role.NODE}
WEB = {"web_listen": "127.0.0.1:0"}
READS = ("me", "cluster", "nodes", "jobs", "prices", "teams", "usage", "events")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Two users' jobs on a node of two GPUs that never starts them; `big` fits on no node."""
    sections: dict[str, dict[str, Any]] = {"scheduler": WEB, "nodes": {"silent_after_s": 60.0}}
    with serving(tmp_path_factory.mktemp("web"), users=USERS, **sections) as found:
        leave = found.join_node("n0", gpus=2, name="n0")
        with found.client("alice") as alice, found.client("bob") as bob:
            alice.submit([make_description("first"), make_description("big", gpus=64)])
            bob.submit([make_description("other")])
        yield found
        leave()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A scheduler of one user, without tokens."""
    with serving(tmp_path_factory.mktemp("alone"), scheduler=WEB) as found:
        yield found


def names(served: Serving, path: str, user: str) -> list[str]:
    return [job["name"] for job in call(served, path, user).json["jobs"]]


# What callers see ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", READS)
def test_every_read_answers_people_in_json_and_refuses_strangers_and_nodes(served: Serving, path: str) -> None:
    found, stranger = call(served, f"/api/v1/{path}", "alice"), call(served, f"/api/v1/{path}")

    assert (found.status, found.headers["content-type"], found.json["version"]) == (200, "application/json", 1)
    assert (stranger.status, stranger.json["error"]["code"]) == (401, "not_allowed")
    assert stranger.headers["www-authenticate"].startswith("Bearer")
    assert call(served, f"/api/v1/{path}", "n0").status == (200 if path == "me" else 403)


def test_user_sees_own_jobs_only_and_an_admin_all(served: Serving) -> None:
    alices, all_of_them = "/api/v1/jobs?owner=alice", "/api/v1/jobs?state=all"

    assert names(served, all_of_them, "alice")[:2] == ["first", "big"]
    assert "other" not in names(served, all_of_them, "alice")
    assert {"first", "big", "other"} <= set(names(served, all_of_them, "root"))
    assert names(served, alices, "bob") == []
    assert call(served, "/api/v1/jobs/0", "bob").status == 404
    assert call(served, "/api/v1/jobs/0/samples", "bob").status == 404
    assert "submitted by alice" not in call(served, "/api/v1/events?after=0", "bob").body.decode()


def test_fields_of_a_job_are_those_of_the_command_line(served: Serving) -> None:
    job = call(served, "/api/v1/jobs/1?forecast=false", "alice").json["job"]

    assert set(job) == {field.name for field in pb.Job.DESCRIPTOR.fields}
    assert (job["name"], job["owner"], job["state"]) == ("big", "alice", "waiting")


def test_job_of_several_sizes_is_described_with_them(alone: Serving) -> None:
    with alone.client() as client:
        rates = {2: pb.Rates(rates_steps_per_s={"v100": 18.0})}
        client.submit([make_description("elastic", sizes=[1, 2], rates_by_size=rates, hold=True)])

        found = call(alone, "/api/v1/jobs/elastic?forecast=false").json
        client.cancel(["elastic"])

    assert (found["job"]["gpus"], found["job"]["sizes"], found["description"]["gpus"]) == (1, [1, 2], 1)
    assert found["description"]["rates_by_size"] == {"2": {"v100": 18.0}}
    assert found["sizes"] == []  # no node, and so no GPU type, is there


def test_job_in_detail_names_why_it_waits_and_when_it_should_start(served: Serving) -> None:
    found = call(served, "/api/v1/jobs/big", "alice").json

    assert "64" in found["job"]["reason"]
    assert found["start_in_s"] is None
    assert found["forecast"]
    assert [account["gpu_type"] for account in found["accounts"]] == ["v100"]
    assert found["description"]["command"] == "python train.py"


def test_values_of_variables_are_hidden(served: Serving) -> None:
    with served.client("alice") as alice:
        alice.submit([make_description("keyed", environment={"API_KEY": "hidden-value"}, hold=True)])

    found = call(served, "/api/v1/jobs/keyed?forecast=false", "alice")

    assert found.json["description"]["environment"] == {"API_KEY": "***"}
    assert b"hidden-value" not in found.body


def test_nodes_show_the_job_on_each_gpu_and_hide_those_of_others(served: Serving) -> None:
    until(lambda: -1 not in _gpu_jobs(served, "root"), "both GPUs have a job")

    assert sorted(_gpu_jobs(served, "root")) == [0, 2]
    assert sorted(_gpu_jobs(served, "alice")) == [-2, 0]
    assert sorted(_gpu_jobs(served, "bob")) == [-2, 2]


def _gpu_jobs(served: Serving, user: str) -> list[int]:
    jobs: list[int] = call(served, "/api/v1/nodes", user).json["nodes"][0]["gpu_jobs"]
    return jobs


@pytest.mark.parametrize("sort", SORTS)
def test_pages_of_every_order_have_each_job_once(served: Serving, sort: str) -> None:
    path = f"/api/v1/jobs?state=all&sort={sort}"
    whole = names(served, f"{path}&limit=500", "root")

    assert [name for k in range(len(whole)) for name in names(served, f"{path}&limit=1&offset={k}", "root")] == whole
    assert set(names(served, f"{path}&order=descending", "root")) == set(whole)
    assert call(served, f"{path}&limit=1", "root").json["total"] == len(whole)


def test_jobs_are_filtered_by_name_state_and_owner(served: Serving) -> None:
    assert names(served, "/api/v1/jobs?name=bi", "root") == ["big"]
    assert names(served, "/api/v1/jobs?state=waiting&owner=alice&name=b", "root") == ["big"]
    assert names(served, "/api/v1/jobs?state=over&name=big", "root") == []
    assert names(served, "/api/v1/jobs?team=none-such", "root") == []


def test_lists_show_the_last_forecast_and_the_page_and_gavel_jobs_alike(served: Serving) -> None:
    scheduler = served.service.scheduler
    scheduler.forecasts.show({0: Times(50.0, 150.0, 40.0, -1.0, 120.0, 300.0)}, scheduler.now_s())
    at_s = scheduler.wall_s(scheduler.forecasts.at_s)

    page, none = call(served, "/api/v1/jobs", "alice").json["jobs"][:2]
    with served.client("alice") as client:
        listed = client.jobs()[0]

    names = [name for name in page if name.startswith(("forecast", "expected", "start_", "finish_"))]
    expected = [0.0, 50.0, 40.0, -at_s, 150.0, 120.0, 300.0]  # the start has no upper end
    assert [page[name] - at_s for name in names] == pytest.approx(expected)
    assert [getattr(listed, name) for name in names] == [page[name] for name in names]
    assert {none[name] for name in names} == {0.0}


def test_samples_have_the_time_owed_and_received(served: Serving) -> None:
    until(lambda: len(call(served, "/api/v1/jobs/0/samples", "alice").json["time_s"]) > 0, "a sample")

    found = call(served, "/api/v1/jobs/0/samples", "alice").json

    assert len(found["time_s"]) == len(found["owed_s"]) == len(found["received_s"])
    assert abs(found["time_s"][-1] - time.time()) < 600


# Changes ---------------------------------------------------------------------------------------------------------


def test_cancel_is_in_the_journal_when_it_is_answered(served: Serving) -> None:
    with served.client("alice") as alice:
        job = alice.submit([make_description("gone", hold=True)]).jobs[0].job

    refused = call(served, f"/api/v1/jobs/{job}/cancel", "bob", body={})
    done = call(served, f"/api/v1/jobs/{job}/cancel", "alice", body={})

    assert refused.status == 404
    assert (done.status, done.json["job"]["state"]) == (200, "cancelled")
    assert job in [event.job for event in served.events() if isinstance(event, JobCancelled)]


def test_user_cannot_release_what_an_admin_holds(served: Serving) -> None:
    with served.client("alice") as alice:
        job = alice.submit([make_description("kept", hold=True)]).jobs[0].job

    assert call(served, f"/api/v1/jobs/{job}/release", "alice", body={}).json["job"]["held_by"] == ""
    assert call(served, f"/api/v1/jobs/{job}/hold", "root", body={}).json["job"]["held_by"] == "admin"
    refused = call(served, f"/api/v1/jobs/{job}/release", "alice", body={})
    assert (refused.status, "only an admin" in refused.json["error"]["message"]) == (403, True)
    assert call(served, f"/api/v1/jobs/{job}/release", "root", body={}).status == 200
    assert call(served, f"/api/v1/jobs/{job}/cancel", "root", body={}).status == 200


def test_nodes_and_policy_are_for_admins(served: Serving) -> None:
    assert call(served, "/api/v1/nodes/n0/drain", "alice", body={}).status == 403
    assert call(served, "/api/v1/policy", "alice", body={"policy": "fifo"}).status == 403

    assert call(served, "/api/v1/nodes/n0/drain", "root", body={}).json["node"]["state"] in ("draining", "drained")
    assert call(served, "/api/v1/nodes/n0/resume", "root", body={}).json["node"]["state"] == "up"
    assert call(served, "/api/v1/policy", "root", body={"policy": "isolated"}).json["policy"] == "isolated"
    assert any(isinstance(event, PolicyChanged) and event.policy == "isolated" for event in served.events())


# What-if ---------------------------------------------------------------------------------------------------------


def complete(found: Serving, body: dict[str, Any]) -> Any:
    """Both of Alice's forecasts. The first ones may spend their CPU time on compiling; then they are incomplete."""
    answers = list[Any]()

    def is_complete() -> bool:
        answers.append(call(found, "/api/v1/what-if", "alice", body=body).json)
        reasons = {answers[-1][side]["why_incomplete"] for side in ("now", "then")}
        assert reasons <= {"", "not within 3 s of computing"}
        return reasons == {""}

    until(is_complete, "complete forecasts")
    return answers[-1]


def test_what_if_compares_forecasts_of_the_callers_jobs_and_changes_nothing(tmp_path: Path) -> None:
    """Two jobs of 100 s on one GPU: with another GPU the second one need not wait."""
    nodes = {"silent_after_s": 600.0}
    with serving(tmp_path, users=USERS, scheduler=WEB, nodes=nodes) as found, found.client("alice") as alice:
        leave = found.join_node("n0", name="n0")
        alice.submit([make_description("a", steps=1e3), make_description("b", steps=1e3)])
        policy = call(found, "/api/v1/cluster", "alice").json["policy"]

        more = complete(found, {"gpus": {"v100": 1}, "policy": "fifo"})
        bobs = call(found, "/api/v1/what-if", "bob", body={"gpus": {"v100": 1}}).json
        refused = call(found, "/api/v1/what-if", "alice", body={"gpus": {"h100": 1}})
        leave()
        after = call(found, "/api/v1/cluster", "alice").json

    assert [more[side]["jobs_finishing"] for side in ("now", "then")] == [2, 2]
    assert more["now"]["finish_in_s_last"] - more["then"]["finish_in_s_last"] > 80
    assert {job["name"] for job in more["jobs"]} == {"a", "b"}
    assert (bobs["jobs"], bobs["now"]["jobs"]) == ([], 0)
    assert (refused.status, refused.json["error"]["field"]) == (400, "gpus")
    assert (after["policy"], [each["gpu_type"] for each in after["types"]]) == (policy, ["v100"])


# Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("jobs?sort=size", "sort", "'size'"),
        ("jobs?state=lost", "state", "'lost'"),
        ("jobs?limit=501", "limit", "501"),
        ("jobs?offset=-1", "offset", "'-1'"),
        ("jobs?order=up", "order", "'up'"),
        ("jobs?name=%00", "name", "'\\x00'"),
        ("nodes?limit=0", "limit", "0"),
        ("events?limit=x", "limit", "'x'"),
        ("usage?since_s=nan", "since_s", "'nan'"),
        ("jobs/0?forecast=no", "forecast", "'no'"),
        ("usage?since_s=x", "since_s", "'x'"),
        ("jobs/nothing", "job", "'nothing'"),
    ],
)
def test_error_names_field_value_and_what_is_allowed(served: Serving, path: str, field: str, value: str) -> None:
    found = call(served, f"/api/v1/{path}", "alice")

    error = found.json["error"]
    assert found.status == error["status"] == (404 if path == "jobs/nothing" else 400)
    assert (error["field"], error["value"]) == (field, value)
    assert error["message"] == f"{field} must be {error['allowed']}, got {value}"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "body must be JSON"),
        ({"policy": 1}, "policy must be valid"),
        ({"colour": "red"}, "unknown field `colour`"),
        ({"policy": "none-such"}, "none-such"),
        ({"round_s": 0.5}, "round_s must be in"),
        ({"policy": "./evil.py:Policy"}, "must be named in the scheduler's configuration"),
        ([], "body must be valid"),
    ],
)
def test_wrong_body_changes_nothing(served: Serving, body: Any, message: str) -> None:
    before = call(served, "/api/v1/cluster", "root").json["policy"]

    refused = call(served, "/api/v1/policy", "root", body=body)

    assert (refused.status, message in refused.json["error"]["message"]) == (400, True), refused.json
    assert call(served, "/api/v1/cluster", "root").json["policy"] == before


def test_large_bodies_unknown_paths_and_methods_are_refused_in_json(served: Serving) -> None:
    assert call(served, "/api/v1/policy", "root", body=b" " * (1 << 17)).status == 413
    assert call(served, "/api/v1/none", "root").json["error"]["code"] == "not_found"
    assert call(served, "/api/v1/jobs", "root", method="DELETE").json["error"]["status"] == 405
    assert call(served, "/static/../page.py", "root").status == 404


# Browsers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/static/page.css", "/api/v1/me", "/none"])
def test_every_answer_has_the_headers_that_protect_the_page(served: Serving, path: str) -> None:
    found = call(served, path, "alice")

    assert {name: found.headers.get(name.lower()) for name in HEADERS} == dict(HEADERS)
    assert "server" not in found.headers
    assert "set-cookie" not in found.headers
    assert "unsafe-inline" not in found.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 404),
        ({"Host": "localhost:7079"}, 404),
        ({"Host": "[::1]:7079"}, 404),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:7079"}, 403),
        ({"Host": "127.0.0.1.evil.example:80"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Content_Type": "text/plain"}, 400),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 400),
    ],
)
def test_pages_of_other_sites_cannot_change_a_scheduler_without_tokens(
    alone: Serving, headers: dict[str, str], status: int
) -> None:
    assert call(alone, "/api/v1/jobs/77/cancel", body={}, **headers).status == status


def test_scheduler_without_tokens_has_one_user_with_all_rights(alone: Serving) -> None:
    found = call(alone, "/api/v1/me").json

    assert (found["user"], found["role"], found["is_sole"], all(found["may"].values())) == (
        "local",
        "admin",
        True,
        True,
    )
    assert call(alone, "/api/v1/jobs", Host="evil.example").status == 403


# Streams ---------------------------------------------------------------------------------------------------------


def test_stream_of_changes_has_the_state_and_each_change(served: Serving) -> None:
    stream = events(served, "/api/v1/changes", "alice")
    name, first = next(stream)
    with served.client("bob") as bob:
        bob.submit([make_description(hold=True)])

    _, second = next(stream)
    stream.close()

    assert name == "change"
    assert second["state"] > first["state"]


def test_stream_ends_when_its_token_is_revoked(served: Serving, tmp_path: Path) -> None:
    file = TokenFile(Path(served.service.config.security.tokens))
    served.tokens["eve"] = file.create("eve", Role.USER, now_s=time.time())
    stream = events(served, "/api/v1/changes", "eve")
    next(stream)

    file.revoke("eve")

    *_, (name, error) = stream
    assert (name, error["status"]) == ("error", 401)


def test_log_of_another_user_is_not_found_and_a_read_without_follow_ends(served: Serving) -> None:
    assert call(served, "/api/v1/jobs/0/log", "bob").status == 404
    assert call(served, "/api/v1/jobs/0/log?pattern=(", "alice").status == 400

    *_, (name, _) = events(served, "/api/v1/jobs/1/log?follow=false", "alice")
    assert name == "end"


# Limits ----------------------------------------------------------------------------------------------------------


def test_streams_of_a_user_are_limited(tmp_path: Path) -> None:
    with serving(tmp_path, scheduler=WEB, limits={"streams_a_user_max": 1}) as found:
        stream = events(found, "/api/v1/changes")
        next(stream)

        refused = call(found, "/api/v1/changes")
        stream.close()

    assert (refused.status, refused.json["error"]["code"]) == (429, "limit_reached")
    assert "limits.streams_a_user_max is 1" in refused.json["error"]["message"]
    assert refused.headers["retry-after"] == "1"
