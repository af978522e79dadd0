"""The GPUs of a node: named, detected, of several types, in slices."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.runtime.agent.gpus import Gpus, find_gpus, parse_gpus, type_of_model


@pytest.mark.parametrize(
    ("model", "gpu_type"),
    [
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla K80", "k80"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA RTX A6000", "rtxa6000"),
    ],
)
def test_type_is_derived_from_the_model_name(model: str, gpu_type: str) -> None:
    assert type_of_model(model) == gpu_type


def test_devices_that_the_agent_may_see_are_those_of_its_jobs() -> None:
    assert find_gpus("v100:2", {"CUDA_VISIBLE_DEVICES": "4,6"}) == (Gpus("v100", ("4", "6")),)


def test_slices_of_a_gpu_are_a_type_of_their_own() -> None:
    (found,) = find_gpus("a100-1g.10gb:2", {"CUDA_VISIBLE_DEVICES": "MIG-1a,MIG-2b"})

    assert (found.gpu_type, found.variables(found.devices)) == (
        "a100-1g.10gb",
        {"CUDA_VISIBLE_DEVICES": "MIG-1a,MIG-2b"},
    )


def test_devices_go_to_the_types_in_order_but_for_those_that_the_configuration_names() -> None:
    named = {"a100-1g.10gb": ["MIG-1a", "MIG-2b"]}

    found = find_gpus("a100:2,a100-1g.10gb:2,t4:1", {"CUDA_VISIBLE_DEVICES": "5,6,7"}, "nvidia", named)

    assert [(gpus.gpu_type, gpus.devices) for gpus in found] == [
        ("a100", ("5", "6")),
        ("a100-1g.10gb", ("MIG-1a", "MIG-2b")),
        ("t4", ("7",)),
    ]


class Nvml(ModuleType):
    """As pynvml on a machine with a T4, an A100 with two slices, and another A100."""

    class NVMLError(Exception):
        """As pynvml's."""

    names = ("Tesla T4", b"NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB")

    def nvmlInit(self) -> None:  # noqa: N802 pynvml's name, as the others
        """Does nothing, as does its counterpart."""

    nvmlShutdown = nvmlInit  # noqa: N815

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle: int | str) -> str | bytes:  # noqa: N802
        return self.names[handle] if isinstance(handle, int) else f"NVIDIA A100-SXM4-40GB MIG {handle}"

    def nvmlDeviceGetMigMode(self, handle: int) -> tuple[int, int]:  # noqa: N802
        if handle == 0:
            raise self.NVMLError("not supported")
        return (1, 1) if handle == 1 else (0, 0)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, place: int) -> str:  # noqa: N802
        if place > 1:
            raise self.NVMLError("not found")
        return ("1g.5gb", "3g.20gb")[place]

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return f"MIG-{handle}"


def test_gpus_of_several_types_and_slices_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml("pynvml"))

    found = find_gpus("", {})

    assert [(gpus.gpu_type, gpus.devices) for gpus in found] == [
        ("a100", ("2",)),
        ("a100-1g.5gb", ("MIG-1g.5gb",)),
        ("a100-3g.20gb", ("MIG-3g.20gb",)),
        ("t4", ("0",)),
    ]


def test_gpus_of_amd_have_their_own_variable() -> None:
    (found,) = find_gpus("mi300x:2", {"HIP_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "0"}, "amd")

    assert found.variables(found.devices[1:]) == {"CUDA_VISIBLE_DEVICES": "3", "HIP_VISIBLE_DEVICES": "3"}


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: find_gpus("", {}, "amd"), "only NVIDIA's are, not those of vendor 'amd'"),
        (lambda: parse_gpus("v100"), "gpus must look like v100:4"),
        (lambda: parse_gpus("v100:0"), "1 to 1024 of them"),
        (lambda: find_gpus("v100:2", {"CUDA_VISIBLE_DEVICES": "4"}), "names 1 devices, got 'v100:2'"),
        (lambda: parse_gpus("v100:1,v100:2"), "each type once"),
        (lambda: find_gpus("v100:2,k80:1", {"CUDA_VISIBLE_DEVICES": "4,5"}), "names 2 devices, got 'v100:2,k80:1'"),
        (lambda: find_gpus("v100:2", {}, "nvidia", {"v100": ["3"]}), "devices must name 2 devices, each once"),
        (lambda: find_gpus("", {}, "nvidia", {"../v100": ["3"]}), "types must have names in lower case"),
        (lambda: find_gpus("", {}, "nvidia", {"v100": ["3", "3"]}), "each once, got .'3', '3'."),
    ],
)
def test_gpus_that_make_no_sense_are_refused(attempt: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        attempt()
