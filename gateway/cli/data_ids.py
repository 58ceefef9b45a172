"""How datasets are named on the command line, and where a node answers for them."""

from typing import Annotated

import typer

from gateway.cli.client import EXIT_BAD_INPUT, CallFailed, segment
from gateway.cli.completing import datasets

DatasetId = Annotated[
    str, typer.Argument(metavar="NAMESPACE#NAME", help="The dataset's id.", autocompletion=datasets)
]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Why; kept in the audit.")]


def address_of(dataset: str) -> tuple[str, str]:
    """Return namespace and name. Raises `CallFailed` for what is no dataset's id."""
    namespace, hash_sign, name = dataset.partition("#")
    if not (namespace and hash_sign and name):
        raise CallFailed(f"{dataset!r} is no dataset's id; it reads namespace#name", EXIT_BAD_INPUT)
    return namespace, name


def path_of(dataset: str, what: str = "") -> str:
    """Return a dataset's path on the operators' listener, with ``what`` behind it. Raises `CallFailed`."""
    namespace, name = address_of(dataset)
    return f"/api/v1/datasets/{segment(namespace)}/{segment(name)}{what}"
