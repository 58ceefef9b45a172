"""The images of a Docker daemon, and pulls from the registries that the admin allows.

No image is pulled implicitly.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from docker import APIClient
from docker.errors import APIError, DockerException, NotFound
from docker.types import Healthcheck
from requests import Timeout

from engines.base import MISSING_IMAGE_REMEDY, EngineDown, ImageNotFound, PullTimeout
from engines.docker.client import check_response, message_of, translated, url_of
from engines.docker.pulls import login_headers, pull
from engines.error_texts import pull_error
from engines.image import Image
from engines.records import list_in, object_in
from engines.registry.logins import login_for
from engines.registry.names import PullRules, invalid_name

# Replaces the health check of an image. The daemon would run that check repeatedly, and without the
# limits of the run.
NO_CHECK = Healthcheck(test=["NONE"])

# Messages about an invalid name. A missing image is recognized by its HTTP status before, so here
# "no such image" is about the name.
_INVALID_NAME = re.compile(
    "no such image|invalid reference format|repository name must", re.IGNORECASE
)


class Images:
    """The daemon's images."""

    def __init__(
        self,
        client: Callable[[], APIClient],
        rules: PullRules,
    ) -> None:
        """``client`` returns the daemon's client, and connects it if necessary.

        ``rules``: what may be pulled, and for how long.
        """
        self._client = client
        self._rules = rules

    def find(self, name: str) -> Image:
        """Return a local image. Raises `ImageNotFound`: nothing is pulled."""
        if not name:
            raise ImageNotFound(
                "the image has no name", "name one in the registration: metadata.image"
            )
        record = self._inspect(name)
        config = object_in(record, "Config")
        return Image(
            digest=record["Id"],
            labels=object_in(config, "Labels"),
            repo_digests=tuple(list_in(record, "RepoDigests")),
            config=config,
        )

    def _inspect(self, name: str) -> Mapping[str, Any]:
        """Return the daemon's record of a local image.

        Raises `ImageNotFound` for a missing image and for an invalid name, else `EngineError`.
        """
        with translated():
            try:
                api: Any = self._client()  # the library leaves this call without types
                record: Mapping[str, Any] = api.inspect_image(name)
            except NotFound as error:
                raise _missing(name) from error
            except APIError as error:
                if _INVALID_NAME.search(message_of(error)):
                    raise invalid_name(name) from error
                raise
        return record

    def ensure(
        self,
        name: str,
        on_progress: Callable[[str], None],
    ) -> Image:
        """Return an image; pull it if it is missing and the rules allow it.

        Raises as `pull` does, and `ImageNotFound` for a missing image if no registry is allowed.
        """
        try:
            return self.find(name)
        except ImageNotFound:
            may_pull = bool(name) and bool(self._rules.registries)
            if not may_pull:
                raise
        pull(self._client, name, self._rules, on_progress)
        return self.find(name)

    def registry_digest(self, image: str, seconds: float) -> str:
        """Return the digest that an image's registry has, with the rights and rules of a pull.

        The daemon asks the registry, for at most ``seconds``. Raises `EngineError`.
        """
        if not image or not self._rules.registries:
            raise _missing(image)
        registry = self._rules.allowed_name(image).registry
        login = login_for(registry)
        api = self._client()
        url = url_of(api, f"distribution/{image}/json")
        try:
            response = api.get(
                url,
                headers=login_headers(login),
                timeout=seconds,
            )
            check_response(response)
            return str(response.json()["Descriptor"]["digest"])
        except APIError as error:
            raise pull_error(image, message_of(error), login.explanation) from error
        except Timeout as error:
            raise PullTimeout(
                f"{registry} did not respond about {image} within {seconds:g} s"
            ) from error
        except (DockerException, OSError) as error:
            raise EngineDown(
                f"the container engine went away during the request for {image}: {error}"
            ) from error


def _missing(image: str) -> ImageNotFound:
    """Return the error for an image that the daemon does not have."""
    return ImageNotFound(f"the container engine has no image {image}", MISSING_IMAGE_REMEDY)
