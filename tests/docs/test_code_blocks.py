"""The code in README and docs is valid: Python blocks run, and command lines have only existing options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from gavelpy import AllocationProblem
from gavelpy.cli.commands import app
from tests.conftest import PROJECT

PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]
MARKS = {
    "guide.md": (pytest.mark.slow,),
    "frameworks.md": (pytest.mark.slow, pytest.mark.filterwarnings("ignore")),  # of the frameworks
}
COMMAND = re.compile(r"^ {4,}(gavel (?!COMMAND).+)$", re.MULTILINE)


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def surroundings(page: Path) -> dict[str, Any]:
    """The names that the blocks of a page use but do not define."""
    names: dict[str, Any] = {"problem": AllocationProblem.of("ab", ["v100", "k80"], [1, 1], [[4.0, 1.0], [3.0, 2.0]])}
    if page.name == "README.md":
        names |= {"loader": [1, 2], "save": lambda directory: None, "load": lambda directory: None}
        names["train"] = lambda batch: None
    if page.name == "policies.md":
        exec(_POLICY_IMPORTS, names)
    if page.name == "training-scripts.md":
        exec(_TRAINING, names)
    if page.name == "frameworks.md":
        pytest.importorskip("lightning")
        pytest.importorskip("transformers")
        exec(_FRAMEWORKS, names)
    return names


_POLICY_IMPORTS = "from gavelpy.policies.min_cost import MinCost"
_TRAINING = """
import torch
Model = lambda: torch.nn.Linear(2, 1)
dataset = torch.utils.data.TensorDataset(torch.zeros(64, 2), torch.zeros(64, 1))
scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(Model().parameters()), 1)
scheduler.optimizer.step()
"""

_FRAMEWORKS = """
import examples.frameworks.lightning_training as with_lightning
import examples.frameworks.transformers_training as with_transformers
model, dataset = with_lightning.Regression(0.0), with_lightning.items()
sentences = with_transformers.Sentences()
language_model = with_transformers.trainer(0.0, with_transformers.LeaseTrainerCallback()).model
"""


WITH_PYTHON = [
    pytest.param(page, id=page.name, marks=MARKS.get(page.name, ())) for page in PAGES if python_blocks(page)
]


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT if page.name == "guide.md" else tmp_path)
    names = surroundings(page)

    for block in python_blocks(page):
        exec(compile(block, str(page), "exec", dont_inherit=True), names)


def options_of(words: list[str]) -> tuple[set[str], set[str]]:
    """The options that a command line uses, and the options of its command."""
    command: Any = get_command(app)
    context = typer.Context(command)
    while hasattr(command, "get_command") and words:
        found = command.get_command(context, words[0])
        assert found is not None, f"no command {words[0]!r}"
        command, words = found, words[1:]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    used = words[: words.index("--")] if "--" in words else words
    return {word.partition("=")[0] for word in used if re.match(r"--?[a-zA-Z]", word)}, known


COMMANDS = sorted({line for page in PAGES for line in COMMAND.findall(page.read_text(encoding="utf-8"))})


@pytest.mark.parametrize("line", COMMANDS)
def test_documented_command_line_has_options_that_exist(line: str) -> None:
    for part in re.split(r"; | {2,}", line.split("  #")[0]):
        if not part.startswith("gavel "):
            continue

        used, known = options_of(shlex.split(part.removesuffix(" &"))[1:])

        assert used - known == set()
