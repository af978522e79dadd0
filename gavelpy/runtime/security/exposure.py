"""Security settings of the scheduler's address. A network address without TLS and tokens is refused."""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from gavelpy.errors import InvalidInput
from gavelpy.runtime.user_paths import user_path

if TYPE_CHECKING:
    import grpc

CONNECT_MS_MAX: Final = 5_000
"""gRPC's `min_reconnect_backoff_ms` limits one attempt to connect, with the TLS handshake and the server's settings.

It does not delay the next attempt. Shorter, and no connection comes about over a slow link or to a busy host.
"""

PUSHBACK: Final = "grpc-retry-pushback-ms"
"""gRPC's name of the field of a refusal with how long the caller must wait."""


class SecuritySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The section [security] of the scheduler's configuration. Paths of files; empty = none."""

    tokens: str = ""  # made by `gavel token create`
    tls_certificate: str = ""  # PEM, the server's own first
    tls_key: str = ""
    tls_client_ca: str = ""  # clients must present a certificate of this authority as well as their token

    @property
    def tokens_path(self) -> Path | None:
        """The tokens file, if there is one."""
        return Path(self.tokens) if self.tokens else None

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return bool(self.tls_certificate)


def check_exposure(listen: str, settings: SecuritySettings, field: str = "listen") -> None:
    """Raises InvalidInput unless `listen`, the value of a field, may be opened under these settings."""
    if bool(settings.tls_certificate) != bool(settings.tls_key):
        raise InvalidInput("security.tls_certificate and security.tls_key must both be given or neither")
    if settings.tls_client_ca and not settings.tls_certificate:
        raise InvalidInput("security.tls_client_ca needs security.tls_certificate and security.tls_key")
    if is_loopback(listen, field):
        return
    missing = [
        *(["TLS (security.tls_certificate, security.tls_key)"] if not settings.has_tls else []),
        *(["tokens (security.tokens)"] if not settings.tokens else []),
    ]
    if missing:
        raise InvalidInput(
            f"{field} = {listen!r} is open to the network and needs {' and '.join(missing)}: otherwise every host "
            "of the network could run any command on all nodes; without them only loopback (127.0.0.1, ::1, localhost, "
            "unix:) is allowed"
        )


def is_loopback(listen: str, field: str = "listen") -> bool:
    """Whether an address (HOST:PORT, [IPv6]:PORT or unix:PATH) is reachable from this host only."""
    if listen.startswith(("unix:", "unix-abstract:")):
        return True
    host, colon, port = listen.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal() and int(port[:6]) <= 65_535):
        raise InvalidInput(f"{field} must be HOST:PORT, [IPv6]:PORT or unix:PATH, got {listen[:200]!r}")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:  # a host name, which may resolve to any address
        return False


def server_credentials(settings: SecuritySettings) -> grpc.ServerCredentials | None:
    """Credentials for the port; None = no TLS. Raises InvalidInput for unreadable files."""
    if not settings.has_tls:
        return None
    import grpc  # gavel-node reads its configuration before it needs grpc

    key = pem_file("security.tls_key", settings.tls_key)
    certificate = pem_file("security.tls_certificate", settings.tls_certificate)
    authority = pem_file("security.tls_client_ca", settings.tls_client_ca) if settings.tls_client_ca else None
    return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=authority is not None)


def tls_context(settings: SecuritySettings) -> ssl.SSLContext | None:
    """The same certificates for a port without gRPC; None = no TLS. Raises InvalidInput for unreadable files."""
    if not settings.has_tls:
        return None
    for field in ("tls_key", "tls_certificate", *(["tls_client_ca"] if settings.tls_client_ca else [])):
        pem_file(f"security.{field}", getattr(settings, field))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(_file(settings.tls_certificate), _file(settings.tls_key))
        if settings.tls_client_ca:
            context.load_verify_locations(_file(settings.tls_client_ca))
            context.verify_mode = ssl.CERT_REQUIRED
    except ssl.SSLError as error:
        raise InvalidInput(f"security.tls_certificate and security.tls_key must belong together: {error}") from None
    return context


def _file(path: str) -> Path:
    return Path(path).expanduser()


def channel_credentials(tls_ca: str, tls_certificate: str, tls_key: str) -> grpc.ChannelCredentials:
    """Credentials of a client or agent, from PEM files; without a key it presents no certificate. InvalidInput."""
    import grpc

    key = pem_file("tls_key", tls_key) if tls_key else None
    certificate = pem_file("tls_certificate", tls_certificate) if tls_key else None
    return grpc.ssl_channel_credentials(pem_file("tls_ca", tls_ca), key, certificate)


def pem_file(field: str, path: str) -> bytes:
    """The bytes of a PEM file; raises InvalidInput with the field's name."""
    file = user_path(field, path)
    try:
        content = file.read_bytes()
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{field} must be a file that can be read, got {path!r} ({error})") from None
    if b"-----BEGIN " not in content:
        raise InvalidInput(f"{field} must be a PEM file, got {path!r}")
    return content
