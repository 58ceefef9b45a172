"""The environment contract: which variables are read, how texts become values, how problems are
reported.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refvendor.contract import BadParameters, Task
from refvendor.env import Address, Environment, Session, decode_parameter, read_environment

COMPLETE = {
    "system.storage": "file:///data",
    "system.transport": "10.0.0.1:7304",
    "system.callback": "http://10.0.0.1/callback",
    "config.self_role": "host.1",
    "config.task_id": "task_1",
    "config.session_id": "session_1",
    "config.trace_id": "trace",
    "config.token": "token",
    "config.log.path": "/logs",
    "config.node_id.guest.0": "A",
    "config.node_id.host.0": "B",
    "config.node_id.host.1": "C",
    "config.inst_id.host.1": "IC",
    "runtime.component.name": "Intersection",
    "runtime.component.parameter.id": "id",
    "runtime.component.parameter.rsa_params": '{"key_length": 2048}',
    "runtime.component.input.train_data": '{"namespace": "ns", "name": "in"}',
    "runtime.component.output.train_data": '{"namespace": "ns", "name": "out"}',
    "PATH": "/usr/bin",
}


def test_a_complete_environment_is_read():
    task = Task(
        component="Intersection",
        task_id="task_1",
        role="host",
        index=1,
        parties={
            "guest": ("A",),
            "host": ("B", "C"),
        },
        parameters={
            "id": "id",
            "rsa_params": {"key_length": 2048},
        },
        inputs=("train_data",),
        outputs=("train_data",),
    )
    assert read_environment(COMPLETE) == Environment(
        task=task,
        session=Session(
            "session_1",
            "token",
            "trace",
            {"host.1": "IC"},
        ),
        storage="file:///data",
        transport="10.0.0.1:7304",
        callback="http://10.0.0.1/callback",
        log_path="/logs",
        inputs={"train_data": Address("ns", "in")},
        outputs={"train_data": Address("ns", "out")},
        deadline=3600.0,
        form="json",
    )


def test_only_what_every_platform_sets_is_required():
    minimal = dict(COMPLETE)
    for name in ("system.callback", "config.log.path", "config.token"):
        del minimal[name]
    environment = read_environment(minimal)
    assert environment.callback == ""
    assert environment.log_path == ""
    assert environment.session.token == ""


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("config.self_role", "guest.0,host.0", "config.self_role"),
        ("config.self_role", "guest.x", "config.self_role"),
        ("config.self_role", "arbiter.0", "config.node_id.arbiter.0"),
        ("config.node_id.host.7", "D", "config.node_id.host.2"),
        (
            "config.node_id.host.99999999999999999999",
            "D",
            "config.node_id.host.99999999999999999999",
        ),
        ("config.node_id.host", "D", "config.node_id.host:"),
        ("config.node_id.guest.0", "", "config.node_id.guest.0"),
        ("runtime.component.input.train_data", "ns#in", "runtime.component.input.train_data"),
        (
            "runtime.component.input.train_data",
            '{"namespace": 1, "name": "x"}',
            "runtime.component.input.train_data",
        ),
        ("runtime.component.output.model", "[]", "runtime.component.output.model"),
        ("config.deadline", "soon", "config.deadline"),
        ("config.deadline", "-1", "config.deadline"),
        ("config.deadline", "nan", "config.deadline"),
    ],
)
def test_what_cannot_work_is_named(
    name,
    value,
    words,
):
    with pytest.raises(BadParameters) as caught:
        read_environment(COMPLETE | {name: value, "config.session_id": ""})
    assert words in str(caught.value)
    assert "config.session_id" in str(caught.value), "all problems come together"


def test_a_role_without_index_is_the_first():
    environment = read_environment(COMPLETE | {"config.self_role": "guest"})
    assert environment.task.me == "guest.0"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("True", True),
        ("true", True),
        ("FALSE", False),
        ("2048", 2048),
        ("0.0001", 0.0001),
        ("", ""),
        ("id", "id"),
        ('["auc", "ks"]', ["auc", "ks"]),
        ('{"a": {"b": false}}', {"a": {"b": False}}),
        ('"quoted"', "quoted"),
        ("007", "007"),
        ("1e5", "1e5"),
        ("0.50", "0.50"),
        ("NaN", "NaN"),
        ("Infinity", "Infinity"),
        ("null", "null"),
        ("{broken", "{broken"),
        ("9" * 5000, "9" * 5000),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_texts_become_values(text, value):
    decoded = decode_parameter(text)
    assert decoded == value
    assert type(decoded) is type(value)


@given(st.text())
def test_no_text_breaks_the_reader_and_plain_text_stays(text):
    decoded = decode_parameter(text)
    is_plain_text = decoded == text
    if not is_plain_text and not isinstance(decoded, bool):
        assert json.loads(text) == decoded
