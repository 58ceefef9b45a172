"""Jobs on the wire: the receiver reads the same job, and no entries of other parties."""

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

NODES = [f"JG010000{number}" for number in range(5)]
ROLES = ("guest", "host", "arbiter")
OUTPUT_TYPES = ("dataset", "model", "report")
PROFILE_NAMES = st.sampled_from(sorted(PROFILES))

# Names of tasks, outputs and parameters.
WORDS = st.text(
    st.characters(
        codec="utf-8",
        exclude_characters="./\\#|=",
        exclude_categories=("Cc", "Zs"),
    ),
    min_size=1,
    max_size=8,
)
UNIQUE_WORDS = st.lists(
    WORDS,
    max_size=2,
    unique=True,
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
)


def lists_and_objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(values, max_size=3)
    objects = st.dictionaries(
        st.text(max_size=6),
        values,
        max_size=3,
    )
    return lists | objects


VALUES = st.recursive(
    SCALARS,
    lists_and_objects,
    max_leaves=6,
)

Components = list[dict[str, Any]]


def pick(draw: st.DrawFn, *spellings: str) -> str:
    """Draw one of several texts."""
    return draw(st.sampled_from(spellings))


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the body of a valid job, in one of the spellings that peers use."""
    components = draw(component_lists())
    task_names = [component["name"] for component in components]
    role_names = draw(st.lists(st.sampled_from(ROLES), min_size=1, unique=True))
    node_lists = st.lists(
        st.sampled_from(NODES),
        min_size=1,
        max_size=3,
        unique=True,
    )
    roles = {role: draw(node_lists) for role in role_names}
    flow_ids = st.text(
        st.characters(
            codec="utf-8",
            exclude_categories=["Cc"],
        ),
        max_size=20,
    )
    return {
        "job_id": draw(st.from_regex(r"[A-Za-z0-9_-]{1,40}", fullmatch=True)),
        "flow_id": draw(st.none() | flow_ids),
        "dag": {
            "components": components,
            "version": pick(draw, "1.0", "2.0"),
        },
        pick(draw, "config", "conf"): draw(configs(roles, task_names)),
    }


@st.composite
def component_lists(draw: st.DrawFn) -> Components:
    """Draw components that each read outputs of up to two earlier ones."""
    names = draw(st.lists(WORDS, min_size=1, max_size=5, unique=True))
    components: Components = []
    outputs_of: dict[str, list[dict[str, str]]] = {}
    for name in names:
        upstream: list[str] = []
        if outputs_of:
            upstream = draw(st.lists(st.sampled_from(list(outputs_of)), unique=True, max_size=2))
        inputs = []
        for task in upstream:
            for output in outputs_of[task]:
                inputs.append({"type": output["type"], "key": f"{task}.{output['key']}"})
        outputs = []
        for key in draw(UNIQUE_WORDS):
            outputs.append({"type": pick(draw, *OUTPUT_TYPES), "key": key})
        outputs_of[name] = outputs
        components.append(
            {
                "name": name,
                pick(draw, "componentName", "module_name"): draw(WORDS),
                pick(draw, "provider", "code"): draw(WORDS),
                "version": draw(WORDS),
                pick(draw, "input", "inputData"): inputs,
                pick(draw, "output", "outputData"): outputs,
            }
        )
    return components


@st.composite
def configs(
    draw: st.DrawFn,
    roles: dict[str, list[str]],
    task_names: list[str],
) -> dict[str, Any]:
    """Draw the configuration of a job: roles, initiator and parameters."""
    role = draw(st.sampled_from(sorted(roles)))
    initiator = {
        "role": role,
        pick(draw, "node_id", "nodeId"): draw(st.sampled_from(roles[role])),
    }
    return {
        "initiator": initiator,
        "role": roles,
        "job_params": draw(parameters(roles, task_names)),
        "task_params": draw(parameters(roles, task_names)),
        "version": pick(draw, "2.0", "2.0.0"),
    }


@st.composite
def parameters(
    draw: st.DrawFn,
    roles: dict[str, list[str]],
    task_names: list[str],
) -> dict[str, Any]:
    """Draw parameters: common ones, and some of parties, by one index or several in one key."""
    values = st.dictionaries(
        WORDS,
        VALUES,
        max_size=2,
    )
    entries = st.dictionaries(
        st.sampled_from(task_names),
        values,
        max_size=2,
    )
    drawn: dict[str, Any] = {}
    if draw(st.booleans()):
        drawn["common"] = draw(entries)
    for role, nodes in roles.items():
        if draw(st.booleans()):
            indices = [str(index) for index in range(len(nodes))]
            keys = st.sampled_from([*indices, "|".join(indices)])
            drawn[role] = draw(st.dictionaries(keys, entries, max_size=3))
    return drawn


# ---------------------------------------------------------------- jobs


def read_spec(body: dict[str, Any]) -> JobSpec:
    """Read a body as the routers do."""
    request = wire.CreateJob.model_validate(read_json(json.dumps(body).encode()))
    return translate.job_spec(request, request.job_id, "scheduler", "trace")


def task_parameters(
    spec: JobSpec,
    party: Party,
    task: str,
) -> dict[str, Any]:
    """Return the parameters of a party's task."""
    values = effective(spec.task_params, party, task)
    return {name: entry.value for name, entry in values.items()}


def job_parameters(
    spec: JobSpec,
    party: Party,
    task: str,
) -> dict[str, Any]:
    """Return the entries of the job's own parameters for a party under a task's name."""
    entries = overlay(spec.job_params, party, task)
    return {name: entry.value for name, entry in entries.items()}


@given(bodies(), PROFILE_NAMES)
@REPEATABLE
def test_a_job_that_is_passed_on_is_the_same_job(body, profile_name):
    profile = PROFILES[profile_name]
    spec = read_spec(body)
    assert flow.check(spec.dag) == []
    assert validation.check(spec)[0] == []

    sent = translate.create_body(spec, profile)
    assert read_json(json.dumps(sent, ensure_ascii=False, allow_nan=False).encode()) == sent

    received = read_spec(sent)
    if profile.needs_common and "common" not in spec.job_params:
        spec = with_explicit_common(spec, received)
    without_parameters = replace(
        spec,
        job_params={},
        task_params={},
    )
    assert replace(received, job_params={}, task_params={}) == without_parameters
    assert read_spec(translate.create_body(received, profile)) == received
    assert received.job_params.get("common") == spec.job_params.get("common")
    check_same_parameters(received, spec)
    # Other bodies have their entries split by index, and empty entries added for some peers.
    is_unchanged = not profile.reads_task_entries and "|" not in json.dumps(body)
    if is_unchanged:
        assert received == spec


def with_explicit_common(spec: JobSpec, received: JobSpec) -> JobSpec:
    """Return a job with the common entry that was added for a peer.

    Fails unless the added entry only makes the job's default explicit.
    """
    sync_type = "poll"
    if spec.settings.by_callback:
        sync_type = "callback"
    common = received.job_params["common"]
    assert common == {"sync_type": sync_type}
    return replace(spec, job_params={"common": common, **spec.job_params})


def check_same_parameters(received: JobSpec, spec: JobSpec) -> None:
    """Fail unless every party has the same parameters in both jobs."""
    for party in spec.parties:
        for node in spec.dag.nodes:
            expected = task_parameters(spec, party, node.name)
            assert task_parameters(received, party, node.name) == expected
            expected = job_parameters(spec, party, node.name)
            assert job_parameters(received, party, node.name) == expected


def test_an_entry_of_many_indices_is_not_multiplied():
    body = copy.deepcopy({**A_JOB, "job_id": JOB})
    all_indices = "|".join(str(index) for index in range(900))
    body["config"]["task_params"] = {"guest": {all_indices: {"echo_1": {"x": "y" * 10_000}}}}

    sent = translate.create_body(
        read_spec(body),
        PROFILES["spec"],
    )

    assert len(json.dumps(sent)) < 20_000


def mark_entries(
    config: dict[str, Any],
    node: str,
) -> int:
    """Replace all parties' parameters by ``mine`` or, if none of them is the node's, ``SECRET``.

    Return the number of secrets.
    """
    secrets = 0
    for parameters_name in ("job_params", "task_params"):
        for role, by_index in config[parameters_name].items():
            if role == "common":
                continue
            for indices in by_index:
                nodes = [config["role"][role][int(index)] for index in indices.split("|")]
                mark = "mine"
                if node not in nodes:
                    mark = "SECRET"
                    secrets += 1
                by_index[indices] = {"secret_task": {"dataset_id": mark}}
    return secrets


@given(
    bodies(),
    st.sampled_from(NODES),
    PROFILE_NAMES,
)
@REPEATABLE
def test_no_node_receives_another_partys_entries(body, node, profile_name):
    config = body.get("config") or body["conf"]
    secrets = mark_entries(config, node)
    assert json.dumps(config).count("SECRET") == secrets

    spec = read_spec(body)
    node_spec = spec.for_node(node)
    sent = json.dumps(translate.create_body(node_spec, PROFILES[profile_name]))

    assert "SECRET" not in sent
    assert ("mine" in sent) == ('"mine"' in json.dumps(config))
    assert node_spec.for_node(node) == node_spec


# ---------------------------------------------------------------- headers

SOURCE_HEADERS = ("x-source-node-id", "x-node-id")


@st.composite
def spellings(draw: st.DrawFn, name: str) -> str:
    """Draw a header's name with other case, and perhaps underscores for hyphens."""
    if draw(st.booleans()):
        name = name.replace("-", "_")
    characters = []
    for character in name:
        characters.append(pick(draw, character, character.upper()))
    return "".join(characters)


def request_with(headers: list[tuple[str, str]]) -> Request:
    """Build a request whose headers are as servers pass them on."""
    raw_headers = []
    for name, value in headers:
        raw_headers.append((name.lower().encode("latin-1"), value.encode("latin-1")))
    return Request({"type": "http", "headers": raw_headers})


@given(st.data())
@REPEATABLE
def test_a_sender_is_read_in_any_spelling_of_the_header(data):
    source = data.draw(st.sampled_from(NODES))
    target = data.draw(st.sampled_from(NODES))
    blank = data.draw(st.sampled_from(("", " ", "\t ")))
    source_header = data.draw(st.sampled_from(SOURCE_HEADERS))
    headers = [
        (data.draw(spellings(source_header)), f"{blank}{source}{blank}"),
        (data.draw(spellings("x-target-node-id")), target),
        (data.draw(spellings("x-trace-id")), "trace_1"),
    ]

    received = incoming(request_with(data.draw(st.permutations(headers))))

    assert received.source == source
    assert received.target == target
    assert received.trace_id == "trace_1"


@given(
    st.sampled_from(NODES),
    st.sampled_from(NODES),
)
@REPEATABLE
def test_sent_headers_are_read_by_the_receiver(source, target):
    sent = request_headers(source, target, "trace_1")

    received = incoming(request_with(list(sent.items())))

    assert received.source == source
    assert received.target == target
    assert received.trace_id == "trace_1"
    assert all(value for value in sent.values())


@given(st.text(st.characters(max_codepoint=255), max_size=300))
@REPEATABLE
def test_any_trace_id_is_one_that_can_be_sent_on_or_none(text):
    trace_id = incoming(request_with([("x-trace-id", text)])).trace_id

    assert trace_id in ("", text.strip())
    assert len(trace_id) <= 128
    assert trace_id.isascii()
    assert trace_id == "" or trace_id.isprintable()
