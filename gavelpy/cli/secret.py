"""`gavel secret`: store, list and delete the secrets of the user who runs it."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from gavelpy.cli import options as o
from gavelpy.cli.output import Output, echo_json, notify
from gavelpy.errors import InvalidInput, RemoteViolation
from gavelpy.runtime.user_secrets import VALUE_BYTES_MAX, delete_secret, read_secrets, secrets_file, set_secret

app = typer.Typer(
    no_args_is_help=True,
    help="Store secrets for your jobs, in your home directory on this machine (gavel submit --secret).",
    rich_markup_mode="rich",
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the secret, as of a variable.")]


@app.command("set")
def set_(name: NameArgument) -> None:
    """Store a secret, or replace its value, which is read from stdin or, at a terminal, from a hidden prompt.

    The value is never an argument, where other users could see it. One line break at its end is removed.

    \b
    Examples:
      gavel secret set WANDB_API_KEY
      gavel secret set DEPLOY_KEY < ~/.ssh/deploy
    """
    set_secret(_file(), name, _value(name))
    notify(f"stored in {_file()}: the nodes must have the same home directory, or a copy of this file")


@app.command("list")
def list_(output: o.OutputOption = Output.TABLE) -> None:
    """List the names of your secrets. Values are not shown.

    \b
    Examples:
      gavel secret list
      gavel secret list -o json
    """
    try:
        names = sorted(read_secrets(_file()))
    except RemoteViolation as violation:
        raise InvalidInput(str(violation)) from None
    if output is Output.JSON:
        echo_json({"secrets": names})
        return
    for name in names:
        typer.echo(name)


@app.command()
def delete(name: NameArgument) -> None:
    """Delete a secret. Running jobs that have its value keep it until they end.

    \b
    Example:
      gavel secret delete WANDB_API_KEY
    """
    delete_secret(_file(), name)


def _file() -> Path:
    return secrets_file(str(Path.home()))


def _value(name: str) -> str:
    if sys.stdin.isatty():
        return getpass.getpass(f"value of {name}: ")
    content = sys.stdin.buffer.read(VALUE_BYTES_MAX + 2)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"the value of {name} must be UTF-8 text; encode other data, as with base64") from None
    return text.removesuffix("\n").removesuffix("\r")
