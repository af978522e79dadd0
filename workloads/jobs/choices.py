"""The command line of a training job: steps, device and size."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

SEED_MAX = 2**31
STEPS_DEFAULT = 200


class Sizes(dict[str, int]):
    """Sizes of a job by name; each becomes a flag, --batch-size for batch_size."""


@dataclass(frozen=True)
class Choices:
    """The chosen options; `sizes` has every size of the job."""

    steps: int
    seed: int
    device: str  # auto, cpu or cuda
    threads: int  # of the CPU
    is_full: bool
    sizes: Mapping[str, int]
    checkpoints: str  # directory for runs outside a lease; "" = none
    is_deterministic: bool = False  # the same digits in every run on a GPU, too


def chosen(about: str, small: Sizes, full: Sizes, arguments: Sequence[str] | None = None) -> Choices:
    """Parses the command line. Steps default to GAVEL_STEPS_TOTAL, sizes to `small`, with --full to `full`."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = int(float(os.environ.get("GAVEL_STEPS_TOTAL") or 0)) or STEPS_DEFAULT
    parser.add_argument("--steps", type=_whole(1, 10**15), default=steps, metavar="N", help=f"in all; here {steps}")
    parser.add_argument("--seed", type=_whole(0, SEED_MAX), default=0, metavar="N")
    parser.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: cuda where there is one"
    )
    parser.add_argument("--threads", type=_whole(1, 1024), default=1, metavar="N", help="of the CPU; 1")
    parser.add_argument("--full", action="store_true", help="sizes that are worth a GPU")
    parser.add_argument("--checkpoints", default="", metavar="DIR", help="where to keep and find them outside a lease")
    about_digits = "on a GPU, too, the same seed gives the same digits; slower"
    parser.add_argument("--deterministic", action="store_true", help=about_digits)
    for name, size in small.items():
        text = f"{size}, with --full {full[name]}"
        parser.add_argument(f"--{name.replace('_', '-')}", type=_whole(1, 10**9), default=None, metavar="N", help=text)
    given = parser.parse_args(arguments)
    sizes = {name: getattr(given, name) or size for name, size in (full if given.full else small).items()}
    return Choices(
        given.steps, given.seed, given.device, given.threads, given.full, sizes, given.checkpoints, given.deterministic
    )


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be in [{low}, {high}], got {value}")
        return value

    parse.__name__ = "whole number"
    return parse
