"""Faults of a node's own requests, each with the clause that names it."""

from gateway.conformance.platforms.trial import (
    CREATE,
    POLL,
    REPORT,
    START,
    START_TASK,
    STOP,
)
from tests.conformance.platforms.mutants.kinds import (
    Case,
    changed_refusal,
    changed_request,
    in_seconds,
    named_by_underscores,
    second_task,
    starts_too_early,
    stops_what_succeeded,
    swallowed,
    swapped_address,
    twice,
    with_other_id,
    without_field,
    without_parameters,
)
from tests.conformance.platforms.proxy import success


def before_the_partner() -> list[Case]:
    """Return faults of the checked node's own requests."""
    return [
        Case(
            "C-3.1-create",
            "no parameters",
            changed_request(CREATE, without_parameters),
        ),
        Case(
            "C-3.1-once",
            "per role",
            twice(CREATE),
        ),
        Case(
            "C-3.4-fields",
            "no job id",
            changed_request(START_TASK, without_field("job_id")),
        ),
        Case(
            "C-3.6-failure",
            "no stop",
            swallowed(STOP),
        ),
        Case(
            "C-3.5-stop",
            "no stop",
            swallowed(STOP),
        ),
        Case(
            "C-3.8-polls",
            "no role",
            changed_request(POLL, without_field("role")),
        ),
        Case(
            "C-3.9-reports",
            "silent",
            swallowed(REPORT),
        ),
        Case(
            "C-2.2-headers",
            "underscores",
            changed_request(START_TASK, named_by_underscores),
        ),
        Case(
            "C-2.2-headers",
            "seconds",
            changed_request(START_TASK, in_seconds),
        ),
        Case(
            "C-3.1-data",
            "swapped",
            changed_request(CREATE, swapped_address),
        ),
        Case(
            "C-3.3-refused",
            "ignores it",
            changed_refusal(START, success()),
        ),
        Case(
            "C-3.4-refused",
            "ignores it",
            changed_refusal(START_TASK, success()),
        ),
        Case(
            "C-3.4-order",
            "too early",
            starts_too_early,
        ),
        Case(
            "C-3.4-once",
            "twice",
            twice(START_TASK),
        ),
        Case(
            "C-3.4-id",
            "a UUID",
            changed_request(START_TASK, with_other_id),
        ),
        Case(
            "C-3.4-lost",
            "a second task",
            second_task,
        ),
        Case(
            "C-3.8-refused",
            "ignores it",
            changed_refusal(POLL, success(status="RUNNING")),
        ),
        Case(
            "C-3.6-success",
            "stops it",
            stops_what_succeeded,
        ),
    ]
