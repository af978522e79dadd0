"""`gavel whatif` on the journal of a simulation: tables, JSON, the report, and one line for each mistake."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from gavelpy import __version__
from tests.cli.commands import TRACE, Gavel


@pytest.fixture
def journal(gavel: Gavel, tmp_path: Path) -> str:
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    answer = gavel("simulate", str(trace), "--cluster", "v100:2,k80:2", "--policy", "fifo", "--journal", str(tmp_path))
    assert answer.code == 0
    return str(tmp_path / "fifo.journal")


def test_an_unchanged_replay_is_compared_with_the_record(gavel: Gavel, journal: str) -> None:
    answer = gavel("whatif", "--journal", journal, "--recorded-policy", "fifo")

    assert answer.code == 0
    assert "Replayed unchanged, 3 jobs complete in" in answer.out
    assert "most affected" not in answer.out


def test_a_change_has_a_difference_an_interval_and_a_sentence(gavel: Gavel, journal: str, tmp_path: Path) -> None:
    report = tmp_path / "page.html"
    options = ("--recorded-policy", "fifo", "--cluster", "-1 v100", "--seeds", "2", "--report", str(report))

    answer = gavel("whatif", "--journal", journal, *options, "-o", "json")

    found = answer.json
    assert answer.code == 0
    assert found["change"] == "-1 v100"
    assert found["differences"]["avg_jct_s"]["mean"] > 0
    assert found["answer"].startswith("With -1 v100, jobs would have completed in")
    assert found["answer"] in report.read_text(encoding="utf-8")
    assert found["journal_sha256"] == sha256(Path(journal).read_bytes()).hexdigest()
    assert (found["gavelpy"], found["seeds"]) == (__version__, 2)


def test_teams_of_a_file_are_a_change(gavel: Gavel, journal: str) -> None:
    file = gavel.file("teams.toml", "[teams.night]\nquota = { v100 = 0 }\n")

    answer = gavel(
        "whatif", "--journal", journal, "--recorded-policy", "fifo", "--teams", file, "--seeds", "0", "-o", "json"
    )

    assert answer.code == 0, answer.err
    assert answer.json["change"] == "other teams"
    assert "warning: 3 of 3 jobs belong to none of the other teams" in answer.err


def test_tables_of_a_change_name_the_most_affected_jobs(gavel: Gavel, journal: str) -> None:
    answer = gavel("whatif", "--journal", journal, "--recorded-policy", "fifo", "--policy", "las", "--seeds", "0")

    assert answer.code == 0
    assert "95 % interval" in answer.out
    assert "most affected" in answer.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "recorded-policy must be given: the journal does not record which policy was in force"),
        (("--without-node", "n3"), "without-node must be one of "),
        (("--cluster", "8 h100"), 'cluster must look like "+8 h100"'),
        (("--cluster", "-9 v100"), "cluster must remove at most the 2 v100 of the journal, got 9"),
        (("--since", "1e9"), "since must be at most"),
        (("--since", "2026-11-01"), "since must be seconds"),
        (("--until", "soon"), "until must be a date such as 2026-11-23T08:30, or seconds, got 'soon'"),
        (("--policy", "nope"), "policy must be one of"),
        (("--teams", "none.toml"), "cannot be read"),
    ],
)
def test_a_mistake_is_one_line(gavel: Gavel, journal: str, options: tuple[str, ...], message: str) -> None:
    in_force = ("--recorded-policy", "fifo") if options else ()

    answer = gavel("whatif", "--journal", journal, *in_force, *options)

    assert answer.code == 2
    assert answer.err.startswith("error: ")
    assert message in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("options", [("--until", "1"), ("--cluster", "-2 v100,-2 k80", "--seeds", "0")])
def test_an_answer_without_jobs_has_no_numbers(gavel: Gavel, journal: str, options: tuple[str, ...]) -> None:
    answer = gavel("whatif", "--journal", journal, "--recorded-policy", "fifo", *options)

    assert answer.code == 0
    assert "No job ends both in the journal and in all replays" in answer.out
    assert "nan" not in answer.out


def test_a_missing_journal_is_one_line(gavel: Gavel) -> None:
    answer = gavel("whatif", "--journal", "none.sqlite")

    assert (answer.code, answer.err) == (2, "error: none.sqlite: journal cannot be read: No such file or directory\n")


def test_forecasts_of_a_journal_are_scored(gavel: Gavel, journal: str) -> None:
    answer = gavel(
        "forecast", "score", "--journal", journal, "--recorded-policy", "fifo", "--times", "20", "-o", "json"
    )
    table = gavel("forecast", "score", "--journal", journal, "--recorded-policy", "fifo", "--times", "20")

    assert answer.code == table.code == 0
    assert answer.json["all"]["without_interval"] > 0
    assert answer.json["journal_sha256"] == sha256(Path(journal).read_bytes()).hexdigest()
    assert answer.json["journal_events"] > 0
    assert "Intervals are to contain 80% of outcomes." in table.out
