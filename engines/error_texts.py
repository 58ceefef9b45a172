"""Recognizes the errors behind messages of container daemons, cluster machines and registries."""

import re
from collections.abc import Callable

from engines.base import (
    CommandNotFound,
    CreateFailed,
    EngineError,
    ImageNotFound,
    NoSpace,
    PortInUse,
    PullDenied,
    PullFailed,
    PullTimeout,
)

# Messages about a container whose executable the image lacks. A missing docker-init, which is the
# daemon's own program, does not come from the image.
_NO_EXECUTABLE = re.compile(
    r'exec: "(?!docker-init)[^"]*": (executable file not found|stat .*no such file|no such file)'
    r"|no command specified",
    re.IGNORECASE,
)
_PORT_IN_USE = re.compile(
    r"port is already allocated|address already in use|ports are not available", re.IGNORECASE
)


def _not_in_registry(text: str) -> ImageNotFound:
    """Return the error for an image that its registry lacks, with the remedy."""
    return ImageNotFound(text, "push it there, or correct its name in the registration")


# Words of a message, in lower case, and the error that they mean. The first match counts: a
# registry that denies access to an image often adds that the image may not exist.
_PULL_ERRORS: tuple[tuple[tuple[str, ...], Callable[[str], EngineError]], ...] = (
    (("no space left",), NoSpace),
    (("denied", "authoriz", "authentication required", "no basic auth", "forbidden"), PullDenied),
    (
        (
            "manifest unknown",
            "not found",
            "name unknown",
            "does not exist",
            "invalid reference",
            "name must",
        ),
        _not_in_registry,
    ),
    (("timeout", "deadline exceeded", "timed out", "client.timeout"), PullTimeout),
)


def pull_error(image: str, text: str, explanation: str = "") -> EngineError:
    """Return the error behind a message about a pull.

    ``text`` is the message of the daemon, machine or registry; `_PULL_ERRORS` says which words in
    it mean which error, and any other message becomes `PullFailed`. ``explanation`` is appended to
    the message of the error.
    """
    message = f"{image} cannot be pulled: {text}{explanation}"
    lowered = text.lower()
    for words, error in _PULL_ERRORS:
        if any(word in lowered for word in words):
            return error(message)
    return PullFailed(message)


def start_error(text: str) -> EngineError:
    """Return the error behind a message about a container that did not start.

    `PortInUse`, `CommandNotFound`, or `CreateFailed` for any other message.
    """
    if _PORT_IN_USE.search(text):
        return PortInUse(text)
    if _NO_EXECUTABLE.search(text):
        return CommandNotFound(text)
    return CreateFailed(text)
