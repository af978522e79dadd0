"""Every registered policy on three agents with six jobs, while its scheduler is killed between two of its answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from gavelpy.journal.recording import read_recording
from gavelpy.policies.base import Policy, ProblemInput, policy_named, registered, uses_of
from gavelpy.runtime.daemon.engine.policy_choice import PolicyChoice
from gavelpy.runtime.local_cluster import SCHEDULER, LocalNode
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live import evidence
from tests.runtime.live.answers import repeat
from tests.runtime.live.stage import Stage, StartStage

NODES = [
    LocalNode("n0", "v100:2", cpus=8.0, memory_gib=16.0),
    LocalNode("n1", "v100:1", cpus=4.0, memory_gib=8.0),
    LocalNode("n2", "k80:1", cpus=4.0, memory_gib=8.0),
]
RATES = {"v100": 40.0, "k80": 20.0}
STEPS = 240.0
GANG = 2  # GPUs of the last job
# Slots and leases of minutes by default, while the jobs take seconds. Other policies have their defaults.
PARAMETERS: Mapping[str, Mapping[str, float]] = {
    "elasticflow": {"slot_s": 4.0},
    "oasis": {"slot_s": 4.0},
    "themis": {"lease_s": 6.0},
}


def requests(policy: Policy, k: int) -> dict[str, Any]:  # Any: fields of JobDescription
    """What job k requests of the inputs that the policy uses."""
    both = {2: pb.Rates(rates_steps_per_s={gpu_type: 1.8 * rate for gpu_type, rate in RATES.items()})}
    given: dict[ProblemInput, dict[str, Any]] = {
        ProblemInput.WEIGHT: {"weight": 1.0 + k % 2},
        ProblemInput.ENTITY: {"entity": "xy"[k % 2]},
        ProblemInput.DEADLINE: {"deadline_s": 300.0 + 60.0 * k},
        ProblemInput.COMPLETION_VALUE: {"completion_value": "linear:worth=5:time_s=600"},
        ProblemInput.RESOURCES: {"cpus_per_gpu": 1.0 + k % 3, "memory_gib_per_gpu": 2.0},
        ProblemInput.SIZES: {"sizes": [1, 2], "rates_by_size": both} if k == 0 else {},
    }
    uses = uses_of(policy) or frozenset()
    return {name: value for each, fields in given.items() if each in uses for name, value in fields.items()}


def answers_in(stage: Stage) -> int:
    """Answers of the policy in the journal so far."""
    journal = next(stage.cluster.directory.rglob("journal.sqlite"))
    return sum(type(event).__name__ == "AllocationSolved" for _, event in read_recording(journal).events)


@pytest.mark.slow
@pytest.mark.parametrize("name", registered())
def test_six_jobs_end_and_answers_are_the_same_after_the_scheduler_is_killed(start: StartStage, name: str) -> None:
    parameters = PARAMETERS.get(name, {})
    settings = {
        "policy": {"name": name},
        "policy.parameters": parameters,
        "mechanism": {"round_s": 2.0},
        "throughputs": {"estimate": False},
    }
    policy, stage = policy_named(name, **parameters), start(*NODES, settings=settings)

    jobs = [
        stage.submit_witness(f"j{k}", STEPS, RATES, GANG if k == 5 else 1, preemptible=True, **requests(policy, k))
        for k in range(6)
    ]
    stage.wait(lambda: answers_in(stage) >= 2 and stage.job(jobs[0]).steps_saved > 0, "two answers and a checkpoint")
    stage.cluster.kill(SCHEDULER)
    stage.cluster.start_scheduler()
    stage.wait_over(*jobs)
    recording = read_recording(next(stage.cluster.directory.rglob("journal.sqlite")))
    repeated = repeat(recording, PolicyChoice.of(name, json.dumps(parameters)))

    lines = evidence.read(stage.witnessed)
    assert [stage.job(job).state for job in jobs] == [pb.JOB_STATE_FINISHED] * 6
    assert [stage.job(job).steps_done for job in jobs] == [STEPS] * 6
    assert evidence.double_gpus(evidence.stays(lines)) + evidence.double_jobs(evidence.stays(lines)) == []
    assert evidence.lost_steps(lines) == []
    assert set(repeated.incarnations()) == {1, 2}, "answers before the end of the first scheduler, and after it"
    assert repeated.other_answers == []
    assert len(repeated.started) >= len(jobs)
    assert repeated.other_leases == []
