"""Measures the steps/s of jobs on this machine and writes a throughput table.

The same as `gavel profile`, for a GPU machine with few packages: needs Python 3.11 or newer, torch (with CUDA, for a
GPU) and numpy, and a checkout or an installed gavelpy, without the other dependencies of gavelpy.

    python workloads/jobs/measure.py --table measured.csv      # the six jobs of full.toml: about 4 minutes
    python workloads/jobs/measure.py workloads/jobs/small.toml --device cpu --seconds 5
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
if (CHECKOUT / "gavelpy" / "__init__.py").is_file():  # not installed: import it from the checkout
    sys.path.insert(0, str(CHECKOUT))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))

from gavelpy.cli.profile import measured_here, read_templates  # noqa: E402  after the path is set
from gavelpy.cli.rate_profiles import with_measured  # noqa: E402
from gavelpy.errors import GavelError  # noqa: E402
from gavelpy.runtime.profile import Bench, here  # noqa: E402
from gavelpy.traces.fields import write_text  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 if all were measured, 1 if some were not, 2 for bad input."""
    given = _parse(arguments)
    try:
        machine = here(on_cpu=given.device == "cpu", gpu_type=given.gpu_type)
        bench = Bench(machine.gpu_type, given.seconds, on_cpu=given.device == "cpu")
        jobs = read_templates(given.jobs)
        rates = list(measured_here(jobs, bench, machine, _tell))
        text = with_measured("", rates)
        if given.table is None:
            sys.stdout.write(text)
        else:
            write_text(given.table, text)
    except GavelError as error:
        _tell(f"error: {error}")
        return 2
    return 0 if len(rates) == len(jobs) else 1


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", type=Path, default=[HERE / "full.toml"], help="files with [[job]] tables")
    parser.add_argument("--seconds", type=float, default=20.0, help="to measure each job, after its first steps")
    parser.add_argument("--device", choices=["auto", "cpu"], default="auto")
    parser.add_argument("--gpu-type", default="", help="the column's name; from the product's name if left out")
    parser.add_argument("--table", type=Path, default=None, metavar="FILE", help="CSV to write; stdout if left out")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
