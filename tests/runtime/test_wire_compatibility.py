"""Messages of an older version and of this one: each reads those of the other, and loses nothing that it does not know.

`fixtures/older.protoset` has the messages of the first version with standbys (c352b8d), as protoc describes them.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool

PROTOSET = Path(__file__).parent / "fixtures" / "older.protoset"
FILES = ("agent", "client", "job", "log", "peer", "software")


def older_pool() -> DescriptorPool:
    """The messages of the older version, apart from those of this one."""
    pool = DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(PROTOSET.read_bytes()).file:
        pool.Add(file)  # type: ignore[no-untyped-call]  # of a library without this type
    return pool


POOL = older_pool()
NOW = {
    name: message
    for file in FILES
    for name, message in importlib.import_module(
        f"gavelpy.runtime.wire.{file}_pb2"
    ).DESCRIPTOR.message_types_by_name.items()
}
THEN = {
    name: message
    for file in FILES
    for name, message in POOL.FindFileByName(f"gavelpy/runtime/wire/{file}.proto").message_types_by_name.items()
}
SERVICES = [
    (file, service)
    for file in FILES
    for service in POOL.FindFileByName(f"gavelpy/runtime/wire/{file}.proto").services_by_name.values()
]


def made(kind: Any) -> Any:
    """An empty message."""
    return message_factory.GetMessageClass(kind)()


def filled(kind: Any, depth: int = 3) -> Any:
    """A message with a value in each field."""
    message = made(kind)
    for field in kind.fields:
        if field.message_type is None:
            value = _value(field)
            if field.is_repeated:
                getattr(message, field.name).append(value)
            elif field.containing_oneof is None or len(field.containing_oneof.fields) == 1:
                setattr(message, field.name, value)
        elif field.message_type.GetOptions().map_entry:
            _fill_map(getattr(message, field.name), field.message_type)
        elif depth:
            inner = filled(field.message_type, depth - 1)
            target = getattr(message, field.name)
            (target.add() if field.is_repeated else target).CopyFrom(inner)
    return message


def _fill_map(target: Any, entry: Any) -> None:
    key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
    if value.message_type is None:
        target[_value(key)] = _value(value)
    else:
        target[_value(key)].CopyFrom(filled(value.message_type, 1))


def _value(field: Any) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return b"bytes" if field.type == FieldDescriptor.TYPE_BYTES else f"text {field.number}"
        case FieldDescriptor.CPPTYPE_ENUM:
            return field.enum_type.values[-1].number
        case FieldDescriptor.CPPTYPE_BOOL:
            return True
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return field.number + 0.5
        case _:
            return field.number


def shape(field: Any) -> tuple[int, int, bool]:
    """What both versions must agree on: number, type and repetition."""
    return field.number, field.type, field.is_repeated


@pytest.mark.parametrize("name", sorted(THEN))
def test_fields_keep_their_number_and_type(name: str) -> None:
    kept = {shape(field) for field in NOW[name].fields}

    assert {shape(field) for field in THEN[name].fields} <= kept


@pytest.mark.parametrize("name", sorted(THEN))
def test_older_message_is_read_with_defaults_for_later_fields(name: str) -> None:
    older = filled(THEN[name])

    read = made(NOW[name])
    read.ParseFromString(older.SerializeToString())

    known = {field.number for field in THEN[name].fields}
    assert {field.number for field, _ in read.ListFields()} <= known
    back = made(THEN[name])
    back.ParseFromString(read.SerializeToString())
    assert back == older


@pytest.mark.parametrize("name", sorted(THEN))
def test_message_of_this_version_passes_through_an_older_one(name: str) -> None:
    message = filled(NOW[name])

    older = made(THEN[name])
    older.ParseFromString(message.SerializeToString())

    back = made(NOW[name])
    back.ParseFromString(older.SerializeToString())
    assert back == message  # fields that it does not know are kept


@pytest.mark.parametrize(("file", "older"), SERVICES, ids=[service.name for _, service in SERVICES])
def test_methods_keep_their_messages(file: str, older: Any) -> None:
    module = importlib.import_module(f"gavelpy.runtime.wire.{file}_pb2")
    now = {
        method.name: (method.input_type.full_name, method.output_type.full_name)
        for method in module.DESCRIPTOR.services_by_name[older.name].methods
    }

    assert {m.name: (m.input_type.full_name, m.output_type.full_name) for m in older.methods}.items() <= now.items()
