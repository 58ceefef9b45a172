"""A component that is SecretFlow's own engine over its own transport client, both unchanged.

It runs as a container. Two parties intersect their tables by ECDH and by RR22, and multiply two
vectors in secret shares.
"""

import csv
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import spu
from spu import psi
from spu.utils import frontend

NODE_ID = "config.node_id."
INPUT = "runtime.component.input."
# Vectors (1, 2, 3, 4) and (2, 4, 6, 8).
EXPECTED_PRODUCT = 60.0

environment = dict(os.environ)
role = environment["config.self_role"]
storage = Path(environment["system.storage"].removeprefix("file://"))


def party_nodes() -> list[tuple[str, str]]:
    """Return parties and their nodes, sorted by party."""
    parties = []
    for name, node in environment.items():
        if name.startswith(NODE_ID) and node:
            parties.append((name.removeprefix(NODE_ID), node))
    return sorted(parties)


def input_file() -> Path:
    """Return the table of the only input."""
    (text,) = [value for name, value in environment.items() if name.startswith(INPUT)]
    address = json.loads(text)
    return storage / address["namespace"] / address["name"] / "data_0"


def connect() -> spu.link.Context:
    """Connect the parties by SecretFlow's client of the transport channel."""
    parties = party_nodes()
    link = spu.link.Desc()
    link.link_type = "blackbox"
    link.brpc_channel_protocol = "http"
    link.recv_timeout_ms = 40_000
    for party, node in parties:
        # The client needs the variable, though this channel needs no institutions.
        os.environ.setdefault(f"config.inst_id.{party}", "")
        link.add_party(party, node)
    names = [party for party, _ in parties]
    return spu.link.create_brpc(
        link,
        names.index(role),
    )


def intersect(
    protocol: psi.PsiProtocol,
    source: Path,
    target: Path,
) -> int:
    """Write the intersection of the parties' tables; return its number of rows."""
    config = psi.PsiExecuteConfig(
        protocol_conf=psi.PsiProtocolConfig(
            protocol=protocol,
            broadcast_result=True,
            ecdh_params=psi.EcdhParams(curve=psi.EllipticCurveType.CURVE_25519),
        ),
        input_params=psi.InputParams(
            path=str(source),
            selected_keys=["id"],
            keys_unique=True,
        ),
        output_params=psi.OutputParams(path=str(target)),
    )
    return int(psi.psi_execute(config, context).intersection_count)


def dot_product() -> float:
    """Multiply a secret vector of each party in secret shares, which the channel transports."""
    config = spu.RuntimeConfig(
        protocol=spu.ProtocolKind.SEMI2K,
        field=spu.FieldType.FM64,
    )
    runtime = spu.Runtime(context, config)
    shares = spu.Io(2, config)
    rank = context.rank
    peer_rank = 1 - rank
    names = ["x0", "x1"]

    vector = np.arange(1.0, 5.0) * (rank + 1)
    vector_shares = shares.make_shares(vector, spu.Visibility.VIS_SECRET)
    context.send(peer_rank, pack(vector_shares[peer_rank]))
    runtime.set_var(names[rank], vector_shares[rank])
    runtime.set_var(
        names[peer_rank],
        unpack(context.recv(peer_rank)),
    )

    program, _ = frontend.compile(
        frontend.Kind.JAX,
        jnp.dot,
        [np.zeros(4)] * 2,
        {},
        names,
        [spu.Visibility.VIS_SECRET] * 2,
        lambda _: ["y"],
    )
    runtime.run(program)
    results = context.all_gather(pack(runtime.get_var("y")))
    return float(shares.reconstruct([unpack(text) for text in results]))


def pack(share: spu.libspu.Share) -> str:
    return json.dumps([share.meta.hex(), [chunk.hex() for chunk in share.share_chunks]])


def unpack(text: str | bytes) -> spu.libspu.Share:
    share = spu.libspu.Share()
    meta, chunks = json.loads(text)
    share.meta = bytes.fromhex(meta)
    share.share_chunks = [bytes.fromhex(chunk) for chunk in chunks]
    return share


def write_metadata(
    folder: Path,
    address: dict[str, str],
    rows: int,
) -> None:
    """Describe the table in a folder, as the node expects it."""
    with open(folder / "data_0", encoding="utf-8", newline="") as table:
        columns = next(csv.reader(table))
    metadata = {
        "name": address["name"],
        "namespace": address["namespace"],
        "partitions": 1,
        "count": rows,
        "column_info": [{"name": name} for name in columns],
        "file_type": "csv",
    }
    (folder / "metadata").write_text(json.dumps(metadata), encoding="utf-8")


output_address = json.loads(environment["runtime.component.output.train_data"])
output_folder = storage / output_address["namespace"] / output_address["name"]
output_folder.mkdir(
    parents=True,
    exist_ok=True,
)
# A copy, as the engine writes files next to its input.
scratch = Path(tempfile.mkdtemp())
source = Path(shutil.copy(input_file(), scratch))

context = connect()
rows = intersect(
    psi.PsiProtocol.PROTOCOL_ECDH,
    source,
    output_folder / "data_0",
)
rr22_rows = intersect(
    psi.PsiProtocol.PROTOCOL_RR22,
    source,
    scratch / "again.csv",
)
product = dot_product()
context.stop_link()
if rr22_rows != rows or round(product, 3) != EXPECTED_PRODUCT:
    sys.exit(f"ECDH finds {rows} rows, RR22 {rr22_rows}; the product is {product}")
write_metadata(output_folder, output_address, rows)
