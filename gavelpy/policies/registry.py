"""Policies by name. Built-in and plug-in policies register in the entry point group `gavelpy.policies`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from gavelpy.errors import InvalidInput
from gavelpy.policies.base import Policy

GROUP = "gavelpy.policies"


def policy_named(name: str, **parameters: Any) -> Policy:  # Any: a policy's hyper-parameters are its own
    """The policy with this name or alias and these hyper-parameters. Raises InvalidInput, which lists known names."""
    known = _entry_points()
    if name not in known:
        raise InvalidInput(f"policy must be one of {', '.join(sorted(known))}, got {name!r}")
    policy_class = known[name].load()
    if is_dataclass(policy_class):
        _check_parameters(name, [field.name for field in fields(policy_class) if field.init], parameters)
    try:
        return cast(Policy, policy_class(**parameters))
    except TypeError as error:
        raise InvalidInput(
            f"parameters of policy {name!r} must be those of {policy_class.__name__}: {error}"
        ) from error


def _check_parameters(name: str, allowed: list[str], given: Mapping[str, object]) -> None:
    unknown = next((parameter for parameter in given if parameter not in allowed), None)
    if unknown is not None:
        offered = f"its parameters are {', '.join(allowed)}" if allowed else "it has none"
        raise InvalidInput(f"policy {name!r} has no parameter {unknown!r}; {offered}")


def policy_from(text: str) -> Policy:
    """The policy of `name` or `name:parameter=value:...`; values that look like numbers are numbers.

    >>> policy_from("shortest_job_first:by=total").by
    'total'
    """
    name, *settings = text.split(":")
    parameters: dict[str, float | str] = {}
    for setting in settings:
        parameter, equals, value = setting.partition("=")
        if not (parameter and equals and value) or parameter in parameters:
            raise InvalidInput(f"policy must look like name:parameter=value, each parameter once, got {text!r}")
        try:
            parameters[parameter] = float(value)
        except ValueError:
            parameters[parameter] = value
    return policy_named(name, **parameters)


def registered() -> Mapping[str, type[Policy]]:
    """Registered policy classes by name, sorted, without aliases."""
    classes = [entry.load() for entry in _entry_points().values()]
    return {policy.name: policy for policy in sorted(classes, key=lambda policy: policy.name)}


def aliases() -> Mapping[str, str]:
    """Policy name by alias."""
    names = {alias: entry.load().name for alias, entry in sorted(_entry_points().items())}
    return {alias: name for alias, name in names.items() if alias != name}


@cache
def _entry_points() -> Mapping[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}
