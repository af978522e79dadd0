"""How users write the numbers of GPUs of a job, and its rates on each: in options and in job files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import typer

from gavelpy.cli.options import GPUS_MAX
from gavelpy.errors import InvalidInput

GPUS_ALLOWED = 'a whole number, or several such as [1, 2, 4] or "1..8" with the requested one first'
RATES_ALLOWED = 'a table of numbers by GPU type, or by GPU type and number of GPUs such as "v100@4"'
EFFICIENCY_ALLOWED = "a table of numbers by number of GPUs"
PLANS_ALLOWED = "a table of texts by number of GPUs"
_DIGITS_MAX = 9


class Sizes(NamedTuple):
    """The number of GPUs that a job requests, and all on which it can run; none = the requested one only."""

    gpus: int
    sizes: tuple[int, ...] = ()


class SizeFields(TypedDict):
    """The fields of a job template for its numbers of GPUs and its rates on each."""

    gpus: int
    sizes: tuple[int, ...]
    rates_steps_per_s: dict[str, float]
    rates_by_size: dict[int, dict[str, float]]
    efficiency: dict[int, float]


def gpus_of(text: str) -> Sizes:
    """The sizes of `4`, `1,2,4` or `1..8`, the requested one first. Raises InvalidInput.

    >>> gpus_of("4"), gpus_of("2,1,4")
    (Sizes(gpus=4, sizes=()), Sizes(gpus=2, sizes=(2, 1, 4)))
    """
    if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX:  # most jobs, without the model's libraries
        return _sizes([int(text)], text)
    from gavelpy.model.job_sizes import parsed_sizes

    return _sizes(parsed_sizes(text), text)


def gpus_option(text: str) -> Sizes:
    """The same of an option."""
    try:
        return gpus_of(text)
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from None


def gpus_in_file(value: object) -> Sizes:
    """The same of a value of a job file: a whole number (0 = 1), a list, or a text. Raises TypeError or ValueError."""
    if isinstance(value, str):
        return gpus_of(value)
    numbers: list[Any] = value if isinstance(value, list) else [value]  # Any: values of TOML
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise TypeError
    return Sizes(0) if value == 0 else _sizes(numbers, str(value))


def plans_in_file(plans: Mapping[str, str]) -> dict[int, str]:
    """Plans by number of GPUs. Raises ValueError."""
    if not all(key.isascii() and key.isdecimal() and len(key) <= _DIGITS_MAX for key in plans):
        raise ValueError
    return {int(key): plan for key, plan in plans.items()}


def size_fields(gpus: Sizes, rates: Mapping[str, float], efficiency: Mapping[str, float]) -> SizeFields:
    """The fields of a job. Keys of `rates`: v100, or v100@4 on 4 GPUs; of `efficiency`: 4. Raises InvalidInput."""
    plain: dict[str, float] = {}
    by_size: dict[int, dict[str, float]] = {}
    for key, rate in rates.items():
        gpu_type, at, size = key.rpartition("@")
        number = _size("rate", key, size, gpus) if at else gpus.gpus
        where = plain if number == gpus.gpus else by_size.setdefault(number, {})
        name = gpu_type if at else key
        if name in where:
            raise InvalidInput(f"rate must name each GPU type once on {number} GPUs, got {name!r} twice")
        where[name] = rate
    curve = {_size("efficiency", key, key, gpus): value for key, value in efficiency.items()}
    for number, value in curve.items():
        if not 0 < value < math.inf or (number == gpus.gpus and value != 1.0):
            allowed = "1, as the job requests them" if number == gpus.gpus else "> 0"
            raise InvalidInput(f"efficiency of {number} GPUs must be {allowed}, got {value:g}")
    curve.pop(gpus.gpus, None)
    return SizeFields(
        gpus=gpus.gpus, sizes=gpus.sizes, rates_steps_per_s=plain, rates_by_size=by_size, efficiency=curve
    )


def _sizes(numbers: Sequence[int], text: str) -> Sizes:
    if not numbers or not all(1 <= number <= GPUS_MAX for number in numbers) or len(set(numbers)) < len(numbers):
        raise InvalidInput(f"gpus must be numbers in [1, {GPUS_MAX}], each once, got {text[:60]!r}")
    return Sizes(numbers[0], tuple(numbers) if len(numbers) > 1 else ())


def _size(field: str, key: str, text: str, gpus: Sizes) -> int:
    """The number of GPUs in a key, on which the job can run."""
    sizes = gpus.sizes or (gpus.gpus,)
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX else 0
    if number not in sizes:
        raise InvalidInput(f"{field} must be of numbers of GPUs in gpus ({', '.join(map(str, sizes))}), got {key!r}")
    return number
