"""SecretFlow's engine: its transport client, and values in secret shares."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import spu
from spu.utils import frontend

from sfvendor import container
from sfvendor.channel import TIMEOUT

RECEIVE_TIMEOUT = 600_000  # milliseconds for which a party waits for the other
SEND_TIMEOUT = 1000 * (TIMEOUT + 60)  # milliseconds: the relay gives up before
# Protocols between two parties. Cheetah needs no trust; in SEMI2K the guest makes the randomness of
# all multiplications, so that it could learn the host's values: quick, for trials only.
PROTOCOLS = {
    "cheetah": spu.ProtocolKind.CHEETAH,
    "semi2k": spu.ProtocolKind.SEMI2K,
}


def connect() -> spu.link.Context:
    """Connect the parties by SecretFlow's client of the transport channel."""
    parties = container.party_nodes()
    task_id = container.environment["config.task_id"]
    link = spu.link.Desc()
    link.link_type = "blackbox"
    link.brpc_channel_protocol = "http"
    link.recv_timeout_ms = RECEIVE_TIMEOUT
    link.http_timeout_ms = SEND_TIMEOUT
    for party, node in parties:
        # The client makes topics of these names. All tasks of a job share one session of the
        # channel, so that the names need the task's id, new in each attempt.
        name = f"{task_id}.{party}"
        # The client needs the variable, though this channel needs no institutions.
        os.environ.setdefault(f"config.inst_id.{name}", "")
        link.add_party(name, node)
    names = [party for party, _ in parties]
    return spu.link.create_brpc(link, names.index(container.role()))


def gather(
    context: spu.link.Context,
    value: Any,
) -> list[Any]:
    """Return a value of each party, by rank. All parties learn it."""
    return [json.loads(text) for text in context.all_gather(json.dumps(value))]


class SecretShares:
    """Values that no party of two knows, and functions of them."""

    def __init__(
        self,
        context: spu.link.Context,
        protocol: spu.ProtocolKind,
    ) -> None:
        config = spu.RuntimeConfig(protocol=protocol, field=spu.FieldType.FM64)
        self._context = context
        self._runtime = spu.Runtime(context, config)
        self._io = spu.Io(context.world_size, config)

    def set_own(
        self,
        name: str,
        value: np.ndarray,
    ) -> None:
        """Share a value of this party."""
        # the type that JAX compiles for
        shares = self._io.make_shares(value.astype(np.float32), spu.Visibility.VIS_SECRET)
        peer = 1 - self._context.rank
        self._context.send(peer, _pack(shares[peer]))
        self._runtime.set_var(name, shares[self._context.rank])

    def set_peers(self, name: str) -> None:
        """Take the share of a value of the other party."""
        share = _unpack(self._context.recv(1 - self._context.rank))
        self._runtime.set_var(name, share)

    def run(
        self,
        function: Callable[..., Any],
        shapes: Mapping[str, Sequence[int]],
        outputs: Sequence[str],
    ) -> None:
        """Compute a function of JAX; ``shapes`` are those of its arguments, by name."""
        arguments = [np.zeros(shape, dtype=np.float32) for shape in shapes.values()]
        program, _ = frontend.compile(
            frontend.Kind.JAX,
            function,
            arguments,
            {},
            list(shapes),
            [spu.Visibility.VIS_SECRET] * len(shapes),
            lambda _: list(outputs),
        )
        self._runtime.run(program)

    def reveal(
        self,
        name: str,
        rank: int,
    ) -> np.ndarray | None:
        """Let one party know a value; None at the other."""
        share = self._runtime.get_var(name)
        if self._context.rank != rank:
            self._context.send(rank, _pack(share))
            return None
        shares = {rank: share, 1 - rank: _unpack(self._context.recv(1 - rank))}
        return self._io.reconstruct([shares[0], shares[1]])


def _pack(share: spu.libspu.Share) -> str:
    return json.dumps([share.meta.hex(), [chunk.hex() for chunk in share.share_chunks]])


def _unpack(text: str | bytes) -> spu.libspu.Share:
    share = spu.libspu.Share()
    meta, chunks = json.loads(text)
    share.meta = bytes.fromhex(meta)
    share.share_chunks = [bytes.fromhex(chunk) for chunk in chunks]
    return share
