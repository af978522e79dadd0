"""The engine in its own process: answers, changes of the policy, and timeouts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gavelpy.engine import Engine
from gavelpy.errors import InvalidInput
from gavelpy.estimator.learning_loop import KnownJob, LearnRates, MeasuredJob, RatesLearned
from gavelpy.mechanism.commands import EstimateThroughput, SolveAllocation
from gavelpy.mechanism.events import AllocationFailed, AllocationSolved, ThroughputEstimated
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.policies.base import planned_over_rounds, policy_named
from gavelpy.policies.min_cost import MinCost
from gavelpy.runtime.daemon.engine.engine_process import Answer, EngineProcess, Question
from gavelpy.runtime.daemon.engine.policy_choice import TURN_S, EstimationChoice, PolicyChoice
from tests.mechanism.builders import make_core, make_spec, questions, wake

FASTER = {"v100": 2.0, "k80": 1.0}


def make_question() -> SolveAllocation:
    """A request about three jobs and two types."""
    core = make_core(*(make_spec(f"j{i}", rates=FASTER) for i in range(3)), servers=(("v100", 1), ("k80", 1)))
    return questions(wake(core))[0]


def answers(process: EngineProcess, heard: list[Answer], *asked: Question) -> list[Answer]:
    """The answers of the process to requests, one after the other."""

    async def scenario() -> None:
        running = asyncio.create_task(process.run())
        for count, question in enumerate(asked, 1):
            process.ask(question)
            while len(heard) < count:
                assert not running.done(), "the engine is at work"
                await asyncio.sleep(0.01)
        process.stop()
        await running

    asyncio.run(asyncio.wait_for(scenario(), 120.0))
    return heard


def make_process(choice: PolicyChoice, timeout_s: float = 60.0) -> tuple[EngineProcess, list[Answer]]:
    heard: list[Answer] = []
    return EngineProcess(choice, lambda answer, seconds: heard.append(answer), timeout_s=timeout_s), heard


def shares(answer: Answer) -> Sequence[tuple[int, int, float]]:
    assert isinstance(answer, AllocationSolved)
    return list(zip(answer.jobs.tolist(), answer.gpu_type.tolist(), answer.share.tolist(), strict=True))


def test_it_answers_as_an_engine_in_this_process_would() -> None:
    question = make_question()
    process, heard = make_process(PolicyChoice.of("max_min_fairness", "{}"))

    (answer,) = answers(process, heard, question)

    assert shares(answer) == shares(Engine(policy_named("max_min_fairness")).solve(question))


def test_a_policy_that_was_changed_answers_the_next_question() -> None:
    process, heard = make_process(PolicyChoice.of("max_min_fairness", "{}"))
    fifo = process.choice.changed("fifo", "")
    process.change(fifo)

    (answer,) = answers(process, heard, make_question())

    assert shares(answer) == shares(Engine(policy_named("fifo")).solve(make_question()))


def test_deadlines_are_planned_with_a_round_and_a_start_of_slack() -> None:
    """Job a needs 600 of 1000 s: feasible with exact shares, but not with rounds of 360 s."""
    specs = [make_spec("a", steps=6000.0, deadline_s=1000.0), make_spec("b", rates={"v100": 99.0})]
    question = questions(wake(make_core(*specs)))[0]
    process, heard = make_process(PolicyChoice.of("min_cost", '{"deadlines": 1}'))
    process.plan_within(MechanismSettings(round_s=360.0, move_lag_s=40.0))
    process.change(PolicyChoice.of("min_cost", '{"deadlines": 1}'))

    (answer,) = answers(process, heard, question)

    exact = policy_named("min_cost", deadlines=1)
    assert shares(Engine(exact).solve(question))[0] == (0, 0, pytest.approx(0.6))
    assert shares(answer) == shares(Engine(planned_over_rounds(exact, 360.0, TURN_S, 40.0)).solve(question))
    assert shares(answer)[0] == (0, 0, pytest.approx(1.0))
    assert process.choice.policy == MinCost(deadlines=True, slack_s=360.0 + TURN_S + 40.0, work=1.0 - TURN_S / 360.0)


def test_a_question_that_takes_too_long_fails_after_a_second_try() -> None:
    process, heard = make_process(PolicyChoice.of("max_min_fairness", "{}"), timeout_s=1e-4)

    (answer,) = answers(process, heard, make_question())

    assert isinstance(answer, AllocationFailed)
    assert answer.detail == "the engine failed: no answer within 0.0001 s"
    assert process.restarts >= 1


def test_rates_come_from_the_file_of_throughputs(tmp_path: Path) -> None:
    table = tmp_path / "rates.csv"
    table.write_text("job_type,gpus,gpu_type,rate_steps_per_s,provenance,source\nlstm,1,v100,7.5,measured,here\n")
    process, heard = make_process(PolicyChoice.of("fifo", "{}", throughputs_file=str(table)))

    (answer,) = answers(process, heard, EstimateThroughput(np.array([0]), ("lstm",), np.array([1]), ("v100", "k80")))

    assert isinstance(answer, ThroughputEstimated)
    assert answer.rates_steps_per_s[0, 0] == 7.5
    assert np.isnan(answer.rates_steps_per_s[0, 1])


def test_what_jobs_have_shown_is_kept_when_the_policy_changes() -> None:
    heard: list[Answer] = []

    def answered(answer: Answer, _: float) -> None:
        heard.append(answer)
        process.change(process.choice.changed("fifo", ""))

    choice = PolicyChoice.of("max_min_fairness", "{}")
    process = EngineProcess(choice, answered, estimation=EstimationChoice(is_on=True))
    job = KnownJob(0, "lstm", 1)
    seen = LearnRates((MeasuredJob(job, "v100", 40.0, 10.0),) * 5, (job,), ("v100", "k80"))
    rates = EstimateThroughput(np.array([1]), ("lstm",), np.array([1]), ("v100", "k80"))

    learned, answer = answers(process, heard, seen, rates)

    assert isinstance(learned, RatesLearned)
    assert isinstance(answer, ThroughputEstimated)
    assert learned.rates_steps_per_s[0, 0] == answer.rates_steps_per_s[0, 0] == pytest.approx(40.0, rel=0.05)
    assert np.isfinite(answer.rates_steps_per_s[0, 1])


@pytest.mark.parametrize(
    ("name", "parameters", "complaint"),
    [
        ("nonsense", "", "policy must be one of"),
        ("fifo", "[]", "policy_parameters must be a JSON object"),
        ("fifo", "{", "policy_parameters must be JSON"),
        ("fifo", '{"colour": 1}', "policy 'fifo' has no parameter 'colour'; its parameters are packing_threshold"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(name: str, parameters: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        PolicyChoice.of("max_min_fairness", "{}").changed(name, parameters)
