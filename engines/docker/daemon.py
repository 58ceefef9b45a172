"""What the engines of a Docker daemon share: its images, the labels of this node's runs, its watches."""

from collections.abc import Callable, Mapping
from typing import Any

from engines.base import INSTALLATION, NODE, ImageMetadata, Watch
from engines.docker.client import Connection
from engines.docker.images import Images, PullRules


class DaemonEngine:
    """Runs of one installation at a daemon; see `engines.base.Engine` for what each method promises."""

    def __init__(
        self, node: str, installation: str, base_url: str, tls: Mapping[str, str], pull: PullRules
    ) -> None:
        """Connects only when first used."""
        self._node = node
        self._installation = installation
        self._labels = {NODE: node, INSTALLATION: installation}
        self._client = Connection(base_url, tls)
        self._images = Images(self._client, pull)
        self._watches: list[Watch] = []

    def image_digest(self, image: str) -> str:
        return self._images.find(image).id

    def image_facts(self, image: str) -> ImageMetadata:
        found = self._images.find(image)
        return ImageMetadata(found.id, found.labels, found.repo_digests)

    def ensure_image(self, image: str, on_progress: Callable[[str], None]) -> str:
        return self._images.ensure(image, on_progress).id

    def offered(self, image: str, seconds: float) -> str:
        return self._images.offered(image, seconds)

    def close(self) -> None:
        for watch in self._watches:
            watch.close()
        self._client.close()

    def _filters(self) -> dict[str, Any]:
        """Return what selects the runs of this installation in the daemon's lists."""
        return {"label": [f"{name}={value}" for name, value in self._labels.items()]}
