"""Solves and estimates for the core, in the engine's process. The engine, its solver and the learner stay in memory."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import compress
from operator import not_

from gavelpy.engine import Engine
from gavelpy.estimator.isolated import IsolatedModel
from gavelpy.estimator.learning_loop import Learner, LearnRates
from gavelpy.estimator.online import ThroughputEstimator
from gavelpy.mechanism.commands import EstimateThroughput, SolveAllocation
from gavelpy.model.problem import BlindView
from gavelpy.runtime.daemon.engine.engine_process import Answer, Question
from gavelpy.runtime.daemon.engine.policy_choice import EstimationChoice, PolicyChoice
from gavelpy.runtime.daemon.engine.throughput_files import NO_TABLE, believable_table, read_model
from gavelpy.solve.solver import Solver


@dataclass(eq=False)
class _Loaded:
    """The engine that was used last."""

    choice: PolicyChoice
    engine: Engine
    learner: Learner | None
    fit: BackgroundFit | None = None


_loaded: list[_Loaded] = []  # one at most


def prepare(choice: PolicyChoice, estimation: EstimationChoice) -> None:
    """Loads the engine before the first request, which then takes less time."""
    _load(choice, estimation)


def answer(
    choice: PolicyChoice, estimation: EstimationChoice, question: Question
) -> tuple[Answer, dict[str, float], dict[tuple[str, str], float]]:
    """The answer to a request, and the shadow prices after it, of GPUs and of other resources."""
    loaded = _load(choice, estimation)
    engine, learner = loaded.engine, loaded.learner
    match question:
        case SolveAllocation():
            found: Answer = engine.solve(question)
        case EstimateThroughput():
            found = engine.estimate(question)
            if learner is not None:
                entries = zip(question.jobs.tolist(), question.gpus.tolist(), strict=True)
                claimed = [each is not None and bool(each.rates_steps_per_s) for each in question.several]
                learner.guessed(compress(entries, map(not_, claimed)) if claimed else entries)
        case LearnRates():
            assert learner is not None, "LearnRates requires an estimator"
            if loaded.fit is not None:
                loaded.fit.advance()
            found = learner.learn(question)
    return found, engine.shadow_prices, engine.resource_prices


def _load(choice: PolicyChoice, estimation: EstimationChoice) -> _Loaded:
    """The engine for this policy: the last one if only the policy has changed, so that measurements are kept."""
    last = _loaded[0] if _loaded else None
    if last is None or _table(last.choice) != _table(choice):
        _loaded[:] = [_new(choice, estimation)]
    elif last.choice != choice:
        last.engine = replace(
            last.engine,
            policy=choice.policy,
            blind=_blind(choice),
            solver=Solver(),
            shadow_prices={},
            resource_prices={},
        )
        last.choice = choice
    return _loaded[0]


def _new(choice: PolicyChoice, estimation: EstimationChoice) -> _Loaded:
    throughputs = believable_table(choice.throughputs_file).table if choice.throughputs_file else None
    if not estimation.is_on:
        return _Loaded(choice, Engine(choice.policy, _blind(choice), throughputs), None)
    known = throughputs or NO_TABLE
    estimator = ThroughputEstimator(known, read_model(estimation.model_file, known))
    engine = Engine(
        choice.policy, _blind(choice), throughputs, estimator=estimator,
        profile_budget_s=estimation.profile_gpu_s, profile_probe_s=estimation.probe_s,
    )  # fmt: skip
    learner = Learner(estimator)
    return _Loaded(choice, engine, learner, None if estimation.model_file else BackgroundFit(learner))


class BackgroundFit:
    """Fits the estimator's model to its table in a thread, whenever the table has grown by a quarter."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._fit: Future[IsolatedModel] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fit")

    def advance(self) -> None:
        """Adopts a fitted model; starts another fit when one is due."""
        if self._fit is not None:
            if not self._fit.done():
                return
            self._learner.adopt(self._fit.result())
            self._fit = None
        table = self._learner.table_to_fit()
        if table is not None:
            roofline = self._learner.estimator.model.isolated.roofline
            self._fit = self._thread.submit(IsolatedModel(roofline=roofline).fitted, table)

    def wait(self) -> None:
        """Waits for a running fit."""
        if self._fit is not None:
            self._fit.result()


def _table(choice: PolicyChoice) -> tuple[str, int]:
    return choice.throughputs_file, choice.throughputs_version


def _blind(choice: PolicyChoice) -> BlindView | None:
    return BlindView(choice.blind) if choice.blind else None
