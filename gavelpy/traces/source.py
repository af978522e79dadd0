"""Reads the lines of a trace file, plain, .gz or .zst, in bounded memory, with the SHA-256 of the file.

A line longer than LINE_MAX bytes, a truncated archive and bytes that are not UTF-8 are refused with the line's number.
The hash is of the file as it is stored, so that `sha256sum` prints the same.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, cast

from gavelpy.errors import InvalidInput
from gavelpy.traces.fields import Place

LINE_MAX = 1 << 20  # bytes of a line
HEAD_MAX = 1 << 16  # bytes from which a format is recognised
_BLOCK = 1 << 16
_PIECE = 1 << 10  # of a head: what comes before damage is kept
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)


@dataclass(frozen=True)
class Head:
    """What a format is recognised from: the beginning of a file, or the names in a directory."""

    path: Path
    text: str = ""
    names: tuple[str, ...] = ()  # of a directory's files, sorted

    @property
    def first_line(self) -> str:
        """The first line without its end."""
        return self.text.split("\n", 1)[0].rstrip("\r")

    @property
    def columns(self) -> frozenset[str]:
        """Cells of the first line, if it is the header of a CSV."""
        return frozenset(cell.strip() for cell in self.first_line.split(","))


class TraceFile:
    """A file that is read once, from its beginning."""

    def __init__(self, path: str | Path) -> None:
        self.path, self.file = Path(path), str(path)
        self.line = 0  # last line that was read
        self._hash = hashlib.sha256()

    def lines(self) -> Iterator[str]:
        """Each line with its end, decoded; a byte order mark is left out."""
        with _opened(self.file, self._hash) as stream:
            while raw := self._next(stream):
                self.line += 1
                if len(raw) > LINE_MAX:
                    raise Place(self.file, self.line).error("line", f"at most {LINE_MAX:,} bytes long", "more")
                yield _decoded(raw, Place(self.file, self.line))

    def chunks(self) -> Iterator[str]:
        """The text in pieces of bounded size; `line` is not counted."""
        import codecs

        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        with _opened(self.file, self._hash) as stream:
            is_last = False
            while not is_last:
                raw = self._guarded(stream, _BLOCK)
                is_last = not raw
                try:
                    yield decoder.decode(raw, is_last)
                except UnicodeDecodeError as error:
                    raise Place(self.file).error("text", "UTF-8", raw[error.start : error.start + 1]) from error

    def text(self, characters_max: int) -> str:
        """The whole text, which must not be longer."""
        found: list[str] = []
        count = 0
        for chunk in self.chunks():
            count += len(chunk)
            if count > characters_max:
                raise Place(self.file).error("file", f"at most {characters_max:,} characters long", "more")
            found.append(chunk)
        return "".join(found)

    def sha256(self) -> str:
        """Hash of the whole file; call it after the last line."""
        return self._hash.hexdigest()

    def _next(self, stream: BinaryIO) -> bytes:
        try:
            return stream.readline(LINE_MAX + 1)
        except _DAMAGED as error:
            raise self._damaged(error) from error

    def _guarded(self, stream: BinaryIO, size: int) -> bytes:
        try:
            return stream.read(size)
        except _DAMAGED as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> InvalidInput:
        ends = "one that ends early" if isinstance(error, EOFError) else f"a damaged one ({error})"
        return Place(self.file, self.line).error("file", f"a complete archive after line {self.line}", ends)


def head_of(path: str | Path) -> Head:
    """The beginning of a file, or the names in a directory; raises InvalidInput if there is nothing to read."""
    file, found = str(path), Path(path)
    try:
        if found.is_dir():
            return Head(found, names=tuple(sorted(entry.name for entry in found.iterdir() if entry.is_file())))
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error
    raw = b""
    with _opened(file, None) as stream:
        try:
            while len(raw) < HEAD_MAX and (piece := stream.read(_PIECE)):
                raw += piece
        except _DAMAGED as error:
            if not raw:  # else the reader finds the damage, and its line
                ends = "one that ends early" if isinstance(error, EOFError) else f"a damaged one ({error})"
                raise Place(file).error("file", "a complete archive", ends) from error
    if not raw.strip():
        raise Place(file).error("file", "a file with content", "" if not raw else "only white space")
    cut = raw if len(raw) % _PIECE else raw[: raw.rfind(b"\n") + 1] or raw
    try:
        text = cut.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start >= len(cut) - 3 and len(raw) % _PIECE == 0:  # a character that is cut
            return Head(found, cut[: error.start].decode("utf-8-sig"))
        line = cut.count(b"\n", 0, error.start) + 1
        raise Place(file, line).error("text", "UTF-8", cut[error.start : error.start + 1]) from error
    return Head(found, text)


@contextmanager
def seekable(path: str | Path) -> Iterator[Path]:
    """The path, or that of a temporary copy of a pipe, which can be read only once."""
    try:
        is_pipe = Path(path).is_fifo()
    except ValueError:  # a NUL in the path; reading it gives the error
        is_pipe = False
    if not is_pipe:
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="gavel-") as directory:
        copy = Path(directory) / Path(path).name
        with Path(path).open("rb") as pipe, copy.open("wb") as target:
            shutil.copyfileobj(pipe, target)
        try:
            yield copy
        except InvalidInput as error:
            raise error.located(str(path), error.line) from error


class _Hashing(io.RawIOBase):
    """Bytes of a file, hashed on their way."""

    def __init__(self, raw: BinaryIO, digest: hashlib._Hash | None) -> None:
        self._raw, self._digest = raw, digest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # the base allows any buffer
        data = self._raw.read(len(buffer))
        buffer[: len(data)] = data
        if self._digest is not None:
            self._digest.update(data)
        return len(data)

    def close(self) -> None:
        self._raw.close()
        super().close()


@contextmanager
def _opened(file: str, digest: hashlib._Hash | None) -> Iterator[BinaryIO]:
    try:
        with Path(file).open("rb") as raw:
            magic = raw.read(4)
            raw.seek(0)
            plain = cast(BinaryIO, io.BufferedReader(_Hashing(raw, digest), _BLOCK))
            yield _unpacked(file, magic, plain)
            while digest is not None and plain.read(_BLOCK):  # what a reader left belongs to the hash
                pass
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        if isinstance(error, InvalidInput | gzip.BadGzipFile):
            raise
        raise _unreadable(file, error) from error


def _unpacked(file: str, magic: bytes, plain: BinaryIO) -> BinaryIO:
    if magic.startswith(_GZIP):
        return cast(BinaryIO, gzip.GzipFile(fileobj=plain))
    if magic == _ZSTD:
        for module in ("compression.zstd", "zstandard"):
            if find_spec(module.partition(".")[0]) is not None:
                return cast(BinaryIO, import_module(module).open(plain, "rb"))
        raise Place(file).error("file", "unpacked first (zstd -d), as no zstd module is installed", "a .zst file")
    return plain


def _unreadable(file: str, error: Exception) -> InvalidInput:
    reason = getattr(error, "strerror", None) or str(error)
    return InvalidInput(f"file must be readable, got {file!r} ({reason})", file=file)


def _decoded(raw: bytes, place: Place) -> str:
    try:
        return raw.decode("utf-8-sig" if place.line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise place.error("text", "UTF-8", raw[error.start : error.start + 1]) from error
