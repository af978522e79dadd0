"""Starts a temporary PostgreSQL server with its own data and socket, without network."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

START_S = 60
_OPTIONS = "-c listen_addresses='' -c fsync=on -c max_connections=30 -c shared_buffers=32MB -c autovacuum=off"


def binaries() -> Path | None:
    """The folder of PostgreSQL's programs: Debian's newest, or the one on the PATH."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else folders
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


def required(environment: Mapping[str, str]) -> Path:
    """`binaries`; without them the tests that need a server are skipped, or fail if CI is "true"."""
    folder = binaries()
    if folder is not None:
        return folder
    complaint = "no PostgreSQL here (Debian: apt-get install postgresql); GAVELPY_POSTGRES_URL may name a server"
    if environment.get("CI") == "true":
        pytest.fail(complaint)
    pytest.skip(complaint)


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """Starts a server, yields its URL, and stops it at the end."""
    with tempfile.TemporaryDirectory(prefix="gavelpy-pg-") as place:
        data = Path(place) / "data"
        as_user: list[str] = []
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            shutil.chown(place, "postgres", "postgres")
            as_user = ["runuser", "-u", "postgres", "--"]
        control = [*as_user, str(folder / "pg_ctl"), "-D", str(data), "-w", "-t", str(START_S), "-s"]
        initdb = [str(folder / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale"]
        _run([*as_user, *initdb], place)
        # Waits for the end of its input, which comes when we close it or are killed.
        stop = ["sh", "-c", 'read -r _; exec "$@"', "stop", *control, "-m", "immediate", "stop"]
        with subprocess.Popen(stop, cwd=place, stdin=subprocess.PIPE, start_new_session=True):
            _run([*control, "-l", f"{place}/log", "-o", f"{_OPTIONS} -k {place}", "start"], place)
            yield f"postgresql+psycopg://postgres@/postgres?host={place}"


def _run(command: list[str], place: str) -> None:
    quiet = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, cwd=place, env=quiet, stdout=subprocess.DEVNULL, timeout=2 * START_S, check=False)
    if done.returncode:
        log = Path(place) / "log"
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{log.read_text() if log.exists() else ''}")
