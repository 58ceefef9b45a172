"""Gradient-boosted trees on the features of a guest and its hosts (SecureBoost, arXiv:1901.08755).

The guest has the labels and the key, hosts have only features. A pooled run of the same code gives
exactly the same trees. The protocol, and what each party learns from it, is in `encrypted_trees`.

With its input ``model`` connected the component scores rows instead, see `tree_scores`.

Outputs: the guest writes scores (``train_data``: id, label, score, prediction), the trees with
references to the hosts' splits (``model``), the loss per tree (``train-loss``, also during the
training), AUC and KS (``train-auc``) and the KS curve (``train-ks``). A host writes its ids, its
own splits with feature names and thresholds, and reports that refer to the guest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from refvendor.components.encrypted_trees import EncryptedGradients, RemoteSource, TreeHost
from refvendor.components.links import Link, aborting_peers, connect
from refvendor.components.parameters import Reader
from refvendor.components.predicting import (
    is_prediction,
    read_model,
    read_new_rows,
    write_scores,
    write_without_scores,
)
from refvendor.components.split_search import SplitRule, bin_features
from refvendor.components.training import (
    CommonParameters,
    LossReport,
    Rows,
    compute_metrics,
    id_table,
    ks_report,
    loss_entries,
    prediction_table,
    read_common,
    read_rows,
    reference_to,
    sigmoid,
)
from refvendor.components.tree_scores import (
    model_features,
    receive_sides,
    score_rows,
    send_sides,
)
from refvendor.components.trees import BoostedTrees, BoostingPlan, LocalSource, boost
from refvendor.contract import Component, Io, Log, Net, Task
from refvendor.crypto import paillier

INPUT = "train_data"
OUTPUT = "train_data"
MODEL = "model"
LOSS = "train-loss"
AUC = "train-auc"
KS = "train-ks"
REPORTS = (LOSS, AUC, KS)
GUEST = "guest.0"
MOST_ROWS = 1 << 30


@dataclass(frozen=True)
class Parameters:
    """The component's parameters."""

    common: CommonParameters
    plan: BoostingPlan
    bin_num: int  # bins per feature, at most
    feature_rate: float  # share of the features that each tree sees


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
    rows = read_rows(
        io.read_table(INPUT),
        parameters.common,
        with_labels=True,
        log=log,
    )
    source = _local_source(task.me, rows, parameters)
    links = connect(
        task,
        net,
        task.peers("host"),
        rows.ids,
    )
    on_tree = _progress(io, parameters, log)
    with aborting_peers(list(links.values())):
        hosts = _remote_sources(links, parameters, rows)
        trees = boost([source, *hosts], rows.label_values, parameters.plan, on_tree)
        for remote in hosts:
            remote.finish()
    _write_guest_outputs(task, io, parameters, rows, trees)


def host(
    task: Task,
    io: Io,
    net: Net,
    log: Log,
) -> None:
    """Train as a party with features only, or help to score rows."""
    parameters = read_parameters(task, log)
    if is_prediction(task):
        _help_to_score(task, io, net, parameters)
        return
    rows = read_rows(
        io.read_table(INPUT),
        parameters.common,
        with_labels=False,
        log=log,
    )
    bins = bin_features(rows.names, rows.values, parameters.bin_num)
    links = connect(task, net, [GUEST], rows.ids)
    with aborting_peers(list(links.values())):
        tree_host = TreeHost(
            links[GUEST],
            task.me,
            bins,
            parameters.feature_rate,
        )
        tree_host.serve()
    log(
        "info",
        "training finished",
        trees=tree_host.trees,
        own_splits=len(tree_host.splits),
    )
    io.write_table(
        OUTPUT,
        id_table(parameters.common.id_column, rows.ids),
    )
    io.write_json(MODEL, {**_model_head(task), "splits": tree_host.splits})
    for report in REPORTS:
        io.write_json(report, reference_to(GUEST))


ROLES: Mapping[str, Component] = {
    "guest": guest,
    "host": host,
}


# ------------------------------------------------------------ parameters


def read_parameters(task: Task, log: Log) -> Parameters:
    """Read the job's parameters. Raises `BadParameters` with every invalid one."""
    reader = Reader(task.parameters)
    parameters = Parameters(
        common=read_common(reader),
        plan=_read_plan(reader),
        bin_num=reader.integer("bin_num", 32, 2, 256),
        feature_rate=reader.number(
            "subsample_feature_rate",
            1.0,
            0.0,
            1.0,
            above=True,
        ),
    )
    if task.role == "guest" and not task.peers("host"):
        reader.refuse("host", "a guest needs at least one host")
    reader.finish(log)
    return parameters


def _read_plan(reader: Reader) -> BoostingPlan:
    objective = reader.nested(
        "objective_param",
        shorthand="objective",
    )
    objective.choice("objective", "cross_entropy", ("cross_entropy",))
    if reader.raw("early_stopping_rounds") is not None:
        reader.refuse(
            "early_stopping_rounds", "must be empty: it needs a validation set, and there is none"
        )
    tree = reader.nested("tree_param")
    return BoostingPlan(
        num_trees=reader.integer("num_trees", 5, 1, 1000),
        learning_rate=reader.number(
            "learning_rate",
            0.15,
            0.0,
            10.0,
            above=True,
        ),
        max_depth=tree.integer("max_depth", 3, 1, 20),
        min_sample_split=tree.integer("min_sample_split", 2, 2, MOST_ROWS),
        rule=_read_split_rule(tree),
        stop_early=reader.flag("n_iter_no_change", True),
        early_stop=reader.choice(
            "early_stop",
            "diff",
            ("weight_diff", "diff"),
        ),
        tol=reader.number("tol", 1e-4, 0.0),
    )


def _read_split_rule(tree: Reader) -> SplitRule:
    tree.choice("criterion_method", "xgboost", ("xgboost",))
    reg_lambda, reg_alpha = _read_penalties(tree)
    return SplitRule(
        reg_lambda=reg_lambda,
        reg_alpha=reg_alpha,
        min_gain=tree.number("min_impurity_split", 1e-3, 0.0),
        min_leaf_rows=tree.integer("min_leaf_node", 1, 1, MOST_ROWS),
    )


def _read_penalties(tree: Reader) -> tuple[float, float]:
    """Return ``criterion_params``: the L2 and the L1 penalty on leaf weights. A single number is
    the L2 penalty.
    """
    value = tree.raw("criterion_params")
    if value is None:
        return 0.1, 0.0
    numbers = list(value) if isinstance(value, list) else [value]
    if not 1 <= len(numbers) <= 2 or not all(_is_penalty(number) for number in numbers):
        tree.refuse("criterion_params", "must be [l2, l1] with numbers from 0")
        return 0.1, 0.0
    if len(numbers) == 1:
        numbers.append(0.0)
    return float(numbers[0]), float(numbers[1])


def _is_penalty(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return bool(is_number and value >= 0)


# ------------------------------------------------------------ training


def _local_source(
    party: str,
    rows: Rows,
    parameters: Parameters,
) -> LocalSource:
    bins = bin_features(rows.names, rows.values, parameters.bin_num)
    return LocalSource(party, bins, parameters.feature_rate)


def _remote_sources(
    links: Mapping[str, Link],
    parameters: Parameters,
    rows: Rows,
) -> list[RemoteSource]:
    """Make a key, send every host its public part and return the hosts as sources."""
    key = paillier.generate(parameters.common.key_length)
    total = len(rows.ids)
    gradients = EncryptedGradients(key, total)
    return [RemoteSource(link, key, total, gradients) for link in links.values()]


def _progress(
    io: Io,
    parameters: Parameters,
    log: Log,
) -> Callable[[int, float], None]:
    """Return a function that logs and reports each tree's loss during the training."""
    report = LossReport(io, LOSS, "tree", log)

    def on_tree(tree: int, loss: float) -> None:
        log(
            "info",
            "tree finished",
            tree=tree,
            of=parameters.plan.num_trees,
            loss=loss,
        )
        report.add(loss)

    return on_tree


def boost_pooled(
    parts: Mapping[str, Rows],
    guest: str,
    parameters: Parameters,
) -> BoostedTrees:
    """Train in the clear on the rows of all parties. The federated training must give the same
    trees.

    ``guest`` is the party with the labels.
    """
    sources = [_local_source(party, rows, parameters) for party, rows in parts.items()]
    return boost(sources, parts[guest].label_values, parameters.plan)


# ------------------------------------------------------------ scoring


def _score(
    task: Task,
    io: Io,
    net: Net,
    parameters: Parameters,
) -> None:
    """Score rows with this party's splits and the sides that the hosts send."""
    model = read_model(task, io, ("base_score", "trees", "training"))
    features = model_features([node for tree in model["trees"] for node in tree])
    rows = read_new_rows(
        io.read_table(INPUT),
        parameters.common,
        features,
    )
    links = connect(
        task,
        net,
        task.peers("host"),
        rows.ids,
    )
    with aborting_peers(list(links.values())):
        sides = {peer: receive_sides(link, model, len(rows.ids)) for peer, link in links.items()}
        scores = score_rows(model, task.me, rows, features, sides)
    write_scores(
        task,
        io,
        parameters.common,
        model,
        rows,
        scores,
        REPORTS,
    )


def _help_to_score(
    task: Task,
    io: Io,
    net: Net,
    parameters: Parameters,
) -> None:
    """Send the guest the side of every row at every split of this party."""
    model = read_model(task, io, ("splits", "training"))
    features = model_features(model["splits"])
    rows = read_new_rows(
        io.read_table(INPUT),
        parameters.common,
        features,
    )
    links = connect(task, net, [GUEST], rows.ids)
    with aborting_peers(list(links.values())):
        send_sides(links[GUEST], model, rows, features)
    write_without_scores(io, parameters.common, rows.ids, REPORTS)


# ------------------------------------------------------------ outputs


def _write_guest_outputs(
    task: Task,
    io: Io,
    parameters: Parameters,
    rows: Rows,
    boosted: BoostedTrees,
) -> None:
    common = parameters.common
    labels = rows.label_values
    probabilities = sigmoid(boosted.scores)
    model = {
        **_model_head(task),
        "base_score": boosted.base_score,
        "threshold": common.threshold,
        "trees": boosted.trees,
    }
    loss_report = {
        "loss": loss_entries(boosted.losses, "tree"),
        "loss_before": boosted.base_loss,
        "trees_wanted": parameters.plan.num_trees,
        "stopped_early": boosted.stopped_early,
    }
    auc_report: dict[str, Any] = {
        "rows": len(rows.ids),
        **compute_metrics(labels, probabilities, common.metrics),
    }
    if common.local_baseline:
        auc_report["local_baseline"] = _local_baseline(task, parameters, rows)
    io.write_table(OUTPUT, prediction_table(rows, common, probabilities))
    io.write_json(MODEL, model)
    io.write_json(LOSS, loss_report)
    io.write_json(AUC, auc_report)
    io.write_json(
        KS,
        ks_report(labels, probabilities, common.metrics),
    )


def _local_baseline(
    task: Task,
    parameters: Parameters,
    rows: Rows,
) -> dict[str, float]:
    """Return the metrics of trees that are trained on the guest's features alone."""
    boosted = boost_pooled(
        {task.me: rows},
        task.me,
        parameters,
    )
    return compute_metrics(
        rows.label_values,
        sigmoid(boosted.scores),
        parameters.common.metrics,
    )


def _model_head(task: Task) -> dict[str, Any]:
    """Return the entries with which every party's part of a model begins."""
    return {
        "component": task.component,
        "party": task.me,
        "training": task.task_id,
        "missing_values": "left",
        "split_rule": "left if value <= threshold",
    }
