"""Invariants of the core, which hold after each event. Tests and `--paranoid` runs call `check`."""

from __future__ import annotations

from collections import Counter

import numpy as np

from gavelpy.mechanism import eligibility, failures, node_resources, non_preemptible, priority_classes, sizes, windows
from gavelpy.mechanism.app_table import role_of
from gavelpy.mechanism.booking import lease_keys
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import NO_INTS
from gavelpy.mechanism.gpus import CLUSTERS, NONE
from gavelpy.mechanism.jobs import DIRECTORY_COLUMNS, OPEN
from gavelpy.mechanism.lifecycle import LAST_ALIVE, LEASED, JobState, NodeState
from gavelpy.mechanism.settings import LAG_MAX


def check(core: SchedulerCore) -> None:
    """Raises AssertionError with the invariant that is violated."""
    _check_leases(core)
    _check_stopping(core)
    _check_gpus(core)
    _check_pairs(core)
    _check_checkpoints(core)
    _check_accounts(core)
    _check_order(core)
    _check_pauses(core)
    _check_exempt(core)
    _check_classes(core)
    _check_windows(core)
    _check_nodes(core)
    _check_resources(core)
    _check_apps(core)
    _check_timer(core)


def _check_leases(core: SchedulerCore) -> None:
    jobs, n = core.jobs, core.jobs.count
    state, lease = jobs.state[:n], jobs.lease[:n]
    is_leased = (state == LEASED[0]) | (state == LEASED[1])
    assert (is_leased == (lease >= 0)).all(), "a job without a lease is GRANTED or RUNNING, or the reverse"
    assert np.array_equal(jobs.leased, np.flatnonzero(lease >= 0)), "the list of jobs with leases is out of date"
    is_alive = state <= LAST_ALIVE
    assert np.array_equal(jobs.active, np.flatnonzero(is_alive)), "the list of active jobs is out of date"
    has_time = is_leased | is_alive & (
        (jobs.target[:n] != 0) | (jobs.owed_s[:n] != 0) | (jobs.received_s[:n] != 0)
    ).any(axis=1)
    assert np.isin(np.flatnonzero(has_time), jobs.lists.timed).all(), "time is not booked for a job with shares"
    serials = lease[lease >= 0]
    assert core.leases.in_force == len(serials), "the count of leases in force is wrong"
    assert len(np.unique(serials)) == len(serials), "two jobs hold the same lease"
    assert (serials < core.leases.next_lease).all(), "a lease has a serial that was never assigned"
    stopping = jobs.stopping[:n]
    assert set(stopping[stopping >= 0].tolist()).isdisjoint(serials.tolist()), "a lease is in force and stopping"
    assert (stopping < core.leases.next_lease).all(), "a stopping lease has a serial that was never assigned"
    assert all(state[row] <= LAST_ALIVE for row in jobs.loss_nodes), "losses are recorded of a job that is over"
    for row, lost in jobs.lost_leases.items():
        assert lost, f"job {row} has an empty table of lost leases"
        assert state[row] <= LAST_ALIVE, f"job {row} is over and has open lost leases"
        assert max(lost) < core.leases.next_lease, "a lost lease has a serial that was never assigned"
        assert lease[row] not in lost, f"the lease of job {row} is in force and lost"
    both = (stopping >= 0) & (state == JobState.RUNNING)
    assert not both.any(), f"jobs {np.flatnonzero(both).tolist()} run while an older lease is stopping"


def _check_stopping(core: SchedulerCore) -> None:
    jobs, pool = core.jobs, core.pool
    rows = np.flatnonzero(jobs.stopping_first[: jobs.count] >= 0)
    assert (jobs.stopping[rows] >= 0).all(), "a job has GPUs of a stopping lease, but no such lease"
    assert set(jobs.stopping_gangs) <= set(rows.tolist()), "the table of stopping gangs is inconsistent"
    lost = np.array([state is NodeState.LOST for state in pool.node_state], dtype=np.bool_)
    for row in rows.tolist():
        gpus = jobs.gpus_stopping(row)
        assert gpus[0] == jobs.stopping_first[row], f"the columns on the stopping lease of job {row} are inconsistent"
        assert len(gpus) <= sizes.largest(jobs, np.array([row]))[0], (
            f"the stopping lease of job {row} has more GPUs than requested"
        )
        assert not lost[pool.node_of[gpus]].any(), f"the lease of job {row} is stopping on a lost node"
    held = np.flatnonzero(pool.job != NONE)
    assert not lost[pool.node_of[held]].any(), "a lease is in force on a lost node"
    assert pool.present[held].all(), "a lease is in force on an absent GPU"


def _check_gpus(core: SchedulerCore) -> None:
    jobs, pool = core.jobs, core.pool
    gpus_held, all_holders = pool.holdings(np.ones(len(pool.job), dtype=np.bool_))
    holders, held = np.unique(all_holders, return_counts=True)
    assert np.array_equal(holders, jobs.leased), "GPUs are granted to jobs without a lease, or the reverse"
    assert np.array_equal(held, jobs.gpus[holders]), "a job holds more or fewer GPUs than requested"
    assert set(jobs.gang_gpus) == set(holders[jobs.gpus[holders] > 1].tolist()), "the gang table is inconsistent"
    for row in holders.tolist():
        gpus = jobs.gpus_held(row)
        mine = np.sort(gpus_held[all_holders == row])
        assert np.array_equal(np.sort(gpus), mine), f"the tables of jobs and GPUs differ on the GPUs of job {row}"
        assert (pool.type_of[gpus] == jobs.lease_type[row]).all(), f"job {row} holds GPUs of several types"
    states = zip(pool.node_state, pool.node_unreachable, pool.node_reserved, strict=True)
    is_open = [state is NodeState.UP and not is_unreachable and not why for state, is_unreachable, why in states]
    can_begin = np.array([is_up and not why for is_up, why in zip(is_open, pool.node_unhealthy, strict=True)], np.bool_)
    assert np.array_equal(pool.usable, can_begin[pool.node_of] & pool.present), "the marks of usable GPUs are wrong"
    assert pool.any_unhealthy == any(pool.node_unhealthy), "the mark of unhealthy nodes is wrong"
    counts = np.bincount(pool.type_of[pool.usable], minlength=len(pool.gpu_types))
    assert np.array_equal(pool.counts, counts), "the count of usable GPUs is out of date"
    is_free = pool.usable & (pool.job == NONE)
    assert np.array_equal(pool.free.is_free, is_free), "the marks of free GPUs are out of date"
    assert np.array_equal(pool.free_counts, pool.type_counts(is_free)), "the count of free GPUs is out of date"


def _check_pairs(core: SchedulerCore) -> None:
    """A GPU has at most two leases; two only if their jobs are partners, which share all their GPUs."""
    jobs, pool, claims, n = core.jobs, core.pool, core.jobs.claims, core.jobs.count
    rows = np.flatnonzero(jobs.partner[:n] >= 0)
    partners = jobs.partner[rows]
    assert (jobs.partner[partners] == rows).all(), "a job's partner has another partner, or none"
    assert (partners != rows).all(), "a job shares GPUs with itself"
    for row, partner in zip(rows.tolist(), partners.tolist(), strict=True):
        assert np.array_equal(jobs.gpus_held(row), jobs.gpus_held(partner)), (
            f"partners {row} and {partner} hold different GPUs"
        )
    shared = np.flatnonzero(pool.beside != NONE)
    assert (jobs.partner[pool.job[shared]] == pool.beside[shared]).all(), (
        "a GPU has two leases of jobs that are not partners"
    )
    assert shared.size == jobs.gpus[rows].sum() // 2, "a pair does not share all of its GPUs"
    order = np.lexsort((claims.gpu_type, claims.gpus, claims.second, claims.first))
    assert (order == np.arange(claims.count)).all(), "the table of claims is out of order"
    assert ((claims.first < claims.second) | (claims.second < 0)).all(), "a pair is not in ascending order"
    claims.find(lease_keys(jobs, jobs.leased[jobs.hold_claims(jobs.leased)]))
    for row, own in jobs.sizes.items():
        size = jobs.gpus[row] if jobs.lease[row] >= 0 else own.gpus[0]
        assert jobs.gpus[row] == size, f"job {row} has no lease, but not its smallest size"
        assert jobs.gpus[row] in own.gpus, f"job {row} has a size that its owner does not allow"
        assert not jobs.target[row].any(), f"job {row} has several sizes, but dense shares"
        assert not jobs.owed_s[row].any(), f"job {row} has several sizes, but dense time owed"
        assert np.array_equal(jobs.rate[row], own.best, equal_nan=True), f"the best rates of job {row} are out of date"


def _check_checkpoints(core: SchedulerCore) -> None:
    jobs, n = core.jobs, core.jobs.count
    lease, saved = jobs.saved_lease[:n], jobs.steps_saved[:n]
    assert (saved[lease >= 0] > 0).all(), "a checkpoint has a lease, but no steps"
    assert (lease < core.leases.next_lease).all(), "a checkpoint has a lease serial that was never assigned"
    _check_directories(core)


def _check_directories(core: SchedulerCore) -> None:
    jobs, pool, n = core.jobs, core.pool, core.jobs.count
    named = [name for name in pool.directories if name]
    assert len(set(named)) == len(named), "a directory has two rows"
    for name in DIRECTORY_COLUMNS:
        column = getattr(jobs, name)[:n]
        assert (column < len(pool.directories)).all(), f"{name} has a directory row that does not exist"
        is_known = np.array([bool(name) for name in pool.directories]) | (np.arange(len(pool.directories)) == CLUSTERS)
        assert is_known[column[column >= 0]].all(), f"{name} has a directory row that was merged"
        assert not pool.shares_checkpoints or not (column[jobs.active] > CLUSTERS).any(), (
            f"{name} is not the cluster's directory, but domains are GPU types"
        )
    assert ((jobs.lease_in[:n] >= 0) == (jobs.lease[:n] >= 0)).all(), "a job without a lease writes to a directory"
    assert not pool.shares_checkpoints or not any(pool.node_directory), (
        "nodes use several directories, but domains are GPU types"
    )


def _check_accounts(core: SchedulerCore) -> None:
    jobs, n = core.jobs, core.jobs.count
    for name in ("owed_s", "received_s", "attained_gpu_s", "isolated_s", "target"):
        values = getattr(jobs, name)[:n]
        assert np.isfinite(values).all(), f"{name} is not finite"
        assert (values >= 0).all(), f"{name} is negative"
    if core.settings.move_lag_s:
        most_s = LAG_MAX * core.settings.move_lag_s + core.now_s - core.settled_s
        lag_s = jobs.owed_s[jobs.active] - jobs.received_s[jobs.active]
        lags_s = np.concatenate([lag_s.ravel(), jobs.claims.owed_s - jobs.claims.received_s])
        assert (np.abs(lags_s) <= most_s * (1 + 1e-9) + 1e-6).all(), "a lag is larger than what counts"
    for name in ("owed_s", "received_s", "target"):
        values = getattr(jobs.claims, name)
        assert (np.isfinite(values) & (values >= 0)).all(), f"{name} of a claim is not finite or negative"
    active = jobs.active
    assert np.array_equal(active, np.flatnonzero(jobs.state[:n] <= LAST_ALIVE)), (
        "the list of active jobs is out of date"
    )
    assert (jobs.share[active].sum(axis=1) <= 1 + 1e-6).all(), "the shares of a job add up to more than 1"
    assert (jobs.steps_done[:n] <= jobs.steps_total[:n] * (1 + 1e-9)).all(), "a job did more steps than its total"
    assert (jobs.steps_saved[:n] <= jobs.steps_done[:n]).all(), "more steps are saved than done"
    is_open = np.array([spec.open_ended for spec in jobs.specs], dtype=np.bool_)
    assert not ((jobs.total_by[:n] == OPEN) & ~is_open).any(), "the number of steps of a job was submitted and is open"
    is_half = jobs.steps_done[active] <= 0.5 * jobs.steps_total[active] * (1 + 1e-9)
    assert (is_half | (jobs.total_by[active] != OPEN)).all(), "a job of unknown length is more than half done"


def _check_order(core: SchedulerCore) -> None:
    jobs = core.jobs
    waiting = jobs.active[jobs.unmet[jobs.active] > 0]
    assert (jobs.lease[waiting] < 0).all(), "a job has a lease before the jobs that it comes after are over"
    counts = [len(eligibility.unmet(jobs, row)) for row in waiting.tolist()]
    assert jobs.unmet[waiting].tolist() == counts, "the count of jobs that a job comes after is wrong"
    assert not jobs.ended_blockers, "the end of a job was not applied to those that come after it"
    assert jobs.any_failed or not failures.any_failed(jobs), "a failure of a job counts, and no job is marked so"
    assert jobs.any_gated or not eligibility.any_gated(jobs), "a job can be kept from GPUs, and no job is marked so"
    limited = jobs.leased[jobs.array_limit[jobs.leased] > 0]
    sizes = Counter(jobs.array[limited].tolist())
    assert all(size <= jobs.array_limit[array] for array, size in sizes.items()), (
        "more jobs of an array have leases than its limit allows"
    )


def _check_pauses(core: SchedulerCore) -> None:
    jobs, n, settings = core.jobs, core.jobs.count, core.settings
    assert (jobs.misses[:n] >= 0).all(), "a count of failed leases is negative"
    assert (jobs.losses[:n] >= 0).all(), "a count of lost starts is negative"
    assert (jobs.began_s[:n] <= core.now_s).all(), "a lease starts in the future"
    assert (jobs.worked_s[:n] <= core.now_s).all(), "a job made progress in the future"
    assert (jobs.slow_lease[:n] < core.leases.next_lease).all(), "a slow lease has a serial that was never assigned"
    assert (jobs.held_type[jobs.leased] < 0).all(), "GPUs are reserved for a job that has a lease"
    assert jobs.any_held or (jobs.held_type[jobs.active] < 0).all(), "GPUs are reserved, and there is no mark of it"
    ends_s = jobs.retry_at_s[jobs.active]
    ahead_s = ends_s[ends_s > core.now_s]
    pause_s_max = settings.retry_max_s if settings.retry_s else 0.0
    assert (ahead_s <= (core.now_s + pause_s_max) * (1 + 1e-9)).all(), "a job waits longer than the longest pause"
    assert core.retry_due_s <= ahead_s.min(initial=np.inf), "no wakeup is due when a pause ends"
    begin_s = jobs.begin_at_s[jobs.active]
    assert core.retry_due_s <= begin_s[begin_s > core.now_s].min(initial=np.inf), "no wakeup is due when a job begins"


def _check_exempt(core: SchedulerCore) -> None:
    jobs, exempt = core.jobs, non_preemptible.exempt(core.leases, core.settings, core.woken_s)
    assert np.array_equal(core.exempt.jobs, exempt.jobs), "the list of jobs that no plan may preempt is wrong"
    ours, theirs = core.exempt.open_gpus, exempt.open_gpus
    assert (ours is None) == (theirs is None) == (not len(exempt.jobs)), (
        "the open GPUs are set without an exempt job, or the reverse"
    )
    assert ours is None or theirs is None or np.array_equal(ours, theirs), "the list of open GPUs is wrong"
    single = exempt.jobs[jobs.partner[exempt.jobs] < 0]
    assert (jobs.share[single, jobs.lease_type[single]] == 1.0).all(), "an exempt job has a share below 1"


def _check_classes(core: SchedulerCore) -> None:
    jobs, settings, n = core.jobs, core.settings, core.jobs.count
    order = priority_classes.ranking(settings.priorities)
    ranks = [order.rank(spec.priority) for spec in jobs.specs] if settings.priorities else [0] * n
    assert jobs.rank[:n].tolist() == ranks, "the rank of a job is not that of its class"
    kept = priority_classes.kept_counts(jobs, core.pool, settings, core.exempt.open_gpus)
    assert np.array_equal(core.kept, kept), "the count of GPUs that are kept from a class is out of date"
    rows = np.flatnonzero(jobs.taken_by[:n] >= 0)
    assert (jobs.lease[rows] < 0).all(), "a job that was preempted by a higher class has a lease"
    assert (jobs.taken_by[rows] != rows).all(), "a job was preempted by itself"


def _check_windows(core: SchedulerCore) -> None:
    assert core.window_due_s >= windows.due_s(core.windows, core.woken_s), (
        "a reservation begins or ends without a wakeup"
    )
    assert core.wakeup_s <= max(core.window_due_s, core.now_s), "no wakeup is due when a reservation begins or ends"
    jobs, pool = core.jobs, core.pool
    assert jobs.booked.keys() <= set(jobs.active.tolist()), "a job that is over is in a reservation"
    apart = {row: windows.own(core, row) for row in jobs.booked}
    names = [window.name for window in windows.divisions(core)]
    for row in jobs.active.tolist():
        window = apart.get(row)
        at = windows.OUTSIDE if row not in apart else windows.NOWHERE
        at = names.index(window.name) + 1 if window is not None and window.name in names else at
        assert jobs.part[row] == at, f"job {row} is in part {jobs.part[row]} of the cluster, not in {at}"
        assert window is not None or row not in apart or jobs.hold[row] >= 0, (
            f"the reservation of job {row} is over, and it is not held"
        )
    where = {node: part for part, window in enumerate(windows.divisions(core), 1) for node in window.node_ids}
    assert pool.node_part == [where.get(node, windows.OUTSIDE) for node in pool.node_ids], "the parts are out of date"
    strangers = sorted({*windows.outsiders(core).tolist()} - {*core.exempt.jobs.tolist(), *core.leases.pinned.tolist()})
    assert not strangers or core.wakeup_s <= core.now_s, (
        f"jobs {strangers} have leases on nodes that are reserved from them"
    )
    if windows.must_leave(core):
        assert core.wakeup_s <= core.now_s, "leases on reserved nodes are in force and no wakeup is due"
        assert core.round_end_s <= core.now_s, "leases on reserved nodes are in force, and the round goes on"


def _check_nodes(core: SchedulerCore) -> None:
    """A job has leases on the nodes only that its owner allows."""
    jobs, pool = core.jobs, core.pool
    limited = [row for row in jobs.active.tolist() if jobs.specs[row].is_limited]
    assert list(jobs.limited) == limited, "the list of jobs with a choice of nodes is out of date"
    featured = {row: needed for row in jobs.active.tolist() if (needed := jobs.specs[row].features)}
    assert list(jobs.featured.items()) == list(featured.items()), "the features that jobs need are out of date"
    for row in limited:
        held = jobs.gpus_held(row) if jobs.lease[row] >= 0 else NO_INTS
        where = {pool.node_ids[node] for node in pool.node_of[held]}
        wrong = {node for node in where if not jobs.specs[row].may_use(node)}
        assert not wrong, f"job {row} has a lease on {wrong}, which its owner does not allow"


def _check_resources(core: SchedulerCore) -> None:
    """Leases use at most what their nodes have, unless a node has reported less since."""
    jobs, pool = core.jobs, core.pool
    declared = {row: needs for row in jobs.active.tolist() if (needs := node_resources.needs_of(jobs.specs[row]))}
    assert jobs.needs == declared, "the list of what jobs need of nodes is out of date"
    over = node_resources.strained(jobs, pool)
    assert over <= pool.strained, f"leases use more than nodes {sorted(over - pool.strained)} have"


def _check_apps(core: SchedulerCore) -> None:
    """Jobs that wait at a rung are members of a bracket whose decision is due later; they get no new lease."""
    table, active = core.jobs.apps, set(core.jobs.active.tolist())
    assert table.members.keys() <= active, "a job that is over is in a bracket"
    assert table.at_rung.keys() <= table.members.keys(), "a job waits at a rung that it does not have"
    assert set(table.members.values()) == table.rungs.keys(), "brackets with members have a next rung, and no others"
    assert table.living == Counter(table.members.values()), "the count of members is wrong"
    assert +table.arrived == Counter(table.members[row] for row in table.at_rung), "the count at a rung is wrong"
    assert not table.touched, "a bracket was not taken further"
    limited = {table.members[row] for row in table.at_rung if role_of(core.jobs, row).rung_wait_max_s}
    assert limited <= table.due_s.keys(), "jobs wait at a rung beyond the limit of their app"
    assert all(table.arrived[key] for key in table.due_s), "no job waits at a rung that is to be decided"
    assert core.wakeup_s <= max(table.next_due_s, core.now_s), "no wakeup is due when a rung must be decided"
    assert not any(core.jobs.state[row] == JobState.GRANTED for row in table.at_rung), "a job at a rung is to start"


def _check_timer(core: SchedulerCore) -> None:
    assert core.settled_s <= core.now_s, "time is booked ahead"
    if len(core.jobs.leased):
        assert core.is_in_round, "leases are in force outside a round"
        assert core.wakeup_s < np.inf, "leases are in force and no wakeup is due"
