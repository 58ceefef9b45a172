"""Measures a control request's signature: its making, and its check with the nonce stored."""

import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from tempfile import TemporaryDirectory
from uuid import uuid4

from gateway.identity.keys import KEY_GENERATORS, KeyPair
from gateway.identity.signatures import Signable, Verifier, digest, sign
from gateway.store.database import open_database
from gateway.store.repositories import SqlUsedSignatures
from gateway.store.store import Store

_TIMES = 500  # signatures by each algorithm
_PATH = "/v1/interconn/schedule/task/poll"
_BODY = b'{"task_id": "task_0123456789abcdef0123456789abcdef", "role": "guest"}'


def signing() -> list[list[str]]:
    """Return a row for each algorithm: the medians of making and of checking a signature."""
    clock = partial(datetime.now, UTC)
    with TemporaryDirectory() as home:
        store = Store(open_database(f"sqlite:///{home}/bench.db"))
        verifier = Verifier("B", clock, SqlUsedSignatures(store, clock).first)
        rows = [_row(verifier, name, make) for name, make in KEY_GENERATORS.items()]
        store.close()
    return rows


def _row(
    verifier: Verifier,
    algorithm: str,
    make_key: Callable[[], object],
) -> list[str]:
    pair = KeyPair(make_key())  # type: ignore[arg-type]
    signing_times = []
    checking_times = []
    for _ in range(_TIMES):
        start = time.perf_counter()
        request = Signable(
            "POST",
            _PATH,
            "",
            digest(_BODY),
            "A",
            "B",
        )
        signature = sign(
            pair,
            request,
            str(uuid4()),
            int(time.time()),
        )
        signed = time.perf_counter()
        verifier.check(request, _BODY, signature, [pair.public])
        signing_times.append(signed - start)
        checking_times.append(time.perf_counter() - signed)
    medians = [statistics.median(times) for times in (signing_times, checking_times)]
    return [algorithm, *(f"{median * 1000:.2f} ms" for median in medians)]
