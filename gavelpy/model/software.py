"""The software that a job runs with: a virtual or conda environment, an archive of its code, an image of a container.

Without numpy: the agent loads this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gavelpy.errors import InvalidInput

PATH_CHARACTERS_MAX = 4_096
OF_SYSTEM = ("/", "/proc", "/sys", "/dev", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/run", "/var")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?(?::[0-9]{1,5})?"
_REFERENCE = re.compile(
    rf"(?:{_HOST}/)?[a-z0-9][a-z0-9._-]*(?:/[a-z0-9][a-z0-9._-]*)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?"
    r"(?:@sha256:[0-9a-f]{64})?"
)


@dataclass(frozen=True)
class Software:
    """What a job runs with, in addition to its command; empty = that of the node. Raises InvalidInput."""

    venv: str = ""  # path of a virtual environment
    conda: str = ""  # path (prefix) of a conda environment
    snapshot: str = ""  # SHA-256 of an archive of the code, in hexadecimal digits
    image: str = ""  # of a container: a name in a registry, or the path of a file of apptainer on the nodes

    def __post_init__(self) -> None:
        for name in ("venv", "conda"):
            _check_path(name, getattr(self, name))
        if self.venv and self.conda:
            raise InvalidInput(f"conda must be empty if venv is given, got {self.conda!r} and {self.venv!r}")
        if self.snapshot and not _DIGEST.fullmatch(self.snapshot):
            raise InvalidInput(f"snapshot must be a SHA-256 in 64 hexadecimal digits, got {self.snapshot[:80]!r}")
        if self.image:
            self._check_image()

    def _check_image(self) -> None:
        if self.image.startswith("/"):
            _check_path("image", self.image)
        is_path = self.image.startswith("/") and ".." not in self.image.split("/")
        if not is_path and (len(self.image) > PATH_CHARACTERS_MAX or not _REFERENCE.fullmatch(self.image)):
            allowed = "a name such as docker.io/library/python:3.12, or the absolute path of a .sif file"
            raise InvalidInput(f"image must be {allowed}, got {self.image[:80]!r}")
        if self.prefix:
            raise InvalidInput(
                f"image must be empty if {'venv' if self.venv else 'conda'} is given, as a container has its own "
                f"software, got {self.image[:80]!r}"
            )

    @classmethod
    def of(cls, value: Software | Mapping[str, Any]) -> Software:
        """The software of its fields by name, as in a snapshot of the scheduler's state."""
        return value if isinstance(value, Software) else cls(**value)

    @property
    def prefix(self) -> str:
        """The directory of which `bin` comes first in PATH; empty = none."""
        return self.venv or self.conda

    def activate(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment with the virtual or conda environment activated."""
        if not self.prefix:
            return dict(environment)
        others = {name: value for name, value in environment.items() if name not in ("VIRTUAL_ENV", "PYTHONHOME")}
        path = f"{self.prefix}/bin:{environment.get('PATH', '')}".rstrip(":")
        if self.venv:
            return {**others, "PATH": path, "VIRTUAL_ENV": self.venv}
        name = self.conda.rstrip("/").rpartition("/")[2]
        return {**others, "PATH": path, "CONDA_PREFIX": self.conda, "CONDA_DEFAULT_ENV": name}


def _check_path(name: str, path: str) -> None:
    if len(path) > PATH_CHARACTERS_MAX or not path.isprintable() or ":" in path or (path and path[0] != "/"):
        allowed = f"an absolute path of at most {PATH_CHARACTERS_MAX} printable characters without ':'"
        raise InvalidInput(f"{name} must be {allowed}, got {path[:80]!r}")


OF_NODE = Software()
