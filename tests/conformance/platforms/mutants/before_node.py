"""Faults of a node's responses, each with the clause that names it."""

from adapter.bfia.channel.codec import INVOKE, TRANSPORT
from adapter.bfia.paths import NODE, ROOT
from gateway.conformance.platforms.trial import (
    CREATE,
    CREATE_ALL,
    POLL,
    REPORT,
    START,
    START_TASK,
    STATUS_ALL,
    STOP,
    STOP_ALL,
)
from tests.conformance.platforms.mutants.kinds import (
    Case,
    FailsAfterStop,
    FailsAfterSuccess,
    RefusesRepetitions,
    TakesLateReports,
    always_json,
    another_sender_in_the_job,
    answers_first,
    changed_refusal,
    changed_request,
    changed_response,
    echoing_refusals,
    for_this_node,
    forgets_signatures,
    has_extension,
    has_no_host,
    has_no_old_sender,
    has_no_role,
    has_null_flow,
    has_query_only,
    is_post,
    json_only,
    known_sender,
    lacks_flow,
    never_ends,
    of_old_transports,
    passes_through_only,
    refused_if,
    renamed_state,
    replaced,
    stored,
    swallowed,
    traced,
    with_password,
    without,
)
from tests.conformance.platforms.proxy import answering, success


def before_the_node() -> list[Case]:
    """Return faults of the checked node's responses."""
    return [
        Case(
            "C-2-envelope",
            "no msg",
            changed_response(CREATE, without("msg")),
        ),
        Case(
            "C-2-envelope",
            "data a list",
            changed_response(CREATE, replaced(data=[1])),
        ),
        Case(
            "C-2-code",
            "code 200",
            changed_response(CREATE, replaced(code=200)),
        ),
        Case(
            "C-2-refusal",
            "no text",
            changed_refusal(POLL, answering({"code": 1})),
        ),
        Case("C-2-malformed", "a trace", traced),
        Case(
            "C-2-missing",
            "accepts anything",
            changed_refusal(CREATE, success()),
        ),
        Case(
            "C-2-types",
            "any id starts",
            changed_refusal(START, success()),
        ),
        Case(
            "C-2-trace",
            "a trace of a job",
            traced,
        ),
        Case(
            "C-3.2-create",
            "refuses jobs",
            refused_if(CREATE, is_post),
        ),
        Case(
            "C-3.2-optional",
            "no null",
            refused_if(CREATE, has_null_flow),
        ),
        Case(
            "C-3.2-unknown-fields",
            "strict",
            refused_if(CREATE, has_extension),
        ),
        Case(
            "C-3.2-repeat",
            "created twice",
            RefusesRepetitions(CREATE),
        ),
        Case(
            "C-3.2-conflict",
            "the first stays",
            changed_refusal(CREATE, success()),
        ),
        Case(
            "C-3.2-component",
            "accepted early",
            changed_refusal(CREATE, success()),
        ),
        Case(
            "C-3.2-flow",
            "cycles accepted",
            changed_refusal(CREATE, success()),
        ),
        Case(
            "C-3.3-start",
            "started twice",
            RefusesRepetitions(START),
        ),
        Case(
            "C-3.3-unknown",
            "starts nothing",
            changed_refusal(START, success()),
        ),
        Case(
            "C-3.4-repeat",
            "task twice",
            RefusesRepetitions(START_TASK),
        ),
        Case(
            "C-3.4-unknown",
            "any task",
            changed_refusal(START_TASK, success()),
        ),
        Case(
            "C-3.8-states",
            "own states",
            changed_response(POLL, renamed_state),
        ),
        Case(
            "C-3.8-end",
            "fails later",
            FailsAfterSuccess(),
        ),
        Case(
            "C-3.8-role",
            "needs a role",
            refused_if(POLL, has_no_role),
        ),
        Case(
            "C-3.8-unknown",
            "any poll",
            changed_refusal(POLL, success(status="READY")),
        ),
        Case(
            "C-3.6-stop",
            "ignores stop",
            swallowed(STOP),
        ),
        Case(
            "C-3.6-unknown",
            "stops anything",
            changed_refusal(STOP, success()),
        ),
        Case(
            "C-3.6-finish",
            "fails at the end",
            FailsAfterStop(),
        ),
        Case(
            "C-3.7-status",
            "GET only",
            refused_if(STATUS_ALL, is_post),
        ),
        Case(
            "C-3.7-unknown",
            "empty",
            changed_refusal(STATUS_ALL, success()),
        ),
        Case(
            "C-3.1-refused",
            "no refusal",
            changed_refusal(CREATE_ALL, success()),
        ),
        Case(
            "C-3.9-takes-reports",
            "lost reports",
            swallowed(REPORT),
        ),
        Case(
            "T-2.2-json",
            "old code",
            changed_response(INVOKE, of_old_transports),
        ),
        Case(
            "T-2.2-protobuf",
            "JSON only",
            json_only,
        ),
        Case("T-2.1-session", "no session", stored),
        Case("T-2.1-uri", "any path", stored),
        Case("T-3-garbage", "any bytes", stored),
        Case(
            "S-stranger",
            "any sender",
            changed_request(CREATE, another_sender_in_the_job),
        ),
        Case(
            "C-2-leak",
            "repeats the request",
            echoing_refusals(CREATE),
        ),
        Case(
            "C-3.2-third",
            "needs a host",
            refused_if(CREATE, has_no_host),
        ),
        Case(
            "C-3.4-start",
            "starts nothing",
            refused_if(START_TASK, is_post),
        ),
        Case(
            "C-3.1-repeat",
            "submitted twice",
            RefusesRepetitions(CREATE_ALL),
        ),
        Case(
            "C-3.1-conflict",
            "the first stays",
            changed_refusal(CREATE_ALL, success()),
        ),
        Case(
            "C-3.1-flow",
            "cycles accepted",
            changed_refusal(CREATE_ALL, success()),
        ),
        Case(
            "C-3.1-node",
            "unknown parties",
            changed_refusal(CREATE_ALL, success()),
        ),
        Case(
            "C-3.1-optional",
            "needs a flow id",
            refused_if(CREATE_ALL, lacks_flow),
        ),
        Case(
            "C-3.1-wait",
            "answers too early",
            answers_first,
        ),
        Case(
            "C-3.1-leak",
            "repeats the job",
            echoing_refusals(CREATE_ALL),
        ),
        Case(
            "C-2.2-source",
            "needs x-node-id",
            refused_if(REPORT, has_no_old_sender),
        ),
        Case(
            "C-3.8-end-of-job",
            "never ends",
            changed_response(STATUS_ALL, never_ends),
        ),
        Case(
            "C-3.9-early",
            "lost reports",
            swallowed(REPORT),
        ),
        Case(
            "C-3.9-repeat",
            "once only",
            RefusesRepetitions(REPORT),
        ),
        Case(
            "C-3.9-late",
            "takes late reports",
            TakesLateReports(),
        ),
        Case(
            "C-3.9-unknown",
            "any task",
            changed_refusal(REPORT, success()),
        ),
        Case(
            "C-3.9-state",
            "any state",
            changed_refusal(REPORT, success()),
        ),
        Case(
            "C-3.5-unknown",
            "stops anything",
            changed_refusal(STOP_ALL, success()),
        ),
        Case(
            "C-3.7-query",
            "needs a body",
            refused_if(STATUS_ALL, has_query_only),
        ),
        Case(
            "T-5.2-json",
            "pass-through only",
            passes_through_only,
        ),
        Case(
            "T-5.2-protobuf",
            "pass-through only",
            passes_through_only,
        ),
        Case(
            "T-2.2.2-transport",
            "old code",
            changed_response(TRANSPORT, of_old_transports),
        ),
        Case(
            "T-3-type",
            "always JSON",
            always_json,
        ),
        Case("T-2.1-target", "any node", stored),
        Case("T-2.1-ended", "any job", stored),
        Case("T-2.1-source", "any sender", stored),
        Case(
            "M-3-query",
            "no address",
            changed_response(f"{NODE}/query", without("data")),
        ),
        Case(
            "M-3-health",
            "no status",
            changed_response(f"{NODE}/health", without("data")),
        ),
        Case(
            "M-3-leak",
            "a password",
            changed_response(f"{NODE}/query", with_password),
        ),
        Case(
            "M-4-contract",
            "any contract",
            changed_refusal(f"{ROOT}/dataset/pub/list", success()),
        ),
        Case(
            "S-status",
            "any sender",
            changed_request(STATUS_ALL, known_sender),
        ),
        Case(
            "S-stop",
            "any sender",
            changed_request(STOP, known_sender),
        ),
        Case(
            "S-role",
            "any job",
            changed_refusal(CREATE, success()),
        ),
        Case(
            "S-target",
            "any target",
            changed_request(CREATE, for_this_node),
        ),
    ]


def before_the_node_with_signatures() -> list[Case]:
    """Return faults in the check of signatures."""
    return [
        Case(
            "S-replay",
            "accepts it",
            forgets_signatures,
        ),
        Case(
            "S-altered",
            "accepts it",
            forgets_signatures,
        ),
        Case(
            "S-old",
            "accepts it",
            forgets_signatures,
        ),
    ]
