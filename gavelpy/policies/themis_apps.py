"""Apps in Themis' auctions: the jobs of a hyper-parameter search bid, wait and finish as one; other jobs alone.

    T_a      max(max_j s_j / r̄_j,  (u_a + Σ_j g_j s_j / r̄_j) / P),  the time of the app alone on P = W / n GPUs, n apps
    L_a(G)   max(max_j n_j / r_j,  Σ_j (g_j n_j / r_j) / |G|),  the time that its jobs still need on |G| GPUs
    ρ_a(G)   (a_a + L_a(G)) / T_a

s_j, n_j are the steps of job j in all, and those that remain; g_j its GPUs, r_j its rate on them, r̄_j that with its
time spread over all types as the GPUs are; a_a the age of the app. Both maxima are the least time in which jobs that
take turns can all finish: none runs on more than its own GPUs, and all work is done. u_a is the GPU time of the work
that jobs did which have finished, or have lost and were ended: the app alone would have done it too. An app of one job
has the T and ρ of that job.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import equal_share_rate
from gavelpy.policies.finish_time_fairness import isolated_s, steps_in_all


class ThemisApps:
    """The apps of a problem, in order of their first jobs, of the jobs that can run."""

    def __init__(self, problem: AllocationProblem, before: dict[str, Any]) -> None:
        """`before`: what `kept` returned for the problem before."""
        self._problem = problem
        members: dict[int, list[int]] = {}
        for job, app in enumerate(problem.app.tolist()):
            if problem.can_run[job]:
                members.setdefault(app if app >= 0 else len(problem.apps) + job, []).append(job)
        self.members: list[list[int]] = list(members.values())
        self.names = [problem.apps[key] if key < len(problem.apps) else "" for key in members]
        rate = equal_share_rate(problem)
        self._solo_left_s = problem.steps_remaining / rate
        solo_s = steps_in_all(problem) / rate
        self._done_gpu_s = problem.gpus_asked * np.maximum(solo_s - self._solo_left_s, 0.0)
        part = problem.gpu_counts.sum() / max(len(self.members), 1)
        self._gone = {name: self._gone_gpu_s(jobs, before.get(name)) for name, jobs in self._named()}
        gone = [self._gone.get(name, 0.0) for name in self.names]
        self.alone_s = self._times(solo_s, np.array(gone), part)  # (A,) T
        if not len(problem.apps):
            self.alone_s = isolated_s(problem)[[jobs[0] for jobs in self.members]]
        self.age_s = np.array([problem.age_s[jobs].max() for jobs in self.members])
        left_s = self._times(self._solo_left_s, np.zeros(len(gone)), part)
        self.ratio: Floats = (self.age_s + left_s) / self.alone_s  # (A,) ρ on the app's part

    def _named(self) -> list[tuple[str, list[int]]]:
        return [(name, jobs) for name, jobs in zip(self.names, self.members, strict=True) if name]

    def _times(self, solo_s: Floats, gone_gpu_s: Floats, part: float) -> Floats:
        """The least time in which each app does work that takes its jobs (J,) so long alone, on `part` GPUs, (A,)."""
        gpu_s = solo_s * self._problem.gpus_asked
        return np.array(
            [
                max(solo_s[jobs].max(), (gone + gpu_s[jobs].sum()) / part if part else 0.0)
                for jobs, gone in zip(self.members, gone_gpu_s.tolist(), strict=True)
            ]
        )

    def _gone_gpu_s(self, jobs: list[int], before: list[Any] | None) -> float:
        """The work of the jobs that were there before and have left, as far as it was seen."""
        gone, seen = before or (0.0, {})
        here = {self._problem.job_ids[job] for job in jobs}
        return float(gone) + sum(float(work) for job, work in seen.items() if job not in here)

    def kept(self) -> dict[str, list[Any]]:
        """By app: the work of jobs that have left, and that of each job so far, in GPU-seconds."""
        ids, done = self._problem.job_ids, self._done_gpu_s
        return {name: [self._gone[name], {ids[job]: float(done[job]) for job in jobs}] for name, jobs in self._named()}
