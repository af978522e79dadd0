"""Submissions that are kept on this machine while no scheduler answers, and delivered once."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavelpy.runtime.client.connection import Client
from gavelpy.runtime.client.settings import ClientSettings
from gavelpy.runtime.client.spool import KEPT_S, Spool
from gavelpy.runtime.local_cluster import reserved_port
from gavelpy.runtime.wire import client_pb2 as pb
from tests.cli.commands import Gavel
from tests.runtime.client.serving import make_description, serving


@pytest.fixture
def listen() -> Iterator[str]:
    """An address without a listener."""
    with reserved_port() as port:
        yield f"127.0.0.1:{port}"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's state is."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def request(key: str = "k1") -> pb.SubmitJobsRequest:
    return pb.SubmitJobsRequest(idempotency_key=key, jobs=[make_description("train")])


def test_jobs_are_kept_and_delivered_once(listen: str, state: Path, tmp_path: Path, gavel: Gavel) -> None:
    connection = ["--scheduler", listen, "--timeout", "0.3"]

    kept = gavel("submit", "--spool", "--name", "train", "--steps", "10", *connection, "--", "true")

    assert kept.code == 0
    assert kept.out == ""
    assert "gavel spool deliver" in kept.err
    [file] = (state / "gavel" / "spool").glob("*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert gavel("spool", "deliver", *connection).code == 3
    listed = json.loads(gavel("spool", "list", "-o", "json").out)["submissions"]
    assert [(one["jobs"], one["scheduler"]) for one in listed] == [(1, listen)]
    text = file.read_text()
    with serving(tmp_path, scheduler={"listen": listen}):
        assert gavel("spool", "deliver", "--wait", "--scheduler", listen).out == "0\ttrain\n"
        file.write_text(text)  # as if the answer had been lost
        assert gavel("spool", "deliver", "--scheduler", listen).out == "0\ttrain\n"
        with Client(ClientSettings(scheduler=listen)) as client:
            assert [job.name for job in client.jobs()] == ["train"]
    assert gavel("spool", "deliver", "--scheduler", listen).err == "no submission is kept\n"


def test_what_is_refused_stays_and_can_be_dropped(listen: str, state: Path, tmp_path: Path, gavel: Gavel) -> None:
    spool = Spool(state / "gavel" / "spool")
    spool.keep(listen, request("old"), time.time() - KEPT_S - 60)
    spool.keep(listen, request("new"), time.time())
    bad = pb.SubmitJobsRequest(idempotency_key="bad", jobs=[pb.JobDescription(name="x", steps_total=-1)])
    spool.keep(listen, bad, time.time())
    with serving(tmp_path, scheduler={"listen": listen}):
        done = gavel("spool", "deliver", "--scheduler", listen)
    assert done.out == "0\ttrain\n"
    assert done.code == 1
    assert "old: it is older than" in done.err
    assert "bad: " in done.err
    assert "2 of 3 submissions were refused" in done.err

    assert [one.key for one in spool.contents().submissions] == ["old", "bad"]
    assert gavel("spool", "drop", "none").code == 2
    assert gavel("spool", "drop", "old", "bad").code == 0
    assert spool.contents().submissions == []


def test_an_unreadable_file_does_not_stop_the_others(listen: str, state: Path, tmp_path: Path, gavel: Gavel) -> None:
    spool = Spool(state / "gavel" / "spool")
    spool.keep(listen, request(), time.time())
    bad = spool.directory / "20200101T000000-a.json"  # before the other one
    bad.write_text("{")
    listed = gavel("spool", "list", "-o", "json")
    assert listed.code == 1
    assert [one["key"] for one in json.loads(listed.out)["submissions"]] == ["k1"]
    assert [one["file"] for one in json.loads(listed.out)["unreadable"]] == [str(bad)]

    with serving(tmp_path, scheduler={"listen": listen}):
        done = gavel("spool", "deliver", "--scheduler", listen)
        again = gavel("spool", "deliver", "--scheduler", listen)

    assert (done.code, done.out) == (1, "0\ttrain\n")
    assert str(bad) in done.err
    assert "1 file cannot be read" in done.err
    assert (again.code, again.out) == (1, "")
    assert bad.exists()
    assert gavel("spool", "drop", bad.name).code == 0
    assert gavel("spool", "list").code == 0


def test_a_kept_submission_and_its_directories_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def record(descriptor: int) -> None:
        there = sorted(file.name for file in (tmp_path / "a" / "b").iterdir())
        synced.append(f"{Path(f'/proc/self/fd/{descriptor}').readlink().name}: {' '.join(there)}")

    monkeypatch.setattr(os, "fsync", record)

    file = Spool(tmp_path / "a" / "b").keep("here", request(), 0.0)

    temporary = file.with_suffix(f".{os.getpid()}").name
    assert synced == [f"{temporary}: {temporary}", *(f"{one}: {file.name}" for one in ("b", "a", tmp_path.name))]


@pytest.mark.parametrize("option", ["--dry-run", "--wait"])
def test_spool_needs_a_plain_submission(state: Path, gavel: Gavel, option: str) -> None:
    done = gavel("submit", "--spool", option, "--steps", "1", "--", "true")

    assert done.code == 2
    assert f"--spool must not be given with {option}" in done.err
    assert not state.exists()


@pytest.mark.parametrize(
    "text", ["", "{}", '{"version": 2}', '{"version": 1, "at_s": 0, "scheduler": "", "request": "?"}']
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)

    kept = Spool(tmp_path).contents()

    assert kept.submissions == []
    assert [str(error).startswith(str(file)) for file, error in kept.unreadable.items()] == [True]
