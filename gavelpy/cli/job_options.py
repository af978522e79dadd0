"""Adds the options that describe a job to `gavel submit`, and makes the description from their values.

The command receives the values as keyword arguments: `takes_job_options` adds the options of `JOB_OPTIONS` to its
signature, where typer finds them. So an option is its type and its entry there, and a field of the job here.
"""

from __future__ import annotations

import inspect
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gavelpy.cli import job_files as f
from gavelpy.cli import job_texts as t
from gavelpy.cli.job_option_types import JOB_OPTIONS
from gavelpy.cli.job_sizes import plans_in_file, size_fields
from gavelpy.cli.times import begin, span
from gavelpy.errors import InvalidInput

Command = TypeVar("Command", bound=Callable[..., None])


def takes_job_options(command: Command) -> Command:
    """Adds the options of a job to a command, after its first argument."""
    signature = inspect.signature(command, eval_str=True)
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    added = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind)
        for name, (kind, default) in JOB_OPTIONS.items()
    ]
    command.__signature__ = signature.replace(parameters=[own[0], *added, *own[1:]])  # type: ignore[attr-defined]  # inspect's
    command.__annotations__ |= {name: kind for name, (kind, _) in JOB_OPTIONS.items()}
    return command


def template_of(command: Sequence[str], values: Mapping[str, Any]) -> f.JobTemplate:
    """The job of a command line and of the values of its options. Raises InvalidInput."""
    where = str((values["directory"] or Path.cwd()).absolute())
    fields = _fields(values)
    steps = values["steps"] or 0.0
    return f.JobTemplate(command=shlex.join(command), steps_total=steps, working_directory=where, **fields)


def refuse_job_options(values: Mapping[str, Any]) -> None:
    """Raises InvalidInput for options that a job file would override silently."""
    default, fields = f.JobTemplate(command=""), _fields(values)
    flags = [name for name, value in fields.items() if value != getattr(default, name)]
    flags += [name for name in ("steps", "directory") if values[name] is not None]
    if flags:
        raise InvalidInput(f"a job file describes its jobs completely: remove these flags: {', '.join(flags)}")


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a job template that options set, other than the command, its steps and its directory."""
    same = (
        "name",
        "weight",
        "job_type",
        "entity",
        "one_process_a_node",
        "preemptible",
        "snapshot",
        "image",
        "webhook",
        "mail",
        "hold",
        "priority",
        "no_preempt",
        "reservation",
        "cpus_per_gpu",
        "completion_value",
    )
    warning_s, signal = (0.0, 0) if values["warning"] is None else t.warning(values["warning"])
    rates, curve = t.rates(values["rate"] or []), t.efficiency(values["efficiency"] or [])
    return (
        {name: values[name] for name in same}
        | size_fields(values["gpus"], rates, curve)
        | {
            "deadline_s": values["deadline"],
            "plans": _plans(values["plan"] or []),
            "secrets": t.secrets(values["secret"] or []),
            "environment": t.pairs("--env", values["environment"] or [], "="),
            "checkpoint_every_s": values["checkpoint_every"],
            "gpu_memory_gib": values["gpu_memory"],
            "memory_gib_per_gpu": values["memory_per_gpu"],
            "warning_s": warning_s,
            "warning_signal": signal,
            "notify": tuple(values["notify"].split(",")) if values["notify"] else (),
            "venv": values["venv"] and f.absolute(Path.cwd(), values["venv"], "--venv"),
            "conda": values["conda"] and f.absolute(Path.cwd(), values["conda"], "--conda"),
            "time_s": 0.0 if values["time"] is None else span("--time", values["time"]),
            "stall_s": 0.0 if values["stall"] is None else span("--stall", values["stall"]),
            "gpu_types": () if values["constraint"] is None else t.gpu_types(values["constraint"]),
            "nodes": () if values["nodes"] is None else t.nodes("--nodes", values["nodes"]),
            "exclude": () if values["exclude"] is None else t.nodes("--exclude", values["exclude"]),
            "after": tuple(values["after"] or ()),
            "begin_at_s": 0.0 if values["begin"] is None else begin(values["begin"], time.time()),
        }
    )


def _plans(texts: Sequence[str]) -> dict[int, str]:
    try:
        return plans_in_file(t.pairs("--plan", texts, ":"))
    except ValueError:
        raise InvalidInput(f"--plan must look like 4:tp2 (GPUs:text), got {', '.join(texts)[:60]!r}") from None
