"""The check in the place of the node's own platform: jobs that it submits there, and their end."""

from collections.abc import Mapping
from typing import Any

from gateway.conformance.platforms.answers import Answer
from gateway.conformance.platforms.node import CheckedNode

SCHEDULE = "/v1/platform/schedule"  # of the platform, control layer 5
SUBMIT = f"{SCHEDULE}/job/create_all"
STOP_SUBMITTED = f"{SCHEDULE}/job/stop_all"
STATUS = f"{SCHEDULE}/job/status_all"
JOB_LIST = f"{SCHEDULE}/job/query_job_list"


class Operator:
    """Requests of the node's own platform."""

    def __init__(self, node: CheckedNode, token: str = "") -> None:
        """``node``: at its address for operators. ``token``: empty if it demands none."""
        self._node = node
        self.token = token

    def close(self) -> None:
        """Close the connections."""
        self._node.close()

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        seconds: float,
    ) -> Answer:
        """Send a body. Raises `CannotTry` if the node does not serve the path."""
        return self._ask(
            path,
            body=body,
            seconds=seconds,
        )

    def post_without_token(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Send a body as somebody without a token."""
        return self._node.ask(path, body)

    def get(self, path: str, **query: str) -> Answer:
        """Read a path. Raises `CannotTry` if the node does not serve it."""
        return self._ask(
            path,
            method="GET",
            query=query,
        )

    def _ask(self, path: str, **request: Any) -> Answer:
        """Send a request with the token, if there is one."""
        if self.token:
            request["authorization"] = f"Bearer {self.token}"
        return self._node.ask(path, **request)
