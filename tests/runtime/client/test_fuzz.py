"""10,000 malformed messages to a real server: each gets an answer and has no other effect.

The seed is random in every run; a failure prints it, and GAVELPY_FUZZ_SEED sets it.
"""

from __future__ import annotations

import os
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError

from gavelpy.mechanism.events import JobSubmitted, LeaseEnded, ProgressReported
from gavelpy.runtime.security.tokens import Role
from gavelpy.runtime.wire import agent_pb2
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.client.malformed import METHODS, STREAMING, random_bytes, random_message, random_stream
from tests.runtime.client.serving import Serving, make_description, serving

USERS = {"alice": Role.USER, "root": Role.ADMIN, "n0": Role.NODE, "n1": Role.NODE}
SEED = int(os.environ.get("GAVELPY_FUZZ_SEED") or secrets.randbits(32))
AT_ONCE = 64
CALL_S = 30.0
# Statuses of failures of the server itself; DEADLINE_EXCEEDED: it hangs.
OURS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.DEADLINE_EXCEEDED}  # fmt: skip


def few_or_many(few: int, many: int) -> pytest.MarkDecorator:
    """`few` messages in every run, `many` in the slow tests."""
    return pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("fuzz"), users=USERS) as served:
        with served.client("alice") as client:
            client.submit([make_description("train")])
        yield served
        with served.client("alice") as client:
            assert client.submit([make_description("afterwards")]).jobs[0].name == "afterwards", f"seed {SEED}"


@pytest.fixture
def channel(scheduler: Serving) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(scheduler.address) as channel:
        yield channel


def called(scheduler: Serving, channel: grpc.Channel, name: str, data: bytes, rng: random.Random) -> Any:
    """Starts a call of SchedulerService, with any token."""
    path, answer = f"/gavelpy.v1.SchedulerService/{name}", METHODS[name].__name__.replace("Request", "Response")
    told = {"metadata": scheduler.metadata(rng.choice(("alice", "alice", "root"))), "timeout": CALL_S}
    if name in STREAMING:
        return channel.unary_stream(path, bytes, getattr(pb, answer).FromString)(data, **told)
    return channel.unary_unary(path, bytes, getattr(pb, answer).FromString).future(data, **told)


def finished(call: Any, *, is_stream: bool = False) -> tuple[grpc.StatusCode, Any]:
    """The status of a call, and its last message."""
    try:
        last = list(call)[-1:] if is_stream else call.result()
    except grpc.RpcError:
        last = None
    return call.code(), last


def tamed(name: str, data: bytes) -> bytes:
    """The same message without long waits, so that a server that obeys them does not appear hung."""
    message = METHODS[name]()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return data
    if name in STREAMING:
        message.follow = False
    if name == "WaitJobs" and 0.0 < message.wait_s <= 60.0:
        message.wait_s = 0.01
    return message.SerializeToString()


def bombarded(
    scheduler: Serving, channel: grpc.Channel, rng: random.Random, make: Callable[[str], bytes], count: int
) -> list[tuple[str, grpc.StatusCode, Any]]:
    """Method, status and answer of `count` calls, many of them at the same time."""
    names = [rng.choice(list(METHODS)) for _ in range(count)]
    found = []
    for first in range(0, count, AT_ONCE):
        part = names[first : first + AT_ONCE]
        calls = [called(scheduler, channel, name, tamed(name, make(name)), rng) for name in part]
        found += [(name, *finished(call, is_stream=name in STREAMING)) for name, call in zip(part, calls, strict=True)]
    return found


def check_answers(scheduler: Serving, answers: list[tuple[str, grpc.StatusCode, Any]], before: int) -> None:
    """Checks that every call was answered, nothing broke, and the journal has exactly the acknowledged jobs."""
    bad = Counter((name, code) for name, code, _ in answers if code in OURS)
    accepted = [answer for name, code, answer in answers if name == "SubmitJobs" and code is grpc.StatusCode.OK]
    made = sum(len(answer.jobs) for answer in accepted if not answer.repeated_submission and answer.jobs[0].job >= 0)
    assert not bad, f"seed {SEED}: {bad}"
    assert jobs_in(scheduler) - before == made, f"seed {SEED}"


def jobs_in(scheduler: Serving) -> int:
    return sum(isinstance(event, JobSubmitted) for event in scheduler.events())


@few_or_many(1_000, 3_500)
def test_bytes_that_are_no_messages_are_refused(scheduler: Serving, channel: grpc.Channel, count: int) -> None:
    rng, before = random.Random(SEED), jobs_in(scheduler)

    answers = bombarded(scheduler, channel, rng, lambda _: random_bytes(rng), count)

    check_answers(scheduler, answers, before)
    assert sum(code is grpc.StatusCode.INVALID_ARGUMENT for _, code, _ in answers) > 0.28 * count, f"seed {SEED}"


@few_or_many(1_200, 4_500)
def test_messages_with_extreme_values_are_refused_with_field_and_value(
    scheduler: Serving, channel: grpc.Channel, count: int
) -> None:
    rng, before = random.Random(SEED + 1), jobs_in(scheduler)

    answers = bombarded(
        scheduler, channel, rng, lambda name: random_message(METHODS[name], rng).SerializeToString(), count
    )

    check_answers(scheduler, answers, before)
    assert sum(code is grpc.StatusCode.INVALID_ARGUMENT for _, code, _ in answers) > 0.22 * count, f"seed {SEED}"


@few_or_many(500, 2_000)
def test_streams_of_agents_out_of_their_minds_change_no_node_but_their_own(
    scheduler: Serving, channel: grpc.Channel, count: int
) -> None:
    rng = random.Random(SEED + 2)
    kinds = {"Connect": agent_pb2.ConnectRequest, "ServeLogs": agent_pb2.ServeLogsRequest}
    names = ("n0", "n1", "n2", "../n0", "", "alice")
    codes: Counter[grpc.StatusCode] = Counter()
    for _ in range(count // AT_ONCE + 1):
        calls = []
        for _ in range(AT_ONCE):
            name, token = rng.choice(list(kinds)), rng.choice(("n0", "n1", "alice", "root"))
            stream = channel.stream_stream(f"/gavelpy.v1.AgentService/{name}", bytes, bytes)
            messages = random_stream(rng, kinds[name], names)
            calls.append(stream(iter(messages), metadata=scheduler.metadata(token), timeout=CALL_S))
        codes.update(finished(call, is_stream=True)[0] for call in calls)

    with scheduler.client("root") as client:
        nodes = {node.node_id for node in client.nodes()}
    assert not set(codes) & OURS, f"seed {SEED}: {codes}"
    assert nodes <= {"n0", "n1"}, f"seed {SEED}"
    assert not [event for event in scheduler.events() if isinstance(event, LeaseEnded | ProgressReported)]


def test_message_beyond_the_limit_is_refused(scheduler: Serving, channel: grpc.Channel) -> None:
    huge = pb.SubmitJobsRequest(jobs=[make_description("huge", working_directory="/" + "x" * (5 << 20))])
    call = called(scheduler, channel, "SubmitJobs", huge.SerializeToString(), random.Random(0))

    assert finished(call)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
