from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refvendor.components import hetero_secureboost as secureboost
from refvendor.components.encrypted_trees import EncryptedGradients, RemoteSource, Slot, TreeHost
from refvendor.components.links import BadMessage, NotAligned
from refvendor.components.split_search import (
    FRACTION_BITS,
    bin_features,
    find_candidates,
    left_sums,
)
from refvendor.components.training import Rows, read_rows, sigmoid
from refvendor.components.trees import BoostedTrees, LocalSource, boost
from refvendor.contract import Table
from refvendor.crypto import paillier
from refvendor.memory import TaskRun, run_parties
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.metrics import roc_auc_score, roc_curve
from training_data import (
    EXAMPLES,
    SMALL_KEY,
    PlainWire,
    a_task,
    breast_cancer,
    labels_of,
    made_up,
    no_log,
    random_tables,
    readable,
    scores_of,
    together,
    traces,
)

USERS_JOB = json.loads((EXAMPLES / "create_all_psi_sbt.json").read_text())
USERS = USERS_JOB["config"]["task_params"]["common"]["hetero_secureboost_1"]
KEY = paillier.generate(1024)


def train(
    parameters: Mapping[str, Any],
    guest: Table,
    *hosts: Table,
    task_id: str = "task_1",
) -> TaskRun:
    inputs = {"guest.0": {"train_data": guest}}
    inputs |= {f"host.{i}": {"train_data": host} for i, host in enumerate(hosts)}
    values = {"encrypt_param": SMALL_KEY, **parameters}
    return run_parties(
        "HeteroSecureBoost",
        secureboost.ROLES,
        inputs,
        values,
        task_id=task_id,
    )


def rows_of(
    parameters: Mapping[str, Any],
    guest: Table,
    *hosts: Table,
) -> dict[str, Rows]:
    common = secureboost.read_parameters(a_task(parameters), no_log).common
    return {
        "guest.0": read_rows(guest, common, True, no_log),
        **{f"host.{i}": read_rows(host, common, False, no_log) for i, host in enumerate(hosts)},
    }


def pooled(
    parameters: Mapping[str, Any],
    guest: Table,
    *hosts: Table,
) -> BoostedTrees:
    read = secureboost.read_parameters(a_task(parameters), no_log)
    return secureboost.boost_pooled(rows_of(parameters, guest, *hosts), "guest.0", read)


def assert_lossless(run: TaskRun, plain: BoostedTrees) -> None:
    """Check that scores, losses and trees equal the pooled run's, digit for digit."""
    guest = run.require_success()["guest.0"].io
    assert np.abs(scores_of(guest.tables["train_data"]) - sigmoid(plain.scores)).max() == 0.0
    assert [entry["loss"] for entry in guest.values["train-loss"]["loss"]] == plain.losses
    assert [
        [resolved(run, node) for node in tree] for tree in guest.values["model"]["trees"]
    ] == plain.trees


def resolved(
    run: TaskRun,
    node: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a node of the guest's model with its reference replaced by the split of the host's
    model.
    """
    if "split" not in node:
        return dict(node)
    split = run[node["party"]].io.values["model"]["splits"][node["split"]]
    assert split["split"] == node["split"]
    assert split["node"] == node["node"]
    fields = {name: value for name, value in node.items() if name != "split"}
    return {
        **fields,
        "feature": split["feature"],
        "threshold": split["threshold"],
    }


@pytest.mark.parametrize("key_length", [1024, 2048])
def test_the_users_job_on_breast_cancer_is_lossless(key_length):
    guest, host = breast_cancer("guest"), breast_cancer("host")
    run = train({**USERS, "encrypt_param": {"key_length": key_length}}, guest, host)
    assert_lossless(run, pooled(USERS, guest, host))
    reports = run["guest.0"].io.values
    labels, scores = labels_of(guest), scores_of(run["guest.0"].io.tables["train_data"])
    false_rate, true_rate, _ = roc_curve(labels, scores)
    assert reports["train-auc"]["auc"] == pytest.approx(
        roc_auc_score(labels, scores),
        abs=1e-12,
    )
    assert reports["train-auc"]["ks"] == pytest.approx(
        (true_rate - false_rate).max(),
        abs=1e-12,
    )
    assert max(point["ks"] for point in reports["train-ks"]) == reports["train-auc"]["ks"]
    trees = [line for line in run["guest.0"].lines if line[1] == "tree finished"]
    assert [(fields["tree"], fields["of"]) for _, _, fields in trees] == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("trees", "depth", "rate"),
    [
        (2, 5, 0.5),
        (5, 3, 0.3),
        (10, 3, 0.15),
    ],
)
def test_the_auc_is_that_of_scikit_learn(trees, depth, rate):
    guest, host = breast_cancer("guest"), breast_cancer("host")
    parameters = {
        "num_trees": trees,
        "learning_rate": rate,
        "tree_param": {"max_depth": depth},
    }
    parts = rows_of(parameters, guest, host)
    features = np.column_stack([parts["guest.0"].values, parts["host.0"].values])
    theirs = GradientBoostingClassifier(
        n_estimators=trees,
        max_depth=depth,
        learning_rate=rate,
        random_state=0,
    ).fit(features, labels_of(guest))
    expected = roc_auc_score(labels_of(guest), theirs.decision_function(features))
    ours = roc_auc_score(
        labels_of(guest),
        pooled(parameters, guest, host).scores,
    )
    assert abs(ours - expected) <= 0.01


def test_two_hosts_are_lossless_too():
    guest, first = random_tables(80, 2, 3)
    _, second = random_tables(
        80,
        2,
        4,
        seed=9,
    )
    parameters = {
        "num_trees": 3,
        "learning_rate": 0.5,
        "bin_num": 8,
        "subsample_feature_rate": 0.7,
    }
    run = train(parameters, guest, first, second)
    assert_lossless(run, pooled(parameters, guest, first, second))
    parties = {
        node.get("party") for tree in run["guest.0"].io.values["model"]["trees"] for node in tree
    }
    assert {"host.0", "host.1"} <= parties


@st.composite
def awkward_tables(draw: st.DrawFn) -> tuple[Table, Table]:
    """Few different values, so that splits tie and bins are empty; zeros are missing cells."""
    rows = draw(st.integers(4, 24))
    small = st.integers(
        0,
        draw(st.integers(1, 4)),
    )

    def block(columns: int) -> np.ndarray:
        cells = draw(st.lists(small, min_size=rows * columns, max_size=rows * columns))
        return np.array(cells, dtype=float).reshape(rows, columns)

    labels = np.array(draw(st.lists(st.integers(0, 1), min_size=rows, max_size=rows)))
    labels[0], labels[1] = 0, 1
    return made_up(
        block(draw(st.integers(0, 2))), block(draw(st.integers(0, 3))), labels, missing=True
    )


@settings(max_examples=12, deadline=None)
@given(
    tables=awkward_tables(),
    depth=st.integers(1, 4),
    least=st.integers(1, 3),
    bins=st.integers(2, 4),
)
def test_any_data_with_ties_gaps_and_missing_cells_is_lossless(tables, depth, least, bins):
    parameters = {
        "num_trees": 2,
        "bin_num": bins,
        "n_iter_no_change": False,
        "tree_param": {
            "max_depth": depth,
            "min_leaf_node": least,
            "criterion_params": [0, 0.1],
        },
    }
    assert_lossless(train(parameters, *tables), pooled(parameters, *tables))


def test_tied_splits_end_in_the_same_model_however_the_host_shuffles():
    draw = np.random.default_rng(3)
    column = draw.integers(0, 6, size=60).astype(float)
    labels = (column + draw.normal(size=60) > 2.5).astype(int)
    twins = np.column_stack([-column, column, column])
    guest, host = made_up(
        np.zeros((60, 1)),
        twins,
        labels,
    )
    models = [
        train({"num_trees": 1}, guest, host).require_success()["host.0"].io.values["model"]
        for _ in range(4)
    ]
    assert all(model == models[0] for model in models)
    assert {split["feature"] for split in models[0]["splits"]} == {"h0"}
    same_at_guest, _ = made_up(
        twins,
        np.zeros((60, 1)),
        labels,
    )
    tied = train({"num_trees": 1}, same_at_guest, host).require_success()
    assert tied["host.0"].io.values["model"]["splits"] == []


def test_the_root_split_is_the_best_of_all_by_exact_arithmetic():
    guest, host = random_tables(40, 2, 2)
    parts = rows_of({}, guest, host)
    parameters = {
        "num_trees": 1,
        "bin_num": 256,
        "tree_param": {
            "max_depth": 1,
            "criterion_params": [1, 0],
        },
    }
    root = pooled(parameters, guest, host).trees[0][0]
    y, best = labels_of(guest), Fraction(0)
    p = Fraction(float(y.mean()))

    def strength(rows: Sequence[int]) -> Fraction:
        return sum((p - Fraction(y[r]) for r in rows), Fraction(0)) ** 2 / (
            len(rows) * p * (1 - p) + 1
        )

    everyone = range(len(y))
    for party, rows in parts.items():
        for place, name in enumerate(rows.names):
            for threshold in sorted(set(rows.values[:, place]))[:-1]:
                left_rows = [r for r in everyone if rows.values[r, place] <= threshold]
                gain = (
                    strength(left_rows)
                    + strength([r for r in everyone if r not in left_rows])
                    - strength(everyone)
                )
                if gain > best:
                    best, expected = gain, (party, name, threshold)
    assert (root["party"], root["feature"], root["threshold"]) == expected


def test_every_party_writes_every_declared_output():
    guest, host = random_tables(40, 2, 2)
    run = train({"num_trees": 1}, guest, host).require_success()
    names = {"train_data", "model", "train-loss", "train-auc", "train-ks"}
    for party in run.parties.values():
        assert {*party.io.tables, *party.io.values} == names
        json.dumps(
            party.io.values,
            allow_nan=False,
        )
    assert run["host.0"].io.tables["train_data"] == Table(["id"], [[row[0]] for row in host.rows])
    assert run["host.0"].io.values["train-auc"] == {"held_by": ["guest.0"]}
    table = run["guest.0"].io.tables["train_data"]
    assert table.header == ["id", "y", "score", "prediction"]
    assert [row[:2] for row in table.rows] == [row[:2] for row in guest.rows]


def test_neither_model_part_tells_the_other_partys_secrets():
    guest, host = random_tables(60, 2, 3)
    run = train({"num_trees": 2}, guest, host).require_success()
    guests, hosts = (json.dumps(run[party].io.values["model"]) for party in ("guest.0", "host.0"))
    assert '"h0"' in hosts
    assert '"h0"' not in guests
    assert '"g0"' in guests
    assert '"g0"' not in hosts
    assert "leaf" in guests
    assert "leaf" not in hosts
    for split in run["host.0"].io.values["model"]["splits"]:
        assert repr(split["threshold"]) not in guests


def test_the_local_baseline_is_the_guest_alone():
    guest, host = breast_cancer("guest"), breast_cancer("host")
    parameters = {**USERS, "report_local_baseline": "true"}
    reported = train(parameters, guest, host).require_success()["guest.0"].io.values["train-auc"]
    alone = pooled(parameters, guest)
    expected = roc_auc_score(labels_of(guest), alone.scores)
    assert reported["local_baseline"]["auc"] == pytest.approx(
        expected,
        abs=1e-12,
    )
    assert reported["local_baseline"]["auc"] < reported["auc"]


def test_parties_with_other_ids_or_another_order_fail_at_once_and_say_so():
    guest, host = random_tables(40, 2, 2)
    swapped = Table(host.header, [host.rows[1], host.rows[0], *host.rows[2:]])
    fewer = Table(
        host.header,
        host.rows[:-1],
    )
    for host_table in (swapped, fewer):
        run = train({}, guest, host_table)
        for party, peer in (("guest.0", "host.0"), ("host.0", "guest.0")):
            error = run[party].error
            assert isinstance(error, NotAligned)
            assert peer in str(error)
            assert "Intersection" in str(error)
            assert "person" not in str(error)
        assert not any(line[1] == "tree finished" for line in run["guest.0"].lines)
        assert len(run.channel.sent) <= 4


def plainly(
    guest: Table,
    host: Table,
    parameters: Mapping[str, Any],
) -> tuple[PlainWire, dict[str, Rows]]:
    """Train over links that are not sealed, to read what a peer itself can read."""
    read = secureboost.read_parameters(a_task(parameters), no_log)
    parts = rows_of(parameters, guest, host)
    bins = {
        name: bin_features(rows.names, rows.values, read.bin_num) for name, rows in parts.items()
    }
    wire = PlainWire()
    total = len(guest.rows)

    def lead() -> None:
        remote = RemoteSource(
            wire.link("guest.0", "host.0"),
            KEY,
            total,
            EncryptedGradients(
                KEY,
                total,
            ),
        )
        local = LocalSource("guest.0", bins["guest.0"], 1.0)
        boost(
            [local, remote],
            parts["guest.0"].label_values,
            read.plan,
        )
        remote.finish()

    follower = TreeHost(
        wire.link("host.0", "guest.0"),
        "host.0",
        bins["host.0"],
        1.0,
    )
    together(lead, follower.serve)
    return wire, parts


def gradients_of(parts: Mapping[str, Rows]) -> list[int]:
    """The first tree's gradients, of all rows and per class."""
    y = parts["guest.0"].label_values
    p = np.full(
        len(y),
        y.mean(),
    )
    g = np.rint((p - y) * 2.0**FRACTION_BITS).astype(np.int64)
    h = np.rint(p * (1 - p) * 2.0**FRACTION_BITS).astype(np.int64)
    return [
        *g.tolist(),
        *h.tolist(),
        *Slot(len(y)).join(g, h),
        int(g[y == 1].sum()),
        int(g[y == 0].sum()),
    ]


def test_the_channel_carries_no_id_label_gradient_or_feature_value():
    guest, host = breast_cancer("guest"), breast_cancer("host")
    run = train(USERS, guest, host).require_success()
    parts, data = rows_of(USERS, guest, host), run.channel.all_bytes()
    for party, rows in parts.items():
        for what, forms in traces(
            rows, [g for g in gradients_of(parts) if abs(g) < 1 << 62]
        ).items():
            assert not readable(forms, data), f"{what} of {party} is readable"
    kinds = {message.name for message in run.channel.sent}
    assert kinds == {"hello", "train"}


def test_not_even_the_peer_is_sent_a_label_gradient_or_feature_value():
    guest, host = random_tables(60, 2, 3)
    wire, parts = plainly(
        guest,
        host,
        {
            "num_trees": 2,
            "tree_param": {"max_depth": 3},
        },
    )
    data = b"\n".join(frame for *_, frame in wire.frames)
    secrets_of = {
        party: traces(rows, gradients_of(parts)[: 2 * 60]) for party, rows in parts.items()
    }
    for party, forms_by_kind in secrets_of.items():
        for what, forms in forms_by_kind.items():
            long_enough = [form for form in forms if len(form) >= 6]
            assert not readable(long_enough, data), f"{what} of {party} is readable"
    sent = {(source, message.kind): set(message.fields) for source, _, message, _ in wire.frames}
    assert sent == {
        ("guest.0", "start"): {"rows"},
        ("guest.0", "tree"): {"tree"},
        ("guest.0", "level"): {"nodes"},
        ("guest.0", "choose"): {"nodes", "positions"},
        ("guest.0", "finish"): set(),
        ("host.0", "offers"): {"node", "count"},
        ("host.0", "parted"): {"splits"},
    }


def test_two_runs_share_no_ciphertext():
    guest, host = random_tables(30, 1, 2)
    ciphers_of_runs: list[set[bytes]] = []
    for _ in range(2):
        wire, _ = plainly(guest, host, {"num_trees": 1})
        blobs = [m.blob() for _, _, m, _ in wire.frames if m.kind in ("tree", "offers")]
        size = KEY.cipher_bytes
        ciphers = [blob[i : i + size] for blob in blobs for i in range(0, len(blob), size)]
        assert len(set(ciphers)) == len(ciphers) > 30
        ciphers_of_runs.append(set(ciphers))
    assert not ciphers_of_runs[0] & ciphers_of_runs[1]
    runs = [train({"num_trees": 1}, guest, host).require_success() for _ in range(2)]
    payloads = [{m.payload for m in run.channel.sent} for run in runs]
    assert not payloads[0] & payloads[1]
    assert runs[0]["guest.0"].io.tables == runs[1]["guest.0"].io.tables


def test_the_host_shuffles_what_it_offers():
    guest, host = random_tables(60, 1, 4)
    wire, _ = plainly(
        guest,
        host,
        {
            "num_trees": 1,
            "tree_param": {"max_depth": 1},
        },
    )
    (offers,) = [m for _, _, m, _ in wire.frames if m.kind == "offers"]
    slot, count = Slot(60), offers.fields["count"]
    packed = -(-count // KEY.slots(slot.bits))
    counts = slot.separate(
        KEY.unpack(
            KEY.decrypt(KEY.load(offers.blob(), packed)),
            slot.bits,
            count,
        )
    ).count
    rows = rows_of({}, guest, host)["host.0"]
    bins = bin_features(rows.names, rows.values, 32)
    everyone = np.arange(60)
    zero = np.zeros(60, np.int64)
    in_order = left_sums(
        bins, find_candidates(bins, [0, 1, 2, 3], everyone), everyone, zero, zero
    ).count
    assert sorted(counts) == sorted(in_order)
    assert counts.tolist() != in_order.tolist()


def host_of_trees(rows: int = 30) -> tuple[PlainWire, TreeHost]:
    _, host = random_tables(rows, 1, 2)
    values = np.array([[float(cell) for cell in row[1:]] for row in host.rows])
    wire = PlainWire()
    return wire, TreeHost(
        wire.link("host.0", "guest.0"), "host.0", bin_features(["h0", "h1"], values, 8), 1.0
    )


@pytest.mark.parametrize(
    "messages",
    [
        [("tree", {"tree": 0}, [])],
        [("start", {"rows": 29}, [KEY.to_bytes()])],
        [("start", {"rows": 30}, [])],
        [("start", {"rows": 30}, [b"no key"])],
        [("start", {"rows": True}, [KEY.to_bytes()])],
        [("start", {"rows": 30}, [KEY.to_bytes()]), ("tree", {"tree": 0}, [b"\x01" * 100])],
        [("start", {"rows": 30}, [KEY.to_bytes()]), ("tree", {"tree": -1}, [bytes(30 * 256)])],
        [
            ("start", {"rows": 30}, [KEY.to_bytes()]),
            ("level", {"nodes": [0]}, []),
        ],
        [
            ("start", {"rows": 30}, [KEY.to_bytes()]),
            ("level", {"nodes": [0]}, [bytes(9)]),
        ],
        [
            ("start", {"rows": 30}, [KEY.to_bytes()]),
            ("level", {"nodes": "all"}, [bytes(4)]),
        ],
        [
            ("start", {"rows": 30}, [KEY.to_bytes()]),
            (
                "choose",
                {
                    "nodes": [0],
                    "positions": [[0]],
                },
                [],
            ),
        ],
        [
            ("start", {"rows": 30}, [KEY.to_bytes()]),
            ("choose", {"nodes": [0], "positions": 7}, []),
        ],
        [
            ("start", {"rows": 30}, [KEY.to_bytes()]),
            (
                "choose",
                {
                    "nodes": [0],
                    "positions": [[]],
                },
                [],
            ),
        ],
        [
            ("start", {"rows": 30}, [KEY.to_bytes()]),
            ("surprise", {}, []),
        ],
    ],
)
def test_the_host_refuses_messages_that_cannot_be(messages):
    wire, host = host_of_trees()
    for message in messages:
        wire.link("guest.0", "host.0").send(*message)
    with pytest.raises((BadMessage, paillier.BadCiphertext)):
        host.serve()


def test_a_position_that_was_not_offered_is_refused():
    wire, host = host_of_trees()
    guest = wire.link("guest.0", "host.0")
    guest.send(
        "start",
        {"rows": 30},
        [KEY.to_bytes()],
    )
    guest.send("tree", {"tree": 0}, [KEY.dump(KEY.encrypt([1] * 30))])
    guest.send(
        "level",
        {"nodes": [0]},
        [b"\xff\xff\xff\xfc"],
    )
    guest.send("choose", {"nodes": [0], "positions": [[10**6]]})
    with pytest.raises(BadMessage, match="never offered"):
        host.serve()


def test_the_guest_refuses_split_rows_that_do_not_match_the_offer():
    wire = PlainWire()
    host = wire.link("host.0", "guest.0")
    remote = RemoteSource(
        wire.link("guest.0", "host.0"),
        KEY,
        8,
        EncryptedGradients(KEY, 8),
    )
    slot, rows = Slot(8), np.arange(8)
    g = np.full(8, 1 << 20, np.int64)
    three = sum(slot.join(g, g)[:3])
    remote.begin_tree(0, g, g)
    remote.start_search({0: rows})
    host.send(
        "offers",
        {"node": 0, "count": 1},
        [KEY.dump(KEY.encrypt([three]))],
    )
    sums = remote.candidate_sums(0)
    assert sums.count.tolist() == [3]
    assert sums.g.tolist() == [3 << 20]
    assert sums.h.tolist() == [3 << 20]
    for fields, mask in (
        ({"splits": [0]}, b"\xc0"),
        ({"splits": []}, b"\xe0"),
        ({"splits": [0]}, b""),
    ):
        host.send("parted", fields, [mask])
        with pytest.raises(BadMessage):
            remote.choose({0: [0]})
    host.send(
        "parted",
        {"splits": [0]},
        [b"\xe0"],
    )
    assert remote.choose({0: [0]})[0].left_rows.tolist() == [0, 1, 2]
    for number in (1, 0):
        remote.start_search({0: rows})
        host.send(
            "offers", {"node": number, "count": 1}, [KEY.dump(KEY.encrypt([sum(slot.join(g, g))]))]
        )
        with pytest.raises(BadMessage):
            remote.candidate_sums(0)
