"""What a signature costs a control request: to make it, and to check it with its nonce kept in the
database.
"""

import statistics
import time
from datetime import UTC, datetime
from functools import partial
from tempfile import TemporaryDirectory
from uuid import uuid4

from gateway.identity.keys import KEY_GENERATORS, KeyPair
from gateway.identity.signatures import Signable, Verifier, digest, sign
from gateway.store.database import open_database
from gateway.store.repositories import SqlUsedSignatures
from gateway.store.store import Store

_TIMES = 500
_BODY = b'{"task_id": "task_0123456789abcdef0123456789abcdef", "role": "guest"}'


def signing() -> list[list[str]]:
    """Return a row for each algorithm: medians of making and of checking a signature."""
    rows, clock = [], partial(datetime.now, UTC)
    with TemporaryDirectory() as home:
        store = Store(open_database(f"sqlite:///{home}/bench.db"))
        verifier = Verifier("B", clock, SqlUsedSignatures(store, clock).first)
        for algorithm, make in KEY_GENERATORS.items():
            pair, times = KeyPair(make()), []
            for _ in range(_TIMES):
                began = time.perf_counter()
                request = Signable(
                    "POST", "/v1/interconn/schedule/task/poll", "", digest(_BODY), "A", "B"
                )
                value = sign(pair, request, str(uuid4()), int(time.time()))
                signed = time.perf_counter()
                verifier.check(request, _BODY, value, [pair.public])
                times.append((signed - began, time.perf_counter() - signed))
            medians = (
                f"{statistics.median(part) * 1000:.2f} ms" for part in zip(*times, strict=True)
            )
            rows.append([algorithm, *medians])
        store.close()
    return rows
