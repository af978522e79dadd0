"""The GPUs of this node: from `--gpus`, or detected by NVIDIA's driver."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from gavelpy.errors import InvalidInput

GPUS_MAX: Final = 1024
NVIDIA, AMD = "nvidia", "amd"
VARIABLES: Final = {NVIDIA: "CUDA_VISIBLE_DEVICES", AMD: "HIP_VISIBLE_DEVICES"}  # by vendor
_PATTERN = re.compile(r"([a-z0-9][a-z0-9._-]{0,62}):(\d{1,4})")
NO_DEVICES: Final[Mapping[str, Sequence[str]]] = MappingProxyType({})
_VENDOR_WORDS: Final = frozenset({"nvidia", "tesla", "geforce", "quadro"})


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a node, all of one type."""

    gpu_type: str
    devices: tuple[str, ...]  # names of GPU 0, 1, ... for CUDA_VISIBLE_DEVICES: numbers, or UUIDs of GPUs or MIG slices
    vendor: str = NVIDIA

    def variables(self, visible: Sequence[str]) -> dict[str, str]:
        """The variables that limit a process to these devices. HIP reads both; the other tools of AMD only its own."""
        return dict.fromkeys(("CUDA_VISIBLE_DEVICES", VARIABLES[self.vendor]), ",".join(visible))


def parse_gpus(text: str) -> dict[str, int]:
    """`v100:4` as four GPUs of type v100; several types are separated by commas."""
    counts: dict[str, int] = {}
    for one in text.split(","):
        match = _PATTERN.fullmatch(one.strip())
        if not match or not 1 <= int(match[2]) <= GPUS_MAX or match[1] in counts:
            allowed = f"v100:4 (a type in lower case, then 1 to {GPUS_MAX} of them), or several such, each type once"
            raise InvalidInput(f"gpus must look like {allowed}, got {text[:80]!r}")
        counts[match[1]] = int(match[2])
    return counts


def find_gpus(
    option: str, environment: Mapping[str, str], vendor: str = NVIDIA, devices: Mapping[str, Sequence[str]] = NO_DEVICES
) -> tuple[Gpus, ...]:
    """The GPUs of each type that `option` (`--gpus`) names, else those of the driver; InvalidInput if there are none.

    If CUDA_VISIBLE_DEVICES (of AMD: HIP_VISIBLE_DEVICES) is set for the agent, its jobs get these devices, in the order
    of the types in `option`. `devices`: those of types for which the configuration names them.
    """
    variable = VARIABLES[vendor]
    visible = [device.strip() for device in environment.get(variable, "").split(",") if device.strip()]
    if option or devices:
        return _named_gpus(option, visible, vendor, devices)
    if vendor != NVIDIA:
        raise _no_gpus(f"only NVIDIA's are, not those of vendor {vendor!r}")
    found = _driver_gpus()
    return gpus_of({device: name for device, name in found.items() if not visible or device in visible})


def _named_gpus(
    option: str, visible: Sequence[str], vendor: str, devices: Mapping[str, Sequence[str]]
) -> tuple[Gpus, ...]:
    counts = parse_gpus(option) if option else {}
    for name, own in devices.items():
        if not _PATTERN.fullmatch(f"{name}:{len(own)}"):
            raise InvalidInput(f"types must have names in lower case and 1 to {GPUS_MAX} devices, got {name[:80]!r}")
        if counts.setdefault(name, len(own)) != len(own) or len(set(own)) < len(own):
            raise InvalidInput(f"types.{name}.devices must name {counts[name]} devices, each once, got {list(own)}")
    count = sum(count for name, count in counts.items() if name not in devices)
    if visible and count and len(visible) != count:
        variable = VARIABLES[vendor]
        raise InvalidInput(f"gpus must agree with {variable}, which names {len(visible)} devices, got {option!r}")
    free = iter(visible or map(str, range(count)))
    return tuple(Gpus(name, tuple(devices.get(name) or islice(free, count)), vendor) for name, count in counts.items())


def gpus_of(names: Mapping[str, str]) -> tuple[Gpus, ...]:
    """The GPUs of each type, from model names by device."""
    by_type: dict[str, list[str]] = {}
    for device, name in names.items():
        by_type.setdefault(type_of_model(name), []).append(device)
    if not by_type:
        raise _no_gpus("NVIDIA's driver reports none of those in CUDA_VISIBLE_DEVICES")
    return tuple(Gpus(gpu_type, tuple(devices)) for gpu_type, devices in sorted(by_type.items()))


def type_of_model(model: str) -> str:
    """The GPU type of a product name as the driver reports it; agents and `gavel profile` use the same names.

    >>> type_of_model("Tesla V100-SXM2-16GB"), type_of_model("NVIDIA A100 80GB PCIe"), type_of_model("NVIDIA RTX A6000")
    ('v100', 'a100', 'rtxa6000')
    >>> type_of_model("NVIDIA A100-SXM4-40GB MIG 1g.5gb")
    'a100-1g.5gb'
    """
    model, _, slices = model.partition(" MIG ")
    if slices:
        return f"{type_of_model(model)}-{re.sub(r'[^a-z0-9.]+', '.', slices.lower()).strip('.')}"
    words = [word for word in re.split(r"[^a-z0-9]+", model.lower()) if word and word not in _VENDOR_WORDS]
    if not words:
        raise InvalidInput(
            f"the driver reports a GPU {model!r}, which contains no type: name the type with --gpus of gavel-node, "
            "--gpu-type of gavel profile"
        )
    has_digit = any(character.isdigit() for character in words[0])
    return words[0] if has_digit else "".join(words[:2])


def _driver_gpus() -> dict[str, str]:
    """Model names from NVIDIA's driver, by number in the order of the bus."""
    try:
        import pynvml  # type: ignore[import-untyped]  # it has no types
    except ImportError:
        raise _no_gpus("nvidia-ml-py is not installed") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise _no_gpus(f"NVIDIA's driver does not answer: {error}") from None
    try:
        names = dict(_devices(pynvml))
    except pynvml.NVMLError as error:
        raise _no_gpus(f"NVIDIA's driver cannot list the GPUs: {error}") from None
    finally:
        pynvml.nvmlShutdown()
    if not names:
        raise _no_gpus("NVIDIA's driver reports no GPU")
    return names


def _devices(nvml: Any) -> Iterator[tuple[str, str]]:  # Any: the module, which has no types
    """Number and model of each GPU, or UUID and model of each of its MIG slices, if it is divided."""
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        name = _text(nvml.nvmlDeviceGetName(gpu))
        try:
            is_divided = nvml.nvmlDeviceGetMigMode(gpu)[0] == 1
        except nvml.NVMLError:  # the model has no MIG
            is_divided = False
        if not is_divided:
            yield str(index), name
            continue
        for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            try:
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
            except nvml.NVMLError:  # there is no slice
                continue
            yield _text(nvml.nvmlDeviceGetUUID(part)), _text(nvml.nvmlDeviceGetName(part))


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


def _no_gpus(why: str) -> InvalidInput:
    return InvalidInput(f"gpus must be given, for example --gpus v100:4: they cannot be detected ({why})")
