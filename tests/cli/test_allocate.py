"""`gavel allocate`: its JSON, table, explanation, warnings and options."""

import pytest

from gavelpy.solve import ladder, linear
from tests.cli.commands import PROBLEM, Gavel

GIANT = {"id": "giant", "gpus": 64, "rates_steps_per_s": {"v100": 1.0}}
CROWD = [{"id": job, "rates_steps_per_s": {"v100": 4.0, "k80": 4.0}} for job in "abcd"]  # equal jobs, on two GPUs
STRANGER = {"id": "stranger", "rates_steps_per_s": {}}


def test_json_is_the_documented_answer(gavel: Gavel) -> None:
    answer = gavel("allocate", gavel.problem(), "--policy", "max_min_fairness", "-o", "json")

    assert answer.code == 0
    keys = {
        "version",
        "policy",
        "shares",
        "rates_steps_per_s",
        "marginal_values",
        "prices",
        "gain_of_one_more_gpu",
        "certificate",
    }
    assert set(answer.json) == keys
    assert answer.json["policy"] == "max_min_fairness"
    assert set(answer.json["shares"]) == {"a", "b"}
    assert set(answer.json["certificate"]) == {"objective", "bound", "gap", "violation", "path", "solve_s", "warning"}
    assert answer.json["certificate"]["warning"] == ""


def test_an_answer_that_is_not_fully_proved_comes_with_a_warning(gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "_best_of_distinct", lambda *_: None)
    monkeypatch.setattr(linear, "GAP_MAX", -1.0)

    answer = gavel("allocate", gavel.problem(), "--policy", "max_min_fairness", "-o", "json")

    warning = answer.json["certificate"]["warning"]
    assert answer.code == 0
    assert warning.startswith("feasible, but proved to a gap of ")
    assert f"warning: the allocation is {warning}" in " ".join(answer.err.split())


def test_blind_shares_are_evaluated_on_the_true_rates(gavel: Gavel) -> None:
    answer = gavel("allocate", gavel.problem(), "--policy", "max_min_fairness", "--blind", "-o", "json").json

    shares = answer["shares"]["a"]
    assert answer["rates_steps_per_s"]["a"] == pytest.approx(4.0 * shares["v100"] + 1.0 * shares["k80"])


def test_aware_policy_serves_the_worst_job_better(gavel: Gavel) -> None:
    rates = {"a": {"v100": 10.0, "k80": 1.0}, "b": {"v100": 1.0, "k80": 1.0}, "c": {"v100": 1.0, "k80": 1.0}}
    problem = gavel.problem(jobs=[{"id": job, "rates_steps_per_s": rates[job]} for job in rates])
    mean = {"a": 5.5, "b": 1.0, "c": 1.0}

    aware, blind = (
        gavel("allocate", problem, "--policy", policy, "-o", "json").json["rates_steps_per_s"]
        for policy in ("max_min_fairness", "max_min_fairness@blind")
    )

    assert min(aware[job] / mean[job] for job in mean) == pytest.approx(0.7843, abs=1e-4)
    assert min(blind[job] / mean[job] for job in mean) <= 2 / 3 + 1e-9


def test_table_shows_shares_prices_and_the_certificate_in_words(gavel: Gavel) -> None:
    answer = gavel("allocate", gavel.problem(), "--policy", "max_min_fairness")

    assert answer.code == 0
    assert "%" in answer.out
    assert "Shadow prices (objective gained by one more GPU): v100" in answer.out
    assert "proven within" in answer.out


def test_table_shows_marginal_values(gavel: Gavel) -> None:
    answer = gavel("allocate", gavel.problem(jobs=CROWD), "--policy", "max_min_fairness")

    assert "One more v100 raises the worst job's share by up to 50 %." in answer.out
    assert "One more k80 raises the worst job's share by up to 50 %." in answer.out


def test_of_a_makespan_one_more_gpu_makes_it_shorter(gavel: Gavel) -> None:
    answer = gavel("allocate", gavel.problem(jobs=CROWD), "--policy", "min_makespan")

    assert "One more v100 makes the makespan up to 33 % shorter." in answer.out


def test_a_blind_policy_values_gpus_by_what_it_believes(gavel: Gavel) -> None:
    answer = gavel("allocate", gavel.problem(jobs=CROWD), "--policy", "max_min_fairness@blind")

    expected = "With the rates that the blind policy assumes, one more v100 raises the worst job's share by up to 50 %."
    assert expected in answer.out


def test_json_has_the_relative_gain_of_one_more_gpu(gavel: Gavel) -> None:
    answer = gavel("allocate", gavel.problem(jobs=CROWD), "--policy", "min_makespan", "-o", "json").json

    value = answer["marginal_values"]["v100"]
    gain = value / (answer["certificate"]["objective"] + value)
    assert answer["gain_of_one_more_gpu"]["v100"] == pytest.approx(gain) == pytest.approx(1 / 3)


def test_json_of_a_rule_has_no_gains(gavel: Gavel) -> None:
    answer = gavel("allocate", gavel.problem(), "--policy", "fifo", "-o", "json").json

    assert answer["gain_of_one_more_gpu"] == answer["marginal_values"] == {"v100": None, "k80": None}


def test_explain_prints_the_limit_of_each_job(gavel: Gavel) -> None:
    quick = {"id": "quick", "rates_steps_per_s": {"v100": 8.0, "k80": 1.0}}
    even = {"id": "even", "rates_steps_per_s": {"v100": 3.0, "k80": 2.9}}
    problem = gavel.problem(jobs=[quick, even, GIANT, STRANGER])

    answer = gavel("allocate", problem, "--policy", "shortest_job_first", "--whole-gangs", "--explain")

    assert "why not" not in answer.out
    assert "runs all the time on v100, as fast as it can" in answer.out
    assert "has 100 % of its time, but not all at full speed: v100 is full" in answer.out
    assert "needs 64 GPUs of one type" in answer.out
    assert "runs on none of the cluster's GPU types" in answer.out


def test_explanation_in_json_names_the_constraint_and_the_types(gavel: Gavel) -> None:
    answer = gavel("allocate", gavel.problem(jobs=CROWD), "--policy", "max_min_fairness", "--explain", "-o", "json")

    assert {job: entry["held_by"] for job, entry in answer.json["explanation"].items()} == dict.fromkeys(
        "abcd", "capacity"
    )
    assert answer.json["explanation"]["a"].keys() == {"held_by", "gpu_types", "text"}


def test_a_rule_claims_no_optimum_and_no_prices(gavel: Gavel) -> None:
    answer = gavel("allocate", gavel.problem(), "--policy", "fifo")

    assert "Shadow prices: none" in answer.out
    assert "heuristic without an optimum" in answer.out


def test_jobs_that_can_run_nowhere_get_no_share_and_a_reason(gavel: Gavel) -> None:
    problem = gavel.problem(jobs=[*PROBLEM["jobs"], GIANT, STRANGER])

    answer = gavel("allocate", problem, "--policy", "max_min_fairness", "--whole-gangs", "-o", "json")

    assert answer.code == 0
    assert answer.json["rates_steps_per_s"]["giant"] == 0
    assert answer.json["rates_steps_per_s"]["stranger"] == 0
    assert answer.json["reasons"] == {
        "giant": "needs 64 GPUs of one type; the types on which it runs have at most 1",
        "stranger": "runs on none of the cluster's GPU types",
    }


def test_an_oversized_gang_has_the_share_of_the_papers_and_a_warning(gavel: Gavel) -> None:
    answer = gavel(
        "allocate", gavel.problem(jobs=[*PROBLEM["jobs"], GIANT]), "--policy", "max_min_fairness", "-o", "json"
    )

    assert answer.json["rates_steps_per_s"]["giant"] > 0
    assert answer.json["reasons"] == {"giant": "needs 64 GPUs of one type; the types on which it runs have at most 1"}
    assert "no scheduler can deliver the share of giant" in answer.err


def test_the_table_shows_the_reason_too(gavel: Gavel) -> None:
    answer = gavel("allocate", gavel.problem(jobs=[*PROBLEM["jobs"], GIANT]), "--policy", "fifo")

    assert "needs 64 GPUs" in answer.out


def test_pairs_are_labelled_with_both_jobs(gavel: Gavel) -> None:
    pairs = [{"jobs": ["a", "b"], "rates_steps_per_s": {"v100": [3.5, 2.5], "k80": [0.9, 1.8]}}]

    answer = gavel("allocate", gavel.problem(pairs=pairs), "--policy", "max_min_fairness", "-o", "json")

    assert set(answer.json["shares"]) == {"a", "b", "a,b"}


def test_names_that_look_like_markup_are_shown_as_they_are(gavel: Gavel) -> None:
    problem = gavel.problem(jobs=[{"id": "[/bold]:smile:", "rates_steps_per_s": {"v100": 1.0}}])

    answer = gavel("allocate", problem, "--policy", "fifo")

    assert answer.code == 0
    assert "[/bold]:smile:" in answer.out


def test_control_characters_of_an_id_do_not_reach_the_terminal(gavel: Gavel) -> None:
    jobs = [{"id": "\x1b[31mred", "rates_steps_per_s": {"v100": 1.0}}]

    answer = gavel("allocate", gavel.problem(jobs=jobs), "--policy", "fifo")

    assert "\x1b" not in answer.out
    assert r"\x1b[31mred" in answer.out


def test_two_policies_are_one_too_many(gavel: Gavel) -> None:
    answer = gavel("allocate", gavel.problem(), "--policy", "fifo,las")

    assert answer.code == 2
    assert answer.err == "error: --policy must name one policy, got 'fifo,las'\n"


@pytest.mark.parametrize("view", ["mean", "ones", "first"])
def test_a_blind_policy_splits_its_time_whatever_it_believes(gavel: Gavel, view: str) -> None:
    """Two jobs on one GPU of each type: blind, each has half of both, for any assumed rates."""
    answer = gavel(
        "allocate", gavel.problem(), "--policy", "max_min_fairness", "--blind", "--blind-view", view, "-o", "json"
    )

    assert answer.json["certificate"]["objective"] == pytest.approx(1.0)
    assert answer.json["shares"]["a"] == pytest.approx({"v100": 0.5, "k80": 0.5})


def test_an_unknown_blind_view_is_refused(gavel: Gavel) -> None:
    answer = gavel("allocate", gavel.problem(), "--policy", "las", "--blind", "--blind-view", "rosy")

    assert answer.code == 2
    assert "rosy" in answer.err


def test_absurd_rates_of_a_problem_are_named(gavel: Gavel) -> None:
    jobs = [{"id": "a", "rates_steps_per_s": {"v100": 4.0, "k80": 2e12}}]

    answer = gavel("allocate", gavel.problem(jobs=jobs), "--policy", "max_min_fairness", "-o", "json")

    assert answer.code == 0
    assert "a on 1 x k80: 2e+12 steps/s is not believed" in " ".join(answer.err.split())


def test_what_the_policy_does_not_use_is_named(gavel: Gavel) -> None:
    jobs = [{"id": "a", "rates_steps_per_s": {"v100": 4.0, "k80": 2.0}, "weight": 2.0, "deadline_s": 60.0}]

    by_queue = gavel("allocate", gavel.problem(jobs=jobs), "--policy", "fifo", "-o", "json")
    by_weight = gavel("allocate", gavel.problem(jobs=jobs), "--policy", "las", "-o", "json")

    assert by_queue.json["not_used"] == ["weight", "deadline_s"]
    assert "note: fifo does not use weights, deadlines: they change nothing" in " ".join(by_queue.err.split())
    assert by_weight.json["not_used"] == ["deadline_s"]


def test_sizes_and_resources_are_in_the_answer(gavel: Gavel) -> None:
    problem = gavel.problem(
        cluster={"v100": 4},
        resources={"cpu": {"v100": 10}},
        jobs=[
            {"id": "a", "rates_steps_per_s": {"v100": 4.0}, "demand_per_gpu": {"cpu": 2},
             "sizes": [{"gpus": 2, "efficiency": 0.9, "plan": "dp2", "demand": {"cpu": 1}}]},
            {"id": "b", "rates_steps_per_s": {"v100": 4.0}, "demand": {"cpu": 10}},
        ],
    )  # fmt: skip

    answer = gavel("allocate", problem, "--policy", "max_min_fairness", "-o", "json").json
    table = gavel("allocate", problem, "--policy", "max_min_fairness", "--explain")
    refused = gavel("allocate", problem, "--policy", "gandiva")

    assert [size["gpus"] for size in answer["sizes"]["a"]] == [1.0, 2.0]
    assert sum(size["shares"]["v100"] for size in answer["sizes"]["a"]) == pytest.approx(answer["shares"]["a"]["v100"])
    assert answer["resource_prices"]["v100"]["gpu"] == 0.0
    assert answer["resource_prices"]["v100"]["cpu"] > 0
    assert "a on 2 (dp2)" in table.out
    assert "cpu of v100" in " ".join(table.out.split())
    assert "one more cpu of v100 raises" in " ".join(table.out.lower().split())
    assert refused.code == 2
    assert "policy 'gandiva' does not use sizes" in refused.err
