"""The process that solves and estimates for the core: `python -m gavelpy.runtime.daemon.engine.engine_worker`.

Requests arrive on standard input, answers leave on the original standard output, as length-prefixed pickles; the peer
is the scheduler that started this process. Output of a policy goes to standard error. It ends with its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from dataclasses import replace
from typing import BinaryIO

from gavelpy.engine import Engine
from gavelpy.mechanism.commands import EstimateThroughput, SolveAllocation
from gavelpy.model.problem import BlindView
from gavelpy.model.throughput import ThroughputTable
from gavelpy.runtime.daemon.engine.learner import Learner
from gavelpy.runtime.daemon.engine.measuring import EstimationChoice, LearnRates
from gavelpy.runtime.daemon.engine.pipe_messages import read_message, write_message
from gavelpy.runtime.daemon.engine.policy_choice import PolicyChoice
from gavelpy.runtime.daemon.engine.throughput_files import NO_TABLE, believable_table, read_model
from gavelpy.solve.solver import Solver

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serves until standard input or the reader of standard output closes."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):  # for the parent, which ends this process itself
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError), os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        serve(sys.stdin.buffer, answers)


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers requests in order, with a solver that stays warm."""
    engine: Engine | None = None
    learner: Learner | None = None
    table = ("", 0)  # file and version of the table that the engine has read
    estimation = EstimationChoice()
    while (request := read_message(requests)) is not None:
        match request:
            case EstimationChoice():
                estimation = request
            case PolicyChoice():
                if engine is not None and (request.throughputs_file, request.throughputs_version) == table:
                    engine = _changed(engine, request)
                else:
                    engine = _engine(request, estimation)
                    learner = None
                    if engine.estimator is not None:
                        learner = Learner(engine.estimator, fits=not estimation.model_file)
                table = request.throughputs_file, request.throughputs_version
            case SolveAllocation():
                assert engine is not None, "the policy is sent before the first request"
                write_message(answers, (engine.solve(request), engine.shadow_prices))
            case EstimateThroughput():
                assert engine is not None, "the policy is sent before the first request"
                write_message(answers, (engine.estimate(request), engine.shadow_prices))
                if learner is not None:
                    learner.guessed(request.jobs.tolist())
            case LearnRates():
                assert engine is not None, "the policy is sent before the first request"
                assert learner is not None, "LearnRates requires an estimator"
                write_message(answers, (learner.learn(request), engine.shadow_prices))
            case _:
                raise AssertionError(f"not a request: {request!r}")


def _engine(choice: PolicyChoice, estimation: EstimationChoice) -> Engine:
    policy, throughputs = choice.policy, _throughputs(choice.throughputs_file)
    if not estimation.is_on:
        return Engine(policy, _blind(choice), throughputs)
    from gavelpy.estimator.online import ThroughputEstimator

    known = throughputs or NO_TABLE
    estimator = ThroughputEstimator(known, read_model(estimation.model_file, known))
    return Engine(
        policy, _blind(choice), throughputs, estimator=estimator,
        profile_budget_s=estimation.profile_gpu_s, profile_probe_s=estimation.probe_s,
    )  # fmt: skip


def _changed(engine: Engine, choice: PolicyChoice) -> Engine:
    """The engine with another policy and the same rates."""
    return replace(engine, policy=choice.policy, blind=_blind(choice), solver=Solver(), shadow_prices={})


def _blind(choice: PolicyChoice) -> BlindView | None:
    return BlindView(choice.blind) if choice.blind else None


def _throughputs(path: str) -> ThroughputTable | None:
    return believable_table(path).table if path else None


if __name__ == "__main__":
    main()
