"""`gavel simulate`: its JSON, table, report, journal and options."""

import re
from pathlib import Path

import pytest

from tests.cli.commands import TRACE, Gavel

FIGURES = {
    "avg_jct_s",
    "p50_jct_s",
    "p90_jct_s",
    "p99_jct_s",
    "makespan_s",
    "utilization",
    "efficiency",
    "ideal_avg_jct_s",
    "ideal_makespan_s",
    "cost_usd",
    "ftf_worst",
    "ftf_mean",
    "deadline_misses",
    "preemptions",
    "migrations",
    "rounds",
    "solves",
    "jobs_measured",
    "jobs_unfinished",
    "wall_s",
    "cpu_s",
    "cpu_solve_s",
    "cpu_fairness_s",
    "probes_alone",
    "probes_pairs",
    "probes_gpu_s",
    "gpu_hours",
    "avg_fair_share_delay_s",
    "avg_fragmentation_delay_s",
}
THREE = "id,arrival_s,steps_total,rate_v100\n" + "".join(f"{name},0,100,1\n" for name in "abc")
SMALL = ("--cluster", "v100:2,k80:2")
FREE = ("--checkpoint-s", "0", "--restart-s", "0", "--migration-s", "0")
OURS = ("wall_s", "cpu_s", "cpu_solve_s", "cpu_fairness_s")  # timings of the simulation itself, different in every run


PAIRS = """{"v100": {"('ant', 1)": {"null": 1.0, "('ant', 1)": [0.8, 0.8]}}}"""
ANTS = "".join(f"ant\tant\t.\t-n\t0\t{steps}\t1\t1\t-1\t0\n" for steps in (800, 1600))


def test_co_located_jobs_share_a_gpu_and_the_record_shows_it(gavel: Gavel) -> None:
    (gavel.folder / "pairs.json").write_text(PAIRS)
    (gavel.folder / "ants.trace").write_text(ANTS)
    files = (str(gavel.folder / "ants.trace"), "--throughputs", str(gavel.folder / "pairs.json"))

    answer = gavel("simulate", *files, "--cluster", "v100:1", *FREE, "--packing", "-o", "json")

    assert answer.code == 0
    assert answer.json["parameters"]["packing"] is True
    found = answer.json["results"]["max_min_fairness"]
    assert found["makespan_s"] == pytest.approx(1000.0 + 800.0)
    assert found["utilization"] == pytest.approx(1.0)


def test_packing_and_the_presets_queues_by_type_exclude_each_other(gavel: Gavel) -> None:
    (gavel.folder / "pairs.json").write_text(PAIRS)

    answer = gavel(
        "simulate",
        gavel.trace(),
        "--throughputs",
        str(gavel.folder / "pairs.json"),
        "--packing",
        "--preset",
        "gavel-osdi20",
    )

    assert answer.code == 2
    assert "queue must be global where packing is on" in answer.err


@pytest.mark.parametrize("claims", [(), ("--claims-off", "3")])
def test_scheduler_without_rates_finishes_all_jobs(gavel: Gavel, claims: tuple[str, ...]) -> None:
    answer = gavel("simulate", gavel.trace(), *SMALL, "--estimate", *claims, "-o", "json")

    assert answer.code == 0
    assert answer.json["parameters"]["estimate"] is True
    assert answer.json["results"]["max_min_fairness"]["jobs_unfinished"] == 0


def test_measurements_within_a_budget_are_reported(gavel: Gavel) -> None:
    plain, profiled = (
        gavel("simulate", gavel.trace(), *SMALL, "--estimate", *budget, "-o", "json")
        for budget in ((), ("--profile-gpu-s", "720"))
    )

    assert profiled.json["parameters"]["profile_gpu_s"] == 720.0
    assert plain.json["results"]["max_min_fairness"]["probes_gpu_s"] == 0.0
    found = profiled.json["results"]["max_min_fairness"]
    assert found["probes_gpu_s"] > 0.0
    assert found["probes_pairs"] == 0


def test_json_has_parameters_seed_and_every_figure_of_every_run(gavel: Gavel) -> None:
    answer = gavel("simulate", gavel.trace(), *SMALL, "--policy", "fifo@blind,fifo,las", "--seed", "7", "-o", "json")

    assert answer.code == 0
    assert set(answer.json) == {"version", "parameters", "seed", "results"}
    assert answer.json["seed"] == 7
    assert list(answer.json["results"]) == ["fifo@blind", "fifo", "las"]
    assert all(set(figures) == FIGURES for figures in answer.json["results"].values())


def test_parameters_say_what_was_simulated(gavel: Gavel) -> None:
    answer = gavel(
        "simulate", gavel.trace(), *SMALL, "--policy", "fifo", "--restart-s", "0", "--window", "0:2", "-o", "json"
    )

    said = answer.json["parameters"]
    assert said["cluster"] == {"v100": 2, "k80": 2}
    assert said["policies"] == ["fifo"]
    assert said["restart_s"] == 0
    assert said["window"] == [0, 2]
    assert (said["trace"], said["jobs"]) == ("trace", 3)


def test_one_job_alone_takes_its_steps_over_its_rate(gavel: Gavel) -> None:
    trace = gavel.trace("id,arrival_s,steps_total,rate_v100\na,0,36000,10\n")

    answer = gavel("simulate", trace, "--cluster", "v100:1", "--policy", "fifo", *FREE, "-o", "json")

    assert answer.json["results"]["fifo"]["avg_jct_s"] == pytest.approx(3600)
    assert answer.json["results"]["fifo"]["utilization"] == pytest.approx(1)


def test_rounds_shorter_than_a_start_come_to_their_end_with_a_warning(gavel: Gavel) -> None:
    answer = gavel("simulate", gavel.trace(THREE), "--cluster", "v100:2", "--round-s", "5", "-o", "json")

    assert answer.code == 0
    assert "warning: less than half of a round is work" in answer.err
    assert answer.json["results"]["max_min_fairness"]["jobs_unfinished"] == 0
    said = answer.json["parameters"]
    assert (said["lease_min_s"], said["start_max_s"], said["retry_s"], said["retry_max_s"]) == (2.5, 300, 10, 300)


def test_a_run_in_which_no_job_gains_a_step_ends_with_the_reason_and_what_it_has(gavel: Gavel) -> None:
    command = ("simulate", gavel.trace(THREE), "--cluster", "v100:2", "--round-s", "5", "--start-max-s", "0")

    answer = gavel(*command, "--move-lag-s", "0", "--policy", "las,fifo", "--fairness")

    assert answer.code == 1
    assert re.search(r"^ las ", answer.out, re.MULTILINE)
    assert re.search(r"^error: las: ended at [\d,]+ s: no job has gained a step since 0 s", answer.err, re.MULTILINE)
    assert "error: fifo" not in answer.err
    assert "warning: finish-time fairness is unknown for some jobs: isolated: " in answer.err


def test_jobs_are_moved_less_for_a_larger_lag(gavel: Gavel) -> None:
    text = THREE.replace(",100,", ",20000,")
    command = ("simulate", gavel.trace(text), "--cluster", "v100:2", "-o", "json", "--policy", "las")

    promptly, default = (gavel(*command, *rest).json for rest in (["--move-lag-s", "0"], []))
    gavel.trace(THREE)  # in its place: rounds of 5 s are many
    short = gavel(*command, "--round-s", "5").json

    assert [answer["parameters"]["move_lag_s"] for answer in (promptly, default, short)] == [0, 1800, 25]
    many, few = (answer["results"]["las"]["preemptions"] for answer in (promptly, default))
    assert many > 5 * few > 0


def test_a_run_with_deadlines_has_a_lag_of_one_round_unless_it_is_set(gavel: Gavel) -> None:
    command = ("simulate", gavel.trace(THREE), *SMALL, "-o", "json", "--policy", "min_cost:deadlines=1,fifo")

    default, given = (gavel(*command, *rest).json["parameters"] for rest in ([], ["--move-lag-s", "1800"]))

    assert (default["move_lag_s"], default["move_lag_s_by_policy"]) == (1800, {"min_cost:deadlines=1": 360})
    assert given["move_lag_s"] == 1800
    assert "move_lag_s_by_policy" not in given


def test_the_original_rules_refuse_a_lag_for_moves(gavel: Gavel) -> None:
    command = ("simulate", gavel.trace(THREE), *SMALL, "--preset", "gavel-osdi20")

    answer = gavel(*command, "--move-lag-s", "60")

    assert answer.code == 2
    assert "move_lag_s must be 0 where priority is 'osdi20', got 60" in answer.err


def test_finish_time_fairness_takes_isolated_or_a_request_for_it(gavel: Gavel) -> None:
    command = ("simulate", gavel.trace(THREE), *SMALL, "-o", "json", "--policy")

    without, asked, among = (
        gavel(*command, *rest).json for rest in (["las"], ["las", "--fairness"], ["las,isolated", "--fairness"])
    )

    found, wanted, both = (answer["results"]["las"] for answer in (without, asked, among))
    assert (found["ftf_worst"], found["ftf_mean"], found["cpu_fairness_s"]) == (None, None, 0.0)
    assert wanted["ftf_worst"] == both["ftf_worst"] > 0.0
    assert wanted["cpu_fairness_s"] > 0.0 == both["cpu_fairness_s"]
    assert "fairness" not in without["parameters"]
    assert asked["parameters"]["fairness"] is True


def test_table_has_finish_time_fairness_only_if_it_is_known(gavel: Gavel) -> None:
    command = ("simulate", gavel.trace(THREE), *SMALL)

    without, asked = gavel(*command), gavel(*command, "--fairness")

    assert "worst FTF" not in without.out
    assert "worst FTF" in asked.out


def test_options_protect_starts_and_the_presets_are_what_they_were(gavel: Gavel) -> None:
    given = ("--lease-min-s", "40", "--start-max-s", "50", "--retry-s", "400")
    names = ("lease_min_s", "start_max_s", "retry_s", "retry_max_s")
    command = ("simulate", gavel.trace(THREE), "--cluster", "v100:2", "-o", "json")

    chosen = gavel(*command, "--round-s", "60", *given).json["parameters"]
    osdi20 = gavel(*command, "--preset", "gavel-osdi20", "--round-s", "60").json["parameters"]

    assert [chosen[name] for name in names] == [40, 50, 400, 400]
    assert [osdi20[name] for name in names] == [0, 0, 0, 300]


def test_blind_runs_every_policy_blind(gavel: Gavel) -> None:
    answer = gavel("simulate", gavel.trace(), *SMALL, "--policy", "fifo,las", "--blind", "-o", "json")

    assert list(answer.json["results"]) == ["fifo@blind", "las@blind"]


def test_same_seed_gives_the_same_figures(gavel: Gavel) -> None:
    command = (
        "simulate",
        "--generate",
        "6",
        "--rate-per-h",
        "30",
        *SMALL,
        "--policy",
        "las",
        "--round-s",
        "3600",
        "-o",
        "json",
    )

    first, second, other = (gavel(*command, "--seed", seed).json["results"]["las"] for seed in ("1", "1", "2"))

    assert {k: v for k, v in first.items() if k not in OURS} == {k: v for k, v in second.items() if k not in OURS}
    assert first["avg_jct_s"] != other["avg_jct_s"]


def test_table_names_runs_and_compares_blind_and_aware(gavel: Gavel) -> None:
    answer = gavel("simulate", gavel.trace(), *SMALL, "--policy", "las@blind,las")

    assert answer.code == 0
    assert re.search(r"^ ?las@blind ", answer.out, re.MULTILINE)
    assert "Knowing the throughputs" in answer.out
    assert answer.err == ""


def test_output_that_goes_to_a_file_has_no_colour_and_is_not_cut(gavel: Gavel) -> None:
    answer = gavel("simulate", gavel.trace(), *SMALL, "--policy", "fifo,las")

    assert "\x1b" not in answer.out
    assert "solves" in answer.out
    assert "…" not in answer.out


def test_a_job_that_can_run_nowhere_is_no_error_and_gets_a_reason(gavel: Gavel) -> None:
    trace = gavel.trace(TRACE + "giant,30,100,64,5,5\n")

    answer = gavel("simulate", trace, *SMALL, "--policy", "fifo,las")

    assert answer.code == 0
    assert "Under fifo, las 1 job of 4 never finished: " in answer.out
    assert "64" in answer.out


def test_where_nothing_can_run_the_figures_are_null(gavel: Gavel) -> None:
    answer = gavel("simulate", gavel.trace(), "--cluster", "h100:4", "--policy", "fifo", "-o", "json")

    assert answer.code == 0
    assert answer.json["results"]["fifo"]["avg_jct_s"] is None
    assert answer.json["results"]["fifo"]["jobs_unfinished"] == 3


def test_published_throughputs_serve_jobs_that_bring_no_rates(gavel: Gavel) -> None:
    trace = gavel.trace("id,arrival_s,steps_total,job_type\na,0,100000,ResNet-18\n")

    answer = gavel("simulate", trace, "--cluster", "v100:1", "--policy", "fifo", "-o", "json")

    assert answer.json["results"]["fifo"]["jobs_measured"] == 1


def test_rates_of_the_trace_come_before_the_table(gavel: Gavel) -> None:
    trace = gavel.trace("id,arrival_s,steps_total,job_type,rate_v100\na,0,100,ResNet-18,1\n")

    answer = gavel("simulate", trace, "--cluster", "v100:1", "--policy", "fifo", *FREE, "-o", "json")

    assert answer.json["results"]["fifo"]["avg_jct_s"] == pytest.approx(100)


def test_jobs_without_throughputs_are_warned_of_on_stderr(gavel: Gavel) -> None:
    trace = gavel.trace("id,arrival_s,steps_total,job_type\na,0,100,mystery\n")

    answer = gavel("simulate", trace, "--cluster", "v100:1", "--policy", "fifo", "-o", "json")

    assert answer.code == 0
    assert answer.err.startswith("warning: 1 of 1 jobs have no throughputs")
    assert "'mystery'" in answer.err


def test_prices_make_the_cost(gavel: Gavel) -> None:
    trace = gavel.trace("id,arrival_s,steps_total,rate_v100\na,0,36000,10\n")

    answer = gavel(
        "simulate", trace, "--cluster", "v100:1", "--prices", "v100:3", "--policy", "fifo", *FREE, "-o", "json"
    )

    assert answer.json["results"]["fifo"]["cost_usd"] == pytest.approx(3)


def test_window_measures_only_its_jobs(gavel: Gavel) -> None:
    answer = gavel("simulate", gavel.trace(), *SMALL, "--policy", "fifo", "--window", "1:3", "-o", "json")

    assert answer.json["results"]["fifo"]["jobs_measured"] == 2


def test_preset_of_the_original_has_no_costs(gavel: Gavel) -> None:
    answer = gavel("simulate", gavel.trace(), *SMALL, "--policy", "fifo", "--preset", "gavel-osdi20", "-o", "json")

    said = answer.json["parameters"]
    assert (said["solve_interval_s"], said["checkpoint_s"], said["restart_s"]) == (1920, 0, 0)


def test_the_record_names_the_interval_of_each_policy(gavel: Gavel) -> None:
    said = [
        gavel("simulate", gavel.trace(), *SMALL, "--policy", "fifo,las", *options, "-o", "json").json["parameters"]
        for options in ((), ("--solve-interval-s", "360"))
    ]

    assert [one["solve_interval_s"] for one in said] == [360, 360]
    assert [one.get("solve_interval_s_by_policy") for one in said] == [{"fifo": 0}, None]


def test_report_has_the_runs_and_stderr_its_path(gavel: Gavel) -> None:
    answer = gavel(
        "simulate", gavel.trace(), *SMALL, "--policy", "fifo,las", "--report", "new/report.html", "-o", "json"
    )

    page = Path("new/report.html").read_text(encoding="utf-8")
    assert answer.err == "report: new/report.html\n"
    assert set(answer.json["results"]) == {"fifo", "las"}
    assert 'data-run="las"' in page


def test_report_can_be_written_where_nothing_finished(gavel: Gavel) -> None:
    answer = gavel("simulate", gavel.trace(), "--cluster", "h100:4", "--policy", "fifo", "--report", "report.html")

    assert answer.code == 0
    assert "Jobs that never finished" in Path("report.html").read_text(encoding="utf-8")


def test_journal_is_written_for_each_run(gavel: Gavel) -> None:
    answer = gavel("simulate", gavel.trace(), *SMALL, "--policy", "fifo,las@blind", "--journal", "journals")

    assert answer.code == 0
    assert {path.name for path in Path("journals").iterdir()} == {"fifo.journal", "las@blind.journal"}


def test_a_policy_may_take_parameters(gavel: Gavel) -> None:
    answer = gavel("simulate", gavel.file("t.csv", TRACE), "--cluster", "v100:1", "-o", "json",
                   "--policy", "shortest_job_first:by=total,shortest_job_first")  # fmt: skip

    assert set(answer.json["results"]) == {"shortest_job_first:by=total", "shortest_job_first"}


def test_absurd_rates_of_throughputs_are_named_and_left_out(gavel: Gavel) -> None:
    rates = gavel.file(
        "rates.csv", "job_type,gpus,gpu_type,rate_steps_per_s\nnet,1,v100,10\nnet,1,a100,20\nnet,1,k80,1e300\n"
    )
    trace = gavel.file("trace.csv", "id,arrival_s,steps_total,job_type\na,0,1000,net\n")

    answer = gavel("simulate", trace, "--throughputs", rates, "--cluster", "k80:1,v100:1", *FREE, "-o", "json")

    assert answer.code == 0
    assert "rates.csv:4: net on 1 x k80: 1e+300 steps/s is not believed" in " ".join(answer.err.split())
    assert "it is left out" in " ".join(answer.err.split())
    assert answer.json["results"]["max_min_fairness"]["makespan_s"] == pytest.approx(100.0)  # on the V100


def test_absurd_rates_of_a_trace_are_named(gavel: Gavel) -> None:
    trace = gavel.file("trace.csv", "id,arrival_s,steps_total,rate_v100,rate_k80\na,0,1000,10,3e9\n")

    answer = gavel("simulate", trace, *SMALL, *FREE, "-o", "json")

    assert answer.code == 0
    assert "on 1 x k80: 3e+09 steps/s is not believed" in " ".join(answer.err.split())
