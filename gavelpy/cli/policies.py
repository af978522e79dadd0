"""`gavel policies`: what each optimises, in a sentence, and what it guarantees."""

from __future__ import annotations

from gavelpy.cli.options import OutputOption
from gavelpy.cli.output import Output, console, echo_json
from gavelpy.policies.guarantees import Guarantee


def policies(output: OutputOption = Output.TABLE) -> None:
    """List the policies, what each optimises and what it guarantees.

    \b
    Examples:
      gavel policies
      gavel policies -o json
    """
    from gavelpy.policies.base import guarantees_of
    from gavelpy.policies.registry import aliases, registered

    others = {name: [alias for alias, own in aliases().items() if own == name] for name in registered()}
    kept = {name: [g for g in Guarantee if g in guarantees_of(policy)] for name, policy in registered().items()}
    described = [(name, others[name], policy.summary, kept[name]) for name, policy in registered().items()]
    if output is Output.JSON:
        keys = ("name", "aliases", "summary", "guarantees")
        echo_json([dict(zip(keys, entry, strict=True)) for entry in described])
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy", style="bold", no_wrap=True)
    table.add_column("also", no_wrap=True)
    table.add_column("what it does")
    table.add_column("guarantees")
    for name, also, summary, guarantees in described:
        table.add_row(name, ", ".join(also), summary, ", ".join(g.in_words for g in guarantees))
    console().print(table)
