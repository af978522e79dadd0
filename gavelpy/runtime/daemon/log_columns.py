"""Lines of logs in columns: as nodes send them, cut, and packed for clients. No work a line where many travel."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.wire import agent_pb2, log_pb2
from gavelpy.runtime.wire import client_pb2 as pb


@dataclass(frozen=True)
class Origin:
    """Where lines of a node are from."""

    job: int
    lease: int
    rank: int
    is_error_stream: bool


@dataclass(eq=False)
class LogColumns:
    """Lines, oldest first, a row each."""

    origins: Sequence[Origin] = ()
    origin: list[int] = field(default_factory=list)  # rows of origins
    time_s: list[float] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)  # after each line; empty where an older agent does not tell

    def __len__(self) -> int:
        return len(self.text)

    def part(self, first: int, end: int) -> LogColumns:
        """Some of the lines."""
        cut = slice(first, end)
        return LogColumns(self.origins, self.origin[cut], self.time_s[cut], self.text[cut], self.offset[cut])

    def chosen(self, wanted: frozenset[int]) -> LogColumns:
        """The lines of these origins, by row."""
        if wanted.issuperset(self.origin):
            return self
        rows = [row for row, origin in enumerate(self.origin) if origin in wanted]
        return LogColumns(
            self.origins,
            [self.origin[row] for row in rows],
            [self.time_s[row] for row in rows],
            [self.text[row] for row in rows],
            [self.offset[row] for row in rows] if self.offset else [],
        )

    def upto(self, offset: int) -> LogColumns:
        """The lines up to an offset; all, where no offsets are told."""
        return self.part(0, bisect_right(self.offset, offset)) if self.offset else self


def columns_of(answer: agent_pb2.ServeLogsRequest) -> LogColumns:
    """The lines of an answer, of an agent that knows batches or of one that does not; raises RemoteViolation."""
    if not answer.HasField("batch"):
        return _columns_of_lines(answer.lines)
    batch = answer.batch
    lengths = {len(batch.origin), len(batch.time_s), len(batch.text), len(batch.offset)}
    if len(lengths) > 1:
        raise RemoteViolation(f"columns of a batch must be of one length, got {sorted(lengths)}")
    if batch.origin and max(batch.origin) >= len(batch.origins):
        raise RemoteViolation(f"origin must be below {len(batch.origins)}, got {max(batch.origin)}")
    origins = [Origin(one.job, one.lease, one.rank, one.is_error_stream) for one in batch.origins]
    return LogColumns(origins, list(batch.origin), list(batch.time_s), list(batch.text), list(batch.offset))


def joined(parts: Sequence[LogColumns]) -> LogColumns:
    """All lines, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    whole, origins = LogColumns(), list[Origin]()
    has_offsets = all(part.offset for part in parts if len(part))
    for part in parts:
        whole.origin += [len(origins) + origin for origin in part.origin]
        origins += part.origins
        whole.time_s += part.time_s
        whole.text += part.text
        whole.offset += part.offset if has_offsets else []
    return replace(whole, origins=origins)


@dataclass(frozen=True, eq=False)
class Piece:
    """Lines of one node that come one after another, and how far its log is told with them."""

    node_id: str
    columns: LogColumns
    position: int

    def last(self, count: int) -> Piece:
        """Without all but the last so many lines."""
        return replace(self, columns=self.columns.part(max(len(self.columns) - count, 0), len(self.columns)))


class Parcel:
    """Gathers pieces into messages to a client."""

    def __init__(self) -> None:
        self._batch = log_pb2.LogBatch()
        self._places: dict[tuple[str, Origin], int] = {}
        self._positions: dict[str, int] = {}
        self._told: dict[str, int] = {}
        self.size = 0  # characters of text

    def add(self, piece: Piece, names: Mapping[int, str]) -> None:
        """`names`: of the job of each origin that has lines."""
        columns = piece.columns
        places = {row: self._place(piece.node_id, columns.origins[row], names[row]) for row in names}
        self._batch.origin.extend([places[row] for row in columns.origin])
        self._batch.time_s.extend(columns.time_s)
        self._batch.text.extend(columns.text)
        self.size += sum(map(len, columns.text)) + len(columns)
        self.move(piece.node_id, piece.position)

    def move(self, node_id: str, position: int) -> None:
        """A node's log is told up to there."""
        self._positions[node_id] = position

    def messages(self) -> Iterator[pb.ReadLogsResponse]:
        """What has gathered, if there is anything to say; then it is empty again."""
        moved = dict(self._positions.items() - self._told.items())
        if self.size or moved:
            yield pb.ReadLogsResponse(batch=self._batch, positions=moved)
        self._told |= moved
        self._batch, self._places, self.size = log_pb2.LogBatch(), {}, 0

    def _place(self, node_id: str, origin: Origin, name: str) -> int:
        place = self._places.setdefault((node_id, origin), len(self._places))
        if place == len(self._batch.origins):
            self._batch.origins.add(
                job=origin.job,
                job_name=name,
                lease=origin.lease,
                rank=origin.rank,
                is_error_stream=origin.is_error_stream,
                node_id=node_id,
            )
        return place


def singly(message: pb.ReadLogsResponse) -> Iterator[pb.ReadLogsResponse]:
    """A message a line, for clients that know no batches."""
    if message.notice:
        yield message
    batch = message.batch
    for place, time_s, text in zip(batch.origin, batch.time_s, batch.text, strict=True):
        origin = batch.origins[place]
        yield pb.ReadLogsResponse(
            job=origin.job,
            job_name=origin.job_name,
            lease=origin.lease,
            rank=origin.rank,
            is_error_stream=origin.is_error_stream,
            node_id=origin.node_id,
            text=text,
            time_s=time_s,
        )


def _columns_of_lines(lines: Sequence[agent_pb2.LogLine]) -> LogColumns:
    places: dict[Origin, int] = {}
    origins = (Origin(line.job, line.lease, line.rank, line.is_error_stream) for line in lines)
    origin = [places.setdefault(one, len(places)) for one in origins]
    return LogColumns(list(places), origin, [line.time_s for line in lines], [line.text for line in lines])
