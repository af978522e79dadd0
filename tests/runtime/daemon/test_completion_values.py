"""Values of completion in the scheduler: from the request to a policy of the operator's that needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.runtime.daemon.engine.forecast import Forecaster
from gavelpy.runtime.daemon.queries.explain import Explainer
from gavelpy.runtime.daemon.queries.jobs import JobQueries
from gavelpy.runtime.daemon.rpc.client_messages import description_message
from gavelpy.runtime.daemon.rpc.requests import JobReader
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.daemon.harness import Agent, Running, make_config, make_spec, running

POLICY = """
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gavelpy.model.completion_value import values_at
from gavelpy.policies.base import ProblemInput
from gavelpy.policies.isolated import Isolated


@dataclass(frozen=True)
class Dearest:
    name: ClassVar[str] = "dearest"
    summary: ClassVar[str] = "The job whose end is worth most now runs first."
    fills_leftover: ClassVar[bool] = False
    uses: ClassVar[frozenset[ProblemInput]] = frozenset({ProblemInput.COMPLETION_VALUE, ProblemInput.AGE})
    needs: ClassVar[frozenset[ProblemInput]] = frozenset({ProblemInput.COMPLETION_VALUE})

    def allocate(self, problem, solver=None):
        order = np.argsort(-values_at(problem.completion_value, problem.age_s), kind="stable")
        return replace(Isolated().allocate(problem), next_round=np.array([[j, 0] for j in order], dtype=np.int64))
"""
LINEAR = "linear:worth=5.0:time_s=100000.0"
DEARER = "step:worth=9.0:time_s=100000.0"


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120.0))


def config(directory: Path, **sections: Any) -> Any:
    mechanism = {"round_s": 1.0, "solve_interval_s": 0.2, "start_max_s": 0.0, "lease_min_s": 0.0}
    return make_config(directory, throughputs={"estimate": False}, mechanism=mechanism, **sections)


def dearest(directory: Path) -> dict[str, str]:
    path = directory / "dearest.py"
    path.write_text(POLICY)
    return {"name": f"{path}:Dearest"}


async def until_running(cluster: Running, job: int) -> None:
    await cluster.until(lambda: cluster.core.jobs.state[job] == JobState.RUNNING, f"job {job} runs")


def test_policy_of_values_runs_the_job_whose_end_is_worth_most_also_after_a_crash(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings, agent = config(tmp_path, policy=dearest(tmp_path)), Agent("n0")
        async with running(settings, in_good_order=False) as cluster, agent.connected(cluster):
            with pytest.raises(InvalidInput, match=r"completion_value must be given with the policy dearest.*got none"):
                await cluster.submit(make_spec(completion_value=LINEAR), make_spec())
            cheap, dear = await cluster.submit(
                make_spec(completion_value=LINEAR, preemptible=True), make_spec(completion_value=DEARER)
            )
            await until_running(cluster, dear)
            valued = {row: cluster.core.jobs.valued[row] for row in (cheap, dear)}
        async with running(settings) as cluster, agent.connected(cluster):
            assert {row: cluster.core.jobs.valued[row] for row in (cheap, dear)} == valued
            await cluster.scheduler.cancel([dear])
            await until_running(cluster, cheap)

    run(scenario())


def test_policy_that_needs_values_is_refused_while_a_job_without_one_lives(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(config(tmp_path)) as cluster:
            (job,) = await cluster.submit(make_spec())
            choice = type(cluster.scheduler.choice).of(dearest(tmp_path)["name"], "{}")
            with pytest.raises(InvalidInput, match="needs the values of completion of all jobs"):
                choice.refuse_living(cluster.core.jobs)
            await cluster.scheduler.cancel([job])

            choice.refuse_living(cluster.core.jobs)

    run(scenario())


def test_explanation_and_dry_run_state_what_the_expected_end_is_worth(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(config(tmp_path)) as cluster, Agent("n0").connected(cluster):
            await cluster.until(lambda: len(cluster.core.pool.node_ids) == 1, "the node is there")
            spec = make_spec(steps=1000.0, completion_value=LINEAR)
            forecaster = Forecaster()
            explainer = Explainer(cluster.scheduler, JobQueries(cluster.scheduler), forecaster)
            (planned,) = await explainer.dry_run([spec], "ann")
            (job,) = await cluster.submit(spec)
            found = await explainer.explain(job)
            forecaster.close()

            worth = 5.0 * (1.0 - planned.forecast.finish_in_s / 100_000.0)
            assert f"its end at the expected time is worth {worth:.4g}, of 5 at submission ({LINEAR})" in planned.note
            assert "the policy max_min_fairness does not use values of completion" in planned.note
            assert any(note.startswith("its end at the expected time is worth 4.99") for note in found.notes)

    run(scenario())


def test_value_is_read_from_a_request_and_shown_in_the_description() -> None:
    given = pb.JobDescription(command="true", steps_total=1.0, completion_value="linear:time_s=100000:worth=5")

    spec = JobReader("ann", (), int).spec("jobs[0]", given)

    assert description_message(spec).completion_value == LINEAR


def test_value_that_means_nothing_is_refused_by_field() -> None:
    with pytest.raises(InvalidInput, match=r"^jobs\[0\]\.completion_value: worth of a completion value must be > 0"):
        JobReader("ann", (), int).spec("jobs[0]", pb.JobDescription(command="true", completion_value="step:time_s=1"))
