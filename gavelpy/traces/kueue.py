"""Kueue's workloads, as `kubectl get workloads.kueue.x-k8s.io --all-namespaces -o json` prints them.

The file is a list, or one Workload. Each becomes a job: GPUs = pods x GPUs of a pod's containers (any resource whose
name ends in /gpu), of the flavor that its admission names; submitted at creationTimestamp; it ran from its last
admission (condition Admitted, else QuotaReserved) to the condition Finished. namespace → owner, clusterQueue (else
queueName) → entity.

Workloads without GPUs, with several flavors, not admitted or not finished are left out and counted. Kueue keeps only
the last transition of a condition, so that runs before an eviction are not known; such workloads are counted as
`requeued`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from gavelpy.errors import InvalidInput
from gavelpy.model.job import GPUS_MAX, Trace
from gavelpy.traces.durations import JobRow, PastJobs, gpu_type_named, known_types, trace_of
from gavelpy.traces.formats import ReadOptions
from gavelpy.traces.json_stream import Element, json_elements
from gavelpy.traces.source import Head, TraceFile
from gavelpy.traces.times import Clock

_KIND = re.compile(r'"kind"\s*:\s*"Workload"')
_EMPTY_LIST = re.compile(r'\{(?=.*"kind"\s*:\s*"(?:Workload)?List").*"items"\s*:\s*\[\s*\]', re.DOTALL)
_CONDITION = ("QuotaReserved", "Admitted", "PodsReady", "Finished", "Evicted", "Preempted")
_Object = Mapping[str, Any]  # Any: JSON values


class KueueReader:
    """Reads a list of workloads, or one."""

    name: ClassVar[str] = "kueue"
    title: ClassVar[str] = "Kueue: kubectl get workloads --all-namespaces -o json"

    def matches(self, head: Head) -> bool:
        """Whether the file has workloads of Kueue, or is a list of Kubernetes without items."""
        text = head.text.lstrip()
        is_of_kueue = text.startswith("{") and "kueue.x-k8s.io" in text and bool(_KIND.search(text))
        return is_of_kueue or _EMPTY_LIST.match(text) is not None

    def read(self, path: Path, options: ReadOptions) -> Trace:
        """The trace."""
        source = TraceFile(path)
        history = PastJobs(source.file)
        known, clock = known_types(options), Clock("UTC")
        is_empty = True
        for element in json_elements(source, "items", takes_one=True):
            is_empty = False
            _add(_Workload(element, clock), history, known)
        if is_empty:
            raise InvalidInput("items must be workloads, got []: the file holds no workloads", file=source.file)
        return trace_of(history, self.name, source, options)


class _Workload:
    """One item, checked as it is read."""

    def __init__(self, element: Element, clock: Clock) -> None:
        self.element, self.clock = element, clock
        self.item = element.mapping("item", element.value)
        element.place.choice("kind", element.text(self.item, "kind"), ("Workload",))
        self.metadata, self.spec = self.part(self.item, "metadata"), self.part(self.item, "spec")
        self.status: _Object = self.part(self.item, "status") if "status" in self.item else {}

    def part(self, of: _Object, name: str) -> _Object:
        """The object at `name`."""
        return self.element.mapping(name, of.get(name))

    def time(self, of: _Object, name: str) -> float:
        """The time at `name`, in Unix seconds."""
        return self.clock.seconds(name, self.element.text(of, name), self.element.place)

    @property
    def conditions(self) -> dict[str, tuple[bool, float]]:
        """Whether each condition holds, and since when."""
        found: dict[str, tuple[bool, float]] = {}
        for entry in self.element.sequence("conditions", self.status.get("conditions", [])):
            one = self.element.mapping("conditions", entry)
            kind = self.element.text(one, "type")
            status = self.element.place.choice("status", self.element.text(one, "status"), ("True", "False", "Unknown"))
            if kind in _CONDITION:
                found[kind] = status == "True", self.time(one, "lastTransitionTime")
        return found

    @property
    def gpus(self) -> int:
        """GPUs of all pods."""
        return sum(
            self.whole("count", pod_set.get("count", 1)) * self._gpus_of_pod(pod_set) for pod_set in self._pod_sets()
        )

    def _pod_sets(self) -> Iterator[_Object]:
        for entry in self.element.sequence("podSets", self.spec.get("podSets")):
            yield self.element.mapping("podSets", entry)

    def _gpus_of_pod(self, pod_set: _Object) -> int:
        pod = self.part(self.part(pod_set, "template"), "spec")
        total = 0
        for entry in self.element.sequence("containers", pod.get("containers")):
            resources = self.element.mapping("containers", entry).get("resources") or {}
            asked = self.element.mapping("resources", resources)
            amounts = {**(asked.get("limits") or {}), **(asked.get("requests") or {})}
            total += sum(self.whole(name, value) for name, value in amounts.items() if name.endswith("/gpu"))
        return total

    def whole(self, field: str, value: object) -> int:
        """A whole number, which Kubernetes writes as text or as a number."""
        return self.element.place.whole(field, str(value), 0, GPUS_MAX)

    @property
    def flavors(self) -> tuple[str, ...]:
        """Flavors of the GPUs that the admission assigned."""
        admission = self.element.mapping("admission", self.status.get("admission") or {})
        found: list[str] = []
        for entry in self.element.sequence("podSetAssignments", admission.get("podSetAssignments", [])):
            flavors = self.element.mapping("podSetAssignments", entry).get("flavors") or {}
            named = self.element.mapping("flavors", flavors)
            found += [self.element.text(named, name) for name in named if name.endswith("/gpu")]
        return tuple(dict.fromkeys(found))

    @property
    def queue(self) -> str:
        """The cluster queue that admitted it, else the queue to which it was submitted."""
        admission = self.status.get("admission") or {}
        return str(admission.get("clusterQueue") or self.spec.get("queueName") or "")


def _add(workload: _Workload, history: PastJobs, known: tuple[str, ...]) -> None:
    place, conditions = workload.element.place, workload.conditions
    submitted_s = workload.time(workload.metadata, "creationTimestamp")
    gpus, flavors = workload.gpus, workload.flavors
    _, begun_s = conditions.get("Admitted") or conditions.get("QuotaReserved") or (False, 0.0)
    is_over, ended_s = conditions.get("Finished", (False, 0.0))
    if not begun_s or not is_over:
        history.left_out["not admitted, or not finished"] += 1
        return
    if len(flavors) > 1:
        history.left_out["GPUs of several flavors"] += 1
        return
    if ended_s < begun_s:
        raise place.error("lastTransitionTime of Finished", "after that of Admitted", f"{begun_s - ended_s:g} s before")
    if "Evicted" in conditions:
        history.notes["requeued"] = history.notes.get("requeued", 0) + 1
    namespace, name = (workload.element.text(workload.metadata, key) for key in ("namespace", "name"))
    history.add(
        JobRow(
            f"{namespace}/{name}",
            submitted_s,
            ended_s - begun_s,
            gpus,
            place.line,
            gpu_type=gpu_type_named(flavors[0], known) if flavors else "",
            owner=namespace,
            entity=workload.queue,
        )
    )
