"""Policies in files: FILE.py:CLASS on the command line and in the scheduler's configuration."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gavelpy.engine import Engine
from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import Cluster
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import Policy, PolicyRun, policy_from, policy_named
from gavelpy.policies.contract import CHECKS, problems
from gavelpy.runtime.daemon.engine.policy_choice import PolicyChoice
from gavelpy.simulator.simulate import Simulation
from tests.conftest import PROJECT
from tests.simulator.builders import make_job, make_settings, make_trace

FILE = """
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
from gavelpy.policies.isolated import Isolated

@dataclass(frozen=True)
class Mine:
    least: float = 0.5
    how: str = "x"
    name: ClassVar[str] = "mine"
    summary: ClassVar[str] = "As isolated."
    fills_leftover: ClassVar[bool] = True

    def allocate(self, problem, solver=None):
        return Isolated().allocate(problem)

class Lacking:
    name = "lacking"
    fills_leftover = True
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE, encoding="utf-8")
    return path


@pytest.fixture
def of_the_page(tmp_path: Path) -> Policy:
    """The policy of docs/policies.md, whose block is a whole file."""
    page = (PROJECT / "docs/policies.md").read_text(encoding="utf-8")
    path = tmp_path / "page.py"
    path.write_text(re.findall(r"^```python\n(from dataclasses.*?)^```", page, re.MULTILINE | re.DOTALL)[0], "utf-8")
    return policy_named(f"{path}:HighestThroughput")


def test_the_page_s_policy_with_memory_refuses_for_good(tmp_path: Path) -> None:
    page = (PROJECT / "docs/policies.md").read_text(encoding="utf-8")
    path = tmp_path / "memory.py"
    path.write_text(re.findall(r"^```python\n(import json.*?)^```", page, re.MULTILINE | re.DOTALL)[0], "utf-8")
    policy = policy_named(f"{path}:Promises")
    problem = AllocationProblem.of(
        ["late", "good", "free"], ["v100"], [1], [[1.0]] * 3, steps_remaining=60.0, deadline_s=[50.0, 90.0, np.inf]
    )

    first = policy.allocate(problem)
    longer = replace(problem, memory=first.memory, deadline_s=np.array([500.0, 90.0, np.inf]))
    second = policy.allocate(longer)

    assert first.refused == second.refused == {"late": "its deadline cannot be met"}
    assert second.share[:, 0].tolist() == pytest.approx([0.0, 0.5, 0.5])
    assert (first.again_s, first.memory) == (600.0, b'["late"]')


def test_the_page_s_policy_that_names_rounds_lets_jobs_take_turns(tmp_path: Path) -> None:
    page = (PROJECT / "docs/policies.md").read_text(encoding="utf-8")
    (block,) = [one for one in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S) if "next_round=" in one]
    (tmp_path / "named.py").write_text(block, "utf-8")
    engine = Engine(policy_named(f"{tmp_path / 'named.py'}:LeastAttainedService"))
    trace = make_trace(make_job("long", steps=1000.0), make_job("late", steps=200.0), arrival_s=[0.0, 300.0])

    result = Simulation(trace, Cluster.of({"v100": 1}), engine, make_settings(round_s=100.0)).run()

    assert result.jobs["finish_s"].to_dict() == {"long": 1200.0, "late": 500.0}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_file_of_the_page_keeps_the_contract(check: Any, of_the_page: Policy) -> None:
    check(of_the_page, problems(seed=0)["random"])


def test_parameters_follow_the_class(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)

    policy = policy_from("./mine.py:Mine:least=0.25:how=y")

    assert (policy.name, policy.least, policy.how) == ("mine", 0.25, "y")
    assert PolicyRun.parse("mine.py:Mine@blind") == PolicyRun("mine.py:Mine", blind=True)


def test_a_changed_file_is_read_again(file: Path) -> None:
    before = policy_named(f"{file}:Mine")
    file.write_text(FILE.replace("0.5", "0.75"), encoding="utf-8")
    os.utime(file, ns=(1, 1))

    assert (before.least, policy_named(f"{file}:Mine").least) == (0.5, 0.75)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("mine.py", r"must look like FILE.py:CLASS:parameter=value, got 'mine.py'"),
        ("mine.py:least=1", r"must look like FILE.py:CLASS"),
        ("mine.py:Mine:least", r"each parameter once, got 'mine.py:Mine:least'"),
        ("mine.py:Mine:most=1", r"policy 'mine.py:Mine' has no parameter 'most'; its parameters are least, how"),
        ("mine.py:Theirs", r"^mine.py: the file of policy 'mine.py:Theirs' must define the class Theirs"),
        ("mine.py:Lacking", r"must have name, summary, fills_leftover, allocate, but lacks summary, allocate"),
        ("yours.py:Mine", r"^yours.py: the file of policy 'yours.py:Mine' cannot be read: No such file"),
    ],
)
def test_a_wrong_name_is_refused(name: str, error: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)

    with pytest.raises(InvalidInput, match=error):
        policy_from(name)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("x = 1\nimport nosuch\n", r"broken.py:2: .*ModuleNotFoundError: No module named 'nosuch'"),
        ("x = 1\n\nclass (:\n", r"broken.py:3: .*SyntaxError"),
        ("def f():\n    return 1 / 0\nf()\n", r"broken.py:2: .*ZeroDivisionError"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(text: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(text, encoding="utf-8")

    with pytest.raises(InvalidInput) as caught:
        policy_named(f"{tmp_path}/broken.py:Mine")

    assert re.search(error, str(caught.value))


def test_clients_of_the_scheduler_name_no_files(file: Path) -> None:
    configured = PolicyChoice.of(f"{file}:Mine", '{"least": 0.25}')

    assert configured.policy == policy_named(f"{file}:Mine", least=0.25)
    assert configured.changed("", '{"least": 0.75}').arguments == {"least": 0.75}
    with pytest.raises(InvalidInput, match="must be named in the scheduler's configuration"):
        configured.changed(f"{file}:Mine", "")
