"""`gavel init`: the lines that it proposes make a plain loop resume exactly; what it cannot recognise it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gavelpy import InvalidInput
from gavelpy.cli.init import with_lease
from gavelpy.cli.job_files import read_job_file
from gavelpy.runtime.lease_files import clock_s
from tests.cli.commands import Gavel
from tests.runtime.iterator.conftest import Held, held, outside  # noqa: F401 fixtures

SCRIPT = '''"""Trains."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
data = torch.randn(24, 4, generator=torch.Generator().manual_seed(2))
loader = DataLoader(TensorDataset(data, data.sum(1, keepdim=True)), batch_size=4, shuffle=True)
# größer
for epoch in range(3):
    for index, (inputs, targets) in enumerate(loader):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item(), flush=True)
    schedule.step()
    print("epoch", epoch, schedule.get_last_lr(), flush=True)
'''


def run(script: Path, **variables: str) -> list[str]:
    """The output of a script, which must succeed."""
    done = subprocess.run([sys.executable, str(script)], env=os.environ | variables, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_diff_has_the_lines_and_changes_nothing(gavel: Gavel) -> None:
    script = gavel.file("train.py", SCRIPT)

    answer = gavel("init", script)

    added = [line[1:].strip() for line in answer.out.splitlines() if line.startswith("+") and line[1] != "+"]
    assert added == [
        "from gavelpy import LeaseIterator",
        "from gavelpy.torch import ResumableLoader, TrainingState",
        "loader = ResumableLoader(TensorDataset(data, data.sum(1, keepdim=True)), batch_size=4, shuffle=True)",
        "state = TrainingState(model=model, optimizer=optimizer, schedule=schedule)",
        "batches = LeaseIterator(loader, state.save, load=state.load, epochs=3)",
        "for epoch in batches.each_epoch():",
        "for index, (inputs, targets) in enumerate(batches):",
    ]
    assert Path(script).read_text() == SCRIPT
    assert "nothing was changed" in answer.err


@pytest.mark.slow  # three processes with torch each
@pytest.mark.parametrize("stop_at", [4, 6, 17])
def test_written_script_resumes_exactly(gavel: Gavel, held: Held, stop_at: int) -> None:  # noqa: F811
    script = gavel.folder / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    assert gavel("init", "train.py", "--write").code == 0
    whole = run(script, GAVEL_LEASE_DIR="", GAVEL_CHECKPOINT_DIR="")

    held.order(steps_max=float(stop_at), until_clock_s=clock_s() + 3600.0)
    before = run(script)
    held.order(steps_max=0.0)
    after = run(script, GAVEL_RESUME_DIR=str(held.checkpoints / f"step-{stop_at:012d}"))

    assert before + after == whole
    assert len(whole) == 3 * (6 + 1)
    assert (gavel.folder / "train.py.bak").read_text(encoding="utf-8") == SCRIPT


def test_loop_in_a_function_without_epochs() -> None:
    new = with_lease(
        "import torch\n\ndef main(model, loader):\n    state = 1\n    optimizer = torch.optim.SGD(model.parameters())\n"
        "    for batch in loader:\n        model(batch).backward()\n        optimizer.step()\n"
    )

    assert "    lease_state = TrainingState(model=model, optimizer=optimizer)\n" in new
    assert "    batches = LeaseIterator(loader, lease_state.save, load=lease_state.load)\n" in new
    assert "    for batch in batches:\n" in new


def test_loader_keeps_its_order() -> None:
    new = with_lease(SCRIPT.replace(", shuffle=True)", ",)"))

    assert "ResumableLoader(TensorDataset(data, data.sum(1, keepdim=True)), batch_size=4, shuffle=False,)" in new


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        ("for epoch in range(3):", "for epoch in range(3:", 14, "script must be Python"),
        ("import torch\n", "import torch\nimport gavelpy\n", 4, "must not use gavelpy yet"),
        ("import torch\n", "import lightning\n", 3, "docs/frameworks.md"),
        ("loss.backward()", "loss.item()", 1, "no for loop that calls backward"),
        ("for epoch in range(3):", "while True:", 14, "in no block but"),
        ("for epoch in range(3):", "for epoch in range(1, 3):", 14, "in no block but"),
        ("        optimizer.step()\n", "        optimizer.step()\n        break\n", 20, "must not end early"),
        ("enumerate(loader)", "enumerate(make())", 15, "assign the loader to a variable"),
        ("shuffle=True", "sampler=None", 12, "must not have sampler"),
        ("batch_size=4, ", "", 12, "must have a batch_size"),
        ("model.parameters()", "list(weights)", 15, "no model was found"),
    ],
)
def test_unknown_form_is_refused_with_its_line(gavel: Gavel, old: str, new: str, line: int, problem: str) -> None:
    assert old in SCRIPT
    script = gavel.file("train.py", SCRIPT.replace(old, new, 1))

    answer = gavel("init", script, "--write")

    assert answer.code == 2
    assert f"train.py:{line}" in answer.err
    assert problem in answer.err
    assert not Path(f"{script}.bak").exists()


def test_function_that_is_called_for_each_epoch_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"train\(\) must not be called in a loop"):
        with_lease(
            "import torch\ndef train(model, loader, optimizer):\n    for batch in loader:\n"
            "        model(batch).backward()\n        optimizer.step()\n        clip(model.parameters())\n"
            "for epoch in range(3):\n    train(model, loader, optimizer)\n"
        )


@pytest.mark.parametrize(("options", "steps"), [(("--steps", "18"), 18), ((), 0)])
def test_job_file_is_one_that_submit_reads(gavel: Gavel, options: tuple[str, ...], steps: float) -> None:
    gavel.file("train.py", SCRIPT)

    answer = gavel("init", "train.py", "--job", *options)

    assert answer.code == 0
    (job,) = read_job_file(gavel.folder / "train.toml")
    assert (job.name, job.command, job.steps_total) == ("train", "python train.py", steps)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--steps", "5"), "--steps needs --job"),
        (("--write",), "train.py.bak exists already"),
        (("--job", "--steps", "5"), "train.toml exists already"),
    ],
)
def test_nothing_is_overwritten(gavel: Gavel, options: tuple[str, ...], problem: str) -> None:
    for name, text in (("train.py", SCRIPT), ("train.py.bak", "old"), ("train.toml", "old")):
        gavel.file(name, text)

    answer = gavel("init", "train.py", *options)

    assert (answer.code, problem in answer.err) == (2, True)
    assert (gavel.folder / "train.py").read_text() == SCRIPT


def test_script_that_is_not_there_is_refused(gavel: Gavel) -> None:
    answer = gavel("init", "none.py")

    assert (answer.code, "cannot be read" in answer.err) == (2, True)
