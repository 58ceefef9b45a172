"""A component that is SecretFlow's own engine over its own transport client, both unchanged.

It runs as a container, with the program of the example's image. Two parties intersect their tables
by ECDH and by RR22, and multiply two vectors in secret shares.
"""

import csv
import sys
import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from sfvendor import container, engine
from sfvendor.intersection import PROTOCOLS, intersect
from spu.libspu.link import Context

# Vectors (1, 2, 3, 4) and (2, 4, 6, 8).
EXPECTED_PRODUCT = 60.0


def dot_product(context: Context) -> float:
    """Multiply a secret vector of each party in secret shares, which the channel transports."""
    rank = context.rank
    vector = np.arange(1.0, 5.0) * (rank + 1)
    shares = engine.SecretShares(context, engine.PROTOCOLS["semi2k"])
    shares.set_own(f"x{rank}", vector)
    shares.set_peers(f"x{1 - rank}")
    shapes = dict.fromkeys(("x0", "x1"), vector.shape)
    shares.run(jnp.dot, shapes, ["y"])
    products = [shares.reveal("y", rank) for rank in (0, 1)]
    return float(products[rank])


def main() -> None:
    (name,) = [
        variable.removeprefix("runtime.component.input.")
        for variable in container.environment
        if variable.startswith("runtime.component.input.")
    ]
    header, rows = container.read_table(name)
    context = engine.connect()
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "table.csv"
        with source.open("w", encoding="utf-8", newline="") as text:
            csv.writer(text, lineterminator="\n").writerows([header, *rows])
        counts = {}
        for protocol in PROTOCOLS:
            target = Path(scratch) / f"{protocol}.csv"
            counts[protocol] = intersect(context, PROTOCOLS[protocol], source, target)
        product = dot_product(context)
        context.stop_link()
        with target.open(encoding="utf-8", newline="") as text:
            common_header, *common_rows = csv.reader(text)
    if counts["ecdh"] != counts["rr22"] or round(product, 3) != EXPECTED_PRODUCT:
        sys.exit(f"the numbers of common ids are {counts}; the product is {product}")
    container.write_table("train_data", common_header, common_rows, "id")


main()
