"""Fits a logistic regression on features that a guest and a host hold, with an arbiter who holds the key.

For every batch the host sends its encrypted quarter scores, the guest adds its part with fresh randomness in
every row and sends the residuals back, both form their encrypted gradients, hide them behind random masks of
120 bits and have the arbiter decrypt them. So the arbiter sees masked gradients, the loss and one norm of all
steps together; the others see no plaintext but their own gradient. At the end the host tells the guest its
share of the scores, because the guest owns the result.

A gradient over no more rows than columns would give the rows' residuals away, so such batches are refused.

With its input ``model`` bound the component scores rows instead: the host tells the guest its share of each row's
score, as at the end of a training; the arbiter, if there is one, has nothing to do.

Outputs: the guest writes scores (``train_data``), its weights (``model``) and ``train-loss`` with the loss per
iteration (while it trains, too), AUC and KS. The host writes its ids, its weights and a report that names the
guest. The arbiter has no rows: it writes an empty table, a model that names the holders, and the losses.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from gmpy2 import mpz  # type: ignore[import-untyped]

from refvendor.components.links import BadMessage, Link, Message, connect, telling_peers
from refvendor.components.parameters import Reader
from refvendor.components.predicting import (
    NewRows,
    predicts,
    read_model,
    read_new_rows,
    same_training,
    write_rest,
    write_scores,
)
from refvendor.components.regression import (
    GRADIENT_UNIT,
    INITS,
    OPTIMIZERS,
    Fitted,
    Part,
    RegressionPlan,
    batches,
    converged,
    features_of,
    fitted_part,
    guest_loss,
    host_loss,
    loss_weights,
    own_residual,
    pooled,
    quarter,
    standardise,
)
from refvendor.components.split_search import Ints
from refvendor.components.training import (
    Common,
    Floats,
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
from refvendor.contract import BadParameters, Component, Io, Log, Net, Task
from refvendor.crypto import paillier
from refvendor.crypto.paillier import PublicKey
from refvendor.crypto.pool import RandomnessPool

INPUT, OUTPUT, MODEL, LOSS = "train_data", "train_data", "model", "train-loss"
GUEST, HOST, ARBITER = "guest.0", "host.0", "arbiter.0"
KEY, START, SCORES, RESIDUALS = "key", "start", "scores", "residuals"
GRADIENT, MOVED, VERDICT, SHARES = "gradient", "moved", "verdict", "shares"
MASK_BITS = 120
NORM_UNIT = 2.0**-40
MOST_ROWS = 1 << 24


@dataclass(frozen=True)
class Parameters:
    """What the component was asked to do."""

    common: Common
    plan: RegressionPlan


class Trainee:
    """What guest and host do alike: weights, the arbiter's key, masked gradients."""

    def __init__(
        self,
        part: Part,
        arbiter: Link,
        stack: ExitStack,
    ) -> None:
        self.part = part
        self.arbiter = arbiter
        self.key = PublicKey.from_bytes(arbiter.expect(KEY).blob())
        self.key.prepare()
        limit = len(part.design.cells) + part.design.cells.shape[1] + 2
        self.pool = stack.enter_context(RandomnessPool(self.key, limit))

    def wait(self, link: Link, kind: str) -> Message:
        """Expect a message and make randomness until it comes."""
        with self.pool.filling():
            return link.expect(kind)

    def encrypt(self, values: Sequence[int]) -> list[mpz]:
        """Encrypt with randomness that was made beforehand."""
        return self.key.encrypt(values, self.pool.take(len(values)))

    def step(
        self,
        residuals: Sequence[mpz],
        extra: Sequence[mpz],
        rows: Ints,
        iteration: int,
    ) -> Message:
        """Have the own gradient decrypted behind masks and move; ``extra`` ciphertexts go along as they are."""
        columns = self.part.design.cells.shape[1]
        masks = [secrets.randbits(MASK_BITS) for _ in range(columns)]
        sums = self.key.weighted_sums(residuals, self.part.design.cells[rows])
        hidden = self.key.add(sums, self.encrypt(masks))
        data = self.key.dump([*hidden, *extra])
        self.arbiter.send(GRADIENT, {"columns": columns, "rows": len(rows)}, [data])
        answer = self.wait(self.arbiter, GRADIENT)
        values = _integers(answer.blob(), self.key, columns)
        self.part.move(
            [value - mask for value, mask in zip(values, masks, strict=True)], len(rows), iteration
        )
        return answer


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
    rows = read_rows(io.read_table(INPUT), parameters.common, with_labels=True, log=log)
    part = Part(task.me, standardise(rows, parameters.plan.fit_intercept), parameters.plan)
    steps = checked_batches(len(rows.ids), parameters.plan.batch_size, part)
    links = connect(task, net, [HOST, ARBITER], rows.ids)
    with telling_peers(list(links.values())):
        losses = LossSoFar(io, LOSS, "iteration", log)
        fitted = fit_guest(part, rows.label_values, parameters.plan, steps, links, log, losses.add)
    _write_guest(task, io, parameters, rows, part, fitted)


def host(
    task: Task,
    io: Io,
    net: Net,
    log: Log,
) -> None:
    """Train as the party with features only, or help to score rows."""
    parameters = read_parameters(task, log)
    if predicts(task):
        _help_to_score(task, io, net, parameters)
        return
    rows = read_rows(io.read_table(INPUT), parameters.common, with_labels=False, log=log)
    part = Part(task.me, standardise(rows, intercept=False), parameters.plan)
    checked_batches(len(rows.ids), parameters.plan.batch_size, part)
    links = connect(task, net, [GUEST, ARBITER], rows.ids)
    with telling_peers(list(links.values())):
        fit_host(part, links, log)
    io.write_table(OUTPUT, only_ids(parameters.common.id, rows.ids))
    io.write_json(MODEL, {**_model_head(task), **part.model()})
    io.write_json(LOSS, held_by(GUEST))


def arbiter(
    task: Task,
    io: Io,
    net: Net,
    log: Log,
) -> None:
    """Hold the key: decrypt masked gradients and say when to stop."""
    parameters = read_parameters(task, log)
    if predicts(task):
        write_rest(io, parameters.common, [], (LOSS,))
        return
    links = connect(task, net, [GUEST, HOST], None)
    with telling_peers(list(links.values())):
        losses, stop = decrypt_for(links, paillier.generate(parameters.common.key_length), log)
    io.write_table(OUTPUT, only_ids(parameters.common.id, []))
    io.write_json(MODEL, {**_model_head(task), **held_by(GUEST, HOST)})
    io.write_json(LOSS, {"loss": numbered(losses, "iteration"), "converged": stop})


def _score(
    task: Task,
    io: Io,
    net: Net,
    parameters: Parameters,
) -> None:
    model, part, rows = _part_of_model(task, io, parameters)
    total = len(rows.ids)
    links = connect(task, net, [HOST], rows.ids)
    with telling_peers(list(links.values())):
        message = links[HOST].expect(SHARES)
        same_training(model, message)
        scores = part.scores(np.arange(total)) + _floats(message.blob(), total)
    write_scores(task, io, parameters.common, model, rows, scores, (LOSS,))


def _help_to_score(
    task: Task,
    io: Io,
    net: Net,
    parameters: Parameters,
) -> None:
    model, part, rows = _part_of_model(task, io, parameters)
    links = connect(task, net, [GUEST], rows.ids)
    with telling_peers(list(links.values())):
        shares = part.scores(np.arange(len(rows.ids))).astype(">f8").tobytes()
        links[GUEST].send(SHARES, {"training": model["training"]}, [shares])
    write_rest(io, parameters.common, rows.ids, (LOSS,))


def _part_of_model(
    task: Task,
    io: Io,
    parameters: Parameters,
) -> tuple[Mapping[str, Any], Part, NewRows]:
    model = read_model(task, io, ("weights", "training"))
    rows = read_new_rows(io.read_table(INPUT), parameters.common, features_of(model))
    return model, fitted_part(task.me, model, rows.values, parameters.plan), rows


ROLES: Mapping[str, Component] = {
    "guest": guest,
    "host": host,
    "arbiter": arbiter,
}


def read_parameters(task: Task, log: Log) -> Parameters:
    """Read the job's parameters. Raises `BadParameters` with everything that cannot work."""
    reader = Reader(task.parameters)
    common = read_common(reader)
    init = reader.part("init_param", word="init_method")
    no_sqn = {"sqn": "this component has no stochastic quasi-Newton"}
    plan = RegressionPlan(
        max_iter=reader.integer("max_iter", 30, 1, 1000),
        batch_size=_batch_size(reader),
        learning_rate=reader.number("learning_rate", 0.15, 0.0, 100.0, above=True),
        optimizer=reader.choice("optimizer", "rmsprop", OPTIMIZERS, no_sqn),
        penalty=reader.choice("penalty", "L2", ("L1", "L2"), {}),
        alpha=reader.number("alpha", 0.01, 0.0, 1000.0),
        init=init.choice("init_method", "zeros", INITS, {}),
        fit_intercept=init.flag("fit_intercept", True),
        early_stop=reader.choice("early_stop", "weight_diff", ("weight_diff", "diff"), {}),
        tol=reader.number("tol", 1e-4, 0.0),
    )
    for role in ("guest", "host") if predicts(task) else ("guest", "host", "arbiter"):
        if len(task.parties.get(role, ())) != 1:
            reader.refuse(
                role, f"exactly one {role} must take part, {len(task.parties.get(role, ()))} do"
            )
    reader.finish(log)
    return Parameters(common=common, plan=plan)


def fit_guest(
    part: Part,
    labels: Floats,
    plan: RegressionPlan,
    steps: Sequence[Ints],
    links: Mapping[str, Link],
    log: Log,
    progress: Callable[[float], None] = lambda loss: None,
) -> Fitted:
    """Lead the iterations and learn the host's share of the scores at the end; ``progress`` hears each loss."""
    host, arbiter, total = links[HOST], links[ARBITER], len(labels)
    start = {
        "rows": total,
        "batch": min(plan.batch_size or total, total),
        "iterations": plan.max_iter,
    }
    host.send(START, {**start, "norms": plan.early_stop == "weight_diff"})
    arbiter.send(
        START,
        {
            **start,
            "early_stop": plan.early_stop,
            "tol": plan.tol,
        },
    )
    losses: list[float] = []
    stop = False
    with ExitStack() as stack:
        own = Trainee(part, arbiter, stack)
        while not stop and len(losses) < plan.max_iter:
            before = part.weights
            for batch in steps:
                verdict = own.step(*_residuals(own, host, labels[batch], batch), batch, len(losses))
            losses.append(verdict.number("loss"))
            if plan.early_stop == "weight_diff":
                theirs = own.key.load(own.wait(host, MOVED).blob(), 1)
                both = own.key.add(theirs, own.encrypt([_norm(part.weights - before)]))
                arbiter.send(MOVED, None, [own.key.dump(both)])
                verdict = own.wait(arbiter, VERDICT)
            stop = bool(verdict.fields.get("stop"))
            log(
                "info",
                "iteration",
                iteration=len(losses),
                of=plan.max_iter,
                loss=losses[-1],
            )
            progress(losses[-1])
    shares = _floats(host.expect(SHARES).blob(), total)
    return Fitted(
        losses=losses,
        scores=part.scores(np.arange(total)) + shares,
        converged=stop,
    )


def fit_host(
    part: Part,
    links: Mapping[str, Link],
    log: Log,
) -> None:
    """Follow the guest's iterations and tell it the share of the scores at the end."""
    guest, arbiter, total = links[GUEST], links[ARBITER], len(part.design.cells)
    start = guest.expect(START)
    start.integer("rows", total, total)
    steps = checked_batches(total, start.integer("batch", 1, total), part)
    iterations = start.integer("iterations", 1, MOST_ROWS)
    with ExitStack() as stack:
        own = Trainee(part, arbiter, stack)
        for iteration in range(iterations):
            before = part.weights
            for batch in steps:
                scores = part.scores(batch)
                data = own.encrypt([*quarter(scores).tolist(), host_loss(part, scores)])
                guest.send(SCORES, None, [own.key.dump(data)])
                residuals = own.key.load(own.wait(guest, RESIDUALS).blob(), len(batch))
                verdict = own.step(residuals, [], batch, iteration)
            if start.fields.get("norms"):
                guest.send(MOVED, None, [own.key.dump(own.encrypt([_norm(part.weights - before)]))])
                verdict = own.wait(arbiter, VERDICT)
            log("info", "iteration", iteration=iteration + 1, of=iterations)
            if verdict.fields.get("stop"):
                break
    guest.send(SHARES, None, [part.scores(np.arange(total)).astype(">f8").tobytes()])


def decrypt_for(
    links: Mapping[str, Link],
    key: paillier.PrivateKey,
    log: Log,
) -> tuple[list[float], bool]:
    """Decrypt what guest and host send until the guest's plan ends or the last iteration changed too little."""
    guest, host = links[GUEST], links[HOST]
    for link in (guest, host):
        link.send(KEY, None, [key.to_bytes()])
    start = guest.expect(START)
    total = start.integer("rows", 1, MOST_ROWS)
    steps = batches(total, start.integer("batch", 1, MOST_ROWS))
    plan = RegressionPlan(
        max_iter=start.integer("iterations", 1, MOST_ROWS),
        early_stop=str(start.fields.get("early_stop")),
        tol=start.number("tol"),
    )
    losses: list[float] = []
    stop = False
    while not stop and len(losses) < plan.max_iter:
        loss_sum = 0
        for number in range(len(steps)):
            from_guest = _decrypted(guest.expect(GRADIENT), key, extra=1)
            from_host = _decrypted(host.expect(GRADIENT), key, extra=0)
            loss_sum += from_guest.pop()
            answer: dict[str, Any] = {}
            if number == len(steps) - 1:
                losses.append(loss_sum * GRADIENT_UNIT / total)
                stop = plan.early_stop == "diff" and converged(plan, losses, 0.0)
                answer = {"stop": stop}
            host.send(GRADIENT, answer, [_integer_bytes(from_host, key)])
            loss = {"loss": losses[-1]} if answer else {}
            guest.send(GRADIENT, {**answer, **loss}, [_integer_bytes(from_guest, key)])
        if plan.early_stop == "weight_diff":
            (moved,) = key.decrypt(key.load(guest.expect(MOVED).blob(), 1))
            stop = converged(plan, losses, math.sqrt(max(0.0, moved * NORM_UNIT)))
            for link in (guest, host):
                link.send(VERDICT, {"stop": stop})
        log(
            "info",
            "iteration",
            iteration=len(losses),
            of=plan.max_iter,
            loss=losses[-1],
        )
    return losses, stop


def _residuals(
    own: Trainee,
    host: Link,
    labels: Floats,
    batch: Ints,
) -> tuple[list[mpz], list[mpz]]:
    """The batch's encrypted residuals, which the host gets too, and its encrypted loss."""
    scores = own.part.scores(batch)
    *theirs, their_loss = own.key.load(own.wait(host, SCORES).blob(), len(batch) + 1)
    residuals = own.key.add(theirs, own.encrypt(own_residual(labels, scores).tolist()))
    host.send(RESIDUALS, None, [own.key.dump(residuals)])
    cross = own.key.weighted_sums(theirs, loss_weights(labels, scores)[:, np.newaxis])
    mine = own.encrypt([guest_loss(own.part, labels, scores)])
    return residuals, own.key.add(own.key.add(cross, [their_loss]), mine)


def _write_guest(
    task: Task,
    io: Io,
    parameters: Parameters,
    rows: Rows,
    part: Part,
    fitted: Fitted,
) -> None:
    metrics, labels, probabilities = (
        parameters.common.metrics,
        rows.label_values,
        sigmoid(fitted.scores),
    )
    io.write_table(OUTPUT, predictions(rows, parameters.common, probabilities))
    io.write_json(
        MODEL,
        {
            **_model_head(task),
            **part.model(),
            "threshold": parameters.common.threshold,
        },
    )
    report: dict[str, Any] = {
        "rows": len(rows.ids),
        "loss": numbered(fitted.losses, "iteration"),
        "converged": fitted.converged,
        **quality(labels, probabilities, metrics),
    }
    if parameters.common.local_baseline:
        plan = parameters.plan
        alone = pooled(Part(task.me, part.design, plan), None, labels, plan)
        report["local_baseline"] = quality(labels, sigmoid(alone.scores), metrics)
    io.write_json(LOSS, report)


def _batch_size(reader: Reader) -> int | None:
    value = reader.raw("batch_size")
    if value is None or str(value).strip().lower() in ("all", "-1"):
        return None
    return reader.integer("batch_size", 1, 1, MOST_ROWS)


def checked_batches(
    rows: int,
    size: int | None,
    part: Part,
) -> list[Ints]:
    """The rows of every step. Raises `BadParameters` if a gradient would tell too much."""
    columns = part.design.cells.shape[1]
    steps = batches(rows, size)
    fewest = min(len(step) for step in steps)
    if fewest <= columns:
        raise BadParameters(
            f"batch_size: every step needs more rows than this party has columns ({columns}), or gradients "
            f"would tell single rows; the smallest of {len(steps)} steps has {fewest}"
        )
    return steps


def _decrypted(
    message: Message,
    key: paillier.PrivateKey,
    extra: int,
) -> list[int]:
    columns = message.integer("columns", 0, MOST_ROWS)
    return key.decrypt(key.load(message.blob(), columns + extra))


def _integer_bytes(values: Sequence[int], key: PublicKey) -> bytes:
    size = key.cipher_bytes // 2 + 1
    return b"".join(value.to_bytes(size, "big", signed=True) for value in values)


def _integers(
    data: bytes,
    key: PublicKey,
    count: int,
) -> list[int]:
    size = key.cipher_bytes // 2 + 1
    if len(data) != size * count:
        raise BadMessage(f"{count} decrypted gradients take {size * count} bytes, got {len(data)}")
    return [
        int.from_bytes(data[i : i + size], "big", signed=True) for i in range(0, len(data), size)
    ]


def _floats(data: bytes, count: int) -> Floats:
    if len(data) != 8 * count:
        raise BadMessage(f"{count} scores take {8 * count} bytes, got {len(data)}")
    values = np.frombuffer(data, dtype=">f8").astype(np.float64)
    if not np.isfinite(values).all():
        raise BadMessage("a share of a score is not a finite number")
    return values


def _norm(step: Floats) -> int:
    """The squared length of a step in units of 2 ** -40."""
    return round(float((step**2).sum()) / NORM_UNIT)


def _model_head(task: Task) -> dict[str, Any]:
    return {
        "component": task.component,
        "party": task.me,
        "training": task.task_id,
    }
