"""A Docker daemon with scripted responses, for tests without Docker."""

from typing import Any

import requests
from docker.errors import APIError

from engines.base import LaunchSpec
from engines.docker.client import Connection
from tests.contracts.engine_acts import a_spec, exits
from tests.contracts.harnesses import MemoryHarness

# The name of a run: other names are never asked for at a daemon.
RUN = "bfia-0000000000000000"
# The labels of a run of node n, installation i.
RUN_LABELS = {
    "bfia.node": "n",
    "bfia.installation": "i",
}


class Daemon(Connection):
    """A connection whose client returns scripted responses, by method.

    Each call takes the method's next response and raises it if it is an exception. The last
    response is repeated.
    """

    # Attributes of docker's client that the engine reads.
    base_url = "http://daemon"
    api_version = "1"
    timeout = 1
    _auth_configs = None

    def __init__(self, **responses: Any) -> None:
        self._responses = {name: list(values) for name, values in responses.items()}
        self.calls: list[str] = []  # names of the methods, in order

    def __call__(self) -> Any:
        return self

    def is_here(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        def respond(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            remaining = self._responses[name]
            response = remaining.pop(0) if len(remaining) > 1 else remaining[0]
            if isinstance(response, Exception):
                raise response
            return response

        return respond


def api_error(
    status: int,
    words: str = "no",
    kind: type[APIError] = APIError,
) -> APIError:
    response = requests.Response()
    response.status_code = status
    return kind(words, response, words)


def a_run(**fields: Any) -> LaunchSpec:
    return a_spec(MemoryHarness(), exits(0), **fields)
