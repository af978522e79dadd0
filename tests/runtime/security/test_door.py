"""Access control of a real server: which roles may call which methods, also over TLS."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gavelpy.errors import InvalidInput, NotAllowed, SchedulerUnreachable
from gavelpy.runtime.client.connection import Client
from gavelpy.runtime.client.settings import ClientSettings
from gavelpy.runtime.daemon import command_executor
from gavelpy.runtime.security import interceptor
from gavelpy.runtime.security.identity import ROLES, Operation
from gavelpy.runtime.security.interceptor import OPERATIONS
from gavelpy.runtime.security.tokens import Role, TokenFile
from gavelpy.runtime.wire import agent_pb2, agent_pb2_grpc, client_pb2, client_pb2_grpc
from tests.runtime.client.serving import Serving, make_description, serving

USERS = {"alice": Role.USER, "root": Role.ADMIN, "n0": Role.NODE}
LOOK_EVERY_S = 0.2  # interval of token checks on open streams, and of repeated orders


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interceptor, "LOOK_EVERY_S", LOOK_EVERY_S)
        patch.setattr(command_executor, "REFRESH_S", LOOK_EVERY_S)
        with serving(tmp_path_factory.mktemp("door"), users=USERS) as served:
            yield served


def connect(scheduler: Serving, token: str, node_id: str) -> grpc.StatusCode:
    """The status of an agent's stream: OK if it receives an order."""
    node = agent_pb2.Node(node_id=node_id, api_versions=[1], gpu_type="v100", gpu_count=1, address="here")
    request = agent_pb2.ConnectRequest(sequence=1, clock_s=time.monotonic(), node=node)
    with grpc.insecure_channel(scheduler.address) as channel:
        call = agent_pb2_grpc.AgentServiceStub(channel).Connect(
            iter([request]), metadata=scheduler.metadata(token), timeout=60.0
        )
        with suppress(grpc.RpcError):
            list(call)
        return call.code()


def heartbeats(node_id: str) -> Iterator[agent_pb2.ConnectRequest]:
    """A node that sends heartbeats while its stream is open."""
    node = agent_pb2.Node(node_id=node_id, api_versions=[1], gpu_type="v100", gpu_count=1, address="here")
    yield agent_pb2.ConnectRequest(sequence=1, clock_s=time.monotonic(), node=node)
    for sequence in itertools.count(2):
        yield agent_pb2.ConnectRequest(sequence=sequence, clock_s=time.monotonic())
        time.sleep(0.1)


def goes_on(orders: Iterator[object]) -> bool:
    """Whether a stream survives several checks of its token."""
    until_s = time.monotonic() + 3 * LOOK_EVERY_S
    return any(time.monotonic() > until_s for _ in orders)


def end_of(call: Iterator[object]) -> grpc.StatusCode:
    """The status that a stream ends with."""
    with pytest.raises(grpc.RpcError) as refused:
        deque(call, maxlen=0)
    return refused.value.code()


def test_every_method_of_our_services_has_its_roles() -> None:
    services = [
        client_pb2.DESCRIPTOR.services_by_name["SchedulerService"],
        agent_pb2.DESCRIPTOR.services_by_name["AgentService"],
    ]
    methods = {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}

    assert methods == {method for method in OPERATIONS if method.startswith("/gavelpy.")}
    assert set(ROLES) == set(OPERATIONS.values()) == set(Operation)
    assert all(ROLES.values())


def test_health_is_open_to_all(scheduler: Serving) -> None:
    with grpc.insecure_channel(scheduler.address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60.0)

    assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    ("token", "node_id"), [("", "n0"), ("alice", "n0"), ("alice", "alice"), ("root", "n0"), ("n0", "n1"), ("n0", "")]
)
def test_nobody_but_the_node_itself_connects_as_it(scheduler: Serving, token: str, node_id: str) -> None:
    refused = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT)

    assert connect(scheduler, token, node_id) in refused
    with scheduler.client("root") as client:
        assert "n1" not in {node.node_id for node in client.nodes()}


def test_node_may_not_call_what_is_for_people(scheduler: Serving) -> None:
    with scheduler.client("n0") as client, pytest.raises(NotAllowed, match="ListJobs requires the role admin or user"):
        client.jobs()


def test_method_that_is_not_there_is_unimplemented(scheduler: Serving) -> None:
    with grpc.insecure_channel(scheduler.address) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/gavelpy.v1.SchedulerService/Nonsense", lambda x: x, lambda x: x)(b"", timeout=60.0)

    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_revoked_token_is_refused_from_the_next_call_on(scheduler: Serving, tmp_path: Path) -> None:
    file = TokenFile(Path(scheduler.service.config.security.tokens))
    secret = file.create("mallory", Role.USER, now_s=0.0)

    with Client(ClientSettings(scheduler=scheduler.address, token=secret)) as client:
        client.jobs()
        file.revoke("mallory")
        with pytest.raises(NotAllowed, match="the token is unknown or has expired"):
            client.jobs()


def test_bytes_that_are_no_message_are_the_callers_fault(scheduler: Serving) -> None:
    with grpc.insecure_channel(scheduler.address) as channel:
        submit = channel.unary_unary("/gavelpy.v1.SchedulerService/SubmitJobs", bytes, bytes)
        with pytest.raises(grpc.RpcError) as refused:
            submit(b"\xff" * 50, metadata=scheduler.metadata("alice"), timeout=60.0)

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "not a message" in (refused.value.details() or "")


def test_over_tls_with_a_client_certificate_it_works_and_without_one_nobody_answers(tmp_path: Path) -> None:
    authority = trustme.CA()
    server, own = authority.issue_cert("127.0.0.1"), authority.issue_cert("alice@example.org")
    server.private_key_pem.write_to_path(tmp_path / "key.pem")
    server.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    own.private_key_pem.write_to_path(tmp_path / "own-key.pem")
    own.cert_chain_pems[0].write_to_path(tmp_path / "own-cert.pem")
    files = {"tls_certificate": "cert.pem", "tls_key": "key.pem", "tls_client_ca": "ca.pem"}
    settings = {name: str(tmp_path / file) for name, file in files.items()}
    mine = {"tls_certificate": str(tmp_path / "own-cert.pem"), "tls_key": str(tmp_path / "own-key.pem")}
    ca = str(tmp_path / "ca.pem")

    with serving(tmp_path, users={"alice": Role.USER}, security=settings) as scheduler:
        with scheduler.client("alice", tls_ca=ca, **mine) as client:
            answer = client.submit([make_description("safe")])
        with scheduler.client("alice", tls_ca=ca, timeout_s=0.5) as bare, pytest.raises(SchedulerUnreachable):
            bare.jobs()
        with scheduler.client("alice", timeout_s=0.5) as plain, pytest.raises(SchedulerUnreachable):
            plain.jobs()

    assert answer.jobs[0].name == "safe"


def test_client_sends_no_token_over_the_network_without_tls() -> None:
    with pytest.raises(InvalidInput, match="a token is sent over a network only with TLS"):
        Client(ClientSettings(scheduler="gpu-head:7077", token="gavel_x"))


def test_revoked_tokens_cut_the_streams_that_are_open(scheduler: Serving) -> None:
    file = TokenFile(Path(scheduler.service.config.security.tokens))
    alive = {name: file.create(name, role, now_s=0.0) for name, role in (("mallory", Role.USER), ("n9", Role.NODE))}
    person, node = ([("authorization", f"Bearer {alive[name]}")] for name in ("mallory", "n9"))
    with grpc.insecure_channel(scheduler.address) as channel:
        people, agents = client_pb2_grpc.SchedulerServiceStub(channel), agent_pb2_grpc.AgentServiceStub(channel)
        events = people.ListEvents(client_pb2.ListEventsRequest(follow=True), metadata=person, timeout=60.0)
        lines = people.ReadLogs(client_pb2.ReadLogsRequest(follow=True), metadata=person, timeout=60.0)
        orders = agents.Connect(heartbeats("n9"), metadata=node, timeout=60.0)
        next(orders)

        file.revoke("mallory")
        file.revoke("n9")

        assert {end_of(call) for call in (events, lines, orders)} == {grpc.StatusCode.UNAUTHENTICATED}


def test_open_streams_go_on_while_the_tokens_cannot_be_read(scheduler: Serving) -> None:
    path = Path(scheduler.service.config.security.tokens)
    with grpc.insecure_channel(scheduler.address) as channel:
        agents = agent_pb2_grpc.AgentServiceStub(channel)
        orders = agents.Connect(heartbeats("n0"), metadata=scheduler.metadata("n0"), timeout=60.0)
        next(orders)
        path.chmod(0o644)
        try:
            refused = connect(scheduler, "n0", "n0")
            is_open = goes_on(orders)
        finally:
            path.chmod(0o600)

        assert refused is grpc.StatusCode.UNAUTHENTICATED
        assert is_open
        orders.cancel()


def test_streams_of_others_go_on_when_a_token_is_revoked(scheduler: Serving) -> None:
    file = TokenFile(Path(scheduler.service.config.security.tokens))
    file.create("mallory", Role.USER, now_s=0.0)
    with grpc.insecure_channel(scheduler.address) as channel:
        agents = agent_pb2_grpc.AgentServiceStub(channel)
        orders = agents.Connect(heartbeats("n0"), metadata=scheduler.metadata("n0"), timeout=60.0)
        next(orders)
        file.revoke("mallory")

        assert goes_on(orders)
        orders.cancel()
