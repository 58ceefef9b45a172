"""A container image with the part of its configuration that containers inherit."""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engines.base import HOME, ImageMetadata, LaunchSpec, home_variables
from engines.records import list_in, text_in


@dataclass(frozen=True)
class Image(ImageMetadata):
    """An image as it is now; its digest is that of its configuration.

    `engines.kubernetes.images` prefers the digest of an index, if the name leads to one.
    """

    # The configuration of its containers: user, command, variables, labels.
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def user(self) -> str:
        """The image's user, without a group; empty if it names none."""
        return text_in(self.config, "User").partition(":")[0]

    @property
    def emptied_labels(self) -> dict[str, str]:
        """The image's labels with empty values.

        Containers inherit the labels of their image, and other programs on the host may act on the
        values.
        """
        return dict.fromkeys(self.labels, "")

    @property
    def runs_as_root(self) -> bool:
        """Whether the image's user is root: by name, by a spelling of 0, or because none is set."""
        without_zeros = self.user.strip("+-0")  # empty for "0", "+0" and "00"
        return without_zeros in ("", "root")

    def working_directory(self, default: str) -> str:
        """Return the working directory of containers.

        ``default`` for an image without ``WORKDIR`` or with ``/``, to which no container may write.
        """
        directory = posixpath.normpath(self.config.get("WorkingDir") or "/")
        is_root = directory in ("/", "//")  # normpath keeps two leading slashes
        if is_root:
            return default
        return directory

    def variables_for(
        self,
        spec: LaunchSpec,
        temporary: str,
    ) -> dict[str, str]:
        """Return the variables of a run, with the ones that name its home folder.

        Home variables that the image sets for its own user are omitted, so that the container
        inherits them. A container whose image would run as root gets another user, so our home
        variables replace the image's. ``temporary``: the run's folder for temporary files.
        """
        variables = home_variables(HOME, temporary)
        if not self.runs_as_root:
            for name in self.environment():
                variables.pop(name, None)
        return {**variables, **spec.environment}

    def environment(self) -> dict[str, str]:
        """Return the variables that the image sets."""
        variables = {}
        for entry in list_in(self.config, "Env"):
            name, _, value = entry.partition("=")
            variables[name] = value
        return variables
