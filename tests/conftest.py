"""Fixtures and settings of all tests: the reference data, Hypothesis, and the garbage collector."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is loaded: tests run in parallel
PROJECT = Path(__file__).resolve().parents[1]

# Thousands of collected tests are never garbage: each process searched them many times, a quarter of its time until the
# first test. Afterwards only what the tests make is searched, and less often than by default.
gc.disable()
NEW_OBJECTS_MAX = 50_000


def pytest_collection_finish() -> None:
    """Starts the garbage collector, which leaves out what exists by now."""
    if simulate := sys.modules.get("gavelpy.simulator.simulate"):
        from tests.simulator.conservation import checked

        simulate.Simulation.run = checked(simulate.Simulation.run)
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS_MAX, *gc.get_threshold()[1:])
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Lets each process of a parallel run collect the files in an order of its own.

    In a fresh clone the first import of a file compiles it. In the same order all processes would compile the same file
    at the same time; so each compiles its part and loads what the others have compiled.
    """
    report = yield
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and isinstance(collector, pytest.Directory):
        random.Random(f"{worker} {collector.nodeid}").shuffle(report.result)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, Any, Any]:
    """Leaves out slow parameters, which `make test` would deselect: almost half of all tests, in each process."""
    result = yield
    if metafunc.config.option.markexpr == "not slow":
        calls = metafunc._calls  # pytest has no other way
        # Without any of them, pytest would run the function without parameters.
        calls[:] = [call for call in calls if all(mark.name != "slow" for mark in call.marks)] or calls
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the tests by file: all processes of a parallel run must have the same order.

    Directories stay together, so that not each process loads torch, cvxpy and all kernels.
    """
    items.sort(key=lambda item: item.path.parts)


# The same examples in every run, so that only a change can make a test fail. `make test-slow` draws new ones; a failure
# prints the blob that reproduces it, and becomes a test of its own.
# Timing means nothing on a busy machine: no deadline, no warning about slow generation.
_ALWAYS = settings(deadline=None, print_blob=True, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", _ALWAYS, max_examples=20, derandomize=True)
settings.register_profile("drawn", _ALWAYS, max_examples=200, derandomize=False)  # the default in CI is True
settings.load_profile("fixed")


def costly(times: int) -> settings:
    """Settings for an example that takes this many times as long as others: fewer of them in either profile."""
    return settings(max_examples=settings().max_examples // times)


def thorough(times: int) -> settings:
    """Settings for cheap examples of much variety: this many times as many of them in either profile."""
    return settings(max_examples=settings().max_examples * times)


def every_third_fast(cases: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Parameters that cost a second of real processes each: a third in `make test`, the others in `make test-slow`."""
    marks = [[pytest.mark.slow] * (number % 3 > 0) for number in range(len(cases))]
    return [pytest.param(case, id=name, marks=mark) for case, name, mark in zip(cases, names, marks, strict=True)]


def first_fast(values: Sequence[Any], fast: int) -> list[Any]:
    """Parameters of which the first ones are in `make test`, and the others in `make test-slow`."""
    return [pytest.param(value, marks=[pytest.mark.slow] * (number >= fast)) for number, value in enumerate(values)]


@pytest.fixture(scope="session")
def reference_directory() -> Path:
    """The folder of reference data: see `locate_reference`."""
    return locate_reference(os.environ)


def locate_reference(environment: Mapping[str, str]) -> Path:
    """The folder named by GAVELPY_REFERENCE_DIR, by default `shared` next to the project.

    Without it the tests that need it are skipped, as in any other clone, or fail if CI is "true".
    """
    folder = Path(environment.get("GAVELPY_REFERENCE_DIR") or PROJECT.parent / "shared")
    if (folder / "golden").is_dir():
        return folder
    complaint = f"no reference data at {folder}; GAVELPY_REFERENCE_DIR says where they are"
    if environment.get("CI") == "true":
        pytest.fail(complaint)
    pytest.skip(complaint)
