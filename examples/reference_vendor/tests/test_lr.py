from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refvendor.components import encrypted_regression
from refvendor.components import hetero_lr as lr
from refvendor.components.links import BadMessage, NotAligned
from refvendor.components.regression import (
    FEATURE_BITS,
    OPTIMIZERS,
    Diverged,
    PartialModel,
    RegressionFit,
    RegressionPlan,
    fit_pooled,
    guest_residual,
    quarter_scores,
    split_batches,
    standardise,
)
from refvendor.components.training import Rows, read_rows, sigmoid
from refvendor.contract import BadParameters, Table
from refvendor.crypto import paillier
from refvendor.memory import TaskRun, run_parties
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from training_data import (
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

KEY = paillier.generate(1024)


def train(
    parameters: Mapping[str, Any],
    guest: Table,
    host: Table,
) -> TaskRun:
    inputs = {
        "guest.0": {"train_data": guest},
        "host.0": {"train_data": host},
        "arbiter.0": {},
    }
    return run_parties("HeteroLR", lr.ROLES, inputs, {"encrypt_param": SMALL_KEY, **parameters})


def read(
    parameters: Mapping[str, Any],
    guest: Table,
    host: Table,
) -> tuple[lr.Parameters, Rows, Rows]:
    parsed = lr.read_parameters(
        a_task(parameters, "guest", "arbiter"),
        no_log,
    )
    return (
        parsed,
        read_rows(guest, parsed.common, True, no_log),
        read_rows(host, parsed.common, False, no_log),
    )


def in_the_clear(
    parameters: Mapping[str, Any],
    guest: Table,
    host: Table,
) -> tuple[RegressionFit, PartialModel, PartialModel]:
    parsed, guest_rows, host_rows = read(parameters, guest, host)
    a = PartialModel(
        "guest.0",
        standardise(guest_rows, parsed.plan.fit_intercept),
        parsed.plan,
    )
    b = PartialModel(
        "host.0",
        standardise(host_rows, intercept=False),
        parsed.plan,
    )
    return fit_pooled(a, b, guest_rows.label_values, parsed.plan), a, b


def assert_lossless(
    run: TaskRun,
    parameters: Mapping[str, Any],
    guest: Table,
    host: Table,
) -> None:
    """Check that scores, losses and weights equal the pooled run's, digit for digit."""
    plain, a, b = in_the_clear(parameters, guest, host)
    ours = run.require_success()["guest.0"].io
    assert np.abs(scores_of(ours.tables["train_data"]) - sigmoid(plain.scores)).max() == 0.0
    assert [entry["loss"] for entry in ours.values["train-loss"]["loss"]] == plain.losses
    assert ours.values["train-loss"]["converged"] == plain.converged
    for party, part in (("guest.0", a), ("host.0", b)):
        model = run[party].io.values["model"]
        intercept = [model["intercept"]] if "intercept" in model else []
        assert [entry["weight"] for entry in model["weights"]] + intercept == part.weights.tolist()


@pytest.fixture(scope="module")
def breast_run() -> TaskRun:
    parameters = {"max_iter": 30, "report_local_baseline": True}
    return train(parameters, breast_cancer("guest"), breast_cancer("host")).require_success()


def standard_regression(guest: Table, host: Table) -> float:
    """scikit-learn's AUC on the same standardised rows."""
    _, guest_rows, host_rows = read({}, guest, host)
    features = np.column_stack([guest_rows.values, host_rows.values])
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    fitted = LogisticRegression(max_iter=1000).fit(features, guest_rows.label_values)
    return float(roc_auc_score(guest_rows.label_values, fitted.decision_function(features)))


def test_breast_cancer_is_lossless_and_as_good_as_scikit_learn(breast_run):
    guest, host = breast_cancer("guest"), breast_cancer("host")
    assert_lossless(breast_run, {"max_iter": 30}, guest, host)
    report = breast_run["guest.0"].io.values["train-loss"]
    assert abs(report["auc"] - standard_regression(guest, host)) <= 0.01
    assert report["auc"] == pytest.approx(
        roc_auc_score(
            labels_of(guest),
            scores_of(breast_run["guest.0"].io.tables["train_data"]),
        ),
        abs=1e-12,
    )
    assert report["local_baseline"]["auc"] < report["auc"] - 0.01
    lines = [fields for _, message, fields in breast_run["guest.0"].lines if message == "iteration"]
    assert [(fields["iteration"], fields["of"]) for fields in lines] == [
        (i, 30) for i in range(1, 31)
    ]
    assert [fields["loss"] for fields in lines] == [entry["loss"] for entry in report["loss"]]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_gets_within_a_hundredth_of_scikit_learn(optimizer):
    guest, host = breast_cancer("guest"), breast_cancer("host")
    plain, _, _ = in_the_clear(
        {"optimizer": optimizer, "max_iter": 30},
        guest,
        host,
    )
    ours = roc_auc_score(labels_of(guest), plain.scores)
    assert abs(ours - standard_regression(guest, host)) <= 0.01


@pytest.mark.parametrize(
    "parameters",
    [
        *({"optimizer": optimizer} for optimizer in OPTIMIZERS),
        {"batch_size": 11},
        {
            "batch_size": 25,
            "early_stop": "diff",
            "tol": 0.05,
            "max_iter": 20,
        },
        {"batch_size": 4000},
        {"penalty": "L1", "alpha": 0.2},
        {
            "init_param": {
                "init_method": "random_normal",
                "fit_intercept": False,
            },
            "early_stop": "diff",
        },
        {
            "early_stop": "weight_diff",
            "tol": 0.3,
            "max_iter": 20,
        },
        {
            "learning_rate": 20,
            "optimizer": "sgd",
            "max_iter": 2,
        },
        {
            "encrypt_param": {"key_length": 2048},
            "max_iter": 1,
        },
    ],
    ids=str,
)
def test_whatever_the_parameters_training_is_lossless(parameters):
    guest, host = random_tables(40, 2, 3)
    values = {"max_iter": 3, **parameters}
    assert_lossless(
        train(values, guest, host),
        values,
        guest,
        host,
    )


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_any_data_is_lossless(data):
    rows = data.draw(st.integers(6, 16))

    def block(columns: int) -> np.ndarray:
        cell = st.one_of(
            st.integers(0, 2).map(float),
            st.floats(-1e9, 1e9),
        )
        cells = data.draw(st.lists(cell, min_size=rows * columns, max_size=rows * columns))
        return np.array(cells).reshape(rows, columns)

    labels = np.array(data.draw(st.lists(st.integers(0, 1), min_size=rows, max_size=rows)))
    labels[0], labels[1] = 0, 1
    tables = made_up(
        block(data.draw(st.integers(0, 3))),
        block(data.draw(st.integers(0, 3))),
        labels,
        missing=True,
    )
    values = {
        "max_iter": 2,
        "batch_size": data.draw(st.sampled_from(["all", -1, 6])),
    }
    assert_lossless(train(values, *tables), values, *tables)


def test_the_arithmetic_is_that_of_a_plain_descent_within_rounding():
    guest, host = random_tables(80, 2, 3)
    plain, a, b = in_the_clear(
        {
            "optimizer": "sgd",
            "max_iter": 8,
            "alpha": 0.05,
            "tol": 0,
        },
        guest,
        host,
    )
    _, guest_rows, host_rows = read({}, guest, host)
    x = np.column_stack([guest_rows.values, host_rows.values])
    x = np.column_stack([(x - x.mean(axis=0)) / x.std(axis=0), np.ones(80)])
    y = 2 * guest_rows.label_values - 1
    w, is_penalised, losses = np.zeros(6), np.array([1, 1, 1, 1, 1, 0]), []
    for iteration in range(8):
        u = x @ w
        penalty = 0.05 / 2 * float(is_penalised @ w**2)
        losses.append(float(np.mean(math.log(2) - y * u / 2 + u**2 / 8)) + penalty)
        w = w - 0.15 / math.sqrt(1 + iteration) * (
            x.T @ (u / 4 - y / 2) / 80 + 0.05 * w * is_penalised
        )
    assert np.allclose(
        plain.scores,
        x @ w,
        atol=1e-3,
    )
    assert np.allclose(
        plain.losses,
        losses,
        atol=1e-3,
    )
    assert np.allclose(
        np.concatenate([a.weights[:2], b.weights, a.weights[2:]]),
        w,
        atol=1e-3,
    )


@pytest.mark.parametrize("early_stop", ["diff", "weight_diff"])
def test_a_wide_tolerance_stops_early_and_none_never(early_stop):
    guest, host = random_tables(30, 2, 2)
    first = 2 if early_stop == "diff" else 1
    for tol, iterations in ((100, first), (0, 4)):
        run = train(
            {
                "early_stop": early_stop,
                "tol": tol,
                "max_iter": 4,
            },
            guest,
            host,
        ).require_success()
        for party in ("guest.0", "arbiter.0"):
            report = run[party].io.values["train-loss"]
            assert len(report["loss"]) == iterations
            assert report["converged"] == (tol == 100)


def test_every_party_writes_every_declared_output():
    guest, host = random_tables(30, 2, 2)
    run = train({"max_iter": 1}, guest, host).require_success()
    for party in run.parties.values():
        assert {*party.io.tables, *party.io.values} == {"train_data", "model", "train-loss"}
        json.dumps(
            party.io.values,
            allow_nan=False,
        )
    assert run["host.0"].io.tables["train_data"] == Table(["id"], [[row[0]] for row in host.rows])
    assert run["host.0"].io.values["train-loss"] == {"held_by": ["guest.0"]}
    assert run["arbiter.0"].io.tables["train_data"] == Table(
        ["id"],
        [],
    )
    assert run["arbiter.0"].io.values["model"]["held_by"] == ["guest.0", "host.0"]
    assert '"h0"' not in json.dumps(run["guest.0"].io.values)
    assert '"g0"' not in json.dumps(run["host.0"].io.values)


def test_other_ids_fail_at_once_at_guest_and_host():
    guest, host = random_tables(30, 2, 2)
    run = train(
        {},
        guest,
        Table(
            host.header,
            host.rows[::-1],
        ),
    )
    for party in ("guest.0", "host.0"):
        assert isinstance(run[party].error, NotAligned)
    assert run["arbiter.0"].error is not None


def test_a_step_over_too_few_rows_is_refused_before_any_message():
    guest, host = random_tables(30, 2, 5)
    run = train({"batch_size": 5}, guest, host)
    assert isinstance(run["host.0"].error, BadParameters)
    assert "batch_size" in str(run["host.0"].error)
    assert "(5)" in str(run["host.0"].error)
    assert not [message for message in run.channel.sent if message.source == "host.0"]
    few, few_of_host = random_tables(4, 5, 1)
    assert isinstance(
        train({}, few, few_of_host)["guest.0"].error,
        BadParameters,
    )


def test_a_rate_that_makes_the_weights_explode_is_named():
    rows = Rows(
        ["a", "b"],
        ["x"],
        np.array([[1.0], [2.0]]),
        None,
    )
    plan = RegressionPlan(
        optimizer="sgd",
        learning_rate=100.0,
    )
    part = PartialModel(
        "host.0",
        standardise(rows, intercept=False),
        plan,
    )
    part.move([10**16], 2, 0)
    with pytest.raises(Diverged, match="learning_rate"):
        part.scores(np.arange(2))


def plainly(
    guest: Table,
    host: Table,
    parameters: Mapping[str, Any],
) -> tuple[PlainWire, Rows, Rows]:
    """Train over links that are not sealed, to read what each peer itself can read."""
    parsed, guest_rows, host_rows = read(parameters, guest, host)
    wire, plan = PlainWire(), parsed.plan
    parties = ("guest.0", "host.0", "arbiter.0")
    links = {me: {peer: wire.link(me, peer) for peer in parties if peer != me} for me in parties}
    a = PartialModel(
        "guest.0",
        standardise(guest_rows, plan.fit_intercept),
        plan,
    )
    b = PartialModel(
        "host.0",
        standardise(host_rows, intercept=False),
        plan,
    )
    steps = split_batches(len(guest_rows.ids), plan.batch_size)
    together(
        lambda: encrypted_regression.fit_guest(
            a, guest_rows.label_values, plan, steps, links["guest.0"], no_log
        ),
        lambda: encrypted_regression.fit_host(b, links["host.0"], no_log),
        lambda: encrypted_regression.fit_arbiter(links["arbiter.0"], KEY, no_log),
    )
    return wire, guest_rows, host_rows


def clear_gradients(
    guest_rows: Rows,
    host_rows: Rows,
    plan: RegressionPlan,
) -> tuple[list[int], list[int], list[int]]:
    """Per row, and summed for guest and host: the integers of the first iteration."""
    a, b = (
        standardise(guest_rows, plan.fit_intercept),
        standardise(
            host_rows,
            intercept=False,
        ),
    )
    zeros = np.zeros(len(guest_rows.ids))
    rows = guest_residual(guest_rows.label_values, zeros) + quarter_scores(zeros)
    return rows.tolist(), (a.cells.T @ rows).tolist(), (b.cells.T @ rows).tolist()


def masked(
    wire: PlainWire,
    to: str,
    columns: int,
) -> list[int]:
    """What the arbiter told a party to be its gradient in the first iteration."""
    first = next(
        m
        for source, peer, m, _ in wire.frames
        if (source, peer, m.kind) == ("arbiter.0", to, "gradient")
    )
    size = KEY.cipher_bytes // 2 + 1
    blob = first.blob()
    assert len(blob) == size * columns
    return [
        int.from_bytes(blob[i : i + size], "big", signed=True) for i in range(0, len(blob), size)
    ]


def test_the_arbiter_sees_gradients_behind_masks_only():
    guest, host = random_tables(40, 3, 3)
    parameters = {"max_iter": 1}
    runs = [plainly(guest, host, parameters) for _ in range(2)]
    plan = read(parameters, guest, host)[0].plan
    _, for_guest, for_host = clear_gradients(
        runs[0][1],
        runs[0][2],
        plan,
    )
    for to, true in (("guest.0", for_guest), ("host.0", for_host)):
        gradients = [masked(wire, to, len(true)) for wire, _, _ in runs]
        largest = max(value.bit_length() for values in gradients for value in values)
        assert 110 < largest <= 121
        assert max(abs(value) for value in true).bit_length() < 60
        assert len({*gradients[0], *gradients[1]}) == 2 * len(true)
        assert not {*gradients[0], *gradients[1]} & set(true)


def test_each_party_is_sent_what_it_may_know_and_no_more():
    guest, host = random_tables(40, 3, 3)
    wire, guest_rows, host_rows = plainly(
        guest,
        host,
        {"max_iter": 2, "batch_size": 20},
    )
    sent = {
        (source, to, m.kind): set(m.fields)
        for source, to, m, _ in wire.frames
        if m.kind != "gradient"
    }
    assert sent == {
        ("arbiter.0", "guest.0", "key"): set(),
        ("arbiter.0", "host.0", "key"): set(),
        ("guest.0", "host.0", "start"): {"rows", "batch", "iterations", "norms"},
        ("guest.0", "arbiter.0", "start"): {"rows", "batch", "iterations", "early_stop", "tol"},
        ("host.0", "guest.0", "scores"): set(),
        ("guest.0", "host.0", "residuals"): set(),
        ("host.0", "guest.0", "moved"): set(),
        ("guest.0", "arbiter.0", "moved"): set(),
        ("arbiter.0", "guest.0", "verdict"): {"stop"},
        ("arbiter.0", "host.0", "verdict"): {"stop"},
        ("host.0", "guest.0", "shares"): set(),
    }
    messages: dict[str, set[str]] = {}
    for source, to, m, _ in wire.frames:
        if (source, m.kind) == ("arbiter.0", "gradient"):
            messages.setdefault(to, set()).update(m.fields)
    assert messages == {
        "guest.0": {"stop", "loss"},
        "host.0": {"stop"},
    }
    plan = replace(
        RegressionPlan(),
        batch_size=20,
    )
    rows, for_guest, for_host = clear_gradients(guest_rows, host_rows, plan)
    data = b"\n".join(frame for *_, frame in wire.frames)
    for part in (guest_rows, host_rows):
        for what, forms in traces(part, [*rows, *for_guest, *for_host]).items():
            assert not readable([form for form in forms if len(form) >= 6], data), what


def test_the_guest_hides_every_row_with_randomness_of_its_own():
    """Who made the host's randomness must not be able to divide it out of the residuals."""
    guest, host = random_tables(30, 2, 2)
    wire, guest_rows, _ = plainly(
        guest,
        host,
        {"max_iter": 1},
    )
    blobs = {
        m.kind: m.blob() for source, _, m, _ in wire.frames if m.kind in ("scores", "residuals")
    }
    scores = KEY.load(blobs["scores"], 31)[:30]
    residuals = KEY.load(blobs["residuals"], 30)
    shares = guest_residual(guest_rows.label_values, np.zeros(30)).tolist()
    quotients = KEY.add(residuals, KEY.negate(scores))
    assert KEY.decrypt(quotients) == shares
    assert not set(quotients) & {(1 + share * KEY.n) % KEY.square for share in shares}
    assert len(set(quotients)) == 30


def test_the_channel_carries_no_id_label_gradient_or_feature_value(breast_run):
    guest, host = breast_cancer("guest"), breast_cancer("host")
    _, guest_rows, host_rows = read({}, guest, host)
    rows, for_guest, for_host = clear_gradients(guest_rows, host_rows, RegressionPlan())
    sent = breast_run.channel.sent
    begin_and_end = b"\n".join(message.payload for message in [*sent[:24], *sent[-4:]])
    for part in (guest_rows, host_rows):
        for what, forms in traces(part, [*rows, *for_guest, *for_host]).items():
            assert not readable(forms, begin_and_end), what


def test_two_runs_share_no_ciphertext():
    guest, host = random_tables(30, 2, 2)
    kinds = ("scores", "residuals", "gradient", "moved")
    ciphers_of_runs = []
    for _ in range(2):
        wire, _, _ = plainly(
            guest,
            host,
            {"max_iter": 2},
        )
        blobs = [
            m.blob() for source, _, m, _ in wire.frames if source != "arbiter.0" and m.kind in kinds
        ]
        size = KEY.cipher_bytes
        ciphers = [blob[i : i + size] for blob in blobs for i in range(0, len(blob), size)]
        assert len(set(ciphers)) == len(ciphers) > 100
        ciphers_of_runs.append(set(ciphers))
    assert not ciphers_of_runs[0] & ciphers_of_runs[1]
    runs = [train({"max_iter": 2}, guest, host).require_success() for _ in range(2)]
    assert not {m.payload for m in runs[0].channel.sent} & {m.payload for m in runs[1].channel.sent}
    assert runs[0]["guest.0"].io.tables == runs[1]["guest.0"].io.tables


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 300),
    size=st.one_of(
        st.none(),
        st.integers(1, 400),
    ),
)
def test_batches_take_every_row_once_and_none_is_short(rows, size):
    steps = split_batches(rows, size)
    assert sorted(row for step in steps for row in step.tolist()) == list(range(rows))
    assert min(len(step) for step in steps) >= min(rows, size or rows)
    assert all(np.array_equal(a, b) for a, b in zip(steps, split_batches(rows, size), strict=True))


def test_standardised_columns_are_centred_scaled_and_held():
    values = np.array([[1.0, 5.0, np.nan], [2.0, 5.0, 4.0], [3.0, 5.0, 8.0], [1e6, 5.0, 6.0]])
    design = standardise(
        Rows(
            list("abcd"),
            ["x", "same", "gap"],
            values,
            None,
        ),
        intercept=True,
    )
    cells = design.cells / 2.0**FEATURE_BITS
    assert np.allclose(
        cells[:, 0].mean(),
        0,
        atol=1e-3,
    )
    assert np.allclose(
        cells[:, 0].std(),
        1,
        atol=1e-3,
    )
    assert not cells[:, 1].any()
    assert cells[0, 2] == 0
    assert design.means[2] == 6
    assert (cells[:, 3] == 1).all()
    far = np.zeros((1000, 1))
    far[0] = 1e9
    clipped = standardise(Rows([str(i) for i in range(1000)], ["x"], far, None), intercept=False)
    assert abs(clipped.cells).max() < 8 * 2**FEATURE_BITS


@pytest.mark.parametrize(
    "start",
    [
        {
            "rows": 29,
            "batch": 30,
            "iterations": 1,
        },
        {
            "rows": 30,
            "batch": 0,
            "iterations": 1,
        },
        {
            "rows": 30,
            "batch": 31,
            "iterations": 1,
        },
        {
            "rows": 30,
            "batch": 2,
            "iterations": 1,
        },
        {
            "rows": 30,
            "batch": 30,
            "iterations": "many",
        },
        {},
    ],
    ids=str,
)
def test_the_host_refuses_a_plan_that_cannot_be(start):
    _, host = random_tables(30, 1, 2)
    values = np.array([[float(cell) for cell in row[1:]] for row in host.rows])
    rows = Rows([row[0] for row in host.rows], ["h0", "h1"], values, None)
    wire = PlainWire()
    wire.link("guest.0", "host.0").send("start", start)
    wire.link("arbiter.0", "host.0").send("key", {}, [KEY.to_bytes()])
    links = {peer: wire.link("host.0", peer) for peer in ("guest.0", "arbiter.0")}
    with pytest.raises((BadMessage, BadParameters)):
        encrypted_regression.fit_host(
            PartialModel("host.0", standardise(rows, False), RegressionPlan()), links, no_log
        )
    assert not [frame for frame in wire.frames if frame[0] == "host.0"]
