"""`gavel token` and `gavel cert`: create, list and revoke tokens; create and list TLS certificates."""

from __future__ import annotations

import math
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gavelpy.cli import options as o
from gavelpy.cli.output import DASH, Output, TableData, echo_json, notify, printable, show_table, tabbed, timestamp
from gavelpy.errors import InvalidInput

if TYPE_CHECKING:
    from gavelpy.runtime.security.certificates import CertificateFile
    from gavelpy.runtime.security.tokens import Token

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_LIFETIME_S_MAX = 100 * 365.25 * 86_400

tokens_app = typer.Typer(no_args_is_help=True, help="Create, list and revoke tokens.", rich_markup_mode="rich")
certificates_app = typer.Typer(
    no_args_is_help=True, help="Create a CA and TLS certificates for the cluster.", rich_markup_mode="rich"
)

FileOption = Annotated[
    Path,
    typer.Option(
        "--file",
        metavar="FILE",
        envvar="GAVEL_TOKENS",
        help=r"Tokens file, as set under \[security] in the scheduler's configuration.",
    ),
]
_FILE = Path("/etc/gavel/tokens.json")
_TLS = Path("/etc/gavel/tls")
ExpiresOption = Annotated[
    str, typer.Option("--expires-in", metavar="TIME", help="Lifetime, e.g. 12h or 90d. Default: unlimited.")
]
DirectoryOption = Annotated[
    Path, typer.Option("--dir", metavar="DIR", envvar="GAVEL_TLS_DIR", help="Directory of the CA and certificates.")
]
CertificateExpiresOption = Annotated[
    str,
    typer.Option("--expires-in", metavar="TIME", help="Lifetime, e.g. 90d. Default: 825d, and no later than the CA."),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace existing files.")]


@tokens_app.command()
def create(
    name: Annotated[str, typer.Option(metavar="NAME", help="User name, or node id.")],
    role: Annotated[str, typer.Option(metavar="user|node|admin", help="Role of the token.")] = "user",
    expires: ExpiresOption = "",
    team: Annotated[
        str, typer.Option(metavar="TEAM", help="Team of jobs that are submitted with the token. Default: none.")
    ] = "",
    file: FileOption = _FILE,
    output: o.OutputOption = Output.TABLE,
) -> None:
    """Create a token and print it. Only its hash is stored. A running scheduler accepts it at once.

    \b
    Examples:
      gavel token create --role user --name alice --team vision
      gavel token create --role node --name n1 --file /etc/gavel/tokens.json
    """
    from gavelpy.runtime.security.tokens import Role, TokenFile, digest_of

    if role not in list(Role):
        raise InvalidInput(f"--role must be one of {', '.join(Role)}, got {role[:60]!r}")
    lifetime_s = _lifetime_s(expires) if expires else math.inf
    secret = TokenFile(file).create(name, Role(role), now_s=time.time(), lifetime_s=lifetime_s, team=team)
    if output is Output.JSON:
        echo_json({"name": name, "role": role, "token": secret, "id": digest_of(secret)[:10]})
    else:
        typer.echo(secret)
        notify(f"store this token of {role} {name} now: it cannot be shown again")


@tokens_app.command(name="list")
def show(file: FileOption = _FILE, output: o.OutputOption = Output.TABLE) -> None:
    """List the tokens with id, name, role and times. The tokens themselves are not stored.

    \b
    Example:
      gavel token list
    """
    from gavelpy.runtime.security.tokens import TokenFile

    tokens = TokenFile(file).tokens()
    if output is Output.JSON:
        echo_json({"tokens": [_plain(token) for token in tokens]})
        return
    rows = [
        (
            token.id,
            printable(token.name),
            token.role,
            timestamp(token.created_at_s),
            _expiry(token.expires_at_s),
            printable(token.team) or DASH,
        )
        for token in tokens
    ]
    show_table(TableData(("id", "name", "role", "created", "expires", "team"), frozenset(), rows))


@tokens_app.command()
def revoke(
    which: Annotated[str, typer.Argument(metavar="NAME|ID", help="All tokens of this name, or the one with this id.")],
    file: FileOption = _FILE,
    output: o.OutputOption = Output.TABLE,
) -> None:
    """Revoke tokens. A running scheduler refuses them from the next call.

    \b
    Examples:
      gavel token revoke alice
      gavel token revoke 3fa2b1c07d
    """
    from gavelpy.runtime.security.tokens import TokenFile

    revoked = TokenFile(file).revoke(which)
    if output is Output.JSON:
        echo_json({"revoked": [_plain(token) for token in revoked]})
    else:
        for token in revoked:
            typer.echo(tabbed(token.id, token.name, token.role))


@certificates_app.command()
def ca(
    directory: DirectoryOption = _TLS,
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the CA.")] = "gavel CA",
    expires: Annotated[
        str, typer.Option("--expires-in", metavar="TIME", help="Lifetime, e.g. 3650d, the default.")
    ] = "",
    force: ForceOption = False,
    output: o.OutputOption = Output.TABLE,
) -> None:
    """Create the cluster's certificate authority: ca.pem for all nodes and users, ca.key for this machine only.

    \b
    Example:
      gavel cert ca
    """
    from gavelpy.runtime.security.certificates import CA_LIFETIME_S, create_ca

    lifetime_s = _lifetime_s(expires) if expires else CA_LIFETIME_S
    _show([create_ca(directory, name, now_s=time.time(), lifetime_s=lifetime_s, force=force)], output)
    notify(f"keep {directory / 'ca.key'} secret: it can create certificates that the cluster trusts")


@certificates_app.command()
def server(
    hosts: Annotated[
        list[str], typer.Argument(metavar="HOST...", help="Names and IP addresses by which the scheduler is reached.")
    ],
    directory: DirectoryOption = _TLS,
    expires: CertificateExpiresOption = "",
    force: ForceOption = False,
    output: o.OutputOption = Output.TABLE,
) -> None:
    """Create the scheduler's certificate and key, server.pem and server.key.

    \b
    Example:
      gavel cert server scheduler.example 10.0.0.1
    """
    from gavelpy.runtime.security.certificates import create_server

    lifetime_s = _lifetime_s(expires) if expires else None
    _show([create_server(directory, hosts, now_s=time.time(), lifetime_s=lifetime_s, force=force)], output)


@certificates_app.command()
def node(
    name: Annotated[str, typer.Argument(metavar="NODE", help="Node id, or the name of a user.")],
    directory: DirectoryOption = _TLS,
    expires: CertificateExpiresOption = "",
    force: ForceOption = False,
    output: o.OutputOption = Output.TABLE,
) -> None:
    """Create a client certificate and key, NODE.pem and NODE.key, for a scheduler with tls_client_ca.

    \b
    Example:
      gavel cert node n1
    """
    from gavelpy.runtime.security.certificates import create_client

    lifetime_s = _lifetime_s(expires) if expires else None
    _show([create_client(directory, name, now_s=time.time(), lifetime_s=lifetime_s, force=force)], output)


@certificates_app.command(name="list")
def listed(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE...]", help="Certificates. Default: all of the directory.")
    ] = None,
    directory: DirectoryOption = _TLS,
    output: o.OutputOption = Output.TABLE,
) -> None:
    """List certificates with purpose, name, hosts and expiry.

    \b
    Examples:
      gavel cert list
      gavel cert list /etc/gavel/node.pem -o json
    """
    from gavelpy.runtime.security.certificates import read_certificate

    if not files and not directory.is_dir():
        raise InvalidInput(f"--dir must be a directory with certificates, got {str(directory)!r}")
    _show([read_certificate(path) for path in files or sorted(directory.glob("*.pem"))], output)


def _show(found: list[CertificateFile], output: Output) -> None:
    if output is Output.JSON:
        certificates = [
            {"file": str(c.path), "role": c.role, "name": c.name, "hosts": c.hosts, "expires_at_s": c.expires_at_s}
            for c in found
        ]
        echo_json({"certificates": certificates})
        return
    rows = [
        (printable(str(c.path)), c.role, printable(c.name), printable(" ".join(c.hosts)), _expiry(c.expires_at_s))
        for c in found
    ]
    show_table(TableData(("file", "role", "name", "hosts", "expires"), frozenset(), rows))


def _expiry(expires_at_s: float) -> str:
    if math.isinf(expires_at_s):
        return "never"
    return f"{timestamp(expires_at_s)}{' (expired)' if expires_at_s <= time.time() else ''}"


def _plain(token: Token) -> dict[str, object]:
    ends = None if math.isinf(token.expires_at_s) else token.expires_at_s
    return {
        "id": token.id,
        "name": token.name,
        "role": token.role.value,
        "created_at_s": token.created_at_s,
        "expires_at_s": ends,
        "team": token.team,
    }


def _lifetime_s(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])", text)
    seconds = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not 0 < seconds <= _LIFETIME_S_MAX:
        raise InvalidInput(f"--expires-in must look like 30m, 12h or 90d, at most 100 years, got {text[:60]!r}")
    return seconds
