"""The file of a user's secrets, `gavel secret`, and jobs that get values from it."""

from __future__ import annotations

import io
import json
import os
import pwd
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavelpy.cli import job_texts
from gavelpy.cli.main import main as gavel
from gavelpy.errors import InvalidInput, RemoteViolation
from gavelpy.runtime.lease_files import LeaseOutcome
from gavelpy.runtime.user_secrets import read_secrets, secrets_file, set_secret, values_of
from tests.runtime.agent.owners import ALICE, BOB, open_place
from tests.runtime.shim.driver import started

VALUE = "hunter2 with 'quotes'\nand ünïcode"
PRINTS = "import hashlib, os; print(hashlib.sha256(os.environ['KEY'].encode()).hexdigest())"


def digest() -> str:
    import hashlib

    return hashlib.sha256(VALUE.encode()).hexdigest()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def given(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_value_comes_from_stdin_and_only_names_are_listed(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, f"{VALUE}\n".encode())

    assert gavel(["secret", "set", "KEY"]) == 0
    assert gavel(["secret", "list", "-o", "json"]) == 0

    printed = capsys.readouterr()
    assert json.loads(printed.out)["secrets"] == ["KEY"]
    assert "hunter2" not in printed.out + printed.err
    assert read_secrets(secrets_file(str(home))) == {"KEY": VALUE}
    assert stat.S_IMODE(secrets_file(str(home)).stat().st_mode) == 0o600
    assert stat.S_IMODE(secrets_file(str(home)).parent.stat().st_mode) == 0o700


def test_secret_is_replaced_and_deleted(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = secrets_file(str(home))
    set_secret(file, "A", "1")
    set_secret(file, "B", "2")
    set_secret(file, "A", "3")

    assert gavel(["secret", "delete", "B"]) == 0
    assert gavel(["secret", "delete", "B"]) == 2
    assert read_secrets(file) == {"A": "3"}
    assert "NAME must be one of the secrets (A), got 'B'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("A-B", b"x", "NAME must be 1 to 128 letters, digits and '_', no digit first, got 'A-B'"),
        ("A", b"", "the value of A must have 1 to 65536 bytes without NUL"),
        ("A", b"a\0b", "the value of A must have 1 to 65536 bytes without NUL"),
        ("A", b"x" * 65537, "the value of A must have 1 to 65536 bytes without NUL"),
        ("A", b"\xff\xfe", "the value of A must be UTF-8 text"),
    ],
)
def test_bad_names_and_values_are_refused_without_showing_the_value(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes,
    message: str,
) -> None:
    given(monkeypatch, content)

    assert gavel(["secret", "set", name]) == 2
    assert message in capsys.readouterr().err
    assert not secrets_file(str(home)).exists()


def damage(file: Path, how: str) -> None:
    match how:
        case "open":
            file.chmod(0o640)
        case "link":
            file.rename(file.with_name("other"))
            file.symlink_to(file.with_name("other"))
        case "text":
            file.write_text(f"KEY={VALUE}")
        case "shape":
            file.write_text(json.dumps({"version": 1, "secrets": {"KEY": [VALUE]}}))
        case "unversioned":
            file.write_text(json.dumps({"secrets": {"KEY": VALUE}}))
        case "newer":
            file.write_text(json.dumps({"version": 2, "secrets": {"KEY": VALUE}}))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("open", r"must be closed to others \(chmod 600\), got mode 640"),
        ("link", "must be a plain file, not a link or a directory"),
        ("text", "must be a file of secrets, as `gavel secret set` writes it"),
        ("shape", "must be a file of secrets, as `gavel secret set` writes it"),
        ("unversioned", "must be a file of secrets, as `gavel secret set` writes it"),
        ("newer", "must be of version 1, got 2: a newer gavel has written it"),
    ],
)
def test_file_that_is_not_private_or_damaged_is_not_used(home: Path, how: str, message: str) -> None:
    file = secrets_file(str(home))
    set_secret(file, "KEY", VALUE)
    damage(file, how)

    with pytest.raises(RemoteViolation, match=message) as raised:
        values_of({"KEY": "KEY"}, file)

    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("texts", "found"),
    [(["A"], {"A": "A"}), (["A=X", "B"], {"X": "A", "B": "B"}), (["A=X", "A=Y"], {"X": "A", "Y": "A"})],
)
def test_option_names_secret_and_variable(texts: list[str], found: dict[str, str]) -> None:
    assert job_texts.secrets(texts) == found


@pytest.mark.parametrize("texts", [["=X"], ["A="], [""], ["A", "B=A"]])
def test_option_without_a_meaning_is_refused(texts: list[str]) -> None:
    with pytest.raises(InvalidInput, match="secret must"):
        job_texts.secrets(texts)


def test_shim_gives_the_value_to_the_job_and_writes_it_to_no_file(tmp_path: Path) -> None:
    file = secrets_file(str(tmp_path / "home"))
    set_secret(file, "WANDB", VALUE)
    lease = tmp_path / "lease"

    with started(lease, PRINTS, secrets={"KEY": "WANDB"}, secrets_file=str(file)) as shim:
        end = shim.end()

    assert end.outcome is LeaseOutcome.FINISHED
    assert shim.lines() == [digest()]
    assert b"hunter2" not in b"".join(each.read_bytes() for each in lease.rglob("*") if each.is_file())


def test_missing_secret_fails_the_job_with_its_name(tmp_path: Path) -> None:
    file = secrets_file(str(tmp_path / "home"))
    set_secret(file, "OTHER", VALUE)
    fields = {"secrets": {"KEY": "WANDB"}, "secrets_file": str(file), "environment": {"GAVEL_NODE_ID": "n1"}}

    with started(tmp_path / "lease", PRINTS, **fields) as shim:
        end = shim.end()

    assert (end.outcome, end.exit_code, end.failure) == (LeaseOutcome.FAILED, 127, "user")
    assert end.detail == f"{file} has no secret WANDB (gavel secret set WANDB) on node n1"


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as other accounts")


@pytest.fixture
def place() -> Iterator[Path]:
    """A home directory of bob with a secret."""
    with open_place() as directory:
        set_secret(secrets_file(str(directory / "bob")), "WANDB", VALUE)
        subprocess.run(["chown", "-R", BOB, str(directory / "bob")], check=True)
        yield directory


def run_as(place: Path, name: str, file: Path) -> tuple[LeaseOutcome, str, list[str]]:
    """Runs a job of an account that wants this file's secret."""
    account, job = pwd.getpwnam(name), place / f"job-{name}"
    job.mkdir()
    os.chown(job, account.pw_uid, account.pw_gid)
    fields = {"secrets": {"KEY": "WANDB"}, "secrets_file": str(file), "uid": account.pw_uid, "gid": account.pw_gid}
    argv = ("/bin/sh", "-c", 'printf %s "$KEY" | sha256sum')
    with started(
        place / f"lease-{name}", "", argv=argv, job_directory=str(job), working_directory="/", **fields
    ) as shim:
        end = shim.end()
    return end.outcome, end.detail, shim.lines()


@as_root
def test_secret_is_read_with_the_rights_of_the_owner(place: Path) -> None:
    outcome, _, lines = run_as(place, BOB, secrets_file(str(place / "bob")))

    assert outcome is LeaseOutcome.FINISHED
    assert lines == [f"{digest()}  -"]


@as_root
@pytest.mark.parametrize("how", ["direct", "link", "linked-directory", "hard-link"])
def test_another_users_secret_is_out_of_reach(place: Path, how: str) -> None:
    bobs, alices = secrets_file(str(place / "bob")), secrets_file(str(place / "alice"))
    alices.parent.mkdir(parents=True)
    match how:
        case "direct":
            alices = bobs
        case "link":
            alices.symlink_to(bobs)
        case "linked-directory":
            alices.parent.rmdir()
            alices.parent.symlink_to(bobs.parent)
        case "hard-link":
            alices.hardlink_to(bobs)
    subprocess.run(["chown", "-hR", ALICE, str(place / "alice")], check=True)
    if how == "hard-link":
        os.chown(bobs, pwd.getpwnam(BOB).pw_uid, -1)

    outcome, detail, lines = run_as(place, ALICE, alices)

    assert outcome is LeaseOutcome.FAILED
    assert "cannot be read" in detail or "must belong to" in detail or "must be a plain file" in detail, detail
    assert lines == []
