"""One node that is two gateway processes on one MariaDB database, and a partner of it."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from adapter.bfia.examples import A_PROVIDER
from tests.contracts.databases import careless_database
from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, wait_for


@contextmanager
def shared_node(
    home: Path,
    name: str,
    engine: Mapping[str, Any] = jobs.PATIENT_ENGINE,
    pace: Any = None,
    **limits: float,
) -> Iterator[tuple[Node, Node, Node]]:
    """Yield the two gateways of the guest's node and the host's node; the host's route leads to the first."""
    with ExitStack() as stack:
        url = stack.enter_context(careless_database(name))
        federation = Federation(home, [jobs.GUEST, "second", jobs.HOST], engine, pace=pace)
        first, second, host = federation.nodes.values()
        second.settings["node"] = {"id": jobs.GUEST}
        for node in (first, second):
            node.settings["database"] = {"url": url}
            node.settings["storage"] = {"url": f"file://{home / 'shared'}"}
            node.settings["limits"] = limits
        del second.settings[
            "route_table"
        ]  # one gateway of a database has the file, all have its routes
        for node, other in ((first, host), (host, first)):
            node.route(**{other.settings["node"]["id"]: other.peer_port})
        stack.enter_context(federation)
        for node in (first, host):
            node.register(A_PROVIDER)
        wait_for(
            lambda: jobs.HOST in str(second.get("/api/v1/routes")),
            30,
            about="the second has the routes",
        )
        yield first, second, host
