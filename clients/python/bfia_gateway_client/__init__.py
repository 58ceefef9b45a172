"""Python client of the BFIA interconnection gateway.

    from bfia_gateway_client import Client

    with Client("http://127.0.0.1:7382", token="bfia_…") as client:
        client.data.upload("customers.csv", "bank", "customers", match_id="id", label="y")
        job = client.jobs.draft(["reference/Intersection", "reference/HeteroLR"], parties, data)
        job_id = client.jobs.submit(job)
        client.jobs.watch(job_id)

`AsyncClient` has the same calls as coroutines. A call that fails raises `GatewayError`.
"""

from typing import TYPE_CHECKING, Any

from bfia_gateway_client.errors import (
    Damaged,
    GatewayError,
    Invalid,
    JobFailed,
    NoAnswer,
    NotANode,
    Problem,
    Refused,
    StillRunning,
)
from bfia_gateway_client.version import VERSION as __version__

if TYPE_CHECKING:
    from bfia_gateway_client.client import AsyncClient, Client

__all__ = [
    "AsyncClient",
    "Client",
    "Damaged",
    "GatewayError",
    "Invalid",
    "JobFailed",
    "NoAnswer",
    "NotANode",
    "Problem",
    "Refused",
    "StillRunning",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import the clients on first use: the command line needs only some modules of this package."""
    if name not in ("AsyncClient", "Client"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bfia_gateway_client import client

    return getattr(client, name)
