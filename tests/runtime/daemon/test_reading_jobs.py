"""The jobs of one request: equal ones are validated once, and messages still name the invalid one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, encode
from gavelpy.mechanism.events import JobSubmitted
from gavelpy.model.job import JobKind, JobSpec
from gavelpy.model.software import Software as JobSoftware
from gavelpy.runtime.accounts import Account
from gavelpy.runtime.agent.gpus import Gpus
from gavelpy.runtime.agent.leases.environment import LeaseContext, NodeEnvironment, job_environment, rank_environment
from gavelpy.runtime.agent.leases.orders import NodeAssignment
from gavelpy.runtime.daemon.rpc.client_messages import description_message
from gavelpy.runtime.daemon.rpc.requests import JobReader
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire.software_pb2 import Software


def make_description(name: str = "", **fields: Any) -> pb.JobDescription:
    values = {"steps_total": 10.0, "command": "true", "rates_steps_per_s": {"v100": 2.0, "k80": 1.0}} | fields
    return pb.JobDescription(name=name, **values)


def read(*jobs: pb.JobDescription) -> list[JobSpec]:
    reader = JobReader("ann", (), int)
    return [reader.spec(f"jobs[{row}]", job) for row, job in enumerate(jobs)]


def test_a_job_like_one_before_is_what_it_would_be_alone() -> None:
    like = make_description("b", environment={"A": "1"}, weight=2.0, deadline_s=60.0)

    together = read(make_description("a", environment={"A": "1"}, weight=2.0, deadline_s=60.0), like)

    assert together[1] == read(like)[0]
    assert together[1].id == "b"


def test_jobs_that_differ_in_anything_but_the_name_are_read_each_for_itself() -> None:
    jobs = read(make_description(), make_description(gpus=4), make_description(environment={"A": "1"}))

    assert [(job.gpus, job.environment) for job in jobs] == [(1, {}), (4, {}), (1, {"A": "1"})]


def test_alike_are_jobs_whose_rates_come_in_another_order() -> None:
    first, second = read(make_description(), make_description(rates_steps_per_s={"k80": 1.0, "v100": 2.0}))

    assert first is second


def test_reading_leaves_the_message_as_it_is() -> None:
    job = make_description("a")

    read(job)

    assert job == make_description("a")


def test_the_first_of_many_wrong_jobs_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"^jobs\[2\]\.gpus must be a whole number in \[1, 1000000\], got 1000001$"):
        read(make_description("a"), make_description("b"), *[make_description("c", gpus=1_000_001)] * 2)


def test_a_wrong_name_is_named_though_the_job_is_like_one_before() -> None:
    with pytest.raises(InvalidInput, match=r"^jobs\[1\]\.name must be 1 to 128 letters.*got '7'$"):
        read(make_description("a"), make_description("7"))


def test_a_name_that_comes_twice_is_refused_also_where_all_else_differs() -> None:
    with pytest.raises(InvalidInput, match=r"^jobs\[2\]\.name must be unique among the jobs of a request, got 'a'$"):
        read(make_description("a"), make_description("b"), make_description("a", gpus=2))


def test_jobs_without_names_are_many() -> None:
    assert [job.id for job in read(make_description(), make_description())] == ["-", "-"]


def test_interactive_job_may_have_an_image() -> None:
    software = Software(image="torch")
    shell = make_description(software=software, interactive=True, one_process_a_node=True, working_directory="/srv")

    (job,) = read(shell)

    assert (job.kind, job.software.image) == (JobKind.INTERACTIVE, "torch")


@pytest.mark.parametrize("directory", ["", "/", "/usr/", "/etc"])
def test_working_directory_hides_nothing_of_an_image(directory: str) -> None:
    allowed = r"working_directory must be a directory that hides nothing of the image"
    with pytest.raises(InvalidInput, match=allowed):
        read(make_description(software=Software(image="torch"), working_directory=directory))


def test_image_is_read() -> None:
    (job,) = read(make_description(software=Software(image="torch:2"), working_directory="/usr/local/work"))

    assert job.software.image == "torch:2"


def test_plans_are_read_by_number_of_gpus_and_shown_in_the_description() -> None:
    (job,) = read(make_description(sizes=[1, 4], plans={4: "tp2", 1: "dp1"}))

    assert list(job.plans.items()) == [(1, "dp1"), (4, "tp2")]
    assert dict(description_message(job).plans) == {1: "dp1", 4: "tp2"}
    kept = decode(encode(JobSubmitted(job), 0.0))[1]
    assert isinstance(kept, JobSubmitted)
    assert kept.spec.plans == job.plans


@pytest.mark.parametrize(
    ("plans", "message"),
    [
        ({2: "x"}, r"jobs\[0\]\.plans must be keyed by numbers of GPUs of the job \(1, 4\), got 2"),
        ({4: ""}, r"jobs\[0\]\.plans\[4\] must be a text"),
        ({4: "x" * 2000}, r"jobs\[0\]\.plans\[4\] must be"),
    ],
)
def test_plans_that_mean_nothing_are_refused(plans: dict[int, str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read(make_description(sizes=[1, 4], plans=plans))


def test_secrets_are_read_by_variable() -> None:
    (job,) = read(make_description(secrets={"B": "DB", "A": "A"}))

    assert list(job.secrets.items()) == [("A", "A"), ("B", "DB")]


@pytest.mark.parametrize(
    ("secrets", "message"),
    [
        ({"GAVEL_X": "A"}, "secrets must be keyed by names that do not begin with GAVEL_, got 'GAVEL_X'"),
        ({"PATH": "A"}, "secrets must be keyed by variables that the node does not set, got 'PATH'"),
        ({"MASTER_PORT": "A"}, "secrets must be keyed by variables that the node does not set, got 'MASTER_PORT'"),
        ({"A-B": "A"}, "secrets must be keyed by letters, digits and '_', no digit first, got 'A-B'"),
        ({"A": "../x"}, r"secrets\['A'\] must be letters, digits and '_', no digit first, got '../x'"),
        ({"LR": "A"}, "secrets must be variables that are not in environment, too, got 'LR'"),
    ],
)
def test_secrets_that_mean_nothing_are_refused(secrets: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read(make_description(secrets=secrets, environment={"LR": "0.1"}))


@pytest.mark.parametrize("software", [Software(), Software(venv="/v"), Software(conda="/c")])
def test_no_secret_is_in_a_variable_that_nodes_set(software: Software) -> None:
    of_job = JobSoftware(venv=software.venv, conda=software.conda)
    account = Account("alice", 1001, 1001, (1001,), "/data/alice", "/bin/sh")
    lease = LeaseContext(8, 5, Path("/leases/8"), "token", None, 0.0, account=account)
    node = NodeEnvironment("n0", Gpus("v100", ("0",)), {"PATH": "/bin", "LANG": "C"}, Path("/ck"), "127.0.0.1:9")
    assignment = NodeAssignment(("true",), "/", (0,), "v100", software=of_job)
    variables = {**job_environment(assignment, lease, node), **rank_environment(assignment, 0)}

    assert {"PATH", "HOME", "RANK", "MASTER_ADDR", "GAVEL_LEASE"} < variables.keys()
    for variable in variables:
        with pytest.raises(InvalidInput, match=f"secrets must be keyed by .*, got '{variable}'"):
            read(make_description(secrets={variable: "A"}))


SIZED = {"gpus": 2, "sizes": [4, 2, 1]}


def test_rates_of_sizes_come_from_the_description_or_its_efficiency() -> None:
    rates = {1: pb.Rates(rates_steps_per_s={"v100": 1.5})}

    (job,) = read(make_description(**SIZED, rates_by_size=rates, efficiency={4: 0.75}))

    assert (job.gpus, job.sizes) == (2, (1, 2, 4))
    assert job.rates_by_size == {1: {"v100": 1.5}, 4: {"k80": 1.5, "v100": 3.0}}


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"sizes": [2, 4]}, r"sizes must be different numbers, 1 among them, got \[2, 4\]"),
        ({"sizes": [1, 1]}, "sizes must be different numbers"),
        ({"sizes": [1, 0]}, "sizes must be whole numbers in"),
        ({"sizes": range(1, 66)}, "sizes must be at most 64 numbers of GPUs, got 65"),
        ({"sizes": [1, 2], "interactive": True, "one_process_a_node": True}, "sizes must be empty for an interactive"),
        ({"efficiency": {2: 0.9}}, "efficiency must be keyed by sizes other than 1, which are none, got 2"),
        ({**SIZED, "rates_by_size": {2: pb.Rates()}}, r"rates_by_size must be keyed by sizes other than 2, .*got 2"),
        (
            {**SIZED, "rates_by_size": {4: pb.Rates(rates_steps_per_s={"v100": -1.0})}},
            r"rates_by_size\[4\]\['v100'\] must be a number >= 0",
        ),
        ({**SIZED, "efficiency": {4: 0.0}}, r"efficiency\[4\] must be a number > 0"),
        ({**SIZED, "efficiency": {4: 1e18}, "rates_steps_per_s": {"v100": 1e18}}, r"efficiency\[4\]"),
        ({**SIZED, "efficiency": {4: 0.9}, "rates_steps_per_s": {}}, "efficiency must be given together with rates"),
        (
            {**SIZED, "efficiency": {4: 0.9}, "rates_by_size": {4: pb.Rates(rates_steps_per_s={"v100": 1.0})}},
            "efficiency must be of sizes without rates_by_size, got 4",
        ),
    ],
)
def test_wrong_size_is_named(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^jobs\[0\]\.{complaint}"):
        read(make_description(**fields))
