"""Predicting: the scores of a training again, right ones on other rows, and nothing more is
learned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from refvendor.components import hetero_lr as lr
from refvendor.components import hetero_secureboost as secureboost
from refvendor.components.links import BadMessage
from refvendor.components.predicting import read_new_rows
from refvendor.components.training import CommonParameters
from refvendor.components.tree_scores import model_features, receive_sides, score_rows, send_sides
from refvendor.contract import BadParameters, Component, Table
from refvendor.memory import TaskRun, run_parties
from training_data import (
    SMALL_KEY,
    PlainWire,
    breast_cancer,
    random_tables,
    readable,
    scores_of,
    together,
)

ROLES: Mapping[str, Mapping[str, Component]] = {
    "HeteroSecureBoost": secureboost.ROLES,
    "HeteroLR": lr.ROLES,
}
COMPONENTS = tuple(ROLES)
COMMON = CommonParameters(
    "id",
    "y",
    1024,
    0.5,
    ("auc", "ks"),
    False,
)


def train(
    name: str,
    guest: Table,
    host: Table,
    task_id: str = "task_train",
    **parameters: Any,
) -> TaskRun:
    inputs: dict[str, dict[str, Any]] = {
        "guest.0": {"train_data": guest},
        "host.0": {"train_data": host},
    }
    if "arbiter" in ROLES[name]:
        inputs["arbiter.0"] = {}
    fixed = {"num_trees": 3} if name == "HeteroSecureBoost" else {"max_iter": 5}
    values = {
        "encrypt_param": SMALL_KEY,
        **fixed,
        **parameters,
    }
    return run_parties(name, ROLES[name], inputs, values, task_id=task_id).require_success()


def models(run: TaskRun) -> dict[str, Any]:
    return {party: run[party].io.values["model"] for party in ("guest.0", "host.0")}


def predict(
    name: str,
    parts: Mapping[str, Any],
    guest: Table,
    host: Table,
    task_id: str = "task_predict",
    **parameters: Any,
) -> TaskRun:
    inputs = {
        "guest.0": {
            "train_data": guest,
            "model": parts["guest.0"],
        },
        "host.0": {
            "train_data": host,
            "model": parts["host.0"],
        },
    }
    return run_parties(
        name,
        ROLES[name],
        inputs,
        parameters,
        task_id=task_id,
    )


def some(
    table: Table,
    places: list[int],
) -> Table:
    return Table(table.header, [table.rows[i] for i in places])


def without(table: Table, *names: str) -> Table:
    places = [i for i, name in enumerate(table.header) if name not in names]
    return Table(
        [table.header[i] for i in places], [[row[i] for i in places] for row in table.rows]
    )


@pytest.mark.parametrize("name", COMPONENTS)
def test_on_the_rows_of_the_training_the_scores_are_those_of_the_training(name):
    guest, host = breast_cancer("guest"), breast_cancer("host")
    trained = train(name, guest, host)
    again = predict(name, models(trained), guest, host).require_success()
    table = again["guest.0"].io.tables["train_data"]
    assert table == trained["guest.0"].io.tables["train_data"]
    assert "model" not in again["guest.0"].io.values
    assert "model" not in again["host.0"].io.values
    report = again["guest.0"].io.values[
        "train-auc" if name == "HeteroSecureBoost" else "train-loss"
    ]
    before = trained["guest.0"].io.values[
        "train-auc" if name == "HeteroSecureBoost" else "train-loss"
    ]
    assert report["auc"] == before["auc"]
    assert report["ks"] == before["ks"]
    assert report["rows"] == 509
    assert report["predicted_with"] == "task_train"


@pytest.mark.parametrize("name", COMPONENTS)
def test_rows_are_scored_without_labels_and_with_further_columns(name):
    guest, host = random_tables(90, 3, 3)
    trained = train(name, guest, host)
    by_id = {row[0]: row[2] for row in trained["guest.0"].io.tables["train_data"].rows}
    places = [71, 3, 45, 20]
    bare = without(some(guest, places), "y")
    host_rows = some(host, places)
    bare = Table([*bare.header, "note"], [[*row, "text"] for row in bare.rows])
    run = predict(name, models(trained), bare, host_rows).require_success()
    table = run["guest.0"].io.tables["train_data"]
    assert table.header == ["id", "score", "prediction"]
    assert [(row[0], row[1]) for row in table.rows] == [
        (row[0], by_id[row[0]]) for row in bare.rows
    ]
    assert "left_out" in run["guest.0"].io.values["train-loss"]
    assert run["host.0"].io.tables["train_data"] == Table(
        ["id"], [[row[0]] for row in host_rows.rows]
    )


def test_a_missing_cell_goes_left_as_in_training():
    guest, host = random_tables(60, 2, 2)
    holes = Table(
        host.header,
        [[row[0], "" if i % 3 == 0 else row[1], row[2]] for i, row in enumerate(host.rows)],
    )
    trained = train("HeteroSecureBoost", guest, holes)
    again = predict("HeteroSecureBoost", models(trained), guest, holes).require_success()
    assert again["guest.0"].io.tables == trained["guest.0"].io.tables


def test_two_hosts():
    guest, first = random_tables(80, 2, 3)
    _, second = random_tables(
        80,
        2,
        4,
        seed=9,
    )
    inputs = {
        "guest.0": {"train_data": guest},
        "host.0": {"train_data": first},
        "host.1": {"train_data": second},
    }
    values = {
        "encrypt_param": SMALL_KEY,
        "num_trees": 3,
        "learning_rate": 0.5,
    }
    trained = run_parties("HeteroSecureBoost", secureboost.ROLES, inputs, values).require_success()
    bound = {p: {**tables, "model": trained[p].io.values["model"]} for p, tables in inputs.items()}
    again = run_parties("HeteroSecureBoost", secureboost.ROLES, bound, {}).require_success()
    assert again["guest.0"].io.tables == trained["guest.0"].io.tables


def test_the_arbiter_has_nothing_to_do_in_prediction():
    guest, host = random_tables(60, 2, 2)
    trained = train("HeteroLR", guest, host)
    parts = models(trained)
    inputs = {
        "guest.0": {
            "train_data": guest,
            "model": parts["guest.0"],
        },
        "host.0": {
            "train_data": host,
            "model": parts["host.0"],
        },
        "arbiter.0": {"model": trained["arbiter.0"].io.values["model"]},
    }
    run = run_parties("HeteroLR", lr.ROLES, inputs, {}).require_success()
    assert run["guest.0"].io.tables == trained["guest.0"].io.tables
    assert not [m for m in run.channel.sent if "arbiter.0" in (m.source, m.to)]


@pytest.mark.parametrize("name", COMPONENTS)
def test_the_threshold_is_the_trainings_unless_the_job_names_one(name):
    guest, host = random_tables(60, 2, 2)
    trained = train(
        name,
        guest,
        host,
        predict_param={"threshold": 0.9},
    )
    for parameters, expected in (({}, 0.9), ({"predict_param": {"threshold": 0.1}}, 0.1)):
        table = (
            predict(name, models(trained), guest, host, **parameters)
            .require_success()["guest.0"]
            .io.tables["train_data"]
        )
        classes = [int(row[-1]) for row in table.rows]
        assert classes == (scores_of(table) >= expected).astype(int).tolist()


@pytest.mark.parametrize("name", COMPONENTS)
def test_what_does_not_fit_is_named(name):
    guest, host = random_tables(60, 2, 2)
    parts = models(train(name, guest, host))

    def error(run: TaskRun, party: str = "guest.0") -> str:
        failure = run[party].error
        assert isinstance(failure, BadParameters | BadMessage), failure
        return str(failure)

    swapped = {
        "guest.0": parts["host.0"],
        "host.0": parts["guest.0"],
    }
    assert "is of party 'host.0', this is 'guest.0'" in error(predict(name, swapped, guest, host))
    missing = without(host, "h0", "h1")
    assert "'h0', which the model needs" in error(predict(name, parts, guest, missing), "host.0")
    later = models(train(name, guest, host, task_id="task_later"))
    mixed = {
        "guest.0": parts["guest.0"],
        "host.0": later["host.0"],
    }
    assert "different trainings" in error(predict(name, mixed, guest, host))
    for broken in (
        [],
        {},
        {
            **parts["guest.0"],
            "trees": [[{"node": 0}]],
            "weights": [{}],
        },
    ):
        error(predict(name, {**parts, "guest.0": broken}, guest, host))


def test_the_host_receives_a_hello_only_and_the_wire_is_unreadable():
    guest, host = breast_cancer("guest"), breast_cancer("host")
    for name in COMPONENTS:
        run = predict(name, models(train(name, guest, host)), guest, host).require_success()
        to_host = [m for m in run.channel.sent if m.to == "host.0"]
        assert [m.name for m in to_host] == ["hello"]
        assert len([m for m in run.channel.sent if m.to == "guest.0"]) == 2
        data = run.channel.all_bytes()
        scores = [row[2].encode() for row in run["guest.0"].io.tables["train_data"].rows]
        ids = [row[0].encode() for row in guest.rows]
        cells = [
            cell.encode() for row in (*guest.rows, *host.rows) for cell in row[1:] if len(cell) >= 6
        ]
        assert readable([*scores, *ids, *cells], data) == []


def test_the_guest_receives_sides_and_no_thresholds_or_names():
    guest, host = random_tables(70, 2, 3)
    parts = models(train("HeteroSecureBoost", guest, host))
    wire = PlainWire()
    guest_features = model_features([node for tree in parts["guest.0"]["trees"] for node in tree])
    host_features = model_features(parts["host.0"]["splits"])
    guest_rows = read_new_rows(guest, COMMON, guest_features)
    host_rows = read_new_rows(host, COMMON, host_features)

    def lead() -> Any:
        sides = receive_sides(
            wire.link("guest.0", "host.0"),
            parts["guest.0"],
            len(guest_rows.ids),
        )
        return score_rows(
            parts["guest.0"], "guest.0", guest_rows, guest_features, {"host.0": sides}
        )

    scores, _ = together(
        lead,
        lambda: send_sides(
            wire.link("host.0", "guest.0"), parts["host.0"], host_rows, host_features
        ),
    )
    assert len(scores) == 70
    assert np.isfinite(scores).all()
    ((source, to, message, data),) = wire.frames
    assert source == "host.0"
    assert to == "guest.0"
    assert sorted(message.fields) == ["rows", "splits", "training"]
    assert len(message.blob()) == len(parts["host.0"]["splits"]) * 9
    secrets = [json.dumps(split["threshold"]).encode() for split in parts["host.0"]["splits"]]
    assert readable([*secrets, *(name.encode() for name in host_features)], data) == []


def test_a_tree_with_a_circle_or_a_broken_answer_ends_in_a_named_error():
    rows = read_new_rows(
        Table(
            ["id", "a"],
            [
                ["1", "0.5"],
                ["2", "2"],
            ],
        ),
        COMMON,
        ["a"],
    )
    node = {
        "node": 0,
        "party": "guest.0",
        "feature": "a",
        "threshold": 1,
        "left": 0,
        "right": 2,
    }
    with pytest.raises(BadParameters):
        score_rows(
            {"base_score": 0, "trees": [[node, {"node": 2, "leaf": 1}]]}, "guest.0", rows, ["a"], {}
        )
    far = {
        "node": 0,
        "party": "host.0",
        "split": 3,
        "left": 1,
        "right": 2,
    }
    leaves = [
        {"node": 1, "leaf": 1},
        {"node": 2, "leaf": 2},
    ]
    with pytest.raises(BadMessage):
        score_rows(
            {"base_score": 0, "trees": [[far, *leaves]]},
            "guest.0",
            rows,
            ["a"],
            {"host.0": np.ones((1, 2), bool)},
        )
    wire = PlainWire()
    wire.link("host.0", "guest.0").send(
        "sides",
        {
            "rows": 2,
            "splits": 2,
            "training": None,
        },
        [b"x"],
    )
    with pytest.raises(BadMessage, match="2 bytes, not 1"):
        receive_sides(wire.link("guest.0", "host.0"), {}, 2)
