"""`gavel cert`: the files it writes and the values it refuses. tests/docs/test_two_machines.py uses certificates."""

from __future__ import annotations

import stat
import time

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from tests.cli.commands import Gavel


@pytest.fixture
def authority(gavel: Gavel) -> Gavel:
    assert gavel("cert", "ca", "--dir", "tls").code == 0
    return gavel


def loaded(gavel: Gavel, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((gavel.folder / "tls" / name).read_bytes())


def test_server_certificate_is_trusted_for_its_hosts_only(authority: Gavel) -> None:
    assert authority("cert", "server", "scheduler.example", "10.0.0.1", "--dir", "tls").code == 0

    policy = PolicyBuilder().store(Store([loaded(authority, "ca.pem")]))

    assert policy.build_server_verifier(x509.DNSName("scheduler.example")).verify(loaded(authority, "server.pem"), [])
    with pytest.raises(VerificationError):
        policy.build_server_verifier(x509.DNSName("other.example")).verify(loaded(authority, "server.pem"), [])


def test_node_certificate_cannot_impersonate_the_scheduler(authority: Gavel) -> None:
    assert authority("cert", "node", "n1", "--dir", "tls").code == 0

    policy = PolicyBuilder().store(Store([loaded(authority, "ca.pem")]))

    assert policy.build_client_verifier().verify(loaded(authority, "n1.pem"), [])
    with pytest.raises(VerificationError):
        policy.build_server_verifier(x509.DNSName("n1")).verify(loaded(authority, "n1.pem"), [])


def test_keys_are_readable_by_their_owner_only(authority: Gavel) -> None:
    authority("cert", "server", "10.0.0.1", "--dir", "tls")

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (authority.folder / "tls").iterdir()}

    assert modes == {"ca.key": 0o600, "ca.pem": 0o644, "server.key": 0o600, "server.pem": 0o644}


def test_existing_files_are_replaced_with_force_only(authority: Gavel) -> None:
    before = (authority.folder / "tls" / "ca.key").read_bytes()

    refused = authority("cert", "ca", "--dir", "tls")

    assert refused.code == 2
    assert "tls/ca.key exists" in refused.err
    assert (authority.folder / "tls" / "ca.key").read_bytes() == before
    assert authority("cert", "ca", "--dir", "tls", "--force").code == 0
    assert (authority.folder / "tls" / "ca.key").read_bytes() != before


def test_list_shows_role_hosts_and_expiry(authority: Gavel) -> None:
    authority("cert", "server", "10.0.0.1", "head", "--dir", "tls", "--expires-in", "90d")

    ca, server = authority("cert", "list", "--dir", "tls", "-o", "json").json["certificates"]

    assert (ca["role"], server["role"]) == ("ca", "server")
    assert server["hosts"] == ["10.0.0.1", "head"]
    assert server["expires_at_s"] == pytest.approx(time.time() + 90 * 86_400, abs=60)
    assert " expires" in authority("cert", "list", "--dir", "tls").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("server", "10.0.0.1:7077"), "HOST must be a host name or an IP address, without a port, got '10.0.0.1:7077'"),
        (("server", "head-"), "HOST must be a host name or an IP address, without a port, got 'head-'"),
        (("server", "h" * 60 + "_"), "HOST must be a host name"),  # once minutes of backtracking
        (("node", "a/b"), "NODE must be 1 to 64 letters"),
        (("node", "server"), "not 'ca' or 'server', got 'server'"),
        (("node", "n1", "--expires-in", "9000d"), "--expires-in must end before the CA does, in 3649 d, got 9000 d"),
        (("node", "n1", "--expires-in", "soon"), "--expires-in must look like 30m, 12h or 90d"),
    ],
)
def test_refused_value_is_named_and_nothing_is_written(
    authority: Gavel, arguments: tuple[str, ...], message: str
) -> None:
    answer = authority("cert", *arguments, "--dir", "tls")

    assert answer.code == 2
    assert message in answer.err
    assert len(list((authority.folder / "tls").iterdir())) == 2


def test_certificate_without_a_ca_says_what_to_run_first(gavel: Gavel) -> None:
    answer = gavel("cert", "server", "head", "--dir", "empty")

    assert answer.code == 2
    assert "without ca.pem: run `gavel cert ca` first" in answer.err
