"""Log lines of a node in columns, and the request for a page of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gavelpy.errors import RemoteViolation

ALL_JOBS = -1


class LogsUnavailable(RemoteViolation):
    """A node did not answer a request for log lines; the message has the reason."""


@dataclass(frozen=True)
class LogRequest:
    """Which lines of a node to return."""

    job: int  # or ALL_JOBS
    jobs_allowed: tuple[int, ...] = ()
    rank: int = -1
    pattern: str = ""
    offset: int = 0  # a next_offset of this node
    tail_lines: int = 0
    lines_max: int = 1_000


@dataclass(frozen=True)
class LogOrigin:
    """The file that lines of a node are from."""

    job: int
    lease: int
    rank: int
    is_error_stream: bool


@dataclass(frozen=True, eq=False)
class LogLines:
    """Lines of one node in columns, oldest first."""

    origins: Sequence[LogOrigin] = ()
    origin: list[int] = field(default_factory=list)  # rows of origins
    time_s: list[float] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)  # after each line; empty if the agent is older than offsets

    def __len__(self) -> int:
        return len(self.text)

    def part(self, first: int, end: int) -> LogLines:
        """The lines from first up to end."""
        cut = slice(first, end)
        return LogLines(self.origins, self.origin[cut], self.time_s[cut], self.text[cut], self.offset[cut])

    def until(self, offset: int) -> LogLines:
        """The lines up to an offset; all if there are no offsets."""
        return self.part(0, bisect_right(self.offset, offset)) if self.offset else self

    def of_origins(self, rows: frozenset[int]) -> LogLines:
        """The lines of these origins."""
        if rows.issuperset(self.origin):
            return self
        kept = [row for row, origin in enumerate(self.origin) if origin in rows]
        return LogLines(
            self.origins,
            [self.origin[row] for row in kept],
            [self.time_s[row] for row in kept],
            [self.text[row] for row in kept],
            [self.offset[row] for row in kept] if self.offset else [],
        )


@dataclass(frozen=True)
class NodeLogPage:
    """Lines of one node, and the offset at which to continue."""

    lines: LogLines
    next_offset: int
    end_offset: int = 0  # follows all lines that existed at the time of the request; 0 = unknown
    removed: Mapping[int, int] = field(default_factory=dict)  # by job: lines before these; 0 = some


class LineSource(Protocol):
    """The logs of the nodes."""

    @property
    def node_ids(self) -> frozenset[str]:
        """The connected nodes."""

    async def page(self, node_id: str, request: LogRequest) -> NodeLogPage:
        """One page of a node's lines; raises LogsUnavailable."""


def joined(parts: Sequence[LogLines]) -> LogLines:
    """All lines, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    origins: list[LogOrigin] = []
    lines = LogLines(origins)
    has_offsets = all(part.offset for part in parts if len(part))
    for part in parts:
        lines.origin.extend(len(origins) + origin for origin in part.origin)
        origins.extend(part.origins)
        lines.time_s.extend(part.time_s)
        lines.text.extend(part.text)
        lines.offset.extend(part.offset if has_offsets else [])
    return lines
