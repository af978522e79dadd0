"""Messages that no honest client sends: random bytes, fields of extreme values, streams in the wrong order."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from gavelpy.runtime.wire import agent_pb2
from gavelpy.runtime.wire import client_pb2 as pb

INTEGERS = (0, 1, -1, 2, 7, 2**31 - 1, -(2**31), 2**32 - 1, 2**53, 2**63 - 1, -(2**63), 2**64 - 1)
NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, 60.0, 1e-308, 5e-324, 1e308, -1e308, math.inf, -math.inf, math.nan, 1e9, 1e15)
TEXTS = (
    "", "a", "train", "alice/train", "0", "-1", "99999999999999999999", "../../etc/passwd", "/", "..", "a" * 130, "a b",
    "a\nb", "\x1b[31m", "\x00", "\u202e", "ä" * 50, "'", '"unclosed', "python train.py", "{index}", "%s%n", "v100",
    "max_min_fairness", "{}", '{"by": 1}', "[" * 5_000, "(a+)+$", "[", "(?P<n>", "*", "GAVEL_JOB_ID", "PATH=", "n0",
    "\\",
)  # fmt: skip
RANGES = {"int32": (31, True), "sint32": (31, True), "int64": (63, True), "uint32": (32, False), "uint64": (64, False)}

METHODS: dict[str, type[Message]] = {
    "GetServerInfo": pb.GetServerInfoRequest,
    "SubmitJobs": pb.SubmitJobsRequest,
    "ListJobs": pb.ListJobsRequest,
    "GetJob": pb.GetJobRequest,
    "WaitJobs": pb.WaitJobsRequest,
    "CancelJobs": pb.CancelJobsRequest,
    "CancelApp": pb.CancelAppRequest,
    "ListNodes": pb.ListNodesRequest,
    "ListReservations": pb.ListReservationsRequest,
    "DeleteReservation": pb.DeleteReservationRequest,
    "ReserveNodes": pb.ReserveNodesRequest,
    "SetNode": pb.SetNodeRequest,
    "GetCluster": pb.GetClusterRequest,
    "SetPolicy": pb.SetPolicyRequest,
    "ListEvents": pb.ListEventsRequest,
    "ReadLogs": pb.ReadLogsRequest,
}
STREAMING = ("ListEvents", "ReadLogs")


def random_bytes(rng: random.Random) -> bytes:
    """Noise, or a good message with a few bytes changed, cut or repeated."""
    if rng.random() < 0.5:
        return rng.randbytes(rng.choice((1, 3, 10, 100, 1_000, 20_000)))
    whole = bytearray(random_message(rng.choice(list(METHODS.values())), rng).SerializeToString())
    for _ in range(rng.randint(1, 5)):
        if whole:
            whole[rng.randrange(len(whole))] = rng.randrange(256)
    cut = rng.randint(0, len(whole))
    return bytes(whole[:cut]) * rng.randint(1, 2)


def random_message(kind: type[Message], rng: random.Random, depth: int = 0) -> Any:
    """A message in which each field may have an extreme value."""
    message = kind()
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.4:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _fill_map(getattr(message, field.name), field.message_type.fields_by_name, rng, depth)
        elif field.is_repeated:
            _fill(getattr(message, field.name), field, rng, depth)
        elif field.message_type is not None:
            if depth < 3:
                inner = field.message_type._concrete_class
                getattr(message, field.name).CopyFrom(random_message(inner, rng, depth + 1))
        else:
            setattr(message, field.name, _scalar(field, rng))
    return message


def _fill_map(into: Any, fields: Any, rng: random.Random, depth: int) -> None:
    keys, values = fields["key"], fields["value"]
    for _ in range(rng.choice((1, 2, 70))):
        is_text = keys.type == keys.TYPE_STRING
        key = f"{_text(rng)[:50]}{rng.randrange(99)}" if is_text else _scalar(keys, rng)
        if values.message_type is None:
            into[key] = _scalar(values, rng)
        elif depth < 3:
            into[key].CopyFrom(random_message(values.message_type._concrete_class, rng, depth + 1))


def _fill(into: Any, field: Any, rng: random.Random, depth: int) -> None:
    for _ in range(rng.choice((1, 1, 2, 30))):
        if field.message_type is None:
            into.append(_scalar(field, rng))
        elif depth < 3:
            into.append(random_message(field.message_type._concrete_class, rng, depth + 1))


def _scalar(field: Any, rng: random.Random) -> Any:
    kind = {field.TYPE_INT32: "int32", field.TYPE_SINT32: "sint32", field.TYPE_INT64: "int64",
            field.TYPE_UINT32: "uint32", field.TYPE_UINT64: "uint64"}.get(field.type)  # fmt: skip
    if kind is not None:
        return _integer(kind, rng)
    choices: dict[int, Callable[[], Any]] = {
        field.TYPE_BOOL: lambda: rng.random() < 0.5,
        field.TYPE_DOUBLE: lambda: rng.choice(NUMBERS),
        field.TYPE_ENUM: lambda: rng.choice((0, 1, 2, 3, 6, 99, -1, 2**31 - 1)),
        field.TYPE_STRING: lambda: _text(rng),
    }
    return choices[field.type]()


def _integer(kind: str, rng: random.Random) -> int:
    bits, is_signed = RANGES[kind]
    low, high = (-(2**bits) if is_signed else 0), 2**bits - 1
    return min(max(rng.choice(INTEGERS), low), high)


def _text(rng: random.Random) -> str:
    text = rng.choice(TEXTS)
    return text * 2_000 if rng.random() < 0.01 else text


def random_stream(rng: random.Random, kind: type[Message], node_ids: tuple[str, ...]) -> list[Any]:
    """A stream of a faulty agent: any messages in any order, with any node id."""
    messages: list[Any] = []
    for _ in range(rng.randint(0, 4)):
        if rng.random() < 0.2:
            messages.append(rng.randbytes(rng.choice((1, 10, 1_000))))
            continue
        message = random_message(kind, rng)
        if isinstance(message, agent_pb2.ConnectRequest):
            if rng.random() < 0.5:
                message.node.node_id = rng.choice(node_ids)
        elif isinstance(message, agent_pb2.ServeLogsRequest):
            message.node_id = rng.choice(node_ids)
        messages.append(message.SerializeToString())
    return messages
