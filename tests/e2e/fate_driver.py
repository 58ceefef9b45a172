"""Runs in the environment of FATE's client: its ``flow`` command again and again, and its pipeline once.

``fate_driver.py flow`` reads a JSON list of arguments from each line and answers with a line of what was printed;
``fate_driver.py pipeline <registration> <guest> <host>`` trains with the components of a registration.
"""

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any


def flow() -> None:
    from fate_client.flow_cli.flow import flow_cli

    for line in sys.stdin:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                flow_cli.main(json.loads(line), standalone_mode=False)
            except Exception as error:
                print(f"{type(error).__name__}: {error}")
        print(json.dumps(out.getvalue()), flush=True)


def pipeline(registration: str, guest: str, host: str) -> None:
    from fate_client.pipeline import FateFlowPipeline
    from fate_client.pipeline.interface import DataWarehouseChannel

    described = json.loads(Path(registration).read_text(encoding="utf-8"))["components_description"]
    with tempfile.TemporaryDirectory() as folder:
        align = _component(described["Intersection"], folder)(
            "intersect_rsa_1",
            id="id",
            intersect_method="rsa",
            only_output_key=False,
            sync_intersect_ids=True,
            train_data=[
                DataWarehouseChannel(dataset_id="testspace#test_guest", parties={"guest": guest}),
                DataWarehouseChannel(dataset_id="testspace#test_host", parties={"host": host}),
            ],
        )
        train = _component(described["HeteroSecureBoost"], folder)(
            "hetero_secureboost_1",
            num_trees=2,
            learning_rate=0.5,
            tree_param={"max_depth": 3},
            train_data=align.outputs["train_data"],
        )
        train.task_parameters(id="id", label="y", encrypt_param={"method": "Paillier", "key_length": 1024})
        job = FateFlowPipeline().set_parties(guest=guest, host=host)
        job.set_site_role("guest").set_site_party_id(guest)
        job.add_tasks([align, train])
        job.conf.set("extra", {"initiator": {"role": "guest", "party_id": guest}})
        job.protocol_kind = "bfia"
        job.guest.conf.set("resources", {"cpu": -1, "memory": -1, "disk": -1})
        job.compile().fit()
        info = job.model_info
        print("\n" + json.dumps({"job_id": info.job_id, "model_id": info.model_id, "version": info.model_version}))


def _component(description: dict[str, Any], folder: str) -> Any:
    """Make a component of the pipeline from its BFIA description, by FATE's own translation."""
    from fate_client.pipeline.adapters.bfia.translator.component_spec import BFIAComponentSpec
    from fate_client.pipeline.adapters.bfia.translator.component_translator import ComponentTranslator
    from fate_client.pipeline.components import Component

    found = ComponentTranslator.translate_to_component_spec(BFIAComponentSpec(**description))["component"]
    path = Path(folder) / f"{description['componentName']}.yaml"
    path.write_text(json.dumps({"component": found}), encoding="utf-8")

    def init(self: Any, name: str, **given: Any) -> None:
        self._process_init_inputs({"_name": name, **given})
        Component.__init__(self)
        self._name = name
        for key, value in given.items():
            setattr(self, key, value)

    return type(description["componentName"], (Component,), {"yaml_define_path": str(path), "__init__": init})


if __name__ == "__main__":
    {"flow": flow, "pipeline": pipeline}[sys.argv[1]](*sys.argv[2:])
