"""A node that is also checked at its addresses for containers and for operators."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from structlog.testing import capture_logs

from gateway.conformance.platforms.check import SCENARIOS
from gateway.conformance.platforms.findings import Evidence
from gateway.conformance.platforms.node import CheckedNode, Identity
from gateway.conformance.platforms.operators import Operator
from gateway.conformance.platforms.partner import Partner
from gateway.conformance.platforms.trial import Trial, TrialOptions
from tests.conformance.platforms.checked import (
    CHECK,
    IMAGE,
    PROBE,
    Site,
    probe_registration,
    tell_token,
)
from tests.inprocess import running
from tests.memory_engine import MemoryEngine, Script

TOKEN = "the-token-of-the-platform"
# The least time in which each step of a node ends; a busy machine needs some.
OPTIONS = TrialOptions(PROBE, timeout=30.0)


def clauses_of(module: str) -> tuple[str, ...]:
    """Return the ids of the clauses that a module of scenarios tries."""
    ids = []
    for clause_id, scenario in SCENARIOS.items():
        if scenario.__module__.endswith(module):
            ids.append(clause_id)
    return tuple(ids)


CONTAINER_CLAUSES = clauses_of(".scenarios.containers")
OPERATOR_CLAUSES = clauses_of(".scenarios.operators")


@contextmanager
def trial_of(
    site: Site,
    containers: str = "",
    operators: str = "",
    options: TrialOptions = OPTIONS,
) -> Iterator[Trial]:
    """Open a new trial of a node, by default at its own addresses; clean up after it."""
    addresses = site.node.addresses()
    transport = _node_at(site, containers or addresses["container"])
    platform = _node_at(site, operators or addresses["operator"])
    trial = Trial(
        site.trial.node,
        site.trial.partner,
        site.trial.evidence,
        options,
        transport,
        Operator(platform, TOKEN),
    )
    yield trial
    trial.clean_up()
    transport.close()
    platform.close()


def _node_at(site: Site, url: str) -> CheckedNode:
    """Return the node at a further address."""
    return CheckedNode(
        url,
        site.node.settings.node.id,
        Identity(CHECK),
        site.trial.evidence,
        per_second=1000,
    )


@contextmanager
def node_with_sides(home: Path) -> Iterator[Site]:
    """Serve a node that demands tokens, and whose component tells the check its token."""
    make_engine = MemoryEngine.making({IMAGE: Script(body=tell_token)})
    auth = {"mode": "on", "token": TOKEN}
    evidence = Evidence()
    partner = Partner(("127.0.0.1", 0), evidence)
    with capture_logs(), running(home, make_engine=make_engine, auth=auth) as node:
        entry = {"url": f"http://127.0.0.1:{partner.port}", "signing": "off"}
        routes = Path(str(node.settings.route_table.file))
        routes.write_text(yaml.safe_dump({CHECK: entry}))
        node.routes.reload()
        node.post(
            "/v2/provider/register",
            probe_registration(),
            token=TOKEN,
        )
        client = CheckedNode(
            node.addresses()["peer"],
            node.settings.node.id,
            Identity(CHECK),
            evidence,
            per_second=1000,
        )
        yield Site(node, Trial(client, partner, evidence, OPTIONS))
        client.close()
        partner.close()
