"""Turns what the Docker client raises into the engines' errors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import requests
from docker.errors import APIError, DockerException, create_api_error_from_http_exception
from requests import Response
from urllib3.exceptions import HTTPError

from engines.base import (
    HOW_TO_HAVE_IT,
    CommandNotFound,
    CreateFailed,
    EngineDown,
    EngineError,
    ImageNotFound,
    NoSpace,
    PortInUse,
)

_NO_EXECUTABLE = re.compile(
    r'exec: "(?!docker-init)[^"]*": (executable file not found|stat .*no such file|no such file)'
    r"|no command specified",
    re.IGNORECASE,
)
_PORT_TAKEN = re.compile(
    r"port is already allocated|address already in use|ports are not available", re.IGNORECASE
)
_NOT_READY = (502, 503, 504)
"""statuses of a daemon that starts or stops, or of a proxy before one that is away"""
_PARTS_AWAY = re.compile(
    r"error while dialing|containerd\.sock|code = unavailable|client connection is closing|shutting down",
    re.IGNORECASE,
)
"""messages of a daemon (500) one of whose own processes is away, which it restarts"""
_NO_NETWORK = re.compile(r"network \S+ not found", re.IGNORECASE)


@contextmanager
def translated(otherwise: type[EngineError] = EngineError) -> Iterator[None]:
    """Raise what the daemon refuses as the specific error or ``otherwise``, and `EngineDown` if it is away."""
    try:
        yield
    except APIError as error:
        raise _refusal(error, otherwise) from error
    except (DockerException, HTTPError, OSError) as error:  # OSError: every failure of a request is one
        raise EngineDown(f"the container engine does not answer: {error}") from error


def check_answer(answer: Response) -> None:
    """Raise APIError unless a request that we made without the library succeeded."""
    try:
        answer.raise_for_status()
    except requests.HTTPError as error:
        create_api_error_from_http_exception(error)


def network_is_gone(error: APIError) -> bool:
    """Whether the daemon lacks a network that was removed since it was created."""
    return _NO_NETWORK.search(words(error)) is not None


def image_is_gone(error: APIError) -> bool:
    """Whether the daemon lacks an image that was removed since it was found."""
    return error.status_code == 404 and "no such image" in words(error).lower()


def is_away(error: APIError) -> bool:
    """Whether the daemon cannot handle any request at present."""
    status = error.status_code
    return status in _NOT_READY or (status == 500 and _PARTS_AWAY.search(words(error)) is not None)


def words(error: APIError) -> str:
    """Return the daemon's message."""
    return str(error.explanation or error)


def _refusal(error: APIError, otherwise: type[EngineError]) -> EngineError:
    text = words(error)
    if is_away(error):
        return EngineDown(f"the container engine is not ready: {text}")
    if "no space left on device" in text.lower():
        return NoSpace(text)
    if otherwise is not CreateFailed:
        return otherwise(text)
    if image_is_gone(error):
        return ImageNotFound(text, HOW_TO_HAVE_IT)
    if _PORT_TAKEN.search(text):
        return PortInUse(text)
    if _NO_EXECUTABLE.search(text):
        return CommandNotFound(text)
    return CreateFailed(text)
