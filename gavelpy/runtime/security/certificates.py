"""TLS certificates of a cluster: a private authority (CA), and server and client certificates that it signs.

Keys are on the curve P-256, readable by their owner only. A file that exists is replaced only with `force`.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gavelpy.errors import InvalidInput
from gavelpy.runtime.security.exposure import pem_file
from gavelpy.runtime.security.tokens import NAME, NAME_CHARACTERS

CA = "ca"
CA_LIFETIME_S = 3_650 * 86_400.0
LIFETIME_S = 825 * 86_400.0
_COMMON_NAME_MAX = 64  # of X.509
_CLOCK_SKEW = datetime.timedelta(minutes=5)  # valid at once on nodes whose clock is behind
_LABEL = r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
_HOST = re.compile(rf"(?=.{{1,253}}$)(\*\.)?{_LABEL}(\.{_LABEL})*\.?")


@dataclass(frozen=True)
class CertificateFile:
    """A certificate in a PEM file."""

    path: Path
    certificate: x509.Certificate

    @property
    def role(self) -> str:
        """`ca`, `server`, `client`, or `other` for a certificate without such a purpose."""
        extensions = self.certificate.extensions
        try:
            if extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
                return CA
            purposes = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        except x509.ExtensionNotFound:
            return "other"
        if ExtendedKeyUsageOID.SERVER_AUTH in purposes:
            return "server"
        return "client" if ExtendedKeyUsageOID.CLIENT_AUTH in purposes else "other"

    @property
    def name(self) -> str:
        """The common name; empty without one."""
        found = self.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(found[0].value) if found else ""

    @property
    def hosts(self) -> list[str]:
        """Host names and IP addresses for which a server's certificate is valid."""
        try:
            names = self.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return []
        return [str(name.value) for name in names]

    @property
    def expires_at_s(self) -> float:
        """Unix time of its end."""
        return self.certificate.not_valid_after_utc.timestamp()


def create_ca(directory: Path, name: str, *, now_s: float, lifetime_s: float, force: bool) -> CertificateFile:
    """Creates an authority as `ca.pem` and `ca.key` in the directory."""
    if not 1 <= len(name) <= _COMMON_NAME_MAX or not name.isprintable():
        raise InvalidInput(f"name of a CA must be 1 to {_COMMON_NAME_MAX} printable characters, got {name[:80]!r}")
    key = ec.generate_private_key(ec.SECP256R1())
    unsigned = _builder(name, key, name, key, now_s, lifetime_s)
    unsigned = unsigned.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    unsigned = unsigned.add_extension(_usage(of_ca=True), critical=True)
    return _write(directory, CA, key, unsigned.sign(key, hashes.SHA256()), force=force)


def create_server(
    directory: Path, hosts: Sequence[str], *, now_s: float, lifetime_s: float | None, force: bool
) -> CertificateFile:
    """Creates `server.pem` and `server.key`, valid for these host names and IP addresses."""
    names = x509.SubjectAlternativeName([_host(host) for host in dict.fromkeys(hosts)])
    return _issue(
        directory,
        "server",
        hosts[0][:_COMMON_NAME_MAX],
        ExtendedKeyUsageOID.SERVER_AUTH,
        names,
        now_s,
        lifetime_s,
        force=force,
    )


def create_client(
    directory: Path, name: str, *, now_s: float, lifetime_s: float | None, force: bool
) -> CertificateFile:
    """Creates `NAME.pem` and `NAME.key`, with which a node or user proves that it belongs to the cluster."""
    if not NAME.fullmatch(name) or len(name) > _COMMON_NAME_MAX or name in (CA, "server"):
        allowed = f"1 to {_COMMON_NAME_MAX} {NAME_CHARACTERS}, and not 'ca' or 'server'"
        raise InvalidInput(f"NODE must be {allowed}, got {name[:80]!r}")
    names = x509.SubjectAlternativeName([x509.DNSName(name)])
    return _issue(directory, name, name, ExtendedKeyUsageOID.CLIENT_AUTH, names, now_s, lifetime_s, force=force)


def read_certificate(path: Path) -> CertificateFile:
    """The first certificate of a PEM file; raises InvalidInput."""
    try:
        return CertificateFile(path, x509.load_pem_x509_certificate(pem_file("certificate", str(path))))
    except ValueError as error:  # InvalidInput is one
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"certificate must be a PEM file with a certificate ({error})", file=str(path)) from None


def _issue(
    directory: Path,
    stem: str,
    name: str,
    purpose: x509.ObjectIdentifier,
    names: x509.SubjectAlternativeName,
    now_s: float,
    lifetime_s: float | None,
    *,
    force: bool,
) -> CertificateFile:
    """A certificate for one purpose, signed by the directory's CA."""
    authority, authority_key = _authority(directory)
    left_s = authority.expires_at_s - now_s
    if left_s <= 0 or (lifetime_s or 0.0) > left_s:
        raise InvalidInput(
            f"--expires-in must end before the CA does, in {max(0, int(left_s // 86_400))} d, got "
            f"{(lifetime_s or LIFETIME_S) / 86_400:g} d; create a new CA with `gavel cert ca --force`",
            file=str(authority.path),
        )
    key = ec.generate_private_key(ec.SECP256R1())
    unsigned = _builder(name, key, authority.name, authority_key, now_s, lifetime_s or min(LIFETIME_S, left_s))
    unsigned = unsigned.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    unsigned = unsigned.add_extension(_usage(of_ca=False), critical=True)
    unsigned = unsigned.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    unsigned = unsigned.add_extension(names, critical=False)
    return _write(directory, stem, key, unsigned.sign(authority_key, hashes.SHA256()), force=force)


def _authority(directory: Path) -> tuple[CertificateFile, ec.EllipticCurvePrivateKey]:
    if not (directory / "ca.pem").exists():
        raise InvalidInput(f"--dir must contain a CA, got {str(directory)!r} without ca.pem: run `gavel cert ca` first")
    authority = read_certificate(directory / "ca.pem")
    path = directory / "ca.key"
    try:
        key = serialization.load_pem_private_key(pem_file("key of the CA", str(path)), password=None)
    except (ValueError, TypeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"key of the CA must be a PEM key without a passphrase ({error})", file=str(path)) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != authority.certificate.public_key():
        raise InvalidInput("key of the CA must be the key of ca.pem, made by `gavel cert ca`", file=str(path))
    return authority, key


def _builder(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    now_s: float,
    lifetime_s: float,
) -> x509.CertificateBuilder:
    now = datetime.datetime.fromtimestamp(now_s, datetime.UTC).replace(microsecond=0)
    return (
        x509.CertificateBuilder()
        .subject_name(_common_name(name))
        .issuer_name(_common_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(seconds=lifetime_s))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, of_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not of_ca, key_cert_sign=of_ca, crl_sign=of_ca, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    if not _HOST.fullmatch(text):
        raise InvalidInput(f"HOST must be a host name or an IP address, without a port, got {text[:80]!r}")
    return x509.DNSName(text)


def _write(
    directory: Path, stem: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate, *, force: bool
) -> CertificateFile:
    """Writes the pair; the key first, so that a certificate never lacks its key."""
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    files = {
        directory / f"{stem}.key": (secret, 0o600),
        directory / f"{stem}.pem": (certificate.public_bytes(serialization.Encoding.PEM), 0o644),
    }
    for path in files:
        if not force and path.exists():
            raise InvalidInput(f"{path} exists and is not overwritten; --force replaces it")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, (content, mode) in files.items():
            temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, mode)
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            temporary.replace(path)
    except OSError as error:
        raise InvalidInput(f"--dir must be a writable directory, got {str(directory)!r} ({error.strerror})") from None
    return CertificateFile(directory / f"{stem}.pem", certificate)
