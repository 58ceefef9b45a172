"""The pace of a partner: its rate in any period, and turns of the sessions."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.pacing import Pacer

RATE = 640_000
SLICE = 10_000
BURST = 160_000
SESSIONS = ["a", "b", "c"]


def pacer():
    """Return a pacer without a burst left, at time 0."""
    full = Pacer(RATE, 0.0)
    full.charge(BURST, 0.0)
    return full


def counts_of(passed):
    """Return how many slices of each session have passed."""
    counts = Counter()
    for _, session, _ in passed:
        counts[session] += 1
    return counts


class Play:
    """Slices that wait for a pacer, and the times at which they passed."""

    def __init__(self, pacer, now=0.0):
        self.pacer = pacer
        self.now = now
        self.slices = {}  # session and size by ticket
        self.passed = []  # time, session and size

    def ask(self, session, size=SLICE, sender=""):
        ticket = self.pacer.ask(session, size, sender)
        self.slices[ticket] = (session, size)
        return ticket

    def grant(self):
        """Let slices pass at the present time; return their sessions."""
        sessions = []
        for ticket in self.pacer.grant(self.now):
            session, size = self.slices.pop(ticket)
            self.passed.append((self.now, session, size))
            sessions.append(session)
        return sessions

    def run(self, turns=10**6):
        """Go on until nothing waits, or for some turns."""
        self.grant()
        while turns and (pause := self.pacer.pause()) is not None:
            self.now += pause
            self.grant()
            turns -= 1


REQUESTS = st.tuples(
    st.sampled_from(SESSIONS),
    st.integers(1, SLICE),
    st.floats(0, 0.05),  # seconds until the next one
)
MESSAGES = st.dictionaries(
    st.sampled_from(SESSIONS),
    st.integers(1, 7),
    min_size=2,
)


@given(st.lists(REQUESTS, max_size=25))
def test_no_period_has_more_than_the_rate_and_a_burst(requests):
    play = Play(Pacer(RATE, 0.0))
    for session, size, pause in requests:
        play.ask(session, size)
        play.now += pause
        play.grant()
    play.run()
    assert len(play.passed) == len(requests)
    for index, first in enumerate(play.passed):
        begin, _, _ = first
        total = 0
        for end, _, size in play.passed[index:]:
            total += size
            seconds = end - begin
            limit = RATE * seconds + BURST
            assert total <= limit + 0.01


@given(MESSAGES)
def test_sessions_that_wait_get_equal_shares(messages):
    play = Play(pacer())
    for session, count in messages.items():
        for _ in range(count):
            play.ask(session)
    for _ in range(200):
        play.now += play.pacer.pause()
        for session in play.grant():
            play.ask(session)
    shares = counts_of(play.passed)
    counts = [shares[session] for session in messages]
    largest = max(counts)
    assert largest - min(counts) <= 1


def test_shares_are_of_bytes_and_not_of_slices():
    sizes = {
        "short": SLICE // 10,
        "long": SLICE,
    }
    play = Play(pacer())
    for session, size in sizes.items():
        play.ask(session, size)
    for _ in range(220):
        play.now += play.pacer.pause()
        for session in play.grant():
            play.ask(session, sizes[session])
    shares = Counter()
    for _, session, size in play.passed:
        shares[session] += size
    difference = shares["short"] - shares["long"]
    assert abs(difference) <= 2 * SLICE


def test_a_new_session_waits_for_no_long_line_of_another():
    play = Play(pacer())
    for _ in range(100):
        play.ask("many")
    play.run(turns=10)
    play.ask("new")
    play.run(turns=2)
    assert counts_of(play.passed)["new"] == 1


def test_a_pause_earns_nothing():
    play = Play(pacer())
    play.ask("paused")
    for _ in range(60):
        play.ask("busy")
    play.run(turns=40)
    for _ in range(20):
        play.ask("paused")
    before = len(play.passed)
    play.run(turns=20)
    shares = counts_of(play.passed[before:])
    difference = shares["paused"] - shares["busy"]
    assert abs(difference) <= 1


@given(st.lists(st.integers(1, 3 * RATE), max_size=8))
def test_bytes_that_do_not_wait_hold_up_others_for_a_second_at_most(charges):
    play = Play(Pacer(RATE, 0.0))
    for size in charges:
        play.pacer.charge(size, 0.0)
    play.ask("a")
    play.run()
    charged = min(sum(charges), BURST + RATE)
    missing = charged + SLICE - BURST
    seconds = max(missing / RATE, 0.0)
    assert play.now == pytest.approx(seconds, abs=0.0021)


def test_bytes_that_do_not_wait_leave_a_part_of_the_rate_to_the_others():
    play = Play(pacer())
    for tenth in range(1, 201):
        play.now = tenth / 10
        play.pacer.charge(RATE, play.now)  # ten times as many as the line takes
        play.ask("a")
        play.grant()
    assert len(play.passed) * SLICE >= 200 * SLICE * 9 // 10


def test_a_sender_with_many_sessions_gets_no_more_than_another():
    play = Play(pacer())
    for number in range(30):
        play.ask(
            f"session {number}",
            sender="greedy",
        )
    for _ in range(3):
        play.ask(
            "session 1",
            sender="modest",
        )
    play.run(turns=6)
    assert counts_of(play.passed)["session 1"] >= 3


def test_sessions_of_one_sender_take_turns_beside_another_sender():
    play = Play(pacer())
    messages = {
        "many": 20,
        "few": 4,
    }
    for session, count in messages.items():
        for _ in range(count):
            play.ask(
                session,
                sender="first",
            )
    for _ in range(24):
        play.ask(
            "other",
            sender="second",
        )
    play.run(turns=16)
    assert counts_of(play.passed) == {
        "many": 4,
        "few": 4,
        "other": 8,
    }


@pytest.mark.parametrize("varied", ["session", "sender"])
def test_names_that_a_peer_makes_up_are_forgotten(varied):
    play = Play(pacer())
    play.ask("always one more waits than passes")
    for number in range(2500):
        names = {
            "session": "a",
            "sender": "b",
            varied: str(number),
        }
        play.ask(**names)
        play.run(turns=1)
    assert len(play.pacer) > 0
    assert play.pacer.remembered_names < 2100


def test_all_pass_at_the_new_rate_after_a_cut():
    play = Play(Pacer(64 * RATE, 0.0))
    play.pacer.charge(16 * RATE, 0.0)
    play.ask("a", 262_144)  # more than a burst of the new rate
    play.ask("a", 262_144)
    play.pacer.rate = RATE
    play.run()
    assert len(play.passed) == 2
    assert play.now > (262_144 - BURST) / RATE


def test_a_withdrawn_slice_does_not_pass():
    play = Play(pacer())
    first = play.ask("a")
    play.ask("a")
    last = play.ask("b")
    play.pacer.withdraw(first)
    play.pacer.withdraw(last)
    assert len(play.pacer) == 1
    play.run()
    assert len(play.passed) == 1


def test_a_slice_has_its_limit():
    with pytest.raises(ValueError, match="fewer bytes"):
        pacer().ask("a", SLICE + 1)
