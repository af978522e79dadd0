"""`gavel policies`: what each optimises, in a sentence."""

from __future__ import annotations

from gavelpy.cli.options import OutputOption
from gavelpy.cli.output import Output, console, echo_json


def policies(output: OutputOption = Output.TABLE) -> None:
    """List the policies and what each optimises.

    \b
    Examples:
      gavel policies
      gavel policies -o json
    """
    from gavelpy.policies.registry import aliases, registered

    others = {name: [alias for alias, own in aliases().items() if own == name] for name in registered()}
    described = [(name, others[name], policy.summary) for name, policy in registered().items()]
    if output is Output.JSON:
        echo_json([{"name": name, "aliases": also, "summary": summary} for name, also, summary in described])
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy", style="bold", no_wrap=True)
    table.add_column("also", no_wrap=True)
    table.add_column("what it does")
    for name, also, summary in described:
        table.add_row(name, ", ".join(also), summary)
    console().print(table)
