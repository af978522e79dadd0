"""A node with several GPU types: its parts, and how they divide the machine."""

from __future__ import annotations

import msgspec
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.runtime.agent.config import NodeConfig
from gavelpy.runtime.agent.parts import NodePart, parts_of


def parts(gpus: str, types: dict[str, object] | None = None, **options: object) -> tuple[NodePart, ...]:
    """The parts of a node with 16 CPU cores and 100 GiB."""
    given = {"node_id": "n3", "state_directory": "/state", "cpus": 16.0, "memory_gib": 100.0, "gpus": gpus, **options}
    return parts_of(msgspec.convert({**given, "types": types or {}}, NodeConfig), {})


def test_a_node_with_one_type_keeps_its_name_and_state() -> None:
    ((config, gpus),) = parts("a100:2")

    assert (config.node_id, config.state_directory, config.cpus) == ("n3", "/state", 16.0)
    assert gpus.devices == ("0", "1")


def test_each_type_is_a_node_with_a_share_of_the_machine() -> None:
    found = parts("a100:3,a100-1g.10gb:1", peer_port=7100)

    assert [config.node_id for config, _ in found] == ["n3/a100", "n3/a100-1g.10gb"]
    assert [str(config.state) for config, _ in found] == ["/state/types/a100", "/state/types/a100-1g.10gb"]
    assert [(config.cpus, config.memory_gib) for config, _ in found] == [(12.0, 75.0), (4.0, 25.0)]
    assert [config.peer_port for config, _ in found] == [7100, 7101]
    assert [gpus.devices for _, gpus in found] == [("0", "1", "2"), ("3",)]


def test_a_part_has_what_the_configuration_gives_it_and_the_others_divide_the_rest() -> None:
    own = {"devices": ["MIG-a", "MIG-b"], "cpus": 4.0, "vendor": "nvidia"}

    found = parts("a100:1,t4:2", {"a100-1g.10gb": own}, cpus_reserved=3.0)

    assert {gpus.gpu_type: config.cpus for config, gpus in found} == {"a100": 3.0, "t4": 6.0, "a100-1g.10gb": 4.0}
    assert sum(config.memory_gib for config, _ in found) <= 100.0


def test_parts_can_be_of_two_vendors() -> None:
    types = {"a100": {"devices": ["0"]}, "mi300x": {"devices": ["0"], "vendor": "amd"}}

    variables = [gpus.variables(gpus.devices) for _, gpus in parts("", types)]

    assert variables == [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"}]


@pytest.mark.parametrize(
    ("gpus", "types", "message"),
    [
        ("a100:1,t4:1", {"a100": {"cpus": 17.0}}, "must leave cpus of the node for each part: it has 16, got .17"),
        ("a100:1,t4:1", {"a100": {"memory_gib": 100.0}}, "must leave memory_gib"),
        ("a100:1", {"t4": {"cpus": 1.0}}, "types must be GPU types of this node .a100., got t4"),
        ("a100:1", {"a100": {"vendor": "intel"}}, "vendor must be one of"),
    ],
)
def test_parts_that_cannot_be_are_refused(gpus: str, types: dict[str, object], message: str) -> None:
    with pytest.raises((InvalidInput, msgspec.ValidationError), match=message):
        parts(gpus, types)
