"""What a command imports is most of its time: short commands load nothing that they do not need."""

import subprocess
import sys

import pytest

from tests.cli.commands import Gavel

LOADED = """
import sys
from gavelpy.cli.main import main
code = main({arguments!r})
print(*sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""
NUMERIC = {"numpy", "scipy", "numba", "pandas", "cvxpy", "highspy"}
UNREACHABLE = ("--scheduler", "127.0.0.1:1", "--timeout", "0.01")


def loaded_by(*arguments: str) -> tuple[int, set[str]]:
    """The exit code of a command, and the modules that its process has loaded at its end."""
    command = [sys.executable, "-c", LOADED.format(arguments=arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, set(done.stderr.splitlines()[-1].split())


def test_version_needs_no_parser() -> None:
    code, loaded = loaded_by("--version")

    assert code == 0
    assert "gavelpy.cli.main" in loaded
    assert loaded & {"typer", "rich", "grpc", "logging", *NUMERIC} == set()


@pytest.mark.parametrize(
    "command",
    [("jobs",), ("jobs", "-o", "json"), ("nodes",), ("cancel", "1"), ("submit", "--steps", "1", "--", "true")],
)
def test_command_on_a_cluster_loads_neither_numbers_nor_other_commands(command: tuple[str, ...]) -> None:
    code, loaded = loaded_by(*command[:1], *UNREACHABLE, *command[1:])

    assert code == 3
    assert {"typer", "grpc"} <= loaded
    assert loaded & {*NUMERIC, "pydantic", "rich.markdown", "sqlalchemy", "aiohttp", "cryptography"} == set()
    assert loaded & {"gavelpy.cli.demo", "gavelpy.cli.simulate", "gavelpy.cli.tunnels", "gavelpy.mechanism"} == set()


@pytest.mark.parametrize("policy", ["max_min_fairness", "min_makespan", "finish_time_fairness", "fifo@blind"])
def test_small_allocation_loads_neither_scipy_nor_the_simulator(gavel: Gavel, policy: str) -> None:
    code, loaded = loaded_by("allocate", gavel.problem(), "--policy", policy, "--explain")

    assert code == 0
    assert "numpy" in loaded
    assert loaded & {"scipy", "numba", "pandas", "cvxpy", "grpc", "pydantic", "rich.markdown"} == set()
    assert loaded & {"gavelpy.simulator", "gavelpy.mechanism", "gavelpy.engine"} == set()


def test_simulation_loads_neither_frames_nor_scipy_nor_the_estimator_that_learns(gavel: Gavel) -> None:
    code, loaded = loaded_by("simulate", gavel.trace(), "--cluster", "v100:2,k80:2", "--fairness")

    assert code == 0
    assert {"numpy", "gavelpy.simulator.compare"} <= loaded
    assert loaded & {"pandas", "scipy", "numba", "cvxpy", "grpc", "pydantic", "rich.markdown"} == set()
    assert loaded & {"importlib.metadata", "socket"} == set()  # names of policies are looked up in the package first
    assert loaded & {"gavelpy.estimator.online", "gavelpy.simulator.estimation", "gavelpy.report.html"} == set()


@pytest.mark.parametrize("worker", ["engine_worker", "forecast_worker"])
def test_worker_of_the_scheduler_starts_without_scipy(worker: str) -> None:
    program = f"import sys, gavelpy.runtime.daemon.engine.{worker}; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    assert "gavelpy.engine" in loaded
    assert {"scipy", "numba", "pandas", "cvxpy", "grpc"} & set(loaded) == set()
