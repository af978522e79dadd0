"""The terminal of an interactive job: a pseudo-terminal for rank 0, and a Unix socket to which the agent attaches.

One client is attached at a time; a newer one replaces it. Output that no client has received waits, up to
WAITING_BYTES_MAX, of which the oldest part is dropped. While a client is attached and slow, the program waits for it,
as on any terminal. If no client is attached for `away_s`, the terminal hangs up. What a program
wrote before its end is kept for a client that attaches later.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import termios
import time
from pathlib import Path
from typing import Final

from gavelpy.runtime.terminal_frames import (
    DATA,
    WINDOW,
    FrameReader,
    data_frame,
    exit_frame,
    has_own_user,
    socket_path,
    window_of,
)

WAITING_BYTES_MAX: Final = 64 << 10
FIRST_AWAY_FACTOR: Final = 2.0  # for the first client, which may have to wait for the start
_READ_BYTES = 16 << 10
_LAST_S = 2.0  # to send the last output
_END_OF_FILE = b"\x04"
_SIZE = struct.Struct("HHHH")


class Terminal:
    """From the start of a lease until `finish` or `hang_up`."""

    def __init__(self, directory: Path, away_s: float, now_s: float, owner: int = -1) -> None:
        """`owner`: user id of the program; -1 = that of this process."""
        self.slave = -1
        self._master, self.slave = os.openpty()
        os.fchown(self.slave, owner, -1)
        os.set_blocking(self._master, False)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with socket_path(directory) as path:
            self._listener.bind(path)
            os.chmod(path, 0o600)  # noqa: PTH101 below a descriptor
        self._listener.listen(4)
        self._listener.setblocking(False)
        self._client: socket.socket | None = None
        self._reader = FrameReader()
        self._to_client = bytearray()  # messages
        self._unseen = bytearray()  # output while no client is attached
        self._to_program = bytearray()
        self._away_s = away_s
        self._away_since_s = now_s + (FIRST_AWAY_FACTOR - 1) * away_s
        self._has_hung_up = False
        self._was_attached = False

    @property
    def awaits_first_client(self) -> bool:
        """Whether no client has been attached yet."""
        return not self._was_attached and not self._has_hung_up

    @property
    def ends(self) -> list[int]:
        """The descriptors to wait for: whatever is readable is served."""
        if self._has_hung_up:
            return []
        found = [self._listener.fileno()]
        if self._client is not None and len(self._to_program) < WAITING_BYTES_MAX:
            found.append(self._client.fileno())
        if self._master >= 0 and len(self._to_client) < WAITING_BYTES_MAX:
            found.append(self._master)
        return found

    def started(self) -> None:
        """The program has the terminal: closes this side's copy of its end."""
        os.close(self.slave)
        self.slave = -1

    def is_abandoned(self, now_s: float) -> bool:
        """Whether no client has been attached for too long."""
        return self._client is None and now_s - self._away_since_s > self._away_s

    def serve(self, ready: list[int], now_s: float) -> None:
        """Moves what can be moved without waiting."""
        if self._has_hung_up:
            return
        if self._listener.fileno() in ready:
            self._accept()
        if self._client is not None and self._client.fileno() in ready:
            self._read_client(now_s)
        if self._master in ready:
            self._read_program()
        self._flush(now_s)

    def hang_up(self) -> None:
        """Closes the terminal: the program receives SIGHUP."""
        self._has_hung_up = True
        for end in (self._master, self.slave):
            if end >= 0:
                os.close(end)
        self._master = self.slave = -1
        self._detach(0.0)
        self._listener.close()

    def finish(self, code: int) -> None:
        """Sends the rest of the output and the exit code to the client, and closes."""
        if self._has_hung_up:
            return
        ends_s = time.monotonic() + _LAST_S
        while self._master >= 0 and select.select([self._master], (), (), 0.0)[0] and time.monotonic() < ends_s:
            self._read_program()
        if self._client is not None:
            self._to_client += exit_frame(code)
            self._client.settimeout(_LAST_S)
            try:  # what the client still sends must not break the connection before it has read all
                self._client.sendall(self._to_client)
                self._client.shutdown(socket.SHUT_WR)
                while self._client.recv(_READ_BYTES) and time.monotonic() < ends_s + _LAST_S:
                    pass
            except OSError:
                self._to_client.clear()  # the client is away
        self.hang_up()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if not has_own_user(connection):
            connection.close()
            return
        self._detach(0.0)
        connection.setblocking(False)
        self._client, self._reader, self._was_attached = connection, FrameReader(), True
        self._to_client += data_frame(bytes(self._unseen)) if self._unseen else b""
        self._unseen.clear()

    def _detach(self, now_s: float) -> None:
        if self._client is not None:
            self._client.close()
        self._client, self._away_since_s = None, now_s
        self._to_client.clear()
        self._to_program.clear()

    def _read_client(self, now_s: float) -> None:
        assert self._client is not None, "only called with a client"
        try:
            content = self._client.recv(_READ_BYTES)
            for kind, part in self._reader.feed(content):
                if kind == DATA:
                    self._to_program += part or _END_OF_FILE
                elif kind == WINDOW:
                    self._resize(*window_of(part))
        except BlockingIOError:
            return
        except (OSError, ValueError):
            content = b""
        if not content:
            self._detach(now_s)

    def _resize(self, rows: int, columns: int) -> None:
        if self._master >= 0:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, _SIZE.pack(rows, columns, 0, 0))

    def _read_program(self) -> None:
        try:
            content = os.read(self._master, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # EIO: no process has the terminal any more
            content = b""
        if not content:
            os.close(self._master)
            self._master = -1
        elif self._client is not None:
            self._to_client += data_frame(content)
        else:
            self._unseen += content
            del self._unseen[:-WAITING_BYTES_MAX]

    def _flush(self, now_s: float) -> None:
        if self._client is not None and self._to_client:
            try:
                del self._to_client[: self._client.send(self._to_client)]
            except BlockingIOError:
                pass
            except OSError:
                self._detach(now_s)
        if self._master >= 0 and self._to_program:
            try:
                del self._to_program[: os.write(self._master, self._to_program)]
            except BlockingIOError:
                return
            except OSError:
                self._to_program.clear()
