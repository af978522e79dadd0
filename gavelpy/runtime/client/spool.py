"""Submissions that wait on this machine until a scheduler answers: one file for each, with its idempotency key.

A submission is delivered with the key with which it was kept, so it counts once however often it is sent, also if the
first call reached the scheduler and its answer was lost. A scheduler remembers keys for 30 days; a file that is older
than KEPT_S is not delivered.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from gavelpy.errors import InvalidInput
from gavelpy.runtime.wire import client_pb2 as pb

KEPT_S = 29 * 86_400.0
_VERSION = 1


@dataclass(frozen=True)
class KeptSubmission:
    """A submission in the spool."""

    file: Path
    at_s: float  # Unix time at which it was kept
    scheduler: str  # address or addresses that it was for
    request: pb.SubmitJobsRequest

    @property
    def key(self) -> str:
        """Its idempotency key."""
        return self.request.idempotency_key

    def is_too_old(self, now_s: float) -> bool:
        """Whether the scheduler may have forgotten its key, so that it could count twice."""
        return now_s - self.at_s > KEPT_S


class SpoolContents(NamedTuple):
    """All files of the spool."""

    submissions: list[KeptSubmission]  # the oldest first
    unreadable: dict[Path, InvalidInput]  # files that are no kept submission, in order of their names, and why


class Spool:
    """A directory of this user, which is made when something is kept."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def keep(self, scheduler: str, request: pb.SubmitJobsRequest, now_s: float) -> Path:
        """Writes a submission to disk, durably; returns its file. Raises OSError."""
        made = [path for path in (self.directory, *self.directory.parents) if not path.exists()]
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = base64.b64encode(request.SerializeToString()).decode()
        record = {"version": _VERSION, "at_s": now_s, "scheduler": scheduler, "request": content}
        file = self.directory / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(now_s))}-{request.idempotency_key}.json"
        temporary = file.with_suffix(f".{os.getpid()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as written:
            json.dump(record, written)
            written.flush()
            os.fsync(written.fileno())
        temporary.replace(file)
        for directory in (self.directory, *(path.parent for path in made)):
            _sync(directory)
        return file

    def contents(self) -> SpoolContents:
        """What is kept; a file that cannot be read does not hide the others."""
        found, unreadable = [], {}
        for file in sorted(self.directory.glob("*.json")) if self.directory.is_dir() else ():
            try:
                found.append(_read(file))
            except InvalidInput as error:
                if file.exists():  # else another process has just delivered it
                    unreadable[file] = error
        return SpoolContents(sorted(found, key=lambda one: (one.at_s, one.key)), unreadable)


def spool_of(environment: Mapping[str, str]) -> Spool:
    """The spool of this user."""
    home = Path(environment.get("HOME", "/"))
    state = Path(environment.get("XDG_STATE_HOME") or home / ".local" / "state")
    return Spool(state / "gavel" / "spool")


def _sync(directory: Path) -> None:
    """Makes the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(file: Path) -> KeptSubmission:
    try:
        record: Any = json.loads(file.read_text())  # of any shape
        if record["version"] != _VERSION:
            raise InvalidInput(f"version must be {_VERSION}, got {record['version']!r}", file=str(file))
        request = pb.SubmitJobsRequest.FromString(base64.b64decode(record["request"], validate=True))
        kept = KeptSubmission(file, float(record["at_s"]), str(record["scheduler"]), request)
    except (OSError, ValueError, LookupError, TypeError, binascii.Error, DecodeError) as error:
        raise InvalidInput(f"must be a kept submission; it cannot be read: {error}", file=str(file)) from None
    if not kept.key or not request.jobs:
        raise InvalidInput("must be a kept submission with a key and jobs", file=str(file))
    return kept
