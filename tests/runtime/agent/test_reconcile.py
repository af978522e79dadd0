"""The actions that `reconcile` derives from orders: examples, and invariants for any orders."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gavelpy.runtime.agent.leases.orders import LeaseOrder, NodeAssignment, OrderKind, Orders, is_newer
from gavelpy.runtime.agent.leases.reconcile import (
    OVERDUE_S,
    WITHDRAWN,
    Accept,
    Action,
    Amend,
    Cancel,
    Forget,
    Kill,
    LocalLease,
    LocalPhase,
    NodeGpus,
    Refuse,
    StartLease,
    Withdraw,
    extended,
    reconcile,
)
from gavelpy.runtime.lease_files import LeaseOutcome

PLACE = NodeGpus("v100", 4)


def make_assignment(gpus: tuple[int, ...] = (0,), **fields: object) -> NodeAssignment:
    values = {"argv": ("true",), "working_directory": "/", "gpus": gpus, "gpu_type": "v100", "grace_s": 5.0, **fields}
    return NodeAssignment(**values)  # type: ignore[arg-type]  # fields of any type


def make_order(lease: int = 1, wish: OrderKind = OrderKind.RUN, until_s: float = 100.0, **fields: object) -> LeaseOrder:
    values = {"job": lease, "assignment": make_assignment(), **fields}
    return LeaseOrder(lease, until_clock_s=until_s, kind=wish, **values)  # type: ignore[arg-type]  # fields of any type


def make_orders(*leases: LeaseOrder, forget: frozenset[int] = frozenset()) -> Orders:
    return Orders(1, 1, 1, leases, forget)


def make_local(lease: int = 1, phase: LocalPhase = LocalPhase.RUNNING, **fields: object) -> LocalLease:
    values = {"job": lease, "assignment": make_assignment(), "until_clock_s": 100.0, **fields}
    return LocalLease(lease, phase=phase, **values)  # type: ignore[arg-type]  # fields of any type


def test_new_lease_is_taken_on_and_started() -> None:
    order = make_order()

    assert reconcile([], make_orders(order), PLACE, 0.0) == (Accept(order, make_assignment(), start=True),)


def test_without_orders_nothing_is_killed() -> None:
    assert reconcile([make_local()], None, PLACE, 0.0) == ()


def test_lease_out_of_the_orders_is_killed_once() -> None:
    killed = make_local(kill=True, killed_clock_s=50.0)

    assert reconcile([make_local()], make_orders(), PLACE, 50.0) == (Amend(1, 100.0, False, True, 0.0),)
    assert reconcile([killed], make_orders(), PLACE, 50.1) == ()


def test_withdrawn_lease_ends_only_if_nothing_was_started() -> None:
    order = make_order(withdraw=True)
    phases = (LocalPhase.PREPARED, LocalPhase.STARTING, LocalPhase.RUNNING, LocalPhase.STOPPING)

    actions = [reconcile([make_local(phase=phase)], make_orders(order), PLACE, 0.0) for phase in phases]

    assert actions == [(Cancel(1, WITHDRAWN),), (Withdraw(1),), (), ()]
    assert reconcile([], make_orders(order), PLACE, 0.0) == (Refuse(order, LeaseOutcome.STOPPED, WITHDRAWN),)
    twice = make_local(phase=LocalPhase.STARTING, is_withdrawn=True)
    assert reconcile([twice], make_orders(order), PLACE, 0.0) == ()


def test_lease_is_extended_and_never_shortened() -> None:
    local = [make_local()]

    assert reconcile(local, make_orders(make_order(until_s=160.0)), PLACE, 50.0) == (
        Amend(1, 160.0, False, False, 0.0),
    )
    assert reconcile(local, make_orders(make_order(until_s=60.0)), PLACE, 50.0) == ()


def test_no_extension_goes_beyond_the_time_limit_of_a_job_and_the_last_one_is_written_once() -> None:
    local, at_limit = make_local(limit_clock_s=130.0), make_local(limit_clock_s=130.0, until_clock_s=130.0)
    orders = make_orders(make_order(until_s=160.0))

    assert reconcile([local], orders, PLACE, 50.0) == (Amend(1, 130.0, False, False, 0.0),)
    assert reconcile([at_limit], orders, PLACE, 50.0) == ()
    assert list(extended([local], 160.0, 50.0)) == [Amend(1, 130.0, False, False, 0.0)]
    assert list(extended([at_limit], 160.0, 50.0)) == []


def test_lease_that_is_over_is_not_lengthened() -> None:
    assert reconcile([make_local()], make_orders(make_order(until_s=160.0)), PLACE, 100.0) == ()


def test_stop_is_not_taken_back() -> None:
    stopping = make_local(stop=True)

    assert reconcile([stopping], make_orders(make_order(until_s=200.0)), PLACE, 50.0) == ()


def test_same_lease_for_another_job_is_killed() -> None:
    assert reconcile([make_local()], make_orders(make_order(job=9)), PLACE, 50.0) == (
        Amend(1, 100.0, False, True, 0.0),
    )


def test_a_lease_shares_its_gpus_with_the_job_that_its_order_names_only() -> None:
    beside = make_assignment(beside_job=1)
    order = make_order(2, assignment=beside)
    other = make_local(3, job=3)

    assert reconcile([make_local(1)], make_orders(make_order(1), order), PLACE, 0.0) == (
        Accept(order, beside, start=True),
    )
    assert reconcile([other], make_orders(make_order(3), order), PLACE, 0.0) == ()
    both = reconcile([make_local(1), other], make_orders(make_order(1), make_order(3), order), PLACE, 0.0)
    assert both == (), "a third lease waits until one of the two has ended"
    assert reconcile([make_local(1)], make_orders(make_order(1), make_order(2)), PLACE, 0.0) == ()


def test_two_new_leases_that_share_are_both_taken_on() -> None:
    orders = [
        make_order(1, assignment=make_assignment(beside_job=2)),
        make_order(2, assignment=make_assignment(beside_job=1)),
    ]

    found = reconcile([], make_orders(*orders), PLACE, 0.0)

    assert [action.order.lease for action in found if isinstance(action, Accept)] == [1, 2]


def test_a_lease_waits_for_the_memory_of_one_that_is_ending() -> None:
    place = NodeGpus("v100", 4, cpus=8.0, memory_gib=64.0)
    old = make_local(assignment=make_assignment((0,), memory_gib_per_gpu=40.0), stop=True)
    stop, fits, large = (
        make_order(1, OrderKind.STOP, job=old.job),
        make_order(2, job=7, assignment=make_assignment((1,), memory_gib_per_gpu=24.0)),
        make_order(3, job=8, assignment=make_assignment((2,), memory_gib_per_gpu=24.0)),
    )

    actions = reconcile([old], make_orders(stop, fits, large), place, 0.0)

    assert [action.order.lease for action in actions if isinstance(action, Accept)] == [2]
    kept = make_local(2, job=7, assignment=fits.assignment)
    assert reconcile([kept], make_orders(fits, large), place, 0.0) == (Accept(large, large.assignment, True),)
    full = replace(place, memory_gib=30.0)
    assert reconcile([kept], make_orders(fits, large), full, 0.0), "the scheduler decides where no lease is ending"


def test_second_lease_of_a_job_waits_for_the_first() -> None:
    second = make_order(2, job=1, assignment=make_assignment((3,)))

    assert Accept(second, make_assignment((3,)), start=True) not in reconcile(
        [make_local(stop=True)], make_orders(make_order(), second), PLACE, 50.0
    )


def test_part_of_a_gang_starts_when_it_is_known_where_the_ranks_meet() -> None:
    part = make_assignment(node_count=2, node_rank=1, world_size=2, first_rank=1)
    prepared = [make_local(phase=LocalPhase.PREPARED, assignment=part)]
    told = replace(part, rendezvous_address="10.0.0.1", rendezvous_port=4000)

    assert reconcile(prepared, make_orders(make_order(assignment=part)), PLACE, 50.0) == ()
    assert reconcile(prepared, make_orders(make_order(assignment=told)), PLACE, 50.0) == (StartLease(1, told),)


def test_prepared_lease_is_cancelled_when_its_time_is_over() -> None:
    (action,) = reconcile([make_local(phase=LocalPhase.PREPARED)], make_orders(make_order()), PLACE, 100.0)

    assert isinstance(action, Cancel)


def test_lease_that_waited_for_one_that_is_dropped_is_taken_on_at_the_next_look() -> None:
    prepared = make_local(2, LocalPhase.PREPARED, until_clock_s=1.0, job=0)
    waiting = make_order(3, OrderKind.PREPARE, until_s=2.0, job=0)
    orders = make_orders(make_order(2, OrderKind.PREPARE, until_s=1.0, job=0), waiting)

    (dropped,) = reconcile([prepared], orders, PLACE, 1.0)
    (taken_on,) = reconcile([replace(prepared, phase=LocalPhase.ENDED)], orders, PLACE, 1.0)

    assert isinstance(dropped, Cancel)
    assert taken_on == Accept(waiting, make_assignment(), start=False)


def test_gpu_that_the_node_has_not_is_refused_as_lost() -> None:
    (action,) = reconcile([], make_orders(make_order(assignment=make_assignment((4,)))), PLACE, 0.0)

    assert isinstance(action, Refuse)
    assert (action.outcome, action.detail) == (LeaseOutcome.LOST, "the node has v100 0 to 3, not v100 [4]")


def test_lease_is_forgotten_only_when_it_has_ended() -> None:
    orders = make_orders(make_order(2), forget=frozenset({1, 2}))
    local = [make_local(1, LocalPhase.ENDED), make_local(2)]

    assert reconcile(local, orders, PLACE, 0.0) == (Forget(1),)


def test_what_is_left_after_time_and_grace_is_destroyed_with_and_without_orders() -> None:
    assert reconcile([make_local()], None, PLACE, 105.0) == ()
    assert reconcile([make_local()], None, PLACE, 105.1 + OVERDUE_S) == (Kill(1),)
    assert reconcile([make_local(kill=True, killed_clock_s=10.0)], None, PLACE, 10.1 + OVERDUE_S) == (Kill(1),)
    assert reconcile([make_local(has_lost_shim=True)], None, PLACE, 1.0) == (Kill(1),)


@given(st.permutations([(1, 1, 1), (1, 1, 2), (1, 2, 1), (2, 3, 1), (2, 3, 2)]))
def test_newest_orders_win_in_any_order_of_arrival(keys: list[tuple[int, int, int]]) -> None:
    newest: Orders | None = None

    arrivals = [Orders(*key) for key in (*keys, *keys)]
    kept = [newest := orders for orders in arrivals if is_newer(orders, newest)]

    assert kept[-1].order == (2, 3, 2)


class Node(RuleBasedStateMachine):
    """A node that follows `reconcile`, with orders that are arbitrary, repeated, late and reordered."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.leases: dict[int, LocalLease] = {}
        self.sent: list[Orders] = []
        self.newest: Orders | None = None
        self.sequence = 0
        self.started: list[int] = []
        self.largest_until_s: dict[int, float] = {}

    @rule(data=st.data())
    def scheduler_says_anything(self, data: st.DataObject) -> None:
        numbers = data.draw(st.lists(st.integers(0, 6), unique=True, max_size=4))
        orders = tuple(self._drawn_order(data, number) for number in numbers)
        forget = data.draw(st.frozensets(st.integers(0, 6), max_size=2))
        self.sequence += 1
        self.sent.append(Orders(1, 1, self.sequence, orders, forget))

    def _drawn_order(self, data: st.DataObject, lease: int) -> LeaseOrder:
        gpus = tuple(data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True)))
        assignment = data.draw(st.sampled_from([make_assignment(gpus), None]))
        wish, until_s = data.draw(st.sampled_from(OrderKind)), self.now_s + data.draw(st.floats(-5, 50))
        self.largest_until_s[lease] = max(self.largest_until_s.get(lease, until_s), until_s)
        return LeaseOrder(lease, data.draw(st.integers(0, 3)), until_s, wish, assignment=assignment)

    @rule(data=st.data())
    def a_message_arrives(self, data: st.DataObject) -> None:
        if self.sent:
            orders = data.draw(st.sampled_from(self.sent))
            self.newest = orders if is_newer(orders, self.newest) else self.newest

    @rule(seconds=st.floats(0.1, 20))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(data=st.data(), phase=st.sampled_from([LocalPhase.RUNNING, LocalPhase.STOPPING, LocalPhase.ENDED]))
    def a_job_goes_on(self, data: st.DataObject, phase: LocalPhase) -> None:
        moving = [lease for lease, local in self.leases.items() if local.phase not in (LocalPhase.PREPARED, "ended")]
        if moving:
            lease = data.draw(st.sampled_from(sorted(moving)))
            self.leases[lease] = replace(self.leases[lease], phase=phase)

    @rule()
    def the_node_acts(self) -> None:
        self._act()

    def _act(self) -> tuple[Action, ...]:
        actions = reconcile(list(self.leases.values()), self.newest, PLACE, self.now_s)
        for action in actions:
            self._do(action)
        return actions

    def _do(self, action: Action) -> None:
        match action:
            case Accept(order, assignment, start):
                assert order.lease not in self.leases
                assert self.now_s < order.until_clock_s
                phase = LocalPhase.STARTING if start else LocalPhase.PREPARED
                self.started += [order.lease] if start else []
                self._put(LocalLease(order.lease, order.job, phase, assignment, order.until_clock_s))
            case StartLease(lease, _):
                assert self.leases[lease].phase is LocalPhase.PREPARED
                self.started.append(lease)
                self._put(replace(self.leases[lease], phase=LocalPhase.STARTING))
            case Refuse(order, _, _):
                assert order.lease not in self.leases
                self._put(LocalLease(order.lease, order.job, LocalPhase.ENDED, order.assignment, order.until_clock_s))
            case Amend(lease, until_s, stop, kill, saved):
                old = self.leases[lease]
                assert until_s >= old.until_clock_s
                assert (stop, kill) >= (old.stop, old.kill)
                killed_s = min(old.killed_clock_s, self.now_s) if kill else old.killed_clock_s
                self._put(
                    replace(
                        old, until_clock_s=until_s, stop=stop, kill=kill, steps_saved=saved, killed_clock_s=killed_s
                    )
                )
            case Cancel(lease, _) | Kill(lease):
                self._put(replace(self.leases[lease], phase=LocalPhase.ENDED))
            case Forget(lease):
                assert self.leases.pop(lease).phase is LocalPhase.ENDED

    def _put(self, lease: LocalLease) -> None:
        self.leases[lease.lease] = lease

    @invariant()
    def no_gpu_and_no_job_is_under_two_leases(self) -> None:
        living = [lease for lease in self.leases.values() if lease.is_living]
        gpus = [gpu for lease in living for gpu in lease.gpus]
        assert len(gpus) == len(set(gpus))
        assert len(living) == len({lease.job for lease in living})

    @invariant()
    def no_lease_is_longer_than_anybody_said(self) -> None:
        assert all(
            lease.until_clock_s <= self.largest_until_s.get(number, 0.0) for number, lease in self.leases.items()
        )

    @invariant()
    def acting_again_does_what_had_to_wait_for_an_end_and_then_nothing(self) -> None:
        freed = [self.leases[action.lease] for action in self._act() if isinstance(action, Cancel | Kill)]

        again = self._act()

        assert all(has_waited(action, freed) for action in again)
        assert self._act() == ()


def has_waited(action: Action, freed: list[LocalLease]) -> bool:
    """Whether a lease had to wait for the GPUs or the job of one of these, or is one of these and can be forgotten."""
    match action:
        case Accept(order, assignment):
            wanted = set(assignment.gpus)
            return any(lease.job == order.job or not lease.gpus.isdisjoint(wanted) for lease in freed)
        case Forget(number):
            return any(lease.lease == number for lease in freed)
        case _:
            return False


TestNode = Node.TestCase
