"""The GPUs of this node: from `--gpus`, or detected by NVIDIA's driver."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gavelpy.errors import InvalidInput

GPUS_MAX: Final = 1024
NVIDIA, AMD = "nvidia", "amd"
VARIABLES: Final = {NVIDIA: "CUDA_VISIBLE_DEVICES", AMD: "HIP_VISIBLE_DEVICES"}  # by vendor
_PATTERN = re.compile(r"([a-z0-9][a-z0-9._-]{0,62}):(\d{1,4})")
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


def parse_gpus(text: str) -> Gpus:
    """`v100:4` as four GPUs of type v100."""
    match = _PATTERN.fullmatch(text)
    if not match or not 1 <= int(match[2]) <= GPUS_MAX:
        raise InvalidInput(
            f"gpus must look like v100:4 (a type in lower case, then 1 to {GPUS_MAX} of them), got {text[:80]!r}"
        )
    return Gpus(match[1], tuple(str(index) for index in range(int(match[2]))))


def find_gpus(option: str, environment: Mapping[str, str], vendor: str = NVIDIA) -> Gpus:
    """The GPUs that `option` (`--gpus`) names, else those of the driver; InvalidInput if there are none.

    If CUDA_VISIBLE_DEVICES (of AMD: HIP_VISIBLE_DEVICES) is set for the agent, its jobs get these devices.
    """
    variable = VARIABLES[vendor]
    visible = [device.strip() for device in environment.get(variable, "").split(",") if device.strip()]
    if option:
        gpus = parse_gpus(option)
        if visible and len(visible) != len(gpus.devices):
            raise InvalidInput(f"gpus must agree with {variable}, which names {len(visible)} devices, got {option!r}")
        return Gpus(gpus.gpu_type, tuple(visible) or gpus.devices, vendor)
    if vendor != NVIDIA:
        raise _no_gpus(f"only NVIDIA's are, not those of vendor {vendor!r}")
    found = _driver_gpus()
    chosen = {device: name for device, name in found.items() if not visible or device in visible}
    return gpus_of(chosen)


def gpus_of(names: Mapping[str, str]) -> Gpus:
    """The GPUs, from model names by device."""
    types = sorted({type_of_model(name) for name in names.values()})
    if len(types) != 1:
        raise InvalidInput(
            f"a node must have GPUs of one type, got {', '.join(types) or 'none'}: start one gavel-node for each type, "
            "with its devices in CUDA_VISIBLE_DEVICES and its own --node-id and --state-dir"
        )
    return Gpus(types[0], tuple(names))


def type_of_model(model: str) -> str:
    """The GPU type of a product name as the driver reports it; agents and `gavel profile` use the same names.

    >>> type_of_model("Tesla V100-SXM2-16GB"), type_of_model("NVIDIA A100 80GB PCIe"), type_of_model("NVIDIA RTX A6000")
    ('v100', 'a100', 'rtxa6000')
    """
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
        handles: Sequence[object] = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        names = [pynvml.nvmlDeviceGetName(handle) for handle in handles]
    except pynvml.NVMLError as error:
        raise _no_gpus(f"NVIDIA's driver cannot list the GPUs: {error}") from None
    finally:
        pynvml.nvmlShutdown()
    if not names:
        raise _no_gpus("NVIDIA's driver reports no GPU")
    return {str(index): name if isinstance(name, str) else name.decode() for index, name in enumerate(names)}


def _no_gpus(why: str) -> InvalidInput:
    return InvalidInput(f"gpus must be given, for example --gpus v100:4: they cannot be detected ({why})")
