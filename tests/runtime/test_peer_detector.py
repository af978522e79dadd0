"""The failure detector: properties of its beliefs, and simulations with delays, losses, pauses, cuts and deaths."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavelpy.runtime.peer_detector import PeerDetector, PeerState, ProbeKind, ProbeMessage, ProbeTiming, Rumor
from tests.runtime.detector_world import DetectorWorld, Network

QUIET = Network(loss=0.0, late=0.0)
DAY_S = 86_400.0
NAMES = ["n0", "n1", "n2", "n3"]

rumors = st.builds(
    Rumor, st.sampled_from(NAMES), st.sampled_from(PeerState), st.integers(0, 4), st.sampled_from(["", *NAMES])
)
messages = st.builds(
    ProbeMessage,
    st.sampled_from(ProbeKind),
    st.sampled_from([*NAMES, "stranger"]),
    st.integers(0, 4),
    st.integers(0, 3),
    st.sampled_from(["", *NAMES, "stranger"]),
    st.lists(rumors, max_size=4).map(tuple),
)


def detector_of(seed: int = 0) -> PeerDetector:
    detector = PeerDetector("n0", Random(seed))
    detector.set_peers(NAMES, 0.0)
    return detector


def of_rumors(*heard: Rumor) -> ProbeMessage:
    return ProbeMessage(ProbeKind.RUMORS, "n3", 0, rumors=heard)


def jittery(count: int, seed: int, *, pause_s_max: float, every_s: float) -> DetectorWorld:
    """A world in which each agent pauses now and then."""
    world, rng = DetectorWorld(count, seed), Random(f"pauses {seed}")

    def pause(name: str) -> None:
        pause_s = rng.uniform(0.0, pause_s_max)
        world.pause(name, pause_s)
        awake_s = 1.0 + rng.expovariate(1 / every_s)  # pauses that touch would be a longer one
        world.at(world.now_s + pause_s + awake_s, lambda: pause(name))

    for name in world.agents:
        world.at(rng.expovariate(1 / every_s), lambda name=name: pause(name))  # type: ignore[misc]  # a default
    return world


def dead_of(world: DetectorWorld) -> list[tuple[float, str, str]]:
    return [(when_s, by, of) for when_s, by, of, state in world.changes if state is PeerState.DEAD]


def believed(world: DetectorWorld, by: list[str], of: list[str]) -> set[PeerState]:
    return {world.agents[a].detector.peers[b] for a in by for b in of if a != b}


@given(st.lists(rumors.filter(lambda rumor: rumor.peer == "n1"), max_size=8), st.randoms(use_true_random=False))
def test_beliefs_do_not_depend_on_the_order_of_rumors(heard: list[Rumor], shuffling: Random) -> None:
    one, other, shuffled = detector_of(), detector_of(), list(heard)
    shuffling.shuffle(shuffled)

    for rumor in heard:
        one.receive(of_rumors(rumor), 0.0)
    other.receive(of_rumors(*shuffled), 0.0)

    newest = max(((rumor.incarnation, rumor.state) for rumor in heard), default=(0, PeerState.ALIVE))
    assert one.peers["n1"] is other.peers["n1"] is max(newest, (0, PeerState.ALIVE))[1]


@settings(max_examples=60)
@given(st.lists(st.tuples(messages, st.floats(0.0, 2.0)), max_size=30), st.integers(0, 9))
def test_any_messages_leave_a_detector_that_answers_only_peers(
    received: list[tuple[ProbeMessage, float]], seed: int
) -> None:
    detector, again, now_s, incarnation = detector_of(seed), detector_of(seed), 0.0, 0

    for message, later_s in received:
        now_s += later_s
        sent = detector.receive(message, now_s) + detector.advance(now_s)
        assert sent == again.receive(message, now_s) + again.advance(now_s)  # the same input gives the same output
        assert {to for to, _ in sent} <= {"n1", "n2", "n3"}
        assert all(len(out.rumors) <= ProbeTiming().rumors_max for _, out in sent)
        assert detector.incarnation >= incarnation
        assert detector.due_s > now_s
        incarnation = detector.incarnation
    assert set(detector.peers) == {"n1", "n2", "n3"}


@given(st.integers(0, 100), st.sampled_from([PeerState.SUSPECT, PeerState.DEAD]))
def test_an_agent_refutes_its_own_suspicion_in_its_next_message(incarnation: int, state: PeerState) -> None:
    detector = detector_of()

    detector.receive(of_rumors(Rumor("n0", state, incarnation, "n2")), 0.0)

    [(_, answer)] = detector.receive(ProbeMessage(ProbeKind.PING, "n1", 0, 7, "n0"), 0.0)
    assert answer.incarnation == incarnation + 1
    assert Rumor("n0", PeerState.ALIVE, incarnation + 1) in answer.rumors


def test_only_an_answer_to_an_own_ping_is_direct_evidence() -> None:
    detector = detector_of()
    detector.receive(ProbeMessage(ProbeKind.PING, "n1", 0, 7, "n0"), 0.1)
    detector.receive(ProbeMessage(ProbeKind.ACK, "n1", 0, 7), 0.1)
    unheard = {name: detector.last_answer_s(name) for name in detector.peers}

    [(to, ping)] = detector.advance(0.3)
    detector.receive(ProbeMessage(ProbeKind.ACK, to, 0, ping.nonce), 0.35)

    assert set(unheard.values()) == {-math.inf}
    assert detector.last_answer_s(to) == 0.35


def test_a_detector_without_peers_does_nothing() -> None:
    detector = PeerDetector("n0", Random(0))

    assert detector.due_s == math.inf
    assert detector.advance(1.0) == []
    assert detector.receive(ProbeMessage(ProbeKind.PING, "n1", 0, 7, "n0"), 0.0) == []


@pytest.mark.parametrize(("count", "seed"), [(2, 0), (3, 1), (4, 2), (7, 3), (25, 4)])
def test_a_dead_agent_is_found_by_all_others_within_5_s_and_no_other_is_blamed(count: int, seed: int) -> None:
    world, others = DetectorWorld(count, seed), [f"n{i}" for i in range(count - 1)]
    world.run(5.0)

    world.kill(f"n{count - 1}")
    world.run(10.0)

    assert sorted((by, of) for _, by, of in dead_of(world)) == [(by, f"n{count - 1}") for by in sorted(others)]
    assert believed(world, others, others) <= {PeerState.ALIVE}


def test_no_agent_is_declared_dead_in_jitter_and_pauses_shorter_than_a_suspicion() -> None:
    world = jittery(5, 11, pause_s_max=1.2, every_s=30.0)

    world.run(400.0)

    assert any(state is PeerState.SUSPECT for *_, state in world.changes)  # the pauses are long enough to matter
    assert dead_of(world) == []


@pytest.mark.slow  # 25 s of CPU
def test_no_agent_is_declared_dead_in_24_h_of_jitter() -> None:
    world = jittery(3, 12, pause_s_max=1.2, every_s=60.0)

    world.run(DAY_S)

    assert dead_of(world) == []


@pytest.mark.slow  # 10 s of CPU
def test_no_agent_of_100_is_declared_dead_in_jitter_and_pauses() -> None:
    world = jittery(100, 13, pause_s_max=1.2, every_s=60.0)

    world.run(120.0)

    assert dead_of(world) == []


def test_an_agent_that_was_suspended_blames_no_other() -> None:
    world = DetectorWorld(4, 21)
    world.run(5.0)

    world.kill("n3")  # so that a suspicion is open when the pause begins
    world.run(6.3)
    world.pause("n0", 20.0)
    world.run(40.0)

    blamed_by_it = {of for _, by, of in dead_of(world) if by == "n0"}
    assert blamed_by_it == {"n3"}


def test_an_agent_that_returns_after_its_death_is_believed_alive_again() -> None:
    world = DetectorWorld(5, 22)
    world.run(5.0)

    world.pause("n0", 15.0)
    world.run(18.0)
    meanwhile = believed(world, NAMES[1:], ["n0"])
    world.run(26.0)

    assert meanwhile == {PeerState.DEAD}
    assert believed(world, NAMES, NAMES) == {PeerState.ALIVE}


def test_a_cut_between_two_agents_alone_makes_neither_dead() -> None:
    world = DetectorWorld(5, 23, QUIET)
    world.cut = {("n0", "n1"), ("n1", "n0"), ("n2", "n3")}  # the last one in one direction

    world.run(120.0)

    assert dead_of(world) == []


def test_the_sides_of_a_partition_are_dead_to_each_other_until_it_ends() -> None:
    world, left, right = DetectorWorld(6, 24), ["n0", "n1", "n2"], ["n3", "n4", "n5"]
    world.run(5.0)

    world.cut = {(a, b) for a in left for b in right} | {(b, a) for a in left for b in right}
    world.run(25.0)
    apart = believed(world, left, right) | believed(world, right, left), believed(world, left, left)
    world.cut = set()
    world.run(45.0)

    assert apart == ({PeerState.DEAD}, {PeerState.ALIVE})
    assert believed(world, left + right, left + right) == {PeerState.ALIVE}


def test_messages_per_agent_do_not_depend_on_the_number_of_agents() -> None:
    small, large = DetectorWorld(4, 31, QUIET), DetectorWorld(64, 31, QUIET)

    small.run(30.0)
    large.run(30.0)

    per_s = [max(agent.sent for agent in world.agents.values()) / 30.0 for world in (small, large)]
    assert max(per_s) <= 1.25 * 2 / ProbeTiming().period_s  # a ping and an answer a period, on average


def test_messages_stay_bounded_while_a_third_of_the_agents_is_dead() -> None:
    world = DetectorWorld(30, 32)
    world.run(5.0)
    for number in range(10):
        world.kill(f"n{number}")
    before = {name: agent.sent for name, agent in world.agents.items()}

    world.run(20.0)

    most = max(agent.sent - before[name] for name, agent in world.agents.items()) / 15.0
    assert most <= 10 / ProbeTiming().period_s
    assert believed(world, [f"n{i}" for i in range(10, 30)], [f"n{i}" for i in range(10)]) == {PeerState.DEAD}
