"""The sentences that summarise a comparison of runs."""

import math

from gavelpy.report.summary import sentences
from tests.report.synthetic import make_result


def test_headline_compares_blind_and_aware() -> None:
    blind = make_result("max_min_fairness@blind", avg_jct_s=72_000.0, makespan_s=100_000.0)
    aware = make_result("max_min_fairness", avg_jct_s=36_000.0, makespan_s=75_000.0)

    headline, *rest = sentences([blind, aware])

    assert headline == (
        "Knowing the throughputs cuts the average JCT of max_min_fairness by 50 % (20.0 h to 10.0 h) "
        "and its makespan by 25 %."
    )
    assert len(rest) == 1


def test_cost_of_the_gain_follows_the_headline() -> None:
    blind = make_result("max_min_fairness@blind", ftf_worst=1.24, preemptions=1000)
    aware = make_result("max_min_fairness", ftf_worst=2.28, preemptions=930)

    assert sentences([blind, aware])[1] == (
        "What max_min_fairness costs: its worst finish-time fairness is 2.28 (1.24 when blind), and it preempts a job "
        "93.0 times on average (100.0 when blind)."
    )


def test_headline_does_not_hide_a_loss() -> None:
    blind = make_result("fifo@blind", avg_jct_s=36_000.0, makespan_s=100_000.0)
    aware = make_result("fifo", avg_jct_s=72_000.0, makespan_s=100_000.0)

    headline = sentences([blind, aware])[0]

    assert "raises the average JCT of fifo by 100 %" in headline
    assert "keeps its makespan within 0.5 % of what it was" in headline


def test_max_min_fairness_leads_whatever_the_order_and_the_gain() -> None:
    runs = [
        make_result("fifo@blind", avg_jct_s=90_000.0),
        make_result("fifo", avg_jct_s=9_000.0),
        make_result("max_min_fairness@blind", avg_jct_s=20_000.0),
        make_result("max_min_fairness", avg_jct_s=19_000.0),
    ]

    found = sentences(runs)

    assert "max_min_fairness" in found[0]
    assert "fifo" in found[2]


def test_without_pairs_the_best_run_leads() -> None:
    found = sentences([make_result("fifo", avg_jct_s=40_000.0), make_result("isolated", avg_jct_s=30_000.0)])

    assert found == ["isolated has the lowest average JCT of 2 runs: 8.3 h, 25 % below fifo."]


def test_a_single_run_is_described() -> None:
    found = sentences([make_result("fifo", avg_jct_s=36_000.0, utilization=0.8)])

    assert found == ["Under fifo a job takes 10.0 h on average, and the GPUs are leased 80 % of the time."]


def test_a_run_in_which_nothing_finished_says_so_with_the_reason() -> None:
    found = sentences([make_result("fifo", jobs=2, unfinished=2, avg_jct_s=math.nan)])

    assert found == [
        "No measured job finished under fifo.",
        "Under fifo 2 jobs of 2 never finished: no GPU type has 64 GPUs.",
    ]


def test_incomparable_pair_has_a_sentence() -> None:
    runs = [make_result("fifo@blind", jobs=2, unfinished=2, avg_jct_s=math.nan), make_result("fifo", jobs=2)]

    assert sentences(runs)[0].startswith("No comparison for fifo: in the blind run, the aware run or both")


def test_no_run_that_left_jobs_is_called_the_best() -> None:
    runs = [make_result("a", unfinished=1, avg_jct_s=1.0), make_result("b", avg_jct_s=36_000.0)]

    assert sentences(runs)[0] == "b has the lowest average JCT of 2 runs: 10.0 h."


def test_runs_that_left_the_same_jobs_share_a_sentence() -> None:
    runs = [make_result("a", unfinished=2), make_result("b", unfinished=2), make_result("c")]

    assert sentences(runs)[1:] == ["Under a, b 2 jobs of 10 never finished: no GPU type has 64 GPUs."]
