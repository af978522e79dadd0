"""`gavel throughput`: shows, imports, fills, fits and evaluates throughput tables."""

from __future__ import annotations

import json

import pytest

from gavelpy.traces.csv_format import throughput_cells
from gavelpy.traces.fields import csv_text
from gavelpy.traces.reader import read_throughputs
from tests.cli.commands import Gavel
from tests.estimator.tables import lawful_pairs, lawful_rates, make_table

HEADER = "job_type,gpus,gpu_type,rate_steps_per_s,provenance,source\n"
HOLEY = HEADER + "net (batch size 8),1,v100,10,measured,us\nnet (batch size 8),1,k80,2,measured,us\n"
HOLEY += "net (batch size 16),1,v100,6,measured,us\nnet (batch size 16),1,k80,,measured,us\n"


def lawful_csv() -> str:
    return csv_text(*throughput_cells(make_table(lawful_rates())))


def test_show_prints_known_rates_and_estimates_with_intervals(gavel: Gavel) -> None:
    answer = gavel("throughput", "show", "--throughputs", gavel.file("rates.csv", HOLEY), "-o", "json")

    by_entry = {(row["job_type"], row["gpu_type"]): row for row in answer.json["rates"]}
    known, guess = by_entry["net (batch size 8)", "k80"], by_entry["net (batch size 16)", "k80"]
    assert (known["rate_steps_per_s"], known["provenance"]) == (2.0, "measured")
    assert guess["provenance"] == "estimated"
    assert guess["low_steps_per_s"] < guess["rate_steps_per_s"] < guess["high_steps_per_s"]
    assert guess["rate_steps_per_s"] == pytest.approx(1.2, rel=0.4)


def test_show_gives_a_prior_for_a_job_of_today_on_a_gpu_of_today(gavel: Gavel) -> None:
    answer = gavel(
        "throughput", "show", "--job-type", "GPT-7B (batch size 1)", "--gpu-types", "v100,b200", "-o", "json"
    )

    small, large = answer.json["rates"]
    assert (small["rate_steps_per_s"], small["provenance"]) == (0.0, "prior")  # 16 GB are not enough
    assert large["rate_steps_per_s"] > 0


def test_show_names_absurd_rates_with_their_line_and_estimates_in_their_place(gavel: Gavel) -> None:
    rates = gavel.file(
        "rates.csv", lawful_csv().replace("bee (batch size 32),1,old,31.25", "bee (batch size 32),1,old,1e300")
    )

    answer = gavel("throughput", "show", "--throughputs", rates, "-o", "json")

    by_entry = {(row["job_type"], row["gpu_type"]): row for row in answer.json["rates"]}
    mended = by_entry["bee (batch size 32)", "old"]
    assert (mended["rate_steps_per_s"], mended["provenance"]) == (pytest.approx(31.25, rel=0.3), "estimated")
    assert "rates.csv:20: bee (batch size 32) on 1 x old: 1e+300 steps/s is not believed" in answer.err
    assert answer.err.count("not believed") == 1


def test_show_draws_a_table(gavel: Gavel) -> None:
    answer = gavel("throughput", "show", "--throughputs", gavel.file("rates.csv", HOLEY))

    assert answer.code == 0
    assert "estimated" in answer.out


def test_import_makes_a_table_and_lets_measurements_stand_against_lesser_figures(gavel: Gavel) -> None:
    measured = gavel.file("measured.csv", HOLEY)
    published = gavel.file("published.csv", HEADER + "net (batch size 8),1,v100,99,published,them\n")

    first = gavel("throughput", "import", measured, "rates.csv")
    second = gavel("throughput", "import", published, "rates.csv")

    assert (first.code, second.code) == (0, 0)
    table = read_throughputs(gavel.folder / "rates.csv")
    assert table.rates("net (batch size 8)", 1) == {"v100": 10.0, "k80": 2.0}
    assert table.source[0] == "us; them"


def test_import_reports_contradictions_and_refuses_absurd_rates(gavel: Gavel) -> None:
    first = gavel.file("first.csv", HOLEY)
    second = gavel.file(
        "second.csv", HEADER + "net (batch size 8),1,v100,70,measured,\nnet (batch size 8),1,k80,1e12,measured,\n"
    )
    gavel("throughput", "import", first, "rates.csv")

    answer = gavel("throughput", "import", second, "rates.csv")

    assert "net (batch size 8) on 1 x v100: 10 steps/s before, 70 now" in answer.err
    assert "1e+12 steps/s refused" in answer.err
    assert read_throughputs(gavel.folder / "rates.csv").rates("net (batch size 8)", 1) == {"v100": 70.0, "k80": 2.0}


def test_import_of_nothing_but_refused_rates_fails_and_writes_nothing(gavel: Gavel) -> None:
    absurd = gavel.file("absurd.csv", HEADER + "net (batch size 8),1,v100,1e12,measured,us\n")

    answer = gavel("throughput", "import", absurd, "rates.csv")

    assert answer.code == 2
    assert "1e+12 steps/s refused" in answer.err
    assert "IN must have at least one plausible rate, got none" in answer.err
    assert not (gavel.folder / "rates.csv").exists()


def test_import_keeps_pairs(gavel: Gavel) -> None:
    pairs = gavel.file("pairs.csv", csv_text(*throughput_cells(lawful_pairs())))

    gavel("throughput", "import", pairs, "rates.csv")
    gavel("throughput", "import", gavel.file("more.csv", HOLEY), "rates.csv")

    table = read_throughputs(gavel.folder / "rates.csv")
    assert len(table.pair_rows) == len(lawful_pairs().pair_rows)
    assert table.gpu_types == ("old", "middle", "new", "v100", "k80")


def test_export_fills_what_is_unknown_and_marks_it(gavel: Gavel) -> None:
    rates = gavel.file("rates.csv", HOLEY)

    gavel("throughput", "export", rates, "median.csv", "--fill")
    gavel("throughput", "export", rates, "cautious.csv", "--fill", "--quantile", "0.1")

    median, cautious = (read_throughputs(gavel.folder / name) for name in ("median.csv", "cautious.csv"))
    assert cautious.rates("net (batch size 16)", 1)["k80"] < median.rates("net (batch size 16)", 1)["k80"]
    assert median.rates("net (batch size 8)", 1) == {"v100": 10.0, "k80": 2.0}
    assert "estimated" in (gavel.folder / "median.csv").read_text()


def test_export_without_fill_leaves_holes(gavel: Gavel) -> None:
    gavel("throughput", "export", gavel.file("rates.csv", HOLEY), "same.csv")

    assert read_throughputs(gavel.folder / "same.csv").rates("net (batch size 16)", 1) == {"v100": 6.0}


def test_a_fitted_model_is_kept_and_used(gavel: Gavel) -> None:
    rates = gavel.file("rates.csv", lawful_csv())

    fitted = gavel("throughput", "fit", rates, "--out", "model.json")
    answer = gavel("throughput", "evaluate", rates, "--model", "model.json", "--seeds", "2", "-o", "json")

    assert (fitted.code, answer.code) == (0, 0)
    assert json.loads((gavel.folder / "model.json").read_text())["isolated"]["noise"] < 0.07
    assert answer.json["hold_outs"][0]["p50_error"] < 0.1


def test_evaluate_compares_pairs_with_the_baselines(gavel: Gavel) -> None:
    pairs = gavel.file("pairs.csv", csv_text(*throughput_cells(lawful_pairs())))

    answer = gavel("throughput", "evaluate", pairs, "--seeds", "2", "-o", "json")

    assert [row["method"] for row in answer.json["hold_outs"]] == [
        "estimator",
        "estimator",
        "row plus column",
        "row plus column, and rank 1",
        "estimator",
        "factorisation",
        "factorisation of both sides at once",
        "nearest reference",
        "factorisation, then nearest reference",
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("evaluate", "one.csv"), "TABLE must have at least two rows and two GPU types"),
        (("evaluate", "rates.csv", "--seeds", "0"), "--seeds"),
        (("evaluate", "pairs.csv", "--share", "2"), "share must be in (0, 1), got 2.0"),
        (("export", "rates.csv", "out.csv", "--fill", "--quantile", "1"), "--quantile must be in (0, 1), got 1.0"),
        (("show", "--throughputs", "rates.csv", "--gpu-types", "a,,b"), "--gpu-types must look like v100,a100"),
        (("show", "--model", "bad.json"), "bad.json: format must be 'gavelpy estimator 1', got 'x'"),
        (("show", "--model", "rates.csv"), "text must be JSON"),
        (("show", "--model", "half.json"), "half.json: isolated must be an object with exactly the keys"),
        (("import", "missing.csv", "out.csv"), "missing.csv"),
    ],
)
def test_bad_input_is_named(gavel: Gavel, arguments: tuple[str, ...], complaint: str) -> None:
    gavel.file("one.csv", HEADER + "x,1,v100,1,measured,\n")
    gavel.file("rates.csv", HOLEY)
    gavel.file("pairs.csv", csv_text(*throughput_cells(lawful_pairs())))
    gavel.file("bad.json", '{"format": "x"}')
    gavel.file("half.json", '{"format": "gavelpy estimator 1"}')

    answer = gavel("throughput", *arguments)

    assert answer.code == 2
    assert complaint in answer.err


def test_evaluate_draws_estimates_against_truths(gavel: Gavel) -> None:
    answer = gavel(
        "throughput", "evaluate", gavel.file("rates.csv", lawful_csv()), "--seeds", "1", "--report", "page.html"
    )

    assert answer.code == 0
    assert "entries held out" in (gavel.folder / "page.html").read_text()
