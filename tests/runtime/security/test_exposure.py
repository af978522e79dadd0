"""A scheduler on the network needs TLS and tokens; on loopback it needs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.runtime.security.exposure import SecuritySettings, check_exposure, is_loopback, server_credentials

SAFE = SecuritySettings(tokens="tokens.json", tls_certificate="cert.pem", tls_key="key.pem")


@pytest.mark.parametrize(
    "listen", ["127.0.0.1:7077", "127.8.8.8:1", "[::1]:7077", "localhost:0", "unix:/run/gavel.sock", "unix-abstract:x"]
)
def test_loopback_needs_neither_tls_nor_tokens(listen: str) -> None:
    check_exposure(listen, SecuritySettings())

    assert is_loopback(listen)


@pytest.mark.parametrize("listen", ["0.0.0.0:7077", "[::]:7077", "10.0.0.1:7077", "gpu-head:7077", "[fe80::1]:7"])
def test_network_address_without_tls_and_tokens_is_refused_with_the_reason(listen: str) -> None:
    with pytest.raises(InvalidInput, match=r"open to the network and needs TLS .* and tokens .*run any command"):
        check_exposure(listen, SecuritySettings())


def test_network_address_needs_both() -> None:
    with pytest.raises(InvalidInput, match=r"needs tokens \(security.tokens\)"):
        check_exposure("0.0.0.0:1", SecuritySettings(tls_certificate="c", tls_key="k"))
    with pytest.raises(InvalidInput, match=r"needs TLS \(security.tls_certificate, security.tls_key\)"):
        check_exposure("0.0.0.0:1", SecuritySettings(tokens="t"))


def test_network_address_with_both_is_fine() -> None:
    check_exposure("0.0.0.0:7077", SAFE)


@pytest.mark.parametrize("listen", ["", "7077", "host", "host:", "host:port", "host:-1", "host:99999", "host:１"])
def test_what_is_no_address_is_refused(listen: str) -> None:
    with pytest.raises(InvalidInput, match="listen must be HOST:PORT"):
        check_exposure(listen, SAFE)


def test_certificate_without_key_is_refused() -> None:
    with pytest.raises(InvalidInput, match="must both be given or neither"):
        check_exposure("127.0.0.1:1", SecuritySettings(tls_certificate="c"))


def test_authority_for_clients_without_tls_is_refused() -> None:
    with pytest.raises(InvalidInput, match="tls_client_ca needs"):
        check_exposure("127.0.0.1:1", SecuritySettings(tls_client_ca="c"))


def test_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("-----BEGIN PRIVATE KEY-----\n")

    with pytest.raises(InvalidInput, match=r"security.tls_certificate must be a file that can be read, got 'nowhere'"):
        server_credentials(SecuritySettings(tls_certificate="nowhere", tls_key=str(key)))


def test_certificate_that_is_none_is_named(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("hello")

    with pytest.raises(InvalidInput, match=r"security\.tls_key must be a PEM file"):
        server_credentials(SecuritySettings(tls_certificate=str(other), tls_key=str(other)))
