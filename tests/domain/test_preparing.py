"""What a participating node fetches before it says that a job is READY."""

from dataclasses import replace

from gateway.domain import approval, waiting
from gateway.domain.approval import Mode, Policy
from gateway.domain.execution import machine
from gateway.domain.execution.messages import (
    Confirm,
    Decided,
    Done,
    Fetching,
    OwnerLost,
    Prepare,
    Prepared,
    Restarted,
    StopRequested,
)
from gateway.domain.run import LocalJob
from gateway.domain.spec import Failure
from gateway.domain.states import JobStatus
from tests.builders import a_local_job, at

IMAGES = {"vendor:1": ""}
LOST = Failure("PULL_DENIED", "the registry says no")


def fresh() -> LocalJob:
    return a_local_job(status=JobStatus.READY)


def fetched(local: LocalJob | None = None) -> LocalJob:
    """Return a job whose images are being fetched."""
    local = local or approval.with_preparation(fresh(), IMAGES, 100, at(0))
    local, actions = machine.step(local, at(1))
    assert actions == [Prepare()]
    return local


def test_a_job_that_lacks_nothing_stays_as_it_is():
    assert approval.with_preparation(fresh(), {}, 100, at(0)) == fresh()


def test_images_are_fetched_once_and_then_the_node_says_that_it_is_ready():
    local = fetched()
    assert local.status is JobStatus.PENDING
    assert machine.step(local, at(50))[1] == [], "it is under way"
    local = machine.apply(local, Fetching("1 of 2 layers", at(3)))
    said = waiting.of_local(local)
    assert said is not None and said.reason == "PREPARING" and "vendor:1" in said.message
    assert "1 of 2 layers" in said.message and said.next_check == at(100)
    local = machine.apply(local, Prepared(None, at(9)))
    assert local.status is JobStatus.READY
    assert machine.step(local, at(9))[1] == [Confirm()]
    assert machine.apply(local, Prepared(LOST, at(10))) == local, "once"


def test_what_cannot_be_had_refuses_the_job_in_the_engines_words():
    local = machine.apply(fetched(), Prepared(LOST, at(9)))
    assert local.status is JobStatus.REJECTED and local.approval and local.approval.failure
    told = local.approval.failure
    assert (told.reason, told.message, told.node) == ("PULL_DENIED", "the registry says no", "n1")


def test_what_has_not_come_in_time_refuses_the_job():
    local = machine.apply(fetched(), Fetching("3 of 9 layers", at(50)))
    local, _ = machine.step(local, at(100))
    assert local.status is JobStatus.REJECTED and local.approval and local.approval.failure
    assert local.approval.failure.reason == "PULL_TIMEOUT" and "3 of 9 layers" in local.approval.failure.message
    assert machine.apply(local, Prepared(None, at(101))) == local


def test_an_engine_that_is_away_and_a_gateway_that_begins_anew_are_tried_again():
    local = machine.apply(fetched(), Done(Prepare(), at(2), final=False, message="the engine is away"))
    assert machine.step(local, at(2))[1] == [] and machine.step(local, at(12))[1] == [Prepare()]
    assert machine.step(machine.apply(fetched(), Restarted(at(2), "")), at(2))[1] == [Prepare()]
    elsewhere = machine.apply(replace(fetched(), home="one"), OwnerLost("one", "two", at(2)))
    assert machine.step(elsewhere, at(2), owner="two")[1] == [Prepare()]


def test_a_stop_ends_it():
    local = machine.apply(fetched(), StopRequested(at(2), None, None, "n2"))
    assert approval.prepares(local) is None
    assert machine.apply(local, Prepared(None, at(3))).status is local.status is not JobStatus.READY


def with_person() -> LocalJob:
    asked = approval.opened(fresh(), Policy(Mode.PERSON, 500), "a person", at(0))
    return fetched(approval.with_preparation(asked, IMAGES, 100, at(0)))


def test_where_a_person_has_to_agree_both_are_waited_for_in_any_order():
    yes = Decided(True, "li", "", at(5))
    first = machine.apply(with_person(), yes)
    assert first.status is JobStatus.PENDING and not approval.asks_person(first)
    assert machine.apply(first, Decided(False, "wu", "", at(6))) == first, "that was decided"
    assert machine.apply(first, Prepared(None, at(7))).status is JobStatus.READY
    second = machine.apply(with_person(), Prepared(None, at(5)))
    assert second.status is JobStatus.PENDING and approval.asks_person(second)
    said = waiting.of_local(second)
    assert said is not None and said.reason == "APPROVAL"
    ready = machine.apply(second, yes)
    assert ready.status is JobStatus.READY and ready.approval and ready.approval.by == "li"
    assert machine.apply(with_person(), Decided(False, "li", "no", at(5))).status is JobStatus.REJECTED
