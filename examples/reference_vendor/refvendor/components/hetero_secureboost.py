"""Trains gradient-boosted trees on features that are spread over a guest and its hosts (SecureBoost).

The guest has the labels and the key, hosts have only features. The trees equal those of a pooled run of the
same code exactly. What a party learns of the others is said in `encrypted_trees`.

With its input ``model`` bound the component scores rows instead, see `tree_scores`.

Outputs: the guest writes scores (``train_data``: id, label, score, prediction), the trees with references
into the hosts' parts (``model``), the loss per tree (``train-loss``, while it trains, too), AUC and KS
(``train-auc``) and the KS curve (``train-ks``). A host writes its ids, its own splits with feature names and
thresholds, and reports that name the guest as their holder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from refvendor.components.encrypted_trees import CipherOfTree, HostOfTrees, RemoteSource
from refvendor.components.links import connect, telling_peers
from refvendor.components.parameters import Reader
from refvendor.components.predicting import (
    predicts,
    read_model,
    read_new_rows,
    write_rest,
    write_scores,
)
from refvendor.components.split_search import SplitRule, bin_features
from refvendor.components.training import (
    Common,
    LossSoFar,
    Rows,
    held_by,
    numbered,
    only_ids,
    predictions,
    quality,
    read_common,
    read_rows,
    sigmoid,
)
from refvendor.components.tree_scores import features_of, hear_sides, tell_sides, walk
from refvendor.components.trees import Boosted, BoostingPlan, LocalSource, boost
from refvendor.contract import Component, Io, Log, Net, Task
from refvendor.crypto import paillier
from refvendor.metrics import ks_curve

INPUT, OUTPUT, MODEL = "train_data", "train_data", "model"
LOSS, AUC, KS = "train-loss", "train-auc", "train-ks"


@dataclass(frozen=True)
class Parameters:
    """What the component was asked to do; ``feature_rate`` is the share of columns that a tree sees."""

    common: Common
    plan: BoostingPlan
    bin_num: int
    feature_rate: float


def guest(
    task: Task,
    io: Io,
    net: Net,
    log: Log,
) -> None:
    """Train as the party with the labels, or score rows."""
    parameters = read_parameters(task, log)
    if predicts(task):
        _score(task, io, net, parameters)
        return
    hosts = task.peers("host")
    rows = read_rows(io.read_table(INPUT), parameters.common, with_labels=True, log=log)
    bins = bin_features(rows.names, rows.values, parameters.bin_num)
    links = connect(task, net, hosts, rows.ids)
    with telling_peers(list(links.values())):
        key = paillier.generate(parameters.common.key_length)
        cipher = CipherOfTree(key, len(rows.ids))
        remote = [RemoteSource(links[host], key, len(rows.ids), cipher) for host in hosts]
        own = LocalSource(task.me, bins, parameters.feature_rate)
        total = parameters.plan.num_trees
        losses = LossSoFar(io, LOSS, "tree", log)

        def progress(tree: int, loss: float) -> None:
            log(
                "info",
                "tree finished",
                tree=tree,
                of=total,
                loss=loss,
            )
            losses.add(loss)

        boosted = boost([own, *remote], rows.label_values, parameters.plan, progress)
        for source in remote:
            source.finish()
    _write_guest(task, io, parameters, rows, boosted)


def host(
    task: Task,
    io: Io,
    net: Net,
    log: Log,
) -> None:
    """Train as a party with features only, or help to score rows."""
    parameters = read_parameters(task, log)
    if predicts(task):
        _help_to_score(task, io, net, parameters)
        return
    rows = read_rows(io.read_table(INPUT), parameters.common, with_labels=False, log=log)
    bins = bin_features(rows.names, rows.values, parameters.bin_num)
    links = connect(task, net, ["guest.0"], rows.ids)
    with telling_peers(list(links.values())):
        served = HostOfTrees(links["guest.0"], task.me, bins, parameters.feature_rate)
        served.serve()
    log("info", "training finished", trees=served.trees, own_splits=len(served.splits))
    io.write_table(OUTPUT, only_ids(parameters.common.id, rows.ids))
    io.write_json(MODEL, {**_model_head(task), "splits": served.splits})
    for report in (LOSS, AUC, KS):
        io.write_json(report, held_by("guest.0"))


def _score(
    task: Task,
    io: Io,
    net: Net,
    parameters: Parameters,
) -> None:
    model = read_model(task, io, ("base_score", "trees", "training"))
    features = features_of([node for tree in model["trees"] for node in tree])
    rows = read_new_rows(io.read_table(INPUT), parameters.common, features)
    links = connect(task, net, task.peers("host"), rows.ids)
    with telling_peers(list(links.values())):
        sides = {host: hear_sides(link, model, len(rows.ids)) for host, link in links.items()}
        scores = walk(model, task.me, rows, features, sides)
    write_scores(task, io, parameters.common, model, rows, scores, (LOSS, AUC, KS))


def _help_to_score(
    task: Task,
    io: Io,
    net: Net,
    parameters: Parameters,
) -> None:
    model = read_model(task, io, ("splits", "training"))
    features = features_of(model["splits"])
    rows = read_new_rows(io.read_table(INPUT), parameters.common, features)
    links = connect(task, net, ["guest.0"], rows.ids)
    with telling_peers(list(links.values())):
        tell_sides(links["guest.0"], model, rows, features)
    write_rest(io, parameters.common, rows.ids, (LOSS, AUC, KS))


ROLES: Mapping[str, Component] = {"guest": guest, "host": host}


def read_parameters(task: Task, log: Log) -> Parameters:
    """Read the job's parameters. Raises `BadParameters` with everything that cannot work."""
    reader = Reader(task.parameters)
    common = read_common(reader)
    objective = reader.part("objective_param", word="objective")
    objective.choice("objective", "cross_entropy", ("cross_entropy",), {})
    if reader.raw("early_stopping_rounds") is not None:
        reader.refuse(
            "early_stopping_rounds", "must be empty: it needs a validation set, and there is none"
        )
    tree = reader.part("tree_param")
    tree.choice("criterion_method", "xgboost", ("xgboost",), {})
    reg_lambda, reg_alpha = _criterion(tree)
    plan = BoostingPlan(
        num_trees=reader.integer("num_trees", 5, 1, 1000),
        learning_rate=reader.number("learning_rate", 0.15, 0.0, 10.0, above=True),
        max_depth=tree.integer("max_depth", 3, 1, 20),
        min_sample_split=tree.integer("min_sample_split", 2, 2, 1 << 30),
        rule=SplitRule(
            reg_lambda=reg_lambda,
            reg_alpha=reg_alpha,
            min_gain=tree.number("min_impurity_split", 1e-3, 0.0),
            min_leaf_rows=tree.integer("min_leaf_node", 1, 1, 1 << 30),
        ),
        stop_early=reader.flag("n_iter_no_change", True),
        early_stop=reader.choice("early_stop", "diff", ("weight_diff", "diff"), {}),
        tol=reader.number("tol", 1e-4, 0.0),
    )
    parameters = Parameters(
        common=common,
        plan=plan,
        bin_num=reader.integer("bin_num", 32, 2, 256),
        feature_rate=reader.number("subsample_feature_rate", 1.0, 0.0, 1.0, above=True),
    )
    if task.role == "guest" and not task.peers("host"):
        reader.refuse("host", "a guest needs at least one host")
    reader.finish(log)
    return parameters


def pooled(
    parts: Mapping[str, Rows],
    labels_of: str,
    parameters: Parameters,
) -> Boosted:
    """Train in the clear on everybody's rows: the run that the federated one must equal."""
    sources = [
        LocalSource(
            party,
            bin_features(rows.names, rows.values, parameters.bin_num),
            parameters.feature_rate,
        )
        for party, rows in parts.items()
    ]
    return boost(sources, parts[labels_of].label_values, parameters.plan, lambda tree, loss: None)


def _criterion(tree: Reader) -> tuple[float, float]:
    """``criterion_params``: the L2 and the L1 penalty on leaf weights."""
    value = tree.raw("criterion_params")
    if value is None:
        return 0.1, 0.0
    numbers = value if isinstance(value, list) else [value]
    usable = all(isinstance(n, int | float) and not isinstance(n, bool) and n >= 0 for n in numbers)
    if not usable or not 1 <= len(numbers) <= 2:
        tree.refuse("criterion_params", "must be [l2, l1] with numbers from 0")
        return 0.1, 0.0
    return float(numbers[0]), float(numbers[1]) if len(numbers) == 2 else 0.0


def _model_head(task: Task) -> dict[str, Any]:
    return {
        "component": task.component,
        "party": task.me,
        "training": task.task_id,
        "missing_values": "left",
        "split_rule": "left if value <= threshold",
    }


def _write_guest(
    task: Task,
    io: Io,
    parameters: Parameters,
    rows: Rows,
    boosted: Boosted,
) -> None:
    labels, probabilities, metrics = (
        rows.label_values,
        sigmoid(boosted.scores),
        parameters.common.metrics,
    )
    io.write_table(OUTPUT, predictions(rows, parameters.common, probabilities))
    io.write_json(
        MODEL,
        {
            **_model_head(task),
            "base_score": boosted.base_score,
            "threshold": parameters.common.threshold,
            "trees": boosted.trees,
        },
    )
    io.write_json(
        LOSS,
        {
            "loss": numbered(boosted.losses, "tree"),
            "loss_before": boosted.base_loss,
            "trees_wanted": parameters.plan.num_trees,
            "stopped_early": boosted.stopped_early,
        },
    )
    reported: dict[str, Any] = {"rows": len(rows.ids), **quality(labels, probabilities, metrics)}
    if parameters.common.local_baseline:
        alone = pooled({task.me: rows}, task.me, parameters)
        reported["local_baseline"] = quality(labels, sigmoid(alone.scores), metrics)
    io.write_json(AUC, reported)
    io.write_json(
        KS, ks_curve(labels, probabilities) if "ks" in metrics else {"left_out": "metrics"}
    )
