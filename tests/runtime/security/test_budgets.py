"""One user's waiting calls and unread streams leave capacity for every other user, and for agents."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.errors import CallFailed
from gavelpy.runtime.client.connection import CallLimit, Client
from gavelpy.runtime.security.budgets import Budget, Budgets, Rates, address_of
from gavelpy.runtime.security.identity import Refusal
from gavelpy.runtime.security.tokens import Role
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire import client_pb2_grpc
from tests.runtime.client.serving import make_description, serving, until

FEW = Budget(calls_a_user=2, streams_a_user=1, calls_an_address=3, streams_an_address=2, calls=4)


def is_answered(client: Client) -> bool:
    with suppress(CallFailed):
        return bool(client.jobs())
    return False


def test_a_call_counts_for_its_user_its_address_and_all_until_it_is_over() -> None:
    budgets = Budgets(FEW)

    with budgets.taken("ann", "a", is_stream=False), budgets.taken("ann", "b", is_stream=False):
        with pytest.raises(Refusal, match=r"limits\.calls_a_user_max is 2: ann has as many calls in progress"):
            budgets.taken("ann", "c", is_stream=False).__enter__()
        with budgets.taken("ann", "a", is_stream=True), pytest.raises(Refusal, match="streams_a_user_max is 1"):
            budgets.taken("ann", "a", is_stream=True).__enter__()
        with budgets.taken("bob", "a", is_stream=False), budgets.taken("cat", "a", is_stream=False):
            with pytest.raises(Refusal, match="calls_an_address_max is 3"):
                budgets.taken("dan", "a", is_stream=False).__enter__()
            with pytest.raises(Refusal, match="calls_max is 4: all users"):
                budgets.taken("dan", "b", is_stream=False).__enter__()

    assert not budgets._under_way
    assert address_of("ipv6:[::1]:4711") == "ipv6:[::1]"
    assert address_of("unix:") == ""


def test_connections_with_calls_count_for_their_user_and_address() -> None:
    budgets = Budgets(replace(FEW, calls_a_user=9, connections_a_user=1, connections_an_address=2))

    with budgets.taken("ann", "a", is_stream=False, connection="a:1"):
        with budgets.taken("ann", "a", is_stream=False, connection="a:1"):
            pass
        with pytest.raises(Refusal, match=r"limits\.connections_a_user_max is 1: ann has as many connections") as again:
            budgets.taken("ann", "a", is_stream=False, connection="a:2").__enter__()
        with (
            budgets.taken("bob", "a", is_stream=False, connection="a:2"),
            pytest.raises(Refusal, match="connections_an_address_max is 2"),
        ):
            budgets.taken("cat", "a", is_stream=False, connection="a:3").__enter__()
    with budgets.taken("ann", "a", is_stream=False, connection="a:2"):
        pass

    assert again.value.wait_s > 0
    assert not budgets._calls_on


@given(st.lists(st.floats(0.0, 8.0), max_size=60), st.floats(0.2, 5.0))
def test_rate_lets_through_its_burst_and_then_its_mean_and_waits_are_enough(gaps: list[float], per_s: float) -> None:
    now_s, passed = 100.0, []
    rates = Rates(lambda: now_s)
    for gap_s in gaps:
        now_s += gap_s
        try:
            rates.take("limit", "ann", per_s)
            passed.append(now_s)
        except Refusal as refusal:
            now_s += refusal.wait_s + 1e-6
            rates.take("limit", "ann", per_s)
            passed.append(now_s)

    spans = [(last - first, k - j + 1) for j, first in enumerate(passed) for k, last in enumerate(passed) if k >= j]
    assert all(count <= per_s * (span_s + 10.0) + 1 + 1e-3 for span_s, count in spans)
    rates.take("limit", "bob", per_s)


def test_refused_caller_learns_how_long_to_wait_and_our_client_waits(tmp_path: Path) -> None:
    limits = {"requests_a_user_per_s": 2.0}
    with serving(tmp_path, users={"ann": Role.USER}, limits=limits) as scheduler, scheduler.client("ann") as ann:
        with grpc.insecure_channel(scheduler.address) as channel:
            stub, who = client_pb2_grpc.SchedulerServiceStub(channel), scheduler.metadata("ann")
            asked = pb.GetServerInfoRequest(api_versions=[1])
            calls = [stub.GetServerInfo.future(asked, metadata=who, timeout=60.0) for _ in range(50)]
            refused = next(call for call in calls if call.code() is not grpc.StatusCode.OK)
        began_s = time.monotonic()
        ann.jobs()
        waited_s = time.monotonic() - began_s

    hint = dict(refused.trailing_metadata())["grpc-retry-pushback-ms"]
    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "limits.requests_a_user_per_s is 2: ann sends more; wait 0." in refused.details()
    assert 1 <= int(hint) <= 500
    assert waited_s > 0.1


def test_a_user_at_its_limit_keeps_neither_others_nor_agents_out(tmp_path: Path) -> None:
    users = {"ann": Role.USER, "bob": Role.USER, "n0": Role.NODE}
    limits = {"calls_a_user_max": 3, "streams_a_user_max": 2}
    with (
        serving(tmp_path, users=users, limits=limits) as scheduler,
        scheduler.client("ann") as ann,
        scheduler.client("bob") as bob,
    ):
        ann.submit([make_description("waits")])
        wait, follow = pb.WaitJobsRequest(jobs=["waits"], wait_s=60.0), pb.ListEventsRequest(follow=True)
        with grpc.insecure_channel(scheduler.address) as channel:
            stub, who = client_pb2_grpc.SchedulerServiceStub(channel), scheduler.metadata("ann")
            waits = [stub.WaitJobs.future(wait, metadata=who, timeout=60.0) for _ in range(8)]
            streams = [stub.ListEvents(follow, metadata=who, timeout=60.0) for _ in range(6)]
            until(lambda: sum(call.done() for call in waits) == 5, "calls too many are refused")
            until(lambda: sum(not call.is_active() for call in streams) == 4, "streams too many are refused")
            refused = next(call for call in waits if call.done())
            leave = scheduler.join_node("n0", name="n0")
            bob.jobs()
            leave()
        until(lambda: is_answered(ann), "the calls that were ended no longer count")

    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "limits.calls_a_user_max is 3" in (refused.details() or "")


def test_more_calls_on_one_connection_than_a_user_may_have_are_refused(tmp_path: Path) -> None:
    with serving(tmp_path) as scheduler, scheduler.client() as client:
        client.submit([make_description("waits")])
        wait = pb.WaitJobsRequest(jobs=["waits"], wait_s=60.0)
        with grpc.insecure_channel(scheduler.address) as channel:
            stub = client_pb2_grpc.SchedulerServiceStub(channel)
            calls = [stub.WaitJobs.future(wait, timeout=60.0) for _ in range(1_050)]
            until(lambda: sum(call.done() for call in calls) == 50, "calls too many are refused")
            codes = {call.code() for call in calls if call.done()}

    assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}


def test_a_client_says_when_its_connection_takes_no_more_calls() -> None:
    calls = CallLimit(1)

    with calls.slot(), pytest.raises(CallFailed, match=r"1 open calls and streams.*another Client"):
        calls.slot().__enter__()
    with calls.slot():
        pass
