"""Versions of journal records: the lowest that can express each event, job and setting, and what older ones lack."""

from __future__ import annotations

VERSION = 2
PACKED = 3  # co-located pairs
GUARDED = 4  # settings: lease protection, and back-off of failing jobs
FORGIVING = 5  # settings: free retries of starts that nodes lost, and patience for slow starts
NAMED = 5  # the state id of a node's agent, and unhealthy nodes
SAVING = 6  # settings: longer leases of unsaved jobs; declared checkpoints; forced drains
LATE = 6  # settings: late ends and finishing jobs; reports of last steps
FORGOTTEN = 6  # a lost node that an operator has removed
AGEING = 6  # settings: the longest time between allocations
UNRUNNABLE = 6  # the end of a lease with a command that cannot run
SEEN = 6  # the checkpoint directory that a node uses
WARNED = 6  # an allocation with a warning
ORDERED = 7  # holds and begins of jobs; jobs that announce their steps
CLASSED = 7  # the class of a failed lease; settings: how many failures of the system a job may have
RANKED = 8  # priority classes: of jobs, and in the settings
PLACED = 8  # the nodes that a job may use
FEATURED = 8  # what the agent of a node lacks
BOOKED = 9  # reservations for users, and jobs that run within one
LAGGING = 10  # settings: the lag for which a running job is preempted
LIMITED = 11  # settings: limits of a user, GPU memory of types; of a job: the GPU memory that it needs
TEAMED = 11  # settings: teams; of an allocation: marginal values, memory, refused jobs
ARCHIVED = 11  # jobs that have left for the archive
RESOURCED = 12  # CPU cores and memory of nodes, and those that jobs need
SIZED = 12  # jobs with several sizes: of a job, of an allocation, of estimated rates
QUOTED = 12  # settings: quotas and guaranteed GPUs of teams
PEERED = 13  # of an unreachable node: what other agents found
VALUED = 13  # jobs that state what their end is worth
CHOSEN = 13  # an allocation that names the configurations of the next round
MEASURED = 13  # the GPU memory that jobs use; settings: whether it counts as declared
PRICED = 14  # an allocation in which other resources than GPUs, or quotas of teams, are worth something
LOCATED = 15  # the rack, zone and region of a node; settings: placement and consolidation
PLANNED = 15  # jobs with a plan for each number of GPUs
TIMED = 15  # what stops and starts cost jobs, as measured
MOVED = 16  # settings: whether jobs move to make places for gangs; CPU cores and memory of teams
ORDERLY = 17  # settings: whether the policy serves jobs in order of submission, and whether jobs move within rounds
METERED = 17  # metrics that jobs report, and jobs of apps
WAITED = 18  # apps that limit how long jobs wait at rungs
NEWEST = 18
OLDEST = 1  # that can be read
LATER = {  # newest version of an event, if above VERSION
    "AllocationSolved": PRICED,
    "ThroughputEstimated": SIZED,
    "JobSubmitted": WAITED,
    "JobsArchived": ARCHIVED,
    "JobsHeld": ORDERED,
    "ReservationAdded": BOOKED,
    "ReservationRemoved": ORDERED,
    "JobsReleased": ORDERED,
    "JobsRequeued": ORDERED,
    "PriorityChanged": RANKED,
    "ConfigChanged": ORDERLY,
    "GpuMemoryMeasured": MEASURED,
    "NodeJoined": LOCATED,
    "MetricsReported": METERED,
    "TurnMeasured": TIMED,
    "NodeHindered": NAMED,
    "NodeDraining": SAVING,
    "NodeLost": FORGOTTEN,
    "NodeSilent": PEERED,
    "SavingDeclared": SAVING,
    "LeaseEnded": CLASSED,
    "DirectorySeen": SEEN,
    "LastStepReported": LATE,
    "TotalAnnounced": ORDERED,
}
LAST_FIELDS: dict[str, dict[int, int]] = {  # number of last fields that each later version added to an event
    "AllocationSolved": {PACKED: 3, WARNED: 1, TEAMED: 5, SIZED: 1, CHOSEN: 1, PRICED: 2},
    "ThroughputEstimated": {SIZED: 1},
    "NodeJoined": {NAMED: 1, FEATURED: 2, RESOURCED: 2, LOCATED: 3},
    "NodeDraining": {SAVING: 1},
    "NodeLost": {FORGOTTEN: 1},
    "NodeSilent": {PEERED: 2},
    "LeaseEnded": {CLASSED: 1},
    "ReservationAdded": {BOOKED: 1},
}
LATER_SETTINGS = {"packing": PACKED, "lease_min_s": GUARDED, "retry_s": GUARDED, "retry_max_s": GUARDED,
                   "losses_free": FORGIVING, "start_max_s": FORGIVING, "keep_unsaved": SAVING,
                   "late_ends": LATE, "loss_nodes_max": LATE, "finish_grace_s": LATE,
                   "solve_at_least_every_s": AGEING, "system_failures_max": CLASSED,
                   "priorities": RANKED, "move_lag_s": LAGGING, "teams": TEAMED,
                   "jobs_running_a_user_max": LIMITED, "gpus_a_user_max": LIMITED, "gpu_types": LIMITED,
                   "packing_measured": MEASURED, "placement": LOCATED, "consolidate_s": LOCATED,
                   "defragment": MOVED, "in_order": ORDERLY, "move_within_round": ORDERLY}  # fmt: skip
LATER_OF_JOBS = {  # a job without them needs no version
    "time_s": ORDERED,
    "stall_s": ORDERED,
    "gpu_types": ORDERED,
    "nodes": PLACED,
    "exclude": PLACED,
    "reservation": BOOKED,
    "gpu_memory_gib": LIMITED,
    "cpus_per_gpu": RESOURCED,
    "memory_gib_per_gpu": RESOURCED,
    "sizes": SIZED,
    "rates_by_size": SIZED,
    "completion_value": VALUED,
    "plans": PLANNED,
    "app": METERED,
    "hold": ORDERED,
    "begin_at_s": ORDERED,
    "begin_s": ORDERED,
    "no_preempt": ORDERED,
    "after_ok": ORDERED,
    "after_any": ORDERED,
    "array_size": ORDERED,
    "priority": RANKED,
    "open_ended": ORDERED,
}
