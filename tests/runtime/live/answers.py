"""The answers of a policy in a scheduler's journal, computed again from the problems that the journal implies.

A core applies the recorded events, so its requests are those that the scheduler sent. An engine that is never restarted
answers them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from gavelpy.engine import Engine
from gavelpy.journal.recording import Recording
from gavelpy.mechanism.commands import RoundPlan, SolveAllocation
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import AllocationFailed, AllocationSolved, LeaseStarted, SchedulerRestarted
from gavelpy.runtime.daemon.engine.policy_choice import PolicyChoice


@dataclass(frozen=True, eq=False)
class Repeated:
    """What the journal has and what a repetition found."""

    answers: list[tuple[int, AllocationSolved, AllocationSolved | AllocationFailed]]  # incarnation, recorded, repeated
    started: dict[int, tuple[int, ...]]  # GPUs by lease, from the reports of nodes
    granted: dict[int, tuple[int, ...]]  # the same from the plans of the repetition

    @property
    def other_answers(self) -> list[str]:
        """Complaints about fields of answers that differ."""
        return [
            f"epoch {recorded.epoch} of incarnation {incarnation}: {name} was {old!r}, is {new!r}"
            for incarnation, recorded, repeated in self.answers
            for name, old, new in _differences(recorded, repeated)
        ]

    @property
    def other_leases(self) -> list[str]:
        """Complaints about leases that started and that the repetition grants differently."""
        return [
            f"lease {lease} on GPUs {gpus}, granted {self.granted.get(lease)}"
            for lease, gpus in self.started.items()
            if self.granted.get(lease) != gpus
        ]

    def incarnations(self) -> list[int]:
        """The incarnation of the scheduler that recorded each answer."""
        return [incarnation for incarnation, _, _ in self.answers]


def repeat(recording: Recording, choice: PolicyChoice) -> Repeated:
    """Replays a whole journal of a scheduler without estimates and without changes of its policy."""
    assert recording.core is None, "the journal must have all its events"
    core, incarnation, engine = SchedulerCore(), 0, None
    requests: dict[int, SolveAllocation] = {}
    found = Repeated([], {}, {})
    for now_s, event in recording.events:
        match event:
            case AllocationSolved():
                engine = engine or Engine(choice.within(core.settings).policy)
                found.answers.append((incarnation, event, engine.solve(requests.pop(event.epoch))))
            case SchedulerRestarted():
                incarnation += 1
            case LeaseStarted():
                found.started.update(_gpus_of(event.leases, event.gpu_offsets, event.gpus))
            case _:
                pass
        for command in core.handle(event, now_s):
            match command:
                case SolveAllocation():
                    requests[command.epoch] = command
                case RoundPlan():
                    granted = _gpus_of(command.grant_leases, command.grant_gpu_offsets, command.grant_gpus)
                    found.granted.update(granted)
                case _:
                    pass
    return found


def _gpus_of(leases: Any, offsets: Any, gpus: Any) -> dict[int, tuple[int, ...]]:  # Any: Ints of events and commands
    return {
        lease: tuple(gpus[offsets[k] : offsets[k + 1]].tolist()) for k, lease in enumerate(np.asarray(leases).tolist())
    }


def _differences(one: AllocationSolved, other: object) -> list[tuple[str, Any, Any]]:
    if not isinstance(other, AllocationSolved):
        return [("the answer", one, other)]
    pairs = [(field.name, getattr(one, field.name), getattr(other, field.name)) for field in fields(one)]
    return [
        (name, old, new)
        for name, old, new in pairs
        if not (np.array_equal(old, new) if isinstance(old, np.ndarray) else old == new)
    ]
