"""A component that tries, with the credentials that its run got, whatever its parameter ``attacks`` lists."""

import json
import os
from urllib.parse import parse_qs, urlsplit

import opendal

PARAMETER = "runtime.component.parameter."


def opened(url: str) -> opendal.Operator:
    at = urlsplit(url)
    given = {name: values[0] for name, values in parse_qs(at.query).items()}
    return opendal.Operator(
        "s3",
        endpoint=f"http://{at.netloc}",
        bucket=given["bucket"],
        region=given["region"],
        access_key_id=given["username"],
        secret_access_key=given["password"],
        session_token=given["token"],
        disable_config_load="true",
        disable_ec2_metadata="true",
    )


def folder(kind: str) -> str:
    (text,) = (
        value for name, value in os.environ.items() if name.startswith(f"runtime.component.{kind}.")
    )
    return "{namespace}/{name}".format(**json.loads(text))


def tried(
    storage: opendal.Operator,
    verb: str,
    path: str,
) -> str:
    try:
        if verb == "list":
            list(storage.list(path))
        elif verb == "write":
            storage.write(path, b"overwritten")
        else:
            getattr(storage, verb)(path)
    except opendal.exceptions.PermissionDenied:
        return "denied"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "done"


url = os.environ["system.storage"]  # noqa: SIM112 - the standard's name
own = opened(url)
used = opened(os.environ.get(f"{PARAMETER}stolen") or url)
attacks = json.loads(os.environ[f"{PARAMETER}attacks"])
found = {f"{verb} {path}": tried(used, verb, path) for verb, path in attacks}
allowed = [("read", f"{folder('input')}/data_0"), ("write", f"{folder('output')}/data_0")]
mine = {verb: tried(own, verb, path) for verb, path in [*allowed, ("list", f"{folder('output')}/")]}
own.write(
    f"{folder('output')}/data_0",
    json.dumps(
        {
            "url": url,
            "found": found,
            "own": mine,
        }
    ).encode(),
)
