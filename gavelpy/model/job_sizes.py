"""Several numbers of GPUs of one job: which are allowed, and the rates on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import VALUE_MAX

SIZES_MAX = 64  # numbers of GPUs of one job
PLAN_MAX = 1_024  # characters
RatesBySize = Mapping[int, Mapping[str, float]]  # steps/s of the whole job, by number of GPUs and GPU type


def checked_sizes(
    job: str, gpus: int, sizes: Sequence[int], rates: RatesBySize
) -> tuple[tuple[int, ...], dict[int, dict[str, float]]]:
    """The sizes of a job in ascending order, and the rates of those other than the requested one.

    Without other sizes than the requested one, both are empty. Raises InvalidInput.
    """
    name, allowed = f"sizes of job {job!r}", f"at most {SIZES_MAX} whole numbers > 0, each once, {gpus} among them"
    if any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes):
        raise InvalidInput(f"{name} must be {allowed}, got {list(sizes)!r}")
    if sizes and (len(set(sizes)) < len(sizes) or len(sizes) > SIZES_MAX or gpus not in sizes):
        raise InvalidInput(f"{name} must be {allowed}, got {', '.join(map(str, sizes))}")
    for size, by_type in rates.items():
        where = f"rates_by_size[{size!r}] of job {job!r}"
        if size not in sizes or size == gpus:
            others = ", ".join(str(other) for other in sizes if other != gpus) or "none"
            raise InvalidInput(f"{where} must be of a size other than the requested one ({others}), got {size!r}")
        checked_rates(f"rates_by_size[{size}]", job, by_type)
    if len(sizes) <= 1:
        return (), {}
    return tuple(sorted(sizes)), {size: dict(by_type) for size, by_type in sorted(rates.items())}


def checked_plans(job: str, gpus: int, sizes: Sequence[int], plans: Mapping[int, str]) -> dict[int, str]:
    """A copy of the plans of a job by number of GPUs, ascending. Raises InvalidInput."""
    for size, plan in plans.items():
        if size not in (sizes or (gpus,)):
            allowed = ", ".join(map(str, sizes or (gpus,)))
            raise InvalidInput(f"plans of job {job!r} must be of its numbers of GPUs ({allowed}), got {size!r}")
        if not isinstance(plan, str) or not plan or "\0" in plan or len(plan) > PLAN_MAX:
            allowed = f"1 to {PLAN_MAX:,} characters without NUL"
            raise InvalidInput(f"plans[{size}] of job {job!r} must be {allowed}, got {plan!r:.80}")
    return dict(sorted(plans.items()))


def checked_rates(name: str, job: str, rates: Mapping[str, float]) -> dict[str, float]:
    """A copy of these rates by GPU type, as the caller's may change. Raises InvalidInput."""
    for gpu_type, rate in rates.items():
        if not 0 <= rate <= VALUE_MAX:
            raise InvalidInput(f"{name}[{gpu_type!r}] of job {job!r} must be in [0, {VALUE_MAX:g}], got {rate!r}")
    return dict(rates)


def parsed_sizes(text: str, name: str = "gpus") -> tuple[int, ...]:
    """The sizes in a text such as `4`, `1,2,4` or `1..8`; the first one is the requested one.

    >>> parsed_sizes("4"), parsed_sizes("2,1,4"), parsed_sizes("2..4")
    ((4,), (2, 1, 4), (2, 3, 4))
    """
    first, dots, last = text.partition("..")
    parts = [first, last] if dots else text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise InvalidInput(f"{name} must be a number, numbers such as 4,1,2, or a range such as 1..8, got {text!r}")
    numbers = [int(part) for part in parts]
    if not dots:
        return tuple(numbers)
    low, high = numbers
    if not 1 <= low <= high or high - low >= SIZES_MAX:
        raise InvalidInput(f"a range of {name} must be of 1 to {SIZES_MAX} numbers > 0, the least first, got {text!r}")
    return tuple(range(low, high + 1))


def rates_by_efficiency(gpus: int, rates: Mapping[str, float], efficiency: Mapping[int, float]) -> RatesBySize:
    """Rates of other sizes from those of the requested one: in proportion to GPUs, times the efficiency of the size.

    >>> rates_by_efficiency(1, {"v100": 10.0}, {4: 0.75})
    {4: {'v100': 30.0}}
    """
    for size, value in efficiency.items():
        if not 0 < value <= VALUE_MAX:
            raise InvalidInput(f"efficiency of {size} GPUs must be > 0, got {value!r}")
    return {
        size: {gpu_type: rate * size / gpus * value for gpu_type, rate in rates.items()}
        for size, value in efficiency.items()
        if size != gpus
    }
