"""Tokens: shown once, stored as a hash, invalid once revoked or expired; a file with open permissions is refused."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.runtime.security.identity import FileVerifier, NoTokens, verifier_of
from gavelpy.runtime.security.tokens import Role, TokenFile


@pytest.fixture
def file(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "tokens.json")


def test_secret_is_not_in_the_file_its_hash_is(file: TokenFile) -> None:
    secret = file.create("alice", Role.USER, now_s=0.0)

    content = file.path.read_text()

    assert secret.startswith("gavel_")
    assert secret not in content
    assert hashlib.sha256(secret.encode()).hexdigest() in content


def test_file_is_open_to_its_owner_only(file: TokenFile) -> None:
    before = os.umask(0)
    file.create("alice", Role.USER, now_s=0.0)
    os.umask(before)

    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_file_that_is_open_to_others_is_refused(file: TokenFile) -> None:
    file.create("alice", Role.USER, now_s=0.0)
    file.path.chmod(0o644)

    with pytest.raises(InvalidInput, match=r"open to its owner only \(chmod 600\), got mode 0644"):
        FileVerifier(file.path)


def test_bearer_is_known_by_name_and_role(file: TokenFile) -> None:
    secret = file.create("n0", Role.NODE, now_s=0.0)

    who = FileVerifier(file.path).caller(f"Bearer {secret}", now_s=1.0)

    assert who is not None
    assert (who.name, who.role, who.is_sole) == ("n0", Role.NODE, False)


def test_a_token_names_the_team_of_its_users_jobs(file: TokenFile) -> None:
    secret = file.create("alice", Role.USER, now_s=0.0, team="vision")

    found = FileVerifier(file.path).caller(f"Bearer {secret}", now_s=1.0)

    assert found is not None
    assert (found.name, found.team) == ("alice", "vision")
    with pytest.raises(InvalidInput, match="team of a token must be empty where its role is node, got 'vision'"):
        file.create("n1", Role.NODE, now_s=0.0, team="vision")


@pytest.mark.parametrize(
    "shown", ["", "Bearer ", "Bearer gavel_wrong", "Basic YTpi", "Bearer " + "x" * 100_000, "\x00"]
)
def test_anything_else_is_nobody(file: TokenFile, shown: str) -> None:
    file.create("alice", Role.USER, now_s=0.0)

    assert FileVerifier(file.path).caller(shown, now_s=1.0) is None


def test_secret_without_its_scheme_is_nobody(file: TokenFile) -> None:
    secret = file.create("alice", Role.USER, now_s=0.0)

    assert FileVerifier(file.path).caller(secret, now_s=1.0) is None


def test_token_ends_when_its_time_is_over(file: TokenFile) -> None:
    secret = file.create("alice", Role.USER, now_s=100.0, lifetime_s=60.0)
    verifier = FileVerifier(file.path)

    assert verifier.caller(f"Bearer {secret}", now_s=159.9) is not None
    assert verifier.caller(f"Bearer {secret}", now_s=160.0) is None


def test_revoked_token_is_refused_by_a_verifier_that_runs(file: TokenFile) -> None:
    secret, other = (file.create(name, Role.USER, now_s=0.0) for name in ("alice", "bob"))
    verifier = FileVerifier(file.path)

    gone = file.revoke("alice")

    assert [token.name for token in gone] == ["alice"]
    assert verifier.caller(f"Bearer {secret}", now_s=1.0) is None
    assert verifier.caller(f"Bearer {other}", now_s=1.0) is not None


def test_one_of_two_tokens_of_a_name_is_revoked_by_its_id(file: TokenFile) -> None:
    first, second = (file.create("alice", Role.USER, now_s=0.0) for _ in range(2))
    verifier = FileVerifier(file.path)

    file.revoke(file.tokens()[0].id)

    assert verifier.caller(f"Bearer {first}", now_s=1.0) is None
    assert verifier.caller(f"Bearer {second}", now_s=1.0) is not None


def test_revoking_what_is_not_there_is_an_error(file: TokenFile) -> None:
    file.create("alice", Role.USER, now_s=0.0)

    with pytest.raises(InvalidInput, match=r"token must be a name or id in .*, got 'bob'"):
        file.revoke("bob")


def test_while_the_file_is_damaged_nobody_is_let_in_and_afterwards_all_are(file: TokenFile) -> None:
    secret = file.create("alice", Role.USER, now_s=0.0)
    verifier, content = FileVerifier(file.path), file.path.read_text()

    file.path.write_text("nonsense")
    during = verifier.caller(f"Bearer {secret}", now_s=1.0)
    file.path.write_text(content)

    assert during is None
    assert verifier.caller(f"Bearer {secret}", now_s=1.0) is not None


def test_file_that_is_taken_away_lets_nobody_in_and_says_nothing_of_who_is(
    file: TokenFile, caplog: pytest.LogCaptureFixture
) -> None:
    secret = file.create("alice", Role.USER, now_s=0.0)
    verifier = FileVerifier(file.path)
    kept = file.path.rename(file.path.with_name("kept"))

    assert verifier.caller(f"Bearer {secret}", now_s=1.0) is None
    assert not verifier.is_sure  # so open streams continue
    assert "tokens file cannot be read" in caplog.text

    kept.rename(file.path)
    assert verifier.caller(f"Bearer {secret}", now_s=1.0) is not None
    assert verifier.is_sure


@pytest.mark.parametrize(
    "document",
    [
        "",
        "[]",
        "{}",
        '{"version": 2, "tokens": []}',
        '{"version": 1, "tokens": [{}]}',
        '{"version": 1, "tokens": [{"name": "a", "role": "king", "sha256": "x", "created_at_s": 0}]}',
        '{"version": 1, "tokens": [{"name": 5, "role": "user", "sha256": 6, "created_at_s": 0, "expires_at_s": 0}]}',
    ],
)
def test_file_that_is_not_ours_is_named(file: TokenFile, document: str) -> None:
    file.path.write_text(document)
    file.path.chmod(0o600)

    with pytest.raises(InvalidInput, match=r"tokens.json: tokens file is not valid"):
        file.tokens()


@pytest.mark.parametrize("name", ["", "a b", "../x", "a/b", "ä", "-x", "a\n", "x" * 129])
def test_name_that_could_mislead_is_refused(file: TokenFile, name: str) -> None:
    with pytest.raises(InvalidInput, match="name of a token must be"):
        file.create(name, Role.USER, now_s=0.0)


def test_tokens_made_at_once_are_all_kept(file: TokenFile) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: file.create(f"user{k}", Role.USER, now_s=0.0), range(24)))

    assert len(json.loads(file.path.read_text())["tokens"]) == 24


def test_without_a_tokens_file_everybody_is_the_one_user() -> None:
    who = verifier_of(None).caller("", now_s=0.0)

    assert isinstance(verifier_of(None), NoTokens)
    assert who is not None
    assert (who.name, who.role, who.is_sole) == ("local", Role.ADMIN, True)
