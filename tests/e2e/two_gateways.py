"""One node that is two gateway processes on one database, and a partner of it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from adapter.bfia.examples import A_PROVIDER
from tests.contracts.databases import careless_database
from tests.e2e import jobs
from tests.e2e.nodes import ROOT, Federation, Node, wait_for


@contextmanager
def shared_node(
    home: Path,
    name: str,
    engine: Mapping[str, Any] = jobs.PATIENT_ENGINE,
    pace: Any = None,
    database: Callable[[str], AbstractContextManager[str]] = careless_database,
    sources: Path = ROOT,
    **limits: float,
) -> Iterator[tuple[Node, Node, Node]]:
    """Yield the two gateways of the guest's node and the host's node.

    The host's route leads to the first gateway. ``name`` is the database's, which ``database``
    creates; ``sources`` and ``limits`` are those of the guest's node.
    """
    with ExitStack() as stack:
        url = stack.enter_context(database(name))
        federation = Federation(
            home,
            [jobs.GUEST, "second", jobs.HOST],
            engine,
            pace=pace,
        )
        first, second, host = federation.nodes.values()
        for gateway in (first, second):
            gateway.settings["node"] = {"id": jobs.GUEST}
            gateway.settings["database"] = {"url": url}
            gateway.settings["storage"] = {"url": f"file://{home / 'shared'}"}
            gateway.settings["limits"] = limits
            gateway.sources = sources
        # The first gateway reads the file into the database, where the second has its routes.
        del second.settings["route_table"]
        first.route(**{jobs.HOST: host.peer_port})
        host.route(**{jobs.GUEST: first.peer_port})
        stack.enter_context(federation)
        for node in (first, host):
            node.register(A_PROVIDER)
        wait_for(lambda: has_route_to_host(second), 30, about="the second has the routes")
        yield first, second, host


def has_route_to_host(gateway: Node) -> bool:
    """Return whether a gateway has a route to the host's node."""
    return jobs.HOST in str(gateway.get("/api/v1/routes"))
