"""Which container images a node runs, and with what: the tool that was found, and the operator's rules.

The tool is looked for once, when the agent starts, in the agent's PATH. What it needs of the node (subordinate ids of
the account, disk space, a registry) shows when a job starts. A job whose image a node does not run is refused by it,
and waits for another node, like a job whose owner the node does not know.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from gavelpy.errors import InvalidInput
from gavelpy.model.software import OF_SYSTEM
from gavelpy.runtime.shim.containers import APPTAINER, PODMAN

NONE: Final = "none"
TOOLS: Final = ("", PODMAN, APPTAINER, NONE)
NO: Final = "no: "
NVIDIA: Final = Path("/dev/nvidiactl")
_VERSION_S: Final = 20.0


@dataclass(frozen=True)
class ImageRules:
    """What a node does with jobs that have an image. `text`: for people, the tool's version or why there is none."""

    text: str = f"{NO}not looked for"
    tool: str = ""  # empty = jobs with an image are refused
    program: str = ""
    allowed: tuple[str, ...] = ("*",)
    mounts: tuple[str, ...] = ()  # directories that all containers see
    has_gpus: bool = False  # of NVIDIA's driver

    def refusal(self, image: str, node_id: str, uid: int) -> str:
        """Why the node does not run a job with this image as this account; empty = it does."""
        if not self.tool:
            return f"node {node_id} runs no containers ({self.text.removeprefix(NO)}); the job's image is {image}"
        if not any(fnmatchcase(image, pattern) for pattern in self.allowed):
            patterns = ", ".join(self.allowed) or "none"
            return f"node {node_id} does not run the image {image}; allowed are: {patterns}"
        if image.startswith("/") and self.tool != APPTAINER:
            return f"node {node_id} has no apptainer, which the image {image} needs: it has {self.text}"
        if uid == 0:
            return f"node {node_id} runs containers without root only, and this job's account is root"
        return ""

    def fields(self, devices: Sequence[str], home: str, checkpoints: Path) -> dict[str, str]:
        """What the shim needs for the container, in addition to the image."""
        return {
            "tool": self.tool,
            "program": self.program,
            "devices": json.dumps(list(devices) if self.has_gpus else []),
            "mounts": json.dumps([str(checkpoints), *self.mounts]),
            "home": home,
        }

    def visible(self, devices: Sequence[str]) -> list[str]:
        """The names of GPUs in a container: podman's has the lease's only, so numbers begin at 0."""
        if self.tool != PODMAN or not self.has_gpus:
            return list(devices)
        return [str(row) if device.isdecimal() else device for row, device in enumerate(devices)]


def check_rules(tool: str, allowed: Sequence[str], mounts: Sequence[str]) -> None:
    """Raises InvalidInput for a configuration that means nothing."""
    if tool not in TOOLS:
        raise InvalidInput(f"image_tool must be one of {', '.join(map(repr, TOOLS))}, got {tool[:80]!r}")
    for pattern in allowed:
        if not pattern or not pattern.isprintable() or " " in pattern:
            raise InvalidInput(f"images must be names or patterns such as docker.io/pytorch/*, got {pattern[:80]!r}")
    for directory in mounts:
        if not directory.startswith("/") or directory.rstrip("/") in (*OF_SYSTEM, "") or not directory.isprintable():
            raise InvalidInput(
                f"image_mounts must be absolute paths of directories that hide nothing of an image, "
                f"got {directory[:80]!r}"
            )


def find_images(
    tool: str,
    allowed: Sequence[str],
    mounts: Sequence[str],
    speed_factor: float,
    environment: Mapping[str, str],
    status: Path = Path("/proc/self/status"),
) -> ImageRules:
    """The rules, with the tool that works here. Runs programs: call it before the agent's loop, or in a thread."""
    if tool == NONE:
        return ImageRules(f"{NO}image_tool is 'none'")
    if speed_factor < 1.0:
        return ImageRules(f"{NO}a speed_factor below 1 cannot pause containers")
    reasons = []
    for name in (tool,) if tool else (PODMAN, APPTAINER):
        version = _version(name, environment)
        why = version.removeprefix(NO) if version.startswith(NO) else _hindrance(name, environment, status)
        if not why:
            program = shutil.which(name, path=environment.get("PATH"))
            assert program is not None, "its version is known"
            return ImageRules(version, name, program, tuple(allowed), tuple(mounts), NVIDIA.exists())
        reasons.append(why)
    return ImageRules(NO + "; ".join(reasons))


def _version(name: str, environment: Mapping[str, str]) -> str:
    """`podman 4.3.1`, or why it cannot be used."""
    program = shutil.which(name, path=environment.get("PATH"))
    if program is None:
        return f"{NO}{name} is not installed"
    try:
        found = subprocess.run(
            [program, "--version"], env=dict(environment), cwd="/", capture_output=True, timeout=_VERSION_S, check=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return f"{NO}{name} does not work ({type(error).__name__})"
    number = re.search(rb"[0-9]+(\.[0-9]+)+", found.stdout)
    return f"{name} {number[0].decode()}" if number else f"{NO}{name} does not report its version"


def _hindrance(name: str, environment: Mapping[str, str], status: Path) -> str:
    """What keeps an installed tool from running containers without root; empty = nothing that can be seen."""
    if name != PODMAN:
        return ""
    missing = [part for part in ("crun", "newuidmap") if shutil.which(part, path=environment.get("PATH")) is None]
    if missing:
        return f"podman needs {' and '.join(missing)}"
    if re.search(r"^NoNewPrivs:\s*1$", status.read_text(), re.MULTILINE) and os.geteuid() == 0:
        return "podman needs NoNewPrivileges=no in the agent's unit"
    return ""
