"""A TCP relay on loopback that delivers bytes late, as a link over a long distance or to a busy host."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from queue import SimpleQueue

_CHUNK = 1 << 16


@contextmanager
def slow_link(target: str, delay_s: float) -> Iterator[str]:
    """The address of a relay to `target`: all bytes arrive `delay_s` late, in both directions."""
    host, _, port = target.rpartition(":")

    def accept() -> None:
        while True:
            try:
                here, _ = listener.accept()
            except OSError:
                return  # closed
            there = socket.create_connection((host, int(port)))
            for connection in (here, there):
                opened.enter_context(closing(connection))
            _forward(here, there, delay_s)
            _forward(there, here, delay_s)

    with ExitStack() as opened, socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(10.0)


def _forward(source: socket.socket, sink: socket.socket, delay_s: float) -> None:
    """Starts to pass on all bytes, and the end of the stream, each after `delay_s`."""
    passing: SimpleQueue[tuple[float, bytes]] = SimpleQueue()

    def read() -> None:
        data = b" "
        while data:
            try:
                data = source.recv(_CHUNK)
            except OSError:
                data = b""
            passing.put((time.monotonic() + delay_s, data))

    def write() -> None:
        with suppress(OSError):
            while True:
                due_s, data = passing.get()
                time.sleep(max(0.0, due_s - time.monotonic()))
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)

    for work in (read, write):
        threading.Thread(target=work, daemon=True).start()
