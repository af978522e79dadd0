"""Plays interaction scripts: events in, commands out, readable by people.

A script is lines `at TIME EVENT ...`, a line `----`, and the core's commands, each after its time. A `reasons` line
prints why jobs wait; `wakeup-time` prints the core's timer. Jobs are named by id, leases by L and serial.

`python -m tests.mechanism.script --rewrite` accepts the current commands; review the difference before you commit it.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from gavelpy.mechanism.commands import (
    Command,
    EstimateThroughput,
    KillLease,
    QueryAgent,
    Report,
    RoundPlan,
    SolveAllocation,
)
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AgentRejoined,
    AllocationFailed,
    AllocationSolved,
    CheckpointSaved,
    ConfigChanged,
    DirectorySeen,
    Event,
    JobCancelled,
    JobSubmitted,
    LastStepReported,
    LeaseEnded,
    LeaseStarted,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeUnhealthy,
    NodeUnreachable,
    Outcome,
    PriceChanged,
    ProgressReported,
    SavingDeclared,
    SchedulerRestarted,
    ThroughputEstimated,
    WakeupDue,
)
from gavelpy.mechanism.invariants import check
from gavelpy.mechanism.reasons import reasons
from gavelpy.model.job import JobId, JobSpec, NodeId

RULE = "----"
SCRIPTS = Path(__file__).parent / "scripts"


class Player:
    """A core, and the names by which a script refers to its jobs and leases."""

    def __init__(self) -> None:
        self.core = SchedulerCore()
        self.lease_job: dict[int, int] = {}
        self.lease_gpus: dict[int, list[int]] = {}

    def play(self, text: str) -> list[str]:
        """The output lines for a script's input lines."""
        output: list[str] = []
        for line in text.splitlines():
            words = line.split("#")[0].split()
            if not words:
                continue
            assert words[0] == "at", f"a line begins with 'at TIME', got {line!r}"
            now_s, verb, *rest = float(words[1]), words[2], *words[3:]
            output += [f"{now_s:g} {answer}" for answer in self._line(now_s, verb, rest)]
        return output

    def _line(self, now_s: float, verb: str, rest: list[str]) -> list[str]:
        if verb == "reasons":
            specs = self.core.jobs.specs
            return [f"{specs[row].id} waits ({r.kind}): {r.text}" for row, r in sorted(reasons(self.core).items())]
        if verb == "wakeup-time":
            return [f"wakeup at {self.core.wakeup_s:g}"]
        commands = self.core.handle(self._event(verb, rest), now_s)
        check(self.core)
        return [line for command in commands for line in self._shown(command)]

    def _event(self, verb: str, rest: list[str]) -> Event:
        match verb:
            case "node-joined":
                sees = _options(rest).get("sees", "yes") == "yes"
                return NodeJoined(NodeId(rest[0]), rest[1], int(rest[2].removeprefix("x")), sees)
            case "node-lost":
                return NodeLost(NodeId(rest[0]))
            case "node-silent":
                return NodeUnreachable(NodeId(rest[0]))
            case "node-hindered":
                return NodeUnhealthy(NodeId(rest[0]), " ".join(rest[1:]))
            case "directory-seen":
                return DirectorySeen(NodeId(rest[0]), rest[1], "clusters" in rest[2:])
            case "node-draining":
                return NodeDraining(NodeId(rest[0]), "force" in rest[1:])
            case "submit":
                return JobSubmitted(_spec(rest[0], _options(rest[1:])))
            case "cancel":
                return JobCancelled(self._job(rest[0]))
            case "price":
                return PriceChanged(rest[0], float(rest[1]))
            case "config":
                return ConfigChanged(replace(self.core.settings, **_settings(_options(rest))))
            case "wakeup":
                return WakeupDue()
            case "solved":
                return self._solved(rest)
            case "solve-failed":
                return AllocationFailed(self.core.question.open_epoch, " ".join(rest))
            case "estimated":
                jobs, rates = zip(*((self._job(j), _by_type(r)) for j, r in _pairs(rest)), strict=True)
                table = [[r.get(t, float("nan")) for t in self.core.pool.gpu_types] for r in rates]
                return ThroughputEstimated(np.array(jobs), np.array(table))
            case "restarted":
                return SchedulerRestarted(int(rest[0]))
            case _:
                return self._lease_event(verb, rest)

    def _lease_event(self, verb: str, rest: list[str]) -> Event:
        node = NodeId(rest.pop(0)) if verb == "rejoined" else NodeId("")
        leases = [int(word[1:]) for word in rest if word.startswith("L")]
        jobs = np.array([self.lease_job.get(lease, 0) for lease in leases], dtype=np.int64)
        names = np.array(leases, dtype=np.int64)
        steps = np.full(len(leases), float(_options(rest).get("steps", "0")))
        match verb:
            case "started":
                gpus = [self.lease_gpus[lease] for lease in leases]
                offsets = np.cumsum([0, *map(len, gpus)])
                return LeaseStarted(jobs, names, offsets, np.concatenate(gpus))
            case "ended":
                return LeaseEnded(jobs, names, steps, Outcome[rest[-1].upper()])
            case "progress":
                return ProgressReported(jobs, names, steps)
            case "declared":
                return SavingDeclared(jobs, names)
            case "done":
                return LastStepReported(jobs, names)
            case "saved":
                return CheckpointSaved(jobs, names, steps)
            case "rejoined":
                return AgentRejoined(node, jobs, names, steps)
        raise AssertionError(f"no event is called {verb!r}")

    def _solved(self, rest: list[str]) -> AllocationSolved:
        entries = [(self._job(job), _by_type(shares)) for job, shares in _pairs(rest)]
        flat = [(job, self.core.pool.gpu_types.index(t), x) for job, shares in entries for t, x in shares.items()]
        jobs, types, share = zip(*flat, strict=True) if flat else ((), (), ())
        as_ints = (np.array(column, dtype=np.int64) for column in (jobs, types))
        return AllocationSolved(self.core.question.open_epoch, *as_ints, np.array(share, dtype=np.float64))

    def _job(self, name: str) -> int:
        return self.core.jobs.serial_of[JobId(name)]

    def _shown(self, command: Command) -> list[str]:
        specs = self.core.jobs.specs
        match command:
            case SolveAllocation():
                gpus = ", ".join(
                    f"{t}:{n:g}" for t, n in zip(command.problem.gpu_types, command.problem.gpu_counts, strict=True)
                )
                return [f"solve #{command.epoch} for {', '.join(command.problem.job_ids)} on {gpus}"]
            case EstimateThroughput():
                return [f"estimate {', '.join(specs[j].id for j in command.jobs)}"]
            case KillLease():
                return [f"kill L{command.lease} of {specs[command.job].id}"]
            case QueryAgent():
                return [f"query {command.node_id}"]
            case Report():
                return [f"report {command.topic}: {command.text}"]
            case RoundPlan():
                return self._plan(command)

    def _plan(self, plan: RoundPlan) -> list[str]:
        specs, pool = self.core.jobs.specs, self.core.pool
        lines = [f"round {plan.round} until {plan.until_s:g}"]
        extended = zip(plan.extend_jobs.tolist(), plan.extend_leases.tolist(), strict=True)
        lines += [f"  extend L{lease} {specs[job].id}" for job, lease in extended]
        revoked = zip(plan.revoke_jobs.tolist(), plan.revoke_leases.tolist(), strict=True)
        lines += [f"  revoke L{lease} {specs[job].id}" for job, lease in revoked]
        for k, (job, lease) in enumerate(zip(plan.grant_jobs.tolist(), plan.grant_leases.tolist(), strict=True)):
            gpus = plan.grant_gpus[plan.grant_gpu_offsets[k] : plan.grant_gpu_offsets[k + 1]].tolist()
            self.lease_job[lease], self.lease_gpus[lease] = job, gpus
            places = [
                f"{pool.node_ids[pool.node_of[g]]}/{g - np.argmax(pool.node_of == pool.node_of[g])}" for g in gpus
            ]
            lines.append(f"  grant L{lease} {specs[job].id} on {' '.join(places)}")
        return lines


def split(text: str) -> tuple[str, str]:
    """Input and expected output of a script."""
    given, _, expected = text.partition(f"{RULE}\n")
    return given, expected


def main() -> None:
    """Plays all scripts; with --rewrite, accepts their current output."""
    for path in sorted(SCRIPTS.glob("*.txt")):
        given, expected = split(path.read_text())
        found = "\n".join(Player().play(given)) + "\n"
        if found != expected and "--rewrite" in sys.argv:
            path.write_text(f"{given}{RULE}\n{found}")
        sys.stdout.write(f"{'same' if found == expected else 'differs'}  {path.name}\n")


def _options(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def _pairs(words: list[str]) -> list[tuple[str, str]]:
    return [(job, values) for job, _, values in (word.partition("=") for word in words)]


def _by_type(text: str) -> dict[str, float]:
    return {t: float(x) for t, _, x in (part.partition(":") for part in text.split(",") if part)}


def _spec(name: str, options: dict[str, str]) -> JobSpec:
    return JobSpec(
        id=JobId(name),
        steps_total=float(options.get("steps", "1e6")),
        gpus=int(options.get("gpus", "1")),
        weight=float(options.get("weight", "1")),
        job_type=options.get("type", ""),
        rates_steps_per_s=_by_type(options.get("rate", "")),
        preemptible=options.get("preemptible") == "yes",
    )


def _settings(options: dict[str, str]) -> dict[str, object]:
    words: dict[str, object] = {"yes": True, "no": False}
    return {name: words[value] if value in words else float(value) for name, value in options.items()}


if __name__ == "__main__":
    main()
