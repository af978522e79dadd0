"""Conditions in files: the documented example is read, mistakes are named, and sections can be switched off."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.simulator.conditions.causes import Maintenance
from gavelpy.simulator.conditions.draws import Duration
from gavelpy.simulator.conditions.spec import Conditions, conditions_of, read_conditions
from gavelpy.simulator.settings import Costs
from tests.conftest import PROJECT
from tests.simulator.conditions.builders import EVERYTHING


def test_the_documented_example_is_read(tmp_path: Path) -> None:
    page = (PROJECT / "docs/simulation-conditions.md").read_text(encoding="utf-8")
    example, of_trials = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    path = tmp_path / "conditions.toml"
    path.write_text(example)

    found = read_conditions(path)

    assert found.causes == ("costs", "checkpoints", "nodes", "job_failures", "cancellations")
    assert found.costs.of("LM (batch size 80)", Costs()).checkpoint == Duration(fixed_s=9.0)
    assert found.costs.of("other", Costs()).restore.mean_s == 7.0
    path.write_text(of_trials)
    assert read_conditions(path).causes == ("job_failures", "trials")


def test_the_record_of_conditions_reads_as_the_same_conditions() -> None:
    assert conditions_of(EVERYTHING.to_json()) == EVERYTHING


def test_sections_can_be_switched_off() -> None:
    found = EVERYTHING
    for cause in EVERYTHING.causes:
        found = found.without(cause)

    assert found == Conditions()
    assert found.causes == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[nodez]", "a section must be one of costs, .*, got 'nodez'"),
        ("[nodes]\nmtbf = 3", r"\[nodes\]: a field must be one of mtbf_h, .*, got 'mtbf'"),
        ("[nodes]\nmtbf_h = -3", r"\[nodes\]: .*mtbf_h must be in"),
        ("[nodes]\nmtbf_h = 'often'", r"\[nodes\]: mtbf_h must be a number, got 'often'"),
        ("[costs.types.LM]\nstop = 3", r"\[costs.types.LM\]: a field must be one of start, .*, got 'stop'"),
        ("[[maintenance]]\nlength = 3", r"\[maintenance\[0\]\]: a field must be one of begin_s"),
        ("[checkpoints]\nevery_s = 60\nby_failure_rate = true", "every_s must be 0 with by_failure_rate"),
        ("[job_failures]\nearly_share = 2", "early_share must be in"),
        (
            "[job_failures]\nearly_share = 0.7\nlate_share = 0.5",
            r"late_share must be <= 1 - early_share \(0.7\), got 0.5",
        ),
        ("[[nodes]]\nmtbf_h = 3", r"\[nodes\] must not be a list, got"),
        ("[nodes]\nmtbf_h = 1e-9", "mtbf_h must be 0 or >= 0.01, got 1e-09"),
        ("[prices]\nevery_s = 0.001", "every_s must be 0 or >= 1, got 0.001"),
        ("[nodes", "1: text must be TOML"),
    ],
)
def test_mistakes_are_named_with_file_and_field(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "conditions.toml"
    path.write_text(text)

    with pytest.raises(InvalidInput, match=message) as caught:
        read_conditions(path)

    assert str(caught.value).startswith(str(path))


def test_maintenance_must_end_before_it_repeats() -> None:
    with pytest.raises(InvalidInput, match="length_s must be >= 1 and below every_s"):
        Maintenance(length_s=7200.0, every_s=3600.0)
