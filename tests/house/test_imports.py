"""`import gavelpy` loads numpy at most, and none of the heavy libraries before their first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gavelpy
from tests.house.project import ROOT

HEAVY = {"cvxpy", "grpc", "highspy", "numba", "pandas", "plotly", "scipy", "torch"}
PRINT_LOADED = """
import sys
before = set(sys.modules)
import {module}
loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*sorted(loaded - sys.stdlib_module_names - {{"gavelpy", "cython_runtime"}}))
"""


def loaded_by(module: str) -> set[str]:
    """Top-level packages outside the standard library that a fresh interpreter loads for a module."""
    command = [sys.executable, "-c", PRINT_LOADED.format(module=module)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {name for name in done.stdout.split() if not name.startswith("_")}


@pytest.mark.parametrize("module", ["gavelpy", "gavelpy.errors", "gavelpy.model.problem", "gavelpy.model.allocation"])
def test_import_loads_numpy_at_most(module: str) -> None:
    assert loaded_by(module) <= {"numpy"}


def test_probe_sees_what_an_import_loads() -> None:
    assert {"msgspec", "numpy"} <= loaded_by("msgspec, numpy")


@pytest.mark.parametrize("module", ["gavelpy.mechanism", "gavelpy.policies", "gavelpy.solve", "gavelpy.simulator"])
def test_import_of_a_package_loads_nothing_heavy(module: str) -> None:
    assert loaded_by(module) & HEAVY == set()


@pytest.mark.parametrize("name", gavelpy.__all__)
def test_public_name_is_there_with_a_docstring_of_its_own(name: str) -> None:
    value = getattr(gavelpy, name)

    docstring = value.__doc__ or ""

    assert docstring.strip()
    assert not docstring.startswith(f"{name}("), "the docstring is the signature that dataclass wrote"


def test_every_lazily_loaded_name_is_public() -> None:
    assert sorted(gavelpy._HOMES) == sorted(gavelpy.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = gavelpy.nonsense


def test_scheduler_that_starts_loads_neither_the_estimators_libraries_nor_the_web_servers() -> None:
    loaded = loaded_by("gavelpy.runtime.daemon.main, gavelpy.runtime.daemon.config, gavelpy.runtime.daemon.service")

    assert {"grpc", "msgspec", "numpy", "sqlalchemy", "typer"} <= loaded
    assert loaded & {*HEAVY - {"grpc"}, "aiohttp", "hypothesis", "jinja2", "pydantic", "rich"} == set()


def test_scheduler_and_its_storage_process_start_without_what_few_of_them_use() -> None:
    program = "import sys; sys.path.append({root!r}); import {module}; print(*sys.modules)"

    def modules(module: str, *options: str) -> set[str]:
        code = program.format(root=str(ROOT), module=module)
        command = [sys.executable, *options, "-c", code]
        return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())

    scheduler = modules("gavelpy.runtime.daemon.service")
    storage = modules("gavelpy.runtime.checkpoint_directory", "-I", "-S")

    assert "gavelpy.simulator.expected" in scheduler
    assert scheduler & {"gavelpy.engine", "gavelpy.simulator.forecast", "gavelpy.simulator.settings"} == set()
    assert "gavelpy.runtime.lease_files" in storage
    assert storage & {"gavelpy.runtime.snapshots", "gzip", "random", "secrets", "subprocess", "tarfile"} == set()


def test_engine_that_starts_loads_no_scipy() -> None:
    program = """
import sys
from gavelpy.runtime.daemon.engine import engine_worker
from gavelpy.runtime.daemon.engine.policy_choice import EstimationChoice, PolicyChoice
engine_worker.prepare(PolicyChoice("max_min_fairness"), EstimationChoice(is_on=True))
print(*sys.modules)
"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert {"gavelpy.estimator.online", "numpy"} <= set(done.stdout.split())
    assert {"scipy", "pandas", "numba", "cvxpy"} & set(done.stdout.split()) == set()


def test_agent_that_starts_loads_no_numpy() -> None:
    loaded = loaded_by("gavelpy.runtime.agent.main, gavelpy.runtime.agent.agent")

    assert {"grpc", "typer"} <= loaded
    assert loaded & {*HEAVY - {"grpc"}, "aiohttp", "numpy", "sqlalchemy"} == set()


def test_child_processes_of_the_scheduler_do_not_load_its_command() -> None:
    assert loaded_by("gavelpy.runtime.daemon.__main__") & {"grpc", "numpy", "typer"} == set()
