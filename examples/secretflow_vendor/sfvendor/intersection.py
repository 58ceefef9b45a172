"""PSI: the rows of both parties with common ids, in the same order at both."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

from spu import libspu, psi

from sfvendor import container, engine

PROTOCOLS = {
    "ecdh": psi.PsiProtocol.PROTOCOL_ECDH,
    "rr22": psi.PsiProtocol.PROTOCOL_RR22,
}


def run() -> None:
    """Write the common rows, and their number."""
    id_column = container.parameter("id", "id")
    protocol = container.choice("protocol", list(PROTOCOLS))
    header, rows = container.read_table("train_data")
    if id_column not in header:
        raise container.BadInput(f"the table has no column {id_column}")
    context = engine.connect()
    with tempfile.TemporaryDirectory() as scratch:
        # The engine writes files next to its input.
        source = Path(scratch) / "table.csv"
        target = Path(scratch) / "common.csv"
        with source.open("w", encoding="utf-8", newline="") as text:
            csv.writer(text, lineterminator="\n").writerows([header, *rows])
        intersect(context, PROTOCOLS[protocol], source, target, id_column)
        with target.open(encoding="utf-8", newline="") as text:
            common_header, *common_rows = csv.reader(text)
    context.stop_link()
    container.write_table("train_data", common_header, common_rows, id_column)
    container.write_json("report", {"rows": len(rows), "common": len(common_rows)})
    print(f"info {len(common_rows)} of {len(rows)} ids are common", flush=True)


def intersect(
    context: libspu.link.Context,
    protocol: psi.PsiProtocol,
    source: Path,
    target: Path,
    id_column: str = "id",
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
            selected_keys=[id_column],
            keys_unique=True,
        ),
        output_params=psi.OutputParams(path=str(target)),
    )
    return int(psi.psi_execute(config, context).intersection_count)
