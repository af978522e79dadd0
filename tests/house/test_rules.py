"""The house rules detect violations, and only those."""

from __future__ import annotations

import pytest

from tests.house import rules

MACHINE = "/" + "home" + "/"  # in two pieces, so that this file obeys the rule it tests


def test_function_of_sixty_one_lines_is_long() -> None:
    source = "def f():\n" + "    x = 1\n" * rules.FUNCTION_LINES_MAX

    assert rules.long_functions(source) == ["f: 61 lines"]


def test_docstring_does_not_make_a_function_long() -> None:
    source = 'def f():\n    """One.\n' + "\n" * 30 + '    """\n' + "    x = 1\n" * (rules.FUNCTION_LINES_MAX - 1)

    assert rules.long_functions(source) == []


def test_method_is_a_function() -> None:
    source = "class A:\n    def f(self):\n" + "        x = 1\n" * rules.FUNCTION_LINES_MAX

    assert rules.long_functions(source) == ["f: 61 lines"]


def test_print_is_seen() -> None:
    assert rules.prints("def f():\n    print('x')\n") == ["line 2: print"]


def test_method_called_print_is_no_print() -> None:
    assert rules.prints("console.print('x')\nfingerprint('x')\n") == []


@pytest.mark.parametrize("caught", ["", " Exception", " BaseException as error", " (ValueError, Exception)"])
def test_broad_handler_is_named_by_its_function(caught: str) -> None:
    source = f"class A:\n    def f(self):\n        try:\n            g()\n        except{caught}:\n            pass\n"

    assert rules.broad_handlers(source) == ["A.f"]


def test_narrow_handler_is_fine() -> None:
    assert rules.broad_handlers("try:\n    g()\nexcept (ValueError, OSError):\n    pass\n") == []


def test_drawing_is_seen() -> None:
    assert rules.draws("import numpy as np\nx = np.random.default_rng(0)\n") == ["line 2: random"]


def test_manager_is_seen() -> None:
    assert rules.managers("class LeaseManager: ...\nclass Leases: ...\n") == ["LeaseManager"]


@pytest.mark.parametrize("text", [f"see {MACHINE}ann/data", f'"{MACHINE}ann"', f"DATA={MACHINE}ann/x"])
def test_machine_path_is_seen(text: str) -> None:
    assert rules.machine_paths(text) == [MACHINE + "ann"]


@pytest.mark.parametrize(
    "text", [f"https://example.org{MACHINE}page", f"a{MACHINE}b", f"..{MACHINE}b", f"frame{MACHINE}b"]
)
def test_part_of_another_path_is_no_machine_path(text: str) -> None:
    assert rules.machine_paths(text) == []
