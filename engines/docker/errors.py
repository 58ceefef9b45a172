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
"""what a daemon answers that begins or ends, or a proxy before one that is away"""
_PARTS_AWAY = re.compile(
    r"error while dialing|containerd\.sock|code = unavailable|client connection is closing|shutting down",
    re.IGNORECASE,
)
"""what a daemon says in a 500 of a part of its own that is away, and that it starts again"""
_NO_NETWORK = re.compile(r"network \S+ not found", re.IGNORECASE)


@contextmanager
def translated(otherwise: type[EngineError] = EngineError) -> Iterator[None]:
    """Raise what the daemon refuses by its name or as ``otherwise``, and `EngineDown` if it is away."""
    try:
        yield
    except APIError as error:
        raise _refusal(error, otherwise) from error
    except (DockerException, HTTPError, OSError) as error:  # OSError: every failure of a request is one
        raise EngineDown(f"the container engine does not answer: {error}") from error


def check_answer(answer: Response) -> None:
    """Raise APIError unless the daemon answered a request of our own making well."""
    try:
        answer.raise_for_status()
    except requests.HTTPError as error:
        create_api_error_from_http_exception(error)


def network_is_gone(error: APIError) -> bool:
    """Tell whether the daemon misses a network, which somebody removed since it was made."""
    return _NO_NETWORK.search(words(error)) is not None


def image_is_gone(error: APIError) -> bool:
    """Tell whether the daemon misses an image, which somebody removed since it was found."""
    return error.status_code == 404 and "no such image" in words(error).lower()


def is_away(error: APIError) -> bool:
    """Tell whether the daemon cannot do anything just now, whatever it is asked."""
    status = error.status_code
    return status in _NOT_READY or (status == 500 and _PARTS_AWAY.search(words(error)) is not None)


def words(error: APIError) -> str:
    """Return what the daemon said."""
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
