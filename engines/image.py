"""A container image with the part of its configuration that containers inherit."""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engines.base import HOME, ImageMetadata, LaunchSpec, home_variables


@dataclass(frozen=True)
class Image(ImageMetadata):
    """An image as it is now; its digest is that of its configuration."""

    # The configuration of its containers: user, command, variables, labels.
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def user(self) -> str:
        """The image's user, without a group; empty if it names none."""
        return str(self.config.get("User") or "").partition(":")[0]

    @property
    def emptied_labels(self) -> dict[str, str]:
        """The labels without values: containers inherit them, and other programs may act on the values."""
        return dict.fromkeys(self.labels, "")

    @property
    def runs_as_root(self) -> bool:
        """Whether the image's user is root: by name, by any spelling of 0, or because it names none."""
        return self.user.strip("+-0") in ("", "root")

    def working_directory(self, default: str) -> str:
        """Return the working directory of containers; ``default`` for an image without ``WORKDIR``."""
        directory = posixpath.normpath(self.config.get("WorkingDir") or "/")
        if directory in ("/", "//"):
            return default
        return directory

    def variables_for(self, spec: LaunchSpec, temporary: str) -> dict[str, str]:
        """Return the variables of a run, with those of its home folder.

        Home variables that the image sets for a user of its own keep the image's values.
        """
        variables = home_variables(HOME, temporary)
        if not self.runs_as_root:
            for entry in self.config.get("Env") or ():
                variables.pop(entry.partition("=")[0], None)
        return {**variables, **spec.environment}
