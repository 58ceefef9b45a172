"""The ledger of a node's resources: the order of its jobs, and the reason why one has to wait."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from gateway.domain import resource_queue
from gateway.domain.amounts import GIB, Amounts, AmountsByEngine
from gateway.domain.resource_queue import QueueRules
from gateway.domain.resources import Claim, ClaimState, Ledger
from tests.builders import a_spec, at
from tests.domain.pools import FAR_ENGINE

ALL = Amounts.of(16, 64 * GIB)
ONE_ENGINE = Ledger(ALL, node="n1")
TWO_ENGINES = Ledger(
    Amounts.of(4),
    node="n1",
    further={FAR_ENGINE: Amounts.of(16)},
)
FAR_ENGINE_AWAY = replace(TWO_ENGINES, away={FAR_ENGINE: "it has not answered"})

# The reply to a job that holds its resources; any other reply says why it waits.
HELD = ""

# Parts of replies.
BY_JOB_A = "held by job job-a"
SILENCE = f"engine {FAR_ENGINE} of node n1 has not answered since noon"


@dataclass(frozen=True)
class Application:
    """A job applies for resources at a moment (seconds)."""

    seconds: float
    claim: Claim


# A job applies, or something else changes the ledger.
Step = Application | Callable[[Ledger], Ledger]


def apply(
    seconds: float,
    job: str,
    cpu: float = 0.0,
    priority: int = 0,
    memory: float = 0.0,
    far: float | None = None,
) -> Application:
    """A job applies for cores and GiB; ``far``: cores of the further engine, None to skip it."""
    further = {} if far is None else {FAR_ENGINE: Amounts.of(far)}
    moment = at(seconds)
    claim = Claim(
        job,
        Amounts.of(cpu, memory * GIB),
        ClaimState.WAITING,
        moment,
        moment,
        priority,
        "n9",
        further=further,
    )
    return Application(seconds, claim)


def apply_again(application: Application, seconds: float) -> Application:
    """The same job applies again at a later second."""
    return replace(application, seconds=seconds)


def resize(cpu: float) -> Step:
    """The node gets another number of cores."""

    def change(ledger: Ledger) -> Ledger:
        return replace(ledger, total=Amounts.of(cpu, 64 * GIB))

    return change


def let_others_use(amounts: AmountsByEngine) -> Step:
    """Users outside the gateway use these amounts."""

    def change(ledger: Ledger) -> Ledger:
        return replace(ledger, others=amounts)

    return change


def lose_far_engine(ledger: Ledger) -> Ledger:
    """The further engine stops answering."""
    return replace(ledger, away={FAR_ENGINE: SILENCE})


def restore_far_engine(ledger: Ledger) -> Ledger:
    """The further engine answers again."""
    return replace(ledger, away={})


def end_job(job: str) -> Step:
    """A job ends and returns its claim."""

    def change(ledger: Ledger) -> Ledger:
        return ledger.without(job)

    return change


def play(
    ledger: Ledger,
    *steps: Step,
    rules: QueueRules = QueueRules(),
) -> tuple[Ledger, list[str]]:
    """Return the ledger after the steps, and the reply to each application."""
    replies = []
    for step in steps:
        if not isinstance(step, Application):
            ledger = step(ledger)
            continue
        ledger, is_held = resource_queue.apply(
            ledger,
            step.claim,
            at(step.seconds),
            rules,
        )
        replies.append(HELD if is_held else ledger.claims[step.claim.job_id].reason)
    return ledger, replies


JOB_A_TAKES_ALL = apply(0, "job-a", 16)
OLD_JOB = apply(0, "old", 4, far=4)


@dataclass(frozen=True)
class QueueCase:
    """Steps of a ledger, a part of the reply to each application, and the free cores at the end."""

    ledger: Ledger
    steps: Sequence[Step]
    replies: Sequence[str]
    remaining_cores: float


CASES: dict[str, QueueCase] = {
    "a blocked head does not block": QueueCase(
        ledger=ONE_ENGINE,
        steps=[
            apply(0, "job-a", 8),
            apply(1, "job-1", 12),
            apply(2, "job-2", 4),
        ],
        replies=[HELD, "needs cpu 12 on node n1, free cpu 8, held by job job-a (cpu 8)", HELD],
        remaining_cores=4,
    ),
    "the higher priority goes first": QueueCase(
        ledger=ONE_ENGINE,
        steps=[
            JOB_A_TAKES_ALL,
            apply(1, "low", 16, 1),
            apply(2, "high", 16, 9),
            end_job("job-a"),
            apply(3, "low", 16, 1),
        ],
        replies=[
            HELD,
            BY_JOB_A,
            BY_JOB_A,
            "needs cpu 16 on node n1, which is kept for jobs that go first: job high (cpu 16)",
        ],
        remaining_cores=16,
    ),
    "the job with the higher priority gets the cores": QueueCase(
        ledger=ONE_ENGINE,
        steps=[
            JOB_A_TAKES_ALL,
            apply(1, "low", 16, 1),
            apply(2, "high", 16, 9),
            end_job("job-a"),
            apply(3, "high", 16, 9),
        ],
        replies=[HELD, BY_JOB_A, BY_JOB_A, HELD],
        remaining_cores=0,
    ),
    "nothing is kept for a job that applies no more": QueueCase(
        ledger=ONE_ENGINE,
        steps=[
            JOB_A_TAKES_ALL,
            apply(1, "gone", 16, 9),
            end_job("job-a"),
            apply(90, "other", 1),
            apply(92, "other", 1),
        ],
        replies=[HELD, BY_JOB_A, "kept for", HELD],
        remaining_cores=15,
    ),
    "a job that does not delay the oldest one may pass it": QueueCase(
        ledger=ONE_ENGINE,
        steps=[
            apply(0, "job-a", 10, memory=8),
            apply(1, "old", 8, memory=8),
            apply(700, "old", 8, memory=8),
            apply(700, "cpu", 1),
            apply(700, "memory", memory=40),
            apply(700, "more", memory=56),
        ],
        replies=[HELD, BY_JOB_A, BY_JOB_A, "kept for", HELD, "free memory 16 GiB"],
        remaining_cores=6,
    ),
    "a job applies twice": QueueCase(
        ledger=ONE_ENGINE,
        steps=[
            apply(0, "job-a", 4),
            apply(1, "job-a", 4),
        ],
        replies=[HELD, HELD],
        remaining_cores=12,
    ),
    "a node that became smaller": QueueCase(
        ledger=ONE_ENGINE,
        steps=[
            apply(0, "job-a", 8),
            resize(6),
            apply(1, "job-b", 1),
            resize(12),
            apply(2, "job-b", 1),
        ],
        replies=[HELD, "free cpu 0", HELD],
        remaining_cores=3,
    ),
    # ---- several engines
    "an engine that is away and of no use to the job": QueueCase(
        ledger=FAR_ENGINE_AWAY,
        steps=[
            apply(0, "job-a", far=0),
            restore_far_engine,
            apply(1, "job-a", far=0),
        ],
        replies=["ENGINE_DOWN: it has not answered", HELD],
        remaining_cores=4,
    ),
    "a full engine lets the jobs of another through": QueueCase(
        ledger=TWO_ENGINES,
        steps=[
            apply(0, "job-a", 1, far=16),
            apply(0, "job-b", 3),
            apply(0, "job-c", 1, far=1),
        ],
        replies=[
            HELD,
            HELD,
            "needs cpu 1 on node n1, free cpu 0, held by job job-a (cpu 1), job job-b (cpu 3); "
            f"needs cpu 1 at engine {FAR_ENGINE} on node n1, free cpu 0, "
            "held by job job-a (cpu 16)",
        ],
        remaining_cores=0,
    ),
    "a job gets the cores of every engine or of none": QueueCase(
        ledger=TWO_ENGINES,
        steps=[
            apply(0, "job-a", far=10),
            apply(0, "job-b", 4, far=10),
        ],
        replies=[HELD, "free cpu 6"],
        remaining_cores=4,
    ),
    "claims at an engine stay while it is away": QueueCase(
        ledger=TWO_ENGINES,
        steps=[
            apply(0, "job-a", far=10),
            lose_far_engine,
            apply(1, "job-b", far=1),
            restore_far_engine,
            apply(2, "job-b", far=1),
            apply(2, "job-c", far=6),
        ],
        replies=[HELD, f"ENGINE_DOWN: {SILENCE}", HELD, "free cpu 5"],
        remaining_cores=4,
    ),
    "nothing is kept at an engine that is away": QueueCase(
        ledger=FAR_ENGINE_AWAY,
        steps=[
            OLD_JOB,
            apply_again(OLD_JOB, 9000),
            apply(9000, "young", 4),
        ],
        replies=["ENGINE_DOWN", "ENGINE_DOWN", HELD],
        remaining_cores=0,
    ),
    "every engine keeps its cores for an old job": QueueCase(
        ledger=TWO_ENGINES,
        steps=[
            apply(0, "job-a", far=16),
            OLD_JOB,
            apply(5, "young", 1),
            apply_again(OLD_JOB, 605),
            apply(606, "late", 1),
        ],
        replies=[HELD, "free cpu 0", HELD, "free cpu", "kept for jobs that go first: job old"],
        remaining_cores=3,
    ),
    "others use a cluster": QueueCase(
        ledger=replace(
            TWO_ENGINES,
            others=AmountsByEngine.of(
                Amounts.of(3),
                {FAR_ENGINE: Amounts.of(12)},
            ),
        ),
        steps=[
            apply(0, "job-a", 1, far=1),
            apply(1, "job-b", far=4),
            let_others_use(AmountsByEngine()),
            apply(2, "job-b", far=4),
        ],
        replies=[
            HELD,
            f"needs cpu 4 at engine {FAR_ENGINE} on node n1, free cpu 3, "
            "held by job job-a (cpu 1), others use cpu 12",
            HELD,
        ],
        remaining_cores=3,
    ),
    "an engine that was removed": QueueCase(
        ledger=replace(TWO_ENGINES, further={}),
        steps=[apply(0, "job-a", far=1)],
        replies=[f"there is no engine {FAR_ENGINE} on node n1 any more"],
        remaining_cores=4,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_jobs_get_resources_in_their_order_or_the_reason_to_wait(case: QueueCase):
    ledger, replies = play(case.ledger, *case.steps)

    for reply, expected in zip(replies, case.replies, strict=True):
        assert (reply == HELD) is (expected == HELD), replies
        assert expected in reply, replies
    assert ledger.remaining.cpu == case.remaining_cores * 1000


def test_a_job_without_priority_has_priority_0():
    settings = {
        "below": {"priority": -1},
        "none": {},
        "empty": {"priority": None},
        "above": {"priority": 1},
    }
    applications = [JOB_A_TAKES_ALL]
    for seconds, (job, common) in enumerate(settings.items()):
        spec = a_spec(job_params={"common": common})
        applications.append(apply(seconds, job, 16, spec.settings.priority))
    ledger, _ = play(ONE_ENGINE, *applications)

    order: list[str] = []
    while jobs := resource_queue.admissible(ledger.without("job-a"), at(6.0)):
        order += jobs
        ledger = ledger.without(jobs[0])

    assert order == ["above", "none", "empty", "below"]


def test_a_large_job_starts_within_the_ageing_bound_despite_small_ones():
    """Small jobs pass it until it is old enough, and none passes it afterwards."""
    rules = QueueRules(ageing=60.0)
    ends = {
        "first-3": 3,
        "first-6": 6,
        "first-9": 9,
    }  # seconds, by running small job
    ledger, _ = play(ONE_ENGINE, *(apply(0, job, 4) for job in ends))

    for second in range(200):
        for job in [job for job, end in ends.items() if end <= second]:
            del ends[job]
            ledger = ledger.without(job)
        ledger, [reply] = play(
            ledger,
            apply(second, "large", 16),
            rules=rules,
        )
        if reply == HELD:
            break
        small = f"small-{second}"
        ledger, [reply] = play(
            ledger,
            apply(second, small, 4, priority=100),
            rules=rules,
        )
        if reply == HELD:
            ends[small] = second + 10
        else:
            ledger = ledger.without(small)

    assert 60 <= second <= 75


def test_a_claim_is_returned_once():
    ledger, _ = play(ONE_ENGINE, apply(0, "job-a", 4))

    ledger = ledger.give_back("job-a").give_back("job-a").give_back("nobody")

    assert (ledger.remaining, ledger.ignored) == (ALL, 2)


def test_a_job_that_returned_its_claim_keeps_its_age():
    ledger, _ = play(ONE_ENGINE, apply(0, "job-a", 4))
    ledger = ledger.give_back("job-a")

    ledger, replies = play(ledger, apply(500, "job-a", 4))

    assert replies == [HELD]
    assert ledger.claims["job-a"].since == at(0.0)
