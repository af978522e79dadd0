"""Progress of simulations, and Ctrl-C, in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gavelpy.cli.progress import _lines, interruptible, shown_progress

LONG = ["simulate", "--generate", "20000", "--rate-per-h", "400", "--cluster", "v100:400,k80:400"]
PATIENCE_S = 60.0
LISTENING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # shells ignore it for jobs
GAVEL = [sys.executable, "-c", LISTENING + "import sys; from gavelpy.cli.main import main; sys.exit(main())"]


def begin(*arguments: str) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*GAVEL, *LONG, *arguments], text=True, **pipes)  # type: ignore[call-overload,no-any-return]  # its overloads


def wait_for_events(journal: Path) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not (journal.exists() and journal.stat().st_size > 50_000):
        assert time.monotonic() < until_s, "the run has not begun"
        time.sleep(0.05)


def test_ctrl_c_ends_with_partial_results_in_json_and_report_and_130(tmp_path: Path) -> None:
    report, journals = tmp_path / "report.html", tmp_path / "journals"
    process = begin("--policy", "fifo,las", "-o", "json", "--report", str(report), "--journal", str(journals))
    wait_for_events(journals / "fifo.journal")

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)

    found = json.loads(out)
    assert process.returncode == 130, err
    assert list(found["results"]) == ["fifo"]
    assert found["results"]["fifo"]["jobs_measured"] < 20_000
    assert found["interrupted"]["not_run"] == ["las"]
    assert found["interrupted"]["partial"]["fifo"].startswith("interrupted at ")
    assert "fifo (partial)" in report.read_text()
    assert "jobs done" not in err


def test_a_second_ctrl_c_aborts_and_lines_show_progress_before(tmp_path: Path) -> None:
    process = begin("--policy", "fifo")
    assert process.stderr is not None
    line = process.stderr.readline()

    process.send_signal(signal.SIGINT)
    while "stopping with" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)

    assert "of 20,000 jobs done" in line
    assert "time left" in line
    assert process.returncode == 130


def test_lines_are_printed_at_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    with _lines(0.01, 0.01) as advance:
        advance("fifo", 1, 4, 7200.0)
        time.sleep(0.2)

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert lines[0].startswith("fifo: 1 of 4 jobs done, 2 h 00 min simulated, time left ")


def test_nothing_is_shown_with_json_without_a_terminal() -> None:
    with shown_progress(quiet=True) as progress:
        assert progress is None


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN])
def test_ctrl_c_is_handled_as_before_afterwards(before: Any) -> None:
    """A shell lets its background processes ignore Ctrl-C, and nothing changes that."""
    outside = signal.signal(signal.SIGINT, before)
    try:
        with interruptible() as stop:
            assert (signal.getsignal(signal.SIGINT) is before) == (before is signal.SIG_IGN)
            assert not stop()
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, outside)
