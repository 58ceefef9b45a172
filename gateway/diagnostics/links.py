"""The check of the links of routes: whether they stand, as the running gateways have stored."""

import shlex

from gateway.diagnostics.installation import Installation, routes_in_file
from gateway.errors import counted
from gateway.links.missing import causes_of_missing_links, linked_nodes
from gateway.runtime import trials
from gateway.runtime.trials import Result, Step
from gateway.store.links import links_of_running_gateways


def with_links(node: Installation, step: Step) -> Step:
    """Return a good step of routes, which warns of routes whose links do not stand.

    Nothing is added while no gateway of the node runs, or if no route has links.
    """
    routes = routes_in_file(node.settings).table.routes
    nodes = linked_nodes(routes.values())
    if not nodes or not node.database_ready or step.result is not Result.OK:
        return step
    links = links_of_running_gateways(node.store)
    if links is None:
        return step
    causes = causes_of_missing_links(nodes, links)
    if not causes:
        return trials.ok(f"{step.found}; links with {counted(len(nodes), 'node')} stand")
    first_node = shlex.quote(next(iter(causes)))
    remedy = f"bfia-gateway route test {first_node} tells the next step"
    return trials.warning("; ".join(causes.values()), remedy, step.found)
