"""What becomes of what a node tells the scheduling node, by what it answers."""

from typing import Any, cast

import pytest

from gateway.domain.execution.messages import Confirm, Done, Event, QueryScheduler
from gateway.domain.run import LocalJob
from gateway.errors import Refused
from gateway.jobs.executor import Telling
from gateway.runtime.context import Peers
from tests.builders import a_local_job, at


class Answers:
    """A scheduling node that refuses everything for one reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def scheduler(self, *_: str) -> Any:
        return self

    def confirm_job(self, *_: Any) -> None:
        raise Refused("no", reason=self.reason)

    job_status = confirm_job


@pytest.mark.parametrize(("reason", "final"), [("NO_ENVELOPE", False), ("INTERNAL", False), ("JOB_BUSY", True)])
def test_an_answer_that_leaves_it_open_is_asked_for_again(reason: str, final: bool):
    """A page of something that stands in the node's place neither hears a decision nor knows a job."""
    telling = Telling(cast(Peers, Answers(reason)), lambda: at(0), lambda local: None, lambda node: None)
    job: LocalJob = a_local_job()
    said: list[Event] = [*telling.confirm(job, Confirm()), *telling.ask(job, QueryScheduler())]
    assert [isinstance(event, Done) and event.final for event in said] == [final, final]
