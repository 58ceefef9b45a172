"""A job's timeline has every request to another node, with its target, response and duration."""

from collections import Counter
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from gateway.bootstrap.parts import Pace
from gateway.errors import GatewayError
from tests.adapter.bfia.scripted import raw, says, states
from tests.adapter.bfia.site import CONTROL, FATE, SPEC, Site, a_job_with, by_path
from tests.contracts.apis import THIRD
from tests.e2e.nodes import wait_for
from tests.inprocess import ME

POLL = f"{CONTROL}/task/poll"


def timeline(site: Site, job_id: str) -> list[dict[str, Any]]:
    """Return the entries of a job's timeline."""
    response = site.node.get(f"/api/v1/jobs/{job_id}/timeline")
    assert response.status_code == 200
    return list(response.json()["timeline"])


def sent_requests(site: Site, job_id: str) -> list[dict[str, Any]]:
    """Return the entries of sent requests, each with its details."""
    entries = timeline(site, job_id)
    return [entry | entry["detail"] for entry in entries if entry["event"] == "request sent"]
