"""What goes over the wire comes back as the same job, and tells no party of another; headers in any spelling."""

import copy
import json
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from adapter.bfia import translate, wire
from adapter.bfia.examples import A_JOB, JOB
from adapter.bfia.peer import request_headers
from adapter.bfia.profiles import PROFILES
from adapter.bfia.requests import incoming
from adapter.body import read_json
from gateway.domain import dag as flow
from gateway.domain import validation
from gateway.domain.spec import JobSpec, Party, effective, overlay

REPEATABLE = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=40,
)

NODES = [f"JG010000{n}" for n in range(5)]
ROLES = ("guest", "host", "arbiter")
WORDS = st.text(
    st.characters(
        codec="utf-8",
        exclude_characters="./\\#|",
        exclude_categories=("Cc", "Zs"),
    ),
    min_size=1,
    max_size=8,
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the body of a valid job, in one of the spellings that peers use."""
    names = draw(
        st.lists(
            WORDS,
            min_size=1,
            max_size=5,
            unique=True,
        )
    )
    components: list[dict[str, Any]] = []
    for i, name in enumerate(names):
        before = (
            draw(st.lists(st.sampled_from(components), unique_by=lambda c: c["name"], max_size=2))
            if i
            else []
        )
        component_key = draw(st.sampled_from(("componentName", "module_name")))
        inputs = [
            {"type": o["type"], "key": f"{c['name']}.{o['key']}"} for c in before for o in c["made"]
        ]
        made = [
            {"type": draw(st.sampled_from(("dataset", "model", "report"))), "key": key}
            for key in draw(st.lists(WORDS, max_size=2, unique=True))
        ]
        components.append(
            {
                "name": name,
                component_key: draw(WORDS),
                draw(st.sampled_from(("provider", "code"))): draw(WORDS),
                "version": draw(WORDS),
                draw(st.sampled_from(("input", "inputData"))): inputs,
                draw(st.sampled_from(("output", "outputData"))): made,
                "made": made,
            }
        )
    roles = {
        role: draw(
            st.lists(
                st.sampled_from(NODES),
                min_size=1,
                max_size=3,
                unique=True,
            )
        )
        for role in draw(st.lists(st.sampled_from(ROLES), min_size=1, unique=True))
    }
    role = draw(st.sampled_from(sorted(roles)))
    config = {
        "initiator": {
            "role": role,
            draw(st.sampled_from(("node_id", "nodeId"))): draw(st.sampled_from(roles[role])),
        },
        "role": roles,
        "job_params": draw(params(roles, names)),
        "task_params": draw(params(roles, names)),
        "version": draw(st.sampled_from(("2.0", "2.0.0"))),
    }
    return {
        "job_id": draw(st.from_regex(r"[A-Za-z0-9_-]{1,40}", fullmatch=True)),
        "flow_id": draw(
            st.none()
            | st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=20)
        ),
        "dag": {"components": components, "version": draw(st.sampled_from(("1.0", "2.0")))},
        draw(st.sampled_from(("config", "conf"))): config,
    }


@st.composite
def params(
    draw: st.DrawFn,
    roles: dict[str, list[str]],
    tasks: list[str],
) -> dict[str, Any]:
    """Draw parameters: of all, and of parties by index, several of them under one key too."""
    entries = st.dictionaries(
        st.sampled_from(tasks), st.dictionaries(WORDS, VALUES, max_size=2), max_size=2
    )
    found: dict[str, Any] = {"common": draw(entries)} if draw(st.booleans()) else {}
    for role, nodes in roles.items():
        if draw(st.booleans()):
            keys = [*map(str, range(len(nodes))), "|".join(map(str, range(len(nodes))))]
            found[role] = draw(st.dictionaries(st.sampled_from(keys), entries, max_size=3))
    return found


def specified(body: dict[str, Any]) -> JobSpec:
    """Read a body as the routers do."""
    read = wire.CreateJob.model_validate(read_json(json.dumps(body).encode()))
    return translate.job_spec(read, read.job_id, "scheduler", "trace")


@given(bodies(), st.sampled_from(sorted(PROFILES)))
@REPEATABLE
def test_a_job_that_is_passed_on_is_the_same_job(body, profile):
    spec = specified(body)
    assert flow.check(spec.dag) == []
    assert validation.check(spec)[0] == []
    sent = translate.create_body(spec, PROFILES[profile])
    assert read_json(json.dumps(sent, ensure_ascii=False, allow_nan=False).encode()) == sent
    again = specified(sent)
    if (
        PROFILES[profile].needs_common and "common" not in spec.job_params
    ):  # what is put in says what held anyway
        assert again.job_params["common"] == {
            "sync_type": "callback" if spec.settings.by_callback else "poll"
        }
        spec = replace(spec, job_params={"common": again.job_params["common"]} | spec.job_params)
    assert replace(again, job_params={}, task_params={}) == replace(
        spec, job_params={}, task_params={}
    )
    assert specified(translate.create_body(again, PROFILES[profile])) == again
    assert again.job_params.get("common") == spec.job_params.get("common")
    for party in spec.parties:
        for node in spec.dag.nodes:
            here = {k: v.value for k, v in effective(spec.task_params, party, node.name).items()}
            there = {k: v.value for k, v in effective(again.task_params, party, node.name).items()}
            assert there == here
            assert job_entry(again, party, node.name) == job_entry(spec, party, node.name)
    if not PROFILES[profile].reads_task_entries and "|" not in json.dumps(body):
        assert (
            again == spec
        )  # else entries are written apart, and empty ones are added for some peers


def job_entry(
    spec: JobSpec,
    party: Party,
    name: str,
) -> dict[str, Any]:
    """Return what the job's own settings say under a name for a party."""
    return {k: v.value for k, v in overlay(spec.job_params, party, name).items()}


def test_an_entry_of_many_indices_is_not_multiplied():
    body = copy.deepcopy({**A_JOB, "job_id": JOB})
    every = "|".join(map(str, range(900)))
    body["config"]["task_params"] = {"guest": {every: {"echo_1": {"x": "y" * 10_000}}}}
    assert len(json.dumps(translate.create_body(specified(body), PROFILES["spec"]))) < 20_000


@given(bodies(), st.sampled_from(NODES), st.sampled_from(sorted(PROFILES)))
@REPEATABLE
def test_no_node_receives_another_partys_entries(body, node, profile):
    config = body.get("config") or body["conf"]
    others = 0
    for name in ("job_params", "task_params"):
        for role, by_index in config[name].items():
            for key in by_index if role != "common" else ():
                mine = any(config["role"][role][int(i)] == node for i in key.split("|"))
                by_index[key] = {"secret_task": {"dataset_id": "mine" if mine else "SECRET"}}
                others += not mine
    spec = specified(body)
    told = json.dumps(translate.create_body(spec.for_node(node), PROFILES[profile]))
    assert "SECRET" not in told
    assert ("mine" in told) == ('"mine"' in json.dumps(config))
    assert spec.for_node(node).for_node(node) == spec.for_node(node)
    assert others == json.dumps(config).count("SECRET")


# ---------------------------------------------------------------- headers

NAMES = ("x-source-node-id", "x-node-id")


def spelled(draw: st.DrawFn, name: str) -> str:
    name = name.replace("-", "_") if draw(st.booleans()) else name
    return "".join(c.upper() if draw(st.booleans()) else c for c in name)


def request_with(headers: list[tuple[str, str]]) -> Request:
    raw = [
        (k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in headers
    ]  # as servers hand them on
    return Request({"type": "http", "headers": raw})


@given(st.data())
@REPEATABLE
def test_a_sender_is_read_in_any_spelling_of_the_header(data):
    node, target = data.draw(st.sampled_from(NODES)), data.draw(st.sampled_from(NODES))
    blank = data.draw(st.sampled_from(("", " ", "\t ")))
    headers = [
        (spelled(data.draw, data.draw(st.sampled_from(NAMES))), f"{blank}{node}{blank}"),
        (spelled(data.draw, "x-target-node-id"), target),
        (spelled(data.draw, "x-trace-id"), "trace_1"),
    ]
    said = incoming(request_with(data.draw(st.permutations(headers))))
    assert said.source == node
    assert said.target == target
    assert said.trace_id == "trace_1"


@given(st.sampled_from(NODES), st.sampled_from(NODES))
@REPEATABLE
def test_what_is_sent_is_read_again(source, target):
    sent = request_headers(source, target, "trace_1")
    received = incoming(request_with(list(sent.items())))
    assert received.source == source
    assert received.target == target
    assert received.trace_id == "trace_1"
    assert all(value for value in sent.values())


@given(st.text(st.characters(max_codepoint=255), max_size=300))
@REPEATABLE
def test_any_trace_id_is_one_that_can_be_sent_on_or_none(text):
    trace = incoming(request_with([("x-trace-id", text)])).trace_id
    assert trace in ("", text.strip())
    assert len(trace) <= 128
    assert trace.isascii()
    assert trace == "" or trace.isprintable()
