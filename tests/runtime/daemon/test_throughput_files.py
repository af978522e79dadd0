"""The files from which the engine's estimator starts."""

from __future__ import annotations

from gavelpy.estimator.isolated import IsolatedModel
from gavelpy.estimator.roofline import Roofline
from gavelpy.mechanism.commands import RequestedSize
from gavelpy.runtime.daemon.engine.throughput_files import rates_again, read_model
from gavelpy.traces.workloads import gpu_specs, job_types
from tests.estimator.tables import make_table
from tests.mechanism.builders import make_core, make_spec

SHIPPED = Roofline(job_types(), gpu_specs())
KEY = ("GPT-350M (batch size 8)", 1)


def test_without_a_table_the_shipped_roofline_stays_as_it_is() -> None:
    assert read_model("").isolated == IsolatedModel(roofline=SHIPPED)


def test_a_schedulers_own_table_calibrates_the_roofline_for_job_types_that_are_not_in_it() -> None:
    rates = {KEY: {"a100": 1.0, "h100": 2.0}, ("GPT-350M (batch size 16)", 1): {"a100": 0.5, "h100": 1.0}}
    table = make_table(rates, ("a100", "h100"))

    found = read_model("", table).isolated.roofline
    kin = [("GPT-774M (batch size 8)", 1)]

    assert found == SHIPPED.calibrated(table)
    assert found.log_rate(kin, ["a100"]) < SHIPPED.log_rate(kin, ["a100"])


def test_rates_are_requested_again_for_each_size_that_was_submitted_without_any() -> None:
    rates = {2: {"v100": 18.0}}
    jobs = [make_spec("a", sizes=(1, 2, 4), rates_by_size=rates), make_spec("b", rates={}, gpus=2), make_spec("c")]
    core = make_core(*jobs, servers=[("v100", 4)])

    asked = rates_again(core)

    assert list(zip(asked.jobs.tolist(), asked.gpus.tolist(), strict=True)) == [(0, 4), (1, 2)]
    assert asked.several == (RequestedSize(1, {"v100": 10.0}), None)
