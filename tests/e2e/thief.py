"""A component that attacks the storage with its run's credentials, as its parameters say.

``attacks`` is a list of verbs and paths; ``stolen`` is a storage address with the credentials of
another run, its own by default. Its output is a JSON object with the result of every attempt.
"""

import json
import os
from urllib.parse import parse_qs, urlsplit

import opendal

PARAMETER = "runtime.component.parameter."


def open_storage(url: str) -> opendal.Operator:
    """Open a storage with the credentials in its address."""
    address = urlsplit(url)
    fields = {name: values[0] for name, values in parse_qs(address.query).items()}
    return opendal.Operator(
        "s3",
        endpoint=f"http://{address.netloc}",
        bucket=fields["bucket"],
        region=fields["region"],
        access_key_id=fields["username"],
        secret_access_key=fields["password"],
        session_token=fields["token"],
        disable_config_load="true",
        disable_ec2_metadata="true",
    )


def folder_of(kind: str) -> str:
    """Return the folder of the only ``input`` or ``output``."""
    prefix = f"runtime.component.{kind}."
    (text,) = [value for name, value in os.environ.items() if name.startswith(prefix)]
    return "{namespace}/{name}".format(**json.loads(text))


def attempt(
    storage: opendal.Operator,
    verb: str,
    path: str,
) -> str:
    """Do something to a path; return ``done``, ``denied`` or the error."""
    try:
        match verb:
            case "list":
                list(storage.list(path))
            case "write":
                storage.write(path, b"overwritten")
            case _:
                getattr(storage, verb)(path)
    except opendal.exceptions.PermissionDenied:
        return "denied"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "done"


url = os.environ["system.storage"]  # noqa: SIM112 - the standard's name
storage = open_storage(url)
attacked_storage = open_storage(os.environ.get(f"{PARAMETER}stolen") or url)
attacks = json.loads(os.environ[f"{PARAMETER}attacks"])
allowed = [
    ("read", f"{folder_of('input')}/data_0"),
    ("write", f"{folder_of('output')}/data_0"),
    ("list", f"{folder_of('output')}/"),
]
results = {
    "url": url,
    "found": {f"{verb} {path}": attempt(attacked_storage, verb, path) for verb, path in attacks},
    "own": {verb: attempt(storage, verb, path) for verb, path in allowed},
}
storage.write(
    f"{folder_of('output')}/data_0",
    json.dumps(results).encode(),
)
