"""Who may hold what it needs now: priority, then age, no blocked head, and nobody waits for ever."""

from dataclasses import replace

from gateway.domain import admission
from gateway.domain.admission import Rules
from gateway.domain.resources import GIB, Amounts, Claim, ClaimState, Ledger
from tests.builders import at

TOTAL = Amounts.of(16, 64 * GIB)


def a_claim(job: str, cpu: float, since: float = 0.0, priority: int = 0, memory: float = 0.0) -> Claim:
    return Claim(job, Amounts.of(cpu, memory * GIB), ClaimState.WAITING, at(since), at(since), priority, "n9")


def ask(ledger: Ledger, claim: Claim, now: float, rules: Rules = Rules()) -> tuple[Ledger, bool]:
    return admission.apply(ledger, claim, at(now), rules)


def holding(*claims: Claim, total: Amounts = TOTAL) -> Ledger:
    ledger = Ledger(total, node="n1")
    for claim in claims:
        ledger, held = ask(ledger, claim, 0.0)
        assert held
    return ledger


def test_a_blocked_head_does_not_block():
    ledger, held = ask(holding(a_claim("job-a", 8)), a_claim("job-1", 12), 1.0)
    assert not held
    assert ledger.claims["job-1"].reason == "needs cpu 12 on node n1, free cpu 8, held by job job-a (cpu 8)"
    ledger, held = ask(ledger, a_claim("job-2", 4), 2.0)
    assert held
    assert ledger.remaining.cpu == 4000


def test_the_higher_priority_goes_first_where_both_fit():
    ledger = holding(a_claim("job-a", 16))
    ledger, _ = ask(ledger, a_claim("low", 16, priority=1), 1.0)
    ledger, _ = ask(ledger, a_claim("high", 16, 2.0, priority=10), 2.0)
    ledger = ledger.without("job-a")
    assert admission.admissible(ledger, at(3.0)) == ["high"]
    ledger, held = ask(ledger, a_claim("low", 16, priority=1), 3.0)  # it asks first, and does not get it
    assert not held
    assert ledger.claims["low"].reason == (
        "needs cpu 16 on node n1, which is kept for jobs that go first: job high (cpu 16)"
    )
    ledger, held = ask(ledger, a_claim("high", 16, priority=10), 4.0)
    assert held


def test_equal_priorities_go_by_age():
    ledger = holding(a_claim("job-a", 16))
    for i, job in enumerate(("second", "first")):
        ledger, _ = ask(ledger, a_claim(job, 10, 2.0 - i), 3.0)
    assert admission.admissible(ledger.without("job-a"), at(4.0)) == ["first"]


def test_what_is_kept_for_a_job_that_asks_no_more_is_given_to_others_after_a_while():
    ledger = holding(a_claim("job-a", 16))
    ledger, _ = ask(ledger, a_claim("gone", 16, priority=10), 1.0)
    ledger = ledger.without("job-a")
    assert not ask(ledger, a_claim("other", 1), 90.0)[1]
    assert ask(ledger, a_claim("other", 1), 92.0)[1]


def test_a_large_job_starts_within_the_ageing_bound_although_small_ones_never_cease():
    rules = Rules(ageing=60.0)
    running = [(float(end), f"first-{end}") for end in (3, 6, 9)]
    ledger = holding(*(a_claim(job, 4) for _, job in running))
    for second in range(200):
        for ends, job in [r for r in running if r[0] <= second]:
            running.remove((ends, job))
            ledger = ledger.without(job)
        ledger, held = ask(ledger, a_claim("large", 16, second), second, rules)
        if held:
            break
        small = f"small-{second}"
        ledger, held = ask(ledger, a_claim(small, 4, second, priority=100), second, rules)
        if held:
            running.append((second + 10, small))
        else:
            ledger = ledger.without(small)
    assert 60 <= second <= 75  # it is passed until then, and by nobody afterwards


def test_who_does_not_delay_the_oldest_may_pass_it():
    ledger = holding(a_claim("job-a", 10, memory=8))
    ledger, _ = ask(ledger, a_claim("old", 8, memory=8), 1.0)
    now = 700.0
    ledger, _ = ask(ledger, a_claim("old", 8, memory=8), now)
    assert not ask(ledger, a_claim("some cpu", 1, now), now)[1]
    assert ask(ledger, a_claim("memory only", 0, now, memory=40), now)[1]
    assert not ask(ledger, a_claim("too much memory", 0, now, memory=56), now)[1]


def test_a_job_keeps_its_age_when_it_has_to_give_back():
    ledger = holding(a_claim("job-a", 4)).give_back("job-a")
    ledger, held = ask(ledger, a_claim("job-a", 4, 500.0), 500.0)
    assert held
    assert ledger.claims["job-a"].since == at(0.0)


def test_asked_twice_it_holds_once_and_returned_twice_it_is_returned_once():
    ledger, held = ask(holding(a_claim("job-a", 4)), a_claim("job-a", 4), 1.0)
    assert held
    assert ledger.held.cpu == 4000
    ledger = ledger.give_back("job-a").give_back("job-a").give_back("nobody")
    assert (ledger.remaining, ledger.ignored) == (TOTAL, 2)


def test_a_node_that_has_become_smaller_has_the_rest_of_its_new_total():
    ledger = replace(holding(a_claim("job-a", 8)), total=Amounts.of(6, 64 * GIB))
    assert ledger.remaining.cpu == -2000
    ledger, held = ask(ledger, a_claim("job-b", 1), 1.0)
    assert not held
    assert "free cpu 0" in ledger.claims["job-b"].reason
    assert ask(replace(ledger, total=Amounts.of(12)), a_claim("job-b", 1), 2.0)[1]
