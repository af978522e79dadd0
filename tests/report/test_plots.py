"""The data and colours of the report's plots."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from gavelpy.report import plots, timeline
from tests.report.synthetic import make_result

PAIR = [make_result("fifo@blind", slowness=2.0), make_result("fifo")]


def test_blind_is_faint_in_the_colour_of_its_policy() -> None:
    blind, aware = plots.completion_times(PAIR).curves

    assert (blind.is_faint, aware.is_faint) == (True, False)
    assert blind.colour == aware.colour


def test_colours_of_policies_differ() -> None:
    runs = [make_result(label) for label in ("fifo", "max_min_fairness", "min_makespan", "isolated")]

    assert len(set(plots.colours(runs).values())) == 4


def test_completion_curve_stays_below_one_when_jobs_are_unfinished() -> None:
    (curve,) = plots.completion_times([make_result("fifo", jobs=10, unfinished=4)]).curves

    assert max(curve.y) == pytest.approx(0.6)


def test_completion_curve_counts_measured_jobs_only() -> None:
    result = make_result("fifo", jobs=10)
    result.jobs.loc[result.jobs.index[:5], "measured"] = False

    (curve,) = plots.completion_times([result]).curves

    assert len(curve.x) == 5


def test_fairness_curve_ends_at_the_worst_ratio() -> None:
    result = make_result("fifo", jobs=10)

    ((curve,),) = (figure.curves for figure in plots.fairness([result]))

    assert curve.x[-1] == result.jobs["ftf"].max()
    assert curve.y[-1] == 1.0


def test_utilisation_has_a_figure_for_each_gpu_type_and_a_curve_for_each_run() -> None:
    figures = plots.utilization(PAIR)

    assert [figure.name for figure in figures] == ["utilization_v100", "utilization_p100", "utilization_k80"]
    assert [len(figure.curves) for figure in figures] == [2, 2, 2]


def test_time_first_ends_with_the_longest_aware_run() -> None:
    figure = plots.queue_length([make_result("fifo@blind", slowness=50.0), make_result("fifo")])

    assert figure.x.range is not None
    assert figure.x.range[1] == pytest.approx(figure.curves[1].x[-1])
    assert figure.x.range[1] < 0.2 * figure.curves[0].x[-1]


def test_queue_counts_jobs_between_arrival_and_finish_that_hold_no_gpus() -> None:
    result = make_result("fifo", jobs=2, stays=1)
    result.jobs["arrival_s"], result.jobs["finish_s"] = [0.0, 0.0], [80.0, 160.0]
    result.leases["start_s"], result.leases["end_s"] = [0.0, 80.0], [80.0, 160.0]

    (curve,) = plots.queue_length([result]).curves

    assert curve.y[curve.x < 80].tolist() == [1.0] * 80
    assert curve.y[curve.x >= 80].tolist() == [0.0] * 81


def test_marginal_values_are_parts_of_their_sum() -> None:
    curves = [figure.curves[0].y for figure in plots.marginal_values([make_result("fifo")])]

    assert np.allclose(np.sum(curves, axis=0), 1.0)


def test_run_without_marginal_values_has_no_curve_of_them() -> None:
    result = make_result("fifo")
    object.__setattr__(result, "marginal_values", pd.DataFrame(index=pd.Index([], name="time_s")))

    assert plots.marginal_values([result]) == []


def test_coarser_bins_keep_the_mean() -> None:
    frame = pd.DataFrame({"v100": np.tile([0.0, 1.0], 800)}, index=np.arange(1600.0))
    result = make_result("fifo")
    object.__setattr__(result, "utilization", frame)

    ((curve,),) = (figure.curves for figure in plots.utilization([result]))

    assert set(curve.y.tolist()) == {0.5}
    assert len(curve.y) == 160


def _leases(*rows: tuple[str, str, float, float]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["job", "gpu_type", "start_s", "end_s"])
    return frame.assign(gpus=1)


def test_stays_that_follow_each_other_on_one_type_become_one() -> None:
    stays = timeline.merged(_leases(("a", "v100", 0, 10), ("a", "v100", 10, 20), ("a", "k80", 20, 30)))

    assert stays[["gpu_type", "start_s", "end_s"]].to_numpy().tolist() == [["v100", 0, 20], ["k80", 20, 30]]


def test_stays_of_two_jobs_are_never_joined() -> None:
    stays = timeline.merged(_leases(("a", "v100", 0, 10), ("b", "v100", 10, 20)))

    assert stays["job"].to_list() == ["a", "b"]


def test_the_shortest_gaps_are_bridged_first_when_there_are_too_many_stays() -> None:
    leases = _leases(("a", "v100", 0, 10), ("a", "v100", 11, 20), ("a", "v100", 90, 99))

    stays = timeline.merged(leases, segments_max=2)

    assert stays[["start_s", "end_s"]].to_numpy().tolist() == [[0, 20], [90, 99]]


def test_family_fractions_weigh_by_gpus_and_add_up_to_one() -> None:
    result = make_result("fifo", jobs=2, stays=1)
    result.jobs["job_type"] = "A3C (small)"
    result.leases["gpus"] = [1, 3]
    result.leases["start_s"], result.leases["end_s"] = 0.0, 100.0
    result.leases["gpu_type"] = ["v100", "k80"]

    family = timeline.families([result])["fifo"]

    assert family.to_dict("index") == {"A3C": {"v100": 0.25, "p100": 0.0, "k80": 0.75}}


def test_timeline_draws_a_bounded_number_of_jobs() -> None:
    figure = timeline.timeline([make_result("fifo", jobs=3000)])

    waiting = next(marks for marks in figure.marks["fifo"] if marks.group == "waiting")

    assert len(waiting.x) == 220


def test_axes_fit_the_run_that_is_shown() -> None:
    short, long = make_result("fifo"), make_result("fifo@blind", slowness=50.0)

    over_time, shares = timeline.timeline([short, long]), timeline.shares([short, long])

    assert over_time.x_ranges["fifo"][1] < 0.2 * over_time.x_ranges["fifo@blind"][1]
    assert over_time.x_ranges["fifo"][1] >= short.leases["end_s"].max() / 3600
    assert shares.x_ranges["fifo"] == shares.y_ranges["fifo"]
    assert shares.x_ranges["fifo"][1] < 0.2 * shares.x_ranges["fifo@blind"][1]


def test_jobs_that_alternate_between_types_have_a_bounded_number_of_stays() -> None:
    leases = _leases(*(("a", ("v100", "k80")[i % 2], 10 * i, 10 * i + 9) for i in range(1000)))

    stays = timeline.merged(leases, segments_max=20)

    assert len(stays) <= 20
    assert stays["end_s"].max() == 9999


def test_a_stay_too_short_to_draw_takes_the_type_that_was_held_longest_around_it() -> None:
    leases = _leases(("a", "v100", 0, 60), ("a", "k80", 60, 100), ("a", "k80", 100, 110), ("a", "v100", 110, 200))

    stays = timeline.merged(leases, segments_max=2)

    assert set(stays["gpu_type"]) == {"v100"}


def test_delivered_counts_time_where_it_was_owed() -> None:
    result = make_result("fifo", jobs=1)
    object.__setattr__(
        result,
        "shares",
        pd.DataFrame({"job": "a", "gpu_type": ["v100", "k80"], "owed_s": [100.0, 0.0], "received_s": [40.0, 60.0]}),
    )

    assert timeline.delivered(result) == pytest.approx(0.4)


def test_key_metrics_are_those_that_some_run_has() -> None:
    without = replace(make_result("las"), metrics=replace(make_result("las").metrics, ftf_worst=float("nan")))

    assert len(plots.key_metrics([without, make_result("fifo")])) == 4
    assert [bars.title.partition(" [")[0] for bars in plots.key_metrics([without])] == [
        "avg JCT",
        "p99 JCT",
        "makespan",
    ]
