"""`gavel token`: creates, lists and revokes tokens in the tokens file, on the scheduler's node."""

from __future__ import annotations

import math
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gavelpy.cli import options as o
from gavelpy.cli.formatting import timestamp
from gavelpy.cli.output import Output, console, echo_json, notify, printable, tabbed
from gavelpy.errors import InvalidInput

if TYPE_CHECKING:
    from gavelpy.runtime.security.tokens import Token

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_LIFETIME_S_MAX = 100 * 365.25 * 86_400

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke tokens.", rich_markup_mode="rich")

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


@app.command()
def create(
    name: Annotated[str, typer.Option(metavar="NAME", help="User name, or node id.")],
    role: Annotated[str, typer.Option(metavar="user|node|admin", help="Role of the token.")] = "user",
    expires: Annotated[
        str, typer.Option("--expires-in", metavar="TIME", help="Lifetime, e.g. 12h or 90d. Default: unlimited.")
    ] = "",
    file: FileOption = _FILE,
    output: o.OutputOption = Output.TABLE,
) -> None:
    """Create a token and print it. Only its hash is stored. A running scheduler accepts it at once.

    \b
    Examples:
      gavel token create --role user --name alice
      gavel token create --role node --name n1 --file /etc/gavel/tokens.json
    """
    from gavelpy.runtime.security.tokens import Role, TokenFile, digest_of

    if role not in list(Role):
        raise InvalidInput(f"--role must be one of {', '.join(Role)}, got {role[:60]!r}")
    lifetime_s = _lifetime_s(expires) if expires else math.inf
    secret = TokenFile(file).create(name, Role(role), now_s=time.time(), lifetime_s=lifetime_s)
    if output is Output.JSON:
        echo_json({"name": name, "role": role, "token": secret, "id": digest_of(secret)[:10]})
    else:
        typer.echo(secret)
        notify(f"store this token of {role} {name} now: it cannot be shown again")


@app.command(name="list")
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
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("id", "name", "role", "created", "expires"):
        table.add_column(title)
    for token in tokens:
        ends = "never" if math.isinf(token.expires_at_s) else timestamp(token.expires_at_s)
        over = " (expired)" if token.is_expired(time.time()) else ""
        table.add_row(token.id, printable(token.name), token.role, timestamp(token.created_at_s), ends + over)
    console().print(table)


@app.command()
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


def _plain(token: Token) -> dict[str, object]:
    ends = None if math.isinf(token.expires_at_s) else token.expires_at_s
    return {
        "id": token.id,
        "name": token.name,
        "role": token.role.value,
        "created_at_s": token.created_at_s,
        "expires_at_s": ends,
    }


def _lifetime_s(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])", text)
    seconds = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not 0 < seconds <= _LIFETIME_S_MAX:
        raise InvalidInput(f"--expires-in must look like 30m, 12h or 90d, at most 100 years, got {text[:60]!r}")
    return seconds
