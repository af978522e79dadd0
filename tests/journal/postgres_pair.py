"""A PostgreSQL server and a streaming replica of it, with synchronous commits, both without network."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.journal.postgres_server import START_S

_OPTIONS = "-c listen_addresses='' -c fsync=on -c max_connections=40 -c shared_buffers=32MB -c autovacuum=off"


@dataclass(frozen=True)
class Pair:
    """The primary, which can be killed, and its replica, which can be promoted."""

    place: Path
    programs: Path

    @property
    def url(self) -> str:
        """Of whichever server accepts writes."""
        hosts = "&".join(f"host={self.place / name}:5432" for name in ("one", "two"))
        return f"postgresql+psycopg://postgres@/postgres?{hosts}&target_session_attrs=read-write"

    def start(self) -> None:
        """Starts both."""
        for name in ("one", "two"):
            (self.place / name).mkdir()
            if os.geteuid() == 0:
                shutil.chown(self.place / name, "postgres", "postgres")
        data = str(self.place / "one" / "data")
        self._run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale")
        self._control("one", "start", "-o", f"{_OPTIONS} -k {self.place / 'one'}")
        copy = str(self.place / "two" / "data")
        self._run("pg_basebackup", "-D", copy, "-R", "-h", str(self.place / "one"), "-U", "postgres", "-X", "stream")
        self._control("two", "start", "-o", f"{_OPTIONS} -k {self.place / 'two'}")
        query = "ALTER SYSTEM SET synchronous_standby_names = '*'"
        self._run("psql", "-q", "-h", str(self.place / "one"), "-U", "postgres", "-c", query)
        self._control("one", "reload")

    def kill_primary(self) -> None:
        """Ends the first server without a shutdown."""
        self._control("one", "stop", "-m", "immediate")

    def promote(self) -> None:
        """Lets the second server accept writes."""
        self._control("two", "promote")

    def stop(self) -> None:
        """Ends what still runs."""
        for name in ("one", "two"):
            if (self.place / name / "data" / "postmaster.pid").exists():
                self._control(name, "stop", "-m", "immediate")

    def _control(self, name: str, *words: str) -> None:
        data, log = str(self.place / name / "data"), str(self.place / name / "log")
        self._run("pg_ctl", "-D", data, "-w", "-t", str(START_S), "-s", "-l", log, *words)

    def _run(self, program: str, *words: str) -> None:
        as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        command = [*as_user, str(self.programs / program), *words]
        quiet = {**os.environ, "LC_ALL": "C"}
        subprocess.run(command, cwd=self.place, env=quiet, stdout=subprocess.DEVNULL, timeout=2 * START_S, check=True)


@contextmanager
def pair(programs: Path) -> Iterator[Pair]:
    """Starts the two servers, and stops them at the end."""
    with tempfile.TemporaryDirectory(prefix="gavelpy-pg-") as place:
        if os.geteuid() == 0:
            shutil.chown(place, "postgres", "postgres")
        servers = Pair(Path(place), programs)
        try:
            servers.start()
            yield servers
        finally:
            servers.stop()
