"""Logistic regression on the features of a guest and a host, with an arbiter who holds the key.

The guest has the labels. The protocol, and what each party learns from it, is in
`encrypted_regression`.

With its input ``model`` connected the component scores rows instead: the host sends the guest its
share of each row's score, as at the end of a training; an arbiter has nothing to do.

Outputs: the guest writes scores (``train_data``), its weights (``model``) and ``train-loss`` with
the loss per iteration (also during the training), AUC and KS. The host writes its ids, its weights
and a report that refers to the guest. The arbiter has no rows: it writes an empty table, a model
that names its holders, and the losses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from refvendor.components.encrypted_regression import (
    ARBITER,
    GUEST,
    HOST,
    MOST_ROWS,
    SHARES,
    checked_batches,
    dump_floats,
    fit_arbiter,
    fit_guest,
    fit_host,
    load_floats,
)
from refvendor.components.links import aborting_peers, connect
from refvendor.components.parameters import Reader
from refvendor.components.predicting import (
    NewRows,
    check_same_training,
    is_prediction,
    read_model,
    read_new_rows,
    write_scores,
    write_without_scores,
)
from refvendor.components.regression import (
    INITS,
    OPTIMIZERS,
    PartialModel,
    RegressionFit,
    RegressionPlan,
    fit_pooled,
    load_model,
    model_features,
    standardise,
)
from refvendor.components.training import (
    CommonParameters,
    LossReport,
    Rows,
    compute_metrics,
    id_table,
    loss_entries,
    prediction_table,
    read_common,
    read_rows,
    reference_to,
    sigmoid,
)
from refvendor.contract import Component, Io, Log, Net, Task
from refvendor.crypto import paillier

INPUT = "train_data"
OUTPUT = "train_data"
MODEL = "model"
LOSS = "train-loss"


@dataclass(frozen=True)
class Parameters:
    """The component's parameters."""

    common: CommonParameters
    plan: RegressionPlan


# ------------------------------------------------------------ roles


def guest(
    task: Task,
    io: Io,
    net: Net,
    log: Log,
) -> None:
    """Train as the party with the labels, or score rows."""
    parameters = read_parameters(task, log)
    if is_prediction(task):
        _score(task, io, net, parameters)
        return
    plan = parameters.plan
    rows = read_rows(
        io.read_table(INPUT),
        parameters.common,
        with_labels=True,
        log=log,
    )
    part = PartialModel(
        task.me,
        standardise(rows, plan.fit_intercept),
        plan,
    )
    batches = checked_batches(
        len(rows.ids),
        plan.batch_size,
        part,
    )
    links = connect(
        task,
        net,
        [HOST, ARBITER],
        rows.ids,
    )
    report = LossReport(io, LOSS, "iteration", log)
    with aborting_peers(list(links.values())):
        fit = fit_guest(
            part,
            rows.label_values,
            plan,
            batches,
            links,
            log,
            report.add,
        )
    _write_guest_outputs(task, io, parameters, rows, part, fit)


def host(
    task: Task,
    io: Io,
    net: Net,
    log: Log,
) -> None:
    """Train as the party with features only, or help to score rows."""
    parameters = read_parameters(task, log)
    if is_prediction(task):
        _help_to_score(task, io, net, parameters)
        return
    plan = parameters.plan
    rows = read_rows(
        io.read_table(INPUT),
        parameters.common,
        with_labels=False,
        log=log,
    )
    part = PartialModel(
        task.me,
        standardise(rows, intercept=False),
        plan,
    )
    checked_batches(len(rows.ids), plan.batch_size, part)
    links = connect(
        task,
        net,
        [GUEST, ARBITER],
        rows.ids,
    )
    with aborting_peers(list(links.values())):
        fit_host(part, links, log)
    io.write_table(
        OUTPUT,
        id_table(parameters.common.id_column, rows.ids),
    )
    io.write_json(
        MODEL,
        _model_head(task) | part.to_json(),
    )
    io.write_json(LOSS, reference_to(GUEST))


def arbiter(
    task: Task,
    io: Io,
    net: Net,
    log: Log,
) -> None:
    """Hold the key: decrypt masked gradients and decide when to stop."""
    parameters = read_parameters(task, log)
    common = parameters.common
    if is_prediction(task):
        write_without_scores(io, common, [], (LOSS,))
        return
    links = connect(task, net, [GUEST, HOST], None)
    with aborting_peers(list(links.values())):
        key = paillier.generate(common.key_length)
        losses, converged = fit_arbiter(links, key, log)
    io.write_table(OUTPUT, id_table(common.id_column, []))
    io.write_json(
        MODEL,
        _model_head(task) | reference_to(GUEST, HOST),
    )
    io.write_json(
        LOSS,
        {
            "loss": loss_entries(losses, "iteration"),
            "converged": converged,
        },
    )


ROLES: Mapping[str, Component] = {
    "guest": guest,
    "host": host,
    "arbiter": arbiter,
}


# ------------------------------------------------------------ parameters


def read_parameters(task: Task, log: Log) -> Parameters:
    """Read the job's parameters. Raises `BadParameters` with every invalid one."""
    reader = Reader(task.parameters)
    common = read_common(reader)
    plan = _read_plan(reader)
    roles = ["guest", "host"]
    if not is_prediction(task):
        roles.append("arbiter")
    for role in roles:
        count = task.count(role)
        if count != 1:
            reader.refuse(role, f"exactly one {role} must take part, {count} do")
    reader.finish(log)
    return Parameters(common=common, plan=plan)


def _read_plan(reader: Reader) -> RegressionPlan:
    start = reader.nested(
        "init_param",
        shorthand="init_method",
    )
    unsupported = {"sqn": "this component has no stochastic quasi-Newton"}
    return RegressionPlan(
        max_iter=reader.integer("max_iter", 30, 1, 1000),
        batch_size=_read_batch_size(reader),
        learning_rate=reader.number(
            "learning_rate",
            0.15,
            0.0,
            100.0,
            above=True,
        ),
        optimizer=reader.choice(
            "optimizer",
            "rmsprop",
            tuple(OPTIMIZERS),
            unsupported,
        ),
        penalty=reader.choice(
            "penalty",
            "L2",
            ("L1", "L2"),
        ),
        alpha=reader.number("alpha", 0.01, 0.0, 1000.0),
        init=start.choice("init_method", "zeros", INITS),
        fit_intercept=start.flag("fit_intercept", True),
        early_stop=reader.choice(
            "early_stop",
            "weight_diff",
            ("weight_diff", "diff"),
        ),
        tol=reader.number("tol", 1e-4, 0.0),
    )


def _read_batch_size(reader: Reader) -> int | None:
    """Return the rows per step; None for all rows, which is also the meaning of -1."""
    value = reader.raw("batch_size")
    if value is None or str(value).strip().lower() in ("all", "-1"):
        return None
    return reader.integer("batch_size", 1, 1, MOST_ROWS)


# ------------------------------------------------------------ scoring


def _score(
    task: Task,
    io: Io,
    net: Net,
    parameters: Parameters,
) -> None:
    """Add the host's share of the scores to this party's."""
    model = read_model(task, io, ("weights", "training"))
    part, rows = _load_part(task, io, parameters, model)
    total = len(rows.ids)
    links = connect(task, net, [HOST], rows.ids)
    with aborting_peers(list(links.values())):
        message = links[HOST].expect(SHARES)
        check_same_training(model, message)
        scores = part.scores(np.arange(total)) + load_floats(
            message.blob(),
            total,
        )
    write_scores(
        task,
        io,
        parameters.common,
        model,
        rows,
        scores,
        (LOSS,),
    )


def _help_to_score(
    task: Task,
    io: Io,
    net: Net,
    parameters: Parameters,
) -> None:
    """Send the guest this party's share of the scores."""
    model = read_model(task, io, ("weights", "training"))
    part, rows = _load_part(task, io, parameters, model)
    links = connect(task, net, [GUEST], rows.ids)
    with aborting_peers(list(links.values())):
        shares = part.scores(np.arange(len(rows.ids)))
        links[GUEST].send(
            SHARES,
            {"training": model["training"]},
            [dump_floats(shares)],
        )
    write_without_scores(
        io,
        parameters.common,
        rows.ids,
        (LOSS,),
    )


def _load_part(
    task: Task,
    io: Io,
    parameters: Parameters,
    model: Mapping[str, Any],
) -> tuple[PartialModel, NewRows]:
    """Return this party's part of a model over the rows of its input."""
    rows = read_new_rows(
        io.read_table(INPUT),
        parameters.common,
        model_features(model),
    )
    return load_model(task.me, model, rows.values, parameters.plan), rows


# ------------------------------------------------------------ outputs


def _write_guest_outputs(
    task: Task,
    io: Io,
    parameters: Parameters,
    rows: Rows,
    part: PartialModel,
    fit: RegressionFit,
) -> None:
    common = parameters.common
    probabilities = sigmoid(fit.scores)
    io.write_table(OUTPUT, prediction_table(rows, common, probabilities))
    io.write_json(
        MODEL,
        _model_head(task) | part.to_json() | {"threshold": common.threshold},
    )
    report: dict[str, Any] = {
        "rows": len(rows.ids),
        "loss": loss_entries(fit.losses, "iteration"),
        "converged": fit.converged,
        **compute_metrics(rows.label_values, probabilities, common.metrics),
    }
    if common.local_baseline:
        report["local_baseline"] = _local_baseline(task, parameters, rows, part)
    io.write_json(LOSS, report)


def _local_baseline(
    task: Task,
    parameters: Parameters,
    rows: Rows,
    part: PartialModel,
) -> dict[str, float]:
    """Return the metrics of a model that is trained on the guest's features alone."""
    untrained = PartialModel(task.me, part.design, parameters.plan)
    fit = fit_pooled(untrained, None, rows.label_values, parameters.plan)
    return compute_metrics(
        rows.label_values,
        sigmoid(fit.scores),
        parameters.common.metrics,
    )


def _model_head(task: Task) -> dict[str, Any]:
    """Return the entries with which every party's part of a model begins."""
    return {
        "component": task.component,
        "party": task.me,
        "training": task.task_id,
    }
