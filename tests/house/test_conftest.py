"""Location of the reference data, from the environment and required in CI; Hypothesis; and the garbage collector."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings

from tests.conftest import PROJECT, locate_reference, pytest_generate_tests


def test_reference_data_are_found_where_the_environment_says(tmp_path: Path) -> None:
    (tmp_path / "golden").mkdir()

    assert locate_reference({"GAVELPY_REFERENCE_DIR": str(tmp_path)}) == tmp_path


def test_missing_reference_data_skip_for_a_stranger(tmp_path: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match="GAVELPY_REFERENCE_DIR"):
        locate_reference({"GAVELPY_REFERENCE_DIR": str(tmp_path)})


def test_missing_reference_data_fail_in_ci(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="GAVELPY_REFERENCE_DIR"):
        locate_reference({"GAVELPY_REFERENCE_DIR": str(tmp_path), "CI": "true"})


def test_project_root_is_where_the_pyproject_is() -> None:
    assert (PROJECT / "pyproject.toml").is_file()


def test_hypothesis_draws_the_same_examples_every_time_unless_new_ones_are_wanted() -> None:
    assert settings.get_profile("fixed").derandomize
    assert not settings.get_profile("drawn").derandomize


def test_processes_of_a_parallel_run_have_the_tests_in_the_same_order(request: pytest.FixtureRequest) -> None:
    files = [item.path.parts for item in request.session.items]

    assert files == sorted(files)


@pytest.mark.parametrize(
    ("markexpr", "marks", "left"),
    [
        ("not slow", [["slow"], [], ["reference"]], [1, 2]),
        ("not slow", [["slow"], ["reference", "slow"]], [0, 1]),  # pytest deselects them; none would be no parameters
        ("slow", [["slow"], []], [0, 1]),
        ("", [["slow"], []], [0, 1]),
    ],
)
def test_slow_parameters_are_left_out_where_they_would_be_deselected(
    markexpr: str, marks: list[list[str]], left: list[int]
) -> None:
    calls = [SimpleNamespace(marks=[getattr(pytest.mark, name).mark for name in names]) for names in marks]
    metafunc: Any = SimpleNamespace(config=SimpleNamespace(option=SimpleNamespace(markexpr=markexpr)), _calls=[*calls])

    assert list(pytest_generate_tests(metafunc)) == [None]

    assert metafunc._calls == [calls[number] for number in left]


def test_garbage_of_tests_is_collected_and_collected_tests_are_not() -> None:
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0
    assert gc.get_threshold()[0] > 700  # Python's; a scheduler that ran in this process has set its own
