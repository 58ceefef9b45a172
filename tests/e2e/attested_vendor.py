"""The reference vendor with a key for reports in software; ATTACK says what its run does instead.

It ends with exit code 9 if it can read an input before its report was verified.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import opendal
from refvendor import attestation
from refvendor.__main__ import main

FOLDER = Path("/attested")
BINDING = "system.attestation.binding"
INPUTS = "testspace/"  # folder in the storage
CAN_READ = 9  # exit code
honest_report = attestation.software_report


def visible_inputs():
    """Return what shows of the inputs: variables, files, an object of the storage."""
    visible = [name for name in os.environ if name.startswith("runtime.component.input.")]
    url = urlsplit(dict(os.environ)["system.storage"])
    if url.scheme == "file":
        return visible + [str(file) for file in Path(url.path).rglob("data_*")]
    fields = {name: values[0] for name, values in parse_qs(url.query).items()}
    storage = opendal.Operator(
        "s3",
        endpoint=f"http://{url.netloc}",
        bucket=fields["bucket"],
        region=fields["region"],
        access_key_id=fields["username"],
        secret_access_key=fields["password"],
        session_token=fields["token"],
        disable_config_load="true",
        disable_ec2_metadata="true",
    )
    try:
        return visible + [entry.path for entry in storage.list(INPUTS)]
    except opendal.exceptions.PermissionDenied:
        return visible


def printed_report(*arguments):
    """Make a report, and leave it in the log for a later attack."""
    report = honest_report(*arguments)
    print(json.dumps({"report": report}), flush=True)
    return report


def recorded_report(*_):
    """Return the report of an earlier run."""
    return json.loads((FOLDER / "report.json").read_text())


visible = visible_inputs()
if visible:
    print(visible, flush=True)
    sys.exit(CAN_READ)
match os.environ["ATTACK"]:
    case "another image":
        os.environ[BINDING] = hashlib.sha256(os.environ[BINDING].encode()).hexdigest()
    case "replay":
        attestation.software_report = recorded_report
    case _:
        attestation.software_report = printed_report
sys.exit(main(["--software-attestation-key", str(FOLDER / "tee.key")]))
