"""`gavel simulate --ideal`."""

from __future__ import annotations

from tests.cli.commands import Gavel


def test_the_ideal_is_reported_on_request(gavel: Gavel) -> None:
    command = ["simulate", gavel.trace(), "--cluster", "v100:2,k80:1", "--policy", "fifo,las", "--ideal", "-o", "json"]

    answer = gavel(*command)

    found = answer.json["results"]
    assert answer.json["parameters"]["ideal"] is True
    assert 0 < found["las"]["ideal_avg_jct_s"] <= found["las"]["avg_jct_s"]
    assert 0 < found["fifo"]["ideal_makespan_s"] <= found["fifo"]["makespan_s"]


def test_the_ideal_is_refused_where_it_is_not_defined(gavel: Gavel) -> None:
    teams = gavel.file("teams.toml", "[teams.vision]\nweight = 2\n")
    jobs = gavel.trace("id,arrival_s,steps_total,gpus,entity,rate_v100\na,0,3600,1,vision,1\n")

    answer = gavel("simulate", jobs, "--cluster", "v100:1", "--policy", "hierarchical", "--teams", teams, "--ideal")

    assert answer.code == 2
    assert "the ideal of a policy is defined for single jobs only, got teams" in answer.err
