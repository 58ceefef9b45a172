"""A component that is SecretFlow's own engine: private set intersection over its transport client, unchanged."""

import csv
import json
import os
from pathlib import Path

import spu
from spu import psi

told = dict(os.environ)
role = told["config.self_role"]
parties = sorted(
    (name.removeprefix("config.node_id."), node)
    for name, node in told.items()
    if name.startswith("config.node_id.") and node
)
for party, _ in parties:
    os.environ.setdefault(f"config.inst_id.{party}", "")
storage = Path(told["system.storage"].removeprefix("file://"))
given = json.loads(next(text for name, text in told.items() if name.startswith("runtime.component.input.")))
wanted = json.loads(told["runtime.component.output.train_data"])
source = storage / given["namespace"] / given["name"] / "data_0"
target = storage / wanted["namespace"] / wanted["name"]
target.mkdir(parents=True, exist_ok=True)

link = spu.link.Desc()
link.link_type, link.brpc_channel_protocol = "blackbox", "http"
link.recv_timeout_ms = 40_000
for party, node in parties:
    link.add_party(party, node)
context = spu.link.create_brpc(link, [party for party, _ in parties].index(role))
report = psi.psi_execute(
    psi.PsiExecuteConfig(
        protocol_conf=psi.PsiProtocolConfig(
            protocol=psi.PsiProtocol.PROTOCOL_ECDH,
            broadcast_result=True,
            ecdh_params=psi.EcdhParams(curve=psi.EllipticCurveType.CURVE_25519),
        ),
        input_params=psi.InputParams(path=str(source), selected_keys=["id"], keys_unique=True),
        output_params=psi.OutputParams(path=str(target / "data_0")),
    ),
    context,
)
context.stop_link()
with open(target / "data_0", encoding="utf-8", newline="") as table:
    columns = next(csv.reader(table))
metadata = {
    "name": wanted["name"],
    "namespace": wanted["namespace"],
    "partitions": 1,
    "count": report.intersection_count,
    "column_info": [{"name": name} for name in columns],
    "file_type": "csv",
}
(target / "metadata").write_text(json.dumps(metadata), encoding="utf-8")
