"""Fits a logistic regression between a guest, a host and an arbiter who holds the key (Hardy et
al., arXiv:1711.10677).

One step, over the rows of a batch:

1. The host sends its encrypted quarter scores and its part of the loss to the guest.
2. The guest adds its share, with fresh randomness in every row, and sends the encrypted residuals
back.
3. Guest and host compute their encrypted gradients, hide them behind random masks and let the
arbiter decrypt them.

So the arbiter sees masked gradients, the loss and one norm of all steps together; guest and host
see no plaintext but their own gradient. At the end the host sends the guest its share of the
scores, as the guest owns the result.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from gmpy2 import mpz  # type: ignore[import-untyped]

from refvendor.arrays import Floats, Ints
from refvendor.components.links import BadMessage, Link, Message
from refvendor.components.regression import (
    GRADIENT_UNIT,
    PartialModel,
    RegressionFit,
    RegressionPlan,
    guest_loss,
    guest_residual,
    has_converged,
    host_loss,
    loss_weights,
    quarter_scores,
    split_batches,
)
from refvendor.contract import BadParameters, Log
from refvendor.crypto.paillier import PrivateKey, PublicKey
from refvendor.crypto.pool import RandomnessPool

GUEST = "guest.0"
HOST = "host.0"
ARBITER = "arbiter.0"
# Kinds of messages, in the order of their first use.
KEY = "key"
START = "start"
SCORES = "scores"
RESIDUALS = "residuals"
GRADIENT = "gradient"
MOVED = "moved"
VERDICT = "verdict"
SHARES = "shares"
MASK_BITS = 120
NORM_UNIT = 2.0**-40  # of the squared length of a step
MOST_ROWS = 1 << 24


def checked_batches(
    rows: int,
    size: int | None,
    part: PartialModel,
) -> list[Ints]:
    """Return the rows of every step.

    Raises `BadParameters` if a step has no more rows than columns: its gradient would give the
    rows' residuals away.
    """
    columns = part.design.cells.shape[1]
    batches = split_batches(rows, size)
    fewest = min(len(batch) for batch in batches)
    if fewest <= columns:
        raise BadParameters(
            f"batch_size: every step needs more rows than this party has columns ({columns}), or "
            f"gradients "
            f"would tell single rows; the smallest of {len(batches)} steps has {fewest}"
        )
    return batches


class FeatureParty:
    """The side that guest and host have in common: weights, the arbiter's key, masked gradients."""

    def __init__(
        self,
        part: PartialModel,
        arbiter: Link,
        key: PublicKey,
        pool: RandomnessPool,
    ) -> None:
        self.part = part
        self.arbiter = arbiter
        self.key = key
        self._pool = pool

    def wait(self, link: Link, kind: str) -> Message:
        """Wait for a message, and prepare randomness until it comes."""
        with self._pool.filling():
            return link.expect(kind)

    def encrypt(
        self,
        values: Sequence[int],
    ) -> list[mpz]:
        """Encrypt with prepared randomness."""
        return self.key.encrypt(
            values,
            self._pool.take(len(values)),
        )

    def encrypt_norm(self, step: Floats) -> list[mpz]:
        """Encrypt the squared length of a step, in units of NORM_UNIT."""
        return self.encrypt([round(float((step**2).sum()) / NORM_UNIT)])

    def step(
        self,
        residuals: Sequence[mpz],
        rows: Ints,
        iteration: int,
        extra: Sequence[mpz] = (),
    ) -> Message:
        """Let the arbiter decrypt the masked gradient of a batch, move the weights and return the
        arbiter's message.

        ``extra`` ciphertexts are sent along without a mask.
        """
        cells = self.part.design.cells[rows]
        columns = cells.shape[1]
        masks = [secrets.randbits(MASK_BITS) for _ in range(columns)]
        masked = self.key.add(
            self.key.weighted_sums(residuals, cells),
            self.encrypt(masks),
        )
        data = self.key.dump([*masked, *extra])
        self.arbiter.send(
            GRADIENT,
            {
                "columns": columns,
                "rows": len(rows),
            },
            [data],
        )
        message = self.wait(self.arbiter, GRADIENT)
        values = _load_integers(message.blob(), self.key, columns)
        sums = [value - mask for value, mask in zip(values, masks, strict=True)]
        self.part.move(sums, len(rows), iteration)
        return message


@contextmanager
def _receive_key(
    part: PartialModel,
    arbiter: Link,
) -> Iterator[FeatureParty]:
    """Wait for the arbiter's key and yield a party with it, whose pool of randomness ends with the
    block.
    """
    key = PublicKey.from_bytes(arbiter.expect(KEY).blob())
    key.prepare()
    values_per_step = len(part.design.cells) + part.design.cells.shape[1] + 2
    with RandomnessPool(key, values_per_step) as pool:
        yield FeatureParty(part, arbiter, key, pool)


# ------------------------------------------------------------ guest


def fit_guest(
    part: PartialModel,
    labels: Floats,
    plan: RegressionPlan,
    batches: Sequence[Ints],
    links: Mapping[str, Link],
    log: Log,
    on_loss: Callable[[float], None] | None = None,
) -> RegressionFit:
    """Lead the iterations, and receive the host's share of the scores at the end.

    ``on_loss`` is called with the loss of each iteration. Raises `BadMessage`, `PeerFailed`,
    `Diverged`.
    """
    host = links[HOST]
    losses: list[float] = []
    converged = False
    _announce(plan, len(labels), links)
    with _receive_key(part, links[ARBITER]) as party:
        while not converged and len(losses) < plan.max_iter:
            previous = part.weights
            for rows in batches:
                message = _step_guest(
                    party,
                    host,
                    labels[rows],
                    rows,
                    len(losses),
                )
            losses.append(message.number("loss"))
            if plan.early_stop == "weight_diff":
                message = _report_norms(party, host, part.weights - previous)
            converged = bool(message.fields.get("stop"))
            log(
                "info",
                "iteration",
                iteration=len(losses),
                of=plan.max_iter,
                loss=losses[-1],
            )
            if on_loss is not None:
                on_loss(losses[-1])
    shares = load_floats(
        host.expect(SHARES).blob(),
        len(labels),
    )
    scores = part.scores(np.arange(len(labels))) + shares
    return RegressionFit(
        losses=losses,
        scores=scores,
        converged=converged,
    )


def _announce(
    plan: RegressionPlan,
    rows: int,
    links: Mapping[str, Link],
) -> None:
    """Send host and arbiter the parts of the plan that they need."""
    start = {
        "rows": rows,
        "batch": min(plan.batch_size or rows, rows),
        "iterations": plan.max_iter,
    }
    links[HOST].send(START, {**start, "norms": plan.early_stop == "weight_diff"})
    links[ARBITER].send(START, {**start, "early_stop": plan.early_stop, "tol": plan.tol})


def _step_guest(
    party: FeatureParty,
    host: Link,
    labels: Floats,
    rows: Ints,
    iteration: int,
) -> Message:
    """Share the batch's encrypted residuals with the host and move; return the arbiter's
    message.
    """
    scores = party.part.scores(rows)
    data = party.wait(host, SCORES).blob()
    *quarters, host_terms = party.key.load(data, len(rows) + 1)
    residuals = party.key.add(
        quarters,
        party.encrypt(guest_residual(labels, scores).tolist()),
    )
    host.send(
        RESIDUALS,
        None,
        [party.key.dump(residuals)],
    )
    factors = loss_weights(labels, scores)[:, np.newaxis]
    mixed_terms = party.key.weighted_sums(quarters, factors)
    guest_terms = party.encrypt([guest_loss(party.part, labels, scores)])
    loss = party.key.add(
        party.key.add(mixed_terms, [host_terms]),
        guest_terms,
    )
    return party.step(
        residuals,
        rows,
        iteration,
        extra=loss,
    )


def _report_norms(
    party: FeatureParty,
    host: Link,
    step: Floats,
) -> Message:
    """Send the arbiter the encrypted squared length of both parties' steps; return its verdict."""
    host_norm = party.key.load(
        party.wait(host, MOVED).blob(),
        1,
    )
    norm = party.key.add(
        host_norm,
        party.encrypt_norm(step),
    )
    party.arbiter.send(
        MOVED,
        None,
        [party.key.dump(norm)],
    )
    return party.wait(party.arbiter, VERDICT)


# ------------------------------------------------------------ host


def fit_host(
    part: PartialModel,
    links: Mapping[str, Link],
    log: Log,
) -> None:
    """Follow the guest's iterations, and send it this party's share of the scores at the end.

    Raises `BadParameters` for batches that are too small, `BadMessage`, `PeerFailed`, `Diverged`.
    """
    guest = links[GUEST]
    total = len(part.design.cells)
    start = guest.expect(START)
    start.integer("rows", total, total)
    batches = checked_batches(
        total,
        start.integer("batch", 1, total),
        part,
    )
    iterations = start.integer("iterations", 1, MOST_ROWS)
    with _receive_key(part, links[ARBITER]) as party:
        for iteration in range(iterations):
            previous = part.weights
            for rows in batches:
                message = _step_host(party, guest, rows, iteration)
            if start.fields.get("norms"):
                norm = party.encrypt_norm(part.weights - previous)
                guest.send(
                    MOVED,
                    None,
                    [party.key.dump(norm)],
                )
                message = party.wait(party.arbiter, VERDICT)
            log(
                "info",
                "iteration",
                iteration=iteration + 1,
                of=iterations,
            )
            if message.fields.get("stop"):
                break
    guest.send(
        SHARES,
        None,
        [dump_floats(part.scores(np.arange(total)))],
    )


def _step_host(
    party: FeatureParty,
    guest: Link,
    rows: Ints,
    iteration: int,
) -> Message:
    """Send the batch's encrypted scores, receive the residuals and move; return the arbiter's
    message.
    """
    scores = party.part.scores(rows)
    values = [*quarter_scores(scores).tolist(), host_loss(party.part, scores)]
    guest.send(
        SCORES,
        None,
        [party.key.dump(party.encrypt(values))],
    )
    residuals = party.key.load(
        party.wait(guest, RESIDUALS).blob(),
        len(rows),
    )
    return party.step(residuals, rows, iteration)


# ------------------------------------------------------------ arbiter


def fit_arbiter(
    links: Mapping[str, Link],
    key: PrivateKey,
    log: Log,
) -> tuple[list[float], bool]:
    """Decrypt for guest and host until the guest's plan ends or the last iteration changed too
    little.

    Returns the losses, and whether the training converged.
    """
    arbiter = Arbiter(links, key)
    arbiter.start()
    while not arbiter.is_done:
        arbiter.iterate()
        log(
            "info",
            "iteration",
            iteration=len(arbiter.losses),
            of=arbiter.plan.max_iter,
            loss=arbiter.losses[-1],
        )
    return arbiter.losses, arbiter.converged


class Arbiter:
    """Holds the key: decrypts masked gradients and the loss, and decides when to stop."""

    plan: RegressionPlan

    def __init__(
        self,
        links: Mapping[str, Link],
        key: PrivateKey,
    ) -> None:
        self.losses: list[float] = []
        self.converged = False
        self._guest = links[GUEST]
        self._host = links[HOST]
        self._key = key
        self._rows = 0
        self._batches = 0  # per iteration

    @property
    def is_done(self) -> bool:
        """True after the last iteration."""
        return self.converged or len(self.losses) >= self.plan.max_iter

    def start(self) -> None:
        """Send the public key and receive the guest's plan."""
        for link in (self._guest, self._host):
            link.send(
                KEY,
                None,
                [self._key.to_bytes()],
            )
        start = self._guest.expect(START)
        self._rows = start.integer("rows", 1, MOST_ROWS)
        self._batches = len(split_batches(self._rows, start.integer("batch", 1, MOST_ROWS)))
        self.plan = RegressionPlan(
            max_iter=start.integer("iterations", 1, MOST_ROWS),
            early_stop=str(start.fields.get("early_stop")),
            tol=start.number("tol"),
        )

    def iterate(self) -> None:
        """Serve one pass over all rows."""
        loss = 0
        for number in range(self._batches):
            from_guest = self._decrypt(
                self._guest.expect(GRADIENT),
                extra=1,
            )
            from_host = self._decrypt(
                self._host.expect(GRADIENT),
                extra=0,
            )
            loss += from_guest.pop()
            verdict: dict[str, Any] = {}
            verdict_with_loss: dict[str, Any] = {}
            is_last = number == self._batches - 1
            if is_last:
                self._end_iteration(loss)
                verdict = {"stop": self.converged}
                verdict_with_loss = {**verdict, "loss": self.losses[-1]}
            self._host.send(
                GRADIENT,
                verdict,
                [_dump_integers(from_host, self._key)],
            )
            self._guest.send(
                GRADIENT,
                verdict_with_loss,
                [_dump_integers(from_guest, self._key)],
            )
        if self.plan.early_stop == "weight_diff":
            self._judge_step()

    def _decrypt(
        self,
        message: Message,
        extra: int,
    ) -> list[int]:
        """Decrypt a masked gradient and the ``extra`` ciphertexts behind it."""
        columns = message.integer("columns", 0, MOST_ROWS)
        return self._key.decrypt(self._key.load(message.blob(), columns + extra))

    def _end_iteration(self, loss: int) -> None:
        """Add the iteration's loss, and stop if it changed too little and the plan looks at the
        loss.
        """
        self.losses.append(loss * GRADIENT_UNIT / self._rows)
        if self.plan.early_stop == "diff":
            self.converged = has_converged(self.plan, self.losses, 0.0)

    def _judge_step(self) -> None:
        """Decrypt the length of the last step and send both parties the verdict."""
        (norm,) = self._key.decrypt(self._key.load(self._guest.expect(MOVED).blob(), 1))
        moved = math.sqrt(max(0.0, norm * NORM_UNIT))
        self.converged = has_converged(self.plan, self.losses, moved)
        for link in (self._guest, self._host):
            link.send(VERDICT, {"stop": self.converged})


# ------------------------------------------------------------ numbers on the wire


def _integer_bytes(key: PublicKey) -> int:
    """Return the bytes of a decrypted gradient: the size of the modulus, and one for the sign."""
    return key.cipher_bytes // 2 + 1


def _dump_integers(
    values: Sequence[int],
    key: PublicKey,
) -> bytes:
    size = _integer_bytes(key)
    return b"".join(value.to_bytes(size, "big", signed=True) for value in values)


def _load_integers(
    data: bytes,
    key: PublicKey,
    count: int,
) -> list[int]:
    size = _integer_bytes(key)
    if len(data) != size * count:
        raise BadMessage(f"{count} decrypted gradients take {size * count} bytes, got {len(data)}")
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    return [int.from_bytes(piece, "big", signed=True) for piece in pieces]


def dump_floats(values: Floats) -> bytes:
    """Return numbers as bytes, eight each."""
    return values.astype(">f8").tobytes()


def load_floats(data: bytes, count: int) -> Floats:
    """Read ``count`` scores that `dump_floats` wrote. Raises `BadMessage`."""
    if len(data) != 8 * count:
        raise BadMessage(f"{count} scores take {8 * count} bytes, got {len(data)}")
    values = np.frombuffer(data, dtype=">f8").astype(np.float64)
    if not np.isfinite(values).all():
        raise BadMessage("a share of a score is not a finite number")
    return values
